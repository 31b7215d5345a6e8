// Operators of the first hour: enough to see that tasks run, and in the right order.
#pragma once

extern "C" {

// Does nothing, well.
__device__ __noinline__ uint32_t operator_nop(const uint64_t *params, uint32_t tile, uint32_t tiles) { return GPUOS_STATUS_OK; }

// out[i] = a[i] + b[i]. Pointers: a, b, out; word 0: elements.
__device__ __noinline__ uint32_t operator_add(const uint64_t *params, uint32_t tile, uint32_t tiles) {
  const float *left = reinterpret_cast<const float *>(params[0]);
  const float *right = reinterpret_cast<const float *>(params[1]);
  float *out = reinterpret_cast<float *>(params[2]);
  const uint32_t n = reinterpret_cast<const uint32_t *>(params + 4)[0];
  for (uint32_t i = tile * blockDim.x + threadIdx.x; i < n; i += tiles * blockDim.x) out[i] = left[i] + right[i];
  return GPUOS_STATUS_OK;
}
}
