// Lets g++ compile device code as it is, and runs blocks of it on the CPU: each thread of a block is a fiber, and what
// threads do together (barriers, shuffles, votes) is a place where fibers wait for each other. A thread of the operating
// system has one block at a time; a grid (grid.h) has one such thread a block. It comes before everything else in the
// translation unit (`-include`).
//
// It is stricter than a device: the threads of a barrier or of a warp's operation must all be at the same line of the
// source, a shuffle must not read a lane that takes no part, and a block in which nobody can go on is an error that
// says who waits where. Between two such places a thread runs alone, and between two barriers a warp, so a missing one
// shows as a result that changes with the order in which they are taken: it can be forward, reverse, or shuffled by a
// seed. In a grid, where blocks wait for each other, a thread that looks at memory again and again gives way now and then,
// and one that pauses sleeps until a block stores something else in a word that its own block has looked at.
#pragma once

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <type_traits>

#define __device__
#define __host__
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline __attribute__((always_inline))
#define __global__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// A thread of the operating system is a block.
#define __shared__ thread_local

#ifndef GPUOS_SHARED_BYTES
#define GPUOS_SHARED_BYTES 32768
#endif

struct uint3 {
  uint32_t x, y, z;
};
struct dim3 {
  uint32_t x, y, z;
};

namespace emulation {

constexpr uint32_t MOST_THREADS = 1024;
constexpr size_t STACK_BYTES = 128 * 1024;
constexpr uint32_t GUARD_BYTES = 1024;
constexpr long LONGEST_SLEEP_NS = 2000000;

enum Operation : uint32_t { RUN, DONE, BLOCK_SYNC, BLOCK_OR, BLOCK_AND, BLOCK_COUNT, WARP_SYNC, WARP_VOTE, WARP_SHUFFLE };

struct Thread {
  ucontext_t context;
  jmp_buf jump;
  bool started;
  Operation operation;
  // Where it waits, and with what.
  const char *file;
  int line;
  uint32_t mask;
  uint32_t source;
  uint64_t payload;
  uint64_t outcome;
  uint32_t status;
};

typedef uint32_t (*Operator)(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data);

// A word that a block has looked at, and what was in it.
struct Seen {
  const void *address;
  uint64_t value;
  bool wide;
};
constexpr uint32_t MOST_SEEN = 64;

// What a block is doing, on the thread of the operating system that has it.
struct Block {
  Thread *threads;
  Thread *self;
  char *stacks;
  jmp_buf scheduler;
  // What each of its threads runs.
  uint32_t (*body)(void *context);
  void *context;
  uint32_t looks;
  // Releases of one warp before the next has its turn; 0: for as long as it can.
  uint32_t turn;
  // What it has looked at; more than there is room for: it does not know.
  Seen seen[MOST_SEEN];
  uint32_t seen_count;
  // The host's words were among them, which nobody tells of.
  bool looked_at_host;
  uint3 thread_index, block_index;
  dim3 block_dim, grid_dim;
  char message[512];
};

// What is injected into a running kernel is compiled for itself, and is part of the same block.
#ifdef EMULATION_INJECTED
extern thread_local Block *block;
extern uint32_t sleepers, bell;
#else
thread_local Block *block;
// Blocks that sleep, and what changes when they are woken.
uint32_t sleepers, bell;
#endif

}  // namespace emulation

#define threadIdx (emulation::block->thread_index)
#define blockIdx (emulation::block->block_index)
#define blockDim (emulation::block->block_dim)
#define gridDim (emulation::block->grid_dim)
constexpr int warpSize = 32;

namespace emulation {

inline void give_way() {
  Block &b = *block;
  if (_setjmp(b.self->jump) == 0) _longjmp(b.scheduler, 1);
}

// A look at memory that another block, or another warp of this one, may be about to change.
inline void look() {
  Block &b = *block;
  if (b.turn == 0 || (++b.looks & 63) != 0) return;
  sched_yield();
  give_way();
}

// After a look at a word that other blocks store to.
inline void has_seen(const void *address, uint64_t value, bool wide) {
  Block &b = *block;
  if (b.turn == 0 || b.seen_count > MOST_SEEN) return;
  for (uint32_t i = 0; i < b.seen_count; i++) {
    if (b.seen[i].address == address) {
      b.seen[i].value = value;
      return;
    }
  }
  if (b.seen_count < MOST_SEEN) b.seen[b.seen_count] = {address, value, wide};
  b.seen_count++;
}

// Whether a word is another than it was seen to be; it is known again from here on.
inline bool has_changed(Block &b) {
  bool changed = false;
  for (uint32_t i = 0; i < b.seen_count; i++) {
    Seen &seen = b.seen[i];
    const uint64_t value = seen.wide ? __atomic_load_n(static_cast<const uint64_t *>(seen.address), __ATOMIC_SEQ_CST)
                                     : __atomic_load_n(static_cast<const uint32_t *>(seen.address), __ATOMIC_SEQ_CST);
    changed = changed || value != seen.value;
    seen.value = value;
  }
  return changed;
}

// All other warps of the block wait for this one at a barrier.
inline bool alone(const Block &b) {
  for (uint32_t first = 0; first < b.block_dim.x; first += 32) {
    if (first != (b.thread_index.x & ~31u) && (b.threads[first].operation < BLOCK_SYNC || b.threads[first].operation > BLOCK_COUNT)) return false;
  }
  return true;
}

// After a store that others may wait for.
inline void has_stored() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (__atomic_load_n(&sleepers, __ATOMIC_RELAXED) == 0) return;
  __atomic_fetch_add(&bell, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &bell, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Until a word that the block has seen has changed, or LONGEST_SLEEP_NS.
inline void sleep_until_changed(Block &b) {
  timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_nsec += LONGEST_SLEEP_NS;
  if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
  __atomic_fetch_add(&sleepers, 1, __ATOMIC_SEQ_CST);
  for (;;) {
    const uint32_t rung = __atomic_load_n(&bell, __ATOMIC_SEQ_CST);
    if (has_changed(b)) break;
    const long woken = syscall(SYS_futex, &bell, FUTEX_WAIT_BITSET_PRIVATE, rung, &end, nullptr, FUTEX_BITSET_MATCH_ANY);
    if (woken != 0 && errno == ETIMEDOUT) break;
  }
  __atomic_fetch_sub(&sleepers, 1, __ATOMIC_SEQ_CST);
}

// A pause of a warp, and with it of its block. Where nothing but words that blocks store to can end it, the block sleeps until then.
inline void rest(uint32_t ns) {
  Block &b = *block;
  if (b.turn != 0 && b.seen_count > 0 && b.seen_count <= MOST_SEEN && !b.looked_at_host && alone(b)) {
    sleep_until_changed(b);
    return;
  }
  const timespec time = {0, static_cast<long>(ns)};
  nanosleep(&time, nullptr);
  if (b.seen_count > MOST_SEEN) b.seen_count = 0;
  b.looked_at_host = false;
}

inline uint64_t wait(Operation operation, const char *file, int line, uint32_t mask, uint32_t source, uint64_t payload) {
  Thread &self = *block->self;
  self.operation = operation;
  self.file = file;
  self.line = line;
  self.mask = mask;
  self.source = source;
  self.payload = payload;
  give_way();
  return self.outcome;
}

inline void live() {
  for (;;) {
    Thread &self = *block->self;
    self.status = block->body(block->context);
    self.operation = DONE;
    give_way();
  }
}

inline void resume(uint32_t index) {
  Block &b = *block;
  Thread &self = b.threads[index];
  b.self = &self;
  b.thread_index = {index, 0, 0};
  if (_setjmp(b.scheduler) != 0) return;
  if (self.started) _longjmp(self.jump, 1);
  self.started = true;
  getcontext(&self.context);
  self.context.uc_stack.ss_sp = b.stacks + index * STACK_BYTES;
  self.context.uc_stack.ss_size = STACK_BYTES;
  self.context.uc_link = nullptr;
  makecontext(&self.context, live, 0);
  setcontext(&self.context);
}

inline const char *name_of(Operation operation) {
  static const char *const names[] = {"runs", "has returned", "__syncthreads", "__syncthreads_or", "__syncthreads_and",
                                      "__syncthreads_count", "__syncwarp", "a vote", "a shuffle"};
  return names[operation];
}

inline void describe(char *text, size_t size, uint32_t index) {
  const Thread &thread = block->threads[index];
  if (thread.operation == DONE) snprintf(text, size, "thread %u has returned", index);
  else snprintf(text, size, "thread %u waits at %s:%d in %s", index, thread.file, thread.line, name_of(thread.operation));
}

inline bool together(const Thread &a, const Thread &b) {
  return a.operation == b.operation && a.line == b.line && a.mask == b.mask && strcmp(a.file, b.file) == 0;
}

inline bool fail_between(const char *what, uint32_t a, uint32_t b) {
  char first[200], second[200];
  describe(first, sizeof first, a);
  describe(second, sizeof second, b);
  snprintf(block->message, sizeof block->message, "%s: %s, %s", what, first, second);
  return false;
}

// Lets the whole block go on if all of it is at one barrier.
inline bool release_block(uint32_t count) {
  Thread *threads = block->threads;
  uint64_t any = 0, all = 1, number = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (!together(threads[0], threads[i])) return false;
    any |= threads[i].payload != 0;
    all &= threads[i].payload != 0;
    number += threads[i].payload != 0;
  }
  if (threads[0].operation < BLOCK_SYNC || threads[0].operation > BLOCK_COUNT) return false;
  for (uint32_t i = 0; i < count; i++) {
    const Operation operation = threads[i].operation;
    threads[i].outcome = operation == BLOCK_OR ? any : operation == BLOCK_AND ? all : number;
    threads[i].operation = RUN;
  }
  return true;
}

// Lets those lanes of a warp go on whose partners are all there. False with a message where that can never be.
inline bool release_warp(uint32_t warp, bool &progress) {
  Thread *lanes = block->threads + warp * 32;
  for (uint32_t lane = 0; lane < 32; lane++) {
    if (lanes[lane].operation < WARP_SYNC) continue;
    const uint32_t mask = lanes[lane].mask;
    if ((mask >> lane & 1) == 0) return fail_between("a lane is not in its own mask", warp * 32 + lane, warp * 32 + lane);
    bool complete = true;
    for (uint32_t other = 0; other < 32 && complete; other++) {
      if ((mask >> other & 1) != 0) complete = together(lanes[lane], lanes[other]);
    }
    if (!complete) continue;
    uint32_t ballot = 0;
    for (uint32_t other = 0; other < 32; other++) {
      if ((mask >> other & 1) != 0 && lanes[other].payload != 0) ballot |= 1u << other;
    }
    for (uint32_t other = 0; other < 32; other++) {
      if ((mask >> other & 1) == 0) continue;
      Thread &thread = lanes[other];
      thread.outcome = ballot;
      if (thread.operation == WARP_SHUFFLE) {
        if ((mask >> thread.source & 1) == 0) {
          return fail_between("a shuffle reads a lane that takes no part", warp * 32 + other, warp * 32 + thread.source);
        }
        thread.outcome = lanes[thread.source].payload;
      }
    }
    for (uint32_t other = 0; other < 32; other++) {
      if ((mask >> other & 1) != 0) lanes[other].operation = RUN;
    }
    progress = true;
  }
  return true;
}

// Why nobody can go on: two threads that do not meet.
inline bool tell_divergence(uint32_t count) {
  const Thread *threads = block->threads;
  for (uint32_t i = 0; i < count; i++) {
    if (threads[i].operation == DONE) continue;
    const bool warp = threads[i].operation >= WARP_SYNC;
    for (uint32_t j = warp ? i & ~31u : 0; j < (warp ? (i & ~31u) + 32 : count); j++) {
      if (warp && (threads[i].mask >> (j & 31) & 1) == 0) continue;
      if (!together(threads[i], threads[j])) return fail_between("divergent barrier", i, j);
    }
  }
  snprintf(block->message, sizeof block->message, "divergent barrier");
  return false;
}

// The numbers below `count` as they are, backwards, or shuffled.
inline void arrange(uint32_t *turn, uint32_t count, uint32_t order, uint32_t &random) {
  for (uint32_t i = 0; i < count; i++) turn[i] = order == 1 ? count - 1 - i : i;
  for (uint32_t i = count - 1; i > 0 && order > 1; i--) {
    random = random * 1664525u + 1013904223u;
    const uint32_t j = (random >> 8) % (i + 1);
    const uint32_t held = turn[i];
    turn[i] = turn[j];
    turn[j] = held;
  }
}

// Each warp goes on for as long as it can, or for its turn, before the next one has its: so what one does too early is
// seen by another.
inline bool run_block(uint32_t count, uint32_t order) {
  Thread *threads = block->threads;
  uint32_t warps[MOST_THREADS / 32], lanes[32];
  uint32_t random = order;
  for (uint32_t i = 0; i < count; i++) threads[i].operation = RUN;
  for (;;) {
    arrange(warps, count / 32, order, random);
    bool moved = false;
    for (uint32_t w = 0; w < count / 32; w++) {
      uint32_t left = block->turn;
      for (bool progress = true; progress;) {
        progress = false;
        arrange(lanes, 32, order, random);
        for (uint32_t i = 0; i < 32; i++) {
          const uint32_t index = 32 * warps[w] + lanes[i];
          if (threads[index].operation != RUN) continue;
          resume(index);
          // One that has given way goes on later.
          moved = moved || threads[index].operation == RUN;
        }
        if (!release_warp(warps[w], progress)) return false;
        if (progress && block->turn != 0 && --left == 0) {
          moved = true;
          break;
        }
      }
    }
    if (moved) continue;
    uint32_t done = 0;
    for (uint32_t i = 0; i < count; i++) done += threads[i].operation == DONE;
    if (done == count) return true;
    if (!release_block(count)) return tell_divergence(count);
  }
}

// The block of this thread of the operating system, with room for its threads' stacks.
inline Block &own_block() {
  if (block == nullptr) {
    block = static_cast<Block *>(calloc(1, sizeof(Block)));
    block->threads = static_cast<Thread *>(calloc(MOST_THREADS, sizeof(Thread)));
    block->stacks = static_cast<char *>(
        mmap(nullptr, MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  }
  return *block;
}

// Runs a body in all threads of a block. False where the block's message says what was wrong.
inline bool run_body(uint32_t (*body)(void *), void *context, uint32_t count, uint32_t order) {
  Block &b = own_block();
  b.body = body;
  b.context = context;
  b.message[0] = 0;
  if (count == 0 || count % 32 != 0 || count > MOST_THREADS) {
    snprintf(b.message, sizeof b.message, "a block of %u threads", count);
    return false;
  }
  b.block_dim = {count, 1, 1};
  if (run_block(count, order)) return true;
  for (uint32_t i = 0; i < MOST_THREADS; i++) b.threads[i].started = false;
  return false;
}

typedef uint32_t (*Operator)(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data);

struct Call {
  Operator function;
  const uint64_t *params;
  uint32_t first, last, tiles;
  char *shared;
  const uint32_t *data;
};

// The tiles of a task follow one another without a barrier between them, as in the resident kernel.
inline uint32_t run_call(void *context) {
  const Call &call = *static_cast<const Call *>(context);
  uint32_t status = 0;
  for (uint32_t tile = call.first; tile < call.last; tile++) status |= call.function(call.params, tile, call.tiles, call.shared, call.data);
  return status;
}

}  // namespace emulation

#ifndef EMULATION_INJECTED
extern "C" {

// Runs tiles [first, last) of an operator with one block of `count` threads. Returns its status, or 0xffffffff where
// `emulation_message` says what was wrong. `order`: 0 forward, 1 reverse, else the seed of a shuffle.
uint32_t emulate_operator(void *function, const uint64_t *params, uint32_t first, uint32_t last, uint32_t tiles, const uint32_t *data,
                          uint32_t count, uint32_t order) {
  using namespace emulation;
  static char *area = static_cast<char *>(aligned_alloc(1024, GPUOS_SHARED_BYTES + 2 * GUARD_BYTES + 1024));
  // Aligned to 16 bytes, and to no more.
  char *shared = area + GUARD_BYTES + 16;
  memset(area, 0xff, GPUOS_SHARED_BYTES + 2 * GUARD_BYTES + 1024);
  Call call = {reinterpret_cast<Operator>(function), params, first, last, tiles, shared, data};
  Block &b = own_block();
  b.grid_dim = {1, 1, 1};
  b.block_index = {0, 0, 0};
  if (!run_body(run_call, &call, count, order)) return 0xffffffffu;
  for (uint32_t i = 0; i < GUARD_BYTES; i++) {
    if (shared[-1 - static_cast<int>(i)] != static_cast<char>(0xff) || shared[GPUOS_SHARED_BYTES + i] != static_cast<char>(0xff)) {
      snprintf(b.message, sizeof b.message, "wrote outside of the shared scratch");
      return 0xffffffffu;
    }
  }
  uint32_t status = 0;
  for (uint32_t i = 0; i < count; i++) status |= b.threads[i].status;
  return status;
}

const char *emulation_message() { return emulation::own_block().message; }
}
#endif

#define __syncthreads() static_cast<void>(emulation::wait(emulation::BLOCK_SYNC, __FILE__, __LINE__, 0, 0, 0))
#define __syncthreads_or(value) static_cast<int>(emulation::wait(emulation::BLOCK_OR, __FILE__, __LINE__, 0, 0, (value) != 0))
#define __syncthreads_and(value) static_cast<int>(emulation::wait(emulation::BLOCK_AND, __FILE__, __LINE__, 0, 0, (value) != 0))
#define __syncthreads_count(value) static_cast<int>(emulation::wait(emulation::BLOCK_COUNT, __FILE__, __LINE__, 0, 0, (value) != 0))

namespace emulation {

inline void sync_warp(const char *file, int line, uint32_t mask = 0xffffffffu) { wait(WARP_SYNC, file, line, mask, 0, 0); }

inline uint32_t vote(const char *file, int line, uint32_t mask, bool value) {
  return static_cast<uint32_t>(wait(WARP_VOTE, file, line, mask, 0, value));
}

enum Direction { TO, UP, DOWN, ACROSS };

template <typename T, typename N>
T shuffle(Direction direction, const char *file, int line, uint32_t mask, T value, N number, int width = 32) {
  static_assert(sizeof(T) <= 8, "shuffles move 4 or 8 bytes");
  const int lane = threadIdx.x & 31;
  const int first = lane & ~(width - 1);
  const int n = static_cast<int>(number);
  int source = lane;
  if (direction == TO) source = first + (n & (width - 1));
  if (direction == UP && lane - n >= first) source = lane - n;
  if (direction == DOWN && lane + n < first + width) source = lane + n;
  if (direction == ACROSS && (lane ^ n) < first + width) source = lane ^ n;
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = wait(WARP_SHUFFLE, file, line, mask, static_cast<uint32_t>(source), bits);
  T result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

template <typename T, typename U>
T bits_as(U value) {
  static_assert(sizeof(T) == sizeof(U), "a reinterpretation keeps the size");
  T result;
  memcpy(&result, &value, sizeof result);
  return result;
}

// The lanes of a whole warp that have this value.
inline uint32_t match(const char *file, uint32_t line, uint32_t mask, uint32_t value) {
  uint32_t same = 0;
  for (uint32_t lane = 0; lane < 32; lane++) same |= static_cast<uint32_t>(shuffle(TO, file, line, mask, value, lane) == value) << lane;
  return same;
}

}  // namespace emulation

#define __syncwarp(...) emulation::sync_warp(__FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __ballot_sync(mask, value) emulation::vote(__FILE__, __LINE__, mask, (value) != 0)
#define __any_sync(mask, value) static_cast<int>(emulation::vote(__FILE__, __LINE__, mask, (value) != 0) != 0)
#define __all_sync(mask, value) static_cast<int>(emulation::vote(__FILE__, __LINE__, mask, (value) == 0) == 0)
#define __match_any_sync(mask, value) emulation::match(__FILE__, __LINE__, mask, value)
#define __shfl_sync(...) emulation::shuffle(emulation::TO, __FILE__, __LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) emulation::shuffle(emulation::UP, __FILE__, __LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) emulation::shuffle(emulation::DOWN, __FILE__, __LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) emulation::shuffle(emulation::ACROSS, __FILE__, __LINE__, __VA_ARGS__)

#include "cuda_functions.h"
