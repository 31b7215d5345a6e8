// The operator that the self-test of injection puts into the running kernel. It has what injected code usually has:
// parameters, a loop, shared memory, barriers, and a result that depends on every thread of the block. VERSION is
// another number in each version.
#include "gpuos_abi.h"

// Words: seed. Writes for its tile the sum over all threads of seed * (tile + 1) + thread, and VERSION.
extern "C" __device__ uint32_t gpuos_operator(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data) {
  uint32_t *sums = reinterpret_cast<uint32_t *>(shared);
  const uint32_t *words = reinterpret_cast<const uint32_t *>(params + 4);
  sums[threadIdx.x] = words[0] * (tile + 1) + threadIdx.x;
  __syncthreads();
  for (uint32_t half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) reinterpret_cast<uint32_t *>(params[0])[tile] = sums[0] + VERSION;
  return GPUOS_STATUS_OK;
}
