// The resident kernel. Block 0 admits tasks (dispatcher.cuh), every other block runs them (worker.cuh); a
// host writes descriptors into rings in pinned memory, and is told of completions there. The kernel
// leaves when it is told to quit, or when its host has shown no sign of life for two seconds.
#include "gpuos_abi.h"
#include "resident.cuh"
#include "dispatcher.cuh"
#include "worker.cuh"
#include "operators.cuh"

extern "C" __global__ void __launch_bounds__(GPUOS_BLOCK_THREADS) gpuos_resident(ResidentArguments arguments) {
  if (blockIdx.x == 0) {
    dispatcher(arguments);
  } else {
    worker(arguments, blockIdx.x - 1);
  }
}

// Writes the addresses of the built-in operators into the table, before the resident kernel starts.
extern "C" __global__ void gpuos_fill_table(OperatorEntry *table) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  table[GPUOS_CUDA_NOP].function = reinterpret_cast<uint64_t>(&operator_nop);
  table[GPUOS_CUDA_ADD].function = reinterpret_cast<uint64_t>(&operator_add);
  table[GPUOS_CUDA_RESERVE].function = reinterpret_cast<uint64_t>(&operator_reserve);
  table[GPUOS_CUDA_RESERVE].killed = 1;
}
