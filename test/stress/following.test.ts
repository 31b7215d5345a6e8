/**
 * Runs of tasks that depend on each other tile by tile, with threads that follow a tile ahead of the cursor: every tile
 * runs once, after the same tile of the task before, whatever else stands between; also when tiles fail and workers die.
 */
import fc from 'fast-check';
import { afterEach, describe, expect, it } from 'vitest';
import type { Dependency } from '../../src/runtime/queue.ts';
import { type DeviceBuffer, init, type System, type SystemOptions, type Task } from '../../src/runtime/system.ts';
import { handMade } from '../hand-made.ts';

const open: System[] = [];
afterEach(async () => {
  for (const system of open.splice(0)) await system.shutdown();
});

function start(options: SystemOptions = {}): System {
  const system = init({ workers: 3, ring: 64, memoryMib: 64, ...options });
  open.push(system);
  return system;
}

/** The cell of the tile, in a row of cells at the first pointer. */
const CELL = '(i32.add (i32.load (local.get $params)) (i32.shl (local.get $tile) (i32.const 2)))';
const WORD = (index: number) => `(i32.load offset=${32 + 4 * index} (local.get $params))`;
/** Counts its cell up; fails if the cell was not as high as word 0 says, and at once in the tile that word 1 names. */
const COUNT = `
  (if (i32.eq (local.get $tile) ${WORD(1)}) (then (return (i32.const 1))))
  (if (i32.ne (i32.atomic.load ${CELL}) ${WORD(0)}) (then (return (i32.const 7))))
  (i32.atomic.store ${CELL} (i32.add ${WORD(0)} (i32.const 1)))
  (i32.const 0)`;
const NO_TILE = 255;

interface Step {
  readonly tiles: number;
  readonly dependencies: readonly Dependency[];
  readonly after?: number;
  readonly fails?: number;
}

function submit(system: System, operator: number, cells: DeviceBuffer, expected: number, step: Step): Task {
  const queue = system.queue(0);
  const order = { after: step.after ?? -1, dependencies: step.dependencies };
  const sequence = queue.writeInline(operator, step.tiles, [cells.address], [expected, step.fails ?? NO_TILE], order);
  system.device.ringDoorbell(step.tiles);
  return system.task(queue, sequence, operator);
}

const zeros = (n: number) => new Float32Array(n);
const counts = (buffer: DeviceBuffer): number[] => [...new Int32Array(buffer.read().buffer)];
const outcome = async (task: Task): Promise<string | undefined> =>
  task.done().then(
    () => undefined,
    (error: { code: string }) => error.code,
  );

describe('a chain of tasks, tile by tile', () => {
  it.each([2, 3, 8, 64])('of %i tiles counts each tile up in order, over a ring much shorter than the chain', async (tiles) => {
    const system = start();
    const operator = handMade(system, COUNT);
    const cells = system.buffer(zeros(tiles));
    const tasks: Task[] = [];
    let previous: number | undefined;
    for (let i = 0; i < 3000; i++) {
      const dependencies = previous === undefined ? [] : [{ queue: 0, sequence: previous, tilewise: true }];
      previous = system.queue(0).tail;
      tasks.push(submit(system, operator, cells, i, { tiles, dependencies }));
    }
    const outcomes = new Set(await Promise.all(tasks.map(outcome)));
    expect([...outcomes]).toEqual([undefined]);
    expect(counts(cells)).toEqual(Array(tiles).fill(3000));
  });

  const links = fc.array(
    fc.record({
      tilewise: fc.boolean(),
      // Now and then a task of another chain, of one tile or several, or a control task stands between.
      between: fc.constantFrom('nothing', 'nothing', 'nothing', 'single', 'wide', 'control', 'after'),
    }),
    { minLength: 20, maxLength: 200 },
  );

  it('mixed with whole dependencies, other tasks, waits and control tasks', async () => {
    const system = start({ workers: 2 });
    const operator = handMade(system, COUNT);
    const spare = system.operators.builtIn('fill');
    await fc.assert(
      fc.asyncProperty(links, fc.integer({ min: 2, max: 5 }), async (chain, tiles) => {
        const cells = system.buffer(zeros(tiles));
        const aside = system.buffer(zeros(64));
        const tasks: Task[] = [];
        const queue = system.queue(0);
        let previous = -1;
        let singles = 0;
        for (const [i, { tilewise, between }] of chain.entries()) {
          if (between === 'single') {
            const last = singles === 0 ? [] : [{ queue: 0, sequence: queue.tail - 1 }];
            tasks.push(submit(system, operator, aside, singles++, { tiles: 1, dependencies: last, after: queue.tail - 1 }));
          } else if (between === 'wide') {
            const wide = system.buffer(zeros(tiles));
            tasks.push(submit(system, operator, wide, 0, { tiles, dependencies: [] }));
          } else if (between === 'control') {
            // Kill and revive are control tasks in the ring; the chain's own operator is never without life when it runs.
            await Promise.all([system.kill(spare), system.revive(spare)]);
          }
          const after = between === 'after' ? previous : -1;
          const dependencies = previous < 0 ? [] : [{ queue: 0, sequence: previous, tilewise }];
          previous = queue.tail;
          tasks.push(submit(system, operator, cells, i, { tiles, dependencies, after }));
        }
        const outcomes = new Set(await Promise.all(tasks.map(outcome)));
        expect([...outcomes]).toEqual([undefined]);
        expect(counts(cells)).toEqual(Array(tiles).fill(chain.length));
        expect(counts(aside)[0]).toBe(singles);
      }),
      { seed: 11, numRuns: 40 },
    );
  });
});

describe('a tile that fails', () => {
  it('stops its own tile in all that follows, fails all of these tasks, and leaves nothing waiting', async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 2, max: 6 }), fc.nat(5), fc.nat(40), async (tiles, which, at) => {
        const system = start({ workers: 2 });
        const operator = handMade(system, COUNT);
        const cells = system.buffer(zeros(tiles));
        const bad = which % tiles;
        const tasks: Task[] = [];
        let previous = -1;
        for (let i = 0; i < 60; i++) {
          const dependencies = previous < 0 ? [] : [{ queue: 0, sequence: previous, tilewise: true }];
          previous = system.queue(0).tail;
          tasks.push(submit(system, operator, cells, i, { tiles, dependencies, ...(i === at ? { fails: bad } : {}) }));
        }
        const outcomes = await Promise.all(tasks.map(outcome));
        const expected = outcomes.map((_, i) => (i < at ? undefined : i === at ? 'GPUOS_TASK_FAILED' : 'GPUOS_DEPENDENCY_FAILED'));
        expect(outcomes).toEqual(expected);
        expect(counts(cells)[bad]).toBe(at);
        await open.pop()?.shutdown();
      }),
      { seed: 12, numRuns: 25 },
    );
  });
});

describe('a worker that dies while it follows', () => {
  // Every point that a tile passes; the fault falls wherever in the chain the worker is by then.
  it.each([1, 3, 4, 5])('at fault point %i loses one tile at most, and what depended on it fails', async (point) => {
    const fault = new SharedArrayBuffer(8);
    const system = start({ workers: 2, fault });
    const operator = handMade(system, COUNT);
    const plan = new Int32Array(fault);
    for (let round = 0; round < 3; round++) {
      const cells = system.buffer(zeros(4));
      Atomics.store(plan, 1, 150);
      Atomics.store(plan, 0, point);
      const tasks: Task[] = [];
      let previous = -1;
      const until = Date.now() + 8000;
      for (let i = 0; i < 400 || (Atomics.load(plan, 0) !== 0 && Date.now() < until); i++) {
        const dependencies = previous < 0 ? [] : [{ queue: 0, sequence: previous, tilewise: true }];
        previous = system.queue(0).tail;
        tasks.push(submit(system, operator, cells, i, { tiles: 4, dependencies }));
      }
      const outcomes = await Promise.all(tasks.map(outcome));
      expect(Atomics.load(plan, 0)).toBe(0);
      const lost = outcomes.indexOf('GPUOS_WORKER_LOST');
      if (point <= 3) expect(lost).toBeGreaterThanOrEqual(0);
      if (lost < 0) {
        expect([...new Set(outcomes)]).toEqual([undefined]);
        expect(counts(cells)).toEqual(Array(4).fill(tasks.length));
      } else {
        expect(outcomes.slice(0, lost).every((code) => code === undefined)).toBe(true);
        expect(outcomes.slice(lost + 1).every((code) => code === 'GPUOS_DEPENDENCY_FAILED')).toBe(true);
        // Exactly one tile stopped at the loss (it may have run before its end could be recorded).
        expect(Math.min(...counts(cells))).toBeLessThanOrEqual(lost + 1);
      }
      await expect.poll(() => system.workerAlive(), { timeout: 8000 }).toBe(true);
    }
  });
});
