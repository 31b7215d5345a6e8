import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { STATUS } from '../../src/abi/status.ts';
import { lower } from '../../src/backends/lowering/index.ts';
import { hostTensor } from '../../src/ops/host-tensor.ts';
import { conform, dense, execute, kernels, randomIndices, randomLayout, randomSource, randomTensor, statuses } from './runner.ts';

const LEAD = fc.array(fc.integer({ min: 0, max: 3 }), { maxLength: 2 });
const SIZE = fc.integer({ min: 0, max: 9 });
const NUMBERS = fc.constantFrom('float32' as const, 'int32' as const);
const scalar = (value: number) => hostTensor([], [value], 'int32');

describe('cache writes', () => {
  test('append replaces consecutive rows', () => {
    fc.assert(
      fc.property(LEAD, SIZE, SIZE, SIZE, SIZE, NUMBERS, fc.integer(), (lead, t, before, rest, d, dtype, seed) => {
        const random = randomSource(seed);
        const inputs = [
          randomTensor(random, [...lead, before + t + rest, d], dtype),
          randomTensor(random, [...lead, t, d], dtype),
          scalar(before),
        ];
        conform('cache-append', inputs, {}, { layout: randomLayout(random) });
      }),
      { numRuns: 120 },
    );
  });

  test('update replaces the rows that are named, the last write staying', () => {
    fc.assert(
      fc.property(LEAD, fc.integer({ min: 1, max: 9 }), SIZE, SIZE, NUMBERS, fc.integer(), (lead, s, t, d, dtype, seed) => {
        const random = randomSource(seed);
        const rows = Math.min(s, t);
        const inputs = [
          randomTensor(random, [...lead, s, d], dtype),
          randomTensor(random, [...lead, rows, d], dtype),
          randomIndices(random, [rows], s),
        ];
        conform('cache-update', inputs, {}, { layout: randomLayout(random) });
      }),
      { numRuns: 120 },
    );
  });

  test('long rows go by memory.copy', () => {
    const random = randomSource(1);
    conform('cache-append', [randomTensor(random, [2, 6, 700]), randomTensor(random, [2, 2, 700]), scalar(3)]);
  });

  test('rows out of range end in OUT_OF_RANGE and nothing is written', () => {
    const random = randomSource(2);
    const [cache, update] = [randomTensor(random, [2, 6, 5]), randomTensor(random, [2, 2, 5])];
    for (const position of [-1, 5, 6, 2 ** 31 - 1, -(2 ** 31)]) {
      expect(statuses('cache-append', [cache, update, scalar(position)])).toEqual(new Array(5).fill(STATUS.OUT_OF_RANGE));
    }
    for (const positions of [
      [0, 6],
      [-1, 2],
      [2 ** 31 - 1, 0],
    ]) {
      const inputs = [cache, update, hostTensor([2], positions, 'int32')];
      expect(statuses('cache-update', inputs)).toEqual(new Array(5).fill(STATUS.OUT_OF_RANGE));
      const placed = inputs.map(dense);
      const call = lower(
        'cache-update',
        placed.map(({ view }) => view),
        [dense(cache).view],
        {},
      );
      const { outputs } = execute(call, placed, [60], 2);
      expect(new Set(outputs[0])).toEqual(new Set([0x7fc0beef]));
    }
  });

  test('the output may be the cache itself: only the new rows are written', () => {
    // In place by hand, since the runner keeps inputs and outputs apart: cache at 0, update behind it.
    const random = randomSource(3);
    const cache = randomTensor(random, [2, 4, 3]);
    const update = randomTensor(random, [2, 1, 3]);
    const call = lower('cache-append', [dense(cache).view, dense(update).view, dense(scalar(2)).view], [dense(cache).view], {});
    const joined = { ...call, pointers: [{ output: 0 }, { input: 1 }, { input: 2 }, { output: 0 }] };
    const inputs = [dense(cache), dense(update), dense(scalar(2))];
    const { status, outputs } = execute(joined, inputs, [24], 3);
    expect(status).toBe(0);
    const garbage = 0x7fc0beef;
    const written = dense(update).storage;
    const expected = Array.from({ length: 24 }, (_, i) =>
      Math.floor(i / 3) % 4 === 2 ? written[Math.floor(i / 12) * 3 + (i % 3)] : garbage,
    );
    expect([...(outputs[0] as Int32Array)]).toEqual(expected);
    expect(kernels['cache_append']).toBeTypeOf('function');
  });
});

describe('prefix-match', () => {
  test('finds the first difference at every place', () => {
    const base = Array.from({ length: 19 }, (_, i) => i * 3);
    for (let n = 0; n <= 19; n++) {
      for (const at of [0, 1, 3, 4, 7, 8, 18, 19]) {
        const other = base.map((value, i) => (i === at ? -1 : value));
        conform('prefix-match', [hostTensor([n], base.slice(0, n), 'int32'), hostTensor([19], other, 'int32')]);
      }
    }
  });
});

describe('compression', () => {
  test('gives the bytes and scales of the reference, and back', () => {
    fc.assert(
      fc.property(LEAD, fc.integer({ min: 0, max: 21 }), fc.boolean(), fc.integer(), (lead, d, strided, seed) => {
        const random = randomSource(seed);
        const x = randomTensor(random, [...lead, d]);
        conform('cache-compress', [x], {}, strided ? { layout: randomLayout(random) } : {});
        const packed = randomTensor(random, [...lead, Math.ceil(d / 4)], 'int32');
        for (let i = 0; i < packed.data.length; i++) packed.data[i] = Math.floor(random() * 2 ** 32) | 0;
        conform('cache-decompress', [packed, randomTensor(random, lead)], { size: d });
      }),
      { numRuns: 150 },
    );
  });

  test('keeps to the rule for zeros, NaN, infinities, denormals and halves', () => {
    const values = [
      0,
      0,
      0,
      0,
      0,
      Number.NaN,
      1,
      2,
      3,
      4,
      Number.POSITIVE_INFINITY,
      1,
      -1,
      0,
      5,
      1e-45,
      2e-45,
      0,
      -1e-45,
      0,
      127,
      0.5,
      1.5,
      -2.5,
      -126.5,
    ];
    conform('cache-compress', [hostTensor([5, 5], values)]);
  });
});

describe('cache-evict', () => {
  test('keeps the first and the last rows', () => {
    fc.assert(
      fc.property(LEAD, SIZE, SIZE, SIZE, SIZE, NUMBERS, fc.integer(), (lead, sinks, between, window, d, dtype, seed) => {
        conform('cache-evict', [randomTensor(randomSource(seed), [...lead, sinks + between + window, d], dtype)], { sinks, window });
      }),
      { numRuns: 100 },
    );
  });
});
