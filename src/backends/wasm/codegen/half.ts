import type { HalfType } from '../../../ops/dtype.ts';
import type { FunctionBuilder } from '../encoder/function-builder.ts';
import { SIMD } from '../encoder/opcodes.ts';

/**
 * float16 and bfloat16 as vector instructions: four of them between their bits, one in each lane of 32 bits, and float32.
 * Rounding is to the nearest, halves to even. `ops/half.ts` is the same for one number.
 */

const MAGNITUDE = 0x7fffffff;
const INFINITY = 0x7f800000;
/** As float32: the least that rounds to an infinity in float16, and the least that is normal there. */
const OVERFLOW = 0x477ff000;
const NORMAL = 0x38800000;
/** Added to a number below NORMAL, it leaves no bit below 2^-24. */
const SUBNORMAL_MAGIC = 0.5;

/** About the number of instructions of a rounding. */
export const ROUND_COST = 18;

/** Takes the bits in local `bits`; leaves float32. */
export function fromHalfBits(f: FunctionBuilder, bits: number, dtype: HalfType): void {
  if (dtype === 'bfloat16') {
    f.get(bits).i32(16).simd(SIMD.i32x4Shl);
    return;
  }
  // The exponent is 112 too low where the bits stand, for subnormal numbers as well; infinities and NaN get the highest one.
  const shifted = f.vector();
  f.get(bits).splatBits(0x7fff).simd(SIMD.and).i32(13).simd(SIMD.i32x4Shl).tee(shifted);
  f.splat(2 ** 112).simd(SIMD.f32x4Mul);
  f.get(shifted).splatBits(0x0f7fffff).simd(SIMD.i32x4GtS).splatBits(INFINITY).simd(SIMD.and).simd(SIMD.or);
  f.get(bits).splatBits(0x8000).simd(SIMD.and).i32(16).simd(SIMD.i32x4Shl).simd(SIMD.or);
  f.release(shifted);
}

/** Takes float32 in local `value`; leaves the nearest values of `dtype` as float32. */
export function roundToHalf(f: FunctionBuilder, value: number, dtype: HalfType): void {
  if (dtype === 'bfloat16') {
    roundedBfloat16(f, value);
    f.splatBits(0xffff0000).simd(SIMD.and);
    return;
  }
  const magnitude = f.vector();
  f.get(value).splatBits(MAGNITUDE).simd(SIMD.and).set(magnitude);
  // Past the range: an infinity, or the NaN that it is, made quiet.
  f.get(magnitude).splatBits(INFINITY).simd(SIMD.i32x4MaxS);
  f.get(magnitude).splatBits(INFINITY).simd(SIMD.i32x4GtS).splatBits(0x400000).simd(SIMD.and).simd(SIMD.or);
  roundAt(f, magnitude, 13);
  f.splatBits(0xffffe000).simd(SIMD.and);
  f.get(magnitude)
    .splatBits(OVERFLOW - 1)
    .simd(SIMD.i32x4GtS)
    .simd(SIMD.bitselect);
  f.get(magnitude).splat(SUBNORMAL_MAGIC).simd(SIMD.f32x4Add).splat(SUBNORMAL_MAGIC).simd(SIMD.f32x4Sub);
  selectSubnormal(f, magnitude);
  f.get(value).splatBits(0x80000000).simd(SIMD.and).simd(SIMD.or);
  f.release(magnitude);
}

/** Takes float32 in local `value`; leaves the bits of the nearest values of `dtype`, zeros above them. */
export function toHalfBits(f: FunctionBuilder, value: number, dtype: HalfType): void {
  if (dtype === 'bfloat16') {
    roundedBfloat16(f, value);
    f.i32(16).simd(SIMD.i32x4ShrU);
    return;
  }
  const magnitude = f.vector();
  f.get(value).splatBits(MAGNITUDE).simd(SIMD.and).set(magnitude);
  f.splatBits(0x7c00).get(magnitude).splatBits(INFINITY).simd(SIMD.i32x4GtS).splatBits(0x200).simd(SIMD.and).simd(SIMD.or);
  roundAt(f, magnitude, 13);
  f.splatBits(0x38000000).simd(SIMD.i32x4Sub).i32(13).simd(SIMD.i32x4ShrU);
  f.get(magnitude)
    .splatBits(OVERFLOW - 1)
    .simd(SIMD.i32x4GtS)
    .simd(SIMD.bitselect);
  f.get(magnitude).splat(SUBNORMAL_MAGIC).simd(SIMD.f32x4Add).splat(SUBNORMAL_MAGIC).simd(SIMD.i32x4Sub);
  selectSubnormal(f, magnitude);
  f.get(value).i32(16).simd(SIMD.i32x4ShrU).splatBits(0x8000).simd(SIMD.and).simd(SIMD.or);
  f.release(magnitude);
}

/** Of two vectors on the stack takes the upper one where the magnitude is below that of normal float16. */
function selectSubnormal(f: FunctionBuilder, magnitude: number): void {
  f.get(magnitude)
    .splatBits(NORMAL - 1)
    .simd(SIMD.i32x4GtS)
    .simd(SIMD.bitselect);
}

/** Leaves the bits plus what carries into bit `place` if the bits below are more than half, or half and bit `place` odd. */
function roundAt(f: FunctionBuilder, bits: number, place: number): void {
  f.get(bits).get(bits).i32(place).simd(SIMD.i32x4ShrU).splatBits(1).simd(SIMD.and).simd(SIMD.i32x4Add);
  f.splatBits(2 ** (place - 1) - 1).simd(SIMD.i32x4Add);
}

/** bfloat16 in the upper halves of the lanes, anything below. */
function roundedBfloat16(f: FunctionBuilder, value: number): void {
  f.get(value).splatBits(0x400000).simd(SIMD.or);
  roundAt(f, value, 16);
  f.get(value).get(value).simd(SIMD.f32x4Ne).simd(SIMD.bitselect);
}
