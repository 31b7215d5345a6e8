// Of CUDA's types and functions what needs no other thread of the block: vectors, atomics, reinterpretations, rounding, bits. The rest of its mathematics is the C library's under the same names.
#pragma once
#include <time.h>

#define EMULATION_VECTOR(scalar, name, bytes2, bytes4)                                                             \
  struct alignas(bytes2) name##2 { scalar x, y; };                                                                 \
  struct alignas(bytes4) name##4 { scalar x, y, z, w; };                                                           \
  inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                                             \
  inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }
EMULATION_VECTOR(float, float, 8, 16)
EMULATION_VECTOR(int32_t, int, 8, 16)
EMULATION_VECTOR(uint32_t, uint, 8, 16)
struct alignas(16) ulonglong2 { unsigned long long x, y; };
struct alignas(16) double2 { double x, y; };

// Like CUDA's: mixed arguments as in an expression of both; of floats the number where the other is NaN.
template <typename A, typename B>
inline std::common_type_t<A, B> min(A a, B b) {
  typedef std::common_type_t<A, B> T;
  if constexpr (std::is_floating_point_v<T>) return fmin(static_cast<T>(a), static_cast<T>(b));
  else return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
template <typename A, typename B>
inline std::common_type_t<A, B> max(A a, B b) {
  typedef std::common_type_t<A, B> T;
  if constexpr (std::is_floating_point_v<T>) return fmax(static_cast<T>(a), static_cast<T>(b));
  else return static_cast<T>(a) > static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}

// Other blocks are other threads of the operating system, and the host is one too.
template <typename T>
inline bool emulation_exchange(T *address, T expected, T value) {
  typedef std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t> Bits;
  Bits bits = emulation::bits_as<Bits>(expected);
  return __atomic_compare_exchange_n(reinterpret_cast<Bits *>(address), &bits, emulation::bits_as<Bits>(value), false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST);
}
#define EMULATION_ATOMIC(name, expression)                 \
  template <typename T, typename U>                        \
  inline T name(T *address, U given) {                     \
    const T value = static_cast<T>(given);                 \
    for (;;) {                                             \
      const T old = *const_cast<volatile T *>(address);    \
      if (emulation_exchange<T>(address, old, expression)) return old; \
    }                                                      \
  }
EMULATION_ATOMIC(atomicAdd, old + value)
EMULATION_ATOMIC(atomicSub, old - value)
EMULATION_ATOMIC(atomicExch, value)
EMULATION_ATOMIC(atomicMin, old < value ? old : value)
EMULATION_ATOMIC(atomicMax, old > value ? old : value)
EMULATION_ATOMIC(atomicAnd, old &value)
EMULATION_ATOMIC(atomicOr, old | value)
EMULATION_ATOMIC(atomicXor, old ^ value)
EMULATION_ATOMIC(atomicAdd_system, old + value)
template <typename T>
inline T atomicCAS(T *address, T expected, T value) {
  for (;;) {
    const T old = *const_cast<volatile T *>(address);
    if (old != expected || emulation_exchange<T>(address, old, value)) return old;
  }
}

template <typename T>
inline T atomicCAS_system(T *address, T expected, T value) {
  return atomicCAS(address, expected, value);
}

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
// One thread of a warp sleeps for all of them.
inline void __nanosleep(uint32_t ns) {
  if ((threadIdx.x & 31) == 0) emulation::rest(ns);
}

inline float __int_as_float(int32_t x) { return emulation::bits_as<float>(x); }
inline float __uint_as_float(uint32_t x) { return emulation::bits_as<float>(x); }
inline int32_t __float_as_int(float x) { return emulation::bits_as<int32_t>(x); }
inline uint32_t __float_as_uint(float x) { return emulation::bits_as<uint32_t>(x); }
inline double __longlong_as_double(long long x) { return emulation::bits_as<double>(x); }
inline long long __double_as_longlong(double x) { return emulation::bits_as<long long>(x); }
inline double __hiloint2double(int32_t high, int32_t low) {
  return __longlong_as_double(static_cast<long long>(static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low)));
}
inline int32_t __double2hiint(double x) { return static_cast<int32_t>(__double_as_longlong(x) >> 32); }
inline int32_t __double2loint(double x) { return static_cast<int32_t>(__double_as_longlong(x)); }

// Rounded on their own, never joined with another operation.
#define EMULATION_ROUNDED(name, type, expression)         \
  __attribute__((noinline)) inline type name(type a, type b) { return expression; }
EMULATION_ROUNDED(__fadd_rn, float, a + b)
EMULATION_ROUNDED(__fsub_rn, float, a - b)
EMULATION_ROUNDED(__fmul_rn, float, a *b)
EMULATION_ROUNDED(__fdiv_rn, float, a / b)
EMULATION_ROUNDED(__dadd_rn, double, a + b)
EMULATION_ROUNDED(__dsub_rn, double, a - b)
EMULATION_ROUNDED(__dmul_rn, double, a *b)
EMULATION_ROUNDED(__ddiv_rn, double, a / b)
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return __fdiv_rn(1.0f, x); }
inline float rsqrtf(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }

// The device's conversions: NaN gives 0, what does not fit the nearest that does.
template <typename To, typename From>
inline To emulation_saturate(From x, double least, double most) {
  if (isnan(x)) return 0;
  if (static_cast<double>(x) <= least) return static_cast<To>(least);
  if (static_cast<double>(x) >= most) return std::is_signed_v<To> ? static_cast<To>(~(To(1) << (8 * sizeof(To) - 1))) : static_cast<To>(~To(0));
  return static_cast<To>(x);
}
#define EMULATION_CONVERT(to, type, least, most)                                                                          \
  inline type __float2##to##_rz(float x) { return emulation_saturate<type>(truncf(x), least, most); }                      \
  inline type __float2##to##_rn(float x) { return emulation_saturate<type>(rintf(x), least, most); }                       \
  inline type __float2##to##_rd(float x) { return emulation_saturate<type>(floorf(x), least, most); }                      \
  inline type __float2##to##_ru(float x) { return emulation_saturate<type>(ceilf(x), least, most); }                       \
  inline type __double2##to##_rz(double x) { return emulation_saturate<type>(trunc(x), least, most); }                     \
  inline type __double2##to##_rn(double x) { return emulation_saturate<type>(rint(x), least, most); }
EMULATION_CONVERT(int, int32_t, -2147483648.0, 2147483647.0)
EMULATION_CONVERT(uint, uint32_t, 0.0, 4294967295.0)
EMULATION_CONVERT(ll, long long, -9223372036854775808.0, 9223372036854775807.0)
EMULATION_CONVERT(ull, unsigned long long, 0.0, 18446744073709551615.0)
inline float __int2float_rn(int32_t x) { return static_cast<float>(x); }
inline float __uint2float_rn(uint32_t x) { return static_cast<float>(x); }
inline double __int2double_rn(int32_t x) { return x; }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }

inline int __clz(int32_t x) { return x == 0 ? 32 : __builtin_clz(static_cast<uint32_t>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline int __ffs(int32_t x) { return __builtin_ffs(x); }
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32); }
inline int32_t __mulhi(int32_t a, int32_t b) { return static_cast<int32_t>(static_cast<int64_t>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline float __saturatef(float x) { return isnan(x) ? 0.0f : fminf(fmaxf(x, 0.0f), 1.0f); }
