import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ALL_BITS, nearest, turningPoints, valueOfBits } from '../../test/half-values.ts';
import { fromHalfBits, roundToHalf, toHalfBits } from './half.ts';
import { hostTensor } from './host-tensor.ts';

describe.each(['float16', 'bfloat16'] as const)('%s', (dtype) => {
  it('each of its 65,536 values is read, and is stored as the same bits', () => {
    const wrong = ALL_BITS.filter((bits) => {
      const value = fromHalfBits(bits, dtype);
      if (!Object.is(value, valueOfBits(bits, dtype))) return true;
      // A NaN stays one.
      return Number.isNaN(value) ? !Number.isNaN(fromHalfBits(toHalfBits(value, dtype), dtype)) : toHalfBits(value, dtype) !== bits;
    });
    expect(wrong).toEqual([]);
  });

  it('rounds to the nearest, halves to even, at every place where that turns', () => {
    const wrong = turningPoints(dtype).filter((x) => !Object.is(roundToHalf(x, dtype), nearest(x, dtype)));
    expect(wrong).toEqual([]);
  });

  it('rounds any float32', () => {
    fc.assert(
      fc.property(fc.float(), (x) => Object.is(roundToHalf(x, dtype), nearest(x, dtype))),
      { numRuns: 20_000 },
    );
  });

  it('takes a double by way of float32', () => {
    // Just above a tie of the format, and a tie once it is float32.
    const tie = dtype === 'float16' ? 1 + 2 ** -11 : 1 + 2 ** -8;
    expect(roundToHalf(tie + 2 ** -40, dtype)).toBe(1);
    expect(roundToHalf(tie + 2 ** -23, dtype)).toBeGreaterThan(1);
  });

  it('the bits of a quiet NaN are one', () => {
    for (const nan of [Number.NaN, -Number.NaN]) expect(fromHalfBits(toHalfBits(nan, dtype), dtype)).toBeNaN();
  });

  it('a host tensor has the rounded values, and takes a Uint16Array for the bits', () => {
    expect(Array.from(hostTensor([3], [0.1, 1, -70000], dtype).data)).toEqual([
      nearest(Math.fround(0.1), dtype),
      1,
      nearest(-70000, dtype),
    ]);
    const one = dtype === 'float16' ? 0x3c00 : 0x3f80;
    expect(Array.from(hostTensor([2], Uint16Array.of(one, one | 0x8000), dtype).data)).toEqual([1, -1]);
  });
});
