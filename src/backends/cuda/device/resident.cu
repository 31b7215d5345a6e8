// The resident kernel. Block 0 admits tasks (dispatcher.cuh), every other block runs them (worker.cuh); a
// host writes descriptors into rings in pinned memory, and is told of completions there. The kernel
// leaves when it is told to quit, or when its host has shown no sign of life for two seconds.
#include "gpuos_abi.h"
#include "memory.cuh"
#include "resident.cuh"
#include "dispatcher.cuh"
#include "steps.cuh"
#include "pull.cuh"
#include "chain.cuh"
#include "external.cuh"
#include "worker.cuh"
#include "operators.cuh"

// The bound of two blocks on a multiprocessor keeps it within 128 registers, which leaves room for ordinary kernels beside it.
extern "C" __global__ void __launch_bounds__(GPUOS_BLOCK_THREADS, 2) gpuos_resident(ResidentArguments arguments) {
  extern __shared__ __align__(16) char shared[];
  if (blockIdx.x == 0) {
    dispatcher(arguments, shared);
  } else {
    worker(arguments, blockIdx.x - 1, shared);
  }
}

// A causal query sees as many keys as stand before it.
static __device__ bool tiles_differ(uint64_t address) {
  return address == reinterpret_cast<uint64_t>(&operator_attention) || address == reinterpret_cast<uint64_t>(&operator_attention_float16) ||
         address == reinterpret_cast<uint64_t>(&operator_attention_bfloat16);
}

// Writes the built-in operators into the table, before the resident kernel starts: slot i has function i + 1.
extern "C" __global__ void gpuos_fill_table(ResidentArguments arguments) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  uint32_t fn = 0;
  const auto fill = [&](uint64_t address) {
    fn++;
    arguments.functions[fn] = {address, tiles_differ(address) ? static_cast<uint64_t>(GPUOS_PULLED) : 0};
    arguments.table[fn - 1] = {fn, 1};
  };
#define GPUOS_FILL(name) fill(reinterpret_cast<uint64_t>(&operator_##name));
  GPUOS_FILL(nop) // what changes the table is the dispatcher itself
  fill(GPUOS_CHAIN);
  fill(GPUOS_EXTERNAL);
  GPUOS_FIXED_OPERATORS(GPUOS_FILL)
  GPUOS_FILL(interpret)
#undef GPUOS_FILL
  // Its address is taken; no slot names it: see operators.cuh.
  arguments.functions[fn + 1] = {reinterpret_cast<uint64_t>(&operator_reserve), 0};
}

// Publishes the end of a task whose work was launched before this on the same stream, and so is done. With `aside` the kernel
// had left for that, and is launched again behind this, unless by now it is to stay away.
extern "C" __global__ void gpuos_external_end(ResidentArguments arguments, uint32_t queue, uint32_t sequence, uint32_t status, uint32_t aside) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  publish_end(arguments, queue, sequence, status);
  if (aside == 0) return;
  store_relaxed(arguments.leave, static_cast<uint32_t>(0));
  atomicCAS_system(const_cast<uint32_t *>(&control_of(arguments)->quit), GPUOS_QUIT_ASIDE, 0u);
}
