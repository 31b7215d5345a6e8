// What puts tensors together with others or with constants.
#pragma once

namespace operators {

// Inputs whose sizes and addresses are in shared memory at a time.
constexpr uint32_t JOINED_INPUTS = 1024;

// Inputs one after the other. Where the words of a block start depends on its number of pointers, which an operator
// cannot read; so there is one for each of four sizes of block. Pointers: the n inputs, unused ones up to POINTERS - 2,
// then the output; all contiguous. Words: units (outer * n), n, elements of an output row, then the elements that each
// input gives to a row [n]. A unit is one input's part of a row.
template <uint32_t POINTERS, typename T>
__device__ __forceinline__ uint32_t join(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const uint32_t *words = words_after(params, POINTERS);
  const uint32_t units = words[0];
  const uint32_t n = words[1];
  const uint32_t width = words[2];
  const uint32_t first = unit_bound(units, tile, tiles);
  const uint32_t last = unit_bound(units, tile + 1, tiles);
  if (first >= last) return GPUOS_STATUS_OK;
  T *out = pointer_at<T>(params, POINTERS - 1);
  const T **inputs = reinterpret_cast<const T **>(shared);
  // starts[i] is where input i begins in a row; one more is where the last ends.
  uint32_t *starts = reinterpret_cast<uint32_t *>(shared + JOINED_INPUTS * 8);
  const uint32_t outer = first / n;
  const uint32_t outers = (last - 1) / n - outer + 1;
  const uint32_t lane = threadIdx.x & 31;
  uint32_t start = 0;
  for (uint32_t base = 0; base < n; base += JOINED_INPUTS) {
    const uint32_t count = min(JOINED_INPUTS, n - base);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) inputs[i] = pointer_at<const T>(params, base + i);
    if (threadIdx.x < 32) {
      uint32_t sum = start;
      for (uint32_t i = 0; i < count; i += 32) {
        const uint32_t own = i + lane < count ? words[3 + base + i + lane] : 0;
        uint32_t through = own;
        for (uint32_t step = 1; step < 32; step *= 2) {
          const uint32_t before = __shfl_up_sync(0xffffffffu, through, step);
          if (lane >= step) through += before;
        }
        if (i + lane < count) starts[i + lane] = sum + through - own;
        sum += __shfl_sync(0xffffffffu, through, 31);
      }
      if (lane == 0) starts[count] = sum;
    }
    __syncthreads();
    each_row(0, outers * count, width / n, [&](uint32_t item, uint32_t thread, uint32_t threads) {
      const uint32_t row = outer + item / count;
      const uint32_t input = item % count;
      const uint32_t unit = row * n + base + input;
      if (unit < first || unit >= last) return;
      const uint32_t size = starts[input + 1] - starts[input];
      copy_run(out + static_cast<uint64_t>(row) * width + starts[input], inputs[input] + static_cast<uint64_t>(row) * size, size, thread,
               threads);
    });
    start = starts[count];
  }
  return GPUOS_STATUS_OK;
}

// x with a constant around it. Pointers: x, output. Words: units (rows of the output), value, then of the last axis:
// before, size, after, stride of x; then rank r of the other axes, their padded sizes[r], before[r], sizes[r], strides of
// x[r].
template <typename T>
__device__ __forceinline__ uint32_t pad(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const T *x = pointer_at<const T>(params, 0);
  T *out = pointer_at<T>(params, 1);
  const uint32_t *words = words_after(params, 2);
  const uint32_t units = words[0];
  const uint32_t value = words[1];
  const uint32_t before = words[2];
  const uint32_t size = words[3];
  const uint32_t after = words[4];
  const int64_t column = static_cast<int32_t>(words[5]);
  const uint32_t rank = words[6];
  const uint32_t *padded = stage(words + 7, 4 * rank, shared);
  const uint32_t *starts = padded + rank;
  const uint32_t *sizes = starts + rank;
  const uint32_t *strides = sizes + rank;
  const uint32_t width = before + size + after;
  each_row(unit_bound(units, tile, tiles), unit_bound(units, tile + 1, tiles), width, [&](uint32_t unit, uint32_t lane, uint32_t lanes) {
    int64_t offset = 0;
    uint32_t rest = unit;
    bool inside = true;
    for (uint32_t d = rank; d-- > 0 && inside;) {
      const uint32_t quotient = rest / padded[d];
      const uint32_t place = rest - quotient * padded[d] - starts[d];
      inside = place < sizes[d];
      offset += static_cast<int64_t>(static_cast<int32_t>(strides[d])) * place;
      rest = quotient;
    }
    T *row = out + static_cast<uint64_t>(unit) * width;
    if (!inside) {
      fill_run(row, value, width, lane, lanes);
      return;
    }
    fill_run(row, value, before, lane, lanes);
    copy_elements(row + before, x + offset, column, size, lane, lanes);
    fill_run(row + before + size, value, after, lane, lanes);
  });
  return GPUOS_STATUS_OK;
}

// `on` at the index and `off` elsewhere; an index out of range gives `off` only. Pointers: indices, output. Words: units
// (indices), depth, on, off (bits).
template <typename T>
__device__ __forceinline__ uint32_t one_hot(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const uint32_t *indices = pointer_at<const uint32_t>(params, 0);
  T *out = pointer_at<T>(params, 1);
  const uint32_t *words = words_after(params, 2);
  const uint32_t units = words[0];
  const uint32_t depth = words[1];
  const uint32_t on = words[2];
  const uint32_t off = words[3];
  each_row(unit_bound(units, tile, tiles), unit_bound(units, tile + 1, tiles), depth, [&](uint32_t unit, uint32_t lane, uint32_t lanes) {
    const uint32_t index = indices[unit];
    T *row = out + static_cast<uint64_t>(unit) * depth;
    for (uint32_t i = lane; i < depth; i += lanes) row[i] = static_cast<T>(i == index ? on : off);
  });
  return GPUOS_STATUS_OK;
}

}  // namespace operators

GPUOS_OPERATOR(concat_4, join<4, uint32_t>)
GPUOS_OPERATOR(concat_4_halves, join<4, uint16_t>)
GPUOS_OPERATOR(concat_16, join<16, uint32_t>)
GPUOS_OPERATOR(concat_16_halves, join<16, uint16_t>)
GPUOS_OPERATOR(concat_256, join<256, uint32_t>)
GPUOS_OPERATOR(concat_256_halves, join<256, uint16_t>)
GPUOS_OPERATOR(concat_4096, join<4096, uint32_t>)
GPUOS_OPERATOR(concat_4096_halves, join<4096, uint16_t>)
GPUOS_OPERATOR(pad, pad<uint32_t>)
GPUOS_OPERATOR(pad_halves, pad<uint16_t>)
GPUOS_OPERATOR(one_hot, one_hot<uint32_t>)
GPUOS_OPERATOR(one_hot_halves, one_hot<uint16_t>)
