// The dispatcher only admits: its first warp copies descriptors from the rings to the workers' mailboxes in
// turn, its second watches completions and the host. Dependencies are the workers' business.
#pragma once

// Reads the next 32 descriptors of a queue, admits those that are there, and returns how many.
//
// Each load takes four whole descriptors, eight lanes each, so that a descriptor comes in one request of
// 128 bytes. Its two lines may still be of different times: both carry the sequence as a tag.
__device__ uint32_t admit(const ResidentArguments &a, uint32_t queue, const char *ring, uint32_t head, uint32_t *sent, uint32_t &turn) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t chunk = lane & 7;
  uint4 pieces[8];
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    const uint32_t sequence = head + 4 * i + (lane >> 3);
    pieces[i] = load_host(reinterpret_cast<const uint4 *>(ring + static_cast<size_t>(sequence & (a.slots - 1)) * 128) + chunk);
  }
  uint32_t count = 0;
  bool whole = true;
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    const uint32_t sequence = head + 4 * i + (lane >> 3);
    const bool tagged = chunk != 3 && chunk != 7 ? true : pieces[i].w == sequence;
    const uint32_t ready = __ballot_sync(0xffffffffu, tagged);
    for (uint32_t group = 0; group < 4; group++) {
      whole = whole && ((ready >> (8 * group)) & 0xff) == 0xff;
      count += whole ? 1 : 0;
    }
  }
  if (count == 0) return 0;
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    const uint32_t index = 4 * i + (lane >> 3);
    if (index < count) {
      const uint32_t to = (turn + index) % a.workers;
      Mailbox &mailbox = a.mailboxes[to];
      const uint32_t number = sent[to] + (index >= a.workers ? index / a.workers : 0);
      while (number - load_acquire(&mailbox.taken) >= GPUOS_MAILBOX_DEPTH) {
      }
      Letter &letter = mailbox.letters[number % GPUOS_MAILBOX_DEPTH];
      letter.descriptor[chunk] = pieces[i];
      if (chunk == 0) letter.queue = queue;
    }
    // Every lane's part of a letter comes before its mark.
    __syncwarp();
    if (index < count && chunk == 0) {
      const uint32_t to = (turn + index) % a.workers;
      const uint32_t number = sent[to] + (index >= a.workers ? index / a.workers : 0);
      __threadfence();
      store_release(&a.mailboxes[to].full[number % GPUOS_MAILBOX_DEPTH], number + 1);
    }
    __syncwarp();
  }
  if (lane < count) atomicAdd(&sent[(turn + lane) % a.workers], 1u);
  turn = (turn + count) % a.workers;
  __syncwarp();
  return count;
}

// The first warp.
__device__ void admit_all(const ResidentArguments &a, uint32_t *heads, uint32_t *sent) {
  const uint32_t lane = threadIdx.x & 31;
  uint32_t turn = 0;
  uint32_t idle = 0;
  for (;;) {
    uint32_t admitted = 0;
    for (uint32_t queue = 0; queue < a.queues; queue++) {
      gpuos_queue_record *record = queue_of(a, queue);
      const uint32_t count = admit(a, queue, a.host + record->ring, heads[queue], sent, turn);
      if (count == 0) continue;
      admitted += count;
      if (lane == 0) {
        heads[queue] += count;
        // The host may write these slots anew: they are copied.
        store_host(reinterpret_cast<uint32_t *>(&record->cursor) + 1, heads[queue]);
      }
      __syncwarp();
    }
    if (load_acquire(a.leave) != 0) return;
    idle = admitted > 0 ? 0 : idle + 1;
    if (idle > 2000) __nanosleep(1000);
  }
}

// The second warp's first lane: moves the marks over what is complete, and ends the kernel.
__device__ void watch(const ResidentArguments &a) {
  const gpuos_control *control = control_of(a);
  uint32_t beat = load_host(&control->heartbeat);
  uint64_t seen = now_ns();
  for (uint32_t turn = 0;; turn++) {
    for (uint32_t queue = 0; queue < a.queues; queue++) {
      const uint32_t from = a.marks[queue];
      uint32_t mark = from;
      while (static_cast<uint32_t>(load_acquire(&a.completions[queue * a.slots + (mark & (a.slots - 1))]) >> 32) == mark) mark++;
      if (mark == from) continue;
      store_release(&a.marks[queue], mark);
      __threadfence_system();
      store_host(&queue_of(a, queue)->mark, mark);
    }
    if ((turn & 255) != 0) continue;
    const uint32_t now = load_host(&control->heartbeat);
    if (now != beat) {
      beat = now;
      seen = now_ns();
    }
    if (load_host(&control->quit) != 0 || now_ns() - seen > GPUOS_HEARTBEAT_NS) {
      store_release(a.leave, 1);
      return;
    }
  }
}

__device__ void dispatcher(const ResidentArguments &a) {
  extern __shared__ uint32_t sent[]; // letters sent to each worker
  __shared__ uint32_t heads[16];
  for (uint32_t i = threadIdx.x; i < a.workers; i += blockDim.x) sent[i] = 0;
  if (threadIdx.x < a.queues) heads[threadIdx.x] = a.marks[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < 32) admit_all(a, heads, sent);
  else if (threadIdx.x == 32) watch(a);
}
