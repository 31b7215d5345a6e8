// `memory.cuh` of the resident kernel for the CPU: what the device's instructions promise, by the C++ memory model. Included
// instead of it, as the first folder to look into is this one.
//
// A device reads 64 bytes of a line at one time. Here lanes come one after another, the last one first (grid.cc), none
// gives way before such a load, and it is the last one of a line that reads its tag: so if the tag is new, the rest is.
#pragma once
#include <time.h>

namespace emulation {

template <int ORDER, typename T>
inline T load(const T *address) {
  look();
  const T value = __atomic_load_n(address, ORDER);
  has_seen(address, value, sizeof(T) == 8);
  return value;
}

template <int ORDER, typename T>
inline void store(T *address, T value) {
  __atomic_store_n(address, value, ORDER);
  has_stored();
}

inline uint4 load_four(const uint4 *address) {
  const uint32_t *words = reinterpret_cast<const uint32_t *>(address);
  uint4 value;
  value.w = __atomic_load_n(words + 3, __ATOMIC_ACQUIRE);
  value.x = __atomic_load_n(words, __ATOMIC_RELAXED);
  value.y = __atomic_load_n(words + 1, __ATOMIC_RELAXED);
  value.z = __atomic_load_n(words + 2, __ATOMIC_RELAXED);
  return value;
}

}  // namespace emulation

// What is relaxed on the device is so here too, but for the processor's own order. Loads for which the device's order is
// that of one request of a warp are acquired.
inline uint4 load_host(const uint4 *address) {
  emulation::block->looked_at_host = true;
  return emulation::load_four(address);
}
inline uint32_t load_host(const uint32_t *address) {
  emulation::block->looked_at_host = true;
  emulation::look();
  return __atomic_load_n(address, __ATOMIC_RELAXED);
}
inline void store_host(uint32_t *address, uint32_t value) { __atomic_store_n(address, value, __ATOMIC_RELAXED); }
inline void store_host(uint64_t *address, uint64_t value) { __atomic_store_n(address, value, __ATOMIC_RELAXED); }

inline uint32_t load_relaxed(const uint32_t *address) { return emulation::load<__ATOMIC_RELAXED>(address); }
inline uint64_t load_relaxed(const uint64_t *address) { return emulation::load<__ATOMIC_RELAXED>(address); }
// Of four words the last one says whose they are.
inline uint4 load_relaxed(const uint4 *address) {
  emulation::look();
  const uint4 value = emulation::load_four(address);
  emulation::has_seen(reinterpret_cast<const uint32_t *>(address) + 3, value.w, false);
  return value;
}
inline void store_relaxed(uint32_t *address, uint32_t value) { emulation::store<__ATOMIC_RELAXED>(address, value); }
inline void store_relaxed(uint64_t *address, uint64_t value) { emulation::store<__ATOMIC_RELAXED>(address, value); }
inline void store_relaxed(uint4 *address, uint4 value) {
  uint32_t *words = reinterpret_cast<uint32_t *>(address);
  __atomic_store_n(words, value.x, __ATOMIC_RELAXED);
  __atomic_store_n(words + 1, value.y, __ATOMIC_RELAXED);
  __atomic_store_n(words + 2, value.z, __ATOMIC_RELAXED);
  emulation::store<__ATOMIC_RELEASE>(words + 3, value.w);
}

inline uint32_t load_acquire(const uint32_t *address) { return emulation::load<__ATOMIC_ACQUIRE>(address); }
inline uint64_t load_acquire(const uint64_t *address) { return emulation::load<__ATOMIC_ACQUIRE>(address); }
inline void store_release(uint32_t *address, uint32_t value) { emulation::store<__ATOMIC_RELEASE>(address, value); }
inline void store_release(uint64_t *address, uint64_t value) { emulation::store<__ATOMIC_RELEASE>(address, value); }

inline void fence_device() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void fence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#define GPUOS_COPIES_AHEAD 1
inline void copy_ahead(uint4 *shared, const uint4 *address) { *shared = emulation::load_four(address); }
inline void wait_for_copies() {}

inline uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

inline uint64_t cycles() { return now_ns(); }
