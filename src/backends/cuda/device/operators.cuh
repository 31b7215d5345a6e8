// The built-in operators, and the one that sets how much of a block an injected operator may use.
#pragma once
#include "operators/index.cuh"
#include "interpreter.cuh"

extern "C" {

// Never called. The linker gives the kernel the registers of the hungriest function whose address it takes: this one
// asks for as many as an injected operator may use.
__device__ __noinline__ uint32_t operator_reserve(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data) {
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
