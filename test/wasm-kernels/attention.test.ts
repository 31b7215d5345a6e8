import fc from 'fast-check';
import { describe, test } from 'vitest';
import { type HostTensor, hostTensor } from '../../src/ops/host-tensor.ts';
import { conform, randomLayout, randomSource, randomTensor } from './runner.ts';

const TOLERANCE = { absolute: 2e-6, relative: 2e-5 };

/** A tensor with larger values, so that the softmax is not flat. */
function spread(random: () => number, shape: readonly number[], factor = 2): HostTensor {
  const tensor = randomTensor(random, shape);
  for (let i = 0; i < tensor.data.length; i++) tensor.data[i] = (tensor.data[i] as number) * factor;
  return tensor;
}

describe('attention', () => {
  test('agrees with the reference for any sizes, groups, masks and strides', () => {
    const size = fc.integer({ min: 0, max: 20 });
    const heads = fc.constantFrom<[number[], number[]]>(
      [[], []],
      [[3], [3]],
      [[4], [2]],
      [[6], [1]],
      [
        [2, 4],
        [2, 2],
      ],
      [
        [2, 3],
        [2, 3],
      ],
    );
    const arbitrary = fc.record({
      sq: fc.oneof(fc.constant(1), size),
      sk: size,
      d: fc.integer({ min: 1, max: 13 }),
      dv: fc.integer({ min: 0, max: 13 }),
      heads,
      mask: fc.constantFrom('none', 'full', 'row', 'keys', 'heads'),
      causal: fc.boolean(),
      scale: fc.constantFrom(undefined, 0.3),
      strided: fc.boolean(),
      seed: fc.integer(),
    });
    fc.assert(
      fc.property(arbitrary, ({ sq, sk, d, dv, heads: [queryHeads, keyHeads], mask, causal, scale, strided, seed }) => {
        const random = randomSource(seed);
        const inputs = [
          spread(random, [...queryHeads, sq, d]),
          spread(random, [...keyHeads, sk, d]),
          spread(random, [...keyHeads, sk, dv]),
        ];
        if (mask !== 'none') {
          const shape =
            mask === 'full'
              ? [...queryHeads, sq, sk]
              : mask === 'row'
                ? [sq, 1]
                : mask === 'keys'
                  ? [sk]
                  : [...queryHeads.map((h) => h), 1, sk];
          const values = spread(random, shape);
          for (let i = 0; i < values.data.length; i++) if (random() < 0.2) values.data[i] = Number.NEGATIVE_INFINITY;
          inputs.push(values);
        }
        const attributes = { causal, ...(scale === undefined ? {} : { scale }) };
        conform('attention', inputs, attributes, {
          tolerance: TOLERANCE,
          reorders: true,
          ...(strided ? { layout: randomLayout(random) } : {}),
        });
      }),
      { numRuns: 250 },
    );
  });

  test.each([
    ['many keys, one query', [2, 1, 16], [2, 5000, 16], false],
    ['many keys, a group of queries', [4, 1, 8], [1, 4500, 8], false],
    ['many keys and rows', [40, 12], [4200, 12], false],
    ['many keys and rows, causal', [40, 12], [4200, 12], true],
    ['the diagonal crosses blocks', [70, 8], [2080, 8], true],
    ['more queries than keys, causal', [90, 8], [70, 8], true],
    ['a head of 64', [3, 21, 64], [3, 21, 64], false],
  ] as const)('%s', (_, q, k, causal) => {
    const random = randomSource(11);
    const inputs = [spread(random, q), spread(random, k), spread(random, k)];
    conform('attention', inputs, { causal }, { tolerance: TOLERANCE, reorders: true });
  });

  test('rescales when a later block of keys has the larger scores', () => {
    const random = randomSource(5);
    const k = spread(random, [4300, 8]);
    for (let i = 0; i < k.data.length; i++) k.data[i] = (k.data[i] as number) * (i / k.data.length) * 10;
    for (const rows of [1, 2, 9]) {
      conform('attention', [spread(random, [rows, 8]), k, spread(random, [4300, 5])], {}, { tolerance: TOLERANCE, reorders: true });
    }
  });

  test('a whole block of keys may be masked, the first or a later one', () => {
    const random = randomSource(6);
    for (const [from, to] of [
      [0, 2048],
      [2048, 4100],
      [100, 4100],
      [0, 4100],
    ] as const) {
      const mask = randomTensor(random, [4100]);
      mask.data.fill(Number.NEGATIVE_INFINITY, from, to);
      conform(
        'attention',
        [spread(random, [5, 8]), spread(random, [4100, 8]), spread(random, [4100, 7]), mask],
        {},
        { tolerance: TOLERANCE, reorders: true },
      );
    }
  });

  test('what causal does not show does not count, even NaN; NaN that is seen does', () => {
    for (const rows of [1, 4, 13, 40]) {
      const random = randomSource(rows);
      const [q, k, v] = [spread(random, [rows, 6]), spread(random, [rows, 6]), spread(random, [rows, 9])];
      v.data.fill(Number.NaN, (rows - 1) * 9);
      k.data[(rows >> 1) * 6] = Number.NaN;
      conform('attention', [q, k, v], { causal: true }, { tolerance: TOLERANCE, reorders: true });
    }
  });

  test('scores that differ greatly: weights underflow to 0', () => {
    const q = hostTensor([1, 1], [1]);
    const k = hostTensor([6, 1], [0, -60, -87, -88, -200, -1e30]);
    const v = hostTensor([6, 1], [1, 1, 1, 1, 1e20, 1e20]);
    conform('attention', [q, k, v], { scale: 1 }, { tolerance: TOLERANCE, reorders: true });
  });
});

describe('the exponential', () => {
  test('gives weights within 4e-7 down to e^-87', () => {
    // One query, two keys with scores 0 and x: the second weight is e^x / (1 + e^x).
    const count = 400;
    const xs = Array.from({ length: count }, (_, i) => Math.fround(-(i * 87) / count - 0.001));
    const q = hostTensor([count, 1, 1], new Array(count).fill(1));
    const k = hostTensor(
      [count, 2, 1],
      xs.flatMap((x) => [0, x]),
    );
    const v = hostTensor(
      [count, 2, 1],
      xs.flatMap(() => [0, 1]),
    );
    conform('attention', [q, k, v], { scale: 1 }, { tolerance: { absolute: 0, relative: 4e-7 } });
  });
});

describe('rotary', () => {
  test('agrees with the reference for any sizes and strides, both layouts of pairs', () => {
    const size = fc.integer({ min: 0, max: 9 });
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 0, max: 3 }), { maxLength: 2 }),
        size,
        size,
        fc.boolean(),
        fc.boolean(),
        fc.integer(),
        (lead, s, half, interleaved, strided, seed) => {
          const random = randomSource(seed);
          const inputs = [randomTensor(random, [...lead, s, 2 * half]), randomTensor(random, [s, half]), randomTensor(random, [s, half])];
          conform(
            'rotary',
            inputs,
            { interleaved },
            { tolerance: { absolute: 2e-7, relative: 1e-6 }, ...(strided ? { layout: randomLayout(random) } : {}) },
          );
        },
      ),
      { numRuns: 100 },
    );
  });
});
