/** What float16 and bfloat16 are, by the formulas of their definition in real arithmetic; shares nothing with what it tests. */
import type { HalfType } from '../src/ops/dtype.ts';

interface Format {
  /** Stored bits of the significand. */
  readonly significand: number;
  /** The greatest exponent, and the bias. */
  readonly bias: number;
}

const FORMATS: Readonly<Record<HalfType, Format>> = {
  float16: { significand: 10, bias: 15 },
  bfloat16: { significand: 7, bias: 127 },
};

/** The value of 16 bits. */
export function valueOfBits(bits: number, dtype: HalfType): number {
  const { significand, bias } = FORMATS[dtype];
  const sign = bits >= 0x8000 ? -1 : 1;
  const exponent = Math.floor((bits % 0x8000) / 2 ** significand);
  const fraction = bits % 2 ** significand;
  if (exponent === 2 * bias + 1) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  if (exponent === 0) return sign * fraction * 2 ** (1 - bias - significand);
  return sign * (1 + fraction / 2 ** significand) * 2 ** (exponent - bias);
}

/** The nearest value of the format, halves to even; all steps are exact in double. */
export function nearest(x: number, dtype: HalfType): number {
  const { significand, bias } = FORMATS[dtype];
  if (x === 0 || !Number.isFinite(x)) return x;
  let exponent = Math.floor(Math.log2(Math.abs(x)));
  while (2 ** exponent > Math.abs(x)) exponent--;
  while (2 ** (exponent + 1) <= Math.abs(x)) exponent++;
  const step = 2 ** (Math.max(exponent, 1 - bias) - significand);
  const steps = Math.abs(x) / step;
  const below = Math.floor(steps);
  const up = steps - below > 0.5 || (steps - below === 0.5 && below % 2 === 1);
  const rounded = (below + Number(up)) * step;
  return Math.sign(x) * (rounded >= 2 ** (bias + 1) ? Number.POSITIVE_INFINITY : rounded);
}

export const ALL_BITS: readonly number[] = Array.from({ length: 65_536 }, (_, bits) => bits);

/**
 * float32 where rounding turns: half way between each value of the format and the next, the neighbours of that on either
 * side, the value itself, and what is past the greatest.
 */
export function turningPoints(dtype: HalfType): number[] {
  const word = new Float32Array(1);
  const bits = new Uint32Array(word.buffer);
  const points: number[] = [];
  const top = dtype === 'float16' ? 0x7c00 : 0x7f80;
  for (let i = 0; i < top; i++) {
    const low = valueOfBits(i, dtype);
    const next = valueOfBits(i + 1, dtype);
    // Past the greatest value the format would go on with this one.
    const high = Number.isFinite(next) ? next : low + (low - valueOfBits(i - 1, dtype));
    word[0] = (low + high) / 2;
    const middle = bits[0] as number;
    for (const near of [middle - 1, middle, middle + 1]) {
      bits[0] = near;
      if (near >= 0) points.push(word[0], -word[0]);
    }
    points.push(low);
  }
  return [...points, Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 3.4028234663852886e38, 1e-45, -1e-45, -0];
}

/** Equal, signs of zeros included. */
export const same = (a: number, b: number): boolean => Object.is(a, b);
