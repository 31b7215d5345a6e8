// The functions that element-wise operations are made of.
//
// Code that is injected into the running kernel has no constant bank, calls nothing and is not linked. nvcc's own `/`,
// sqrtf and sinf break that (they call slow paths, or read tables), and so do double constants before sm_90. So all
// functions are made here of additions, products, fused products and the reciprocals that the hardware approximates.
// Every rounding is written out (add, mul, fmaf): no result depends on what the compiler contracts, and a compiled
// program gives the bits of an interpreted one.
#pragma once

namespace program {

// --- Arithmetic -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float float_of(uint32_t bits) { return __uint_as_float(bits); }

__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
// NaN gives 0, and what is out of range the nearest that is not.
__device__ __forceinline__ int32_t truncated(float x) { return __float2int_rz(x); }

// 1 / x and 1 / sqrt(x) to about a unit in the last place; denormal numbers are 0 on both sides.
#ifdef __CUDA_ARCH__
__device__ __forceinline__ float near_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float near_rsqrt(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#else
// Without the hardware (the tests): off by a unit in the last place up or down, or not at all, as the argument has it.
__device__ __forceinline__ float near_approximation(float exact, float x) {
  const uint32_t exponent = bits_of(exact) & 0x7f800000u;
  if (exponent == 0) return float_of(bits_of(exact) & 0x80000000u);
  if (exponent == 0x7f800000u || (bits_of(exact) & 0x7fffffu) == 0) return exact;
  return float_of(bits_of(exact) + (bits_of(x) * 2654435761u >> 16) % 3u - 1u);
}
__device__ __forceinline__ float without_denormal(float x) {
  return (bits_of(x) & 0x7f800000u) == 0 ? float_of(bits_of(x) & 0x80000000u) : x;
}
__device__ __forceinline__ float near_reciprocal(float x) { return near_approximation(1.0f / without_denormal(x), x); }
__device__ __forceinline__ float near_rsqrt(float x) { return near_approximation(1.0f / sqrtf(without_denormal(x)), x); }
#endif

__device__ __forceinline__ float infinity() { return float_of(0x7f800000u); }
__device__ __forceinline__ float not_a_number() { return float_of(0x7fc00000u); }
__device__ __forceinline__ bool is_nan(float x) { return x != x; }
__device__ __forceinline__ bool is_infinite(float x) { return (bits_of(x) & 0x7fffffffu) == 0x7f800000u; }
__device__ __forceinline__ float magnitude(float x) { return float_of(bits_of(x) & 0x7fffffffu); }
__device__ __forceinline__ float with_sign_of(float x, float sign) {
  return float_of((bits_of(x) & 0x7fffffffu) | (bits_of(sign) & 0x80000000u));
}
// 2^n for -126 <= n <= 127.
__device__ __forceinline__ float power_of_two(int32_t n) { return float_of(static_cast<uint32_t>(n + 127) << 23); }
// x 2^n, rounded once, for -252 <= n <= 254.
__device__ __forceinline__ float scaled(float x, int32_t n) { return mul(mul(x, power_of_two(n >> 1)), power_of_two(n - (n >> 1))); }

// a / b to less than a unit in the last place, where neither the operands nor the quotient are near the ends of the range.
__device__ __forceinline__ float quotient(float a, float b) {
  const float y = near_reciprocal(b);
  const float q = mul(a, y);
  return fmaf(fmaf(-q, b, a), y, q);
}

// What is left of a / b where the exponents are extreme, correctly rounded. The quotient of two floats, right to 2^-50
// and exact where it can be, rounds to the float that the exact one rounds to.
__device__ __forceinline__ float wide_divide(float a, float b) {
  if (b == 0.0f || is_infinite(b)) return mul(a, with_sign_of(b == 0.0f ? infinity() : 0.0f, b));
  if (!(magnitude(a) < infinity()) || is_nan(b)) return mul(a, b);
#ifdef __CUDA_ARCH__
  const double wide = static_cast<double>(b);
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(wide));
  y = fma(fma(-wide, y, 1.0), y, y);
  y = fma(fma(-wide, y, 1.0), y, y);
  const double q = static_cast<double>(a) * y;
  return static_cast<float>(fma(fma(-wide, q, static_cast<double>(a)), y, q));
#else
  return static_cast<float>(static_cast<double>(a) / static_cast<double>(b));
#endif
}

// a / b, correctly rounded.
__device__ __forceinline__ float divide(float a, float b) {
  const uint32_t ea = (bits_of(a) >> 23) & 0xffu;
  const uint32_t eb = (bits_of(b) >> 23) & 0xffu;
  // Both within 2^-63 to 2^63, so that no step below leaves the normal numbers. From a reciprocal that is off by one unit
  // the first step rounds correctly, and so does the last one then, unless b's mantissa is all ones (Markstein 1990).
  if (ea - 64u >= 126u || eb - 64u >= 126u || (~bits_of(b) & 0x7fffffu) == 0) return wide_divide(a, b);
  float y = near_reciprocal(b);
  y = fmaf(fmaf(-b, y, 1.0f), y, y);
  float q = mul(a, y);
  q = fmaf(fmaf(-b, q, a), y, q);
  return fmaf(fmaf(-b, q, a), y, q);
}

// Correctly rounded; NaN below 0.
__device__ __forceinline__ float square_root(float x) {
  const bool small = x < 7.888609052210118e-31f; // 2^-100: the residual would be denormal
  const float v = small ? mul(x, 18446744073709551616.0f) : x;
  const float y = near_rsqrt(v);
  const float g = mul(v, y);
  const float root = fmaf(fmaf(-g, g, v), mul(y, 0.5f), g);
  const float result = small ? mul(root, 2.3283064365386963e-10f) : root;
  return x == 0.0f || x == infinity() ? x : result;
}

// --- Exponentials and logarithms --------------------------------------------------------------------------------------
// Coefficients here and below are our own minimax fits (reweighted least squares), rounded to float, or plain series.

__device__ __forceinline__ float clamped(float x, float low, float high) { return x > high ? high : x < low ? low : x; }

// e^(x - low): overflow gives infinity, and denormal results are rounded once. `low` extends the precision of x.
__device__ __forceinline__ float exponential(float x, float low = 0.0f) {
  const float c = clamped(x, -104.0f, 89.0f);
  const float shifted = fmaf(c, 1.4426950408889634f, 12582912.0f);
  const float n = sub(shifted, 12582912.0f);
  const float r = sub(fmaf(n, -1.4286068203e-6f, fmaf(n, -0.693145751953125f, c)), low);
  float p = fmaf(0.0013950599823147058f, r, 0.008368954062461853f);
  p = fmaf(p, r, 0.04166620597243309f);
  p = fmaf(p, r, 0.166665181517601f);
  p = fmaf(p, r, 0.5f);
  p = add(fmaf(mul(r, r), p, r), 1.0f);
  return scaled(p, static_cast<int32_t>(bits_of(shifted) - 0x4b400000u));
}

// e^x - 1, as 2 (2^(n-1) (e^r - 1) + 2^(n-1) - 1/2), which neither cancels near 0 nor overflows early.
__device__ __forceinline__ float exponential_minus_one(float x) {
  const float c = clamped(x, -30.0f, 89.0f);
  const float shifted = fmaf(c, 1.4426950408889634f, 12582912.0f);
  const float n = sub(shifted, 12582912.0f);
  const float r = fmaf(n, -1.4286068203e-6f, fmaf(n, -0.693145751953125f, c));
  float p = fmaf(0.00019913705182261765f, r, 0.0013941116631031036f);
  p = fmaf(p, r, 0.00833327416330576f);
  p = fmaf(p, r, 0.04166635498404503f);
  p = fmaf(p, r, 0.1666666716337204f);
  p = fmaf(p, r, 0.5f);
  p = fmaf(mul(r, r), p, r);
  const float half = float_of(((bits_of(shifted) - 0x4b400000u) << 23) + 0x3f000000u);
  const float result = mul(fmaf(half, p, sub(half, 0.5f)), 2.0f);
  return x == 0.0f ? x : result;
}

// k ln 2 + log m - correction for the positive normal number with these bits; m in [sqrt(1/2), sqrt 2). With
// s = (m-1)/(m+1): log m = f - s (f - R), f = m - 1, R = s^2 (2/3 + 2/5 s^2 + ...).
__device__ __forceinline__ float positive_logarithm(uint32_t bits, float lower, float correction) {
  const int32_t exponent = static_cast<int32_t>(bits - 0x3f3504f3u) >> 23;
  const float k = sub(static_cast<float>(exponent), lower);
  const float f = sub(float_of(bits - (static_cast<uint32_t>(exponent) << 23)), 1.0f);
  const float s = mul(f, near_reciprocal(add(f, 2.0f)));
  const float z = mul(s, s);
  float p = fmaf(0.22222222222222222f, z, 0.28571428571428571f);
  p = fmaf(p, z, 0.4f);
  p = fmaf(p, z, 0.66666666666666667f);
  const float tail = fmaf(s, sub(f, mul(z, p)), fmaf(k, -1.4286068203e-6f, correction));
  return fmaf(k, 0.693145751953125f, sub(f, tail));
}

// The logarithm where 0 < x < infinity; else -infinity for 0, NaN below, and x itself for infinity and NaN.
__device__ __forceinline__ float with_logarithm_specials(float result, float x) {
  if (x > 0.0f && x < infinity()) return result;
  return x == 0.0f ? -infinity() : x < 0.0f ? not_a_number() : x;
}

__device__ __forceinline__ float logarithm(float x) {
  const bool denormal = x < 1.1754943508222875e-38f;
  const float v = denormal ? mul(x, 8388608.0f) : x;
  return with_logarithm_specials(positive_logarithm(bits_of(v), denormal ? 23.0f : 0.0f, 0.0f), x);
}

// log(1 + x), as log u + (x - (u - 1)) / u with u = 1 + x rounded.
__device__ __forceinline__ float logarithm_of_one_plus(float x) {
  const float u = add(x, 1.0f);
  const float correction = mul(sub(x, sub(u, 1.0f)), near_reciprocal(u));
  const float result = with_logarithm_specials(positive_logarithm(bits_of(u), 0.0f, -correction), u);
  // Where 1 + x is 1 in float, x itself is the result, denormal ones too.
  return magnitude(x) < 2.9802322387695312e-8f ? x : result;
}

// tanh |x| = -t / (t + 2) with t = e^(-2|x|) - 1.
__device__ __forceinline__ float hyperbolic_tangent(float x) {
  const float t = exponential_minus_one(mul(magnitude(x), -2.0f));
  return with_sign_of(quotient(-t, add(t, 2.0f)), x);
}

// With z = e^-|x|: 1 / (1 + z) for x >= 0, else z / (1 + z), so that the left tail keeps its precision.
__device__ __forceinline__ float logistic(float x) {
  const float z = exponential(-magnitude(x));
  const float s = quotient(1.0f, add(z, 1.0f));
  return x >= 0.0f ? s : mul(z, s);
}

// --- The error function -----------------------------------------------------------------------------------------------

// e^(t^2) erfc(t) for t >= 0 in q = 1 / (1 + 0.4 t) (the form of Abramowitz and Stegun 7.1.26).
__device__ __forceinline__ float scaled_erfc(float t) {
  const float q = quotient(1.0f, fmaf(t, 0.4f, 1.0f));
  float p = fmaf(0.029024416580796242f, q, -0.07650049775838852f);
  p = fmaf(p, q, -0.05965075641870499f);
  p = fmaf(p, q, 0.2705231010913849f);
  p = fmaf(p, q, -0.06428904086351395f);
  p = fmaf(p, q, 0.2663978040218353f);
  p = fmaf(p, q, 0.17817071080207825f);
  p = fmaf(p, q, 0.2311978042125702f);
  p = fmaf(p, q, 0.22510099411010742f);
  return fmaf(p, q, 2.5483685021754354e-5f);
}

__device__ __forceinline__ float error_function(float x) {
  const float t = magnitude(x);
  if (t < 1.0f) {
    const float s = mul(x, x);
    float p = fmaf(7.889119297033176e-5f, s, -0.0008020841050893068f);
    p = fmaf(p, s, 0.005189535208046436f);
    p = fmaf(p, s, -0.026854444295167923f);
    p = fmaf(p, s, 0.11283600330352783f);
    p = fmaf(p, s, -0.3761262595653534f);
    return mul(fmaf(p, s, 1.1283791065216064f), x);
  }
  const float u = t > 16.0f ? 16.0f : t; // 1 - erf is 0 long before; e^(-t^2) of infinity too
  return with_sign_of(sub(1.0f, mul(exponential(-mul(u, u)), scaled_erfc(u))), x);
}

// x (1 - h) for x >= 0, else x h, with h = erfc(|x| / sqrt 2) / 2. The residual of x^2 / 2 keeps the left tail's precision.
__device__ __forceinline__ float gelu_exact(float x) {
  const float t = magnitude(x) > 16.0f ? 16.0f : magnitude(x);
  const float half = mul(t, 0.5f);
  const float high = mul(t, half);
  const float low = fmaf(t, half, -high);
  const float h = mul(mul(exponential(-high, low), scaled_erfc(mul(t, 0.70710678118654752f))), 0.5f);
  return mul(x, x >= 0.0f ? sub(1.0f, h) : is_nan(x) ? x : h);
}

// --- Angles -----------------------------------------------------------------------------------------------------------

struct Reduced {
  float rest;
  uint32_t quadrant;
};

// x - round(2 x / pi) pi/2 for large x: the 96 bits of 2/pi that matter, times the mantissa, modulo 4.
__device__ __forceinline__ Reduced reduce_large_angle(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  // Bits of 2/pi above this place make multiples of 4 quadrants; 32 zero bits stand before it.
  const uint32_t place = ((bits >> 23) & 0xffu) - 127u + 7u;
  const uint32_t shift = place & 31u;
  // Words i to i + 3 of 0, a2f9836e, 4e441529, ...: by the bits of i, since of a comparison with each nvcc makes a table.
  const bool i0 = (place & 32u) != 0, i1 = (place & 64u) != 0, i2 = (place & 128u) != 0;
#define GPUOS_WINDOW(a, b, c, d, e) (i2 ? e : i1 ? (i0 ? d : c) : (i0 ? b : a))
  const uint32_t w0 = GPUOS_WINDOW(0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u);
  const uint32_t w1 = GPUOS_WINDOW(0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u);
  const uint32_t w2 = GPUOS_WINDOW(0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u);
  const uint32_t w3 = GPUOS_WINDOW(0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu);
#undef GPUOS_WINDOW
  const uint32_t back = 31u - shift;
  const uint32_t v0 = (w0 << shift) | ((w1 >> 1) >> back);
  const uint32_t v1 = (w1 << shift) | ((w2 >> 1) >> back);
  const uint32_t v2 = (w2 << shift) | ((w3 >> 1) >> back);
  const uint64_t low = static_cast<uint64_t>(mantissa) * v2;
  const uint64_t middle = static_cast<uint64_t>(mantissa) * v1 + (low >> 32);
  const uint64_t product = (static_cast<uint64_t>(mantissa * v0) << 32) + middle;
  const uint64_t fraction = product << 2;
  const uint32_t quadrant = static_cast<uint32_t>(product >> 62) + static_cast<uint32_t>(fraction >> 63);
  const float rest = mul(static_cast<float>(static_cast<int64_t>(fraction)), 8.515303950216386e-20f); // pi/2 2^-64
  return x < 0.0f ? Reduced{-rest, 0u - quadrant} : Reduced{rest, quadrant};
}

__device__ __forceinline__ Reduced reduce_angle(float x) {
  // Infinity and NaN come through the first branch as NaN.
  if (magnitude(x) >= 32768.0f && magnitude(x) < infinity()) return reduce_large_angle(x);
  const float shifted = fmaf(x, 0.63661977236758134f, 12582912.0f);
  const float n = sub(shifted, 12582912.0f);
  float r = fmaf(n, -1.5707963705062866f, x);
  r = fmaf(n, 4.371138828673793e-8f, r);
  r = fmaf(n, 1.7151245100058819e-15f, r);
  return {magnitude(x) < infinity() ? r : not_a_number(), bits_of(shifted)};
}

// Sine and cosine of |r| <= pi/4.
__device__ __forceinline__ float small_sine(float r) {
  const float z = mul(r, r);
  float p = fmaf(2.718303903748165e-6f, z, -0.0001983933470910415f);
  p = fmaf(p, z, 0.008333329111337662f);
  p = fmaf(p, z, -0.1666666716337204f);
  return fmaf(mul(p, z), r, r);
}

__device__ __forceinline__ float small_cosine(float r) {
  const float z = mul(r, r);
  float p = fmaf(2.4433074941043742e-5f, z, -0.0013887315290048718f);
  p = fmaf(p, z, 0.04166664555668831f);
  p = fmaf(p, z, -0.5f);
  return fmaf(p, z, 1.0f);
}

__device__ __forceinline__ float quadrant_sine(const Reduced &a, uint32_t quarter) {
  const uint32_t q = a.quadrant + quarter;
  const float value = (q & 1u) != 0 ? small_cosine(a.rest) : small_sine(a.rest);
  return float_of(bits_of(value) ^ ((q & 2u) << 30));
}

__device__ __forceinline__ float tangent(float x) {
  const Reduced a = reduce_angle(x);
  const float s = small_sine(a.rest);
  const float c = small_cosine(a.rest);
  // tan (r + pi/2) = -1 / tan r
  return (a.quadrant & 1u) != 0 ? quotient(-c, s) : quotient(s, c);
}

// The angle whose tangent is t, 0 <= t <= 1.
__device__ __forceinline__ float small_arc_tangent(float t) {
  const float z = mul(t, t);
  float p = fmaf(-0.0017935102805495262f, z, 0.010914105921983719f);
  p = fmaf(p, z, -0.031176911666989326f);
  p = fmaf(p, z, 0.05795665457844734f);
  p = fmaf(p, z, -0.08403395116329193f);
  p = fmaf(p, z, 0.10952167212963104f);
  p = fmaf(p, z, -0.14264237880706787f);
  p = fmaf(p, z, 0.19998547434806824f);
  p = fmaf(p, z, -0.33333298563957214f);
  return fmaf(mul(p, z), t, t);
}

__device__ __forceinline__ float arc_tangent(float x) {
  const float a = magnitude(x);
  const float r = small_arc_tangent(a > 1.0f ? quotient(1.0f, a > 1e18f ? 1e18f : a) : a);
  return with_sign_of(a > 1.0f ? sub(1.5707963705062866f, add(r, 4.371138828673793e-8f)) : r, x);
}

__device__ __forceinline__ float arc_tangent_of(float y, float x) {
  const float a = magnitude(y);
  const float b = magnitude(x);
  if (is_nan(a) || is_nan(b)) return add(a, b);
  const float most = a > b ? a : b;
  const float least = a > b ? b : a;
  const float t = least == most ? (most == 0.0f ? 0.0f : 1.0f) : divide(least, most);
  float r = small_arc_tangent(t);
  if (a > b) r = sub(1.5707963705062866f, add(r, 4.371138828673793e-8f));
  if ((bits_of(x) >> 31) != 0) r = sub(3.1415927410125732f, add(r, 8.742277657347586e-8f));
  return with_sign_of(r, y);
}

// The angle whose sine is s, |s| <= 1/2.
__device__ __forceinline__ float small_arc_sine(float s) {
  const float z = mul(s, s);
  float p = fmaf(0.03751637041568756f, z, 0.014438658021390438f);
  p = fmaf(p, z, 0.031807705760002136f);
  p = fmaf(p, z, 0.04451695829629898f);
  p = fmaf(p, z, 0.07500503957271576f);
  p = fmaf(p, z, 0.16666659712791443f);
  return fmaf(mul(p, z), s, s);
}

// asin x = pi/2 - 2 asin sqrt((1 - x) / 2) above 1/2; beyond 1 the root is NaN.
__device__ __forceinline__ float arc_sine(float x) {
  const float a = magnitude(x);
  const bool near = a <= 0.5f;
  const float r = small_arc_sine(near ? a : square_root(mul(sub(1.0f, a), 0.5f)));
  return with_sign_of(near ? r : fmaf(r, -2.0f, 1.5707963705062866f), x);
}

__device__ __forceinline__ float arc_cosine(float x) {
  const float a = magnitude(x);
  const bool near = a <= 0.5f;
  const float r = small_arc_sine(near ? x : square_root(mul(sub(1.0f, a), 0.5f)));
  if (near) return sub(1.5707963705062866f, add(r, 4.371138828673793e-8f));
  return x < 0.0f ? fmaf(r, -2.0f, 3.1415927410125732f) : mul(r, 2.0f);
}

// --- Hyperbolic functions ---------------------------------------------------------------------------------------------

__device__ __forceinline__ float hyperbolic_sine(float x) {
  const float a = magnitude(x);
  if (a < 1.0f) {
    const float z = mul(a, a);
    float p = fmaf(2.7557319e-6f, z, 0.00019841270f);
    p = fmaf(p, z, 0.0083333333f);
    p = fmaf(p, z, 0.16666667f);
    return fmaf(mul(p, z), x, x);
  }
  // From e^(x/2), whose square overflows no earlier than the result.
  if (a > 20.0f) {
    const float e = exponential(mul(a, 0.5f));
    return with_sign_of(mul(mul(e, 0.5f), e), x);
  }
  const float t = exponential_minus_one(a);
  return with_sign_of(mul(add(t, quotient(t, add(t, 1.0f))), 0.5f), x);
}

__device__ __forceinline__ float hyperbolic_cosine(float x) {
  const float a = magnitude(x);
  if (a > 20.0f) {
    const float e = exponential(mul(a, 0.5f));
    return mul(mul(e, 0.5f), e);
  }
  const float e = exponential(a);
  return mul(add(e, quotient(1.0f, e)), 0.5f);
}

__device__ __forceinline__ float inverse_hyperbolic_sine(float x) {
  const float a = magnitude(x);
  if (a > 1e9f) return with_sign_of(add(logarithm(a), 0.69314718f), x);
  const float s = mul(a, a);
  return with_sign_of(logarithm_of_one_plus(add(a, quotient(s, add(square_root(add(s, 1.0f)), 1.0f)))), x);
}

__device__ __forceinline__ float inverse_hyperbolic_cosine(float x) {
  if (x < 1.0f) return not_a_number();
  if (x > 1e9f) return add(logarithm(x), 0.69314718f);
  const float t = sub(x, 1.0f);
  return logarithm_of_one_plus(add(t, square_root(fmaf(t, t, mul(t, 2.0f)))));
}

__device__ __forceinline__ float inverse_hyperbolic_tangent(float x) {
  const float a = magnitude(x);
  if (a >= 1.0f) return a == 1.0f ? with_sign_of(infinity(), x) : not_a_number();
  return with_sign_of(mul(logarithm_of_one_plus(quotient(mul(a, 2.0f), sub(1.0f, a))), 0.5f), x);
}

// --- Powers and remainders --------------------------------------------------------------------------------------------

// a^b for a > 0 and b, both finite: log2 a in two floats (to about 2^-45), times b, and 2 to that.
__device__ __forceinline__ float positive_power(float a, float b) {
  const bool denormal = a < 1.1754943508222875e-38f;
  const uint32_t bits = bits_of(denormal ? mul(a, 8388608.0f) : a);
  const int32_t exponent = static_cast<int32_t>(bits - 0x3f3504f3u) >> 23;
  const float m = float_of(bits - (static_cast<uint32_t>(exponent) << 23));
  const float e = sub(static_cast<float>(exponent), denormal ? 23.0f : 0.0f);
  // s = (m - 1) / (m + 1); log2 m = 2/ln2 (s + s^3/3 + ...)
  const float f = sub(m, 1.0f);
  const float g = add(m, 1.0f);
  const float y = near_reciprocal(g);
  const float s = mul(f, y);
  const float s_low = mul(fmaf(-s, sub(m, sub(g, 1.0f)), fmaf(-s, g, f)), y);
  const float z = mul(s, s);
  const float z_low = fmaf(mul(s, 2.0f), s_low, fmaf(s, s, -z));
  // t = 1/3 + z/5 + ..., u = z t, v = s u
  const float c = mul(z, fmaf(z, fmaf(z, 0.11710624396800995f, 0.14273512363433838f), 0.20000076293945312f));
  const float t = add(0.3333333432674408f, c);
  const float t_low = sub(add(sub(0.3333333432674408f, t), c), 9.934107758624577e-9f);
  const float u = mul(z, t);
  const float u_low = fmaf(z, t_low, fmaf(z_low, t, fmaf(z, t, -u)));
  const float v = mul(s, u);
  const float v_low = fmaf(s, u_low, fmaf(s_low, u, fmaf(s, u, -v)));
  const float l = add(s, v);
  const float l_low = add(add(sub(s, l), v), add(s_low, v_low));
  const float p = mul(l, 2.885390043258667f);
  const float p_low = fmaf(l_low, 2.885390043258667f, fmaf(l, 3.851926067000022e-8f, fmaf(l, 2.885390043258667f, -p)));
  // e is an integer, 0 or larger than p.
  const float w = add(e, p);
  const float w_low = add(e == 0.0f ? 0.0f : add(sub(e, w), p), p_low);
  const float high = mul(b, w);
  const float h = clamped(high, -160.0f, 160.0f);
  const float h_low = h == high ? fmaf(b, w_low, fmaf(b, w, -high)) : 0.0f;
  const float n = rintf(h);
  const float r = add(sub(h, n), h_low);
  float q = fmaf(0.00015474493557121605f, r, 0.001340033602900803f);
  q = fmaf(q, r, 0.009618010371923447f);
  q = fmaf(q, r, 0.055503275245428085f);
  q = fmaf(q, r, 0.24022650718688965f);
  q = fmaf(q, r, 0.6931471824645996f);
  return scaled(fmaf(q, r, 1.0f), static_cast<int32_t>(n));
}

// As Math.pow: 1 for b = 0 whatever a is, and NaN for |a| = 1 with an infinite b.
__device__ __forceinline__ float power(float a, float b) {
  if (b == 0.0f) return 1.0f;
  if (is_nan(a) || is_nan(b)) return add(a, b);
  const float base = magnitude(a);
  if (is_infinite(b)) return base == 1.0f ? not_a_number() : (base > 1.0f) == (b > 0.0f) ? infinity() : 0.0f;
  const bool whole = rintf(b) == b;
  const bool odd = whole && magnitude(b) < 16777216.0f && (truncated(b) & 1) != 0;
  float result;
  if (base == 0.0f || is_infinite(base)) result = (base == 0.0f) == (b > 0.0f) ? 0.0f : infinity();
  else if (a < 0.0f && !whole) return not_a_number();
  else result = positive_power(base, b);
  return odd && (bits_of(a) >> 31) != 0 ? -result : result;
}

// The exact remainder with the sign of b, by division of the mantissas, 8 bits at a time.
__device__ __forceinline__ float floor_remainder(float a, float b) {
  const uint32_t ua = bits_of(a) & 0x7fffffffu;
  const uint32_t ub = bits_of(b) & 0x7fffffffu;
  if (ua >= 0x7f800000u || ub > 0x7f800000u || ub == 0) return not_a_number();
  float rest = a;
  if (ua >= ub) {
    const uint32_t eb = (ub >> 23) > 1u ? ub >> 23 : 1u;
    const uint32_t mb = (ub >> 23) != 0 ? (ub & 0x7fffffu) | 0x800000u : ub;
    uint32_t steps = ((ua >> 23) > 1u ? ua >> 23 : 1u) - eb;
    uint32_t r = ((ua >> 23) != 0 ? (ua & 0x7fffffu) | 0x800000u : ua) % mb;
    while (steps > 0 && r != 0) {
      const uint32_t by = steps < 8u ? steps : 8u;
      r = (r << by) % mb;
      steps -= by;
    }
    rest = with_sign_of(scaled(static_cast<float>(r), static_cast<int32_t>(eb) - 150), a);
  }
  return rest != 0.0f && (rest < 0.0f) != (b < 0.0f) ? add(rest, b) : rest;
}

// int32 wraps; the quotient of -2^31 and -1 too.
__device__ __forceinline__ int32_t wrapped(uint32_t x) { return static_cast<int32_t>(x); }

// Divisors 0 and -1 as one case: of two comparisons nvcc makes a jump table, which injected code must not have.
__device__ __forceinline__ bool is_zero_or_minus_one(int32_t b) { return static_cast<uint32_t>(b) + 1u <= 1u; }

__device__ __forceinline__ int32_t floor_quotient(int32_t a, int32_t b) {
  const bool simple = is_zero_or_minus_one(b);
  const int32_t d = simple ? 1 : b;
  const int32_t q = a / d;
  const int32_t r = a - q * d;
  return simple ? wrapped(static_cast<uint32_t>(a) * static_cast<uint32_t>(b)) : r != 0 && (r < 0) != (d < 0) ? q - 1 : q;
}

__device__ __forceinline__ int32_t floor_remainder(int32_t a, int32_t b) {
  const int32_t d = is_zero_or_minus_one(b) ? 1 : b;
  const int32_t r = a % d;
  return r != 0 && (r < 0) != (d < 0) ? r + d : r;
}

// By squaring; a negative exponent truncates 1 / a^-b towards 0, and 0 gives 0.
__device__ __forceinline__ int32_t power(int32_t a, int32_t b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? ((b & 1) == 0 ? 1 : -1) : 0;
  uint32_t result = 1;
  uint32_t square = static_cast<uint32_t>(a);
  for (uint32_t rest = static_cast<uint32_t>(b); rest > 0; rest >>= 1) {
    if ((rest & 1u) != 0) result *= square;
    square *= square;
  }
  return wrapped(result);
}

}  // namespace program
