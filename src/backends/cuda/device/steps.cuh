// The steps of a worker through its share of a task: a tile, or a stage of a tile in a chain. Before each it says what it
// is at, for who looks for a step that does not end; between two is a safe point, where a task ends whose operator has
// been killed, or that has been here for longer than its budget.
#pragma once

// In a word of `steps`; without it the worker is at nothing.
#define GPUOS_AT_STEP (1ull << 63)

// A worker's share of a task.
struct Share {
  uint32_t sequence;
  uint32_t queue;
  uint32_t number;
  uint64_t began; // not known where there is one step
};

// The word: {1; stage, tile, queue, sequence}. The first thread's, in front of a barrier: an operator that does not end may
// keep it from getting any further.
__device__ __forceinline__ void begin_step(const ResidentArguments &a, const Share &share, uint32_t tile, uint32_t stage) {
  const uint32_t high = (stage & 0x7fff) << 16 | tile << 8 | share.queue;
  store_relaxed(&a.steps[blockIdx.x - 1], GPUOS_AT_STEP | static_cast<uint64_t>(high) << 32 | share.sequence);
}

// What a step came to: as agree(), and where another one follows, whether it is to. One thread asks that: what it sees may
// change from one moment to the next, and all threads have to go the same way.
__device__ __forceinline__ uint32_t end_step(const ResidentArguments &a, const Share &share, uint32_t slot, bool follows, uint32_t next_tile,
                                             uint32_t next_stage, uint32_t status, volatile uint32_t *word) {
  if (follows && threadIdx.x == 0 && status == GPUOS_STATUS_OK) {
    if (load_relaxed(&a.killed[slot]) != 0) status = GPUOS_STATUS_KILLED;
    else if (now_ns() - share.began > a.budget_ms * 1000000ull) status = GPUOS_STATUS_TIMEOUT;
    else begin_step(a, share, next_tile, next_stage);
  }
  return agree(status, word);
}
