// What fused programs are made of, compiled (codegen/) and interpreted (interpreter.cuh): every element-wise operation
// and every reduction as an inline device function, with the meaning that src/ops/map.ts and src/ops/reduction.ts give;
// loads and stores of four elements; and how a block shares out rows, columns and reductions among its threads.
#pragma once

#include "half.cuh"
#include "program-functions.cuh"

namespace program {

// --- Element-wise operations: map_<name> of src/ops/map.ts, for each type of operands ------------------------------------
// bool operands of comparisons and select are int32 0 or 1, or C++'s bool, which promotes to it.

__device__ __forceinline__ float map_add(float a, float b) { return add(a, b); }
__device__ __forceinline__ float map_sub(float a, float b) { return sub(a, b); }
__device__ __forceinline__ float map_mul(float a, float b) { return mul(a, b); }
__device__ __forceinline__ float map_div(float a, float b) { return divide(a, b); }
__device__ __forceinline__ float map_floor_div(float a, float b) { return floorf(divide(a, b)); }
__device__ __forceinline__ float map_mod(float a, float b) { return floor_remainder(a, b); }
__device__ __forceinline__ float map_pow(float a, float b) { return power(a, b); }
__device__ __forceinline__ float map_atan2(float a, float b) { return arc_tangent_of(a, b); }
__device__ __forceinline__ float map_prelu(float a, float b) { return a < 0.0f ? mul(a, b) : a; }
__device__ __forceinline__ float map_squared_difference(float a, float b) {
  const float d = sub(a, b);
  return mul(d, d);
}

// NaN if either is; of two zeros 0 is above -0.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
__device__ __forceinline__ float map_maximum(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ __forceinline__ float map_minimum(float a, float b) {
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
#else
__device__ __forceinline__ float map_maximum(float a, float b) {
  if (is_nan(a) || is_nan(b)) return add(a, b);
  return a == b ? float_of(bits_of(a) & bits_of(b)) : a > b ? a : b;
}
__device__ __forceinline__ float map_minimum(float a, float b) {
  if (is_nan(a) || is_nan(b)) return add(a, b);
  return a == b ? float_of(bits_of(a) | bits_of(b)) : a < b ? a : b;
}
#endif

__device__ __forceinline__ int32_t map_add(int32_t a, int32_t b) { return wrapped(static_cast<uint32_t>(a) + static_cast<uint32_t>(b)); }
__device__ __forceinline__ int32_t map_sub(int32_t a, int32_t b) { return wrapped(static_cast<uint32_t>(a) - static_cast<uint32_t>(b)); }
__device__ __forceinline__ int32_t map_mul(int32_t a, int32_t b) { return wrapped(static_cast<uint32_t>(a) * static_cast<uint32_t>(b)); }
__device__ __forceinline__ int32_t map_floor_div(int32_t a, int32_t b) { return floor_quotient(a, b); }
__device__ __forceinline__ int32_t map_mod(int32_t a, int32_t b) { return floor_remainder(a, b); }
__device__ __forceinline__ int32_t map_pow(int32_t a, int32_t b) { return power(a, b); }
__device__ __forceinline__ int32_t map_maximum(int32_t a, int32_t b) { return a > b ? a : b; }
__device__ __forceinline__ int32_t map_minimum(int32_t a, int32_t b) { return a < b ? a : b; }
__device__ __forceinline__ int32_t map_squared_difference(int32_t a, int32_t b) {
  const int32_t d = map_sub(a, b);
  return map_mul(d, d);
}

#define GPUOS_COMPARISON(name, sign)                                                      \
  __device__ __forceinline__ bool map_##name(float a, float b) { return a sign b; }       \
  __device__ __forceinline__ bool map_##name(int32_t a, int32_t b) { return a sign b; }
GPUOS_COMPARISON(equal, ==)
GPUOS_COMPARISON(not_equal, !=)
GPUOS_COMPARISON(less, <)
GPUOS_COMPARISON(less_equal, <=)
GPUOS_COMPARISON(greater, >)
GPUOS_COMPARISON(greater_equal, >=)
#undef GPUOS_COMPARISON

__device__ __forceinline__ bool map_logical_and(bool a, bool b) { return a && b; }
__device__ __forceinline__ bool map_logical_or(bool a, bool b) { return a || b; }
__device__ __forceinline__ bool map_logical_xor(bool a, bool b) { return a != b; }
__device__ __forceinline__ bool map_logical_not(bool a) { return !a; }
template <class T>
__device__ __forceinline__ T map_select(bool condition, T a, T b) {
  return condition ? a : b;
}

__device__ __forceinline__ int32_t map_neg(int32_t x) { return wrapped(0u - static_cast<uint32_t>(x)); }
__device__ __forceinline__ int32_t map_abs(int32_t x) { return x < 0 ? map_neg(x) : x; }
__device__ __forceinline__ int32_t map_sign(int32_t x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
__device__ __forceinline__ int32_t map_square(int32_t x) { return map_mul(x, x); }
__device__ __forceinline__ int32_t map_relu(int32_t x) { return x > 0 ? x : 0; }

__device__ __forceinline__ float map_neg(float x) { return -x; }
__device__ __forceinline__ float map_abs(float x) { return magnitude(x); }
__device__ __forceinline__ float map_sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f; }
__device__ __forceinline__ float map_square(float x) { return mul(x, x); }
__device__ __forceinline__ float map_exp(float x) { return exponential(x); }
__device__ __forceinline__ float map_expm1(float x) { return exponential_minus_one(x); }
__device__ __forceinline__ float map_log(float x) { return logarithm(x); }
__device__ __forceinline__ float map_log1p(float x) { return logarithm_of_one_plus(x); }
__device__ __forceinline__ float map_sqrt(float x) { return square_root(x); }
__device__ __forceinline__ float map_rsqrt(float x) { return divide(1.0f, square_root(x)); }
__device__ __forceinline__ float map_reciprocal(float x) { return divide(1.0f, x); }
__device__ __forceinline__ float map_floor(float x) { return floorf(x); }
__device__ __forceinline__ float map_ceil(float x) { return ceilf(x); }
__device__ __forceinline__ float map_round(float x) { return rintf(x); }
__device__ __forceinline__ float map_erf(float x) { return error_function(x); }
__device__ __forceinline__ float map_tanh(float x) { return hyperbolic_tangent(x); }
__device__ __forceinline__ float map_sigmoid(float x) { return logistic(x); }
__device__ __forceinline__ float map_softplus(float x) {
  return add(x < 0.0f ? 0.0f : x, logarithm_of_one_plus(exponential(-magnitude(x))));
}
__device__ __forceinline__ float map_sin(float x) { return quadrant_sine(reduce_angle(x), 0); }
__device__ __forceinline__ float map_cos(float x) { return quadrant_sine(reduce_angle(x), 1); }
__device__ __forceinline__ float map_tan(float x) { return tangent(x); }
__device__ __forceinline__ float map_asin(float x) { return arc_sine(x); }
__device__ __forceinline__ float map_acos(float x) { return arc_cosine(x); }
__device__ __forceinline__ float map_atan(float x) { return arc_tangent(x); }
__device__ __forceinline__ float map_sinh(float x) { return hyperbolic_sine(x); }
__device__ __forceinline__ float map_cosh(float x) { return hyperbolic_cosine(x); }
__device__ __forceinline__ float map_asinh(float x) { return inverse_hyperbolic_sine(x); }
__device__ __forceinline__ float map_acosh(float x) { return inverse_hyperbolic_cosine(x); }
__device__ __forceinline__ float map_atanh(float x) { return inverse_hyperbolic_tangent(x); }
__device__ __forceinline__ float map_relu(float x) { return x < 0.0f ? 0.0f : x; }
__device__ __forceinline__ float map_relu6(float x) { return x < 0.0f ? 0.0f : x > 6.0f ? 6.0f : x; }
__device__ __forceinline__ float map_elu(float x) { return x >= 0.0f ? x : exponential_minus_one(x); }
// lambda and lambda alpha of Klambauer et al. 2017.
__device__ __forceinline__ float map_selu(float x) {
  return x >= 0.0f ? mul(x, 1.0507009873554805f) : mul(exponential_minus_one(x), 1.7580993408473766f);
}
__device__ __forceinline__ float map_gelu(float x) { return gelu_exact(x); }
// x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which is the tanh form exactly.
__device__ __forceinline__ float map_gelu_tanh(float x) {
  return mul(x, logistic(mul(fmaf(mul(x, x), 0.071354816272600242f, 1.5957691216057308f), x)));
}
__device__ __forceinline__ float map_silu(float x) { return mul(x, logistic(x)); }

__device__ __forceinline__ bool map_is_nan(float x) { return is_nan(x); }
__device__ __forceinline__ bool map_is_inf(float x) { return is_infinite(x); }
__device__ __forceinline__ bool map_is_finite(float x) { return magnitude(x) < infinity(); }

// Casts. To int32: towards 0, NaN gives 0, out of range saturates. To bool: not 0, so true for NaN.
__device__ __forceinline__ float map_to_float(float x) { return x; }
__device__ __forceinline__ float map_to_float(int32_t x) { return static_cast<float>(x); }
__device__ __forceinline__ int32_t map_to_int(float x) { return truncated(x); }
__device__ __forceinline__ int32_t map_to_int(int32_t x) { return x; }
__device__ __forceinline__ bool map_to_bool(float x) { return x != 0.0f; }
__device__ __forceinline__ bool map_to_bool(int32_t x) { return x != 0; }

// --- Reductions ---------------------------------------------------------------------------------------------------------
// Each has a state of two words: `fold` takes in the element of a column, `merge` another state, in any order with one result.

// A sum with its rounding errors: the error of each addition is exact (Knuth), and they are added up apart.
struct SumFloat {
  float sum = 0.0f, error = 0.0f;
  __device__ __forceinline__ void fold(float x, uint32_t) {
    const float t = add(sum, x);
    const float b = sub(t, sum);
    error = add(error, add(sub(sum, sub(t, b)), sub(x, b)));
    sum = t;
  }
  __device__ __forceinline__ void merge(const SumFloat &other) {
    const float errors = add(error, other.error);
    error = 0.0f;
    fold(other.sum, 0);
    error = add(errors, error);
  }
  // Of an infinite sum the error is not a number.
  __device__ __forceinline__ float result() const { return magnitude(error) < infinity() ? add(sum, error) : sum; }
  __device__ __forceinline__ uint32_t first() const { return bits_of(sum); }
  __device__ __forceinline__ uint32_t second() const { return bits_of(error); }
  __device__ __forceinline__ void set(uint32_t a, uint32_t b) {
    sum = float_of(a);
    error = float_of(b);
  }
};

__device__ __forceinline__ uint32_t word_of(float x) { return bits_of(x); }
__device__ __forceinline__ uint32_t word_of(int32_t x) { return static_cast<uint32_t>(x); }
__device__ __forceinline__ uint32_t word_of(bool x) { return x ? 1u : 0u; }
__device__ __forceinline__ void from_word(uint32_t word, float &x) { x = float_of(word); }
__device__ __forceinline__ void from_word(uint32_t word, int32_t &x) { x = wrapped(word); }
__device__ __forceinline__ void from_word(uint32_t word, bool &x) { x = word != 0; }

#define GPUOS_FOLD(Name, T, identity, combine)                                                 \
  struct Name {                                                                                \
    T value = identity;                                                                        \
    __device__ __forceinline__ void fold(T x, uint32_t) { value = combine(value, x); }         \
    __device__ __forceinline__ void merge(const Name &other) { value = combine(value, other.value); } \
    __device__ __forceinline__ T result() const { return value; }                              \
    __device__ __forceinline__ uint32_t first() const { return word_of(value); }               \
    __device__ __forceinline__ uint32_t second() const { return 0; }                           \
    __device__ __forceinline__ void set(uint32_t a, uint32_t) { from_word(a, value); }         \
  };
GPUOS_FOLD(ProdFloat, float, 1.0f, mul)
GPUOS_FOLD(MaxFloat, float, -infinity(), map_maximum)
GPUOS_FOLD(MinFloat, float, infinity(), map_minimum)
GPUOS_FOLD(SumInt, int32_t, 0, map_add)
GPUOS_FOLD(ProdInt, int32_t, 1, map_mul)
GPUOS_FOLD(MaxInt, int32_t, -2147483647 - 1, map_maximum)
GPUOS_FOLD(MinInt, int32_t, 2147483647, map_minimum)
GPUOS_FOLD(Any, bool, false, map_logical_or)
GPUOS_FOLD(All, bool, true, map_logical_and)
#undef GPUOS_FOLD

// Whether x beats y by value: NaN is best.
__device__ __forceinline__ bool beats(float x, float y, bool greatest) {
  return is_nan(x) ? !is_nan(y) : greatest ? x > y : x < y;
}
__device__ __forceinline__ bool beats(int32_t x, int32_t y, bool greatest) { return greatest ? x > y : x < y; }

// The first column of the extreme. Column 2^32 - 1 stands for no column yet.
#define GPUOS_ARG(Name, T, greatest)                                                                            \
  struct Name {                                                                                                 \
    T value = 0;                                                                                                \
    uint32_t column = 0xffffffffu;                                                                              \
    __device__ __forceinline__ void take(T x, uint32_t at) {                                                    \
      if (at == 0xffffffffu) return;                                                                            \
      if (column == 0xffffffffu || beats(x, value, greatest) || (at < column && !beats(value, x, greatest))) {  \
        value = x;                                                                                              \
        column = at;                                                                                            \
      }                                                                                                         \
    }                                                                                                           \
    __device__ __forceinline__ void fold(T x, uint32_t at) { take(x, at); }                                     \
    __device__ __forceinline__ void merge(const Name &other) { take(other.value, other.column); }               \
    __device__ __forceinline__ int32_t result() const { return column == 0xffffffffu ? 0 : wrapped(column); }   \
    __device__ __forceinline__ uint32_t first() const { return word_of(value); }                                \
    __device__ __forceinline__ uint32_t second() const { return column; }                                       \
    __device__ __forceinline__ void set(uint32_t a, uint32_t b) {                                               \
      from_word(a, value);                                                                                      \
      column = b;                                                                                               \
    }                                                                                                           \
  };
GPUOS_ARG(ArgmaxFloat, float, true)
GPUOS_ARG(ArgminFloat, float, false)
GPUOS_ARG(ArgmaxInt, int32_t, true)
GPUOS_ARG(ArgminInt, int32_t, false)
#undef GPUOS_ARG

// --- Parameters, elements -----------------------------------------------------------------------------------------------

// A copy of the parameter block in shared memory: the block may lie in the host's memory. Other threads may still be at
// the tile before, which reads the same words there: no barrier comes first. What a tile has in `shared` besides is
// written after this one's barrier.
__device__ __forceinline__ const uint32_t *stage(const uint64_t *params, uint32_t words, char *shared) {
  uint32_t *copy = reinterpret_cast<uint32_t *>(shared);
  const uint32_t *block = reinterpret_cast<const uint32_t *>(params);
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) copy[i] = block[i];
  __syncthreads();
  return copy;
}

// Hides where an address comes from, so that what is read through it is read again in each turn of a loop: for programs
// with more operands than registers.
__device__ __forceinline__ const uint32_t *reread(const uint32_t *words) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+l"(words));
#endif
  return words;
}

template <class T>
__device__ __forceinline__ T *pointer(const uint32_t *words, uint32_t i) {
  return reinterpret_cast<T *>(static_cast<uint64_t>(words[2 * i]) | static_cast<uint64_t>(words[2 * i + 1]) << 32);
}

// Elements from one row to the next along a dimension, times a coordinate; also of columns.
__device__ __forceinline__ int64_t offset(const uint32_t *words, uint32_t word, uint32_t coordinate) {
  return static_cast<int64_t>(wrapped(words[word])) * coordinate;
}

__device__ __forceinline__ bool is_aligned(const void *address) { return (reinterpret_cast<uint64_t>(address) & 15) == 0; }

// Elements in memory are float or int32 (a bool is an int32 0 or 1), or halves.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T v[4];
};

// Columns `column` to column + 3 of a row, all of which are there.
template <class T>
__device__ __forceinline__ Four<T> load_four(const T *row, uint32_t column) {
  return *reinterpret_cast<const Four<T> *>(row + column);
}

// The same where the row is not aligned to 16 bytes.
template <class T>
__device__ __forceinline__ Four<T> load_four_apart(const T *row, uint32_t column) {
  Four<T> four;
#pragma unroll
  for (uint32_t l = 0; l < 4; l++) four.v[l] = row[column + l];
  return four;
}

template <class T>
__device__ __forceinline__ Four<T> load_strided(const T *row, uint32_t column, int32_t stride) {
  Four<T> four;
#pragma unroll
  for (uint32_t l = 0; l < 4; l++) four.v[l] = row[static_cast<int64_t>(stride) * (column + l)];
  return four;
}

template <class T>
__device__ __forceinline__ void store_four(T *row, uint32_t column, const Four<T> &four) {
  *reinterpret_cast<Four<T> *>(row + column) = four;
}

template <class T>
__device__ __forceinline__ void store_four_apart(T *row, uint32_t column, const Four<T> &four) {
#pragma unroll
  for (uint32_t l = 0; l < 4; l++) row[column + l] = four.v[l];
}

// --- Who does what ------------------------------------------------------------------------------------------------------

// floor(units t / tiles), without a 64-bit division, which nvcc makes a call; t <= tiles < 65536.
__device__ __forceinline__ uint32_t first_unit(uint32_t units, uint32_t t, uint32_t tiles) {
  return units / tiles * t + units % tiles * t / tiles;
}

struct Span {
  uint32_t begin, end;
};

// The columns of a tile where tiles split the columns: [t c, min(columns, (t+1) c)), c = ceil(columns / tiles / 16) 16.
__device__ __forceinline__ Span columns_of_tile(uint32_t columns, uint32_t tile, uint32_t tiles) {
  const uint32_t sixteens = columns / 16 + (columns % 16 != 0 ? 1 : 0);
  const uint64_t chunk = static_cast<uint64_t>(sixteens / tiles + (sixteens % tiles != 0 ? 1 : 0)) * 16;
  const uint64_t begin = chunk * tile;
  const uint64_t end = begin + chunk;
  return {begin < columns ? static_cast<uint32_t>(begin) : columns, end < columns ? static_cast<uint32_t>(end) : columns};
}

// A row is shared by `lanes` threads: 1, 2, 4, 8, 16 or 32 within a warp, or the whole block. The block works at as many
// rows at a time as it has such groups.
struct Group {
  uint32_t lanes;
  uint32_t lane;
  // Which of the block's groups this is, and how many there are.
  uint32_t index;
  uint32_t count;
  // Shared memory for reductions across warps: two halves, used in turn, so that one barrier a reduction is enough.
  uint32_t *scratch;
  uint32_t turn;
};

// `pieces`: into how many pieces a row falls that one thread takes at a time. Up to 4 a lane a warp takes a row, unless
// there are too few rows for all warps; then the block.
__device__ __forceinline__ Group share_rows(uint32_t rows, uint32_t pieces, char *scratch) {
  uint32_t lanes = 1;
  while (lanes < 32 && lanes < pieces) lanes *= 2;
  if (pieces > 32 && (pieces > 128 || rows < blockDim.x / 32)) lanes = blockDim.x;
  return {lanes, threadIdx.x % lanes, threadIdx.x / lanes, blockDim.x / lanes, reinterpret_cast<uint32_t *>(scratch), 0};
}

__device__ __forceinline__ Group whole_block(char *scratch) {
  return {blockDim.x, threadIdx.x, 0, 1, reinterpret_cast<uint32_t *>(scratch), 0};
}

// Before sm_90 nvcc makes every shuffle a call of a helper, which injected code must not have: there the threads of a
// group exchange through shared memory.
#ifndef GPUOS_SHUFFLES
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define GPUOS_SHUFFLES 0
#else
#define GPUOS_SHUFFLES 1
#endif
#endif

// What the lanes of a group have read so far is read before any of them goes on. All threads of the block call it together.
__device__ __forceinline__ void settle(const Group &group) {
#if GPUOS_SHUFFLES
  if (group.lanes <= 32) {
    __syncwarp();
    return;
  }
#endif
  __syncthreads();
}

template <class R>
__device__ __forceinline__ void merge_words(R &state, uint32_t first, uint32_t second) {
  R other;
  other.set(first, second);
  state.merge(other);
}

// `state` becomes what `count` states in a row give. (Not `state = R()`: nvcc puts that value into a global.)
template <class R>
__device__ __forceinline__ void merge_list(R &state, const uint32_t *states, uint32_t count) {
  R total;
#pragma unroll 1
  for (uint32_t i = 0; i < count; i++) merge_words(total, states[2 * i], states[2 * i + 1]);
  state = total;
}

// Merges the states of all lanes of a group; each lane has the result. All threads of the block call it together.
template <class R>
__device__ __forceinline__ void reduce(Group &group, R &state) {
  uint32_t *half = group.scratch + group.turn * 2 * blockDim.x;
  group.turn ^= 1;
  const uint32_t width = group.lanes < 32 ? group.lanes : 32;
#if GPUOS_SHUFFLES
#pragma unroll 1
  for (uint32_t distance = 1; distance < width; distance *= 2) {
    const uint32_t first = __shfl_xor_sync(0xffffffffu, state.first(), distance);
    const uint32_t second = __shfl_xor_sync(0xffffffffu, state.second(), distance);
    merge_words(state, first, second);
  }
  if (group.lanes <= 32) return;
#else
  half[2 * threadIdx.x] = state.first();
  half[2 * threadIdx.x + 1] = state.second();
  __syncthreads();
  merge_list(state, half + 2 * (threadIdx.x / width * width), width);
  if (group.lanes <= 32) return;
  // The other half: a thread may still be reading this one.
  half = group.scratch + group.turn * 2 * blockDim.x;
  group.turn ^= 1;
#endif
  if ((threadIdx.x & 31) == 0) {
    half[threadIdx.x / 32 * 2] = state.first();
    half[threadIdx.x / 32 * 2 + 1] = state.second();
  }
  __syncthreads();
  merge_list(state, half, blockDim.x / 32);
}

}  // namespace program
