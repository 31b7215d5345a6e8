import type { FunctionBuilder } from '../encoder/function-builder.ts';
import { SIMD } from '../encoder/opcodes.ts';

/**
 * The functions around e^x, log and erf in four float32 lanes, emitted inline. Every emitter takes the
 * local of its argument and leaves the result on the stack. NaN propagates: `pmin(x, c)` and
 * `pmax(x, c)` keep x where x is NaN, and where a result is selected by a comparison, a NaN falls to
 * the side that computes NaN.
 *
 * Errors against exact arithmetic are at most 3 units in the last place, but for gelu (6, in the left
 * tail) and denormal results; `test/wasm-codegen/functions.test.ts` measures them. Coefficients are our own minimax fits (weighted least
 * squares on Chebyshev nodes, reweighted to equal ripple) rounded to float32, or plain series.
 */

/** ln 2 in two parts; the first has 9 bits, so its product with an exponent is exact. */
const LN2_HIGH = 0.693359375;
const LN2_LOW = Math.LN2 - LN2_HIGH;
/** 1.5 x 2^23: adding it to a small number leaves the nearest integer in the low mantissa bits. */
const ROUNDING = 12582912;
const ROUNDING_BITS = 0x4b400000;
const ONE_BITS = 0x3f800000;
const SIGN_BIT = 0x80000000;

/** (e^r - 1 - r) / r^2 on [-ln2/2, ln2/2], highest power first; relative error of e^r 3e-9, of e^r - 1 3e-10. */
const EXP_TAIL = [0.0013950599823147058, 0.008368954062461853, 0.04166620597243309, 0.166665181517601, 0.5];
const EXPM1_TAIL = [0.00019913705182261765, 0.0013941116631031036, 0.00833327416330576, 0.04166635498404503, 0.1666666716337204, 0.5];
/** 2 (z/3 + z^2/5 + ...) / z: the series of the inverse hyperbolic tangent; z at most 0.0295. */
const LOG_SERIES = [2 / 9, 2 / 7, 2 / 5, 2 / 3];
/** erf(x) / x in s = x^2 on [0, 1]; error 2e-9. */
const ERF_NEAR = [
  7.889119297033176e-5, -0.0008020841050893068, 0.005189535208046436, -0.026854444295167923, 0.11283600330352783, -0.3761262595653534,
  1.1283791065216064,
];
/** e^(t^2) erfc(t) in q = 1 / (1 + 0.4 t) for t >= 0 (the form of Abramowitz and Stegun 7.1.26); relative error 4e-8. */
const ERFC_SCALE = 0.4;
const ERFC_TAIL = [
  0.029024416580796242, -0.07650049775838852, -0.05965075641870499, 0.2705231010913849, -0.06428904086351395, 0.2663978040218353,
  0.17817071080207825, 0.2311978042125702, 0.22510099411010742, 2.5483685021754354e-5,
];

/** Horner's scheme in the vector `x`; coefficients from the highest power down. */
export function polynomial(f: FunctionBuilder, x: number, coefficients: readonly number[]): void {
  f.splat(coefficients[0] as number);
  for (let i = 1; i < coefficients.length; i++) {
    f.get(x)
      .simd(SIMD.f32x4Mul)
      .splat(coefficients[i] as number)
      .simd(SIMD.f32x4Add);
  }
}

/** Sets n to the bits of ROUNDING + round(x / ln 2), and r to x - round(x / ln 2) ln 2 - low; x has been clamped. */
function reduceByLn2(f: FunctionBuilder, x: number, low: number, n: number, r: number): void {
  f.get(x).splat(Math.LOG2E).simd(SIMD.f32x4Mul).splat(ROUNDING).simd(SIMD.f32x4Add).tee(n);
  f.splat(ROUNDING).simd(SIMD.f32x4Sub).set(r);
  f.get(x).get(r).splat(LN2_HIGH).simd(SIMD.f32x4Mul).simd(SIMD.f32x4Sub);
  f.get(r).splat(LN2_LOW).simd(SIMD.f32x4Mul).simd(SIMD.f32x4Sub);
  if (low >= 0) f.get(low).simd(SIMD.f32x4Sub);
  f.set(r);
}

/**
 * e^(x - low); `low`, where given, is a small vector that extends the precision of x. Overflow gives
 * infinity, and results below 2^-126 are rounded once: the scale 2^n is applied in two halves.
 */
export function exp(f: FunctionBuilder, x: number, low = -1): void {
  const clamped = f.vector();
  const n = f.vector();
  const r = f.vector();
  f.get(x).splat(89).simd(SIMD.f32x4Pmin).splat(-104).simd(SIMD.f32x4Pmax).set(clamped);
  reduceByLn2(f, clamped, low, n, r);
  polynomial(f, r, EXP_TAIL);
  f.get(r).get(r).simd(SIMD.f32x4Mul).simd(SIMD.f32x4Mul).get(r).simd(SIMD.f32x4Add).splat(1).simd(SIMD.f32x4Add);
  f.get(n).splatBits(ROUNDING_BITS).simd(SIMD.i32x4Sub).tee(n).i32(1).simd(SIMD.i32x4ShrS).tee(r);
  f.i32(23).simd(SIMD.i32x4Shl).splatBits(ONE_BITS).simd(SIMD.i32x4Add).simd(SIMD.f32x4Mul);
  f.get(n).get(r).simd(SIMD.i32x4Sub).i32(23).simd(SIMD.i32x4Shl).splatBits(ONE_BITS).simd(SIMD.i32x4Add).simd(SIMD.f32x4Mul);
  f.release(clamped);
  f.release(n);
  f.release(r);
}

/** e^x - 1, as 2 (2^(n-1) (e^r - 1) + 2^(n-1) - 1/2), which neither cancels near 0 nor overflows early. */
export function expm1(f: FunctionBuilder, x: number): void {
  const clamped = f.vector();
  const n = f.vector();
  const r = f.vector();
  f.get(x).splat(89).simd(SIMD.f32x4Pmin).splat(-30).simd(SIMD.f32x4Pmax).set(clamped);
  reduceByLn2(f, clamped, -1, n, r);
  polynomial(f, r, EXPM1_TAIL);
  f.get(r).get(r).simd(SIMD.f32x4Mul).simd(SIMD.f32x4Mul).get(r).simd(SIMD.f32x4Add);
  f.get(n).i32(23).simd(SIMD.i32x4Shl).splatBits(0x3f000000).simd(SIMD.i32x4Add).tee(n).simd(SIMD.f32x4Mul);
  f.get(n).splat(0.5).simd(SIMD.f32x4Sub).simd(SIMD.f32x4Add).splat(2).simd(SIMD.f32x4Mul);
  f.release(clamped);
  f.release(n);
  f.release(r);
}

/**
 * k ln 2 + log(m) + correction, m = `bits` scaled by a power of two into [sqrt(1/2), sqrt 2); with
 * s = (m-1)/(m+1): log m = f - s (f - R), f = m - 1, R = s^2 (2/3 + 2/5 s^2 + ...). k is lowered by `lower`.
 */
function logOfPositive(f: FunctionBuilder, bits: number, lower: number, correction: number): void {
  const k = f.vector();
  const m = f.vector();
  const s = f.vector();
  const z = f.vector();
  f.get(bits).splatBits(0x3f3504f3).simd(SIMD.i32x4Sub).i32(23).simd(SIMD.i32x4ShrS).set(k);
  f.get(bits).get(k).i32(23).simd(SIMD.i32x4Shl).simd(SIMD.i32x4Sub).splat(1).simd(SIMD.f32x4Sub).set(m);
  f.get(k).simd(SIMD.f32x4ConvertI32x4S);
  if (lower >= 0) f.get(lower).simd(SIMD.f32x4Sub);
  f.set(k);
  f.get(m).get(m).splat(2).simd(SIMD.f32x4Add).simd(SIMD.f32x4Div).tee(s).get(s).simd(SIMD.f32x4Mul).set(z);
  f.get(k).splat(LN2_HIGH).simd(SIMD.f32x4Mul);
  f.get(m).get(s).get(m);
  polynomial(f, z, LOG_SERIES);
  f.get(z).simd(SIMD.f32x4Mul).simd(SIMD.f32x4Sub).simd(SIMD.f32x4Mul);
  f.get(k).splat(LN2_LOW).simd(SIMD.f32x4Mul);
  if (correction >= 0) f.get(correction).simd(SIMD.f32x4Add);
  f.simd(SIMD.f32x4Sub).simd(SIMD.f32x4Sub).simd(SIMD.f32x4Add);
  f.release(k);
  f.release(m);
  f.release(s);
  f.release(z);
}

/** Takes the logarithm on the stack where 0 < x < infinity; else -infinity for 0, NaN below, and x itself for infinity and NaN. */
function withLogSpecials(f: FunctionBuilder, x: number): void {
  f.splat(Number.NEGATIVE_INFINITY).get(x).simd(SIMD.f32x4Sqrt);
  f.get(x).splat(0).simd(SIMD.f32x4Eq).simd(SIMD.bitselect);
  f.get(x).splat(0).simd(SIMD.f32x4Gt).get(x).splat(Number.POSITIVE_INFINITY).simd(SIMD.f32x4Lt).simd(SIMD.and);
  f.simd(SIMD.bitselect);
}

export function log(f: FunctionBuilder, x: number): void {
  const scaled = f.vector();
  const denormal = f.vector();
  f.get(x)
    .splat(2 ** -126)
    .simd(SIMD.f32x4Lt)
    .set(denormal);
  f.get(x)
    .splat(2 ** 23)
    .simd(SIMD.f32x4Mul)
    .get(x)
    .get(denormal)
    .simd(SIMD.bitselect)
    .set(scaled);
  f.get(denormal).splat(23).simd(SIMD.and).set(denormal);
  logOfPositive(f, scaled, denormal, -1);
  withLogSpecials(f, x);
  f.release(scaled);
  f.release(denormal);
}

/** log(1 + x), as log(u) + (x - (u - 1)) / u with u = 1 + x rounded. */
export function log1p(f: FunctionBuilder, x: number): void {
  const u = f.vector();
  const correction = f.vector();
  f.get(x).splat(1).simd(SIMD.f32x4Add).set(u);
  f.get(x).get(u).splat(1).simd(SIMD.f32x4Sub).simd(SIMD.f32x4Sub).get(u).simd(SIMD.f32x4Div).set(correction);
  logOfPositive(f, u, -1, correction);
  withLogSpecials(f, u);
  f.release(u);
  f.release(correction);
}

/** The magnitude on the stack with the sign of x. */
function withSignOf(f: FunctionBuilder, x: number): void {
  f.get(x).splatBits(SIGN_BIT).simd(SIMD.and).simd(SIMD.or);
}

/** tanh |x| = -t / (t + 2) with t = e^(-2|x|) - 1. */
export function tanh(f: FunctionBuilder, x: number): void {
  const t = f.vector();
  f.get(x).simd(SIMD.f32x4Abs).splat(-2).simd(SIMD.f32x4Mul).set(t);
  expm1(f, t);
  f.tee(t).simd(SIMD.f32x4Neg).get(t).splat(2).simd(SIMD.f32x4Add).simd(SIMD.f32x4Div);
  withSignOf(f, x);
  f.release(t);
}

/** Sets z to e^-|x|. */
function expOfMinusAbs(f: FunctionBuilder, x: number, z: number): void {
  f.get(x).splatBits(SIGN_BIT).simd(SIMD.or).set(z);
  exp(f, z);
  f.set(z);
}

/** With z = e^-|x|: 1 / (1 + z) for x >= 0, else z / (1 + z), so that the left tail keeps its precision. */
export function sigmoid(f: FunctionBuilder, x: number): void {
  const z = f.vector();
  const s = f.vector();
  expOfMinusAbs(f, x, z);
  f.splat(1).splat(1).get(z).simd(SIMD.f32x4Add).simd(SIMD.f32x4Div).tee(s);
  f.get(z).get(s).simd(SIMD.f32x4Mul).get(x).splat(0).simd(SIMD.f32x4Ge).simd(SIMD.bitselect);
  f.release(z);
  f.release(s);
}

export function softplus(f: FunctionBuilder, x: number): void {
  const z = f.vector();
  expOfMinusAbs(f, x, z);
  f.get(x).splat(0).simd(SIMD.f32x4Pmax);
  log1p(f, z);
  f.simd(SIMD.f32x4Add);
  f.release(z);
}

export function silu(f: FunctionBuilder, x: number): void {
  f.get(x);
  sigmoid(f, x);
  f.simd(SIMD.f32x4Mul);
}

/** Multiplies the e^(-t^2) on the stack by the polynomial of erfc; t >= 0. */
function erfcTail(f: FunctionBuilder, t: number): void {
  const q = f.vector();
  f.splat(1).get(t).splat(ERFC_SCALE).simd(SIMD.f32x4Mul).splat(1).simd(SIMD.f32x4Add).simd(SIMD.f32x4Div).set(q);
  polynomial(f, q, ERFC_TAIL);
  f.simd(SIMD.f32x4Mul);
  f.release(q);
}

export function erf(f: FunctionBuilder, x: number): void {
  const t = f.vector();
  const s = f.vector();
  f.get(x).simd(SIMD.f32x4Abs).set(t);
  f.get(x).get(x).simd(SIMD.f32x4Mul).set(s);
  polynomial(f, s, ERF_NEAR);
  f.get(x).simd(SIMD.f32x4Mul);
  f.get(s).simd(SIMD.f32x4Neg).set(s);
  f.splat(1);
  exp(f, s);
  erfcTail(f, t);
  f.simd(SIMD.f32x4Sub);
  withSignOf(f, x);
  f.get(t).splat(1).simd(SIMD.f32x4Lt).simd(SIMD.bitselect);
  f.release(t);
  f.release(s);
}

/** x (1 - h) for x >= 0, else x h, with h = erfc(|x| / sqrt 2) / 2. x^2 is split, for the precision of the left tail. */
export function gelu(f: FunctionBuilder, x: number): void {
  const t = f.vector();
  const high = f.vector();
  const low = f.vector();
  // Beyond 16 h is 0; the clamp keeps infinity - infinity out of the split.
  f.get(x).simd(SIMD.f32x4Abs).splat(16).simd(SIMD.f32x4Pmin).tee(t);
  f.splatBits(0xfffff000).simd(SIMD.and).set(high);
  f.get(t).get(high).simd(SIMD.f32x4Sub).get(t).get(high).simd(SIMD.f32x4Add).simd(SIMD.f32x4Mul).splat(0.5).simd(SIMD.f32x4Mul).set(low);
  f.get(high).get(high).simd(SIMD.f32x4Mul).splat(-0.5).simd(SIMD.f32x4Mul).set(high);
  f.get(t).splat(Math.SQRT1_2).simd(SIMD.f32x4Mul).set(t);
  exp(f, high, low);
  erfcTail(f, t);
  f.splat(0.5).simd(SIMD.f32x4Mul).set(t);
  f.get(x).splat(1).get(t).simd(SIMD.f32x4Sub).get(t).get(x).splat(0).simd(SIMD.f32x4Ge).simd(SIMD.bitselect).simd(SIMD.f32x4Mul);
  f.release(t);
  f.release(high);
  f.release(low);
}

/** x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which is the tanh form exactly. */
export function geluTanh(f: FunctionBuilder, x: number): void {
  const u = f.vector();
  const factor = 2 * Math.sqrt(2 / Math.PI);
  f.get(x)
    .get(x)
    .simd(SIMD.f32x4Mul)
    .splat(0.044715 * factor)
    .simd(SIMD.f32x4Mul)
    .splat(factor)
    .simd(SIMD.f32x4Add);
  f.get(x).simd(SIMD.f32x4Mul).set(u);
  f.get(x);
  sigmoid(f, u);
  f.simd(SIMD.f32x4Mul);
  f.release(u);
}

/** scale x for x >= 0, else scale alpha (e^x - 1). */
export function elu(f: FunctionBuilder, x: number, scale: number, alpha: number): void {
  f.get(x);
  if (scale !== 1) f.splat(scale).simd(SIMD.f32x4Mul);
  expm1(f, x);
  if (scale * alpha !== 1) f.splat(scale * alpha).simd(SIMD.f32x4Mul);
  f.get(x).splat(0).simd(SIMD.f32x4Ge).simd(SIMD.bitselect);
}
