import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { MemorySpace } from '../backends/backend.ts';
import { GpuosError } from '../errors.ts';
import { type Block, Heap, sizeClass } from './heap.ts';

function space(limit: number, refuseAbove = Number.POSITIVE_INFINITY): MemorySpace {
  return {
    start: 1000,
    end: 1000,
    limit,
    ensure(end: number) {
      if (end > refuseAbove) throw new GpuosError('GPUOS_OUT_OF_MEMORY', 'The system has no more.');
    },
  };
}

const MIB = 2 ** 20;

describe('sizeClass', () => {
  it('holds the request, wastes at most an eighth of it past the first classes, and is a class itself', () => {
    fc.assert(
      fc.property(fc.oneof(fc.integer({ min: 0, max: 5000 }), fc.integer({ min: 0, max: 2 ** 32 })), (bytes) => {
        const size = sizeClass(bytes);
        expect(size).toBeGreaterThanOrEqual(Math.max(1, bytes));
        expect(size % 256).toBe(0);
        expect(size - bytes).toBeLessThanOrEqual(Math.max(256, bytes / 8));
        expect(sizeClass(size)).toBe(size);
        expect(sizeClass(bytes + 1)).toBeGreaterThanOrEqual(size);
      }),
      { seed: 256, numRuns: 2000 },
    );
  });
});

describe('heap', () => {
  const operation = fc.oneof(
    {
      weight: 4,
      arbitrary: fc.record({
        kind: fc.constant('allocate' as const),
        bytes: fc.oneof(fc.integer({ min: 0, max: 3000 }), fc.integer({ min: 0, max: 400_000 })),
        idle: fc.boolean(),
      }),
    },
    { weight: 3, arbitrary: fc.record({ kind: fc.constant('release' as const), which: fc.nat(100), use: fc.nat(20) }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant('complete' as const), by: fc.nat(20) }) },
  );

  it('gives no two live blocks the same memory, none past its limit, and to the host only what no task uses', () => {
    fc.assert(
      fc.property(fc.array(operation, { maxLength: 120 }), (operations) => {
        const limit = 2 * MIB;
        const heap = new Heap(space(limit));
        const live: Block[] = [];
        let mark = 0;
        let tail = 0;
        for (const step of operations) {
          if (step.kind === 'complete') mark = Math.min(tail, mark + step.by);
          else if (step.kind === 'release') {
            const [block] = live.splice(step.which % Math.max(1, live.length), 1);
            if (block === undefined) continue;
            tail += step.use;
            block.lastUse = tail - 1;
            heap.release(block);
          } else {
            let block: Block;
            try {
              block = heap.allocate(step.bytes, mark, step.idle);
            } catch (error) {
              expect(error instanceof GpuosError && error.code).toBe('GPUOS_OUT_OF_MEMORY');
              continue;
            }
            expect(block.bytes).toBeGreaterThanOrEqual(step.bytes);
            expect(block.address % 64).toBe(0);
            expect(block.address).toBeGreaterThanOrEqual(1000);
            expect(block.address + block.bytes).toBeLessThanOrEqual(limit);
            if (step.idle) expect(block.lastUse).toBeLessThan(mark);
            for (const other of live) {
              expect(block.address >= other.address + other.bytes || other.address >= block.address + block.bytes, 'blocks overlap').toBe(
                true,
              );
            }
            live.push(block);
          }
          expect(heap.usedBytes).toBe(live.reduce((sum, { bytes }) => sum + bytes, 0));
          expect(heap.heldBytes).toBeGreaterThanOrEqual(heap.usedBytes);
          expect(heap.heldBytes).toBeLessThanOrEqual(limit);
        }
      }),
      { seed: 64, numRuns: 400 },
    );
  });

  it('uses released memory anew, rather what is idle', () => {
    const heap = new Heap(space(MIB));
    const [a, b, c] = [heap.allocate(1000, 0), heap.allocate(1000, 0), heap.allocate(1000, 0)];
    a.lastUse = 9;
    b.lastUse = 3;
    c.lastUse = 9;
    for (const block of [b, a]) heap.release(block);
    expect(heap.allocate(1000, 5)).toBe(b);
    expect(heap.allocate(1000, 5)).toBe(a);
    heap.release(c);
    expect(heap.allocate(1000, 5, true)).not.toBe(c);
    expect(heap.allocate(1000, 10, true)).toBe(c);
    const { heldBytes } = heap;
    heap.release(c);
    heap.allocate(1000, 10);
    expect(heap.heldBytes).toBe(heldBytes);
  });

  it('takes idle memory of up to twice the size before memory that was never touched, but no busy or larger one', () => {
    const heap = new Heap(space(16 * MIB));
    const [large, busy, huge] = [heap.allocate(90_000, 0), heap.allocate(70_000, 0), heap.allocate(300_000, 0)];
    busy.lastUse = 7;
    for (const block of [large, busy, huge]) heap.release(block);
    const { heldBytes } = heap;
    expect(heap.allocate(60_000, 5)).toBe(large);
    expect(heap.heldBytes).toBe(heldBytes);
    const fresh = heap.allocate(60_000, 5);
    expect([busy, huge]).not.toContain(fresh);
    expect(heap.heldBytes).toBeGreaterThan(heldBytes);
    expect(heap.allocate(60_000, 8)).toBe(busy);
    // Small blocks are not worth the look.
    const small = heap.allocate(1000, 0);
    heap.release(small);
    expect(heap.allocate(700, 0)).not.toBe(small);
  });

  it('runs out with an error that tells the sizes, and all goes on after that', () => {
    const heap = new Heap(space(4 * MIB));
    const blocks: Block[] = [];
    const fill = () => {
      for (;;) blocks.push(heap.allocate(MIB / 2, 0));
    };
    expect(fill).toThrow(/0\.5 MiB asked for; \d\.\d MiB are in use, .* the device may hold 4\.0 MiB.*GPUOS_OUT_OF_MEMORY/);
    const count = blocks.length;
    expect(count).toBeGreaterThanOrEqual(6);
    expect(heap.usedBytes).toBe((count * MIB) / 2);
    expect(() => heap.allocate(1, 0)).not.toThrow();
    heap.release(blocks.pop() as Block);
    expect(() => heap.allocate(MIB / 2, 0)).not.toThrow();
    // Where nothing new can be had, a larger free block serves.
    const last = blocks.pop() as Block;
    heap.release(last);
    for (let i = 0; i < 100; i++) {
      try {
        heap.allocate(300_000, 0);
      } catch {
        expect(i).toBeGreaterThan(0);
        break;
      }
    }
    expect(heap.heldBytes).toBeLessThanOrEqual(4 * MIB);
  });

  it('takes a refusal of the system for its limit, and passes on other errors', () => {
    const heap = new Heap(space(64 * MIB, MIB));
    const block = heap.allocate(MIB / 2, 0);
    expect(() => heap.allocate(MIB, 0)).toThrow(/GPUOS_OUT_OF_MEMORY/);
    heap.release(block);
    expect(heap.allocate(MIB / 2 - 1, 0)).toBe(block);
    const broken = new Heap({
      start: 0,
      end: 0,
      limit: MIB,
      ensure: () => {
        throw new TypeError('a defect');
      },
    });
    expect(() => broken.allocate(1, 0)).toThrow(TypeError);
  });
});
