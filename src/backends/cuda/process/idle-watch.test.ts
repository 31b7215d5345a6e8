import { describe, expect, it } from 'vitest';
import { IdleWatch } from './idle-watch.ts';
import type { SegmentTasks } from './segment-tasks.ts';

describe('IdleWatch', () => {
  it('is idle when nothing was admitted and nothing has run for a second', () => {
    const [heads, marks] = [
      [-3, 7],
      [-3, 7],
    ];
    const tasks = { queues: 2, head: (queue: number) => heads[queue], mark: (queue: number) => marks[queue] };
    const watch = new IdleWatch(tasks as unknown as SegmentTasks);
    expect([0, 900, 999, 1000].map((now) => watch.look(now))).toEqual([false, false, false, true]);
    heads[1]!++;
    marks[1]!++;
    expect([1100, 2000, 2100].map((now) => watch.look(now))).toEqual([false, false, true]);
    // A task that has been there for long.
    heads[0]!++;
    expect([2200, 9000].map((now) => watch.look(now))).toEqual([false, false]);
    marks[0]!++;
    expect([9100, 9900, 10_000].map((now) => watch.look(now))).toEqual([false, false, true]);
  });
});
