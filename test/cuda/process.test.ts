import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { control } from '../../src/abi/records.ts';
import { CONTROL_ADDRESS } from '../../src/abi/status.ts';
import { CudaError } from '../../src/backends/cuda/cuda-error.ts';
import { findLibrary } from '../../src/backends/cuda/discovery.ts';
import { KERNEL } from '../../src/backends/cuda/process/channel.ts';
import { childState } from '../../src/backends/cuda/process/libc.ts';
import type { DeviceProcess } from '../../src/backends/cuda/process/device-process.ts';
import { PAUSE_PARTS } from '../../src/backends/cuda/process/requests.ts';
import { SharedSegment } from '../../src/backends/cuda/process/segment.ts';
import { GpuosError } from '../../src/errors.ts';
import { blocked, eventually, HOST_MODULE, named, processesWith, SKIP, stage } from './process-start.ts';

const cubin = (name: string): string => fileURLToPath(new URL(`../fixtures/cubin/${name}.cubin`, import.meta.url));

function thrown(action: () => unknown): GpuosError {
  try {
    action();
  } catch (error) {
    if (error instanceof GpuosError) return error;
    throw error;
  }
  throw new Error('nothing was thrown');
}

let theatre: ReturnType<typeof stage>;
beforeAll(() => {
  if (!SKIP) theatre = stage();
});
afterEach(async () => await theatre?.endAll());
afterAll(() => theatre?.remove());

const beats = (view: ArrayBuffer): number => Atomics.load(new Int32Array(view), (CONTROL_ADDRESS + control.offset.heartbeat) >> 2);

describe.skipIf(SKIP)(named('the start of a device process'), () => {
  it('makes the context, and registers the whole segment, before it says that it is ready', () => {
    const { device, segment, log } = theatre.start();
    expect(device.info).toMatchObject({
      name: 'Fake GPU 0',
      sms: 116,
      computeCapability: [9, 0],
      cudaVersion: 13000,
      totalMemoryBytes: 150000000000,
      driverPath: `${theatre.folder}/libcuda.so.1`,
      nvrtcPath: `${theatre.folder}/libnvrtc.so.13`,
      nvrtcVersion: [13, 0],
    });
    expect(device.info.segmentAddress).toBeGreaterThan(0);
    expect(device.lost).toBeUndefined();
    const calls = log();
    expect(calls.filter((line) => /^cu(Init|DevicePrimaryCtxRetain|MemHostRegister)/.test(line))).toEqual([
      'cuInit 0',
      'cuDevicePrimaryCtxRetain 40',
      `cuMemHostRegister_v2 0 ${segment.bytes} 2`,
    ]);
  });

  it('takes the device that it is told', () => {
    const { device, log } = theatre.start({ FAKE_devices: 3 }, { ordinal: 2 });
    expect(device.info.name).toBe('Fake GPU 2');
    expect(log()).toContain('cuDeviceGet 2');
  });

  it('has modules loaded eagerly, and takes no options for Node.js from the program', () => {
    const { device } = theatre.start({ NODE_OPTIONS: '--no-such-option' });
    const environ = readFileSync(`/proc/${device.pid}/environ`, 'latin1').split('\0');
    expect(environ).toContain('CUDA_MODULE_LOADING=EAGER');
    expect(environ.some((line) => line.startsWith('NODE_OPTIONS'))).toBe(false);
  });

  it.each([
    ['an old driver', { FAKE_cuda: 11080 }, 'GPUOS_CUDA_TOO_OLD', /supports CUDA 11.8; CUDA 12.0 is needed/],
    ['no GPU', { FAKE_result_cuInit: 100 }, 'GPUOS_CUDA_UNAVAILABLE', /CUDA_ERROR_NO_DEVICE.*sees no GPU.*nvidia-smi/],
    ['a compiler that is too new', { FAKE_cuda: 12080 }, 'GPUOS_CUDA_TOO_OLD', /the driver supports CUDA 12 at most/],
    ['no memory', { FAKE_heap_bytes: 1 << 20 }, 'GPUOS_OUT_OF_MEMORY', /16777216 bytes of device memory asked for/],
    ['a segment that cannot be registered', { FAKE_result_cuMemHostRegister_v2: 1 }, 'GPUOS_CUDA_CALL_FAILED', /cuMemHostRegister_v2/],
    ['a fault', { FAKE_fault_cuCtxSetCurrent: 1 }, 'GPUOS_DEVICE_LOST', /CUDA_ERROR_ILLEGAL_ADDRESS/],
  ])('says that there is %s', (_, fake, code, message) => {
    const error = thrown(() => theatre.start(fake));
    expect(error.code).toBe(code);
    expect(error.message).toMatch(message);
    expect(error.message.split(`[${code}]`)).toHaveLength(2);
  });

  const real = !SKIP && findLibrary('driver').candidates.some(({ path }) => path.startsWith('/'));
  it.skipIf(real)(`says that there is no driver${real ? ' (skipped: this machine has one)' : ''}`, () => {
    const error = thrown(() => theatre.start({}, { cudaHome: '/nowhere' }));
    expect(error.code).toBe('GPUOS_CUDA_UNAVAILABLE');
    expect(error.message).toMatch(/Cannot load the NVIDIA driver.*Install the driver/);
  });

  it.each([
    ['killed', /could not start: it was ended by SIGKILL; what it wrote to stderr says more.*GPUOS_CUDA_UNAVAILABLE/],
    ['exit', /could not start: it ended with exit code 5.*GPUOS_CUDA_UNAVAILABLE/],
    ['throw', /no such luck[\s\S]*GPUOS_INTERNAL/],
  ])('says how it died before it was ready: %s', (trouble, message) => {
    expect(thrown(() => theatre.start({ FAKE_trouble: trouble }, { hostModule: HOST_MODULE })).message).toMatch(message);
  });

  it('says that a module has no resident kernel', () => {
    const hostModule = new URL('fakes.ts', import.meta.url).href.replace('fakes.ts', '../../scripts/example.mjs');
    expect(thrown(() => theatre.start({}, { hostModule })).message).toMatch(/has no createResidentHost/);
  });

  it('gives up one that does not become ready, and ends it', async () => {
    const from = performance.now();
    const error = thrown(() => theatre.start({ FAKE_slow_cuInit: 9000, FAKE_mark: 'slow-start' }, { startLimitMs: 600 }));
    expect(error.message).toMatch(/was not ready within 0.6 s.*GPUOS_CUDA_UNAVAILABLE/);
    expect(performance.now() - from).toBeLessThan(3000);
    expect(await eventually(() => processesWith('FAKE_mark=slow-start').length === 0, 2000)).toBe(true);
  });

  it('says that no process can be started, and closes what it opened', () => {
    const segment = SharedSegment.create(4096);
    const files = readdirSync('/proc/self/fd').length;
    const { execPath } = process;
    try {
      for (const path of ['/nowhere/node', '/tmp', 'with\0nul']) {
        process.execPath = path;
        expect(() => theatre.start({}, { segment })).toThrow(/device process cannot be started.*GPUOS_CUDA_UNAVAILABLE/);
      }
    } finally {
      process.execPath = execPath;
    }
    expect(readdirSync('/proc/self/fd')).toHaveLength(files);
    segment.close();
  });

  it('refuses a segment that is closed', () => {
    const { device, segment } = theatre.start();
    segment.close();
    expect(() => theatre.start({}, { segment })).toThrow(/has been closed.*GPUOS_BAD_OPTION/);
    expect(device.lost).toBeUndefined();
  });
});

describe.skipIf(SKIP)(named('what a device process does'), () => {
  it('copies between device memory and the segment, writes and fills', () => {
    const { device, segment } = theatre.start();
    const bytes = new Uint8Array(segment.view);
    const { address } = device.call('allocate', { bytes: 1000 });
    bytes.set([1, 2, 3, 4, 5], 70_000);
    device.call('fill', { address, byte: 9, bytes: 1000 });
    device.call('copyIn', { address: address + 10, segmentOffset: 70_000, bytes: 5 });
    device.call('write', { address: address + 20, payload: new Uint8Array([7, 8]) });
    device.call('copyOut', { address: address + 9, segmentOffset: 80_000, bytes: 14 });
    expect([...bytes.subarray(80_000, 80_014)]).toEqual([9, 1, 2, 3, 4, 5, 9, 9, 9, 9, 9, 7, 8, 9]);
    device.call('write', { address, payload: new Uint8Array(1000).fill(3) });
    expect(device.call('status', {})).toEqual({
      kernel: 'none',
      relaunches: 0,
      swaps: { count: 0, pauseUs: 0, parts: Object.fromEntries(PAUSE_PARTS.map((part) => [part, 0])) },
      allocations: 1,
      allocatedBytes: 1000,
      arenaUsedBytes: 0,
    });
    device.call('free', { address });
    expect(device.call('status', {})).toMatchObject({ allocations: 0, allocatedBytes: 0 });
    expect(device.call('memory', {})).toEqual({ freeBytes: 4096, totalBytes: 150000000000 });
  });

  it('copies on a side stream of the highest priority, and answers when the copy is complete', () => {
    const { device, log } = theatre.start();
    const { address } = device.call('allocate', { bytes: 64 });
    device.call('fill', { address, byte: 0, bytes: 64 });
    expect(log()).toContain('cuStreamCreateWithPriority 1 -5');
    // The thread that compiles starts meanwhile, with calls and a stream of its own.
    const calls = log();
    const at = calls.findIndex((call) => call.startsWith(`cuMemsetD8Async ${address.toString(16)} 0 64 `));
    expect(at).toBeGreaterThanOrEqual(0);
    const stream = (calls[at] as string).split(' ').at(-1);
    expect(stream).not.toBe('0');
    expect(calls.slice(at + 1)).toContain(`cuStreamSynchronize ${stream}`);
  });

  it('refuses what would reach outside of what is allocated, and lives', () => {
    const { device, segment } = theatre.start();
    const { address } = device.call('allocate', { bytes: 100 });
    const bad: (() => unknown)[] = [
      () => device.call('copyIn', { address, segmentOffset: segment.bytes - 4, bytes: 5 }),
      () => device.call('copyIn', { address, segmentOffset: -4, bytes: 4 }),
      () => device.call('copyIn', { address: address + 97, segmentOffset: 0, bytes: 4 }),
      () => device.call('copyOut', { address: address - 1, segmentOffset: 0, bytes: 4 }),
      () => device.call('copyOut', { address, segmentOffset: 0, bytes: Number.NaN }),
      () => device.call('write', { address, payload: new Uint8Array(101) }),
      () => device.call('write', { address, payload: new Uint8Array(0) }),
      () => device.call('fill', { address, byte: 256, bytes: 1 }),
      () => device.call('fill', { address, byte: 1, bytes: 101 }),
      () => device.call('free', { address: address + 1 }),
      () => device.call('allocate', { bytes: -1 }),
      () => device.call('compile', { source: 1 as unknown as string, name: 'x' }),
    ];
    for (const action of bad) expect(thrown(action).code).toBe('GPUOS_BAD_OPTION');
    expect(thrown(() => device.call('nothing' as 'info', {})).message).toMatch(/knows no request nothing/);
    expect(thrown(() => device.call('toString' as 'info', {})).message).toMatch(/knows no request/);
    expect(device.lost).toBeUndefined();
  });

  it('tells the sizes when memory runs out, and goes on', () => {
    const { device } = theatre.start({ FAKE_heap_bytes: 20 << 20 });
    const error = thrown(() => device.call('allocate', { bytes: 1 << 30 }));
    expect(error).toBeInstanceOf(CudaError);
    expect(error).toMatchObject({ code: 'GPUOS_OUT_OF_MEMORY', call: 'cuMemAlloc_v2', resultName: 'CUDA_ERROR_OUT_OF_MEMORY' });
    expect(error.message).toMatch(/1073741824 bytes of device memory asked for, 4096 of 150000000000 free/);
    expect(device.call('allocate', { bytes: 4096 }).address).toBeGreaterThan(0);
  });

  it('brings a failing call over with its name, and goes on', () => {
    const { device } = theatre.start({ FAKE_result_cuMemsetD8Async: 1 });
    const { address } = device.call('allocate', { bytes: 8 });
    const error = thrown(() => device.call('fill', { address, byte: 0, bytes: 8 }));
    expect(error).toMatchObject({ code: 'GPUOS_CUDA_CALL_FAILED', call: 'cuMemsetD8Async', result: 1 });
    expect(device.call('memory', {}).freeBytes).toBe(4096);
  });

  it('compiles for its device, with the log where it fails', async () => {
    const { device, log } = theatre.start();
    const { payload } = device.call('compile', { source: 'void f();', name: 'f.cu', headers: { 'a.h': 'int' }, options: ['-rdc=true'] });
    expect(Buffer.from(payload).toString()).toBe('--gpu-architecture=sm_90|void f();');
    expect(log()).toContain('nvrtcCompileProgram 7f0000007000 2 --gpu-architecture=sm_90 -rdc=true');
    expect(log()).toContain('nvrtcCreateProgram f.cu 1 a.h=int');
    const linked = await device.post('compile', { source: 'void f();', name: 'f.cu', link: true }).promise;
    expect(Buffer.from(linked.payload).toString()).toBe('--gpu-architecture=sm_90|void f();');
    expect(log()).toContain('cuLinkAddData_v2 7f0000006000 0 34 f.cu 0 0 0');
    const error = thrown(() => device.call('compile', { source: '#error', name: 'f.cu' }));
    expect(error.code).toBe('GPUOS_COMPILE_FAILED');
    expect(error.message).toMatch(/k\.cu\(1\): error: #error/);
  });

  it('injects: code at an address that was never used, behind a guard', () => {
    const { device, log } = theatre.start({ FAKE_cubin: cubin('multiply.sm_90') });
    const first = device.call('inject', { source: '', name: 'op.cu', symbol: 'op' });
    if (!('address' in first)) throw new Error(JSON.stringify(first));
    expect(first.payload.length).toBe(readFileSync(cubin('multiply.sm_90')).length);
    const second = device.call('place', { symbol: 'op', payload: first.payload });
    if (!('address' in second)) throw new Error(JSON.stringify(second));
    expect(second.codeBytes).toBe(first.codeBytes);
    expect(second.address - first.address).toBeGreaterThanOrEqual(first.codeBytes + 4096);
    expect(first.address % 128).toBe(0);
    const copies = log().filter((line) => line.startsWith('cuMemcpyHtoDAsync_v2'));
    expect(copies).toEqual(
      [first, second].map(({ address, codeBytes }) => `cuMemcpyHtoDAsync_v2 ${address.toString(16)} ${codeBytes} 7f0000004000`),
    );
    expect(device.call('status', {}).arenaUsedBytes).toBeGreaterThanOrEqual(2 * (first.codeBytes + 4096));
  });

  it('refuses code that cannot be injected, with the reasons, and an arena that is full', () => {
    const { device } = theatre.start({ FAKE_cubin: cubin('printf.sm_90') }, { arenaBytes: 8192 });
    const refused = device.call('inject', { source: '', name: 'op.cu', symbol: 'op' });
    expect(refused).toMatchObject({ refused: expect.arrayContaining([expect.objectContaining({ check: expect.any(String) })]) });
    expect(device.call('status', {}).arenaUsedBytes).toBe(0);
    const payload = new Uint8Array(readFileSync(cubin('multiply.sm_90')));
    expect(device.call('place', { symbol: 'op', payload })).toHaveProperty('address');
    expect(() => device.call('place', { symbol: 'op', payload })).toThrow(
      /arena for injected code is full.*of 8192 used.*GPUOS_OUT_OF_MEMORY/,
    );
    expect(thrown(() => device.call('place', { symbol: 'op', payload: new Uint8Array(100) })).code).toBe('GPUOS_BAD_CUBIN');
  });

  // A machine whose cores are all taken may miss the bound once.
  it('answers what is quick while it compiles, and beats while it is in a call of the driver', { retry: 2 }, async () => {
    const { device, segment } = theatre.start({ FAKE_slow_nvrtcCompileProgram: 500, FAKE_slow_cuMemGetInfo_v2: 500 });
    const compiling = device.post('compile', { source: 'a', name: 'a.cu' });
    const { promise } = device.post('compile', { source: 'b', name: 'b.cu' });
    const from = performance.now();
    for (let i = 0; i < 20; i++) device.call('status', {});
    expect(performance.now() - from).toBeLessThan(300);
    expect(compiling.done).toBe(false);
    const before = beats(segment.view);
    device.call('memory', {});
    expect(beats(segment.view) - before).toBeGreaterThanOrEqual(3);
    expect(Buffer.from((await promise).payload).toString()).toMatch(/\|b$/);
    expect(Buffer.from(compiling.wait().payload).toString()).toMatch(/\|a$/);
  });

  it('takes more requests than there are slots, and answers each', async () => {
    const { device } = theatre.start();
    const all = Array.from({ length: 60 }, (_, i) =>
      i % 3 === 0
        ? device.post('compile', { source: `s${i}`, name: 'x.cu' }).promise.then(({ payload }) => Buffer.from(payload).toString())
        : device.post('allocate', { bytes: i }).promise.then(({ address }) => address > 0),
    );
    expect(await Promise.all(all)).toEqual(all.map((_, i) => (i % 3 === 0 ? `--gpu-architecture=sm_90|s${i}` : true)));
    expect(device.call('status', {}).allocations).toBe(40);
  });

  it('does ten thousand requests without growing', () => {
    const { device } = theatre.start();
    const { address } = device.call('allocate', { bytes: 4096 });
    const files = (): number => readdirSync(`/proc/${device.pid}/fd`).length;
    const rssMib = (pid: number | string): number => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024;
    const payload = new Uint8Array(1024);
    const round = (times: number): void => {
      for (let i = 0; i < times; i++) {
        if (i % 2 === 0) device.call('write', { address, payload });
        else device.call('memory', {});
      }
    };
    round(4000);
    const before = [rssMib(device.pid), rssMib('self'), files()] as const;
    round(10_000);
    expect(rssMib(device.pid) - before[0]).toBeLessThan(16);
    expect(rssMib('self') - before[1]).toBeLessThan(48);
    expect(files()).toBe(before[2]);
  });
});

describe.skipIf(SKIP)(named('the resident kernel of a device process'), () => {
  const words = (view: ArrayBuffer): Int32Array => new Int32Array(view, 2048, 8);
  const running = (device: DeviceProcess) => device.call('status', {}).kernel;

  it('is started with what it needs, once, and stopped', () => {
    const { device, segment } = theatre.start({}, { hostModule: HOST_MODULE });
    expect(() => device.call('relaunch', {})).toThrow(/No kernel was started/);
    const payload = new Uint8Array(100_000);
    const { started } = device.call('start', { options: { queues: 2 }, payload });
    expect(started).toEqual({ table: expect.any(Number), image: 100_000, seen: { queues: 2 } });
    expect([running(device), device.kernel]).toEqual(['running', KERNEL.running]);
    // What it allocated can be written.
    device.call('write', { address: started['table'] as number, payload: new Uint8Array(256) });
    expect(() => device.call('free', { address: started['table'] as number })).toThrow(/while a kernel is resident/);
    expect(() => device.call('start', { options: {} })).toThrow(/resident already/);
    device.call('stop', {});
    device.call('stop', {});
    expect([running(device), device.kernel, words(segment.view)[3]]).toEqual(['none', KERNEL.none, 1]);
    device.call('free', { address: started['table'] as number });
    expect(device.call('start', { options: {} }).started['image']).toBe(-1);
  });

  it('says that there is none to start', () => {
    const { device } = theatre.start();
    expect(() => device.call('start', { options: {} })).toThrow(/without a resident kernel/);
  });

  it('is launched again when it left by itself, without being asked for anything', async () => {
    const { device, segment } = theatre.start({}, { hostModule: HOST_MODULE });
    device.call('start', { options: {} });
    for (let i = 1; i <= 3; i++) {
      Atomics.store(words(segment.view), 1, 1);
      expect(await eventually(() => device.relaunches === i, 2000)).toBe(true);
      expect([words(segment.view)[0], device.kernel]).toEqual([1 + i, KERNEL.running]);
    }
  });

  it('stays away when it was told to leave, or is not to be kept', async () => {
    const { device, segment } = theatre.start({}, { hostModule: HOST_MODULE });
    device.call('start', { options: {} });
    const quit = (CONTROL_ADDRESS + control.offset.quit) >> 2;
    Atomics.store(new Int32Array(segment.view), quit, 1);
    Atomics.store(words(segment.view), 1, 1);
    expect(await eventually(() => device.kernel === KERNEL.left, 2000)).toBe(true);
    expect([running(device), device.relaunches, words(segment.view)[0]]).toEqual(['left', 0, 1]);
    Atomics.store(new Int32Array(segment.view), quit, 0);
    device.call('relaunch', {});
    expect([running(device), words(segment.view)[0]]).toEqual(['running', 2]);
    device.call('stop', {});
    device.call('start', { options: {}, keep: false });
    Atomics.store(words(segment.view), 1, 1);
    expect(await eventually(() => device.kernel === KERNEL.left, 2000)).toBe(true);
    expect(device.relaunches).toBe(0);
  });

  it('is given up when it does not stay', async () => {
    const { device, segment } = theatre.start({ FAKE_trouble: 'leaves' }, { hostModule: HOST_MODULE });
    device.call('start', { options: {} });
    Atomics.store(words(segment.view), 1, 1);
    expect(blocked(() => device.lost !== undefined)).toBe(true);
    expect(device.lost).toMatch(/The resident kernel left 11 times within 60 s/);
  });

  it('ends the process by a fault, also while nobody asks anything', () => {
    const { device, segment } = theatre.start({ FAKE_fault_cuStreamSynchronize: 1 }, { hostModule: HOST_MODULE });
    device.call('start', { options: {} });
    Atomics.store(words(segment.view), 2, 1);
    expect(blocked(() => device.lost !== undefined, 1000)).toBe(true);
    expect(device.lost).toMatch(/cuStreamSynchronize answered CUDA_ERROR_ILLEGAL_ADDRESS \(700\)/);
    expect(blocked(() => childState(device.pid).state === 'ended')).toBe(true);
    expect(childState(device.pid)).toEqual({ state: 'ended', code: 82 });
  });

  it('ends the process by a defect, which is told from a fault', () => {
    const { device } = theatre.start({ FAKE_trouble: 'later' }, { hostModule: HOST_MODULE });
    device.call('start', { options: {} });
    expect(blocked(() => device.lost !== undefined, 2000)).toBe(true);
    expect(device.lost).toMatch(/TypeError: Cannot read properties of undefined/);
    expect(blocked(() => childState(device.pid).state === 'ended')).toBe(true);
    expect(childState(device.pid)).toEqual({ state: 'ended', code: 83 });
  });
});
