import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { KERNEL_LIMITS, KERNEL_SIZES, shardsFor } from './resident.ts';

// That the structures have these sizes is for a compiler to say: nvcc does, in elf/toolkit.test.ts.
const source = ['resident', 'dispatcher'].map((name) => readFileSync(new URL(`device/${name}.cuh`, import.meta.url), 'utf8')).join('\n');

it("the kernel's limits and the sizes of its structures are those that the host allocates by", () => {
  for (const [name, value] of Object.entries(KERNEL_LIMITS)) {
    expect(Number(new RegExp(`^#define GPUOS_${name} (\\d+)$`, 'm').exec(source)?.[1]), name).toBe(value);
  }
  const sizes = [...source.matchAll(/static_assert\(sizeof\((\w+)\) == (\d+)/g)].map(([, name, bytes]) => [name, Number(bytes)]);
  expect(Object.fromEntries(sizes)).toEqual(KERNEL_SIZES);
});

it('has as many warps admit as there are queues, warps, and memory for what they know of all workers', () => {
  expect([1, 2, 6, 8, 16].map((queues) => shardsFor(queues, 131))).toEqual([1, 2, 6, 6, 6]);
  // More multiprocessors than any device has that it was tried on.
  for (const workers of [1, 131, 147, 151, 152, 191, 255, 1000]) {
    const shards = shardsFor(16, workers);
    const bytes = (count: number) => 8272 + count * (KERNEL_SIZES.Shard + 8 * workers);
    expect(bytes(shards)).toBeLessThanOrEqual(40_960);
    if (shards < KERNEL_LIMITS.MAX_SHARDS) expect(bytes(shards + 1)).toBeGreaterThan(40_960);
  }
  expect(() => shardsFor(1, 4000)).toThrow(expect.objectContaining({ code: 'GPUOS_BAD_OPTION' }));
});
