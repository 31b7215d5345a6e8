import { expect, it } from 'vitest';
import { GpuosError } from '../../src/errors.ts';
import type { InjectedOperator } from '../../src/runtime/operators.ts';
import { init, type DeviceBuffer, type Task } from '../../src/runtime/system.ts';

/** How long; CI takes the minute that the issue asks for, STRESS_SECONDS shortens it at hand. */
const SECONDS = Number(process.env['STRESS_SECONDS'] ?? 60);
const CELLS = 12;
const OPERATORS = 6;
const ELEMENTS = 1024;
/** Tasks before a check; small enough that sums of constants stay exact in float32. */
const ROUND = 1500;

interface Adder {
  readonly operator: InjectedOperator;
  /** What the current version adds. */
  constant: number;
  killed: boolean;
  /** Tasks of one that may be killed have one tile, so that each happens wholly or not at all. */
  readonly mayBeKilled: boolean;
}

interface Cell {
  readonly buffer: DeviceBuffer;
  last: Task | undefined;
}

interface Submitted {
  readonly task: Task;
  readonly cell: number;
  readonly adds: number;
  readonly adder: Adder;
  /** The operator was killed when it was submitted. */
  readonly killed: boolean;
}

it(`injects, replaces, kills and revives for ${SECONDS} s under load without a lost, doubled or wrong task`, {
  timeout: (SECONDS + 60) * 1000,
}, async () => {
  const system = init({ workers: 2, ring: 256, firstSequence: 2 ** 32 - 5000, workerSpinUs: 50 });
  try {
    let seed = 20_261_130;
    const random = (n: number): number => {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
      return (seed >>> 8) % n;
    };
    // Each operator adds a constant in place: a lost task leaves the sum short, a doubled one adds twice,
    // and the wrong version adds another constant.
    const template = (constant: number, name: string) => ({ inputs: ['x'], expression: `x + ${constant}`, name });
    let constants = 0;
    const fresh = (): number => (constants++ % 97) + 1;
    const adders: Adder[] = Array.from({ length: OPERATORS }, (_, i) => {
      const constant = fresh();
      return { operator: system.inject('map', template(constant, `adder-${i}`)), constant, killed: false, mayBeKilled: i % 2 === 0 };
    });
    const cells: Cell[] = Array.from({ length: CELLS }, () => ({ buffer: system.buffer(new Float32Array(ELEMENTS)), last: undefined }));

    const counts = { submitted: 0, completed: 0, failed: 0, replaced: 0, injected: 0, kills: 0, rounds: 0, wrong: 0 };
    const end = Date.now() + SECONDS * 1000;
    let extra = 0;
    const others: InjectedOperator[] = [];
    while (Date.now() < end) {
      counts.rounds++;
      const submitted: Submitted[] = [];
      const controls: Promise<void>[] = [];
      for (let i = 0; i < ROUND; i++) {
        const adder = adders[random(OPERATORS)] as Adder;
        const event = random(100);
        if (event < 3) {
          adder.constant = fresh();
          system.replace(adder.operator, 'map', template(adder.constant, adder.operator.name));
          counts.replaced++;
        } else if (event < 4 && adder.mayBeKilled) {
          // Not awaited here: what counts is the order in the ring.
          controls.push(adder.killed ? system.revive(adder.operator) : system.kill(adder.operator));
          adder.killed = !adder.killed;
          counts.kills++;
        } else if (event === 4) {
          others.push(system.inject('map', template(1000 + (extra++ % 100_000), 'other')));
          counts.injected++;
          // Far more than the table has slots: they are used anew.
          if (others.length > 50) system.remove(others.shift() as InjectedOperator);
        }
        const cell = random(CELLS);
        const target = cells[cell] as Cell;
        const request = {
          operator: adder.operator,
          pointers: [target.buffer.address, target.buffer.address],
          words: [ELEMENTS],
          tiles: adder.mayBeKilled ? 1 : 1 + random(5),
        };
        let task: Task;
        try {
          task = system.submit({ ...request, dependencies: target.last === undefined ? [] : [target.last] });
        } catch (error) {
          // The task before it is known to have failed, so it is over: nothing is left to wait for.
          if (!(error instanceof GpuosError) || error.code !== 'GPUOS_DEPENDENCY_FAILED') throw error;
          task = system.submit(request);
        }
        target.last = task;
        submitted.push({ task, cell, adds: adder.constant, adder, killed: adder.killed });
      }
      counts.submitted += submitted.length;

      await Promise.all(controls);
      const expected = new Float64Array(CELLS);
      const outcomes = await Promise.all(
        submitted.map(({ task }) =>
          task.done().then(
            () => undefined,
            (error: unknown) => error,
          ),
        ),
      );
      outcomes.forEach((outcome, i) => {
        const { cell, adds, adder, killed } = submitted[i] as Submitted;
        if (outcome === undefined) {
          counts.completed++;
          expected[cell] = (expected[cell] as number) + adds;
          // A task submitted behind a kill never runs.
          if (killed) counts.wrong++;
          return;
        }
        counts.failed++;
        const code = outcome instanceof GpuosError ? outcome.code : String(outcome);
        if (code === 'GPUOS_OPERATOR_KILLED' ? !adder.mayBeKilled : code !== 'GPUOS_DEPENDENCY_FAILED') throw outcome;
      });
      cells.forEach((cell, i) => {
        const values = cell.buffer.read();
        const right = values.every((value) => value === expected[i]);
        if (!right)
          throw new Error(`round ${counts.rounds}, cell ${i}: ${[...new Set(values)].slice(0, 4).join()} instead of ${expected[i]}`);
        cell.buffer.write(new Float32Array(ELEMENTS));
        cell.last = undefined;
      });
      // Start each round with every operator alive, so that most tasks run.
      for (const adder of adders) {
        if (!adder.killed) continue;
        await system.revive(adder.operator);
        adder.killed = false;
      }
    }

    expect(counts.wrong).toBe(0);
    expect(counts.completed + counts.failed).toBe(counts.submitted);
    expect(counts.replaced).toBeGreaterThan(SECONDS);
    expect(counts.kills).toBeGreaterThan(0);
    expect(counts.failed).toBeGreaterThan(0);
    expect(counts.completed).toBeGreaterThan(counts.failed);
    // Every task completed exactly once: what the workers counted is what was submitted, control tasks included.
    await system.submit({ operator: 'nop', words: [1] }).done();
    const done = system.workers().reduce((sum, worker) => sum + (worker.tasks as number), 0);
    expect(done).toBe(system.peekQueue().processed);
    expect(system.device.losses).toBe(0);
    // Replaced versions were freed: their function indices are used anew.
    system.operators.reclaimVersions();
    expect(system.operators.counters.awaitingReclamation).toBeLessThanOrEqual(1);
    const top = Math.max(...adders.map((adder) => adder.operator.id));
    expect(top).toBeLessThan(4096);
  } finally {
    await system.shutdown();
  }
});
