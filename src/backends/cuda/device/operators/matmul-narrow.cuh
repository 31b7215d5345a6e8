// Products of one to eight rows: B is read once, in the order in which it lies, by all threads; the rows of A wait in
// shared memory if they fit. Each thread has sums for all rows, and parts of k are added up at the end.
#pragma once

namespace operators {

// C[m, n] = A[m, k] B[k, n]. Strides in elements; the columns of C are consecutive. Packed: B is the panels of
// pack_panels, each of 8 columns. Of halves C may be float32 (`wide`), for a caller who goes on with it before it is rounded.
template <typename T>
struct Product {
  const T *a;
  const T *b;
  T *c;
  // Elements from `c` to where C begins.
  int64_t c_start;
  int64_t a_row, a_column, b_row, b_column, c_row;
  uint32_t m, n, k;
  bool packed, wide;
};

template <typename T>
__device__ __forceinline__ int64_t column_offset(const Product<T> &p, uint32_t column) {
  return p.packed ? static_cast<int64_t>(column / 8) * 8 * p.k + column % 8 : column * p.b_column;
}

template <typename T>
__device__ __forceinline__ void store_sum(const Product<T> &p, int64_t row, uint32_t column, float sum) {
  const int64_t place = p.c_start + row * p.c_row + column;
  if (p.wide) reinterpret_cast<float *>(p.c)[place] = sum;
  else store(p.c + place, sum);
}

// Elements of B that a thread loads at once for R rows: with eight of them, whose sums take most of its registers, no more
// than four.
template <typename T, uint32_t R>
constexpr uint32_t AT_ONCE = R == 8 ? 4 : VECTOR<T>;

// Floats of the scratch that sums of the block's threads need; behind them are the rows of A.
__device__ __forceinline__ uint32_t sum_floats() { return 4 * blockDim.x; }
__device__ __forceinline__ uint32_t row_bytes() { return GPUOS_SHARED_BYTES - STAGED_BYTES - 4 * sum_floats(); }

// `depth` columns of A from `k0` on, k by k with R rows each, zeros past the last. Begins and ends with a barrier.
template <typename T, uint32_t R>
__device__ __forceinline__ void stage_rows(const Product<T> &p, uint32_t k0, uint32_t depth, float *rows) {
  __syncthreads();
  for (uint32_t r = 0; r < R; r++) {
    const T *row = p.a + r * p.a_row + k0 * p.a_column;
    for (uint32_t k = threadIdx.x; k < depth; k += blockDim.x) rows[k * R + r] = r < p.m ? widened(row[k * p.a_column]) : 0.0f;
  }
  __syncthreads();
}

// Every thread has some columns and each groups-th k: with VECTORS as many consecutive columns as are loaded at once, else
// four that lie apart, so that consecutive threads read consecutive elements.
template <typename T, uint32_t R, bool VECTORS>
static __device__ __noinline__ void sweep_columns(const Product<T> &given, float *scratch) {
  constexpr uint32_t V = VECTORS ? AT_ONCE<T, R> : 4;
  const Product<T> p = given;
  float *rows = scratch + sum_floats();
  const uint32_t pass = row_bytes() / 4 / R;
  uint32_t across = 1;
  while (V * across < p.n && 2 * across <= blockDim.x) across *= 2;
  const uint32_t groups = blockDim.x / across;
  const uint32_t group = threadIdx.x / across;
  const uint32_t place = threadIdx.x % across;
  const uint32_t step = VECTORS ? 1 : across;
  // Whose sums remain after those of a warp are added: of each warp its first threads, or all.
  const bool narrow = across < 32;
  const uint32_t parts = narrow ? blockDim.x / 32 : groups;
  const uint32_t part = narrow ? threadIdx.x / 32 : group;
  const bool tells = narrow ? (threadIdx.x & 31) < across : group < groups;

  for (uint32_t n0 = 0; n0 < p.n; n0 += V * across) {
    const uint32_t column = n0 + (VECTORS ? V * place : place);
    float sums[R][V] = {};
    auto add = [&](uint32_t k, const float(&b)[V]) {
#pragma unroll
      for (uint32_t r = 0; r < R; r++) {
        const float value = rows[k * R + r];
#pragma unroll
        for (uint32_t j = 0; j < V; j++) sums[r][j] += value * b[j];
      }
    };
    for (uint32_t k0 = 0; k0 < p.k; k0 += pass) {
      const uint32_t depth = min(pass, p.k - k0);
      if (n0 == 0 || p.k > pass) stage_rows<T, R>(p, k0, depth, rows);
      if (group >= groups || column >= p.n) continue;
      const T *b = p.b + k0 * p.b_row;
      if constexpr (VECTORS) {
        if (p.packed || column + V <= p.n) {
          b += column_offset(p, column);
#pragma unroll 4
          for (uint32_t k = group; k < depth; k += groups) {
            float held[V];
            load_vector(b + k * p.b_row, held);
            add(k, held);
          }
          continue;
        }
      }
      int64_t from[V];
#pragma unroll
      for (uint32_t j = 0; j < V; j++) from[j] = column_offset(p, min(column + j * step, p.n - 1));
#pragma unroll(V == 4 ? 4 : 1)
      for (uint32_t k = group; k < depth; k += groups) {
        const T *at = b + k * p.b_row;
        float held[V];
#pragma unroll
        for (uint32_t j = 0; j < V; j++) held[j] = widened(at[from[j]]);
        add(k, held);
      }
    }
#pragma unroll
    for (uint32_t r = 0; r < R; r++) {
      if (r >= p.m) continue;
      if (narrow) {
        for (uint32_t apart = across; apart < 32; apart *= 2) {
#pragma unroll
          for (uint32_t j = 0; j < V; j++) sums[r][j] += __shfl_xor_sync(0xffffffffu, sums[r][j], apart);
        }
      }
      if (parts == 1) {
        if (!tells) continue;
#pragma unroll
        for (uint32_t j = 0; j < V; j++) {
          if (column + j * step < p.n) store_sum(p, r, column + j * step, sums[r][j]);
        }
        continue;
      }
      // Four of a thread's columns at a time, for which there is room.
#pragma unroll
      for (uint32_t j0 = 0; j0 < V; j0 += 4) {
        __syncthreads();
        if (tells) {
#pragma unroll
          for (uint32_t j = 0; j < 4; j++) scratch[4 * part * across + (VECTORS ? 4 * place + j : place + j * across)] = sums[r][j0 + j];
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < 4 * across; i += blockDim.x) {
          const uint32_t to = n0 + (VECTORS ? V * (i / 4) + j0 + i % 4 : i);
          float sum = 0;
          for (uint32_t other = 0; other < parts; other++) sum += scratch[4 * other * across + i];
          if (to < p.n) store_sum(p, r, to, sum);
        }
      }
    }
  }
}

// The rows of A as they can be read: element (row, k) at rows[row * row_step + k * k_step].
template <typename T>
struct Rows {
  const T *rows;
  int64_t row_step;
  int64_t k_step;
};

// The rows of A one after the other in shared memory, or as they lie if they do not fit.
template <typename T>
__device__ __forceinline__ Rows<T> rows_of(const Product<T> &p, float *scratch) {
  T *copy = reinterpret_cast<T *>(scratch + sum_floats());
  // Others may still read what was there before.
  __syncthreads();
  const uint64_t pitch = (static_cast<uint64_t>(p.k) + VECTOR<T> - 1) / VECTOR<T> * VECTOR<T>;
  if (p.m * pitch * sizeof(T) > row_bytes()) return {p.a, p.a_row, p.a_column};
  for (uint32_t r = 0; r < p.m; r++) {
    const T *row = p.a + r * p.a_row;
    for (uint32_t k = threadIdx.x; k < p.k; k += blockDim.x) copy[r * pitch + k] = row[k * p.a_column];
  }
  __syncthreads();
  return {copy, static_cast<int64_t>(pitch), 1};
}

// Where k is what lies consecutively in B: a warp has V columns, and its lanes consecutive k, or vectors of them. If there
// are fewer columns than warps, several share one, each with a part of k.
template <typename T, uint32_t R, uint32_t V>
static __device__ __noinline__ void dot_columns(const Product<T> &given, float *scratch) {
  const Product<T> p = given;
  const Rows<T> a = rows_of(p, scratch);
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t warps = blockDim.x / 32;
  const uint32_t wanted = (p.n + V - 1) / V;
  const uint32_t shares = wanted >= warps ? 1 : warps / wanted;
  const uint32_t at_once = warps / shares;
  const uint32_t share = warp % shares;
  constexpr uint32_t W = AT_ONCE<T, R>;
  const bool vectors = holds_vectors(p.b, p.b_column, W) && a.k_step == 1 && holds_vectors(a.rows, a.row_step, W);
  // k before this one are read by vectors.
  const uint32_t whole = vectors ? p.k / W * W : 0;
  for (uint32_t base = 0; base < wanted; base += at_once) {
    const uint32_t first = (base + warp / shares) * V;
    const bool works = warp < at_once * shares && first < p.n;
    float sums[R][V] = {};
    if (works) {
      const T *from[V];
#pragma unroll
      for (uint32_t j = 0; j < V; j++) from[j] = p.b + min(first + j, p.n - 1) * p.b_column;
#pragma unroll(R == 1 ? 4 : 1)
      for (uint32_t k = W * (32 * share + lane); k < whole; k += W * 32 * shares) {
        float b[V][W];
#pragma unroll
        for (uint32_t j = 0; j < V; j++) load_vector(from[j] + k, b[j]);
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
          float value[W];
          load_vector(a.rows + (R == 1 ? 0 : min(r, p.m - 1)) * a.row_step + k, value);
#pragma unroll
          for (uint32_t j = 0; j < V; j++) {
#pragma unroll
            for (uint32_t i = 0; i < W; i++) sums[r][j] += value[i] * b[j][i];
          }
        }
      }
#pragma unroll(R == 8 ? 2 : 4)
      for (uint32_t k = whole + 32 * share + lane; k < p.k; k += 32 * shares) {
        float b[V];
#pragma unroll
        for (uint32_t j = 0; j < V; j++) b[j] = widened(from[j][k]);
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
          const float value = widened(a.rows[(R == 1 ? 0 : min(r, p.m - 1)) * a.row_step + k * a.k_step]);
#pragma unroll
          for (uint32_t j = 0; j < V; j++) sums[r][j] += value * b[j];
        }
      }
    }
#pragma unroll
    for (uint32_t r = 0; r < R; r++) {
#pragma unroll
      for (uint32_t j = 0; j < V; j++) {
        for (uint32_t apart = 16; apart > 0; apart /= 2) sums[r][j] += __shfl_xor_sync(0xffffffffu, sums[r][j], apart);
      }
    }
    if (shares > 1) {
      // There is only this one turn, so nobody reads what the last left.
      if (lane == 0) {
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
#pragma unroll
          for (uint32_t j = 0; j < V; j++) scratch[(warp * R + r) * V + j] = sums[r][j];
        }
      }
      __syncthreads();
      if (works && share == 0 && lane == 0) {
        for (uint32_t other = 1; other < shares; other++) {
#pragma unroll
          for (uint32_t r = 0; r < R; r++) {
#pragma unroll
            for (uint32_t j = 0; j < V; j++) sums[r][j] += scratch[((warp + other) * R + r) * V + j];
          }
        }
      }
    }
    if (!works || share != 0 || lane != 0) continue;
#pragma unroll
    for (uint32_t r = 0; r < R; r++) {
#pragma unroll
      for (uint32_t j = 0; j < V; j++) {
        if (r < p.m && first + j < p.n) store_sum(p, r, first + j, sums[r][j]);
      }
    }
  }
}

template <typename T, uint32_t R>
__device__ __forceinline__ void multiply_few(const Product<T> &p, float *scratch) {
  if (p.packed || p.b_row != 1 || p.b_column == 1 || p.k < 32) {
    if ((p.packed || p.b_column == 1) && holds_vectors(p.b, p.b_row, AT_ONCE<T, R>)) sweep_columns<T, R, true>(p, scratch);
    else sweep_columns<T, R, false>(p, scratch);
  } else if (p.n >= blockDim.x / 8) {
    dot_columns<T, R, 4>(p, scratch);
  } else {
    dot_columns<T, R, 1>(p, scratch);
  }
}

template <typename T>
__device__ __forceinline__ void multiply_narrow(const Product<T> &p, float *scratch) {
  if (p.m == 1) multiply_few<T, 1>(p, scratch);
  else if (p.m <= 4) multiply_few<T, 4>(p, scratch);
  else multiply_few<T, 8>(p, scratch);
}

}  // namespace operators
