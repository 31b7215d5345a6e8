import { type ChildProcess, spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { control } from '../../src/abi/records.ts';
import { CONTROL_ADDRESS } from '../../src/abi/status.ts';
import { childState } from '../../src/backends/cuda/process/libc.ts';
import { GpuosError } from '../../src/errors.ts';
import { blocked, environment, eventually, HOST_MODULE, named, processesWith, SKIP, stage } from './process-start.ts';

/** Ends and stops of a device process and of its parent, at any time. */

let theatre: ReturnType<typeof stage>;
beforeAll(() => {
  if (!SKIP) theatre = stage();
});
const programs: ChildProcess[] = [];
afterEach(async () => {
  for (const program of programs.splice(0)) program.kill('SIGKILL');
  await theatre?.endAll();
});
afterAll(() => theatre?.remove());

function thrown(action: () => unknown): GpuosError {
  try {
    action();
  } catch (error) {
    if (error instanceof GpuosError) return error;
    throw error;
  }
  throw new Error('nothing was thrown');
}

/** Does something to a process after a while, however blocked this one is. */
function later(ms: number, ...commands: readonly (readonly [signal: string, pid: number])[]): void {
  const script = commands.map(([signal, pid]) => `sleep ${ms / 1000}; kill -${signal} ${pid}`).join('; ');
  spawn('sh', ['-c', script], { stdio: 'ignore' }).unref();
}

const segments = (): string[] => readdirSync('/dev/shm').filter((name) => name.startsWith('gpuos-'));
let marks = 0;
/** A program with a device process, and how to find what is left of both. */
async function program(how: string, options: { fake?: Record<string, string | number>; wait?: boolean; group?: boolean } = {}) {
  const mark = `${process.pid}-${marks++}`;
  const before = segments();
  const child = spawn(process.execPath, [fileURLToPath(new URL('process-program.mjs', import.meta.url)), how, theatre.folder], {
    env: environment({ ...options.fake, FAKE_mark: mark }),
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: options.group ?? false,
  });
  programs.push(child);
  const said = { out: '', errors: '' };
  child.stdout!.on('data', (data) => {
    said.out += data;
  });
  child.stderr!.on('data', (data) => {
    said.errors += data;
  });
  const ended = new Promise<number | string | null>((resolve) => child.on('exit', (code, signal) => resolve(signal ?? code)));
  const one = {
    child,
    said,
    ended,
    devicePid: () => Number(/ready (\d+)/.exec(said.out)?.[1]),
    gone: (ms = 3000) => eventually(() => processesWith(`FAKE_mark=${mark}\0`).length === 0, ms),
    /** Other tests' segments have names for a moment. */
    noSegmentStays: () => eventually(() => segments().every((name) => before.includes(name)), 3000),
    alive: () => processesWith(`FAKE_mark=${mark}\0`),
  };
  if (options.wait !== false && !(await eventually(() => said.out.includes('ready'), 20_000))) throw new Error(said.errors);
  return one;
}

describe.skipIf(SKIP)(named('a device process that ends'), () => {
  it.each([0, 30, 150])('is noticed in a call that waits for it: killed %i ms into it', (ms) => {
    const { device } = theatre.start({ FAKE_slow_cuMemGetInfo_v2: 10_000 });
    later(ms, ['KILL', device.pid]);
    const from = performance.now();
    const error = thrown(() => device.call('memory', {}));
    expect(error).toMatchObject({ code: 'GPUOS_DEVICE_LOST' });
    expect(error.message).toMatch(/The device process is gone: it was ended by SIGKILL\./);
    // The signal itself is sent by a process that has to start first.
    expect(performance.now() - from).toBeLessThan(ms + 1500);
    expect(device.lost).toBe('The device process is gone: it was ended by SIGKILL.');
    expect(thrown(() => device.call('info', {})).code).toBe('GPUOS_DEVICE_LOST');
  });

  // A machine whose cores are all taken may miss the bound once.
  it('is noticed within 100 ms by who asks, without a turn of the event loop; what waits for it fails', { retry: 2 }, async () => {
    const { device } = theatre.start({ FAKE_slow_nvrtcCompileProgram: 5000 });
    const pendings = Array.from({ length: 5 }, () => device.post('compile', { source: '', name: 'x' }));
    const promise = pendings[0]!.promise.catch((error: GpuosError) => error.code);
    process.kill(device.pid, 'SIGKILL');
    const from = performance.now();
    expect(blocked(() => device.lost !== undefined, 100)).toBe(true);
    expect(performance.now() - from).toBeLessThan(100);
    for (const pending of pendings) expect(thrown(() => pending.wait()).code).toBe('GPUOS_DEVICE_LOST');
    expect(await promise).toBe('GPUOS_DEVICE_LOST');
    await device.stop();
  });

  it('is noticed by its promises alone, and afterwards by whoever asks', async () => {
    const { device } = theatre.start({ FAKE_slow_nvrtcCompileProgram: 5000 });
    const { promise } = device.post('compile', { source: '', name: 'x' });
    setTimeout(() => process.kill(device.pid, 'SIGKILL'), 50);
    await expect(promise).rejects.toMatchObject({ code: 'GPUOS_DEVICE_LOST' });
    // Node.js has waited for it by now, and its number may be another's.
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(childState(device.pid)).toEqual({ state: 'ended' });
    expect(device.lost).toMatch(/ended by SIGKILL/);
  });

  it.each([
    ['a call', 'cuMemGetInfo_v2', 3, 'memory'],
    ['a copy of the thread that compiles', 'cuMemcpyHtoDAsync_v2', 1, 'inject'],
  ] as const)('says which fault of the device ended it: in %s', (_, call, n, request) => {
    const cubin = fileURLToPath(new URL('../fixtures/cubin/multiply.sm_90.cubin', import.meta.url));
    const { device } = theatre.start({ [`FAKE_fault_${call}`]: n, FAKE_cubin: cubin });
    const ask = (): unknown =>
      request === 'memory' ? device.call('memory', {}) : device.call('inject', { source: '', name: 'x', symbol: 'op' });
    for (let i = 1; i < n; i++) ask();
    const error = thrown(ask);
    expect(error.code).toBe('GPUOS_DEVICE_LOST');
    expect(error.message).toMatch(new RegExp(`The device process is gone: ${call} answered CUDA_ERROR_ILLEGAL_ADDRESS \\(700\\)\\.`));
    expect(error.cause).toMatchObject({ call, result: 700 });
    expect(blocked(() => childState(device.pid).state === 'ended')).toBe(true);
    expect(childState(device.pid)).toEqual({ state: 'ended', code: 82 });
    expect(device.lost).toMatch(/ILLEGAL_ADDRESS/);
  });

  it('can be replaced: the segment is as it was', async () => {
    const { device, segment } = theatre.start();
    new Uint32Array(segment.view)[20_000] = 77;
    device.kill('An operator did not come back.');
    expect(device.lost).toBe('The device process is gone: An operator did not come back.');
    expect(blocked(() => childState(device.pid).state === 'ended')).toBe(true);
    const second = theatre.start({}, { segment });
    const { address } = second.device.call('allocate', { bytes: 4 });
    second.device.call('copyIn', { address, segmentOffset: 80_000, bytes: 4 });
    second.device.call('copyOut', { address, segmentOffset: 80_004, bytes: 4 });
    expect(new Uint32Array(segment.view)[20_001]).toBe(77);
    await device.stop();
  });

  it('is given up when it does not answer in time, and ended', () => {
    const { device } = theatre.start({ FAKE_slow_cuMemGetInfo_v2: 60_000 });
    expect(thrown(() => device.call('memory', {}, { limitMs: 200 })).message).toMatch(/did not answer memory within 0.2 s/);
    expect(blocked(() => childState(device.pid).state === 'ended')).toBe(true);
    expect(childState(device.pid)).toEqual({ state: 'ended', signal: 9 });
  });

  it('stops its kernel when it is told to leave, and answers nothing from then on', async () => {
    const { device, log } = theatre.start({}, { hostModule: HOST_MODULE });
    device.call('start', { options: {} });
    const from = performance.now();
    const stopping = device.stop();
    expect(device.stop()).toBe(stopping);
    expect(thrown(() => device.call('info', {})).code).toBe('GPUOS_SHUT_DOWN');
    await stopping;
    expect(performance.now() - from).toBeLessThan(1500);
    expect(log().at(-1)).toBe('cuStreamSynchronize 57');
    expect(() => process.kill(device.pid, 0)).toThrow(/ESRCH/);
    expect(thrown(() => device.post('info', {})).code).toBe('GPUOS_SHUT_DOWN');
  });

  it('is ended after two seconds when it does not leave', async () => {
    const { device } = theatre.start({ FAKE_slow_cuStreamSynchronize: 60_000 }, { hostModule: HOST_MODULE });
    device.call('start', { options: {} });
    const from = performance.now();
    await device.stop();
    expect(performance.now() - from).toBeGreaterThan(1900);
    expect(performance.now() - from).toBeLessThan(4000);
    expect(() => process.kill(device.pid, 0)).toThrow(/ESRCH/);
  });

  it('lets go of memory and files when it is stopped', async () => {
    const files = (): number => readdirSync('/proc/self/fd').length;
    const maps = (): number => readFileSync('/proc/self/maps', 'utf8').split('/dev/shm/gpuos-').length - 1;
    const before = [files(), maps()];
    for (let i = 0; i < 3; i++) {
      const { device, segment } = theatre.start();
      await device.stop();
      segment.close();
    }
    expect([files(), maps()]).toEqual(before);
  });
});

describe.skipIf(SKIP)(named('a device process that is stopped by a signal'), () => {
  it('is waited for: the time does not count', () => {
    const { device } = theatre.start();
    process.kill(device.pid, 'SIGSTOP');
    expect(blocked(() => childState(device.pid).state === 'stopped', 1000)).toBe(true);
    later(700, ['CONT', device.pid]);
    const from = performance.now();
    expect(device.call('memory', {}, { limitMs: 300 }).freeBytes).toBe(4096);
    expect(performance.now() - from).toBeGreaterThan(600);
    expect(childState(device.pid)).toEqual({ state: 'running' });
    expect(device.lost).toBeUndefined();
  });

  it('can still be ended', async () => {
    const { device } = theatre.start();
    process.kill(device.pid, 'SIGSTOP');
    expect(blocked(() => childState(device.pid).state === 'stopped', 1000)).toBe(true);
    const from = performance.now();
    await device.stop();
    expect(performance.now() - from).toBeLessThan(1500);
    expect(() => process.kill(device.pid, 0)).toThrow(/ESRCH/);
  });

  it('works on while its parent is, which then goes on too', async () => {
    const { child, said, devicePid, gone } = await program('calls');
    const rounds = (): number[] => [...said.out.matchAll(/beats (\d+)/g)].map(([, n]) => Number(n));
    expect(await eventually(() => rounds().length >= 1, 10_000)).toBe(true);
    const before = rounds().length;
    child.kill('SIGSTOP');
    await new Promise((resolve) => setTimeout(resolve, 1500));
    expect(() => process.kill(devicePid(), 0)).not.toThrow();
    child.kill('SIGCONT');
    expect(await eventually(() => rounds().length >= before + 2, 10_000)).toBe(true);
    // Fifteen beats fell into the stop, whichever round it was in.
    expect(Math.max(...rounds().slice(before))).toBeGreaterThanOrEqual(12);
    child.kill('SIGKILL');
    expect(await gone()).toBe(true);
  });
});

describe.skipIf(SKIP)(named('what a program leaves behind'), () => {
  it.each([
    ['end', 0],
    ['exit', 3],
    ['throw', 1],
    ['stop', 0],
    ['stopped', 3],
  ])('nothing, when it comes to its end: %s', async (how, code) => {
    const { said, ended, gone, noSegmentStays } = await program(how);
    expect([await ended, /on purpose/.exec(said.errors)?.[0] ?? said.errors]).toEqual([code, how === 'throw' ? 'on purpose' : '']);
    expect(await gone()).toBe(true);
    expect(await noSegmentStays()).toBe(true);
  });

  it.each(['wait', 'blocked'])('nothing, when it is killed: %s', async (how) => {
    const { child, ended, gone, alive, devicePid, noSegmentStays } = await program(how);
    expect(alive().sort()).toEqual([child.pid, devicePid()].sort());
    child.kill('SIGKILL');
    expect(await ended).toBe('SIGKILL');
    expect(await gone()).toBe(true);
    expect(await noSegmentStays()).toBe(true);
  });

  it('nothing, when it is killed while its device process is in a call that does not return', async () => {
    const { child, gone } = await program('blocked', { fake: { FAKE_slow_cuMemGetInfo_v2: 60_000 } });
    child.kill('SIGKILL');
    // The kernel is told to leave at once, and two seconds later the process ends.
    expect(await gone(5000)).toBe(true);
  });

  it.each([80, 240, 320, 400, 600])('nothing, when it is killed %i ms after its own start', async (ms) => {
    const { child, gone, noSegmentStays } = await program('wait', { wait: false });
    await new Promise((resolve) => setTimeout(resolve, ms));
    child.kill('SIGKILL');
    expect(await gone(4000)).toBe(true);
    expect(await noSegmentStays()).toBe(true);
  });

  it('not even a kernel: it is told to stop first', async () => {
    const log = `${theatre.folder}/killed.log`;
    const { child, gone } = await program('wait', { fake: { FAKE_log: log } });
    child.kill('SIGKILL');
    expect(await gone()).toBe(true);
    expect(readFileSync(log, 'utf8').trim().split('\n').at(-1)).toBe('cuStreamSynchronize 57');
  });
});

describe.skipIf(SKIP)(named('Ctrl-C'), () => {
  it('reaches both, and the device process waits for what its parent does', async () => {
    const { child, said, ended, gone } = await program('interrupt', { group: true });
    process.kill(-child.pid!, 'SIGINT');
    expect([await ended, said.out.split('\n')[1], said.errors]).toEqual([0, 'free 4096', '']);
    expect(await gone()).toBe(true);
  });

  it('ends both where the parent has no mind of its own', async () => {
    const { child, ended, gone } = await program('wait', { group: true });
    process.kill(-child.pid!, 'SIGINT');
    expect(await ended).toBe('SIGINT');
    expect(await gone()).toBe(true);
  });

  it.each(['SIGINT', 'SIGTERM', 'SIGHUP'] as const)('for the device process alone is nothing: %s', async (signal) => {
    const { device, segment } = theatre.start();
    const beats = (): number => Atomics.load(new Int32Array(segment.view), (CONTROL_ADDRESS + control.offset.heartbeat) >> 2);
    process.kill(device.pid, signal);
    const before = beats();
    await new Promise((resolve) => setTimeout(resolve, 400));
    expect(device.call('memory', {}).freeBytes).toBe(4096);
    expect(beats()).toBeGreaterThan(before);
  });
});
