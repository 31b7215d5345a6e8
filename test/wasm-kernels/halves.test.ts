import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { lower, lowerCopy } from '../../src/backends/lowering/index.ts';
import { elementCount, strides } from '../../src/ops/shape.ts';
import { dense, execute, type Placed, randomLayout, randomSource, randomTensor } from './runner.ts';

const SHAPES = fc.oneof(
  fc.array(fc.integer({ min: 0, max: 7 }), { maxLength: 6 }),
  fc.array(fc.integer({ min: 1, max: 150 }), { minLength: 2, maxLength: 2 }),
);

/** The upper half of the words that outputs start as. */
const GARBAGE = 0x7fc0;

/** The lower halves of the words of a tensor's storage, one after the other. */
function halvesOf({ view, storage }: Placed): Placed {
  const halves = new Uint16Array(2 * Math.ceil(storage.length / 2));
  storage.forEach((word, i) => {
    halves[i] = word;
  });
  return { view: { ...view, dtype: 'float16' }, storage: new Int32Array(halves.buffer) };
}

describe('copy_halves', () => {
  test('materialises views of any shape and strides, and writes no byte more', () => {
    fc.assert(
      fc.property(SHAPES, fc.integer(), (shape, seed) => {
        const random = randomSource(seed);
        const tensor = randomTensor(random, shape);
        const placed = halvesOf(randomLayout(random)(tensor));
        const count = elementCount(shape);
        const expected = Array.from(dense(tensor).storage, (word) => word & 0xffff);
        const call = lowerCopy(placed.view, { shape, dtype: 'float16', strides: strides(shape), offset: 0 });
        for (let tiles = 1; tiles <= 3; tiles++) {
          const { status, outputs } = execute(call, [placed], [Math.ceil(count / 2)], tiles);
          expect(status).toBe(0);
          const got = outputs[0]!;
          const halves = new Uint16Array(got.buffer, got.byteOffset, 2 * got.length);
          expect(expected.findIndex((half, i) => half !== halves[i])).toBe(-1);
          // Of the last word, the half that is no element keeps what was there.
          if (count % 2 === 1) expect(halves[count]).toBe(GARBAGE);
        }
      }),
      { numRuns: 200 },
    );
  });
});

test('no other kernel takes halves', () => {
  const half = { shape: [2, 2], dtype: 'bfloat16', strides: [2, 1], offset: 0 } as const;
  expect(() => lower('matmul', [half, half], [half], {})).toThrow(/no kernel for bfloat16.*GPUOS_DTYPE_MISMATCH/);
});
