/**
 * Finds tasks that the kernel cannot end by itself. A task that is past its budget ends between two of its steps (tiles,
 * or stages of a chain); who is at one step for longer than that will not come to a next one. That is for the device
 * process to see, and it can do no more than end itself, and the kernel with it.
 *
 * Nothing is written for it that host and device would have to share: workers say in device memory what they are at, and
 * that is copied only while some queue stands still.
 */
import { STATUS } from '../../../abi/status.ts';
import { GpuosError } from '../../../errors.ts';
import type { SegmentLayout } from '../layout.ts';
import { type OpenTask, SegmentTasks, taskText } from './segment-tasks.ts';

/** What is allowed beyond the budget, for a worker that was at the end of its step. */
const MARGIN_MS = 100;

/** A worker's word: `begin_step` of `device/steps.cuh` has the other end. */
export function stepTask(word: bigint): { readonly queue: number; readonly sequence: number } | undefined {
  if (word >> 63n === 0n) return undefined;
  return { queue: Number((word >> 32n) & 0xffn), sequence: Number(word & 0xffff_ffffn) };
}

export class StepWatch {
  readonly #tasks: SegmentTasks;
  readonly #budgetMs: number;
  readonly #read: () => BigUint64Array;
  /** The marks at the last look. */
  #marks: readonly number[] = [];
  /** The word of each worker, and the look that saw it first. */
  readonly #seen = new Map<number, { readonly word: bigint; readonly since: number }>();

  /** @param read the words of all workers, as they are now */
  constructor(words: Int32Array, layout: SegmentLayout, budgetMs: number, read: () => BigUint64Array) {
    this.#tasks = new SegmentTasks(words, layout);
    this.#budgetMs = budgetMs;
    this.#read = read;
  }

  /** @throws GPUOS_DEVICE_LOST if a step lasts too long; its task has ended with TIMEOUT then */
  look(now: number): void {
    const late = new Map(this.#late(now).map((task) => [`${task.queue} ${task.sequence}`, task]));
    if (late.size === 0) return;
    for (const task of late.values()) this.#tasks.end(task, STATUS.TIMEOUT);
    const names = [...late.values()].map(taskText).join(', ');
    const text = `${names} ran past the budget of ${this.#budgetMs} ms without coming to the end of a tile, and took the device with it`;
    throw new GpuosError('GPUOS_DEVICE_LOST', `${text}.`);
  }

  #late(now: number): readonly OpenTask[] {
    const tasks = this.#tasks;
    const before = this.#marks;
    this.#marks = Array.from({ length: tasks.queues }, (_, queue) => tasks.mark(queue));
    if (!this.#marks.some((mark, queue) => mark === before[queue] && mark !== tasks.head(queue))) {
      this.#seen.clear();
      return [];
    }
    const late: OpenTask[] = [];
    for (const [worker, word] of this.#read().entries()) {
      const task = stepTask(word);
      const seen = this.#seen.get(worker);
      if (task === undefined || task.queue >= tasks.queues) this.#seen.delete(worker);
      else if (seen?.word !== word) this.#seen.set(worker, { word, since: now });
      else if (now - seen.since > this.#budgetMs + MARGIN_MS) late.push({ ...task, operator: tasks.operator(task) });
    }
    return late;
  }
}
