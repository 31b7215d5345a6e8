import { Worker } from 'node:worker_threads';
import fc from 'fast-check';
import { afterEach, describe, expect, it } from 'vitest';
import { endsWith, handMade, UNTIL_WORD } from '../../test/hand-made.ts';
import { descriptor } from '../abi/descriptor.ts';
import { GpuosError } from '../errors.ts';
import { type Dependency, NO_ORDER } from './queue.ts';
import { type DeviceBuffer, init, type System, type SystemOptions, type Task } from './system.ts';

const open: System[] = [];
function start(options: SystemOptions = {}): System {
  const system = init({ workers: 0, queues: 3, ring: 2, memoryMib: 64, ...options });
  open.push(system);
  return system;
}
afterEach(async () => {
  for (const system of open.splice(0)) await system.shutdown();
});

const thrown = (run: () => unknown): GpuosError | undefined => {
  try {
    run();
  } catch (error) {
    if (error instanceof GpuosError) return error;
    throw error;
  }
  return undefined;
};
const code = (run: () => unknown): string | undefined => thrown(run)?.code;

const bits = (value: number): number => new Int32Array(new Float32Array([value]).buffer)[0] as number;

/** Writes `value` into the buffer: whether it ran can be seen. Past the checks of submit(), which would refuse a dependency to come. */
function write(system: System, queue: number, buffer: DeviceBuffer, value: number, dependencies: readonly Dependency[]): Task {
  const operator = system.operators.builtIn('fill');
  const sequence = system.queue(queue).writeInline(operator, 1, [buffer.address], [1, 1, bits(value)], { after: -1, dependencies });
  return system.task(system.queue(queue), sequence, operator);
}

function submitTo(system: System, queue: number, operator: number): Task {
  const sequence = system.queue(queue).writeInline(operator, 1, [], [1], NO_ORDER);
  return system.task(system.queue(queue), sequence, operator);
}

const [A, B, C] = [0, 1, 2];

describe('an operator that reports a failure', () => {
  it.each([
    [1, /failed/],
    [200, /ended with status 200/],
  ])('with status %i fails its task, and only that', (status, message) => {
    const system = start();
    const task = submitTo(system, A, handMade(system, endsWith(status)));
    expect(thrown(() => task.doneSync())).toMatchObject({ code: 'GPUOS_TASK_FAILED', message: expect.stringMatching(message) });
    system.submit({ operator: 'nop', words: [1] }).doneSync();
  });
});

describe('a failed task whose dependent, in another queue, has not begun', () => {
  // The dependent reads how it ended from the failed task's slot. Were the slot used anew, it would see a later task that went well.
  it.each([0, 2 ** 32 - 2])('keeps its slot until the dependent has ended, from sequence %i on', (firstSequence) => {
    const system = start({ firstSequence });
    const failing = handMade(system, endsWith(1));
    const result = system.buffer([7]);
    const failed = submitTo(system, A, failing);
    // It also waits for the first task of queue C, which is still to come.
    const dependent = write(system, B, result, 1, [failed, { queue: C, sequence: firstSequence }]);
    expect(code(() => failed.doneSync())).toBe('GPUOS_TASK_FAILED');
    // The ring goes round as far as the failed task, and no further, though everything in it has ended.
    submitTo(system, A, system.operators.builtIn('nop')).doneSync();
    expect(system.peekQueue(A).depth).toBe(0);
    expect(code(() => system.submit({ operator: 'nop', words: [1], queue: A, wait: false }))).toBe('GPUOS_QUEUE_FULL');
    // Other queues are not held up.
    for (let i = 0; i < 8; i++) system.submit({ operator: 'nop', words: [1], queue: C }).doneSync();

    expect(thrown(() => dependent.doneSync())).toMatchObject({ code: 'GPUOS_DEPENDENCY_FAILED', cause: { code: 'GPUOS_TASK_FAILED' } });
    expect([...result.read()]).toEqual([7]);
    for (let i = 0; i < 8; i++) system.submit({ operator: 'nop', words: [1], queue: A, wait: false }).doneSync();
  });

  it('makes a submitter that needs the slot wait for the dependent', () => {
    const system = start({ workers: 1 });
    const failing = handMade(system, endsWith(1), 0);
    const waiting = handMade(system, UNTIL_WORD, 1);
    const [result, gate] = [system.buffer([7]), system.buffer([0])];
    const blocker = system.task(system.queue(C), system.queue(C).writeInline(waiting, 1, [gate.address], [1], NO_ORDER), waiting);
    system.device.ringDoorbell(1);
    // The worker has to take it; the host would never come back from it.
    const until = Date.now() + 20_000;
    while (system.peekQueue(C).head === 0 && Date.now() < until);
    expect(system.peekQueue(C).head).toBe(1);
    const failed = submitTo(system, A, failing);
    const dependent = write(system, B, result, 1, [failed, blocker]);
    expect(code(() => failed.doneSync())).toBe('GPUOS_TASK_FAILED');

    // This thread is about to block, so another one opens the gate.
    const { buffer } = system.device.views().u32;
    const opener = new Worker(
      'const { workerData: [words, at] } = require("node:worker_threads"); setTimeout(() => { words[at] = 1; }, 300);',
      {
        eval: true,
        workerData: [new Int32Array(buffer), gate.address >> 2],
      },
    );
    opener.unref();
    for (let round = 0; round < 3 * system.queue(A).slots; round++) submitTo(system, A, system.operators.builtIn('nop'));
    expect(system.queue(B).isComplete(dependent.sequence)).toBe(true);
    expect(code(() => dependent.doneSync())).toBe('GPUOS_DEPENDENCY_FAILED');
    expect(code(() => blocker.doneSync())).toBeUndefined();
    expect([...result.read()]).toEqual([7]);
  });
});

describe('tasks that depend on each other across small rings', () => {
  const step = fc.record({
    queue: fc.nat(2),
    tiles: fc.integer({ min: 1, max: 3 }),
    fails: fc.nat(5).map((n) => n === 0),
    // How far back each task stands that it depends on.
    back: fc.uniqueArray(fc.integer({ min: 1, max: 9 }), { maxLength: 4 }),
  });

  it.each([0, 1])('run exactly when all that they depend on went well, with %i workers', async (workers) => {
    const system = start({ workers, firstSequence: 2 ** 32 - 50 });
    const killed = system.inject('map', { inputs: ['x'], expression: 'x + 1' });
    await system.kill(killed);
    const results = Array.from({ length: 80 }, () => system.buffer([-1]));
    const program = fc.asyncProperty(fc.array(step, { minLength: 20, maxLength: results.length }), async (steps) => {
      for (const result of results) result.write([-1]);
      // A task's code as it has to be, and its handle; none where submit() knew better than to take it.
      const tasks: { readonly expected: string | undefined; readonly task: Task | undefined }[] = [];
      steps.forEach(({ queue, tiles, fails, back }, i) => {
        const producers = back.flatMap((distance) => tasks[i - distance] ?? []);
        const doomed = producers.some(({ expected }) => expected !== undefined);
        const expected = doomed ? 'GPUOS_DEPENDENCY_FAILED' : fails ? 'GPUOS_OPERATOR_KILLED' : undefined;
        const dependencies = producers.flatMap(({ task }) => task ?? []);
        let task: Task | undefined;
        if (dependencies.length === producers.length) {
          const { address } = results[i] as DeviceBuffer;
          const refusal = code(() => {
            task = fails
              ? system.submit({ operator: killed, pointers: [address, address], words: [1], tiles, queue, dependencies })
              : system.submit({ operator: 'fill', pointers: [address], words: [1, 1, bits(i)], tiles, queue, dependencies });
          });
          if (refusal !== undefined) expect([refusal, doomed]).toEqual(['GPUOS_DEPENDENCY_FAILED', true]);
        }
        tasks.push({ expected, task });
      });
      for (const [i, { expected, task }] of tasks.entries()) {
        if (task !== undefined) {
          const outcome = await task.done().then(
            () => undefined,
            (error: GpuosError) => error.code,
          );
          expect(outcome, `task ${i}`).toBe(expected);
        }
        expect(results[i]?.read()[0], `task ${i}`).toBe(expected === undefined ? i : -1);
      }
    });
    await fc.assert(program, { numRuns: 60 });
  });
});

describe('a pointer', () => {
  it('is written with all its bits, up to the largest that a device has', () => {
    const system = start({ ring: 64 });
    const queue = system.queue(A);
    const base = (system.device.queues[A]?.ring as number) >> 2;
    const nop = system.operators.builtIn('nop');
    fc.assert(
      fc.property(fc.maxSafeNat(), fc.nat(2 ** 32 - 1), (large, small) => {
        const sequence = queue.writeInline(nop, 1, [large, small], [1], NO_ORDER);
        const { u32 } = system.device.views();
        const at = base + (((sequence & (queue.slots - 1)) * descriptor.size + descriptor.offset.pointers) >> 2);
        const [low, high, other, none] = u32.subarray(at, at + 4);
        expect((high as number) * 2 ** 32 + (low as number)).toBe(large);
        expect([other, none]).toEqual([small, 0]);
        queue.waitSync(sequence);
      }),
    );
  });
});
