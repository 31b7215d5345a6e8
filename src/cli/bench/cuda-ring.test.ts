import { existsSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { descriptor } from '../../abi/descriptor.ts';
import { queueRecord } from '../../abi/records.ts';
import { planSegment, type SegmentLayout, writeSegment } from '../../backends/cuda/layout.ts';
import { SharedSegment } from '../../backends/cuda/process/segment.ts';
import type { System } from '../../runtime/system.ts';
import { Producers, queueAt, type RingMemory, ringMemory } from './cuda-ring.ts';

const SLOTS = 32;
const QUEUES = 3;
const VIEW_BASE = 2 ** 40;
const NOP = 7;
const COUNT = 9;
const LIMIT_MS = 20_000;

// Threads run the built file: npm test builds it first.
const built = existsSync(new URL('../../../dist/cli/bench/cuda-producer.js', import.meta.url));

let layout: SegmentLayout;
let segment: SharedSegment;
let memory: RingMemory;
let words: Uint32Array;

beforeEach(() => {
  layout = planSegment({ queues: QUEUES, slots: SLOTS, firstSequence: 0 });
  segment = SharedSegment.create(layout.end);
  words = new Uint32Array(segment.view);
  writeSegment(words, layout);
  const queues = layout.queueList.map((queue) => ({ ...queue, slots: SLOTS }));
  memory = { address: segment.address, bytes: segment.bytes, viewBase: VIEW_BASE, queues };
});
afterEach(() => segment.close());

/** Takes what a queue has, as a device would: in order, by the tags; what it saw of each task. */
class Consumer {
  readonly operators = new Map<number, number>();
  readonly dependencies: number[] = [];
  mark = 0;
  readonly #queue: number;

  constructor(queue: number) {
    this.#queue = queue;
  }

  turn(): void {
    const { ring, record, completions } = layout.queueList[this.#queue]!;
    for (;;) {
      const at = (ring + (this.mark & (SLOTS - 1)) * descriptor.size) >> 2;
      const tags = [descriptor.offset.tag0, descriptor.offset.tag1].map((offset) => Atomics.load(words, at + (offset >> 2)));
      if (tags.some((tag) => tag !== this.mark)) return;
      const operator = words[at + (descriptor.offset.operator >> 2)]!;
      this.operators.set(operator, (this.operators.get(operator) ?? 0) + 1);
      if ((words[at + (descriptor.offset.dependencyQueues >> 2)]! & 0xff) === this.#queue)
        this.dependencies.push(this.mark - words[at + (descriptor.offset.dependencies >> 2)]!);
      Atomics.store(words, (completions >> 2) + 2 * (this.mark & (SLOTS - 1)) + 1, this.mark);
      this.mark++;
      Atomics.store(words, (record + queueRecord.offset.cursor + 4) >> 2, this.mark);
      Atomics.store(words, (record + queueRecord.offset.mark) >> 2, this.mark);
    }
  }
}

async function during<T>(consumers: readonly Consumer[], action: Promise<T>): Promise<T> {
  let over = false;
  const settled = action.finally(() => {
    over = true;
  });
  settled.catch(() => {});
  while (!over) {
    for (const consumer of consumers) consumer.turn();
    await new Promise((resolve) => setImmediate(resolve));
  }
  return await settled;
}

describe('a queue by its address', () => {
  it('is where the system that has it says', () => {
    const system = { device: { views: () => ({ u32: words, bytes: segment.bytes }), viewBase: VIEW_BASE, queues: memory.queues } };
    expect(ringMemory(system as unknown as System)).toEqual(memory);
  });

  it('writes where the device reads, and sees what the device completes', () => {
    const queue = queueAt(memory, 1, 0, () => false);
    const consumer = new Consumer(1);
    const sequence = queue.writeInline(NOP, 1, [VIEW_BASE + 4], [1], { after: -1, dependencies: [] });
    expect(queue.isComplete(sequence)).toBe(false);
    consumer.turn();
    expect([...consumer.operators]).toEqual([[NOP, 1]]);
    expect(queue.isComplete(sequence)).toBe(true);
  });

  it('does not wait for ever once it is stopped', () => {
    const queue = queueAt(memory, 0, 0, () => true);
    const sequence = queue.writeInline(NOP, 1, [], [1], { after: -1, dependencies: [] });
    expect(() => queue.waitSync(sequence)).toThrow(/stopped/);
  });
});

describe.skipIf(!built)('producers in threads', () => {
  it('each fill a ring of their own, many times over, and nothing else', async () => {
    const producers = new Producers(memory, [0, 2], { nop: NOP, tasks: 1000 });
    const consumers = [0, 1, 2].map((queue) => new Consumer(queue));
    try {
      for (let round = 1; round <= 3; round++) {
        const seconds = await during(consumers, producers.round(LIMIT_MS));
        expect(seconds).toBeGreaterThan(0);
        expect(consumers.map(({ mark }) => mark)).toEqual([round * 1000, 0, round * 1000]);
      }
      const ends = await producers.finish(LIMIT_MS);
      expect(ends).toEqual([
        { tasks: 3000, counted: 0 },
        { tasks: 3000, counted: 0 },
      ]);
    } finally {
      await producers.close();
    }
  });

  it('put a task that counts among every so many, each after the one before, until they are stopped', async () => {
    const every = 10;
    const producers = new Producers(memory, [1], { nop: NOP, tasks: 0, counting: { operator: COUNT, pointer: VIEW_BASE, every } });
    const consumer = new Consumer(1);
    try {
      producers.begin();
      await during(
        [consumer],
        (async () => {
          while (consumer.mark < 500) await new Promise((resolve) => setTimeout(resolve, 1));
        })(),
      );
      const [end] = await during([consumer], producers.finish(LIMIT_MS));
      expect(end!.tasks).toBe(consumer.mark);
      expect(end!.counted).toBe(consumer.operators.get(COUNT));
      expect(end!.tasks - end!.counted).toBe(consumer.operators.get(NOP));
      expect(consumer.dependencies.length).toBeGreaterThan(10);
      expect(new Set(consumer.dependencies)).toEqual(new Set([every]));
    } finally {
      await producers.close();
    }
  });

  it('say so when a round does not end, and can be ended then', async () => {
    const producers = new Producers(memory, [0], { nop: NOP, tasks: 1000 });
    try {
      await expect(producers.round(300)).rejects.toMatchObject({ code: 'GPUOS_BENCH_FAILED' });
    } finally {
      await producers.close();
    }
  });
});
