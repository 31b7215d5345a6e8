// Tasks of which each tile needs only what the same tile of the one before made, as one task. The worker runs it, not
// an operator of the table: a function that calls functions of the table could be called by itself, for all that the
// linker knows, and it could not tell how much stack the kernel needs.
#pragma once

// What the table has instead of an address.
#define GPUOS_CHAIN 1

// What a stage is to call, or why it is not.
struct Stage {
  OperatorFunction function;
  const uint32_t *data;
  uint32_t status;
};

__device__ __forceinline__ Stage look_up(const ResidentArguments &a, uint32_t slot) {
  if (load_relaxed(&a.killed[slot]) != 0) return {nullptr, nullptr, GPUOS_STATUS_KILLED};
  const uint32_t fn = static_cast<uint32_t>(load_relaxed(reinterpret_cast<const uint64_t *>(&a.table[slot])));
  const uint4 entry = load_relaxed(reinterpret_cast<const uint4 *>(&a.functions[fn]));
  if (entry.x == 0 && entry.y == 0) return {nullptr, nullptr, GPUOS_STATUS_EMPTY_SLOT};
  return {reinterpret_cast<OperatorFunction>((static_cast<uint64_t>(entry.y) << 32) | entry.x),
          reinterpret_cast<const uint32_t *>((static_cast<uint64_t>(entry.w) << 32) | entry.z), GPUOS_STATUS_OK};
}

// Words: units, stages, then for each stage {slot and 64-byte lines of its parameter block << 16, where that block is in
// the segment}. `area` takes the block of the stage at hand; `slot` is the chain's own, `next` the tile after this one.
static __device__ uint32_t run_chain(const ResidentArguments &a, const Share &share, uint32_t slot, const uint64_t *params, uint32_t tile, uint32_t tiles,
                              uint32_t next, char *area, char *scratch, uint32_t *word) {
  // One thread looks: a function's address may change while tasks run, and all threads have to call the same one.
  __shared__ Stage current;
  const uint32_t *words = reinterpret_cast<const uint32_t *>(params + 4);
  const uint32_t stages = words[1];
  for (uint32_t stage = 0; stage < stages; stage++) {
    if (threadIdx.x == 0) current = look_up(a, words[2 + 2 * stage] & 0xffff);
    const uint64_t *block = bring_params(a.host + words[3 + 2 * stage], words[2 + 2 * stage] >> 16, area);
    __syncthreads();
    if (current.status != GPUOS_STATUS_OK) return current.status;
    const uint32_t status = current.function(block, tile, tiles, scratch, current.data);
    // The barrier in it also puts what this stage writes before what the next one reads.
    const bool last = stage + 1 == stages;
    const uint32_t agreed = end_step(a, share, slot, !last || next < tiles, last ? next : tile, last ? 0 : stage + 1, status, word);
    if (agreed != GPUOS_STATUS_OK) return agreed;
  }
  return GPUOS_STATUS_OK;
}
