/** What each flag of docs/flags.md does to a program that sets it. How their values are read is tested beside `src/flags.ts`. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { inspectDevices } from '../src/backends/inspect.ts';
import { GpuosError } from '../src/errors.ts';
import type { FlagName } from '../src/flags.ts';
import { NO_ORDER } from '../src/runtime/queue.ts';
import { current, init, type System, type SystemOptions } from '../src/runtime/system.ts';
import { engineOf } from '../src/tensor/engine.ts';
import { FOR_EVER, handMade } from './hand-made.ts';
import { program } from './program.ts';

const open: System[] = [];
afterEach(async () => {
  vi.unstubAllEnvs();
  for (const system of open.splice(0)) await system.shutdown();
});

function start(flags: Partial<Record<FlagName, string>>, options: SystemOptions = {}): System {
  vi.stubEnv('GPUOS_WORKERS', '0');
  for (const [name, value] of Object.entries(flags)) vi.stubEnv(name, value);
  const system = init(options);
  open.push(system);
  return system;
}

const code = (run: () => unknown): string | undefined => {
  try {
    run();
  } catch (error) {
    return error instanceof GpuosError ? error.code : `not a GpuosError: ${String(error)}`;
  }
  return undefined;
};

describe('GPUOS_DEVICE', () => {
  it('reference is for tests of devices, and no other is taken instead', () => {
    expect(code(() => start({ GPUOS_DEVICE: 'reference' }))).toBe('GPUOS_UNKNOWN_DEVICE');
    expect(current()).toBeUndefined();
  });

  it('cuda where there is none is an error, and no other is taken instead', () => {
    const nowhere = { GPUOS_DEVICE: 'cuda', GPUOS_CUDA_HOME: '/nonexistent', LD_LIBRARY_PATH: '' };
    expect(['GPUOS_CUDA_UNAVAILABLE', undefined]).toContain(code(() => start(nowhere)));
    if (current() === undefined) return;
    // This machine has one.
    expect(current()?.device.kind).toBe('cuda');
  });

  it('gives way to the option of init()', () => {
    expect(start({ GPUOS_DEVICE: 'cuda' }, { device: 'wasm' }).device.kind).toBe('wasm');
  });
});

describe('GPUOS_WORKERS', () => {
  it.each([0, 3])('%i: so many are started beside the host', (workers) => {
    const system = start({ GPUOS_WORKERS: String(workers) });
    expect(system.device.workers).toBe(workers);
    expect(system.workers()).toHaveLength(workers + 1);
  });
});

describe('GPUOS_MEMORY_MIB', () => {
  it.each([
    ['64', undefined],
    ['16', 'GPUOS_OUT_OF_MEMORY'],
  ])('%s: a buffer of 20 MiB ends with %s', (mib, expected) => {
    const system = start({ GPUOS_MEMORY_MIB: mib });
    expect(code(() => system.buffer((20 * 2 ** 20) / 4))).toBe(expected);
  });
});

describe('GPUOS_SPIN_US', () => {
  /** How long done() keeps this thread before it returns a promise, for a task that is never complete. */
  const kept = (spinUs: string): number => {
    const system = start({ GPUOS_SPIN_US: spinUs });
    const queue = system.queue(0);
    const never = { queue: 0, sequence: queue.tail + 1000 };
    const nop = system.operators.builtIn('nop');
    const task = system.task(queue, queue.writeInline(nop, 1, [], [1], { after: -1, dependencies: [never] }), nop);
    const started = performance.now();
    // shutdown() ends the wait.
    task.done().catch(() => {});
    return performance.now() - started;
  };

  it('0: the event loop turns at once', () => expect(kept('0')).toBeLessThan(40));
  it('80000: not before 80 ms', () => expect(kept('80000')).toBeGreaterThanOrEqual(80));
});

describe('GPUOS_RING', () => {
  it('is how many tasks fit before a submitter has to wait', () => {
    const system = start({ GPUOS_RING: '16' });
    for (let i = 0; i < 16; i++) system.submit({ operator: 'nop', words: [1], wait: false });
    expect(code(() => system.submit({ operator: 'nop', words: [1], wait: false }))).toBe('GPUOS_QUEUE_FULL');
  });
});

describe('GPUOS_FUSE', () => {
  it.each([
    ['true', 1],
    ['false', 3],
  ])('%s: three element-wise operations are %i task(s)', (fuse, tasks) => {
    const engine = engineOf(start({ GPUOS_FUSE: fuse }));
    const x = engine.fromHost([1, 2, 3], [3]);
    x.neg().dataSync(); // what comes once is not counted
    const before = engine.counters.tasks;
    expect([...x.add(x).mul(x).exp().dataSync()].map(Math.log).map(Math.round)).toEqual([2, 8, 18]);
    expect(engine.counters.tasks - before).toBe(tasks);
  });
});

describe('GPUOS_TASK_BUDGET_MS', () => {
  it('ends a task that runs longer, with its worker, and not much later', async () => {
    const system = start({ GPUOS_TASK_BUDGET_MS: '100', GPUOS_WORKERS: '1' });
    const operator = handMade(system, FOR_EVER);
    const queue = system.queue(0);
    const task = system.task(queue, queue.writeInline(operator, 1, [], [1], NO_ORDER), operator);
    system.device.ringDoorbell(1);
    const started = performance.now();
    // This thread only looks: nobody would end the task here.
    while (!queue.isComplete(task.sequence) && performance.now() - started < 8000) await new Promise((resolve) => setTimeout(resolve, 5));
    expect(code(() => task.doneSync())).toBe('GPUOS_TASK_TIMEOUT');
    expect(system.device.losses).toBe(1);
    await system.submit({ operator: 'nop', words: [1] }).done();
  });
});

describe('GPUOS_CUDA_HOME', () => {
  it('is searched first, for each of the CUDA libraries', () => {
    const folder = mkdtempSync(join(tmpdir(), 'gpuos-cuda-home-'));
    try {
      mkdirSync(join(folder, 'lib64'));
      // No libraries: the next place is tried.
      for (const name of ['libcuda.so.1', 'libnvidia-ml.so.1', 'lib64/libnvrtc.so.13']) writeFileSync(join(folder, name), '');
      vi.stubEnv('GPUOS_CUDA_HOME', folder);
      const { driver, nvml, nvrtc, cublas } = inspectDevices().find(({ kind }) => kind === 'cuda')!.probe!.libraries;
      expect(driver.found[0]).toBe(join(folder, 'libcuda.so.1'));
      expect(nvml.found[0]).toBe(join(folder, 'libnvidia-ml.so.1'));
      expect(nvrtc.found[0]).toBe(join(folder, 'lib64/libnvrtc.so.13'));
      expect(driver.path).not.toBe(driver.found[0]);
      expect(cublas.tried[0]).toBe(folder);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});

describe('GPUOS_LOG', () => {
  /** What stderr gets of a warning (another backend was selected) or of information (ours was selected again). */
  const said = (tfjs: string, log: string): string => {
    const { stderr, json } = program(
      `import * as tf from '@tensorflow/tfjs-core';
      import '@tensorflow/tfjs-backend-cpu';
      import { shutdown } from 'gpuos/tfjs';
      await tf.setBackend('cpu');
      const backend = tf.getBackend();
      await shutdown();
      console.log(JSON.stringify({ backend }));`,
      { GPUOS_TFJS: tfjs, GPUOS_LOG: log },
    );
    expect(json, stderr).toEqual({ backend: tfjs === 'force' ? 'gpuos' : 'cpu' });
    return stderr;
  };

  it('lets through what is as important or more', () => {
    // That a warning is there when the flag is not set is tested with the import.
    expect(said('warn', 'error')).toBe('');
    expect(said('force', 'warn')).toBe('');
    expect(said('force', 'info')).toContain('stays selected');
  });
});
