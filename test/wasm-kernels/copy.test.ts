import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { OperandView } from '../../src/backends/backend.ts';
import { KERNELS, lower, lowerCopy, lowerPack, packedSize } from '../../src/backends/lowering/index.ts';
import { STATUS } from '../../src/abi/status.ts';
import type { Shape } from '../../src/ops/define.ts';
import { elementCount, strides } from '../../src/ops/shape.ts';
import { readFileSync } from 'node:fs';
import { conform, dense, execute, kernels, type Placed, randomLayout, randomSource, randomTensor, scattered } from './runner.ts';

const SHAPES = fc.array(fc.integer({ min: 0, max: 7 }), { maxLength: 6 });

function output(shape: Shape): OperandView {
  return { shape, dtype: 'float32', strides: strides(shape), offset: 0 };
}

/** Copies a view in 1 to 5 tiles and expects the tensor's own order. */
function expectCopied(placed: Placed, shape: Shape, expected: Int32Array): void {
  const call = lowerCopy(placed.view, output(shape));
  for (let tiles = 1; tiles <= 5; tiles++) {
    const { status, outputs } = execute(call, [placed], [elementCount(shape)], tiles);
    expect(status).toBe(0);
    const wrong = expected.findIndex((word, i) => word !== outputs[0]?.[i]);
    expect(wrong, 'first element that differs').toBe(-1);
  }
}

describe('the module', () => {
  test('exports exactly the kernels of the function table', () => {
    expect(
      Object.keys(kernels)
        .filter((name) => name !== 'memory')
        .sort(),
    ).toEqual([...KERNELS].sort());
  });

  test('knows the status words of the ABI', () => {
    const text = readFileSync(new URL('../../src/backends/wasm/device/operators/status.ts', import.meta.url), 'utf8');
    const found = Object.fromEntries(
      [...text.matchAll(/export const (\w+): i32 = (\d+);/g)].map(([, name, value]) => [name, Number(value)]),
    );
    expect(found).toEqual({ OK: STATUS.OK, OUT_OF_RANGE: STATUS.OUT_OF_RANGE });
  });

  test('has a nop that does nothing', () => {
    expect(execute(lower('nop', [], [], {}), [], [], 1)).toEqual({ status: 0, outputs: [] });
  });
});

describe('copy_strided', () => {
  test('materialises views of any shape and strides', () => {
    fc.assert(
      fc.property(SHAPES, fc.integer(), (shape, seed) => {
        const random = randomSource(seed);
        const tensor = randomTensor(random, shape);
        expectCopied(randomLayout(random)(tensor), shape, dense(tensor).storage);
      }),
      { numRuns: 300 },
    );
  });

  test.each([
    [
      [64, 48],
      [1, 0],
    ],
    [
      [67, 131],
      [1, 0],
    ],
    [
      [3, 33, 70],
      [0, 2, 1],
    ],
    [
      [5, 40, 3, 50],
      [0, 2, 1, 3],
    ],
    [
      [5, 40, 3, 50],
      [3, 1, 0, 2],
    ],
    [
      [300, 200],
      [1, 0],
    ],
    [
      [1, 20000],
      [0, 1],
    ],
    [
      [9, 9, 9, 9],
      [3, 2, 1, 0],
    ],
  ])('transposes and permutes %j laid out as %j', (shape, order) => {
    const tensor = randomTensor(randomSource(7), shape);
    const none = shape.map(() => false);
    for (const gap of [0, 1, 4]) expectCopied(scattered(tensor, order, gap, none), shape, dense(tensor).storage);
  });

  test('repeats where strides are 0', () => {
    const storage = Int32Array.of(1, 2, 3);
    const placed = { view: { shape: [2, 3, 5], dtype: 'int32' as const, strides: [0, 1, 0], offset: 0 }, storage };
    expectCopied(
      placed,
      [2, 3, 5],
      Int32Array.from({ length: 30 }, (_, i) => (Math.floor(i / 5) % 3) + 1),
    );
  });

  test('copies bits, signalling NaN and negative zero included', () => {
    const storage = Int32Array.of(0x7f800001, -0x80000000, -1, 0x7fc00000, 5, 6);
    const placed = { view: { shape: [3, 2], dtype: 'float32' as const, strides: [1, 3], offset: 0 }, storage };
    expectCopied(placed, [3, 2], Int32Array.of(0x7f800001, 0x7fc00000, -0x80000000, 5, -1, 6));
  });

  test('tile repeats along all axes of a view', () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.integer({ min: 0, max: 4 }), fc.integer({ min: 0, max: 3 })), { maxLength: 6 }),
        fc.integer(),
        (axes, seed) => {
          const random = randomSource(seed);
          const x = randomTensor(
            random,
            axes.map(([size]) => size),
          );
          conform('tile', [x], { reps: axes.map(([, reps]) => reps) }, { layout: randomLayout(random) });
        },
      ),
      { numRuns: 100 },
    );
  });
});

describe('pack_panels', () => {
  test('packs matrices of any strides, zeros past the last column', () => {
    const size = fc.integer({ min: 0, max: 21 });
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 3 }), size, size, fc.integer(), (batch, k, n, seed) => {
        const random = randomSource(seed);
        const tensor = randomTensor(random, [batch, k, n]);
        const placed = randomLayout(random)(tensor);
        const perMatrix = packedSize(k, n);
        const expected = new Float32Array(batch * perMatrix);
        for (let b = 0; b < batch; b++) {
          for (let i = 0; i < k; i++) {
            for (let j = 0; j < n; j++) {
              expected[b * perMatrix + (Math.floor(j / 8) * k + i) * 8 + (j % 8)] = tensor.data[(b * k + i) * n + j] as number;
            }
          }
        }
        const call = lowerPack(placed.view, output([expected.length]));
        for (let tiles = 1; tiles <= 5; tiles++) {
          expect(execute(call, [placed], [expected.length], tiles)).toEqual({ status: 0, outputs: [new Int32Array(expected.buffer)] });
        }
      }),
      { numRuns: 100 },
    );
  });
});
