/** The cuda device and its table of functions on the stand-in driver: no kernel runs, so what is seen is what the host does. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { control, workerRecord } from '../../src/abi/records.ts';
import type { CudaDevice, CudaDeviceOptions } from '../../src/backends/cuda/device.ts';
import { findLibrary } from '../../src/backends/cuda/discovery.ts';
import { ImageCache } from '../../src/backends/cuda/image-cache.ts';
import { DirectFunctions, type DirectOptions } from '../../src/backends/cuda/injection/direct.ts';
import { BYTECODE_BYTES } from '../../src/backends/cuda/injection/functions.ts';
import { encodeProgram } from '../../src/backends/cuda/interpreter/index.ts';
import type { Program } from '../../src/ops/program.ts';
import { CHANGE, CONTROL_ADDRESS } from '../../src/abi/status.ts';
import { compileFakes } from './fakes.ts';
import { operatorCubin } from './operator-cubin.ts';
import { eventually, named, processesWith, SKIP, stage, type Started } from './process-start.ts';

const MIB = 2 ** 20;
/** The device process loads its kernel's host side from beside the device's module: only the built one has it there. */
const DEVICE = new URL('../../dist/backends/cuda/device.js', import.meta.url).href;

/**
 * The stand-in's launches expect the kernel of the driver's tests, and its linker takes 256 bytes. These take the
 * resident kernel.
 */
const LAUNCHES = `
#undef cuLaunchKernel
#undef cuLaunchKernelEx
#undef cuLinkAddData_v2
#undef cuLinkComplete
#define fake_calls launch_calls
#define fake_result launch_result
#define fake_value launch_value
#include "fake.h"
typedef struct { int id, pad, value, rest[15]; } Attribute;
typedef struct { unsigned grid[3], block[3], shared; void *stream; Attribute *attributes; unsigned count; } Config;
static unsigned char image[1 << 20];
static size_t image_bytes;
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
                   void **parameters, void **extra) {
    (void)f, (void)gy, (void)gz, (void)by, (void)bz, (void)stream, (void)parameters, (void)extra;
    return note("cuLaunchKernel", " %u x %u, %u bytes", gx, bx, shared);
}
int cuLaunchKernelEx(const Config *c, void *f, void **parameters, void **extra) {
    int cooperative = 0;
    (void)f, (void)parameters, (void)extra;
    for (unsigned i = 0; i < c->count; i++) if (c->attributes[i].id == 2) cooperative = c->attributes[i].value;
    return note("cuLaunchKernelEx", " %u x %u, %u bytes, cooperative %d", c->grid[0], c->block[0], c->shared, cooperative);
}
int cuLinkAddData_v2(void *state, int type, void *data, size_t size, const char *name, unsigned count, void *options, void **values) {
    (void)state, (void)type, (void)count, (void)options, (void)values;
    image_bytes = size < sizeof image ? size : sizeof image;
    memcpy(image, data, image_bytes);
    return note("cuLinkAddData_v2", " %s", name);
}
int cuLinkComplete(void *state, void **cubin, size_t *size) {
    (void)state;
    *cubin = image, *size = image_bytes;
    return note("cuLinkComplete", "");
}
`;

let work: string;
let fakes: ReturnType<typeof compileFakes>;
beforeAll(() => {
  work = mkdtempSync(join(tmpdir(), 'gpuos-device-'));
  if (SKIP) return;
  const source = join(work, 'launches.c');
  writeFileSync(source, LAUNCHES);
  const renamed = ['cuLaunchKernel', 'cuLaunchKernelEx', 'cuLinkAddData_v2', 'cuLinkComplete'].map((name) => `-D${name}=other_${name}`);
  fakes = compileFakes(['driver', 'nvrtc'], [...renamed, '-I', fileURLToPath(new URL('.', import.meta.url)), source]);
});
afterAll(() => {
  fakes?.remove();
  rmSync(work, { recursive: true, force: true });
});

function caught(action: () => unknown): { code: string; message: string } {
  try {
    action();
  } catch (error) {
    return error as { code: string; message: string };
  }
  throw new Error('nothing was thrown');
}

let marks = 0;

describe.skipIf(SKIP)(named('the cuda device'), () => {
  let Device: typeof CudaDevice;
  let options: CudaDeviceOptions;
  let mark: string;
  let log: string;
  let files: number;
  let devices: CudaDevice[];
  const calls = (name: string): string[] =>
    readFileSync(log, 'utf8')
      .split('\n')
      .filter((line) => line.split(' ')[0] === name);

  beforeEach(async () => {
    ({ CudaDevice: Device } = (await import(DEVICE)) as { CudaDevice: typeof CudaDevice });
    mark = `device-${process.pid}-${marks++}`;
    log = join(work, `${mark}.log`);
    devices = [];
    options = {
      queues: 2,
      slots: 64,
      firstSequence: 0xffff_ff00,
      memoryMib: 32,
      cudaHome: fakes.folder,
      compile: 'background',
      inject: 'direct',
      cacheFolder: join(work, mark),
    };
    // The kernel that was launched does not come back by itself.
    fake({ heap: 1, attribute75: 9, attribute76: 0, result_cuStreamQuery: 600, mark, log });
    files = readdirSync('/proc/self/fd').length;
  });
  afterEach(async () => {
    for (const device of devices) await device.stop();
    vi.unstubAllEnvs();
    await nothingIsLeft();
  });

  function fake(values: Readonly<Record<string, string | number>>): void {
    for (const [name, value] of Object.entries(values)) vi.stubEnv(`FAKE_${name}`, String(value));
  }

  function start(more: Partial<CudaDeviceOptions> = {}): CudaDevice {
    const device = new Device({ ...options, ...more });
    devices.push(device);
    return device;
  }

  /** No process, no open file, no name in the file system of shared memory. */
  async function nothingIsLeft(): Promise<void> {
    expect(await eventually(() => processesWith(`FAKE_mark=${mark}`).length === 0)).toBe(true);
    expect(await eventually(() => readdirSync('/proc/self/fd').length === files)).toBe(true);
    // Other tests may have names there for a moment.
    expect(await eventually(() => !readdirSync('/dev/shm').some((name) => name.startsWith('gpuos-')))).toBe(true);
  }

  it('launches one block for each multiprocessor, all of them at once, and says what it is', () => {
    const device = start();
    expect(device.name).toBe('Fake GPU 0, sm_90, 115 worker blocks');
    expect(device.workers).toBe(115);
    expect(device.memory.end - device.memory.start).toBe(32 * MIB);
    expect(device.hostMemory.end - device.hostMemory.start).toBe(256 * MIB);
    expect(device.queues).toHaveLength(2);
    expect(calls('cuLaunchKernelEx')).toEqual(['cuLaunchKernelEx 116 x 256, 40960 bytes, cooperative 1']);
    expect(new Set(device.status().map(({ state }) => state))).toEqual(new Set(['running']));
    expect(device.lost).toBeUndefined();
  });

  it('has its rings in memory that both see: the sequence before the first in every slot', () => {
    const device = start();
    const { u32 } = device.views();
    for (const { ring, record, completions } of device.queues) {
      for (let slot = 0; slot < 64; slot++) expect(u32[(completions + 8 * slot + 4) >> 2]).toBe(0xffff_ff00 - 64 + slot);
      expect(ring % 128).toBe(0);
      expect(record).toBeLessThan(ring);
    }
  });

  it('loads everything, and has all its memory, before the kernel starts', () => {
    start();
    const names = readFileSync(log, 'utf8').split('\n').map((line) => line.split(' ')[0]); // biome-ignore format: one thought
    const launched = names.indexOf('cuLaunchKernelEx');
    expect(launched).toBeGreaterThan(0);
    for (const name of ['cuModuleLoadData', 'cuModuleGetFunction', 'cuMemAlloc_v2', 'cuStreamCreateWithPriority', 'cuLinkComplete']) {
      expect(names.lastIndexOf(name), name).toBeGreaterThan(0);
      expect(names.lastIndexOf(name), name).toBeLessThan(launched);
    }
  });

  it('stops the kernel and leaves nothing; twice is once', async () => {
    const device = start();
    await Promise.all([device.stop(), device.stop()]);
    await device.stop();
    expect(device.lost).toBeUndefined();
    expect(calls('cuModuleUnload')).toHaveLength(1);
    await nothingIsLeft();
  });

  it('tells its blocks after how many tiles to give way', () => {
    const device = start();
    const { u32 } = device.views();
    const word = (CONTROL_ADDRESS + control.offset.yieldEvery) >> 2;
    expect(u32[word]).toBe(0);
    device.setYieldEvery(8);
    expect(u32[word]).toBe(8);
    device.setYieldEvery(0);
    expect(u32[word]).toBe(0);
  });

  it('has the counters that its blocks wrote last, also when it is stopped', async () => {
    const device = start();
    const { u32 } = device.views();
    const records = u32[(CONTROL_ADDRESS + control.offset.workerRecords) >> 2] as number;
    const { tiles, tasks, failed, parks } = workerRecord.offset;
    for (const [i, at] of [tiles, tasks, failed, parks].entries()) u32.set([10 + i, i], (records + 3 * workerRecord.size + at) >> 2);
    const counted = { tiles: 10, tasks: 11 + 2 ** 32, failed: 12 + 2 * 2 ** 32, parks: 13 + 3 * 2 ** 32 };
    expect(device.status()[2]).toEqual({ worker: 3, state: 'running', ...counted });
    expect(device.status()[1]).toEqual({ worker: 2, state: 'running', tiles: 0, tasks: 0, failed: 0, parks: 0 });
    await device.stop();
    expect(device.status()[2]).toMatchObject(counted);
    expect(() => device.setYieldEvery(3)).not.toThrow();
  });

  it('says why it is lost when its process is killed', async () => {
    const device = start();
    const [pid] = processesWith(`FAKE_mark=${mark}`);
    process.kill(pid!, 'SIGKILL');
    expect(await eventually(() => device.lost !== undefined)).toBe(true);
    expect(device.lost).toMatch(/ended by SIGKILL/);
    expect(new Set(device.status().map(({ state }) => state))).toEqual(new Set(['dead']));
  });

  const real = !SKIP && findLibrary('driver').candidates.some(({ path }) => path.startsWith('/'));
  it.skipIf(real)(`says that there is no driver${real ? ' (skipped: this machine has one)' : ''}`, () => {
    const error = caught(() => start({ cudaHome: '/nowhere' }));
    expect(error.code).toBe('GPUOS_CUDA_UNAVAILABLE');
    expect(error.message).toMatch(/Cannot load the NVIDIA driver/);
    expect(readdirSync('/proc/self/fd')).toHaveLength(files);
  });

  it.each([
    ['memory for tensors', { heap_bytes: 40 * MIB }, 'GPUOS_OUT_OF_MEMORY', /33554432 bytes of device memory asked for/],
    ['memory for bytecode', { heap_bytes: 56 * MIB }, 'GPUOS_OUT_OF_MEMORY', /16777216 bytes of device memory asked for/],
    ['a source that compiles', { result_nvrtcCompileProgram: 6 }, 'GPUOS_COMPILE_FAILED', /resident\.cu/],
    ['a kernel that loads', { result_cuModuleLoadData: 1 }, 'GPUOS_CUDA_CALL_FAILED', /cuModuleLoadData/],
    ['a kernel that starts', { result_cuLaunchKernelEx: 1 }, 'GPUOS_CUDA_CALL_FAILED', /cuLaunchKernelEx/],
    ['a device that survives it', { fault_cuLaunchKernelEx: 1 }, 'GPUOS_DEVICE_LOST', /CUDA_ERROR_ILLEGAL_ADDRESS/],
  ])('says that it lacks %s, and leaves nothing', async (_, values, code, message) => {
    fake(values as Record<string, number>);
    const error = caught(() => start());
    expect(error.message).toMatch(message);
    expect(error.code).toBe(code);
    await nothingIsLeft();
  });

  it.each([0, 16, 31, 33, 100])('refuses rings of %i slots before anything is started', (slots) => {
    expect(caught(() => start({ slots })).code).toBe('GPUOS_BAD_OPTION');
    expect(processesWith(`FAKE_mark=${mark}`)).toEqual([]);
  });

  it('compiles its kernel once for a compiler and an architecture, and again if the file was damaged', async () => {
    await start().stop();
    expect(calls('nvrtcCompileProgram')).toHaveLength(1);
    await start().stop();
    expect(calls('nvrtcCompileProgram')).toHaveLength(1);
    expect(calls('cuModuleLoadData')).toHaveLength(2);
    expect(new Set(calls('cuModuleLoadData')).size).toBe(1);
    fake({ nvrtc_minor: 1 });
    await start().stop();
    expect(calls('nvrtcCompileProgram')).toHaveLength(2);
    const folder = join(options.cacheFolder, 'cuda');
    for (const name of readdirSync(folder)) writeFileSync(join(folder, name), readFileSync(join(folder, name)).subarray(0, -1));
    await start().stop();
    expect(calls('nvrtcCompileProgram')).toHaveLength(3);
  });

  /** In a process whose files may have so many MiB: more is refused there as a full /dev/shm refuses it. */
  function startWithin(mib: number): { hostMib?: number; code?: string } {
    const program = `
      const { CudaDevice } = await import(${JSON.stringify(DEVICE)});
      try {
        const device = new CudaDevice(${JSON.stringify(options)});
        console.log(JSON.stringify({ hostMib: (device.hostMemory.end - device.hostMemory.start) / ${MIB} }));
        await device.stop();
      } catch (error) {
        console.log(JSON.stringify({ code: error.code }));
      }`;
    const line = `ulimit -f ${mib * 2048} && exec "$0" --input-type=module -e "$1"`;
    const { stdout, stderr } = spawnSync('sh', ['-c', line, process.execPath, program], { encoding: 'utf8' });
    if (stdout === '') throw new Error(stderr);
    return JSON.parse(stdout) as ReturnType<typeof startWithin>;
  }

  it.each([
    [300, 256],
    [200, 128],
    [100, 64],
    [50, 32],
  ])('takes less shared memory where so much is refused: of %i MiB it has %i', (mib, hostMib) => {
    expect(startWithin(mib)).toEqual({ hostMib });
  });

  it('says so where even the least is refused', () => {
    expect(startWithin(24)).toEqual({ code: 'GPUOS_OUT_OF_MEMORY' });
  });
});

/** A program of so many operations; each is another. */
function program(operations: number, constant = 1): Program {
  return {
    inputs: [{ dtype: 'float32', columnStride: 1 }],
    scalars: 0,
    nodes: [
      { kind: 'input', input: 0, dtype: 'float32' },
      { kind: 'constant', value: constant, dtype: 'float32' },
      ...Array.from(
        { length: operations },
        (_, i) => ({ kind: 'map', op: 'add', args: [i === 0 ? 0 : i + 1, 1], dtype: 'float32' }) as const,
      ),
    ],
    outputs: [{ node: operations + 1, dtype: 'float32', space: 'full' }],
    outerRank: 0,
  };
}

const bytecodeOf = (one: Program): Uint8Array => {
  const words = encodeProgram(one)!;
  return new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
};

function operatorFile(name: string): string {
  const path = join(work, `${name}.operator`);
  writeFileSync(path, operatorCubin(name).bytes);
  return path;
}

describe.skipIf(SKIP)(named('functions of direct injection'), () => {
  const INTERPRETER = 0x7f00_1234_5000;
  const FIRST = 40;
  let theatre: ReturnType<typeof stage>;
  let started: Started;
  let table: number;
  let bytecode: number;
  let cache: ImageCache;
  let count = 0;

  beforeAll(() => {
    theatre = stage();
  });
  afterEach(async () => await theatre.endAll());
  afterAll(() => theatre.remove());

  /** A device process in which every source becomes `cubin`. */
  function open(values: Readonly<Record<string, string | number>> = {}, cubin = 'multiply.sm_90'): void {
    started = theatre.start({ FAKE_cubin: operatorFile(cubin), ...values });
    table = started.device.call('allocate', { bytes: 1 << 16 }).address;
    started.device.call('fill', { address: table, byte: 0, bytes: 1 << 16 });
    bytecode = started.device.call('allocate', { bytes: BYTECODE_BYTES }).address;
    cache = new ImageCache(join(work, `functions-${count++}`));
  }

  const STAGING = 0x7e00_0000_0000;
  const functions = (more: Partial<DirectOptions> = {}): DirectFunctions => {
    const view = new ArrayBuffer(BYTECODE_BYTES);
    const all = new DirectFunctions(started.device, cache, {
      budget: { registers: 128, stackBytes: 64 },
      first: FIRST,
      limit: FIRST + 3,
      interpreter: INTERPRETER,
      bytecode,
      staging: { view, offset: 0, address: STAGING },
      tiered: true,
      ...more,
    });
    // What the kernel does with a control task that enters a function; held up as a full ring does while `later` is a list.
    const enter = ([from]: readonly number[], words: readonly number[]) => {
      const [kind, fn, address, addressHigh, data, dataHigh, bytes] = words as [number, number, number, number, number, number, number];
      expect(kind).toBe(CHANGE.ENTER);
      const to = data + dataHigh * 2 ** 32;
      expect(bytes % 16).toBe(0);
      if (bytes > 0) started.device.call('write', { address: to, payload: new Uint8Array(view, from! - STAGING, bytes) });
      const payload = new Uint8Array(new BigUint64Array([BigInt(address + addressHigh * 2 ** 32), BigInt(to)]).buffer);
      started.device.call('write', { address: table + 16 * fn, payload });
    };
    all.setChanges((pointers, words) => (later === undefined ? enter(pointers, words) : later.push(() => enter(pointers, words))));
    return all;
  };
  let later: (() => void)[] | undefined;

  function memory(address: number, bytes: number): Uint8Array {
    started.device.call('copyOut', { address, segmentOffset: 65_536, bytes });
    return new Uint8Array(started.segment.view, 65_536, bytes).slice();
  }

  function entry(fn: number): { address: number; data: number } {
    const [address, data] = new BigUint64Array(memory(table + 16 * fn, 16).buffer);
    return { address: Number(address), data: Number(data) };
  }

  const compiled = () => started.log().filter((line) => line.startsWith('nvrtcCompileProgram')).length;
  const placed = () => started.device.call('status', {}).arenaUsedBytes > 0;

  it('enters the interpreter with the bytecode, and the code in its place once it is compiled', async () => {
    open({ FAKE_slow_nvrtcCompileProgram: 200 });
    const all = functions();
    const fn = all.install(all.compile(program(3)));
    expect(fn).toBe(FIRST);
    expect(all.state).toEqual({ compiling: 1, failed: undefined });
    const first = entry(fn);
    expect(first).toEqual({ address: INTERPRETER, data: bytecode });
    const bytes = bytecodeOf(program(3));
    expect(memory(first.data, bytes.length)).toEqual(bytes);
    expect(await eventually(() => all.state.compiling === 0)).toBe(true);
    const second = entry(fn);
    // The data stays: who reads the entry while it changes calls the one or the other.
    expect(second.data).toBe(first.data);
    expect(second.address).not.toBe(INTERPRETER);
    expect(second.address % 128).toBe(0);
    expect(placed()).toBe(true);
    expect(all.state.failed).toBeUndefined();
    expect(entry(fn - 1)).toEqual({ address: 0, data: 0 });
    expect(entry(fn + 1)).toEqual({ address: 0, data: 0 });
  });

  it('places what was compiled before without the compiler, at an address of its own', async () => {
    open();
    const before = functions();
    before.install(before.compile(program(3)));
    expect(await eventually(() => before.state.compiling === 0)).toBe(true);
    const all = functions({ first: FIRST + 10, limit: FIRST + 20 });
    const fn = all.install(all.compile(program(3)));
    expect(entry(fn).address).toBe(INTERPRETER);
    expect(await eventually(() => all.state.compiling === 0)).toBe(true);
    expect(compiled()).toBe(1);
    expect([0, INTERPRETER, entry(FIRST).address]).not.toContain(entry(fn).address);
    all.install(all.compile(program(3, 2)));
    expect(await eventually(() => compiled() === 2)).toBe(true);
  });

  it('installs without a word from the device process', () => {
    open();
    const all = functions();
    later = [];
    process.kill(started.device.pid, 'SIGSTOP');
    try {
      // One that is stopped answers nothing, and is waited for as long as it is.
      expect(all.install(all.compile(program(3)))).toBe(FIRST);
      expect(later).toHaveLength(1);
    } finally {
      process.kill(started.device.pid, 'SIGCONT');
      later = undefined;
    }
  });

  it('goes on while the program waits for the device, as it gives no turns of the event loop then', () => {
    open();
    const all = functions();
    all.install(all.compile(program(3)));
    for (const until = performance.now() + 20_000; all.state.compiling > 0 && performance.now() < until; ) all.whileWaiting();
    expect(all.state).toEqual({ compiling: 0, failed: undefined });
    expect(entry(FIRST).address).not.toBe(INTERPRETER);
  });

  it('is not begun anew by what it submits, which may wait for room in the ring', () => {
    open();
    const all = functions({ limit: FIRST + 10 });
    let [depth, deepest, submitted] = [0, 0, 0];
    all.setChanges((_, words) => {
      submitted++;
      // What enters a program for the interpreter is the caller's own, and what was placed meanwhile may come in between.
      if (words[6] !== 0) return;
      depth++;
      deepest = Math.max(deepest, depth);
      for (const until = performance.now() + 50; performance.now() < until; ) all.whileWaiting();
      depth--;
    });
    for (const n of [1, 2, 3]) all.install(all.compile(program(n)));
    for (const until = performance.now() + 20_000; all.state.compiling > 0 && performance.now() < until; ) all.whileWaiting();
    expect({ submitted, deepest }).toEqual({ submitted: 6, deepest: 1 });
  });

  it('changes an entry in the order of its tasks, however late they are carried out', async () => {
    open();
    const all = functions();
    const held: (() => void)[] = [];
    later = held;
    const fn = all.install(all.compile(program(3)));
    expect(await eventually(() => all.state.compiling === 0)).toBe(true);
    later = undefined;
    expect(entry(fn)).toEqual({ address: 0, data: 0 });
    for (const change of held) change();
    expect(held).toHaveLength(2);
    expect([0, INTERPRETER]).not.toContain(entry(fn).address);
    expect(entry(fn).data).toBe(bytecode);
  });

  it('gives back what it took where the ring takes nothing more', () => {
    open();
    const all = functions({ limit: FIRST + 1 });
    const error = new Error('shut down');
    const [first, second] = [program(3), program(4)];
    all.setChanges(() => {
      throw error;
    });
    for (let i = 0; i < 3; i++) expect(caught(() => all.install(all.compile(i % 2 === 0 ? first : second)))).toBe(error);
    expect(all.state.compiling).toBe(0);
    const entered: number[] = [];
    all.setChanges((_, words) => entered.push(words[1]!, words[4]! + words[5]! * 2 ** 32));
    all.install(all.compile(first));
    expect(entered).toEqual([FIRST, bytecode]);
  });

  it('compiles one after another, and nothing that nobody needs any more; the same program is placed once', async () => {
    open({ FAKE_slow_nvrtcCompileProgram: 200 });
    const all = functions({ limit: FIRST + 10 });
    const install = (n: number) => all.install(all.compile(program(n)));
    const [first, second, third, same] = [install(1), install(2), install(3), install(1)];
    all.uninstall(second);
    expect(all.state.compiling).toBeGreaterThan(1);
    expect(await eventually(() => all.state.compiling === 0)).toBe(true);
    expect(compiled()).toBe(2);
    expect(entry(second).address).toBe(INTERPRETER);
    expect(entry(same).address).toBe(entry(first).address);
    expect(entry(third).address).not.toBe(entry(first).address);
    const { arenaUsedBytes } = started.device.call('status', {});
    expect(entry(install(3))).toEqual({ address: entry(third).address, data: 0 });
    expect(started.device.call('status', {}).arenaUsedBytes).toBe(arenaUsedBytes);
  });

  it('compiles before it enters anything where it is told to', () => {
    open();
    const all = functions({ tiered: false });
    const fn = all.install(all.compile(program(3)));
    expect(compiled()).toBe(1);
    expect(entry(fn).data).toBe(0);
    expect([0, INTERPRETER]).not.toContain(entry(fn).address);
  });

  it('writes nothing for a function that was uninstalled while it was compiled', async () => {
    open({ FAKE_slow_nvrtcCompileProgram: 200 });
    const all = functions();
    const fn = all.install(all.compile(program(3)));
    const before = entry(fn);
    // Not before the compiler has begun.
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(all.state.compiling).toBe(1);
    all.uninstall(fn);
    expect(await eventually(() => all.state.compiling === 0)).toBe(true);
    expect(compiled()).toBe(1);
    expect(entry(fn)).toEqual(before);
    // Another one under its number by then stays what it is. What was compiled for the first is of use to the second.
    const again = all.install(all.compile(program(4)));
    expect(again).toBe(fn);
    all.uninstall(again);
    const cached = all.install(all.compile(program(3)));
    expect(cached).toBe(fn);
    const placedEntry = entry(cached);
    expect(placedEntry.data).toBe(0);
    expect(await eventually(() => all.state.compiling === 0)).toBe(true);
    // That for which nobody waits any more was not even begun.
    expect(compiled()).toBe(1);
    expect(entry(cached)).toEqual(placedEntry);
  });

  it('uses the memory of bytecode again that nobody runs any more, for as much of it', () => {
    open({ FAKE_slow_nvrtcCompileProgram: 100 });
    const all = functions({ limit: FIRST + 10 });
    const install = (one: Program) => {
      const fn = all.install(all.compile(one));
      return { fn, data: entry(fn).data };
    };
    const small = install(program(2));
    const large = install(program(100));
    expect(bytecodeOf(program(2)).length).toBeLessThan(256);
    expect(bytecodeOf(program(100)).length).toBeGreaterThan(512);
    expect(large.data).toBe(small.data + 256);
    all.uninstall(small.fn);
    const longer = install(program(101));
    expect(longer).toEqual({ fn: small.fn, data: large.data + 1024 });
    expect(install(program(2, 5)).data).toBe(small.data);
    expect(memory(small.data, bytecodeOf(program(2, 5)).length)).toEqual(bytecodeOf(program(2, 5)));
    all.uninstall(large.fn);
    all.uninstall(large.fn);
    expect(install(program(102)).data).toBe(large.data);
    expect(install(program(103)).data).not.toBe(large.data);
  });

  it('says when it is full, and goes on with what becomes free', () => {
    open();
    const all = functions({ tiered: false });
    const numbers = [1, 2, 3].map((n) => all.install(all.compile(program(n))));
    expect(numbers).toEqual([FIRST, FIRST + 1, FIRST + 2]);
    for (let i = 0; i < 3; i++) expect(caught(() => all.install(all.compile(program(4)))).code).toBe('GPUOS_OPERATOR_TABLE_FULL');
    expect(entry(FIRST + 3)).toEqual({ address: 0, data: 0 });
    all.uninstall(FIRST + 1);
    expect(all.install(all.compile(program(4)))).toBe(FIRST + 1);
    expect(caught(() => all.install(all.compile(program(5)))).code).toBe('GPUOS_OPERATOR_TABLE_FULL');
  });

  it('leaves a function interpreted that does not compile, and tells why', async () => {
    open({ FAKE_result_nvrtcCompileProgram: 6 });
    const all = functions();
    const fn = all.install(all.compile(program(3)));
    expect(await eventually(() => all.state.compiling === 0)).toBe(true);
    expect(all.state.failed).toMatch(/operator\.cu/);
    expect(entry(fn)).toEqual({ address: INTERPRETER, data: bytecode });
    const first = functions({ tiered: false, first: FIRST + 10, limit: FIRST + 20 });
    for (let i = 0; i < 2; i++) expect(caught(() => first.install(first.compile(program(3)))).code).toBe('GPUOS_COMPILE_FAILED');
    expect(entry(FIRST + 10)).toEqual({ address: 0, data: 0 });
  });

  it('does not place code that needs more stack than is set apart, nor a byte of it', async () => {
    open({}, 'local.sm_90');
    const first = functions({ tiered: false });
    const error = caught(() => first.install(first.compile(program(3))));
    expect(error.code).toBe('GPUOS_NOT_INJECTABLE');
    expect(error.message).toMatch(/it needs 136 bytes of stack; the resident kernel reserves 64/);
    const all = functions({ first: FIRST + 10, limit: FIRST + 20 });
    const fn = all.install(all.compile(program(4)));
    expect(await eventually(() => all.state.compiling === 0)).toBe(true);
    expect(all.state.failed).toMatch(/136 bytes of stack/);
    expect(entry(fn).address).toBe(INTERPRETER);
    expect(placed()).toBe(false);
    const enough = functions({ budget: { registers: 128, stackBytes: 136 }, first: FIRST + 20, limit: FIRST + 30, tiered: false });
    expect(entry(enough.install(enough.compile(program(5)))).address).toBeGreaterThan(0);
  });

  // What could not be placed was once cached all the same, and refused instead of interpreted from then on.
  it('interprets a function the second time too that could not be placed the first time', async () => {
    open({}, 'local.sm_90');
    const all = functions();
    expect(entry(all.install(all.compile(program(3)))).address).toBe(INTERPRETER);
    expect(await eventually(() => all.state.compiling === 0)).toBe(true);
    expect(entry(all.install(all.compile(program(3)))).address).toBe(INTERPRETER);
  });
});
