/** A device that cannot be kept running: nobody may wait for ever, and a new system may start. */
import { afterEach, describe, expect, it } from 'vitest';
import type { WasmDevice } from '../backends/wasm/device.ts';
import { GpuosError } from '../errors.ts';
import { init, type System, type Task } from './system.ts';

const open: System[] = [];
function start(workers = 2): System {
  const system = init({ workers, ring: 16, memoryMib: 64 });
  open.push(system);
  return system;
}
afterEach(async () => {
  for (const system of open.splice(0)) await system.shutdown();
});

const outcome = async (run: () => unknown): Promise<string | undefined> => {
  try {
    await run();
  } catch (error) {
    return error instanceof GpuosError ? error.code : `not a GpuosError: ${String(error)}`;
  }
  return undefined;
};

/** A task that nothing can end: it waits for one that is never submitted. */
function stuck(system: System): Task {
  const queue = system.queue(0);
  const never = { queue: 0, sequence: queue.tail + 1000 };
  const sequence = queue.writeInline(system.operators.builtIn('nop'), 1, [], [1], { after: -1, dependencies: [never] });
  return system.task(queue, sequence, system.operators.builtIn('nop'));
}

/** Ends workers as fast as they are replaced, until the supervisor gives up. */
async function exhaust(system: System): Promise<void> {
  const device = system.device as WasmDevice;
  const until = Date.now() + 40_000;
  while (device.lost === undefined && Date.now() < until) {
    const { losses } = device;
    for (let worker = 1; worker <= device.workers; worker++) device.endWorker(worker);
    while (device.losses < losses + device.workers && device.lost === undefined && Date.now() < until) {
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }
}

describe('a worker that is ended', () => {
  it('is replaced, and what comes after runs', async () => {
    const system = start(1);
    const events: { worker: number; tiles: number }[] = [];
    system.onWorkerLost((event) => events.push(event));
    await system.submit({ operator: 'nop', words: [1] }).done();
    (system.device as WasmDevice).endWorker(1);
    const until = Date.now() + 20_000;
    while (events.length === 0 && Date.now() < until) await new Promise((resolve) => setTimeout(resolve, 1));
    expect(events).toMatchObject([{ worker: 1, tiles: 0 }]);
    expect(system.device.losses).toBe(1);
    expect(system.device.lost).toBeUndefined();
    // The new one has to do it: the host only looks.
    const { tail } = system.peekQueue();
    system.submit({ operator: 'nop', words: [1] });
    while (system.peekQueue().processed <= tail && Date.now() < until) await new Promise((resolve) => setTimeout(resolve, 1));
    expect(system.peekQueue().processed).toBe(tail + 1);
    expect(system.workerAlive()).toBe(true);
  });
});

describe('workers that die more often than they can be replaced', () => {
  it('end with GPUOS_DEVICE_LOST for whoever waits, submits or reads, and a new system can start', async () => {
    const system = start();
    const task = stuck(system);
    const pending = outcome(() => task.done());
    await exhaust(system);
    expect(system.device.losses).toBeGreaterThan(10);
    expect(system.device.lost).toMatch(/could not start|died within|cannot be kept running/);
    expect(await pending).toBe('GPUOS_DEVICE_LOST');
    expect(await outcome(() => task.doneSync())).toBe('GPUOS_DEVICE_LOST');
    expect(await outcome(() => system.submit({ operator: 'nop', words: [1] }))).toBe('GPUOS_DEVICE_LOST');
    expect(await outcome(() => system.buffer(4))).toBe('GPUOS_DEVICE_LOST');
    expect(await outcome(() => system.inject('map', { inputs: ['x'], expression: 'x' }))).toBe('GPUOS_DEVICE_LOST');
    expect(await outcome(() => system.kill('nop'))).toBe('GPUOS_DEVICE_LOST');
    expect(system.workerAlive()).toBe(false);
    // With drain as well: what cannot complete is not waited for.
    await system.shutdown({ drain: true });
    // The remedy.
    const next = start(1);
    await next.submit({ operator: 'nop', words: [1] }).done();
  });
});
