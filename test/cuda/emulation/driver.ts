/** The stand-in for the NVIDIA driver with the resident kernel itself, compiled for the CPU: tasks really run. */
import { spawnSync } from 'node:child_process';
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { COMPILER, compileFakes, NO_COMPILER } from '../fakes.ts';
import { compileShared, NO_GXX } from './emulation.ts';

export const NO_EMULATION = NO_COMPILER || NO_GXX;
/** For `describe.skipIf(NO_EMULATION)`: the reason stands in the test's name. */
export const reason = (name: string): string => (NO_EMULATION ? `${name} (skipped: no compilers for the emulation)` : name);

const path = (name: string): string => fileURLToPath(new URL(name, import.meta.url));
/** Calls of the plain stand-in that this one has its own of. */
const OWN = [
  'cuModuleGetFunction',
  'cuStreamCreateWithPriority',
  'cuStreamDestroy_v2',
  'cuStreamQuery',
  'cuStreamSynchronize',
  'cuLaunchKernel',
  'cuLaunchKernelEx',
  'cuLinkAddData_v2',
  'cuLinkComplete',
  'cuMemcpyHtoDAsync_v2',
  'cuMemcpyDtoHAsync_v2',
  'cuMemcpyDtoDAsync_v2',
  'cuMemsetD8Async',
];

/** A folder with the libraries, for `cudaHome`. */
export function compileEmulatedDriver(): { readonly folder: string; remove(): void } {
  const fakes = compileFakes(['nvrtc']);
  const plain = join(fakes.folder, 'driver.o');
  const renamed = OWN.map((name) => `-D${name}=plain_${name}`);
  const compiled = spawnSync(COMPILER!, ['-c', '-fPIC', '-O1', ...renamed, '-o', plain, path('../fake-driver.c')], { encoding: 'utf8' });
  if (compiled.status !== 0) throw new Error(compiled.stderr);
  const text = (name: string): string => readFileSync(path(name), 'utf8');
  const device = path('../../../src/backends/cuda/device/resident.cu');
  const sources = [
    { name: 'grid.cc', text: text('grid.cc') },
    { name: 'resident.cu', text: readFileSync(device, 'utf8') },
    { name: 'fake.h', text: text('../fake.h') },
    { name: 'fake-driver.c', text: text('../fake-driver.c') },
  ];
  const shared = compileShared(sources, ['-pthread'], [plain]);
  copyFileSync(shared, join(fakes.folder, 'libcuda.so.1'));
  return fakes;
}
