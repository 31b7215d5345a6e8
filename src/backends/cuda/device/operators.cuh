// The built-in operators, and the one that sets how much of a block an injected operator may use.
#pragma once
#include "operators/index.cuh"
#include "interpreter.cuh"

// The stack that an injected operator may use (OPERATOR_STACK_BYTES of resident.ts). With what `operator_reserve` takes
// for itself the kernel stays under a kilobyte, which a thread gets anyway where nobody asks for less.
#define GPUOS_OPERATOR_STACK_BYTES 512

extern "C" {

// Never called. The linker gives the kernel the registers and the stack of the hungriest function whose address it
// takes: this one asks for as much as an injected operator may use. An index that is not known keeps `frame` on the stack.
__device__ __noinline__ uint32_t operator_reserve(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data) {
  volatile float *values = reinterpret_cast<volatile float *>(params[0]);
  volatile uint32_t frame[GPUOS_OPERATOR_STACK_BYTES / sizeof(uint32_t)];
  for (uint32_t i = 0; i < tiles; i++) frame[(tile + i) % (GPUOS_OPERATOR_STACK_BYTES / sizeof(uint32_t))] = i;
  float held[108];
#pragma unroll
  for (uint32_t i = 0; i < 108; i++) held[i] = values[i];
  for (uint32_t turn = 0; turn < tiles; turn++) {
#pragma unroll
    for (uint32_t i = 0; i < 108; i++) held[i] = held[i] * held[(i + 53) % 108] + values[turn];
  }
#pragma unroll
  for (uint32_t i = 0; i < 108; i++) values[i] = held[i];
  return frame[tile % (GPUOS_OPERATOR_STACK_BYTES / sizeof(uint32_t))];
}
}
