/** What the device process reads and writes of tasks in the segment, where the kernel cannot any more. */
import { descriptor } from '../../../abi/descriptor.ts';
import { queueRecord } from '../../../abi/records.ts';
import { FLAG, NO_QUEUE } from '../../../abi/status.ts';
import type { SegmentLayout, SegmentQueue } from '../layout.ts';

/** A task by its queue and its sequence modulo 2^32. */
export interface TaskName {
  readonly queue: number;
  readonly sequence: number;
}

export interface OpenTask extends TaskName {
  /** Slot of its operator. */
  readonly operator: number;
}

const DEPENDENCIES = 4;
const isBefore = (a: number, b: number): boolean => ((a - b) | 0) < 0;

/** The segment's words, as a reader of tasks sees them. */
export class SegmentTasks {
  readonly #words: Int32Array;
  readonly #layout: SegmentLayout;

  constructor(words: Int32Array, layout: SegmentLayout) {
    this.#words = words;
    this.#layout = layout;
  }

  get queues(): number {
    return this.#layout.queues;
  }

  /** First sequence that is not complete. */
  mark(queue: number): number {
    return this.#word(this.#at(queue).record + queueRecord.offset.mark);
  }

  /** First sequence that is not admitted. */
  head(queue: number): number {
    return this.#word(this.#at(queue).record + queueRecord.offset.cursor + 4);
  }

  /** Whether all that was submitted is complete. */
  get settled(): boolean {
    return this.settledBut(-1);
  }

  /** The same of all queues but this one. */
  settledBut(queue: number): boolean {
    const { tail } = queueRecord.offset;
    return this.#layout.queueList.every(({ record }, other) => other === queue || !isBefore(this.mark(other), this.#word(record + tail)));
  }

  operator({ queue, sequence }: TaskName): number {
    return this.#word(this.#descriptor(queue, sequence) + descriptor.offset.operator);
  }

  /** Tasks that were admitted, have not ended, and have nothing to wait for: what runs is among them. */
  open(): readonly OpenTask[] {
    const open: OpenTask[] = [];
    for (let queue = 0; queue < this.queues; queue++) {
      const from = this.mark(queue);
      // No more than the ring has, whatever stands there.
      const count = Math.min((this.head(queue) - from) >>> 0, this.#layout.slots);
      for (let i = 0; i < count; i++) {
        const task = { queue, sequence: (from + i) >>> 0 };
        if (!this.#isComplete(task) && this.#mayRun(task)) open.push({ ...task, operator: this.operator(task) });
      }
    }
    return open;
  }

  /** Ends a task that has not, as the kernel would. */
  end(task: TaskName, status: number): void {
    if (this.#isComplete(task)) return;
    const { record, completions } = this.#at(task.queue);
    const at = (completions + 8 * (task.sequence & (this.#layout.slots - 1))) >> 2;
    // In this order: who looks takes the count as a sign to look for failures, and the sequence as a sign that there is a status.
    Atomics.add(this.#words, (record + queueRecord.offset.failures) >> 2, 1);
    Atomics.store(this.#words, at, status);
    Atomics.store(this.#words, at + 1, task.sequence | 0);
  }

  #at(queue: number): SegmentQueue {
    return this.#layout.queueList[queue] as SegmentQueue;
  }

  #word(address: number): number {
    return Atomics.load(this.#words, address >> 2) >>> 0;
  }

  #descriptor(queue: number, sequence: number): number {
    return this.#at(queue).ring + (sequence & (this.#layout.slots - 1)) * descriptor.size;
  }

  /** It is, if a later one of the same slot is. */
  #isComplete({ queue, sequence }: TaskName): boolean {
    const seen = this.#word(this.#at(queue).completions + 8 * (sequence & (this.#layout.slots - 1)) + 4);
    return !isBefore(seen, sequence);
  }

  #mayRun({ queue, sequence }: TaskName): boolean {
    const at = this.#descriptor(queue, sequence);
    const o = descriptor.offset;
    const flags = this.#word(at + o.operator + 4) & 0xffff;
    if ((flags & FLAG.AFTER) !== 0 && !isBefore(this.#word(at + o.after), this.mark(queue))) return false;
    for (let i = 0; i < DEPENDENCIES; i++) {
      const other = (this.#word(at + o.dependencyQueues) >>> (8 * i)) & 0xff;
      if (other === NO_QUEUE || other >= this.queues) continue;
      if (!this.#isComplete({ queue: other, sequence: this.#word(at + o.dependencies + 4 * i) })) return false;
    }
    return true;
  }
}

export const taskText = ({ queue, sequence, operator }: OpenTask): string =>
  `task ${sequence} of queue ${queue} (operator in slot ${operator})`;
