// The greatest of a row, and running sums.
#pragma once

namespace operators {

// One number for an element and its place: greater ones come first in the result. By value, NaN above all and -0 equal to
// 0; then by index, lower ones first. No two elements of a row have the same, and none has 0.
__device__ __forceinline__ uint64_t rank_of(uint32_t bits, uint32_t index, bool integers) {
  uint32_t key;
  if (integers) key = bits ^ 0x80000000u;
  else if ((bits & 0x7fffffffu) > 0x7f800000u) key = 0xffffffffu;
  else if ((bits & 0x7fffffffu) == 0) key = 0x80000000u;
  else key = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(key) << 32 | (0xffffffffu - index);
}

__device__ __forceinline__ uint32_t index_of(uint64_t rank) { return 0xffffffffu - static_cast<uint32_t>(rank); }

struct Row {
  const uint32_t *x;
  uint32_t *values;
  uint32_t *places;
  uint32_t length;
  uint32_t k;
  bool integers;
};

__device__ __forceinline__ void put(const Row &row, uint32_t i, uint64_t rank) {
  const uint32_t index = index_of(rank);
  row.values[i] = row.x[index];
  row.places[i] = index;
}

// A warp's row of up to 32: an element's place is the number of those before it.
__device__ __forceinline__ void top_of_warp(const Row &row) {
  const uint32_t lane = threadIdx.x & 31;
  const uint64_t own = lane < row.length ? rank_of(row.x[lane], lane, row.integers) : 0;
  uint32_t before = 0;
  for (uint32_t i = 0; i < 32; i++) before += __shfl_sync(0xffffffffu, own, i) > own;
  if (lane < row.length && before < row.k) put(row, before, own);
}

// A few of a long row, one pass for each: what is greatest below the one before. By a warp, or by the block.
__device__ __forceinline__ void top_by_passes(const Row &row, bool block, uint64_t *scratch) {
  const uint32_t lanes = block ? blockDim.x : 32;
  const uint32_t lane = threadIdx.x & (block ? 0xffffffffu : 31u);
  uint64_t ceiling = 0xffffffffffffffffull;
  for (uint32_t i = 0; i < row.k; i++) {
    uint64_t most = 0;
    for (uint32_t j = lane; j < row.length; j += lanes) {
      const uint64_t rank = rank_of(row.x[j], j, row.integers);
      if (rank < ceiling || i == 0) most = max(most, rank);
    }
    for (uint32_t step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (block) {
      __syncthreads();
      if ((threadIdx.x & 31) == 0) scratch[threadIdx.x / 32] = most;
      __syncthreads();
      for (uint32_t j = 0; j < blockDim.x / 32; j++) most = max(most, scratch[j]);
    }
    if (lane == 0) put(row, i, most);
    ceiling = most;
  }
}

// Sorts ranks[size], size a power of two, greatest first (bitonic). Begins and ends with a barrier.
__device__ __forceinline__ void sort_block(uint64_t *ranks, uint32_t size) {
  for (uint32_t run = 2; run <= size; run *= 2) {
    for (uint32_t apart = run / 2; apart > 0; apart /= 2) {
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < size / 2; i += blockDim.x) {
        const uint32_t low = 2 * i - (i & (apart - 1));
        const uint64_t a = ranks[low];
        const uint64_t b = ranks[low + apart];
        const bool falling = (low & run) == 0;
        if ((a < b) == falling) {
          ranks[low] = b;
          ranks[low + apart] = a;
        }
      }
    }
  }
  __syncthreads();
}

// How many ranks are sorted in shared memory at a time; longer results are made in parts.
constexpr uint32_t SORTED = 2048;

// The least of the `need` greatest ranks among those below `ceiling`, digit by digit of eight bits from the top: a
// histogram says in which bin it lies. `bins` has 256 words and two more.
__device__ __forceinline__ uint64_t select_rank(const Row &row, uint64_t ceiling, bool all, uint32_t need, uint32_t *bins) {
  uint64_t prefix = 0;
  for (uint32_t digit = 8; digit-- > 0;) {
    const uint32_t shift = 8 * digit;
    // Others may still read the bin of the digit before.
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < row.length; i += blockDim.x) {
      const uint64_t rank = rank_of(row.x[i], i, row.integers);
      const bool same = digit == 7 || rank >> (shift + 8) == prefix >> (shift + 8);
      if (same && (all || rank < ceiling)) atomicAdd(bins + (rank >> shift & 255), 1u);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      // Each lane has eight bins, from the greatest down.
      const uint32_t top = 255 - 8 * threadIdx.x;
      uint32_t own = 0;
      for (uint32_t j = 0; j < 8; j++) own += bins[top - j];
      uint32_t through = own;
      for (uint32_t step = 1; step < 32; step *= 2) {
        const uint32_t before = __shfl_up_sync(0xffffffffu, through, step);
        if (threadIdx.x >= step) through += before;
      }
      uint32_t left = need - (through - own);
      if (through - own < need && through >= need) {
        uint32_t bin = top;
        for (; bins[bin] < left; bin--) left -= bins[bin];
        bins[256] = bin;
        bins[257] = left;
      }
    }
    __syncthreads();
    const uint32_t bin = bins[256];
    need = bins[257];
    prefix |= static_cast<uint64_t>(bin) << shift;
    // All of the bin belongs to the greatest: its least possible rank parts them from the rest.
    if (bins[bin] == need) break;
  }
  return prefix;
}

__device__ __forceinline__ void top_by_sorting(const Row &row, char *shared) {
  uint64_t *ranks = reinterpret_cast<uint64_t *>(shared);
  uint32_t *bins = reinterpret_cast<uint32_t *>(shared + SORTED * 8);
  uint32_t *filled = bins + 258;
  uint64_t ceiling = 0;
  for (uint32_t begin = 0; begin < row.k; begin += SORTED) {
    const bool whole = row.length <= SORTED;
    const uint32_t need = min(SORTED, row.k - begin);
    const uint32_t count = whole ? row.length : need;
    uint32_t size = 1;
    while (size < count) size *= 2;
    const uint64_t least = whole ? 0 : select_rank(row, ceiling, begin == 0, need, bins);
    __syncthreads();
    if (threadIdx.x == 0) *filled = 0;
    for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) {
      ranks[i] = whole && i < row.length ? rank_of(row.x[i], i, row.integers) : 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < row.length && !whole; i += blockDim.x) {
      const uint64_t rank = rank_of(row.x[i], i, row.integers);
      if (rank >= least && (begin == 0 || rank < ceiling)) ranks[atomicAdd(filled, 1u)] = rank;
    }
    sort_block(ranks, size);
    for (uint32_t i = threadIdx.x; i < need; i += blockDim.x) put(row, begin + i, ranks[i]);
    ceiling = least;
  }
}

// Sums over the lanes of a warp up to and with each lane.
template <typename T>
__device__ __forceinline__ T scan_warp(T value) {
  const uint32_t lane = threadIdx.x & 31;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const T before = __shfl_up_sync(0xffffffffu, value, step);
    if (lane >= step) value += before;
  }
  return value;
}

struct Line {
  const uint32_t *x;
  uint32_t *out;
  uint32_t size;
  bool exclusive;
  bool reverse;
};

__device__ __forceinline__ double element_of(uint32_t bits, double) { return static_cast<double>(__uint_as_float(bits)); }
__device__ __forceinline__ uint32_t element_of(uint32_t bits, uint32_t) { return bits; }
__device__ __forceinline__ uint32_t bits_of(double value) { return __float_as_uint(static_cast<float>(value)); }
__device__ __forceinline__ uint32_t bits_of(uint32_t value) { return value; }

// One line of consecutive elements, by a warp or by the block. `totals` has two elements a warp.
template <typename T>
__device__ __forceinline__ void sum_line(const Line &line, bool block, T *totals) {
  const uint32_t lanes = block ? blockDim.x : 32;
  const uint32_t place = threadIdx.x & (block ? 0xffffffffu : 31u);
  const uint32_t lane = threadIdx.x & 31;
  T carry = 0;
  // Two sets of totals in turn: one barrier a step is enough.
  uint32_t turn = 0;
  for (uint32_t base = 0; base < line.size; base += lanes) {
    const uint32_t i = base + place;
    const uint32_t at = line.reverse ? line.size - 1 - i : i;
    const T through = scan_warp<T>(i < line.size ? element_of(line.x[at], T()) : T(0));
    T before = __shfl_up_sync(0xffffffffu, through, 1);
    if (lane == 0) before = 0;
    T start = carry;
    const T total = __shfl_sync(0xffffffffu, through, 31);
    if (block) {
      T *own = totals + turn * (blockDim.x / 32);
      turn ^= 1;
      if (lane == 0) own[threadIdx.x / 32] = total;
      __syncthreads();
      for (uint32_t j = 0; j < blockDim.x / 32; j++) {
        if (j == threadIdx.x / 32) start = carry;
        carry += own[j];
      }
    } else {
      carry += total;
    }
    if (i < line.size) line.out[at] = bits_of(start + (line.exclusive ? before : through));
  }
}

// Lines whose elements lie `inner` apart: a thread has its line, and eight elements of it under way.
template <typename T>
__device__ __forceinline__ void sum_apart(const Line &line, uint32_t inner) {
  T sum = 0;
  const int64_t step = line.reverse ? -static_cast<int64_t>(inner) : inner;
  int64_t at = line.reverse ? static_cast<int64_t>(line.size - 1) * inner : 0;
  for (uint32_t base = 0; base < line.size; base += 8) {
    const uint32_t count = min(8u, line.size - base);
    uint32_t held[8];
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) held[j] = j < count ? line.x[at + j * step] : 0;
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) {
      if (j >= count) continue;
      const T before = sum;
      sum += element_of(held[j], T());
      line.out[at + j * step] = bits_of(line.exclusive ? before : sum);
    }
    at += 8 * step;
  }
}

template <typename T>
__device__ __forceinline__ void sum_lines(const uint32_t *x, uint32_t *out, uint32_t first, uint32_t last, uint32_t size, uint32_t inner,
                                          bool exclusive, bool reverse, char *shared) {
  if (inner > 1) {
    for (uint32_t unit = first + threadIdx.x; unit < last; unit += blockDim.x) {
      const uint32_t outer = unit / inner;
      const uint64_t start = static_cast<uint64_t>(outer) * size * inner + (unit - outer * inner);
      sum_apart<T>({x + start, out + start, size, exclusive, reverse}, inner);
    }
    return;
  }
  // By the size of a line alone, so that sums do not depend on the number of tiles.
  const bool block = size >= 1024;
  if (block) __syncthreads();
  for (uint32_t unit = first + (block ? 0 : threadIdx.x / 32); unit < last; unit += block ? 1 : blockDim.x / 32) {
    const uint64_t start = static_cast<uint64_t>(unit) * size;
    sum_line<T>({x + start, out + start, size, exclusive, reverse}, block, reinterpret_cast<T *>(shared));
    if (block) __syncthreads();
  }
}

}  // namespace operators

extern "C" {

// The k greatest of each row, greatest first, equal ones by their indices. Pointers: x (contiguous), values, indices.
// Words: units (rows), length of a row, k, whether they are integers.
__device__ __noinline__ uint32_t operator_top_k(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared,
                                                const uint32_t *data) {
  using namespace operators;
  const uint32_t *x = pointer_at<const uint32_t>(params, 0);
  uint32_t *values = pointer_at<uint32_t>(params, 1);
  uint32_t *places = pointer_at<uint32_t>(params, 2);
  const uint32_t *words = words_after(params, 3);
  const uint32_t units = words[0];
  const uint32_t length = words[1];
  const uint32_t k = words[2];
  const bool integers = words[3] != 0;
  const uint32_t first = unit_bound(units, tile, tiles);
  const uint32_t last = unit_bound(units, tile + 1, tiles);
  if (k == 0) return GPUOS_STATUS_OK;
  const bool few = length > 32 && k <= 4;
  const bool warps = length <= 32 || (few && (length <= 1024 || last - first >= 4 * (blockDim.x / 32)));
  for (uint32_t unit = first + (warps ? threadIdx.x / 32 : 0); unit < last; unit += warps ? blockDim.x / 32 : 1) {
    const uint64_t start = static_cast<uint64_t>(unit) * k;
    const Row row = {x + static_cast<uint64_t>(unit) * length, values + start, places + start, length, k, integers};
    if (length <= 32) top_of_warp(row);
    else if (few) top_by_passes(row, !warps, reinterpret_cast<uint64_t *>(shared));
    else top_by_sorting(row, shared);
  }
  return GPUOS_STATUS_OK;
}

// Running sums along an axis, in double precision for floats. Pointers: x (contiguous), output. Words: units (lines:
// outer * inner), size of the axis, inner, exclusive, reverse, whether they are integers.
__device__ __noinline__ uint32_t operator_cumsum(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared,
                                                 const uint32_t *data) {
  using namespace operators;
  const uint32_t *x = pointer_at<const uint32_t>(params, 0);
  uint32_t *out = pointer_at<uint32_t>(params, 1);
  const uint32_t *words = words_after(params, 2);
  const uint32_t units = words[0];
  const uint32_t size = words[1];
  const uint32_t inner = words[2];
  const bool exclusive = words[3] != 0;
  const bool reverse = words[4] != 0;
  const bool integers = words[5] != 0;
  const uint32_t first = unit_bound(units, tile, tiles);
  const uint32_t last = unit_bound(units, tile + 1, tiles);
  if (integers) sum_lines<uint32_t>(x, out, first, last, size, inner, exclusive, reverse, shared);
  else sum_lines<double>(x, out, first, last, size, inner, exclusive, reverse, shared);
  return GPUOS_STATUS_OK;
}
}
