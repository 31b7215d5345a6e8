import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { descriptor } from '../../../abi/descriptor.ts';
import { queueRecord } from '../../../abi/records.ts';
import { FLAG, STATUS } from '../../../abi/status.ts';
import type { GpuosError } from '../../../errors.ts';
import { CudaError } from '../cuda-error.ts';
import { planSegment, type SegmentLayout, writeSegment } from '../layout.ts';
import { blame } from './blame.ts';
import { SegmentTasks } from './segment-tasks.ts';
import { StepWatch, stepTask } from './step-watch.ts';

const BUDGET_MS = 1000;
const OK_MS = BUDGET_MS + 100;
const fault = new CudaError('GPUOS_DEVICE_LOST', 'cuStreamQuery failed.', { call: 'cuStreamQuery', result: 700, resultName: 'ILLEGAL' });

/** A segment as kernel and host would leave it. */
class Segment {
  readonly layout: SegmentLayout;
  readonly words: Int32Array;
  readonly tasks: SegmentTasks;

  constructor(firstSequence = 0xffff_fffd, queues = 2) {
    this.layout = planSegment({ queues, slots: 32, firstSequence });
    this.words = new Int32Array(this.layout.end >> 2);
    writeSegment(new Uint32Array(this.words.buffer), this.layout);
    this.tasks = new SegmentTasks(this.words, this.layout);
  }

  /** Admits the next task of the queue. */
  admit(queue: number, operator: number, needs: readonly (readonly [queue: number, sequence: number])[] = [], after?: number): number {
    const { record, ring } = this.layout.queueList[queue]!;
    const head = (record + queueRecord.offset.cursor + 4) >> 2;
    const sequence = this.words[head]! >>> 0;
    const at = (ring + (sequence & 31) * descriptor.size) >> 2;
    const o = descriptor.offset;
    this.words[at + (o.operator >> 2)] = operator;
    this.words[at + 1] = (queue << 16) | (after === undefined ? 0 : FLAG.AFTER);
    this.words[at + (o.after >> 2)] = after ?? 0;
    let queues = 0xffff_ffff;
    for (const [i, [other, producer]] of needs.entries()) {
      queues = (queues & ~(0xff << (8 * i))) | (other << (8 * i));
      this.words[at + (o.dependencies >> 2) + i] = producer;
    }
    this.words[at + (o.dependencyQueues >> 2)] = queues;
    this.words[head] = sequence + 1;
    return sequence;
  }

  /** Ends a task; the mark is past it only if it was the first. */
  end(queue: number, sequence: number): void {
    const { record, completions } = this.layout.queueList[queue]!;
    this.words[(completions + 8 * (sequence & 31) + 4) >> 2] = sequence;
    const mark = (record + queueRecord.offset.mark) >> 2;
    if (this.words[mark]! >>> 0 === sequence) this.words[mark] = sequence + 1;
  }

  status(queue: number, sequence: number): number | undefined {
    const at = (this.layout.queueList[queue]!.completions + 8 * (sequence & 31)) >> 2;
    return this.words[at + 1]! >>> 0 === sequence ? this.words[at] : undefined;
  }

  failures(queue: number): number {
    return this.words[(this.layout.queueList[queue]!.record + queueRecord.offset.failures) >> 2]!;
  }
}

const step = (queue: number, sequence: number, tile = 0, stage = 0): bigint =>
  (1n << 63n) | (BigInt(stage) << 48n) | (BigInt(tile) << 40n) | (BigInt(queue) << 32n) | BigInt(sequence);

describe('a step', () => {
  it('is read as it was written, whatever tile and stage', () => {
    const parts = fc.tuple(fc.nat(15), fc.nat(0xffff_ffff), fc.nat(63), fc.nat(0x7fff));
    fc.assert(
      fc.property(parts, ([queue, sequence, ...rest]) => {
        expect(stepTask(step(queue, sequence, ...rest))).toEqual({ queue, sequence });
      }),
    );
    expect(stepTask(0n)).toBeUndefined();
  });

  it('ends its task and the device when it stands for longer than the budget, and not before', () => {
    const segment = new Segment();
    const [task, next] = [segment.admit(1, 77), segment.admit(1, 5)];
    const words = BigUint64Array.of(0n, step(1, task, 3));
    const watch = new StepWatch(segment.words, segment.layout, BUDGET_MS, () => words);
    for (const now of [0, 100, 100 + OK_MS]) watch.look(now);
    expect(segment.status(1, task)).toBeUndefined();
    let error: GpuosError | undefined;
    try {
      watch.look(101 + OK_MS);
    } catch (thrown) {
      error = thrown as GpuosError;
    }
    expect(error?.code).toBe('GPUOS_DEVICE_LOST');
    expect(error?.message).toContain(`task ${task} of queue 1 (operator in slot 77) ran past the budget of ${BUDGET_MS} ms`);
    expect([segment.status(1, task), segment.status(1, next), segment.failures(1), segment.failures(0)]).toEqual([
      STATUS.TIMEOUT,
      undefined,
      1,
      0,
    ]);
  });

  it('that is followed by another one in time is left alone, and words are read only while a queue stands still', () => {
    const segment = new Segment();
    const task = segment.admit(0, 1);
    const words = BigUint64Array.of(step(0, task));
    let reads = 0;
    const watch = new StepWatch(segment.words, segment.layout, BUDGET_MS, () => {
      reads++;
      return words;
    });
    for (let i = 0; i < 40; i++) {
      words[0] = step(0, task, i);
      watch.look(i * BUDGET_MS);
    }
    expect(reads).toBe(39);
    segment.end(0, task);
    // What a worker that has nothing to do was at is of no account.
    for (let i = 40; i < 60; i++) watch.look(i * BUDGET_MS);
    expect(reads).toBe(39);
  });
});

describe('a fault', () => {
  it('is put down to the one task that ran', () => {
    const segment = new Segment();
    const [done, bad] = [segment.admit(0, 1), segment.admit(0, 2)];
    segment.admit(0, 3, [[0, bad]]);
    segment.admit(1, 4, [[0, bad]]);
    segment.admit(0, 5, [], bad);
    segment.end(0, done);
    const error = blame(segment.words, segment.layout, fault);
    expect(error.message).toContain(
      `cuStreamQuery failed. When that happened, there ran, or could: task ${bad} of queue 0 (operator in slot 2).`,
    );
    expect(error).toMatchObject({ code: 'GPUOS_DEVICE_LOST', call: 'cuStreamQuery', result: 700 });
    expect([segment.status(0, bad), segment.failures(0), segment.failures(1)]).toEqual([STATUS.TRAPPED, 1, 0]);
  });

  it('is put down to nobody where several ran, or none', () => {
    const segment = new Segment();
    expect(blame(segment.words, segment.layout, fault)).toBe(fault);
    const all = Array.from({ length: 6 }, (_, i) => segment.admit(i % 2, i));
    expect(blame(segment.words, segment.layout, fault).message).toMatch(
      /: (task \d+ of queue 0 .*){2}(task \d+ of queue 1 .*){1} and 2 more\./,
    );
    for (const [i, task] of all.entries()) expect(segment.status(i % 2, task)).toBeUndefined();
  });

  it('never ends what has ended, nor reads past a ring, whatever stands in the segment', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.nat(), fc.integer()), { maxLength: 60 }), (writes) => {
        const segment = new Segment(5, 3);
        for (const [at, value] of writes) segment.words[at % segment.words.length] = value;
        expect(segment.tasks.open().length).toBeLessThanOrEqual(3 * 32);
        expect(blame(segment.words, segment.layout, fault)).toBeInstanceOf(CudaError);
        for (const task of segment.tasks.open()) expect(segment.status(task.queue, task.sequence)).toBeUndefined();
      }),
    );
  });
});
