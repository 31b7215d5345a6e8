import type { FunctionBuilder } from '../encoder/function-builder.ts';
import type { FunctionDefinition } from '../encoder/module-builder.ts';
import { F64, I32, I64, OP, SIMD, V128 } from '../encoder/opcodes.ts';

/**
 * The rarer functions. They are computed in two float64 lanes and rounded to float32 at the end, so that
 * plain series and textbook formulas are exact to the last place; each is a function of the module, added
 * only where it is used. `...Half` functions take and give two float64 lanes.
 */

const SQRT_HALF = Math.SQRT1_2;
const SIGN = -0;

function polynomial64(f: FunctionBuilder, x: number, coefficients: readonly number[]): void {
  f.splat64(coefficients[0] as number);
  for (let i = 1; i < coefficients.length; i++)
    f.get(x)
      .simd(SIMD.f64x2Mul)
      .splat64(coefficients[i] as number)
      .simd(SIMD.f64x2Add);
}

function half(arity: 1 | 2, emit: (f: FunctionBuilder) => void): FunctionDefinition {
  return { params: arity === 1 ? [V128] : [V128, V128], results: [V128], emit };
}

/** float32x4 function from the float64x2 function of the same arity. */
function widened(arity: 1 | 2, definition: FunctionDefinition): FunctionDefinition {
  return {
    params: definition.params,
    results: [V128],
    emit(f) {
      for (let i = 0; i < arity; i++) f.get(i).simd(SIMD.f64x2PromoteLowF32x4);
      f.call(definition).simd(SIMD.f32x4DemoteF64x2Zero);
      for (let i = 0; i < arity; i++) f.get(i).get(i).shuffle(2, 3, 2, 3).simd(SIMD.f64x2PromoteLowF32x4);
      f.call(definition).simd(SIMD.f32x4DemoteF64x2Zero).shuffle(0, 1, 4, 5);
    },
  };
}

const unary = (emit: (f: FunctionBuilder) => void) => widened(1, half(1, emit));

function factorials(from: number, to: number): number[] {
  const terms: number[] = [];
  for (let n = 0, factorial = 1; n <= to; n++) {
    if (n > 0) factorial *= n;
    if (n >= from) terms.push(1 / factorial);
  }
  return terms.reverse();
}

/** e^r 2^n for |r| <= ln2/2 and |n| < 1023. */
function scaledExp(f: FunctionBuilder, r: number, n: number): void {
  polynomial64(f, r, factorials(0, 9));
  f.get(n).simd(SIMD.i32x4TruncSatF64x2SZero).simd(SIMD.i64x2ExtendLowI32x4S).i32(52).simd(SIMD.i64x2Shl);
  f.splat64(1).simd(SIMD.i64x2Add).simd(SIMD.f64x2Mul);
}

const EXP_HALF = half(1, (f) => {
  const x = f.vector();
  const n = f.vector();
  f.get(0).splat64(700).simd(SIMD.f64x2Pmin).splat64(-700).simd(SIMD.f64x2Pmax).tee(x);
  f.splat64(Math.LOG2E).simd(SIMD.f64x2Mul).simd(SIMD.f64x2Nearest).set(n);
  f.get(x).get(n).splat64(Math.LN2).simd(SIMD.f64x2Mul).simd(SIMD.f64x2Sub).set(x);
  scaledExp(f, x, n);
});

const EXP2_HALF = half(1, (f) => {
  const x = f.vector();
  const n = f.vector();
  f.get(0).splat64(1000).simd(SIMD.f64x2Pmin).splat64(-1000).simd(SIMD.f64x2Pmax).tee(x).simd(SIMD.f64x2Nearest).set(n);
  f.get(x).get(n).simd(SIMD.f64x2Sub).splat64(Math.LN2).simd(SIMD.f64x2Mul).set(x);
  scaledExp(f, x, n);
});

/** Natural logarithm; the same reduction and special values as in float32. */
const LOG_HALF = half(1, (f) => {
  const k = f.vector();
  const m = f.vector();
  const s = f.vector();
  const z = f.vector();
  f.get(0).splat64(SQRT_HALF).simd(SIMD.i64x2Sub).i32(52).simd(SIMD.i64x2ShrS).set(k);
  f.get(0).get(k).i32(52).simd(SIMD.i64x2Shl).simd(SIMD.i64x2Sub).splat64(1).simd(SIMD.f64x2Sub).set(m);
  f.get(k).get(k).shuffle(0, 2, 0, 2).simd(SIMD.f64x2ConvertLowI32x4S).splat64(Math.LN2).simd(SIMD.f64x2Mul);
  f.get(m).get(m).splat64(2).simd(SIMD.f64x2Add).simd(SIMD.f64x2Div).tee(s).get(s).simd(SIMD.f64x2Mul).set(z);
  f.get(m).get(s).get(m);
  polynomial64(f, z, [2 / 15, 2 / 13, 2 / 11, 2 / 9, 2 / 7, 2 / 5, 2 / 3]);
  f.get(z).simd(SIMD.f64x2Mul).simd(SIMD.f64x2Sub).simd(SIMD.f64x2Mul).simd(SIMD.f64x2Sub).simd(SIMD.f64x2Add);
  f.splat64(Number.NEGATIVE_INFINITY).get(0).simd(SIMD.f64x2Sqrt).get(0).splat64(0).simd(SIMD.f64x2Eq).simd(SIMD.bitselect);
  f.get(0).splat64(0).simd(SIMD.f64x2Gt).get(0).splat64(Number.POSITIVE_INFINITY).simd(SIMD.f64x2Lt).simd(SIMD.and);
  f.simd(SIMD.bitselect);
});

function withSignOf64(f: FunctionBuilder, x: number): void {
  f.get(x).splat64(SIGN).simd(SIMD.and).simd(SIMD.or);
}

/** Arc tangent, by 1/x above 1 and (x-1)/(x+1) above tan(pi/8), then the series. */
const ATAN_HALF = half(1, (f) => {
  const x = f.vector();
  const z = f.vector();
  const inverted = f.vector();
  const shifted = f.vector();
  const series: number[] = [];
  for (let n = 12; n >= 0; n--) series.push((n % 2 === 0 ? 1 : -1) / (2 * n + 1));
  f.get(0).simd(SIMD.f64x2Abs).tee(x).splat64(1).simd(SIMD.f64x2Gt).set(inverted);
  f.splat64(1).get(x).simd(SIMD.f64x2Div).get(x).get(inverted).simd(SIMD.bitselect).tee(x);
  f.splat64(Math.SQRT2 - 1)
    .simd(SIMD.f64x2Gt)
    .set(shifted);
  f.get(x).splat64(1).simd(SIMD.f64x2Sub).get(x).splat64(1).simd(SIMD.f64x2Add).simd(SIMD.f64x2Div);
  f.get(x).get(shifted).simd(SIMD.bitselect).tee(x).get(x).simd(SIMD.f64x2Mul).set(z);
  polynomial64(f, z, series);
  f.get(x)
    .simd(SIMD.f64x2Mul)
    .get(shifted)
    .splat64(Math.PI / 4)
    .simd(SIMD.and)
    .simd(SIMD.f64x2Add)
    .set(x);
  f.splat64(Math.PI / 2)
    .get(x)
    .simd(SIMD.f64x2Sub)
    .get(x)
    .get(inverted)
    .simd(SIMD.bitselect);
  withSignOf64(f, 0);
});

export const ATAN = widened(1, ATAN_HALF);

/** atan2(y, x): arc tangent of |y|/|x|, reflected where x has its sign bit set, with the sign of y. */
export const ATAN2 = widened(
  2,
  half(2, (f) => {
    const y = f.vector();
    const x = f.vector();
    f.get(0).simd(SIMD.f64x2Abs).set(y);
    f.get(1).simd(SIMD.f64x2Abs).set(x);
    // Equal magnitudes, which may be infinities or zeros, do not divide: 1, or 0 for zeros.
    f.splat64(1).get(y).splat64(0).simd(SIMD.f64x2Ne).simd(SIMD.and);
    f.get(y).get(x).simd(SIMD.f64x2Div).get(y).get(x).simd(SIMD.f64x2Eq).simd(SIMD.bitselect).call(ATAN_HALF).set(y);
    f.splat64(Math.PI).get(y).simd(SIMD.f64x2Sub).get(y).get(1).i32(63).simd(SIMD.i64x2ShrS).simd(SIMD.bitselect);
    withSignOf64(f, 0);
  }),
);

export const ASIN = unary((f) => {
  f.get(0).splat64(1).get(0).simd(SIMD.f64x2Sub).splat64(1).get(0).simd(SIMD.f64x2Add).simd(SIMD.f64x2Mul).simd(SIMD.f64x2Sqrt);
  f.simd(SIMD.f64x2Div).call(ATAN_HALF);
});

/** 2 atan(sqrt((1 - x) / (1 + x))), which is precise at both ends. */
export const ACOS = unary((f) => {
  f.splat64(1).get(0).simd(SIMD.f64x2Sub).splat64(1).get(0).simd(SIMD.f64x2Add).simd(SIMD.f64x2Div).simd(SIMD.f64x2Sqrt);
  f.call(ATAN_HALF).splat64(2).simd(SIMD.f64x2Mul);
});

/** Selects, for |x| below `limit`, x times a polynomial in x^2, else the value on the stack with the sign of x. */
function nearZero(f: FunctionBuilder, limit: number, coefficients: readonly number[]): void {
  const z = f.vector();
  withSignOf64(f, 0);
  const far = f.vector();
  f.set(far);
  f.get(0).get(0).simd(SIMD.f64x2Mul).set(z);
  polynomial64(f, z, coefficients);
  f.get(0).simd(SIMD.f64x2Mul).get(far).get(0).simd(SIMD.f64x2Abs).splat64(limit).simd(SIMD.f64x2Lt).simd(SIMD.bitselect);
}

export const SINH = unary((f) => {
  const e = f.vector();
  f.get(0).simd(SIMD.f64x2Abs).call(EXP_HALF).tee(e);
  f.splat64(1).get(e).simd(SIMD.f64x2Div).simd(SIMD.f64x2Sub).splat64(0.5).simd(SIMD.f64x2Mul);
  nearZero(f, 0.3, [1 / 5040, 1 / 120, 1 / 6, 1]);
});

export const COSH = unary((f) => {
  const e = f.vector();
  f.get(0).simd(SIMD.f64x2Abs).call(EXP_HALF).tee(e);
  f.splat64(1).get(e).simd(SIMD.f64x2Div).simd(SIMD.f64x2Add).splat64(0.5).simd(SIMD.f64x2Mul);
});

export const ASINH = unary((f) => {
  const x = f.vector();
  f.get(0).simd(SIMD.f64x2Abs).tee(x).get(x).get(x).simd(SIMD.f64x2Mul).splat64(1).simd(SIMD.f64x2Add).simd(SIMD.f64x2Sqrt);
  f.simd(SIMD.f64x2Add).call(LOG_HALF);
  nearZero(f, 0.1, [35 / 1152, -5 / 112, 3 / 40, -1 / 6, 1]);
});

/** log(x + sqrt(x - 1) sqrt(x + 1)); with one root of the product, a large negative x would not be NaN. */
export const ACOSH = unary((f) => {
  f.get(0).get(0).splat64(1).simd(SIMD.f64x2Sub).simd(SIMD.f64x2Sqrt);
  f.get(0).splat64(1).simd(SIMD.f64x2Add).simd(SIMD.f64x2Sqrt).simd(SIMD.f64x2Mul).simd(SIMD.f64x2Add).call(LOG_HALF);
});

export const ATANH = unary((f) => {
  const x = f.vector();
  f.get(0).simd(SIMD.f64x2Abs).set(x);
  f.splat64(1).get(x).simd(SIMD.f64x2Add).splat64(1).get(x).simd(SIMD.f64x2Sub).simd(SIMD.f64x2Div).call(LOG_HALF);
  f.splat64(0.5).simd(SIMD.f64x2Mul);
  nearZero(f, 0.1, [1 / 9, 1 / 7, 1 / 5, 1 / 3, 1]);
});

const POW_HALF = half(2, (f) => {
  f.get(1).get(0).call(LOG_HALF).splat64(Math.LOG2E).simd(SIMD.f64x2Mul).simd(SIMD.f64x2Mul).call(EXP2_HALF);
});
const POW_OF_POSITIVE = widened(2, POW_HALF);

/** a^b with the special values of ECMAScript's Math.pow (1^infinity is NaN, where C has 1). */
export const POW: FunctionDefinition = {
  params: [V128, V128],
  results: [V128],
  emit(f) {
    const a = 0;
    const b = 1;
    const result = f.vector();
    const integer = f.vector();
    f.get(a).simd(SIMD.f32x4Abs).get(b).call(POW_OF_POSITIVE).set(result);
    f.get(b).simd(SIMD.f32x4Trunc).get(b).simd(SIMD.f32x4Eq).set(integer);
    // An odd power has the sign of a: b is an integer and b/2 is not.
    f.get(b).splat(0.5).simd(SIMD.f32x4Mul).simd(SIMD.f32x4Trunc).splat(2).simd(SIMD.f32x4Mul).get(b).simd(SIMD.f32x4Ne);
    f.get(integer).simd(SIMD.and).get(a).simd(SIMD.and).splatBits(0x80000000).simd(SIMD.and).get(result).simd(SIMD.xor).set(result);
    // NaN where -infinity < a < 0 and b is not an integer, and where a is NaN.
    f.splatBits(0x7fc00000).get(result);
    f.get(a).splat(0).simd(SIMD.f32x4Lt).get(a).splat(Number.NEGATIVE_INFINITY).simd(SIMD.f32x4Gt).simd(SIMD.and);
    f.get(integer).simd(SIMD.andnot).get(a).get(a).simd(SIMD.f32x4Ne).simd(SIMD.or).simd(SIMD.bitselect).set(result);
    f.splat(1).get(result).get(b).splat(0).simd(SIMD.f32x4Eq).simd(SIMD.bitselect);
  },
};

/**
 * a - b floor(a / b) exactly, with the sign of b. Quotients of more than 26 bits are taken off in steps of
 * 26 bits, so that every product and difference is exact in float64.
 */
const MOD_HALF = half(2, (f) => {
  const rest = f.vector();
  const quotient = f.vector();
  f.get(0).set(rest);
  f.loop();
  f.get(rest).get(rest).get(1).simd(SIMD.f64x2Div).simd(SIMD.f64x2Trunc).tee(quotient);
  f.i64(-(1n << 27n))
    .simd(SIMD.i64x2Splat)
    .simd(SIMD.and)
    .get(1)
    .simd(SIMD.f64x2Mul)
    .simd(SIMD.f64x2Sub)
    .set(rest);
  f.get(quotient)
    .simd(SIMD.f64x2Abs)
    .tee(quotient)
    .splat64(2 ** 25)
    .simd(SIMD.f64x2Gt);
  f.get(quotient).splat64(Number.POSITIVE_INFINITY).simd(SIMD.f64x2Lt).simd(SIMD.and).simd(SIMD.anyTrue).brIf(0).op(OP.end);
  // A finite a and an infinite b: 0 times infinity is not what was meant; a is the remainder.
  f.get(0).get(rest);
  f.get(1).simd(SIMD.f64x2Abs).splat64(Number.POSITIVE_INFINITY).simd(SIMD.f64x2Eq);
  f.get(0).simd(SIMD.f64x2Abs).splat64(Number.POSITIVE_INFINITY).simd(SIMD.f64x2Lt).simd(SIMD.and).simd(SIMD.bitselect).set(rest);
  f.get(rest).get(1).simd(SIMD.f64x2Add).get(rest);
  f.get(rest).get(1).simd(SIMD.xor).i32(63).simd(SIMD.i64x2ShrS).get(rest).splat64(0).simd(SIMD.f64x2Ne).simd(SIMD.and);
  f.simd(SIMD.bitselect);
});
export const MOD = widened(2, MOD_HALF);

/** 2/pi in binary, 32 bits at a time. */
const TWO_OVER_PI = [0xa2f9836en, 0x4e441529n, 0xfc2757d1n, 0xf534ddc0n, 0xdb629599n, 0x3c439041n, 0xfe5163abn];
/** pi/2 in parts: products of the first two with integers below 2^28 are exact. */
const HALF_PI_1 = 1.5707963109016418;
const HALF_PI_2 = 1.5893254712295857e-8;
const HALF_PI_3 = 6.123233995736766e-17;

/** Word `base + i` of 2/pi, where `base` (0 to 3) is in local 0. */
function twoOverPiWord(f: FunctionBuilder, base: number, i: number): void {
  f.i64(TWO_OVER_PI[i + 3] as bigint);
  for (let word = 2; word >= 0; word--)
    f.i64(TWO_OVER_PI[i + word] as bigint)
      .get(base)
      .i32(word)
      .op(OP.i32Ne)
      .op(OP.select);
}

/**
 * x modulo pi/2 for a float32 (given as float64) of at least 2^28: the remainder in [-pi/4, pi/4] and the
 * quadrant, by multiplying the 24-bit mantissa with the four words of 2/pi that matter modulo 4
 * (Payne and Hanek, SIGNUM Newsletter 18, 1983).
 */
const REDUCE_LARGE: FunctionDefinition = {
  params: [F64],
  results: [F64, I32],
  emit(f) {
    const bits = f.local(I64);
    const mantissa = f.local(I64);
    const middle = f.local(I64);
    const low = f.local(I64);
    const window = f.local(I64);
    const quadrant = f.local(I64);
    const exponent = f.i32Local();
    const base = f.i32Local();
    const shift = f.local(I64);
    f.get(0).op(OP.i64ReinterpretF64).set(bits);
    f.get(bits)
      .i64((1n << 52n) - 1n)
      .op(OP.i64And)
      .i64(1n << 52n)
      .op(OP.i64Or)
      .i64(29n)
      .op(OP.i64ShrU)
      .set(mantissa);
    f.get(bits)
      .i64(52n)
      .op(OP.i64ShrU)
      .i64(0x7ffn)
      .op(OP.i64And)
      .op(OP.i32WrapI64)
      .i32(1023 + 23)
      .op(OP.i32Sub)
      .set(exponent);
    f.get(exponent).i32(2).op(OP.i32Sub).i32(5).op(OP.i32ShrS).set(base);
    f.get(mantissa);
    twoOverPiWord(f, base, 2);
    f.op(OP.i64Mul).get(mantissa);
    twoOverPiWord(f, base, 3);
    f.op(OP.i64Mul).i64(32n).op(OP.i64ShrU).op(OP.i64Add).set(low);
    f.get(mantissa);
    twoOverPiWord(f, base, 1);
    f.op(OP.i64Mul).get(low).i64(32n).op(OP.i64ShrU).op(OP.i64Add).set(middle);
    // The product is high 2^64 + rest in units of 2^(e - 32 base - 96); bits 2^1 and 2^0 go to the top of the window.
    f.get(exponent)
      .get(base)
      .i32(5)
      .op(OP.i32Shl)
      .op(OP.i32Sub)
      .i32(32)
      .op(OP.i32Sub)
      .i32(62)
      .op(OP.i32Add)
      .op(OP.i64ExtendI32U)
      .set(shift);
    f.get(mantissa);
    twoOverPiWord(f, base, 0);
    f.op(OP.i64Mul).get(middle).i64(32n).op(OP.i64ShrU).op(OP.i64Add).get(shift).op(OP.i64Shl);
    f.get(middle).i64(32n).op(OP.i64Shl).get(low).i64(0xffffffffn).op(OP.i64And).op(OP.i64Or);
    f.i64(64n).get(shift).op(OP.i64Sub).op(OP.i64ShrU).op(OP.i64Or).set(window);
    f.get(window)
      .i64(1n << 61n)
      .op(OP.i64Add)
      .i64(62n)
      .op(OP.i64ShrU)
      .set(quadrant);
    f.get(window)
      .get(quadrant)
      .i64(62n)
      .op(OP.i64Shl)
      .op(OP.i64Sub)
      .op(OP.f64ConvertI64S)
      .f64((Math.PI / 2) * 2 ** -62)
      .op(OP.f64Mul);
    f.get(quadrant).op(OP.i32WrapI64);
  },
};

/** x = quadrant pi/2 + r: the remainder r, and the quadrant as two int64. */
const REDUCE_HALF: FunctionDefinition = {
  params: [V128],
  results: [V128, V128],
  emit(f) {
    const n = f.vector();
    const r = f.vector();
    const q = f.vector();
    const remainder = f.local(F64);
    const quadrant = f.i32Local();
    f.get(0)
      .splat64(2 / Math.PI)
      .simd(SIMD.f64x2Mul)
      .simd(SIMD.f64x2Nearest)
      .tee(n);
    f.simd(SIMD.i32x4TruncSatF64x2SZero).simd(SIMD.i64x2ExtendLowI32x4S).set(q);
    f.get(0);
    for (const part of [HALF_PI_1, HALF_PI_2, HALF_PI_3]) f.get(n).splat64(part).simd(SIMD.f64x2Mul).simd(SIMD.f64x2Sub);
    f.set(r);
    f.get(0)
      .simd(SIMD.f64x2Abs)
      .tee(n)
      .splat64(2 ** 28)
      .simd(SIMD.f64x2Ge)
      .simd(SIMD.anyTrue)
      .if();
    for (let lane = 0; lane < 2; lane++) {
      f.get(n)
        .lane(SIMD.f64x2ExtractLane, lane)
        .f64(2 ** 28)
        .op(OP.f64Ge);
      f.get(n).lane(SIMD.f64x2ExtractLane, lane).f64(Number.POSITIVE_INFINITY).op(OP.f64Lt).op(OP.i32And).if();
      f.get(n).lane(SIMD.f64x2ExtractLane, lane).call(REDUCE_LARGE).set(quadrant).set(remainder);
      // Both are odd functions of x.
      f.get(0).lane(SIMD.f64x2ExtractLane, lane).f64(0).op(OP.f64Lt).if();
      f.get(remainder).op(OP.f64Neg).set(remainder).i32(0).get(quadrant).op(OP.i32Sub).set(quadrant).op(OP.end);
      f.get(r).get(remainder).lane(SIMD.f64x2ReplaceLane, lane).set(r);
      f.get(q).get(quadrant).op(OP.i64ExtendI32S).lane(SIMD.i64x2ReplaceLane, lane).set(q);
      f.op(OP.end);
    }
    f.op(OP.end).get(r).get(q);
  },
};

const SIN_SERIES = [-1 / 39916800, 1 / 362880, -1 / 5040, 1 / 120, -1 / 6, 1];
const COS_SERIES = [1 / 479001600, -1 / 3628800, 1 / 40320, -1 / 720, 1 / 24, -1 / 2, 1];

/** Reduces the argument and sets the sine and cosine of the remainder; leaves the mask of odd quadrants on the stack. */
function sineAndCosine(f: FunctionBuilder, sine: number, cosine: number, q: number): void {
  const z = f.vector();
  f.get(0).call(REDUCE_HALF).set(q).tee(sine).get(sine).simd(SIMD.f64x2Mul).set(z);
  polynomial64(f, z, COS_SERIES);
  f.set(cosine);
  polynomial64(f, z, SIN_SERIES);
  f.get(sine).simd(SIMD.f64x2Mul).set(sine);
}

function oddQuadrant(f: FunctionBuilder, q: number): void {
  f.get(q).i32(63).simd(SIMD.i64x2Shl).i32(63).simd(SIMD.i64x2ShrS);
}

/** sin(x + turns pi/2). */
function shiftedSine(turns: 0 | 1): FunctionDefinition {
  return unary((f) => {
    const sine = f.vector();
    const cosine = f.vector();
    const q = f.vector();
    sineAndCosine(f, sine, cosine, q);
    if (turns === 1) f.get(q).i64(1n).simd(SIMD.i64x2Splat).simd(SIMD.i64x2Add).set(q);
    f.get(cosine).get(sine);
    oddQuadrant(f, q);
    f.simd(SIMD.bitselect).get(q).i32(62).simd(SIMD.i64x2Shl).splat64(SIGN).simd(SIMD.and).simd(SIMD.xor);
  });
}

export const SIN = shiftedSine(0);
export const COS = shiftedSine(1);
export const TAN = unary((f) => {
  const sine = f.vector();
  const cosine = f.vector();
  const q = f.vector();
  sineAndCosine(f, sine, cosine, q);
  f.get(cosine).simd(SIMD.f64x2Neg).get(sine).simd(SIMD.f64x2Div).get(sine).get(cosine).simd(SIMD.f64x2Div);
  oddQuadrant(f, q);
  f.simd(SIMD.bitselect);
});
