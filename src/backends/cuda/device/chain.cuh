// Tasks of which each tile needs only what the same tile of the one before made, as one task. The worker runs it, not
// an operator of the table: a function that calls functions of the table could be called by itself, for all that the
// linker knows, and it could not tell how much stack the kernel needs.
#pragma once

// What the table has instead of an address.
#define GPUOS_CHAIN 1

// Words: units, stages, then for each stage {slot and 64-byte lines of its parameter block << 16, where that block is in
// the segment}. `area` takes the block of the stage at hand.
__device__ uint32_t run_chain(const ResidentArguments &a, const uint64_t *params, uint32_t tile, uint32_t tiles, char *area, char *scratch, uint32_t *word) {
  const uint32_t *words = reinterpret_cast<const uint32_t *>(params + 4);
  const uint32_t stages = words[1];
  for (uint32_t stage = 0; stage < stages; stage++) {
    const uint32_t slot = words[2 + 2 * stage] & 0xffff;
    const uint32_t lines = words[2 + 2 * stage] >> 16;
    if (load_relaxed(&a.killed[slot]) != 0) return GPUOS_STATUS_KILLED;
    const uint32_t fn = static_cast<uint32_t>(load_relaxed(reinterpret_cast<const uint64_t *>(&a.table[slot])));
    const uint4 entry = load_relaxed(reinterpret_cast<const uint4 *>(&a.functions[fn]));
    if (entry.x == 0 && entry.y == 0) return GPUOS_STATUS_EMPTY_SLOT;
    const OperatorFunction function = reinterpret_cast<OperatorFunction>((static_cast<uint64_t>(entry.y) << 32) | entry.x);
    const uint32_t *data = reinterpret_cast<const uint32_t *>((static_cast<uint64_t>(entry.w) << 32) | entry.z);
    const uint64_t *block = bring_params(a.host + words[3 + 2 * stage], lines, area);
    // The barrier also puts what this stage writes before what the next one reads.
    const uint32_t status = agree(function(block, tile, tiles, scratch, data), word);
    if (status != GPUOS_STATUS_OK) return status;
  }
  return GPUOS_STATUS_OK;
}
