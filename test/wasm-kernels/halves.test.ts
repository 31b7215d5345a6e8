import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { lower, lowerCopy } from '../../src/backends/lowering/index.ts';
import { referenceRun } from '../../src/backends/reference/index.ts';
import { checkAttributes } from '../../src/ops/attributes.ts';
import type { Attributes, DType } from '../../src/ops/define.ts';
import { isHalf } from '../../src/ops/dtype.ts';
import { toHalfBits } from '../../src/ops/half.ts';
import { type HostTensor, hostTensor } from '../../src/ops/host-tensor.ts';
import { operatorByName } from '../../src/ops/index.ts';
import { elementCount, strides } from '../../src/ops/shape.ts';
import { dense, execute, type Placed, randomIndices, randomLayout, randomSource, randomTensor } from './runner.ts';

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

const HALF = fc.constantFrom<DType>('float16', 'bfloat16');

/** Halves as the raw words of a tensor: two a word, the last one's upper half 0. */
function packed(host: HostTensor): Placed {
  const { dtype } = host;
  if (!isHalf(dtype)) return dense(host);
  const halves = new Uint16Array(2 * Math.ceil(host.data.length / 2));
  host.data.forEach((value, i) => {
    halves[i] = toHalfBits(value, dtype);
  });
  return { view: { shape: host.shape, dtype, strides: strides(host.shape), offset: 0 }, storage: new Int32Array(halves.buffer) };
}

/** Runs an operator of halves in 1 to 3 tiles against the reference. */
function expectHalves(name: string, inputs: readonly HostTensor[], attributes: Attributes): void {
  const [want] = referenceRun(name, inputs, attributes) as [HostTensor];
  const placed = inputs.map(packed);
  const spec = { shape: want.shape, dtype: want.dtype, strides: strides(want.shape), offset: 0 };
  const views = placed.map(({ view }) => view);
  const call = lower(name, views, [spec], checkAttributes(operatorByName(name), attributes));
  const expected = new Uint16Array(packed(want).storage.buffer);
  const count = want.data.length;
  for (let tiles = 1; tiles <= 3; tiles++) {
    const { status, outputs } = execute(call, placed, [Math.ceil(count / 2)], tiles);
    expect(status).toBe(0);
    const got = new Uint16Array(outputs[0]!.buffer, outputs[0]!.byteOffset, 2 * outputs[0]!.length);
    for (let i = 0; i < count; i++) if (got[i] !== expected[i]) expect.fail(`element ${i} of ${name} is ${got[i]}, not ${expected[i]}`);
    if (count % 2 === 1) expect(got[count]).toBe(GARBAGE);
  }
}

const SIZE = fc.integer({ min: 1, max: 40 });

describe('operators that move halves', () => {
  test('gather', () => {
    fc.assert(
      fc.property(HALF, SIZE, SIZE, SIZE, fc.integer(), (dtype, rows, width, count, seed) => {
        const random = randomSource(seed);
        const x = hostTensor([rows, width], randomTensor(random, [rows, width]).data, dtype);
        for (const axis of [0, 1]) expectHalves('gather', [x, randomIndices(random, [count], [rows, width][axis] as number)], { axis });
      }),
      { numRuns: 60 },
    );
  });

  test('cache-append', () => {
    fc.assert(
      fc.property(HALF, SIZE, SIZE, SIZE, fc.integer(), (dtype, s, t, d, seed) => {
        const random = randomSource(seed);
        const of = (shape: number[]) => hostTensor(shape, randomTensor(random, shape).data, dtype);
        const rows = Math.min(s, t);
        const position = hostTensor([], [(seed >>> 1) % (s - rows + 1)], 'int32');
        expectHalves('cache-append', [of([3, s, d]), of([3, rows, d]), position], {});
      }),
      { numRuns: 60 },
    );
  });

  test('tile', () => {
    fc.assert(
      fc.property(HALF, SIZE, SIZE, fc.integer(), (dtype, rows, width, seed) => {
        const x = hostTensor([rows, width], randomTensor(randomSource(seed), [rows, width]).data, dtype);
        expectHalves('tile', [x], { reps: [2, 3] });
      }),
      { numRuns: 30 },
    );
  });
});

test('some operators have no kernel for halves', () => {
  const half = { shape: [2, 2], dtype: 'bfloat16', strides: [2, 1], offset: 0 } as const;
  const indices = { shape: [2, 1], dtype: 'int32', strides: [1, 1], offset: 0 } as const;
  expect(() => lower('scatter-nd', [indices, half], [half], { shape: [2, 2] })).toThrow(/no kernel for bfloat16.*GPUOS_DTYPE_MISMATCH/);
});
