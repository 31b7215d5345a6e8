/** The stand-in for the NVIDIA driver with the resident kernel itself, compiled for the CPU: tasks really run. */
import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { COMPILER, NO_COMPILER } from '../fakes.ts';
import { operatorCubin } from '../operator-cubin.ts';
import { compileShared, EMULATION_FLAGS, GXX, NO_GXX } from './emulation.ts';

export const NO_EMULATION = NO_COMPILER || NO_GXX;
/** For `describe.skipIf(NO_EMULATION)`: the reason stands in the test's name. */
export const reason = (name: string): string => (NO_EMULATION ? `${name} (skipped: no compilers for the emulation)` : name);

const path = (name: string): string => fileURLToPath(new URL(name, import.meta.url));
/** Calls of the plain stand-in that this one has its own of. */
const OWN_OF_DRIVER = [
  'cuModuleLoadData',
  'cuModuleUnload',
  'cuModuleGetFunction',
  'cuFuncGetAttribute',
  'cuMemFree_v2',
  'cuStreamBeginCapture_v2',
  'cuStreamEndCapture',
  'cuGraphGetNodes',
  'cuGraphNodeGetType',
  'cuGraphKernelNodeGetParams_v2',
  'cuGraphDestroy',
  'cuKernelGetFunction',
  'cuStreamCreateWithPriority',
  'cuStreamDestroy_v2',
  'cuStreamQuery',
  'cuStreamSynchronize',
  'cuLaunchKernel',
  'cuLaunchKernelEx',
  'cuLinkCreate_v2',
  'cuLinkAddData_v2',
  'cuLinkComplete',
  'cuLinkDestroy',
  'cuMemcpyHtoDAsync_v2',
  'cuMemcpyDtoHAsync_v2',
  'cuMemcpyDtoDAsync_v2',
  'cuMemsetD8Async',
];

const OWN_OF_NVRTC = [
  'nvrtcCreateProgram',
  'nvrtcDestroyProgram',
  'nvrtcCompileProgram',
  'nvrtcGetProgramLogSize',
  'nvrtcGetProgramLog',
  'nvrtcGetCUBINSize',
  'nvrtcGetCUBIN',
];

/** A block soon rests where its thread has no core of its own, and waits for those that have none at the moment. */
const SLOWER = [
  '-pthread',
  '-DGPUOS_AWAKE_LOOKS=20',
  '-DGPUOS_DROWSY_LOOKS=2000',
  '-DGPUOS_DRAIN_NS=20000000000ull',
  '-DGPUOS_YIELD_NS=20000000ull',
  '-DGPUOS_AHEAD_CYCLES=5000000',
];

const text = (name: string): string => readFileSync(path(name), 'utf8');

function run(compiler: string, flags: readonly string[]): void {
  const { status, stderr } = spawnSync(compiler, flags, { encoding: 'utf8' });
  if (status !== 0) throw new Error(stderr);
}

/** The plain stand-in without what is replaced. */
function plainObject(folder: string, name: string, replaced: readonly string[]): string {
  const object = join(folder, `${name}.o`);
  const renamed = replaced.map((call) => `-D${call}=plain_${call}`);
  run(COMPILER!, ['-c', '-fPIC', '-O1', '-DHEAP_EXECUTABLE', ...renamed, '-o', object, path(`../${name}.c`)]);
  return object;
}

/**
 * A folder with the libraries, for `cudaHome`: tasks run, with operators that are injected too. Start the device process with
 * `EMULATED_DEVICE` in its environment.
 */
export function compileEmulatedDriver(): { readonly folder: string; remove(): void } {
  const folder = mkdtempSync(join(tmpdir(), 'emulated-cuda-'));
  const sources = [
    { name: 'grid.cc', text: text('grid.cc') },
    { name: 'resident.cu', text: text('../../../src/backends/cuda/device/resident.cu') },
    ...['fake.h', 'fake-stream.h', 'fake-driver.c'].map((name) => ({ name, text: text(`../${name}`) })),
  ];
  const driver = join(folder, 'libcuda.so.1');
  copyFileSync(compileShared(sources, SLOWER, [plainObject(folder, 'fake-driver', OWN_OF_DRIVER)]), driver);

  const cubin = operatorCubin('multiply.sm_90');
  const template = join(folder, 'template.cubin');
  writeFileSync(template, cubin.bytes);
  const defines = {
    KEEP: join(folder, 'injected'),
    GXX,
    FLAGS: EMULATION_FLAGS.filter((flag) => flag !== '-shared').join(' '),
    EMULATION: path('.'),
    DRIVER: driver,
    TEMPLATE: template,
  };
  run(GXX!, [
    ...['-shared', '-fPIC', '-O1', '-std=gnu++17', '-w', '-I', path('..'), '-I', path('.')],
    `-DCODE_OFFSET=${cubin.codeOffset}`,
    ...Object.entries(defines).map(([name, value]) => `-D${name}="${value}"`),
    ...['-o', join(folder, 'libnvrtc.so.13'), path('nvrtc.cc'), plainObject(folder, 'fake-nvrtc', OWN_OF_NVRTC)],
  ]);
  return { folder, remove: () => rmSync(folder, { recursive: true, force: true }) };
}

/** What the device is: few multiprocessors, memory of the process. */
export const EMULATED_DEVICE: Readonly<Record<string, string>> = {
  FAKE_heap: '1',
  FAKE_heap_bytes: String(2 ** 33),
  FAKE_attribute16: '4',
  FAKE_attribute81: '233472',
  FAKE_attribute82: '65536',
  FAKE_attribute111: '1024',
  FAKE_attribute75: '9',
  FAKE_attribute76: '0',
  // Where other tests run at the same time, an honest task may take long.
  GPUOS_TASK_BUDGET_MS: '600000',
};
