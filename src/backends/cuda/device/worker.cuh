// A worker: one block, which takes letters from its mailboxes, each in order, calls the operator for its share of the tiles
// once what the task depends on is complete, and publishes the end with the last share.
//
// It holds the first letter of each mailbox, and runs one of those whose tasks may begin: it never waits for one while
// another could run. What a task depends on in its own queue was admitted before it by the same shard, what it depends
// on in others is complete by then. So of the tasks of a shard that are not complete the first one waits for nothing, all
// its letters are the first in their mailboxes, and whoever holds them runs them. (With one letter at a time two workers
// could wait for each other: each with a task of one shard, before one of the other shard that the other waits for.)
#pragma once

// A letter that was taken: its task as it was admitted.
struct Held {
  TaskRecord task;
  uint64_t letter;
};

// Whether the task may begin, and with which status: OK or DEPENDENCY_FAILED. One look.
__device__ bool dependencies_complete(const ResidentArguments &a, const gpuos_descriptor *d, uint32_t queue, uint32_t &status) {
  status = GPUOS_STATUS_OK;
  if ((d->flags & GPUOS_FLAG_AFTER) != 0 && !is_before(d->after, load_acquire(&a.marks[queue]))) return false;
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t other = d->dependency_queues[i];
    if (other == GPUOS_NO_QUEUE) continue;
    if (other >= a.queues) {
      status = GPUOS_STATUS_DEPENDENCY_FAILED;
      continue;
    }
    const uint32_t producer = d->dependencies[i];
    const uint64_t seen = load_acquire(&a.completions[other * a.slots + (producer & (a.slots - 1))]);
    if (is_before(static_cast<uint32_t>(seen >> 32), producer)) return false;
    if (static_cast<uint32_t>(seen >> 32) == producer && static_cast<uint32_t>(seen) != GPUOS_STATUS_OK) {
      status = GPUOS_STATUS_DEPENDENCY_FAILED;
    }
  }
  return true;
}

// The shares of the letter's tiles: letter i of n has tiles i, i + n, ... All threads have the status.
__device__ uint32_t run_tiles(const ResidentArguments &a, const TaskRecord &task, uint32_t letter, char *shared, uint32_t *word) {
  const gpuos_descriptor *d = reinterpret_cast<const gpuos_descriptor *>(task.descriptor);
  const OperatorFunction function = reinterpret_cast<OperatorFunction>(task.function);
  const uint32_t *data = reinterpret_cast<const uint32_t *>(task.data);
  const uint64_t *params = d->pointers;
  if ((d->flags & GPUOS_FLAG_PARAMS) != 0) {
    const bool near = (d->params & GPUOS_NEAR) != 0;
    params = bring_params(near ? reinterpret_cast<const char *>(d->params & ~GPUOS_NEAR) : a.host + d->params, d->param_lines, shared);
  }
  char *scratch = shared + 2 * GPUOS_PARAMS_BYTES;
  for (uint32_t tile = letter; tile < d->tiles; tile += task.letters) {
    // Of the first one the caller knows.
    if (tile != letter && load_relaxed(&a.killed[d->operator_]) != 0) return GPUOS_STATUS_KILLED;
    const uint32_t status = task.function == GPUOS_CHAIN
                                ? run_chain(a, params, tile, d->tiles, shared + GPUOS_PARAMS_BYTES, scratch, word)
                                : agree(function(params, tile, d->tiles, scratch, data), word);
    if (status != GPUOS_STATUS_OK) return status;
  }
  return GPUOS_STATUS_OK;
}

// What a lane of a worker's first warp knows of its mailbox: lane s of that of shard s.
struct Inbox {
  Mailbox *mailbox;
  uint32_t taken;
  bool holding; // a letter that was taken is not through
  bool waited;  // and was looked at before
};

// Takes letters until there is one whose task may begin. Returns the shard that it came from, and in `status` whether it
// may run; -1: the kernel leaves. All lanes of one warp; `last` is the shard before.
__device__ int32_t next_letter(const ResidentArguments &a, Inbox &inbox, Held *held, uint32_t last, uint32_t &status) {
  const uint32_t lane = threadIdx.x & 31;
  for (uint32_t idle = 0;; idle++) {
    uint64_t letter = 0;
    bool arrived = false;
    if (lane < a.shards && !inbox.holding) {
      letter = load_relaxed(&inbox.mailbox->words[inbox.taken % GPUOS_MAILBOX_DEPTH]);
      arrived = (letter >> 63) == (((inbox.taken / GPUOS_MAILBOX_DEPTH) & 1) ^ 1);
    }
    for (uint32_t arrivals = __ballot_sync(0xffffffffu, arrived); arrivals != 0; arrivals &= arrivals - 1) {
      const uint32_t shard = __ffs(arrivals) - 1;
      const uint64_t word = __shfl_sync(0xffffffffu, letter, shard);
      // The record, and all that the tasks before have written, comes after the letter.
      fence_device();
      const uint32_t slot = static_cast<uint32_t>(word) & (a.slots - 1);
      const uint4 *record = reinterpret_cast<const uint4 *>(&a.tasks[static_cast<size_t>(word >> 48 & 0xff) * a.slots + slot]);
      if (lane < sizeof(TaskRecord) / 16) reinterpret_cast<uint4 *>(&held[shard].task)[lane] = load_relaxed(record + lane);
      if (lane == shard) {
        held[shard].letter = word;
        store_relaxed(&inbox.mailbox->taken, ++inbox.taken);
        inbox.holding = true;
        inbox.waited = false;
      }
    }
    __syncwarp();
    uint32_t begins = GPUOS_STATUS_OK;
    bool able = false;
    if (inbox.holding) {
      const TaskRecord &task = held[lane].task;
      const gpuos_descriptor *d = reinterpret_cast<const gpuos_descriptor *>(task.descriptor);
      // The kill bit is looked at while the dependencies are; again if they had to be waited for.
      const uint32_t *killed = &a.killed[min(d->operator_, static_cast<uint32_t>(GPUOS_OPERATOR_SLOTS - 1))];
      const uint32_t before = load_relaxed(killed);
      able = dependencies_complete(a, d, held[lane].letter >> 48 & 0xff, begins);
      if (able && begins == GPUOS_STATUS_OK) begins = task.status;
      if (able && begins == GPUOS_STATUS_OK && (inbox.waited ? load_relaxed(killed) : before) != 0) begins = GPUOS_STATUS_KILLED;
      inbox.waited = true;
    }
    const uint32_t ready = __ballot_sync(0xffffffffu, able);
    if (ready != 0) {
      // In turn, so that no shard waits for ever: the first after the last one.
      const uint32_t later = ready & ~((2u << last) - 1);
      const uint32_t shard = __ffs(later != 0 ? later : ready) - 1;
      status = __shfl_sync(0xffffffffu, begins, shard);
      if (lane == shard) inbox.holding = false;
      return static_cast<int32_t>(shard);
    }
    // Of one mind: a lane that left alone would leave the others to wait for it.
    if ((idle & 63) == 63 && __any_sync(0xffffffffu, load_relaxed(a.leave) != 0)) return -1;
    if (idle > GPUOS_AWAKE_LOOKS && !__any_sync(0xffffffffu, inbox.holding)) __nanosleep(idle > GPUOS_DROWSY_LOOKS ? 8000 : 500);
  }
}

__device__ void worker(const ResidentArguments &a, uint32_t index, char *shared) {
  __shared__ Held held[GPUOS_MAX_SHARDS];
  __shared__ int32_t chosen; // the shard, or less than 0
  __shared__ uint32_t gate;
  __shared__ uint32_t failure;
  Mailbox *mailbox = a.mailboxes + static_cast<size_t>(min(threadIdx.x & 31, a.shards - 1)) * a.workers + index;
  Inbox inbox = {mailbox, mailbox->taken, false, false};
  uint32_t last = 0; // the shard that the last letter came from
  for (;;) {
    if (threadIdx.x < 32) {
      uint32_t begins = GPUOS_STATUS_OK;
      const int32_t shard = next_letter(a, inbox, held, last, begins);
      last = static_cast<uint32_t>(max(shard, 0));
      if (threadIdx.x == 0) {
        chosen = shard;
        gate = begins;
      }
    }
    __syncthreads();
    if (chosen < 0) return;
    const TaskRecord &task = held[chosen].task;
    const uint64_t letter = held[chosen].letter;
    uint32_t status = gate;
    const bool external = task.function == GPUOS_EXTERNAL;
    if (status == GPUOS_STATUS_OK && !external) status = run_tiles(a, task, static_cast<uint32_t>(letter >> 32) & 0xffff, shared, &failure);
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint32_t sequence = static_cast<uint32_t>(letter);
      const uint32_t queue = letter >> 48 & 0xff;
      bool over = true;
      if (task.letters > 1) {
        TaskRecord &shared_task = a.tasks[static_cast<size_t>(queue) * a.slots + (sequence & (a.slots - 1))];
        if (status != GPUOS_STATUS_OK) atomicCAS(&shared_task.worst, GPUOS_STATUS_OK, status);
        // What this share has written comes before its end, and those of all shares before that of the task.
        fence_device();
        over = atomicAdd(&shared_task.done, 1u) + 1 == task.letters;
        if (over) {
          fence_device();
          status = load_relaxed(&shared_task.worst);
        }
      }
      if (over && external) hand_over(a, reinterpret_cast<const gpuos_descriptor *>(task.descriptor), queue, sequence, status);
      else if (over) publish_end(a, queue, sequence, status);
    }
  }
}
