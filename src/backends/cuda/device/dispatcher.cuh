// The dispatcher only admits: its first warp copies descriptors from the rings to the workers' mailboxes in
// turn, its second watches completions and the host's signs of life. Dependencies are the workers' business.
#pragma once

// Loads descriptors head + 4 i to head + 4 i + 3, eight lanes each, so that a descriptor comes in one request
// of 128 bytes. Its two lines may still be of different times: both carry the sequence as a tag.
__device__ __forceinline__ uint4 load_four(const ResidentArguments &a, const char *ring, uint32_t head, uint32_t i) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t sequence = head + 4 * i + (lane >> 3);
  return load_host(reinterpret_cast<const uint4 *>(ring + static_cast<size_t>(sequence & (a.slots - 1)) * 128) + (lane & 7));
}

// How many of the four are there, one after another.
__device__ __forceinline__ uint32_t count_four(uint4 piece, uint32_t head, uint32_t i) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t chunk = lane & 7;
  const bool tagged = (chunk != 3 && chunk != 7) || piece.w == head + 4 * i + (lane >> 3);
  const uint32_t ready = __ballot_sync(0xffffffffu, tagged);
  uint32_t count = 0;
  while (count < 4 && ((ready >> (8 * count)) & 0xff) == 0xff) count++;
  return count;
}

// Reads the next descriptors of a queue, admits those that are there, and returns how many. With `eager`, when
// the last look found many, it asks for 32 at once; else for four first, which is sooner here.
__device__ uint32_t admit(const ResidentArguments &a, uint32_t queue, const char *ring, uint32_t head, bool eager, uint32_t *sent, uint32_t &turn) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t chunk = lane & 7;
  uint4 pieces[8];
  pieces[0] = load_four(a, ring, head, 0);
  if (eager) {
#pragma unroll
    for (uint32_t i = 1; i < 8; i++) pieces[i] = load_four(a, ring, head, i);
  }
  uint32_t count = count_four(pieces[0], head, 0);
  if (count == 4) {
    if (!eager) {
#pragma unroll
      for (uint32_t i = 1; i < 8; i++) pieces[i] = load_four(a, ring, head, i);
    }
#pragma unroll
    for (uint32_t i = 1; i < 8; i++) {
      if (count == 4 * i) count += count_four(pieces[i], head, i);
    }
  }
  // So many that a worker's share fits its mailbox: nobody waits for room that only this batch could make.
  count = min(count, a.workers * GPUOS_MAILBOX_DEPTH);
  if (count == 0) return 0;
  // Lane i sees to letter i's room, then each group of eight to four letters' contents, then lane i again to its mark.
  uint32_t to = 0;
  uint32_t number = 0;
  if (lane < count) {
    to = (turn + lane) % a.workers;
    number = sent[to] + lane / a.workers;
    while (number - load_acquire(&a.mailboxes[to].taken) >= GPUOS_MAILBOX_DEPTH) {
      if (load_acquire(a.leave) != 0) break;
    }
  }
  __syncwarp();
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    const uint32_t index = 4 * i + (lane >> 3);
    const uint32_t worker = __shfl_sync(0xffffffffu, to, index);
    const uint32_t place = __shfl_sync(0xffffffffu, number, index);
    if (index >= count) continue;
    Letter &letter = a.mailboxes[worker].letters[place % GPUOS_MAILBOX_DEPTH];
    letter.descriptor[chunk] = pieces[i];
    if (chunk == 0) letter.queue = queue;
  }
  // Every lane's part of a letter comes before its mark.
  __threadfence();
  __syncwarp();
  if (lane < count) {
    store_release(&a.mailboxes[to].full[number % GPUOS_MAILBOX_DEPTH], number + 1);
    atomicAdd(&sent[to], 1u);
  }
  turn = (turn + count) % a.workers;
  __syncwarp();
  return count;
}

// The first warp.
__device__ void admit_all(const ResidentArguments &a, uint32_t *heads, uint32_t *sent) {
  const uint32_t lane = threadIdx.x & 31;
  uint32_t turn = 0;
  uint32_t idle = 0;
  bool eager = false;
  for (;;) {
    uint32_t admitted = 0;
    for (uint32_t queue = 0; queue < a.queues; queue++) {
      const uint32_t count = admit(a, queue, ring_of(a, queue), heads[queue], eager, sent, turn);
      if (count == 0) continue;
      admitted += count;
      if (lane == 0) {
        heads[queue] += count;
        // The host may write these slots anew: they are copied.
        store_host(reinterpret_cast<uint32_t *>(&queue_of(a, queue)->cursor) + 1, heads[queue]);
      }
      __syncwarp();
    }
    if (load_acquire(a.leave) != 0) return;
    eager = admitted >= 4;
    idle = admitted > 0 ? 0 : idle + 1;
    if (idle > 2000) __nanosleep(1000);
  }
}

// The second warp: moves the marks over what is complete, 32 tasks at a look, and ends the kernel.
__device__ void watch(const ResidentArguments &a) {
  const uint32_t lane = threadIdx.x & 31;
  const gpuos_control *control = control_of(a);
  uint32_t beat = load_host(&control->heartbeat);
  uint64_t seen = now_ns();
  for (uint32_t turn = 0;; turn++) {
    for (uint32_t queue = 0; queue < a.queues; queue++) {
      const uint32_t mark = a.marks[queue];
      const uint32_t sequence = mark + lane;
      const uint64_t word = load_acquire(&a.completions[queue * a.slots + (sequence & (a.slots - 1))]);
      const uint32_t missing = ~__ballot_sync(0xffffffffu, static_cast<uint32_t>(word >> 32) == sequence);
      const uint32_t complete = missing == 0 ? 32 : __ffs(missing) - 1;
      if (complete > 0 && lane == 0) {
        store_release(&a.marks[queue], mark + complete);
        __threadfence_system();
        store_host(&queue_of(a, queue)->mark, mark + complete);
      }
      __syncwarp();
    }
    if ((turn & 255) != 0) continue;
    const uint32_t now = load_host(&control->heartbeat);
    if (now != beat) {
      beat = now;
      seen = now_ns();
    }
    const bool over = load_host(&control->quit) != 0 || now_ns() - seen > GPUOS_HEARTBEAT_NS;
    if (!__any_sync(0xffffffffu, over)) continue;
    if (lane == 0) store_release(a.leave, 1);
    return;
  }
}

__device__ void dispatcher(const ResidentArguments &a) {
  extern __shared__ uint32_t sent[]; // letters sent to each worker
  __shared__ uint32_t heads[16];
  for (uint32_t i = threadIdx.x; i < a.workers; i += blockDim.x) sent[i] = 0;
  if (threadIdx.x < a.queues) heads[threadIdx.x] = a.marks[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < 32) admit_all(a, heads, sent);
  else if (threadIdx.x < 64) watch(a);
}
