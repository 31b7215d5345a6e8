import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { STATUS } from '../../src/abi/status.ts';
import { lower } from '../../src/backends/lowering/index.ts';
import type { DType, Shape } from '../../src/ops/define.ts';
import { type HostTensor, hostTensor } from '../../src/ops/host-tensor.ts';
import { conform, randomIndices, randomLayout, randomSource, randomTensor, statuses } from './runner.ts';

const DTYPES = fc.constantFrom<DType>('float32', 'int32', 'bool');
const NUMBERS = fc.constantFrom<DType>('float32', 'int32');
const SIZE = fc.integer({ min: 0, max: 5 });
const LEAD = fc.array(SIZE, { maxLength: 2 });
const POSITIVE = fc.array(fc.integer({ min: 1, max: 5 }), { minLength: 1, maxLength: 3 });
const OUT = new Array(5).fill(STATUS.OUT_OF_RANGE);

/** Indices [..lead, depth] into the first `depth` axes of a shape whose sizes are positive. */
function deepIndices(random: () => number, lead: Shape, shape: Shape, depth: number): HostTensor {
  const rows = lead.reduce((product, size) => product * size, 1);
  const values = Array.from({ length: rows }, () => shape.slice(0, depth).map((size) => Math.floor(random() * size))).flat();
  return hostTensor([...lead, depth], values, 'int32');
}

describe('gather', () => {
  test('agrees with the reference along any axis, with batches', () => {
    const arbitrary = fc.record({
      batch: fc.array(fc.integer({ min: 0, max: 3 }), { maxLength: 1 }),
      outer: fc.array(SIZE, { maxLength: 1 }),
      size: fc.integer({ min: 1, max: 6 }),
      inner: LEAD,
      indices: LEAD,
      dtype: DTYPES,
      seed: fc.integer(),
    });
    fc.assert(
      fc.property(arbitrary, ({ batch, outer, size, inner, indices, dtype, seed }) => {
        const random = randomSource(seed);
        const x = randomTensor(random, [...batch, ...outer, size, ...inner], dtype);
        conform('gather', [x, randomIndices(random, [...batch, ...indices], size)], {
          axis: batch.length + outer.length,
          batchDims: batch.length,
        });
      }),
      { numRuns: 150 },
    );
  });

  test('copies long rows', () => {
    const random = randomSource(1);
    conform('gather', [randomTensor(random, [50, 512]), randomIndices(random, [21], 50)]);
  });

  test('refuses indices out of range', () => {
    const x = randomTensor(randomSource(2), [4, 3]);
    for (const bad of [-1, 4, 2 ** 31 - 1, -(2 ** 31)]) {
      expect(statuses('gather', [x, hostTensor([3], [0, bad, 1], 'int32')])).toEqual(OUT);
      expect(statuses('gather', [x, hostTensor([2], [0, bad], 'int32')], { axis: 1 })).toEqual(OUT);
      expect(statuses('gather-nd', [x, hostTensor([2, 2], [0, 0, 1, bad], 'int32')])).toEqual(OUT);
    }
    expect(statuses('gather', [hostTensor([0, 3], []), hostTensor([1], [0], 'int32')])).toEqual(OUT);
  });
});

describe('gather-nd and the scatters', () => {
  const arbitrary = fc.record({ shape: POSITIVE, lead: LEAD, depth: fc.integer({ min: 0, max: 3 }), dtype: NUMBERS, seed: fc.integer() });
  const setup = ({ shape, lead, depth, dtype, seed }: { shape: Shape; lead: Shape; depth: number; dtype: DType; seed: number }) => {
    const random = randomSource(seed);
    const used = Math.min(depth, shape.length);
    const indices = deepIndices(random, lead, shape, used);
    return {
      random,
      indices,
      x: randomTensor(random, shape, dtype),
      updates: randomTensor(random, [...lead, ...shape.slice(used)], dtype),
    };
  };

  test('gather-nd', () => {
    fc.assert(
      fc.property(arbitrary, (given) => {
        const { x, indices } = setup(given);
        conform('gather-nd', [x, indices]);
      }),
      { numRuns: 120 },
    );
  });

  test('scatter-nd sums duplicates, the same for any number of tiles', () => {
    fc.assert(
      fc.property(arbitrary, (given) => {
        const { indices, updates } = setup(given);
        conform('scatter-nd', [indices, updates], { shape: given.shape }, { tolerance: { absolute: 2e-6, relative: 0 } });
      }),
      { numRuns: 120 },
    );
    const random = randomSource(4);
    conform(
      'scatter-nd',
      [randomIndices(random, [200, 1], 7), randomTensor(random, [200, 37])],
      { shape: [7, 37] },
      { tolerance: { absolute: 2e-5, relative: 0 } },
    );
  });

  test('tensor-scatter-update: the last write stays', () => {
    fc.assert(
      fc.property(arbitrary, (given) => {
        const { x, indices, updates } = setup(given);
        conform('tensor-scatter-update', [x, indices, updates]);
      }),
      { numRuns: 120 },
    );
  });

  test('sparse-to-dense, with values for each place and one for all', () => {
    fc.assert(
      fc.property(POSITIVE, fc.integer({ min: 0, max: 6 }), fc.boolean(), DTYPES, fc.integer(), (shape, count, one, dtype, seed) => {
        const random = randomSource(seed);
        const indices = deepIndices(random, [count], shape, shape.length);
        const inputs = [indices, randomTensor(random, one ? [] : [count], dtype), randomTensor(random, [], dtype)];
        conform('sparse-to-dense', inputs, { shape });
        if (shape.length === 1) {
          conform('sparse-to-dense', [hostTensor([count], Array.from(indices.data), 'int32'), ...inputs.slice(1)], { shape });
          conform(
            'sparse-to-dense',
            [randomIndices(random, [], shape[0] as number), randomTensor(random, [], dtype), inputs[2] as HostTensor],
            { shape },
          );
        }
      }),
      { numRuns: 100 },
    );
  });

  test('refuse indices out of range, in every tile', () => {
    const x = randomTensor(randomSource(3), [4, 3]);
    for (const bad of [-1, 4, 2 ** 31 - 1, -(2 ** 31)]) {
      const indices = hostTensor([2, 1], [bad, 0], 'int32');
      const updates = randomTensor(randomSource(4), [2, 3]);
      expect(statuses('scatter-nd', [indices, updates], { shape: [4, 3] })).toEqual(OUT);
      expect(statuses('tensor-scatter-update', [x, indices, updates])).toEqual(OUT);
      expect(statuses('sparse-to-dense', [indices, hostTensor([2], [1, 2]), hostTensor([], [0])], { shape: [4] })).toEqual(OUT);
    }
    // A product of sizes that wraps must not hide an index.
    const far = hostTensor([1, 2], [0, 3], 'int32');
    expect(statuses('scatter-nd', [far, hostTensor([1], [1])], { shape: [4, 3] })).toEqual(OUT);
  });
});

describe('concat, pad, one-hot', () => {
  test('concat joins along any axis', () => {
    fc.assert(
      fc.property(LEAD, LEAD, fc.array(SIZE, { minLength: 1, maxLength: 18 }), DTYPES, fc.integer(), (lead, inner, sizes, dtype, seed) => {
        const random = randomSource(seed);
        conform(
          'concat',
          sizes.map((size) => randomTensor(random, [...lead, size, ...inner], dtype)),
          { axis: lead.length },
        );
      }),
      { numRuns: 120 },
    );
  });

  test('concat takes hundreds of inputs, and says how many are too many', () => {
    const random = randomSource(5);
    conform(
      'concat',
      Array.from({ length: 300 }, (_, i) => randomTensor(random, [2, i % 3])),
      { axis: 1 },
    );
    const view = { shape: [1], dtype: 'float32' as const, strides: [1], offset: 0 };
    const inputs = new Array(5000).fill(view);
    expect(() => lower('concat', inputs, [{ ...view, shape: [5000] }], { axis: 0 })).toThrow('at most 4095');
  });

  test('pad surrounds a view', () => {
    const axis = fc.tuple(fc.integer({ min: 0, max: 4 }), fc.integer({ min: 0, max: 2 }), fc.integer({ min: 0, max: 2 }));
    fc.assert(
      fc.property(
        fc.array(axis, { maxLength: 5 }),
        fc.constantFrom('float32' as const, 'int32' as const),
        fc.integer(),
        (axes, dtype, seed) => {
          const random = randomSource(seed);
          const x = randomTensor(
            random,
            axes.map(([size]) => size),
            dtype,
          );
          const paddings = axes.flatMap(([, before, after]) => [before, after]);
          conform('pad', [x], { paddings, value: dtype === 'int32' ? 7 : -2.5 }, { layout: randomLayout(random) });
        },
      ),
      { numRuns: 120 },
    );
  });

  test('one-hot, indices out of range included', () => {
    const indices = hostTensor([2, 4], [0, 3, -1, 4, 2 ** 31 - 1, 1, -(2 ** 31), 2], 'int32');
    for (const depth of [0, 1, 4, 11]) {
      conform('one-hot', [indices], { depth });
      conform('one-hot', [indices], { depth, on: 5, off: -3, dtype: 'int32' });
    }
  });
});

describe('top-k', () => {
  test('agrees with the reference, ties and NaN included', () => {
    const value = fc.oneof(
      fc.constantFrom(Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 0, -0, 1, -1, 1e-45),
      fc.integer({ min: -3, max: 3 }),
    );
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 3 }), fc.array(value, { maxLength: 40 }), fc.nat(), NUMBERS, (rows, values, k, dtype) => {
        const usable = dtype === 'int32' ? values.map((item) => item | 0) : values;
        const x = hostTensor([rows, values.length], new Array(rows).fill(usable).flat(), dtype);
        conform('top-k', [x], { k: k % (values.length + 1) });
      }),
      { numRuns: 200 },
    );
  });

  test('long rows, small and full k', () => {
    const random = randomSource(8);
    for (const dtype of ['float32', 'int32'] as const) {
      for (const k of [1, 10, 3000]) conform('top-k', [randomTensor(random, [2, 3000], dtype)], { k });
    }
    const extremes = hostTensor([5], [-(2 ** 31), 2 ** 31 - 1, 0, -1, 1], 'int32');
    conform('top-k', [extremes], { k: 5 });
  });
});

describe('cumsum, fill, range', () => {
  test('cumsum along any axis, both ways', () => {
    fc.assert(
      fc.property(
        LEAD,
        SIZE,
        LEAD,
        fc.boolean(),
        fc.boolean(),
        NUMBERS,
        fc.integer(),
        (lead, size, inner, exclusive, reverse, dtype, seed) => {
          const x = randomTensor(randomSource(seed), [...lead, size, ...inner], dtype);
          conform('cumsum', [x], { axis: lead.length, exclusive, reverse });
        },
      ),
      { numRuns: 150 },
    );
    conform('cumsum', [randomTensor(randomSource(1), [3, 20000])], { axis: 0 });
    conform('cumsum', [randomTensor(randomSource(2), [2, 5000])], { axis: 1 });
    conform('cumsum', [hostTensor([3], [2 ** 31 - 1, 1, 5], 'int32')], { axis: 0 });
  });

  test('fill and range', () => {
    for (const shape of [[], [0], [1], [5], [3, 1000], [1024], [1025]]) {
      conform('fill', [], { shape, value: -1.5 });
      conform('fill', [], { shape, value: Number.NaN });
      conform('fill', [], { shape, value: -7, dtype: 'int32' });
      conform('fill', [], { shape, value: 1, dtype: 'bool' });
    }
    conform('range', [], { stop: 3000 });
    conform('range', [], { start: 1, stop: -2, step: -0.01 });
    conform('range', [], { start: -(2 ** 31), stop: 2 ** 31 - 1, step: 2 ** 20 + 1, dtype: 'int32' });
    conform('range', [], { start: 5, stop: 5 });
  });
});
