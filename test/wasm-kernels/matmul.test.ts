import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { lower, lowerPack, packedSize } from '../../src/backends/lowering/index.ts';
import { checkAttributes } from '../../src/ops/attributes.ts';
import { type HostTensor, hostTensor } from '../../src/ops/host-tensor.ts';
import { operatorByName } from '../../src/ops/index.ts';
import { elementCount, strides } from '../../src/ops/shape.ts';
import { referenceRun } from '../../src/backends/reference/index.ts';
import { asTensor, conform, dense, execute, expectClose, type Placed, randomLayout, randomSource, randomTensor } from './runner.ts';

/** Rounding of k additions of products in [-1, 1]: about sqrt(k) halves of the last place of sqrt(k). */
const tolerance = (k: number) => ({ absolute: 3e-7 * (1 + k / 8), relative: 1e-6 });

/** b packed by the kernel itself, as an operand whose view still tells b's shape. */
function packed(b: HostTensor, transpose: boolean): Placed {
  const { view, storage } = dense(b);
  const swap = (list: readonly number[]) => (transpose ? [...list.slice(0, -2), list.at(-1) as number, list.at(-2) as number] : list);
  const matrix = { ...view, shape: swap(view.shape), strides: swap(view.strides) };
  const [k, n] = matrix.shape.slice(-2) as [number, number];
  const total = elementCount(matrix.shape.slice(0, -2)) * packedSize(k, n);
  const { outputs } = execute(lowerPack(matrix, { ...view, shape: [total], strides: [1] }), [{ view, storage }], [total], 1);
  return { view, storage: outputs[0] as Int32Array };
}

function check(a: HostTensor, b: HostTensor, transposeA: boolean, transposeB: boolean, seed: number): void {
  const k = a.shape.at(transposeA ? -2 : -1) as number;
  const attributes = { transposeA, transposeB };
  for (const partition of ['rows', 'columns', undefined] as const) {
    conform('matmul', [a, b], attributes, {
      tolerance: tolerance(k),
      reorders: true,
      layout: randomLayout(randomSource(seed)),
      matmul: partition ? { partition } : {},
    });
    conform('matmul', [a, b], attributes, { tolerance: tolerance(k), reorders: true, matmul: partition ? { partition } : {} });
    // Packed: only a by its strides.
    const place = randomLayout(randomSource(seed + 1));
    const panels = packed(b, transposeB);
    conform('matmul', [a, b], attributes, {
      tolerance: tolerance(k),
      reorders: true,
      layout: (tensor, input) => (input === 0 ? place(tensor) : panels),
      matmul: { packed: true, ...(partition ? { partition } : {}) },
    });
  }
}

describe('matmul', () => {
  test('agrees with the reference for any sizes, batches, strides and transposes', () => {
    const size = fc.oneof(fc.integer({ min: 0, max: 9 }), fc.integer({ min: 10, max: 27 }));
    const lead = fc.constantFrom<[number[], number[]]>(
      [[], []],
      [[3], [3]],
      [[2], []],
      [[], [3]],
      [[2, 1], [3]],
      [
        [2, 3],
        [2, 3],
      ],
      [[0], [1]],
      [[2, 2], [1]],
    );
    fc.assert(
      fc.property(
        size,
        size,
        size,
        lead,
        fc.boolean(),
        fc.boolean(),
        fc.integer(),
        (m, n, k, [leadA, leadB], transposeA, transposeB, seed) => {
          const random = randomSource(seed);
          const a = randomTensor(random, [...leadA, ...(transposeA ? [k, m] : [m, k])]);
          const b = randomTensor(random, [...leadB, ...(transposeB ? [n, k] : [k, n])]);
          check(a, b, transposeA, transposeB, seed);
        },
      ),
      { numRuns: 60 },
    );
  });

  test.each([
    [1, 9, 4500],
    [2, 8, 2100],
    [3, 17, 2049],
    [7, 11, 4097],
    [13, 300, 300],
    [70, 24, 1030],
    [1, 4200, 9],
    [3, 4106, 21],
  ])('adds up over passes and blocks: m %i, n %i, k %i', (m, n, k) => {
    const random = randomSource(m * n + k);
    for (const transposeB of [false, true]) {
      const a = randomTensor(random, [m, k]);
      const b = randomTensor(random, transposeB ? [n, k] : [k, n]);
      conform('matmul', [a, b], { transposeB }, { tolerance: tolerance(k), reorders: true });
      const panels = packed(b, transposeB);
      conform(
        'matmul',
        [a, b],
        { transposeB },
        { tolerance: tolerance(k), reorders: true, layout: (x, i) => (i === 1 ? panels : dense(x)), matmul: { packed: true } },
      );
    }
    const a = randomTensor(random, [k, m]);
    conform('matmul', [a, randomTensor(random, [k, n])], { transposeA: true }, { tolerance: tolerance(k), reorders: true });
  });

  // The loop over k takes two a turn and may end between them; rows are split into blocks of 1 to 5; columns past the last 8.
  test.each([1, 2, 3, 4, 7])('has every height of a row block with k %i', (k) => {
    for (let m = 1; m <= 11; m++) {
      for (const n of [8, 13, 17]) {
        const random = randomSource(100 * m + n + k);
        const transposeB = m % 2 === 0;
        check(randomTensor(random, [m, k]), randomTensor(random, transposeB ? [n, k] : [k, n]), false, transposeB, m);
      }
    }
  });

  // b as it lies: its rows few, short or a multiple of 4 KiB apart decide whether its panels are copied first.
  test.each([
    [20, 16, 300],
    [21, 16, 300],
    [21, 1024, 5],
    [24, 1024, 7],
  ])('reads b in place or copies it: m %i, n %i, k %i', (m, n, k) => {
    const random = randomSource(m + n + k);
    conform(
      'matmul',
      [randomTensor(random, [m, k]), randomTensor(random, [k, n])],
      {},
      { tolerance: tolerance(k), reorders: true, matmul: { partition: 'columns' } },
    );
  });

  test('lets NaN and infinity reach only the sums that they are in', () => {
    for (const m of [1, 2, 3, 6, 9]) {
      const random = randomSource(m);
      const a = randomTensor(random, [m, 11]);
      const b = randomTensor(random, [11, 13]);
      a.data[5] = Number.NaN;
      b.data[3] = Number.POSITIVE_INFINITY;
      b.data[10 * 13 + 12] = Number.NEGATIVE_INFINITY;
      for (const partition of ['rows', 'columns'] as const)
        conform('matmul', [a, b], {}, { tolerance: tolerance(11), reorders: true, matmul: { partition } });
      const panels = packed(b, false);
      conform(
        'matmul',
        [a, b],
        {},
        { tolerance: tolerance(11), reorders: true, layout: (x, i) => (i === 1 ? panels : dense(x)), matmul: { packed: true } },
      );
    }
  });

  test('a batch that meets one matrix is one tall product', () => {
    const view = (shape: number[]) => ({ shape, dtype: 'float32' as const, strides: strides(shape), offset: 0 });
    const attributes = checkAttributes(operatorByName('matmul'), {});
    const tall = lower('matmul', [view([4, 10, 32]), view([32, 64])], [view([4, 10, 64])], attributes, { partition: 'columns' });
    expect(tall.units).toBe(8);
    expect(tall.words.slice(3, 6)).toEqual([40, 64, 32]);
    const vectors = lower('matmul', [view([4, 1, 32]), view([1, 32, 64])], [view([4, 1, 64])], attributes);
    expect(vectors.words.slice(3, 6)).toEqual([4, 64, 32]);
  });

  test('few rows are shared by rows, which may stay in a chain, unless each tile would read a large matrix', () => {
    const view = (shape: number[]) => ({ shape, dtype: 'float32' as const, strides: strides(shape), offset: 0 });
    const attributes = checkAttributes(operatorByName('matmul'), {});
    const product = (m: number, k: number, n: number) => lower('matmul', [view([m, k]), view([k, n])], [view([m, n])], attributes);
    expect(product(7, 512, 1536)).toMatchObject({ units: 192 });
    expect(product(7, 512, 1536).aligned).toBeUndefined();
    expect(product(8, 512, 1536)).toMatchObject({ units: 8, aligned: [0] });
    expect(product(7, 64, 64)).toMatchObject({ units: 7, aligned: [0] });
  });

  test('rows of a result may lie apart: strides of the output are followed', () => {
    const random = randomSource(3);
    const [a, b] = [randomTensor(random, [7, 12]), randomTensor(random, [12, 10])];
    const expected = referenceRun('matmul', [a, b])[0] as HostTensor;
    const attributes = checkAttributes(operatorByName('matmul'), {});
    const output = { shape: [7, 10], dtype: 'float32' as const, strides: [16, 1], offset: 0 };
    const placed = [dense(a), dense(b)];
    const call = lower(
      'matmul',
      placed.map(({ view }) => view),
      [output],
      attributes,
    );
    const { outputs } = execute(call, placed, [7 * 16], 2);
    const all = asTensor(hostTensor([7, 16], new Array(112).fill(0)), outputs[0] as Int32Array);
    for (let i = 0; i < 7; i++) expectClose(all.data.slice(i * 16, i * 16 + 10), expected.data.slice(i * 10, i * 10 + 10), tolerance(12));
    // What lies between the rows stays as it was.
    expect(new Set((outputs[0] as Int32Array).filter((_, i) => i % 16 >= 10))).toEqual(new Set([0x7fc0beef]));
  });
});
