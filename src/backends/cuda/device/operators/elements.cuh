// Elements of operators that compute with float32, float16 or bfloat16 (T): all are read as float32, and rounded once, when
// they are stored. Operators that only move elements know their size alone.
#pragma once
#include "half.cuh"

namespace operators {

using program::Bfloat16;
using program::Float16;
using program::widened;

__device__ __forceinline__ void store(float *to, float x) { *to = x; }
__device__ __forceinline__ void store(Float16 *to, float x) { *to = program::to_float16(x); }
__device__ __forceinline__ void store(Bfloat16 *to, float x) { *to = program::to_bfloat16(x); }

// How many of them 16 bytes hold, the most that are loaded at once.
template <typename T>
constexpr uint32_t VECTOR = 16 / sizeof(T);

// Whether so many can be loaded at once from an address and from those that lie multiples of `step` elements after it.
template <typename T>
__device__ __forceinline__ bool holds_vectors(const T *from, int64_t step, uint32_t elements = VECTOR<T>) {
  return ((reinterpret_cast<uint64_t>(from) | static_cast<uint64_t>(step) * sizeof(T)) & (elements * sizeof(T) - 1)) == 0;
}

// The elements of a word.
template <typename T>
__device__ __forceinline__ void unpack(uint32_t word, float *to) {
  to[0] = widened(T{static_cast<uint16_t>(word)});
  to[1] = widened(T{static_cast<uint16_t>(word >> 16)});
}
template <>
__device__ __forceinline__ void unpack<float>(uint32_t word, float *to) {
  to[0] = __uint_as_float(word);
}

// Neighbours from an address that is a multiple of their size: 16 bytes of them, or 8.
template <typename T, uint32_t N>
__device__ __forceinline__ void load_vector(const T *from, float (&to)[N]) {
  constexpr uint32_t IN_WORD = 4 / sizeof(T);
  static_assert(N * sizeof(T) == 16 || N * sizeof(T) == 8, "what one instruction loads");
  if constexpr (N * sizeof(T) == 8) {
    const uint2 held = *reinterpret_cast<const uint2 *>(from);
    unpack<T>(held.x, to);
    unpack<T>(held.y, to + IN_WORD);
  } else {
    const uint4 held = *reinterpret_cast<const uint4 *>(from);
    unpack<T>(held.x, to);
    unpack<T>(held.y, to + IN_WORD);
    unpack<T>(held.z, to + 2 * IN_WORD);
    unpack<T>(held.w, to + 3 * IN_WORD);
  }
}

__device__ __forceinline__ void store_four(float *to, const float (&from)[4]) {
  *reinterpret_cast<float4 *>(to) = make_float4(from[0], from[1], from[2], from[3]);
}
template <typename T>
__device__ __forceinline__ void store_four(T *to, const float (&from)[4]) {
  T held[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) store(held + i, from[i]);
  const uint32_t low = held[0].bits | static_cast<uint32_t>(held[1].bits) << 16;
  const uint32_t high = held[2].bits | static_cast<uint32_t>(held[3].bits) << 16;
  *reinterpret_cast<uint2 *>(to) = make_uint2(low, high);
}

}  // namespace operators

// An operator of the table: its name, and the function of namespace operators that it is.
#define GPUOS_OPERATOR(name, ...)                                                                                                 \
  extern "C" __device__ __noinline__ uint32_t operator_##name(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, \
                                                              const uint32_t *data) {                                             \
    return operators::__VA_ARGS__(params, tile, tiles, shared);                                                                   \
  }
