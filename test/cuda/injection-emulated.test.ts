/** The choice of the way of injection with a kernel that really runs: on the CPU, by the stand-in driver that has it in it. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { queueRecord } from '../../src/abi/records.ts';
import type { CudaDevice, CudaDeviceOptions } from '../../src/backends/cuda/device.ts';
import { injectionText } from '../../src/backends/cuda/injection/verdict.ts';
import { probe } from '../../src/backends/cuda/probe.ts';
import type { InjectedOperator } from '../../src/runtime/operators.ts';
import type * as Engine from '../../src/tensor/engine.ts';
import type { init as Init, System } from '../../src/runtime/system.ts';
import { compileEmulatedDriver, EMULATED_DEVICE, NO_EMULATION, reason } from './emulation/driver.ts';

const DEVICE = new URL('../../dist/backends/cuda/device.js', import.meta.url).href;
const ENGINE = new URL('../../dist/tensor/engine.js', import.meta.url).href;
const INDEX = new URL('../../dist/index.js', import.meta.url).href;
/** One block that dispatches and one that works: all of them spin. */
const FEW = { FAKE_attribute16: '2' };
const LIMIT = { timeout: 300_000 };
let logs = 0;

describe.skipIf(NO_EMULATION)(reason('injection into a kernel on the CPU'), () => {
  let libraries: ReturnType<typeof compileEmulatedDriver>;
  let Device: typeof CudaDevice;
  let work: string;
  const devices: CudaDevice[] = [];

  beforeAll(async () => {
    libraries = compileEmulatedDriver();
    work = mkdtempSync(join(tmpdir(), 'gpuos-injection-'));
    ({ CudaDevice: Device } = (await import(DEVICE)) as { CudaDevice: typeof CudaDevice });
  }, 180_000);
  afterEach(async () => {
    for (const device of devices.splice(0)) await device.stop();
    vi.unstubAllEnvs();
  });
  afterAll(() => {
    libraries?.remove();
    if (work !== undefined) rmSync(work, { recursive: true, force: true });
  });

  function environment(fake: Readonly<Record<string, string | number>>): string {
    const log = join(work, `log-${logs++}`);
    for (const [name, value] of Object.entries({ ...EMULATED_DEVICE, ...FEW, FAKE_log: log, ...fake })) vi.stubEnv(name, String(value));
    return log;
  }

  function start(more: Partial<CudaDeviceOptions> = {}, fake: Readonly<Record<string, string | number>> = {}): CudaDevice {
    environment(fake);
    const device = new Device({
      queues: 2,
      slots: 64,
      firstSequence: 3,
      memoryMib: 32,
      cudaHome: libraries.folder,
      compile: 'background',
      cacheFolder: join(work, 'cache'),
      ...more,
    });
    devices.push(device);
    return device;
  }

  it('is direct where its self-test in the running kernel passes, and the queues stand as if there had been none', LIMIT, () => {
    const device = start();
    expect(device.injection).toMatchObject({ mode: 'direct', why: 'its self-test passed', relaunches: 0, pauseUs: 0 });
    const { u32, i32 } = device.views();
    for (const { record, completions, slots } of device.queues) {
      expect([u32[(record + queueRecord.offset.mark) >> 2], u32[(record + queueRecord.offset.cursor + 4) >> 2]]).toEqual([3, 3]);
      expect([u32[(record + queueRecord.offset.tail) >> 2], u32[(record + queueRecord.offset.failures) >> 2]]).toEqual([3, 0]);
      // The sequence one length of the ring before the first in each slot, as without a test.
      for (let slot = 0; slot < slots; slot++) {
        const before = (slot < 3 ? slot : slot - slots) | 0;
        expect(i32[(completions + 8 * slot + 4) >> 2], `slot ${slot}`).toBe(before);
      }
    }
    const shared = (device.hostMemory.start - device.viewBase) >> 2;
    expect(u32.subarray(shared, shared + 64).every((word) => word === 0)).toBe(true);
  });

  it('is relaunch where the self-test gives another result; the next start knows it without a test, and so does info', LIMIT, () => {
    const cacheFolder = join(work, 'wrong');
    const first = start({ cacheFolder }, { FAKE_self_test: 1 });
    const why = expect.stringMatching(/^the self-test of direct injection failed: tile 0 of version 2 is \d+, not \d+$/);
    expect(first.injection).toMatchObject({ mode: 'relaunch', why });
    const second = start({ cacheFolder }, { FAKE_self_test: 0 });
    expect(second.injection).toMatchObject({ mode: 'relaunch', why });
    expect(start({ cacheFolder, inject: 'direct' }).injection).toMatchObject({ mode: 'direct', why: 'asked for by GPUOS_CUDA_INJECT' });
    const found = probe({ cudaHome: libraries.folder });
    expect(injectionText('auto', found, cacheFolder)).toMatch(/^relaunch, since the self-test of direct failed here: tile 0 of version 2/);
    expect(injectionText('auto', found, join(work, 'unknown'))).toBe('direct, if its self-test passes at the first start');
    expect(injectionText('relaunch', found, cacheFolder)).toBe('relaunch, asked for by GPUOS_CUDA_INJECT');
  });

  it.each([
    ['hangs', 2, /its task was not complete after 10 s/],
    ['faults', 3, /The device process is gone|ended with status 2/],
  ])('is relaunch where the code of the self-test %s, in another process', LIMIT, (_, how, why) => {
    const cacheFolder = join(work, `how-${how}`);
    const device = start({ cacheFolder }, { FAKE_self_test: how });
    expect(device.injection.mode).toBe('relaunch');
    expect(device.injection.why).toMatch(why);
    expect(device.lost).toBeUndefined();
    expect(new Set(device.status().map(({ state }) => state))).toEqual(new Set(['running']));
  });

  describe('relaunch', () => {
    /** Tasks of three operators and of one that counts, for as long as it is asked to; all of them are right and have run once. */
    async function load(system: System, operators: readonly InjectedOperator[], until: () => boolean): Promise<number> {
      const input = system.buffer(Float32Array.from({ length: 64 }, (_, i) => i));
      const output = system.buffer(64);
      let tasks = 0;
      for (const end = Date.now() + 150_000; !until(); tasks++) {
        expect(Date.now(), 'the kernel was not replaced').toBeLessThan(end);
        const k = tasks % operators.length;
        await system.submit({ operator: operators[k]!, pointers: [input.address, output.address], words: [64] }).done();
        expect(Array.from(output.read())).toEqual(Array.from({ length: 64 }, (_, i) => i * (k + 2) + k));
        // What is compiled in the background needs turns of the event loop.
        await new Promise(setImmediate);
      }
      return tasks;
    }

    const inject = (system: System, k: number): InjectedOperator =>
      system.inject('map', { inputs: ['x'], expression: `x * ${k + 2} + ${k}` });
    const lines = (log: string): string[] => readFileSync(log, 'utf8').split('\n');
    const device = (system: System): CudaDevice => system.device as unknown as CudaDevice;

    let system: System | undefined;
    async function open(fake: Readonly<Record<string, string | number>> = {}): Promise<{ system: System; log: string }> {
      const flags = { GPUOS_CUDA_INJECT: 'relaunch', GPUOS_CUDA_HOME: libraries.folder, GPUOS_HOME: join(work, `home-${logs}`) };
      const log = environment({ ...flags, ...fake });
      const { init } = (await import(INDEX)) as { init: typeof Init };
      system = init({ device: 'cuda', memoryMib: 32 });
      return { system, log };
    }
    afterEach(async () => await system?.shutdown());

    it('brings what is ready into the kernel together, while it runs for all but a moment, and loses nothing', LIMIT, async () => {
      const { system, log } = await open();
      expect(device(system).injection).toMatchObject({ mode: 'relaunch', why: 'asked for by GPUOS_CUDA_INJECT', relaunches: 0 });
      const operators = [0, 1, 2].map((k) => inject(system, k));
      const compiled = (): boolean => device(system).compilation.compiling === 0;
      expect(await load(system, operators, compiled)).toBeGreaterThan(0);
      const { relaunches, pauseUs, parts } = device(system).injection;
      expect(device(system).compilation.failed).toBeUndefined();
      expect(relaunches).toBeGreaterThan(0);
      expect(relaunches).toBeLessThan(3);
      expect(pauseUs).toBeGreaterThan(0);
      // Each rounded by itself.
      expect(Math.abs(Object.values(parts).reduce((sum, us) => sum + us) - pauseUs)).toBeLessThan(5);
      expect(Math.min(parts.leaveUs, parts.loadUs, parts.launchUs)).toBeGreaterThan(0);
      let tasks = 0;
      await load(system, operators, () => ++tasks > 30);
      const all = lines(log);
      expect(all.filter((line) => line.startsWith('cuModuleLoadData')).length).toBe(1 + relaunches);
      expect(all.filter((line) => line.includes('while a kernel runs'))).toEqual([]);
      // What left is not unloaded while tasks wait for the next one.
      const unloads = (): number => lines(log).filter((line) => line.startsWith('cuModuleUnload')).length;
      expect(unloads()).toBe(0);
      // One that is known by now is entered at once, and one that is not brings another relaunch.
      const known = inject(system, 1);
      expect(device(system).compilation.compiling).toBe(0);
      await load(system, [operators[0]!, known], () => ++tasks > 60);
      const more = inject(system, 3);
      await load(system, [operators[0]!, operators[1]!, operators[2]!, more], compiled);
      expect(device(system).injection.relaunches).toBe(relaunches + 1);
      // But when there have been none for a while. The kernel goes on where it stood.
      for (const end = Date.now() + 30_000; unloads() <= relaunches; await new Promise((resolve) => setTimeout(resolve, 50)))
        expect(Date.now(), 'nothing was unloaded').toBeLessThan(end);
      await load(system, operators, () => ++tasks > 90);
      expect(unloads()).toBe(relaunches + 1);
      expect(lines(log).filter((line) => line.includes('while a kernel runs'))).toEqual([]);
      expect(device(system).injection.relaunches).toBe(relaunches + 1);
    });

    it('goes on where the program only ever waits with the event loop blocked, and loses nothing', LIMIT, async () => {
      const { system, log } = await open();
      let turns = 0;
      const turning = setInterval(() => void turns++, 1);
      const input = system.buffer(Float32Array.from({ length: 64 }, (_, i) => i));
      const output = system.buffer(64);
      const operators: InjectedOperator[] = [];
      const run = (k: number): void => {
        system.submit({ operator: operators[k]!, pointers: [input.address, output.address], words: [64] }).doneSync();
        expect(Array.from(output.read())).toEqual(Array.from({ length: 64 }, (_, i) => i * (k + 2) + k));
      };
      const replaced = (times: number): void => {
        for (const end = Date.now() + 150_000; device(system).injection.relaunches < times || device(system).compilation.compiling > 0; ) {
          expect(Date.now(), 'the kernel was not replaced').toBeLessThan(end);
          operators.forEach((_, k) => {
            run(k);
          });
        }
      };
      // At once a task of the new operator, of the one before, and of both while it is compiled, linked and put in place.
      for (const k of [0, 1]) {
        operators.push(inject(system, k));
        run(k);
        replaced(k + 1);
        run(0);
      }
      const engine = (await import(ENGINE)) as typeof Engine;
      turns = 0;
      operators.push(inject(system, 2));
      // The kernels of tensors are brought in as well.
      const x = engine.engineOf(system).fromHost(Float32Array.of(1, 2, 3), [3]);
      for (const end = Date.now() + 150_000; device(system).injection.relaunches < 3 || device(system).compilation.compiling > 0; ) {
        expect(Date.now(), 'the kernel was not replaced').toBeLessThan(end);
        const y = x.mul(2).tanh();
        expect(Array.from(y.dataSync(), (value) => value.toFixed(4))).toEqual(['0.9640', '0.9993', '1.0000']);
        y.dispose();
      }
      run(2);
      expect(turns).toBe(0);
      clearInterval(turning);
      expect(device(system).compilation.failed).toBeUndefined();
      expect(lines(log).filter((line) => line.includes('while a kernel runs'))).toEqual([]);
    });

    it('goes on with the kernel as it was where another one cannot be loaded, and with the interpreter', LIMIT, async () => {
      const { system, log } = await open({ FAKE_bad_load: 2 });
      const operators = [0].map((k) => inject(system, k));
      await load(system, operators, () => device(system).compilation.compiling === 0);
      expect(device(system).compilation.failed).toMatch(/cuModuleLoadData/);
      expect(device(system).injection.relaunches).toBe(0);
      let tasks = 0;
      await load(system, operators, () => ++tasks > 20);
      expect(lines(log).filter((line) => line.startsWith('cuModuleLoadData')).length).toBe(2);
      const next = [operators[0]!, inject(system, 1)];
      await load(system, next, () => device(system).injection.relaunches === 1 && device(system).compilation.compiling === 0);
      await load(system, next, () => ++tasks > 40);
    });

    it('makes the caller wait for it where programs are compiled first', LIMIT, async () => {
      const { system } = await open({ GPUOS_CUDA_COMPILE: 'first' });
      const operators = [0, 1].map((k) => inject(system, k));
      expect(device(system).injection.relaunches).toBe(2);
      let tasks = 0;
      await load(system, operators, () => ++tasks > 20);
    });
  });
});
