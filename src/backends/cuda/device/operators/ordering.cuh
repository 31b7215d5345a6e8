// The greatest of a row, and running sums.
#pragma once

namespace operators {

// A number that is greater for what comes first in the result: by value, with NaN above all and -0 equal to 0.
__device__ __forceinline__ uint32_t key_of(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0xffffffffu;
  if ((bits & 0x7fffffffu) == 0) return 0x80000000u;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ uint32_t key_of(int32_t value) { return static_cast<uint32_t>(value) ^ 0x80000000u; }

// One number for an element and its place: among equal ones the lower index is greater. No two elements of a row have the
// same, and none has 0.
template <typename T>
__device__ __forceinline__ uint64_t rank_of(T value, uint32_t index) {
  return static_cast<uint64_t>(key_of(widened(value))) << 32 | (0xffffffffu - index);
}

__device__ __forceinline__ uint32_t index_of(uint64_t rank) { return 0xffffffffu - static_cast<uint32_t>(rank); }

template <typename T>
struct Row {
  const T *x;
  T *values;
  uint32_t *places;
  uint32_t length;
  uint32_t k;
};

template <typename T>
__device__ __forceinline__ void put(const Row<T> &row, uint32_t i, uint64_t rank) {
  const uint32_t index = index_of(rank);
  row.values[i] = row.x[index];
  row.places[i] = index;
}

// A warp's row of up to 32: an element's place is the number of those before it.
template <typename T>
__device__ __forceinline__ void top_of_warp(const Row<T> &row) {
  const uint32_t lane = threadIdx.x & 31;
  const uint64_t own = lane < row.length ? rank_of(row.x[lane], lane) : 0;
  uint32_t before = 0;
  for (uint32_t i = 0; i < 32; i++) before += __shfl_sync(0xffffffffu, own, i) > own;
  if (lane < row.length && before < row.k) put(row, before, own);
}

// A few of a long row, one pass for each: what is greatest below the one before. By a warp, or by the block.
template <typename T>
__device__ __forceinline__ void top_by_passes(const Row<T> &row, bool block, uint64_t *scratch) {
  const uint32_t lanes = block ? blockDim.x : 32;
  const uint32_t lane = threadIdx.x & (block ? 0xffffffffu : 31u);
  uint64_t ceiling = 0xffffffffffffffffull;
  for (uint32_t i = 0; i < row.k; i++) {
    uint64_t most = 0;
    for (uint32_t j = lane; j < row.length; j += lanes) {
      const uint64_t rank = rank_of(row.x[j], j);
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
template <typename T>
__device__ __forceinline__ uint64_t select_rank(const Row<T> &row, uint64_t ceiling, bool all, uint32_t need, uint32_t *bins) {
  uint64_t prefix = 0;
  for (uint32_t digit = 8; digit-- > 0;) {
    const uint32_t shift = 8 * digit;
    // Others may still read the bin of the digit before.
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < row.length; i += blockDim.x) {
      const uint64_t rank = rank_of(row.x[i], i);
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

template <typename T>
__device__ __forceinline__ void top_by_sorting(const Row<T> &row, char *shared) {
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
      ranks[i] = whole && i < row.length ? rank_of(row.x[i], i) : 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < row.length && !whole; i += blockDim.x) {
      const uint64_t rank = rank_of(row.x[i], i);
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

// Sums of floats are in double precision, and rounded when they are stored; those of integers wrap.
template <typename T>
struct Summed {
  typedef double Sum;
};
template <>
struct Summed<uint32_t> {
  typedef uint32_t Sum;
};

template <typename T>
__device__ __forceinline__ double summand(T x) { return static_cast<double>(widened(x)); }
__device__ __forceinline__ uint32_t summand(uint32_t x) { return x; }
template <typename T>
__device__ __forceinline__ void put_sum(T *to, double sum) { store(to, static_cast<float>(sum)); }
__device__ __forceinline__ void put_sum(uint32_t *to, uint32_t sum) { *to = sum; }

template <typename T>
struct Line {
  const T *x;
  T *out;
  uint32_t size;
  bool exclusive;
  bool reverse;
};

// One line of consecutive elements, by a warp or by the block. `totals` has two elements a warp.
template <typename T>
__device__ __forceinline__ void sum_line(const Line<T> &line, bool block, typename Summed<T>::Sum *totals) {
  typedef typename Summed<T>::Sum Sum;
  const uint32_t lanes = block ? blockDim.x : 32;
  const uint32_t place = threadIdx.x & (block ? 0xffffffffu : 31u);
  const uint32_t lane = threadIdx.x & 31;
  Sum carry = 0;
  // Two sets of totals in turn: one barrier a step is enough.
  uint32_t turn = 0;
  for (uint32_t base = 0; base < line.size; base += lanes) {
    const uint32_t i = base + place;
    const uint32_t at = line.reverse ? line.size - 1 - i : i;
    const Sum through = scan_warp<Sum>(i < line.size ? summand(line.x[at]) : Sum(0));
    Sum before = __shfl_up_sync(0xffffffffu, through, 1);
    if (lane == 0) before = 0;
    Sum start = carry;
    const Sum total = __shfl_sync(0xffffffffu, through, 31);
    if (block) {
      Sum *own = totals + turn * (blockDim.x / 32);
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
    if (i < line.size) put_sum(line.out + at, start + (line.exclusive ? before : through));
  }
}

// Lines whose elements lie `inner` apart: a thread has its line, and eight elements of it under way.
template <typename T>
__device__ __forceinline__ void sum_apart(const Line<T> &line, uint32_t inner) {
  typename Summed<T>::Sum sum = 0;
  const int64_t step = line.reverse ? -static_cast<int64_t>(inner) : inner;
  int64_t at = line.reverse ? static_cast<int64_t>(line.size - 1) * inner : 0;
  for (uint32_t base = 0; base < line.size; base += 8) {
    const uint32_t count = min(8u, line.size - base);
    T held[8];
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) if (j < count) held[j] = line.x[at + j * step];
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) {
      if (j >= count) continue;
      const typename Summed<T>::Sum before = sum;
      sum += summand(held[j]);
      put_sum(line.out + at + j * step, line.exclusive ? before : sum);
    }
    at += 8 * step;
  }
}

template <typename T>
__device__ __forceinline__ void sum_lines(const T *x, T *out, uint32_t first, uint32_t last, uint32_t size, uint32_t inner, bool exclusive,
                                          bool reverse, char *shared) {
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
    sum_line<T>({x + start, out + start, size, exclusive, reverse}, block, reinterpret_cast<typename Summed<T>::Sum *>(shared));
    if (block) __syncthreads();
  }
}

// The k greatest of each row, greatest first, equal ones by their indices. Pointers: x (contiguous), values, indices.
// Words: units (rows), length of a row, k, whether they are integers.
template <typename T>
__device__ __forceinline__ uint32_t top_of_rows(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const T *x = pointer_at<const T>(params, 0);
  T *values = pointer_at<T>(params, 1);
  uint32_t *places = pointer_at<uint32_t>(params, 2);
  const uint32_t *words = words_after(params, 3);
  const uint32_t units = words[0];
  const uint32_t length = words[1];
  const uint32_t k = words[2];
  const uint32_t first = unit_bound(units, tile, tiles);
  const uint32_t last = unit_bound(units, tile + 1, tiles);
  if (k == 0) return GPUOS_STATUS_OK;
  const bool few = length > 32 && k <= 4;
  const bool warps = length <= 32 || (few && (length <= 1024 || last - first >= 4 * (blockDim.x / 32)));
  for (uint32_t unit = first + (warps ? threadIdx.x / 32 : 0); unit < last; unit += warps ? blockDim.x / 32 : 1) {
    const uint64_t start = static_cast<uint64_t>(unit) * k;
    const Row<T> row = {x + static_cast<uint64_t>(unit) * length, values + start, places + start, length, k};
    if (length <= 32) top_of_warp(row);
    else if (few) top_by_passes(row, !warps, reinterpret_cast<uint64_t *>(shared));
    else top_by_sorting(row, shared);
  }
  return GPUOS_STATUS_OK;
}

__device__ __forceinline__ uint32_t top_k(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const bool integers = words_after(params, 3)[3] != 0;
  return integers ? top_of_rows<int32_t>(params, tile, tiles, shared) : top_of_rows<float>(params, tile, tiles, shared);
}

// Running sums along an axis, in double precision for floats. Pointers: x (contiguous), output. Words: units (lines:
// outer * inner), size of the axis, inner, exclusive, reverse, whether they are integers.
template <typename T>
__device__ __forceinline__ uint32_t running_sums(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const uint32_t *words = words_after(params, 2);
  const uint32_t units = words[0];
  const bool exclusive = words[3] != 0;
  const bool reverse = words[4] != 0;
  sum_lines(pointer_at<const T>(params, 0), pointer_at<T>(params, 1), unit_bound(units, tile, tiles), unit_bound(units, tile + 1, tiles),
            words[1], words[2], exclusive, reverse, shared);
  return GPUOS_STATUS_OK;
}

__device__ __forceinline__ uint32_t cumsum(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const bool integers = words_after(params, 2)[5] != 0;
  return integers ? running_sums<uint32_t>(params, tile, tiles, shared) : running_sums<float>(params, tile, tiles, shared);
}

}  // namespace operators

GPUOS_OPERATOR(top_k, top_k)
GPUOS_OPERATOR(top_k_float16, top_of_rows<operators::Float16>)
GPUOS_OPERATOR(top_k_bfloat16, top_of_rows<operators::Bfloat16>)
GPUOS_OPERATOR(cumsum, cumsum)
GPUOS_OPERATOR(cumsum_float16, running_sums<operators::Float16>)
GPUOS_OPERATOR(cumsum_bfloat16, running_sums<operators::Bfloat16>)
