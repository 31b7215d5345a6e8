#pragma once

namespace operators {

// Rotary embedding. Pointers: x, cos, sin, output (contiguous). Words: units (rows of x), S, D, interleaved (0 or 1), row
// and column stride of cos, of sin, column stride of x, rank r of the rows (leading dims and S), dims[r], strides of x[r].
template <typename T>
__device__ __forceinline__ uint32_t rotary(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const T *x = pointer_at<const T>(params, 0);
  const T *cosines = pointer_at<const T>(params, 1);
  const T *sines = pointer_at<const T>(params, 2);
  T *out = pointer_at<T>(params, 3);
  const uint32_t *words = words_after(params, 4);
  const uint32_t units = words[0];
  const uint32_t S = words[1];
  const uint32_t D = words[2];
  const bool interleaved = words[3] != 0;
  const int64_t cos_row = static_cast<int32_t>(words[4]);
  const int64_t cos_column = static_cast<int32_t>(words[5]);
  const int64_t sin_row = static_cast<int32_t>(words[6]);
  const int64_t sin_column = static_cast<int32_t>(words[7]);
  const int64_t x_column = static_cast<int32_t>(words[8]);
  const uint32_t rank = words[9];
  const uint32_t *dims = stage(words + 10, 2 * rank, shared);
  const uint32_t half = D / 2;
  const uint32_t first = unit_bound(units, tile, tiles);
  each_row(first, unit_bound(units, tile + 1, tiles), half, [&](uint32_t unit, uint32_t lane, uint32_t lanes) {
    const T *from = x + offset_of(unit, rank, dims, dims + rank);
    const uint32_t position = unit % S;
    T *to = out + static_cast<uint64_t>(unit) * D;
    for (uint32_t pair = lane; pair < half; pair += lanes) {
      const uint32_t one = interleaved ? 2 * pair : pair;
      const uint32_t other = interleaved ? one + 1 : pair + half;
      const float a = widened(from[one * x_column]);
      const float b = widened(from[other * x_column]);
      const float c = widened(cosines[position * cos_row + pair * cos_column]);
      const float s = widened(sines[position * sin_row + pair * sin_column]);
      store(to + one, a * c - b * s);
      store(to + other, b * c + a * s);
    }
  });
  return GPUOS_STATUS_OK;
}

}  // namespace operators

GPUOS_OPERATOR(rotary, rotary<float>)
GPUOS_OPERATOR(rotary_float16, rotary<operators::Float16>)
GPUOS_OPERATOR(rotary_bfloat16, rotary<operators::Bfloat16>)
