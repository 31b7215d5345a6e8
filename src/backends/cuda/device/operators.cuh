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

// Never called. The linker gives the kernel the registers of the hungriest function whose address it takes: this one
// asks for as many as an injected operator may use.
__device__ __noinline__ uint32_t operator_reserve(const uint64_t *params, uint32_t tile, uint32_t tiles) {
  volatile float *values = reinterpret_cast<volatile float *>(params[0]);
  float held[108];
#pragma unroll
  for (uint32_t i = 0; i < 108; i++) held[i] = values[i];
  for (uint32_t turn = 0; turn < tiles; turn++) {
#pragma unroll
    for (uint32_t i = 0; i < 108; i++) held[i] = held[i] * held[(i + 53) % 108] + values[turn];
  }
#pragma unroll
  for (uint32_t i = 0; i < 108; i++) values[i] = held[i];
  return GPUOS_STATUS_OK;
}
}
