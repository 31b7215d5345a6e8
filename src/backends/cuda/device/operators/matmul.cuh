// Matrix products. Which way is taken depends on the number of rows: with few of them B is what costs, and is read once
// and in order (matmul-narrow.cuh); with more, blocks of A and B pass through shared memory and each thread has 4 x 4
// sums.
#pragma once

namespace operators {

// Rows of A that a block of ROW_GROUPS x 4 rows of C has, and k of one slice.
template <uint32_t ROW_GROUPS>
struct Blocking {
  static constexpr uint32_t ROWS = 4 * ROW_GROUPS;
  static constexpr uint32_t DEPTH = ROW_GROUPS < 8 ? 8 : 16;
  // Elements of B that a thread moves for a slice, whatever the number of threads.
  static constexpr uint32_t MOVES = 4 * DEPTH / ROW_GROUPS;
  // Elements of A that it holds while it multiplies the slice before; with fewer than 256 threads there are more.
  static constexpr uint32_t HELD = 4;
};

// The slice of A from `k0`: element i of it, columns innermost if they are consecutive.
template <typename T, uint32_t ROWS, uint32_t DEPTH>
__device__ __forceinline__ float slice_of_a(const Product<T> &p, uint32_t m0, uint32_t k0, uint32_t i, bool by_rows, uint32_t &place) {
  const uint32_t row = by_rows ? i / DEPTH : i % ROWS;
  const uint32_t k = by_rows ? i % DEPTH : i / ROWS;
  place = k * (ROWS + 4) + row;
  return m0 + row < p.m && k0 + k < p.k ? widened(p.a[(m0 + row) * p.a_row + (k0 + k) * p.a_column]) : 0.0f;
}

// Rows m0 to m0 + 4 ROW_GROUPS - 1 of the product. Threads form ROW_GROUPS x column groups, each with 4 x 4 sums.
template <typename T, uint32_t ROW_GROUPS>
static __device__ __noinline__ void multiply_block(const Product<T> &given, uint32_t m0, float *scratch) {
  const Product<T> p = given;
  typedef Blocking<ROW_GROUPS> Sizes;
  constexpr uint32_t ROWS = Sizes::ROWS;
  constexpr uint32_t DEPTH = Sizes::DEPTH;
  // More threads would need more scratch than there is.
  const uint32_t threads = min(blockDim.x, 512u);
  const uint32_t thread = threadIdx.x;
  const bool works = thread < threads;
  const uint32_t columns = threads / ROW_GROUPS * 4;
  const uint32_t pitch = columns + 4;
  float *slice_a = scratch;
  float *slice_b = scratch + DEPTH * (ROWS + 4);
  const uint32_t row_group = thread / (columns / 4);
  const uint32_t column_group = thread % (columns / 4);
  const bool by_rows = p.a_row != 1 || p.a_column == 1;
  // Consecutive threads take consecutive k where those are consecutive in B.
  const bool by_depth = !p.packed && p.b_row == 1 && p.b_column != 1;
  const uint32_t b_column = by_depth ? thread / DEPTH : thread % columns;
  const uint32_t b_k = by_depth ? thread % DEPTH : thread / columns;
  const uint32_t next_column = by_depth ? threads / DEPTH : 0;
  const uint32_t next_k = by_depth ? 0 : ROW_GROUPS / 4;
  float *wide = reinterpret_cast<float *>(p.c) + p.c_start;
  T *narrow = p.c + p.c_start;
  const bool stores_four = p.wide ? holds_vectors(wide, p.c_row, 4) : holds_vectors(narrow, p.c_row, 4);

  for (uint32_t n0 = 0; n0 < p.n; n0 += columns) {
    float sums[4][4] = {};
    float held_a[Sizes::HELD];
    float held_b[Sizes::MOVES];
    const int64_t only = by_depth || n0 + b_column >= p.n ? 0 : column_offset(p, n0 + b_column);
    auto load = [&](uint32_t k0) {
      uint32_t place;
#pragma unroll
      for (uint32_t j = 0; j < Sizes::HELD; j++) {
        const uint32_t i = thread + j * threads;
        held_a[j] = i < ROWS * DEPTH ? slice_of_a<T, ROWS, DEPTH>(p, m0, k0, i, by_rows, place) : 0.0f;
      }
#pragma unroll
      for (uint32_t j = 0; j < Sizes::MOVES; j++) {
        const uint32_t column = n0 + b_column + j * next_column;
        const uint32_t k = k0 + b_k + j * next_k;
        const int64_t offset = by_depth ? column * p.b_column : only;
        held_b[j] = column < p.n && k < p.k ? widened(p.b[offset + k * p.b_row]) : 0.0f;
      }
    };
    if (works && p.k > 0) load(0);
    for (uint32_t k0 = 0; k0 < p.k; k0 += DEPTH) {
      __syncthreads();
      if (works) {
        uint32_t place;
#pragma unroll
        for (uint32_t j = 0; j < Sizes::HELD; j++) {
          const uint32_t i = thread + j * threads;
          if (i >= ROWS * DEPTH) continue;
          place = by_rows ? i % DEPTH * (ROWS + 4) + i / DEPTH : i / ROWS * (ROWS + 4) + i % ROWS;
          slice_a[place] = held_a[j];
        }
        for (uint32_t i = thread + Sizes::HELD * threads; i < ROWS * DEPTH; i += threads) {
          const float value = slice_of_a<T, ROWS, DEPTH>(p, m0, k0, i, by_rows, place);
          slice_a[place] = value;
        }
#pragma unroll
        for (uint32_t j = 0; j < Sizes::MOVES; j++) slice_b[(b_k + j * next_k) * pitch + b_column + j * next_column] = held_b[j];
      }
      __syncthreads();
      if (!works) continue;
      if (k0 + DEPTH < p.k) load(k0 + DEPTH);
#pragma unroll
      for (uint32_t k = 0; k < DEPTH; k++) {
        const float4 x = *reinterpret_cast<const float4 *>(slice_a + k * (ROWS + 4) + 4 * row_group);
        const float4 y = *reinterpret_cast<const float4 *>(slice_b + k * pitch + 4 * column_group);
        const float left[4] = {x.x, x.y, x.z, x.w};
        const float right[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
#pragma unroll
          for (uint32_t j = 0; j < 4; j++) sums[i][j] += left[i] * right[j];
        }
      }
    }
    if (!works) continue;
    const uint32_t column = n0 + 4 * column_group;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      const uint32_t row = m0 + 4 * row_group + i;
      if (row >= p.m || column >= p.n) continue;
      if (stores_four && column + 4 <= p.n) {
        if (p.wide) store_four(wide + row * p.c_row + column, sums[i]);
        else store_four(narrow + row * p.c_row + column, sums[i]);
        continue;
      }
#pragma unroll
      for (uint32_t j = 0; j < 4; j++) {
        if (column + j < p.n) store_sum(p, row, column + j, sums[i][j]);
      }
    }
  }
}

template <typename T>
__device__ __forceinline__ void multiply(const Product<T> &whole, float *scratch) {
  for (uint32_t m0 = 0; m0 < whole.m;) {
    const uint32_t rows = whole.m - m0;
    if (rows > 32) {
      multiply_block<T, 16>(whole, m0, scratch);
      m0 += 64;
    } else if (rows > 16) {
      multiply_block<T, 8>(whole, m0, scratch);
      m0 += 32;
    } else if (rows > 8) {
      multiply_block<T, 4>(whole, m0, scratch);
      m0 += 16;
    } else {
      Product<T> p = whole;
      p.a += m0 * p.a_row;
      p.c_start += m0 * p.c_row;
      p.m = rows;
      multiply_narrow(p, scratch);
      m0 += 8;
    }
  }
}

// Batched matrix product. Pointers: A, B (or its panels), C. Words: units, form (bit 0: B is packed; bit 1: C is float32
// whatever A and B are), partition (0: a unit is a row, 1: a panel of 8 columns), M, N, K, row and column stride of A, of B
// (ignored where packed), row stride of C, batch rank k, dims[k], strides of A[k], of B[k] (packed: in elements of the
// panels), of C[k]. Units count through the batch: batch * M or batch * ceil(N/8).
template <typename T>
__device__ __forceinline__ uint32_t matmul(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const T *a = pointer_at<const T>(params, 0);
  const T *b = pointer_at<const T>(params, 1);
  const uint32_t *words = words_after(params, 3);
  const uint32_t units = words[0];
  const bool columns = words[2] != 0;
  const uint32_t M = words[3];
  const uint32_t N = words[4];
  Product<T> p;
  p.c = pointer_at<T>(params, 2);
  p.packed = (words[1] & 1) != 0;
  p.wide = (words[1] & 2) != 0;
  p.k = words[5];
  p.a_row = static_cast<int32_t>(words[6]);
  p.a_column = static_cast<int32_t>(words[7]);
  p.b_row = p.packed ? 8 : static_cast<int32_t>(words[8]);
  p.b_column = static_cast<int32_t>(words[9]);
  p.c_row = static_cast<int32_t>(words[10]);
  const uint32_t rank = words[11];
  const uint32_t first = unit_bound(units, tile, tiles);
  const uint32_t last = unit_bound(units, tile + 1, tiles);
  if (first >= last) return GPUOS_STATUS_OK;
  const uint32_t *dims = stage(words + 12, 4 * rank, shared);
  const uint32_t each = columns ? (N + 7) / 8 : M;
  for (uint32_t unit = first; unit < last;) {
    const uint32_t batch = unit / each;
    const uint32_t from = unit - batch * each;
    const uint32_t count = min(each - from, last - unit);
    const uint32_t m0 = columns ? 0 : from;
    const uint32_t n0 = columns ? from * 8 : 0;
    p.m = columns ? M : count;
    p.n = columns ? min(N - n0, count * 8) : N;
    p.a = a + offset_of(batch, rank, dims, dims + rank) + m0 * p.a_row;
    p.b = b + offset_of(batch, rank, dims, dims + 2 * rank) + column_offset(p, n0);
    p.c_start = offset_of(batch, rank, dims, dims + 3 * rank) + m0 * p.c_row + n0;
    multiply(p, reinterpret_cast<float *>(shared + STAGED_BYTES));
    unit += count;
  }
  return GPUOS_STATUS_OK;
}

}  // namespace operators

GPUOS_OPERATOR(matmul, matmul<float>)
GPUOS_OPERATOR(matmul_float16, matmul<operators::Float16>)
GPUOS_OPERATOR(matmul_bfloat16, matmul<operators::Bfloat16>)

extern "C" {

// Packs B[K, N] of any strides into panels [ceil(N/8)][K][8], columns past N zero. Pointers: B, panels. Words: units
// (panels, through the batch), N, K, row stride, column stride, batch rank k, dims[k], strides of B[k]. The panels of one
// matrix follow those of the one before.
__device__ __noinline__ uint32_t operator_pack_panels(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared,
                                                      const uint32_t *data) {
  using namespace operators;
  const float *b = pointer_at<const float>(params, 0);
  float *panels = pointer_at<float>(params, 1);
  const uint32_t *words = words_after(params, 2);
  const uint32_t units = words[0];
  const uint32_t N = words[1];
  const uint32_t K = words[2];
  const int64_t row = static_cast<int32_t>(words[3]);
  const int64_t column = static_cast<int32_t>(words[4]);
  const uint32_t rank = words[5];
  const uint32_t *dims = stage(words + 6, 2 * rank, shared);
  const uint32_t each = (N + 7) / 8;
  const uint32_t first = unit_bound(units, tile, tiles);
  const uint32_t last = unit_bound(units, tile + 1, tiles);
  // Where k is what lies consecutively in B, consecutive threads take consecutive k.
  const bool by_depth = row == 1 && column != 1;
  for (uint32_t unit = first; unit < last; unit++) {
    const uint32_t batch = unit / each;
    const uint32_t n0 = (unit - batch * each) * 8;
    const float *from = b + offset_of(batch, rank, dims, dims + rank) + n0 * column;
    float *to = panels + static_cast<uint64_t>(unit) * K * 8;
    for (uint32_t i = threadIdx.x; i < 8 * K; i += blockDim.x) {
      const uint32_t k = by_depth ? i % K : i / 8;
      const uint32_t c = by_depth ? i / K : i % 8;
      to[static_cast<uint64_t>(k) * 8 + c] = n0 + c < N ? from[k * row + c * column] : 0.0f;
    }
  }
  return GPUOS_STATUS_OK;
}
}
