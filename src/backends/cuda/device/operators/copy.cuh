// Copies: of runs, of strided elements, of matrices of any strides. Elements are words, or halves of 2 bytes (T).
#pragma once

namespace operators {

// Threads `lane` of `lanes` copy `count` consecutive elements. A block has few threads for the latency of its memory,
// so each has four loads under way before it stores the first.
template <typename T>
__device__ __forceinline__ void copy_run(T *target, const T *source, uint64_t count, uint32_t lane, uint32_t lanes) {
  constexpr uint64_t in_vector = sizeof(uint4) / sizeof(T);
  uint64_t i = lane;
  if (((reinterpret_cast<uint64_t>(target) | reinterpret_cast<uint64_t>(source)) & 15) == 0) {
    uint4 *to = reinterpret_cast<uint4 *>(target);
    const uint4 *from = reinterpret_cast<const uint4 *>(source);
    const uint64_t vectors = count / in_vector;
    for (; i + 3 * lanes < vectors; i += 4 * lanes) {
      const uint4 a = from[i];
      const uint4 b = from[i + lanes];
      const uint4 c = from[i + 2 * lanes];
      const uint4 d = from[i + 3 * lanes];
      to[i] = a;
      to[i + lanes] = b;
      to[i + 2 * lanes] = c;
      to[i + 3 * lanes] = d;
    }
    for (; i < vectors; i += lanes) to[i] = from[i];
    i = vectors * in_vector + lane;
  }
  for (; i + 3 * lanes < count; i += 4 * lanes) {
    const T a = source[i];
    const T b = source[i + lanes];
    const T c = source[i + 2 * lanes];
    const T d = source[i + 3 * lanes];
    target[i] = a;
    target[i + lanes] = b;
    target[i + 2 * lanes] = c;
    target[i + 3 * lanes] = d;
  }
  for (; i < count; i += lanes) target[i] = source[i];
}

// Elements that lie `step` apart become consecutive ones.
template <typename T>
__device__ __forceinline__ void copy_elements(T *target, const T *source, int64_t step, uint32_t count, uint32_t lane, uint32_t lanes) {
  if (step == 1) {
    copy_run(target, source, count, lane, lanes);
    return;
  }
  uint32_t i = lane;
  for (; i + 3 * lanes < count; i += 4 * lanes) {
    const T a = source[i * step];
    const T b = source[(i + lanes) * step];
    const T c = source[(i + 2 * lanes) * step];
    const T d = source[(i + 3 * lanes) * step];
    target[i] = a;
    target[i + lanes] = b;
    target[i + 2 * lanes] = c;
    target[i + 3 * lanes] = d;
  }
  for (; i < count; i += lanes) target[i] = source[i * step];
}

template <typename T>
__device__ __forceinline__ void fill_run(T *target, uint32_t value, uint64_t count, uint32_t lane, uint32_t lanes) {
  constexpr uint64_t in_vector = sizeof(uint4) / sizeof(T);
  uint64_t i = lane;
  if ((reinterpret_cast<uint64_t>(target) & 15) == 0) {
    const uint32_t word = sizeof(T) == 4 ? value : (value & 0xffffu) | value << 16;
    const uint64_t vectors = count / in_vector;
    for (; i < vectors; i += lanes) reinterpret_cast<uint4 *>(target)[i] = make_uint4(word, word, word, word);
    i = vectors * in_vector + lane;
  }
  for (; i < count; i += lanes) target[i] = static_cast<T>(value);
}

// A matrix whose columns are consecutive in the source, or nothing is: consecutive threads take consecutive targets.
template <typename T>
__device__ __forceinline__ void copy_rows(T *target, int64_t target_row, const T *source, int64_t source_row, int64_t source_column,
                                          uint32_t rows, uint32_t columns) {
  if (columns >= 128) {
    const uint32_t lanes = rows < blockDim.x / 32 ? blockDim.x : 32;
    for (uint32_t r = threadIdx.x / lanes; r < rows; r += blockDim.x / lanes) {
      copy_elements(target + r * target_row, source + r * source_row, source_column, columns, threadIdx.x % lanes, lanes);
    }
    return;
  }
  const uint32_t down = blockDim.x / columns;
  const uint32_t across = blockDim.x - down * columns;
  uint32_t r = threadIdx.x / columns;
  uint32_t c = threadIdx.x - r * columns;
  while (r < rows) {
    target[r * target_row + c] = source[r * source_row + c * source_column];
    r += down;
    c += across;
    if (c >= columns) {
      c -= columns;
      r++;
    }
  }
}

// A matrix whose rows are consecutive in the source: 32 x 32 elements at a time pass through shared memory.
template <typename T>
__device__ __forceinline__ void copy_transposed(T *target, int64_t target_row, const T *source, int64_t source_column, uint32_t rows,
                                                uint32_t columns, T *square) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t warps = blockDim.x / 32;
  for (uint32_t r0 = 0; r0 < rows; r0 += 32) {
    for (uint32_t c0 = 0; c0 < columns; c0 += 32) {
      __syncthreads();
      for (uint32_t i = warp; i < 32; i += 4 * warps) {
        T held[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
          const uint32_t c = c0 + i + j * warps;
          held[j] = i + j * warps < 32 && c < columns && r0 + lane < rows ? source[r0 + lane + c * source_column] : T(0);
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
          if (i + j * warps < 32) square[(i + j * warps) * 33 + lane] = held[j];
        }
      }
      __syncthreads();
      for (uint32_t i = warp; i < 32; i += warps) {
        if (r0 + i < rows && c0 + lane < columns) target[(r0 + i) * target_row + c0 + lane] = square[lane * 33 + i];
      }
    }
  }
}

// Materialises a strided view. The space is outer dims x rows x columns; the host chooses as rows a dimension in which
// the source is consecutive if its columns are not. Pointers: source, target. Words: units, rows, columns, row block,
// column block, source row stride, source column stride, target row stride, outer rank k, dims[k], source strides[k],
// target strides[k]. A unit is one block of one matrix, columns innermost.
template <typename T>
__device__ __forceinline__ uint32_t copy_strided(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const T *source = pointer_at<const T>(params, 0);
  T *target = pointer_at<T>(params, 1);
  const uint32_t *words = words_after(params, 2);
  const uint32_t units = words[0];
  const uint32_t rows = words[1];
  const uint32_t columns = words[2];
  const uint32_t row_block = words[3];
  const uint32_t column_block = words[4];
  const int64_t source_row = static_cast<int32_t>(words[5]);
  const int64_t source_column = static_cast<int32_t>(words[6]);
  const int64_t target_row = static_cast<int32_t>(words[7]);
  const uint32_t rank = words[8];
  const uint32_t first = unit_bound(units, tile, tiles);
  const uint32_t last = unit_bound(units, tile + 1, tiles);
  if (first >= last) return GPUOS_STATUS_OK;
  const uint32_t *dims = stage(words + 9, 3 * rank, shared);
  const uint32_t *source_strides = dims + rank;
  const uint32_t *target_strides = source_strides + rank;

  const uint32_t size = rows * columns;
  if (rows <= row_block && columns <= column_block && size < 256) {
    // Many small matrices: threads run through the elements of all of them.
    const uint32_t matrices = blockDim.x / size;
    const uint32_t elements = blockDim.x - matrices * size;
    uint32_t unit = first + threadIdx.x / size;
    uint32_t element = threadIdx.x % size;
    while (unit < last) {
      const uint32_t r = element / columns;
      const uint32_t c = element - r * columns;
      target[offset_of(unit, rank, dims, target_strides) + r * target_row + c] =
          source[offset_of(unit, rank, dims, source_strides) + r * source_row + c * source_column];
      unit += matrices;
      element += elements;
      if (element >= size) {
        element -= size;
        unit++;
      }
    }
    return GPUOS_STATUS_OK;
  }
  const uint32_t row_blocks = (rows + row_block - 1) / row_block;
  const uint32_t column_blocks = (columns + column_block - 1) / column_block;
  for (uint32_t unit = first; unit < last; unit++) {
    const uint32_t block_row = unit / column_blocks;
    const uint32_t c = (unit - block_row * column_blocks) * column_block;
    const uint32_t outer = block_row / row_blocks;
    const uint32_t r = (block_row - outer * row_blocks) * row_block;
    const T *from = source + offset_of(outer, rank, dims, source_strides) + r * source_row + c * source_column;
    T *to = target + offset_of(outer, rank, dims, target_strides) + r * target_row + c;
    const uint32_t height = min(row_block, rows - r);
    const uint32_t width = min(column_block, columns - c);
    if (source_row == 1 && source_column != 1 && source_column != 0 && height > 4 && width > 1) {
      copy_transposed(to, target_row, from, source_column, height, width, reinterpret_cast<T *>(shared + STAGED_BYTES));
    } else {
      copy_rows(to, target_row, from, source_row, source_column, height, width);
    }
  }
  return GPUOS_STATUS_OK;
}
}  // namespace operators

GPUOS_OPERATOR(copy_strided, copy_strided<uint32_t>)
GPUOS_OPERATOR(copy_halves, copy_strided<uint16_t>)

extern "C" {

// Does nothing: the round trip that the benches time.
__device__ __noinline__ uint32_t operator_nop(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data) {
  return GPUOS_STATUS_OK;
}
}
