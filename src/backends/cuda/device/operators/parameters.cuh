// How an operator reads its parameter block, which units are its tile's, and how threads share out rows.
#pragma once

#ifndef GPUOS_SHARED_BYTES
#define GPUOS_SHARED_BYTES 32768
#endif

namespace operators {

// The scratch begins with the words that `stage` copies; what else an operator keeps there comes after them.
constexpr uint32_t STAGED_BYTES = 512;

__device__ __forceinline__ const uint32_t *words_after(const uint64_t *params, uint32_t pointers) {
  return reinterpret_cast<const uint32_t *>(params + (pointers < 4 ? 4 : pointers));
}

template <typename T>
__device__ __forceinline__ T *pointer_at(const uint64_t *params, uint32_t i) {
  return reinterpret_cast<T *>(params[i]);
}

// First unit of a tile; `unit_bound(tile + 1)` is one past its last.
__device__ __forceinline__ uint32_t unit_bound(uint32_t units, uint32_t tile, uint32_t tiles) {
  return static_cast<uint32_t>(static_cast<uint64_t>(units) * tile / tiles);
}

// Words that are read again and again, in shared memory: the block may lie in the host's, behind PCIe. All threads
// call it; it begins with a barrier, since others may still be at the tile before.
__device__ __forceinline__ const uint32_t *stage(const uint32_t *words, uint32_t count, char *shared) {
  if (count == 0) return words;
  uint32_t *copy = reinterpret_cast<uint32_t *>(shared);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < count && i < STAGED_BYTES / 4; i += blockDim.x) copy[i] = words[i];
  __syncthreads();
  return copy;
}

// In elements, where the element with row-major `index` in the space dims[rank] lies under strides[rank].
__device__ __forceinline__ int64_t offset_of(uint32_t index, uint32_t rank, const uint32_t *dims, const uint32_t *strides) {
  int64_t offset = 0;
  for (uint32_t d = rank; d-- > 0;) {
    const uint32_t size = dims[d];
    const uint32_t quotient = index / size;
    offset += static_cast<int64_t>(static_cast<int32_t>(strides[d])) * (index - quotient * size);
    index = quotient;
  }
  return offset;
}

// So many neighbouring threads, up to a warp, that few are idle with `width` elements.
__device__ __forceinline__ uint32_t lanes_for(uint32_t width) {
  uint32_t lanes = 1;
  while (lanes < width && lanes < 32) lanes *= 2;
  return lanes;
}

// Calls row(unit, lane, lanes) for each of the units [first, last), rows of about `width` elements, each taken by
// neighbouring threads: up to a warp, or the whole block where rows are long or few.
template <typename Row>
__device__ __forceinline__ void each_row(uint32_t first, uint32_t last, uint32_t width, Row row) {
  uint32_t lanes = lanes_for(width);
  if (width > 32 && (width >= 8192 || last - first < blockDim.x / 32)) lanes = blockDim.x;
  const uint32_t group = threadIdx.x / lanes;
  for (uint32_t unit = first + group; unit < last; unit += blockDim.x / lanes) row(unit, threadIdx.x - group * lanes, lanes);
}

}  // namespace operators
