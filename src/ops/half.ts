import type { HalfType } from './dtype.ts';

/**
 * The bits of float16 and bfloat16: from float32, rounded to the nearest (halves to even), and back, exactly. What is past
 * the range becomes an infinity, what is below it a subnormal number or 0 of the same sign. A NaN keeps its sign and the
 * highest bits of its payload, and is made quiet.
 */

const FLOAT = new Float32Array(1);
const BITS = new Uint32Array(FLOAT.buffer);

const EXPONENT = 0x7f800000;
/** Least float32 that rounds to an infinity in float16: half a step above 65504. */
const OVERFLOW = 0x477ff000;
/** Least normal float16, 2^-14, as a float32. */
const NORMAL = 0x38800000;

/** A number, taken as float32 first, as the bits of a float16. */
export function toFloat16Bits(value: number): number {
  FLOAT[0] = value;
  const word = BITS[0] as number;
  const sign = (word >>> 16) & 0x8000;
  const magnitude = word & 0x7fffffff;
  if (magnitude > EXPONENT) return sign | 0x7e00 | ((magnitude >>> 13) & 0x1ff);
  if (magnitude >= OVERFLOW) return sign | 0x7c00;
  // The exponents differ by 112; a carry out of the significand goes on into the exponent, as it should.
  if (magnitude >= NORMAL) return sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >>> 13) & 1)) >>> 13);
  // In steps of 2^-24 the significand, its hidden bit set, is to be shifted by this much; from 25 bits on nothing is left.
  const shift = 126 - (magnitude >>> 23);
  if (shift > 24) return sign;
  const significand = (magnitude & 0x7fffff) | 0x800000;
  return sign | ((significand + 2 ** (shift - 1) - 1 + ((significand >>> shift) & 1)) >>> shift);
}

/** The number whose float16 bits these are. */
export function fromFloat16Bits(bits: number): number {
  const exponent = (bits >>> 10) & 0x1f;
  const significand = bits & 0x3ff;
  if (exponent === 0) {
    const value = significand * 2 ** -24;
    return (bits & 0x8000) !== 0 ? -value : value;
  }
  BITS[0] = ((bits & 0x8000) << 16) | (exponent === 31 ? EXPONENT : (exponent + 112) << 23) | (significand << 13);
  return FLOAT[0] as number;
}

/** A number, taken as float32 first, as the bits of a bfloat16. */
export function toBfloat16Bits(value: number): number {
  FLOAT[0] = value;
  const word = BITS[0] as number;
  if ((word & 0x7fffffff) > EXPONENT) return (word >>> 16) | 0x40;
  return (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
}

/** The number whose bfloat16 bits these are. */
export function fromBfloat16Bits(bits: number): number {
  BITS[0] = bits << 16;
  return FLOAT[0] as number;
}

export function toHalfBits(value: number, dtype: HalfType): number {
  return dtype === 'float16' ? toFloat16Bits(value) : toBfloat16Bits(value);
}

export function fromHalfBits(bits: number, dtype: HalfType): number {
  return dtype === 'float16' ? fromFloat16Bits(bits) : fromBfloat16Bits(bits);
}

/** The nearest value that a half has. */
export function roundToHalf(value: number, dtype: HalfType): number {
  return fromHalfBits(toHalfBits(value, dtype), dtype);
}
