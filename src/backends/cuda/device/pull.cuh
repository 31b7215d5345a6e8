// Tiles that differ in how long they take are not dealt out: each of the task's workers pulls the next one when it has
// done with one. A worker that comes late, as it was busy, finds none left, or even the record of a later task in the
// same place; nobody waits for it.
#pragma once

__device__ __forceinline__ unsigned long long pulled_word(uint32_t sequence, uint32_t next) {
  return static_cast<unsigned long long>(sequence) << 32 | next;
}

__device__ __forceinline__ Progress &progress_of(const ResidentArguments &a, uint32_t queue, uint32_t sequence) {
  return a.progress[static_cast<size_t>(queue) * a.slots + (sequence & (a.slots - 1))];
}

// The next tile, or `tiles` if there is none left for this task. One thread.
static __device__ uint32_t pull_tile(Progress &progress, uint32_t sequence, uint32_t tiles) {
  unsigned long long seen = load_relaxed(reinterpret_cast<const uint64_t *>(&progress.pulled));
  for (;;) {
    const uint32_t next = static_cast<uint32_t>(seen);
    if (static_cast<uint32_t>(seen >> 32) != sequence || next >= tiles) return tiles;
    const unsigned long long before = atomicCAS(&progress.pulled, seen, pulled_word(sequence, next + 1));
    if (before == seen) return next;
    seen = before;
  }
}

// Has nobody pull any more, as the task has failed; returns how many tiles are left, which nobody runs. One thread, of a
// worker that has pulled one, so that the record is still this task's.
static __device__ uint32_t pull_rest(Progress &progress, uint32_t sequence, uint32_t tiles) {
  const unsigned long long before = atomicExch(&progress.pulled, pulled_word(sequence, tiles));
  return tiles - min(static_cast<uint32_t>(before), tiles);
}
