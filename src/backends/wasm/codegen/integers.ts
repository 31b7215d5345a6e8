import type { FunctionDefinition } from '../encoder/module-builder.ts';
import { OP, SIMD, V128 } from '../encoder/opcodes.ts';

/**
 * Division, remainder and power of four int32 lanes. WebAssembly has no vector division of integers;
 * a float64 quotient of two int32 is never rounded to an integer that it does not equal, so its floor is exact.
 */

const MIN_INT = 0x80000000;

/** floor(a / b); 0 where b is 0; -2^31 / -1 wraps to -2^31. */
export const INT_FLOOR_DIV: FunctionDefinition = {
  params: [V128, V128],
  results: [V128],
  emit(f) {
    for (let half = 0; half < 2; half++) {
      for (let i = 0; i < 2; i++) {
        f.get(i);
        if (half === 1) f.get(i).shuffle(2, 3, 2, 3);
        f.simd(SIMD.f64x2ConvertLowI32x4S);
      }
      f.simd(SIMD.f64x2Div).simd(SIMD.f64x2Floor).simd(SIMD.i32x4TruncSatF64x2SZero);
    }
    f.shuffle(0, 1, 4, 5);
    // The one quotient that saturated, 2^31, is one short of the one that wraps; masks are -1.
    f.get(0).splatBits(MIN_INT).simd(SIMD.i32x4Eq).get(1).splatBits(-1).simd(SIMD.i32x4Eq).simd(SIMD.and).simd(SIMD.i32x4Sub);
    f.get(1).splatBits(0).simd(SIMD.i32x4Ne).simd(SIMD.and);
  },
};

/** a - b floor(a / b); 0 where b is 0. */
export const INT_MOD: FunctionDefinition = {
  params: [V128, V128],
  results: [V128],
  emit(f) {
    f.get(0).get(0).get(1).call(INT_FLOOR_DIV).get(1).simd(SIMD.i32x4Mul).simd(SIMD.i32x4Sub);
    f.get(1).splatBits(0).simd(SIMD.i32x4Ne).simd(SIMD.and);
  },
};

/**
 * a^b modulo 2^32, by squaring. A negative b truncates the fraction towards 0, which leaves only powers
 * of 1 and -1; these depend on the lowest bit of b alone.
 */
export const INT_POW: FunctionDefinition = {
  params: [V128, V128],
  results: [V128],
  emit(f) {
    const base = f.vector();
    const exponent = f.vector();
    const result = f.vector();
    f.get(0).set(base).splatBits(1).set(result);
    f.get(1).splatBits(1).simd(SIMD.and).get(1).get(1).splatBits(0).simd(SIMD.i32x4LtS).simd(SIMD.bitselect).set(exponent);
    f.block().loop();
    f.get(exponent).simd(SIMD.anyTrue).op(OP.i32Eqz).brIf(1);
    f.get(result).get(base).simd(SIMD.i32x4Mul).get(result);
    f.get(exponent).i32(31).simd(SIMD.i32x4Shl).i32(31).simd(SIMD.i32x4ShrS).simd(SIMD.bitselect).set(result);
    f.get(base).get(base).simd(SIMD.i32x4Mul).set(base);
    f.get(exponent).i32(1).simd(SIMD.i32x4ShrU).set(exponent).br(0);
    f.op(OP.end).op(OP.end);
    f.get(result).get(1).splatBits(0).simd(SIMD.i32x4LtS).get(0).simd(SIMD.i32x4Abs).splatBits(1).simd(SIMD.i32x4Ne).simd(SIMD.and);
    f.simd(SIMD.andnot);
  },
};
