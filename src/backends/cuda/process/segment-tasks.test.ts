import { expect, it } from 'vitest';
import { queueRecord } from '../../../abi/records.ts';
import { planSegment } from '../layout.ts';
import { SegmentTasks } from './segment-tasks.ts';

it.each([5, 2 ** 32 - 1])('all is settled when each queue is complete up to what was submitted to it, from sequence %i on', (first) => {
  const layout = planSegment({ queues: 2, slots: 32, firstSequence: first });
  const words = new Int32Array(layout.end >> 2);
  const put = (queue: number, name: 'mark' | 'tail', value: number): void => {
    words[(layout.queueList[queue]!.record + queueRecord.offset[name]) >> 2] = value;
  };
  const tasks = new SegmentTasks(words, layout);
  for (const queue of [0, 1]) for (const name of ['mark', 'tail'] as const) put(queue, name, first);
  expect(tasks.settled).toBe(true);
  put(1, 'tail', first + 3);
  expect(tasks.settled).toBe(false);
  put(1, 'mark', first + 2);
  expect(tasks.settled).toBe(false);
  expect([tasks.settledBut(0), tasks.settledBut(1)]).toEqual([false, true]);
  put(1, 'mark', first + 3);
  expect(tasks.settled).toBe(true);
  // Tasks of nobody's, as those of the self-test are.
  put(0, 'mark', first + 1);
  expect(tasks.settled).toBe(true);
});
