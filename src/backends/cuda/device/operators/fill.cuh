// Elements that depend on nothing but their place. A unit is 1024 of them.
#pragma once

namespace operators {

// Elements that are all the same. Pointers: output. Words: units, elements, value (bits).
template <typename T>
__device__ __forceinline__ uint32_t fill(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const uint32_t *words = words_after(params, 1);
  const uint32_t units = words[0];
  const uint32_t count = words[1];
  const uint32_t first = unit_bound(units, tile, tiles) * 1024;
  const uint32_t last = min(count, unit_bound(units, tile + 1, tiles) * 1024);
  if (first < last) fill_run(pointer_at<T>(params, 0) + first, words[2], last - first, threadIdx.x, blockDim.x);
  return GPUOS_STATUS_OK;
}

// start + i step, in double precision. Pointers: output. Words: units, elements, whether they are integers, start (two
// words, a double), step (two words).
template <typename T>
__device__ __forceinline__ uint32_t range(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const uint32_t *words = words_after(params, 1);
  const uint32_t units = words[0];
  const uint32_t count = words[1];
  const bool integers = words[2] != 0;
  const double start = __hiloint2double(static_cast<int32_t>(words[4]), static_cast<int32_t>(words[3]));
  const double step = __hiloint2double(static_cast<int32_t>(words[6]), static_cast<int32_t>(words[5]));
  T *out = pointer_at<T>(params, 0);
  const uint32_t last = min(count, unit_bound(units, tile + 1, tiles) * 1024);
  for (uint32_t i = unit_bound(units, tile, tiles) * 1024 + threadIdx.x; i < last; i += blockDim.x) {
    // Product and sum are rounded on their own: an integer must not depend on whether a compiler joins them.
    const double value = __dadd_rn(start, __dmul_rn(static_cast<double>(i), step));
    if (integers) reinterpret_cast<uint32_t *>(out)[i] = static_cast<uint32_t>(static_cast<int64_t>(value));
    else store(out + i, static_cast<float>(value));
  }
  return GPUOS_STATUS_OK;
}

}  // namespace operators

GPUOS_OPERATOR(fill, fill<uint32_t>)
GPUOS_OPERATOR(fill_halves, fill<uint16_t>)
GPUOS_OPERATOR(range, range<float>)
GPUOS_OPERATOR(range_float16, range<operators::Float16>)
GPUOS_OPERATOR(range_bfloat16, range<operators::Bfloat16>)
