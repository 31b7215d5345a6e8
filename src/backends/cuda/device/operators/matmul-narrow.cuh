// Products of one to eight rows: B is read once, in the order in which it lies, by all threads; the rows of A wait in
// shared memory if they fit. Each thread has sums for all rows, and parts of k are added up at the end.
#pragma once

namespace operators {

// C[m, n] = A[m, k] B[k, n]. Strides in elements; the columns of C are consecutive. Packed: B is the panels of
// pack_panels, each of 8 columns.
struct Product {
  const float *a;
  const float *b;
  float *c;
  int64_t a_row, a_column, b_row, b_column, c_row;
  uint32_t m, n, k;
  bool packed;
};

__device__ __forceinline__ int64_t column_offset(const Product &p, uint32_t column) {
  return p.packed ? static_cast<int64_t>(column / 8) * 8 * p.k + column % 8 : column * p.b_column;
}

// Whether four consecutive columns of B can be loaded at once.
__device__ __forceinline__ bool loads_four(const Product &p) {
  return (p.packed || p.b_column == 1) && ((reinterpret_cast<uint64_t>(p.b) | static_cast<uint64_t>(p.b_row * 4)) & 15) == 0;
}

// Floats of the scratch that sums of the block's threads need; behind them are the rows of A.
__device__ __forceinline__ uint32_t sum_floats() { return 4 * blockDim.x; }
__device__ __forceinline__ uint32_t row_floats() { return (GPUOS_SHARED_BYTES - STAGED_BYTES) / 4 - sum_floats(); }

// `depth` columns of A from `k0` on, k by k with R rows each, zeros past the last. Begins and ends with a barrier.
template <uint32_t R>
__device__ __forceinline__ void stage_rows(const Product &p, uint32_t k0, uint32_t depth, float *rows) {
  __syncthreads();
  for (uint32_t r = 0; r < R; r++) {
    const float *row = p.a + r * p.a_row + k0 * p.a_column;
    for (uint32_t k = threadIdx.x; k < depth; k += blockDim.x) rows[k * R + r] = r < p.m ? row[k * p.a_column] : 0.0f;
  }
  __syncthreads();
}

// Every thread has four columns and each groups-th k. Four consecutive columns where they can be loaded at once, else
// columns apart, so that consecutive threads read consecutive elements.
template <uint32_t R>
__device__ __noinline__ void sweep_columns(const Product &given, float *scratch) {
  const Product p = given;
  float *rows = scratch + sum_floats();
  const uint32_t pass = row_floats() / R;
  uint32_t across = 1;
  while (4 * across < p.n && 2 * across <= blockDim.x) across *= 2;
  const uint32_t groups = blockDim.x / across;
  const uint32_t group = threadIdx.x / across;
  const uint32_t place = threadIdx.x % across;
  const bool four = loads_four(p);
  const uint32_t step = four ? 1 : across;
  // Whose sums remain after those of a warp are added: of each warp its first threads, or all.
  const bool narrow = across < 32;
  const uint32_t parts = narrow ? blockDim.x / 32 : groups;
  const uint32_t part = narrow ? threadIdx.x / 32 : group;
  const bool tells = narrow ? (threadIdx.x & 31) < across : group < groups;

  for (uint32_t n0 = 0; n0 < p.n; n0 += 4 * across) {
    const uint32_t column = n0 + (four ? 4 * place : place);
    float sums[R][4] = {};
    auto add = [&](uint32_t k, const float(&b)[4]) {
#pragma unroll
      for (uint32_t r = 0; r < R; r++) {
        const float value = rows[k * R + r];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) sums[r][j] += value * b[j];
      }
    };
    for (uint32_t k0 = 0; k0 < p.k; k0 += pass) {
      const uint32_t depth = min(pass, p.k - k0);
      if (n0 == 0 || p.k > pass) stage_rows<R>(p, k0, depth, rows);
      if (group >= groups || column >= p.n) continue;
      const float *b = p.b + k0 * p.b_row;
      if (four && (p.packed || column + 4 <= p.n)) {
        b += column_offset(p, column);
#pragma unroll 4
        for (uint32_t k = group; k < depth; k += groups) {
          const float4 held = *reinterpret_cast<const float4 *>(b + k * p.b_row);
          add(k, {held.x, held.y, held.z, held.w});
        }
        continue;
      }
      const float *from[4];
#pragma unroll
      for (uint32_t j = 0; j < 4; j++) from[j] = b + column_offset(p, min(column + j * step, p.n - 1));
#pragma unroll 4
      for (uint32_t k = group; k < depth; k += groups) {
        const int64_t offset = k * p.b_row;
        add(k, {from[0][offset], from[1][offset], from[2][offset], from[3][offset]});
      }
    }
#pragma unroll
    for (uint32_t r = 0; r < R; r++) {
      if (r >= p.m) continue;
      if (narrow) {
        for (uint32_t apart = across; apart < 32; apart *= 2) {
#pragma unroll
          for (uint32_t j = 0; j < 4; j++) sums[r][j] += __shfl_xor_sync(0xffffffffu, sums[r][j], apart);
        }
      }
      float *to = p.c + r * p.c_row;
      if (parts == 1) {
        if (!tells) continue;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
          if (column + j * step < p.n) to[column + j * step] = sums[r][j];
        }
        continue;
      }
      __syncthreads();
      if (tells) {
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) scratch[4 * part * across + column - n0 + j * step] = sums[r][j];
      }
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < 4 * across && n0 + i < p.n; i += blockDim.x) {
        float sum = 0;
        for (uint32_t other = 0; other < parts; other++) sum += scratch[4 * other * across + i];
        to[n0 + i] = sum;
      }
    }
  }
}

// The rows of A as they can be read: element (row, k) at rows[row * row_step + k * k_step].
struct Rows {
  const float *rows;
  int64_t row_step;
  int64_t k_step;
};

// The rows of A one after the other in shared memory, or as they lie if they do not fit.
__device__ __forceinline__ Rows rows_of(const Product &p, float *scratch) {
  float *copy = scratch + sum_floats();
  // Others may still read what was there before.
  __syncthreads();
  if (static_cast<uint64_t>(p.m) * p.k > row_floats()) return {p.a, p.a_row, p.a_column};
  for (uint32_t r = 0; r < p.m; r++) {
    const float *row = p.a + r * p.a_row;
    for (uint32_t k = threadIdx.x; k < p.k; k += blockDim.x) copy[r * p.k + k] = row[k * p.a_column];
  }
  __syncthreads();
  return {copy, p.k, 1};
}

// Where k is what lies consecutively in B: a warp has V columns, and its lanes consecutive k. If there are fewer columns
// than warps, several share one, each with a part of k.
template <uint32_t R, uint32_t V>
__device__ __noinline__ void dot_columns(const Product &given, float *scratch) {
  const Product p = given;
  const Rows a = rows_of(p, scratch);
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t warps = blockDim.x / 32;
  const uint32_t wanted = (p.n + V - 1) / V;
  const uint32_t shares = wanted >= warps ? 1 : warps / wanted;
  const uint32_t at_once = warps / shares;
  const uint32_t share = warp % shares;
  for (uint32_t base = 0; base < wanted; base += at_once) {
    const uint32_t first = (base + warp / shares) * V;
    const bool works = warp < at_once * shares && first < p.n;
    float sums[R][V] = {};
    if (works) {
      const float *from[V];
#pragma unroll
      for (uint32_t j = 0; j < V; j++) from[j] = p.b + min(first + j, p.n - 1) * p.b_column;
#pragma unroll (R == 8 ? 2 : 4)
      for (uint32_t k = 32 * share + lane; k < p.k; k += 32 * shares) {
        float b[V];
#pragma unroll
        for (uint32_t j = 0; j < V; j++) b[j] = from[j][k];
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
          const float value = a.rows[(R == 1 ? 0 : min(r, p.m - 1)) * a.row_step + k * a.k_step];
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
        if (r < p.m && first + j < p.n) p.c[r * p.c_row + first + j] = sums[r][j];
      }
    }
  }
}

template <uint32_t R>
__device__ __forceinline__ void multiply_few(const Product &p, float *scratch) {
  if (p.packed || p.b_row != 1 || p.b_column == 1 || p.k < 32) sweep_columns<R>(p, scratch);
  else if (p.n >= blockDim.x / 8) dot_columns<R, 4>(p, scratch);
  else dot_columns<R, 1>(p, scratch);
}

__device__ __forceinline__ void multiply_narrow(const Product &p, float *scratch) {
  if (p.m == 1) multiply_few<1>(p, scratch);
  else if (p.m <= 4) multiply_few<4>(p, scratch);
  else multiply_few<8>(p, scratch);
}

}  // namespace operators
