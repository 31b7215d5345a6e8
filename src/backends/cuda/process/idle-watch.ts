/** Tells when nobody has needed the kernel for a while. */
import type { SegmentTasks } from './segment-tasks.ts';

/** So long nothing was admitted and nothing has run. */
const IDLE_MS = 1000;

export class IdleWatch {
  readonly #tasks: SegmentTasks;
  #heads: readonly number[] = [];
  #since = 0;

  constructor(tasks: SegmentTasks) {
    this.#tasks = tasks;
  }

  /** Whether it is so, as far as the looks can tell. */
  look(now: number): boolean {
    const tasks = this.#tasks;
    const heads = Array.from({ length: tasks.queues }, (_, queue) => tasks.head(queue));
    const still = heads.every((head, queue) => head === this.#heads[queue] && head === tasks.mark(queue));
    if (!still) this.#since = now;
    this.#heads = heads;
    return still && now - this.#since >= IDLE_MS;
  }
}
