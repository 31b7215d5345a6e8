import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { KERNEL_LIMITS, KERNEL_SIZES } from './resident.ts';

// That the structures have these sizes is for a compiler to say: nvcc does, in elf/toolkit.test.ts.
const source = readFileSync(new URL('device/resident.cuh', import.meta.url), 'utf8');

it("the kernel's limits and the sizes of its structures are those that the host allocates by", () => {
  for (const [name, value] of Object.entries(KERNEL_LIMITS)) {
    expect(Number(new RegExp(`^#define GPUOS_${name} (\\d+)$`, 'm').exec(source)?.[1]), name).toBe(value);
  }
  const sizes = [...source.matchAll(/static_assert\(sizeof\((\w+)\) == (\d+)/g)].map(([, name, bytes]) => [name, Number(bytes)]);
  expect(Object.fromEntries(sizes)).toEqual(KERNEL_SIZES);
});
