// float16 and bfloat16: two ways to store a number in 2 bytes. All arithmetic is in float; what is stored is rounded once,
// to the nearest, halves to even. A NaN stays one, with the bits that the hardware gives it.
#pragma once

namespace program {

struct Float16 {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

#ifdef __CUDA_ARCH__
// There is no header of CUDA's own at run time (cuda_fp16.h), and these two instructions are all that is needed of it.
__device__ __forceinline__ float widened(Float16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ __forceinline__ Float16 to_float16(float x) {
  Float16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
#else
__device__ __forceinline__ float widened(Float16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16;
  const uint32_t exponent = x.bits >> 10 & 0x1fu;
  const uint32_t significand = x.bits & 0x3ffu;
  // Subnormal: so many steps of 2^-24.
  if (exponent == 0) return __uint_as_float(__float_as_uint(__fmul_rn(static_cast<float>(significand), 5.9604644775390625e-8f)) | sign);
  return __uint_as_float(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | significand << 13);
}
__device__ __forceinline__ Float16 to_float16(float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t exponent = magnitude >> 23;
  uint32_t y;
  if (magnitude > 0x7f800000u) y = 0x7fff;
  // 65520 and above.
  else if (magnitude >= 0x477ff000u) y = 0x7c00;
  // From 2^-14 on: the exponents differ by 112, and a carry out of the significand goes on into the exponent.
  else if (exponent >= 113) y = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  // Half of 2^-24 and below rounds to nothing, but for what is above that half.
  else if (exponent < 102) y = 0;
  else {
    const uint32_t shift = 126 - exponent;
    const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    y = (significand + (1u << (shift - 1)) - 1 + (significand >> shift & 1)) >> shift;
  }
  return {static_cast<uint16_t>(sign | y)};
}
#endif

// sm_75 has no instruction for bfloat16; it takes as many without one.
__device__ __forceinline__ float widened(Bfloat16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
__device__ __forceinline__ Bfloat16 to_bfloat16(float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint32_t rounded = (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1);
  return {static_cast<uint16_t>(rounded >> 16)};
}

// Elements of 4 bytes are what they are.
__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ int32_t widened(int32_t x) { return x; }

__device__ __forceinline__ float map_round_float16(float x) { return widened(to_float16(x)); }
__device__ __forceinline__ float map_round_bfloat16(float x) { return widened(to_bfloat16(x)); }

}  // namespace program
