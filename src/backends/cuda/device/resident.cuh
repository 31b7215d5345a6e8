// What dispatcher and workers share: the launch's arguments, the mailboxes between them, and loads and
// stores that say how far they have to be seen.
#pragma once

#define GPUOS_BLOCK_THREADS 256
#define GPUOS_MAILBOX_DEPTH 8
#define GPUOS_HEARTBEAT_NS 2000000000ull

// Slots of the operators that this file's neighbours define.
#define GPUOS_CUDA_NOP 0
#define GPUOS_CUDA_ADD 1
#define GPUOS_CUDA_RESERVE 2

// An operator: all threads of a block call it for one tile; what it returns is the tile's status.
typedef uint32_t (*OperatorFunction)(const uint64_t *params, uint32_t tile, uint32_t tiles);

// {function address; 0: the slot is empty} and the kill bit, which is read before each task.
struct OperatorEntry {
  uint64_t function;
  uint32_t version;
  uint32_t killed;
};

// One task on its way from the dispatcher to a worker: the descriptor's 128 bytes and where it came from.
struct __align__(16) Letter {
  uint4 descriptor[8];
  uint32_t queue;
  uint32_t padding[3];
};

// One producer (the dispatcher's warp), one consumer. Letter i is in slot i % DEPTH; `full` of a slot is
// i + 1 once it may be read, and `taken` counts the letters that have been read.
struct __align__(128) Mailbox {
  Letter letters[GPUOS_MAILBOX_DEPTH];
  uint32_t full[GPUOS_MAILBOX_DEPTH];
  uint32_t taken;
};

struct ResidentArguments {
  // The segment that host and device share, as the device sees it. Offsets in it are those of the abi.
  char *host;
  // Device memory from here on.
  Mailbox *mailboxes;
  // {sequence, status} of each slot of each queue: [queues][slots].
  uint64_t *completions;
  // First sequence of each queue that is not complete, as far as the device knows: [queues].
  uint32_t *marks;
  OperatorEntry *table;
  // Not 0: every block leaves.
  uint32_t *leave;
  uint32_t workers;
  uint32_t queues;
  uint32_t slots;
  // Where things lie in the segment: here, since each look into the segment itself goes over PCIe.
  uint32_t records;      // the queue records
  uint32_t rings;        // the first queue's ring; its completions follow it
  uint32_t queue_stride; // from one queue's ring to the next one's
};

__device__ __forceinline__ uint4 load_host(const uint4 *address) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

__device__ __forceinline__ uint32_t load_host(const uint32_t *address) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}

__device__ __forceinline__ void store_host(uint32_t *address, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_host(uint64_t *address, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

__device__ __forceinline__ uint32_t load_acquire(const uint32_t *address) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ uint64_t load_acquire(const uint64_t *address) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_release(uint32_t *address, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_release(uint64_t *address, uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

__device__ __forceinline__ uint64_t now_ns() {
  uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

// Modulo 2^32: whether a comes before b.
__device__ __forceinline__ bool is_before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

__device__ __forceinline__ const gpuos_control *control_of(const ResidentArguments &a) {
  return reinterpret_cast<const gpuos_control *>(a.host + GPUOS_CONTROL_ADDRESS);
}

__device__ __forceinline__ gpuos_queue_record *queue_of(const ResidentArguments &a, uint32_t queue) {
  return reinterpret_cast<gpuos_queue_record *>(a.host + a.records) + queue;
}

__device__ __forceinline__ const char *ring_of(const ResidentArguments &a, uint32_t queue) {
  return a.host + a.rings + static_cast<size_t>(queue) * a.queue_stride;
}

__device__ __forceinline__ uint64_t *completions_of(const ResidentArguments &a, uint32_t queue) {
  return reinterpret_cast<uint64_t *>(a.host + a.rings + static_cast<size_t>(queue) * a.queue_stride + static_cast<size_t>(a.slots) * 128);
}
