import { expect, it } from 'vitest';
import { blockNeeds, fitsDescriptor } from './needs.ts';
import { GPU_KERNELS, KERNELS } from './index.ts';

it('is known of every kernel, and of nothing else', () => {
  for (const name of [...KERNELS, ...GPU_KERNELS]) expect(blockNeeds(name), name).toBeDefined();
  for (const name of ['chain', 'controlTable', 'external', 'interpret', 'constructor', '']) expect(blockNeeds(name), name).toBeUndefined();
});

it('tells what a descriptor has room for', () => {
  expect(fitsDescriptor({ pointers: 4, words: 7 })).toBe(true);
  expect(fitsDescriptor({ pointers: 5, words: 7 })).toBe(false);
  expect(fitsDescriptor({ pointers: 4, words: 8 })).toBe(false);
});
