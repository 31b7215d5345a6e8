// A worker: one block, which takes letters from its mailboxes, each in order, calls the operator for its share of the tiles
// once what the task depends on is complete, and publishes the end with the last share.
//
// It holds the first letter of each mailbox, and runs one of those whose tasks may begin: it never waits for one while
// another could run. What a task depends on in its own queue was admitted before it by the same shard, what it depends
// on in others is complete by then. So of the tasks of a shard that are not complete the first one waits for nothing, all
// its letters are the first in their mailboxes, and whoever holds them runs them. (With one letter at a time two workers
// could wait for each other: each with a task of one shard, before one of the other shard that the other waits for.)
#pragma once

// A letter that was taken: its task as it was admitted, and what was loaded with it.
struct __align__(16) Held {
  TaskRecord task;
  FunctionEntry function;
  Share share;
  uint32_t killed;
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

// The shares of the letter's tiles: letter i of n has tiles i, i + n, ... All threads have the status; `ran` counts.
__device__ uint32_t run_tiles(const ResidentArguments &a, const Held &held, char *shared, uint32_t *word, uint32_t &ran) {
  const TaskRecord &task = held.task;
  const gpuos_descriptor *d = reinterpret_cast<const gpuos_descriptor *>(task.descriptor);
  const OperatorFunction function = reinterpret_cast<OperatorFunction>(held.function.address);
  const uint32_t *data = reinterpret_cast<const uint32_t *>(held.function.data);
  const uint64_t *params = d->pointers;
  if ((d->flags & GPUOS_FLAG_PARAMS) != 0) {
    const bool near = (d->params & GPUOS_NEAR) != 0;
    params = bring_params(near ? reinterpret_cast<const char *>(d->params & ~GPUOS_NEAR) : a.host + d->params, d->param_lines, shared);
  }
  char *scratch = shared + 2 * GPUOS_PARAMS_BYTES;
  const bool chained = held.function.address == GPUOS_CHAIN;
  Share share = held.share;
  // The clock takes its time, which a task of one step has no use for.
  if (chained || share.number + task.letters < d->tiles) share.began = now_ns();
  for (uint32_t tile = share.number; tile < d->tiles; tile += task.letters) {
    const uint32_t next = tile + task.letters;
    uint32_t status;
    ran++;
    if (chained) {
      status = run_chain(a, share, d->operator_, params, tile, d->tiles, next, shared + GPUOS_PARAMS_BYTES, scratch, word);
    } else {
      status = function(params, tile, d->tiles, scratch, data);
      status = end_step(a, share, d->operator_, next < d->tiles, next, 0, status, word);
    }
    if (status != GPUOS_STATUS_OK) return status;
  }
  return GPUOS_STATUS_OK;
}

// What a worker has done: its first thread's, in shared memory. The host's record gets them when there is time.
struct Counters {
  uint64_t tiles;
  uint64_t tasks;  // of which it ended the last share
  uint64_t failed; // shares
  uint64_t parks;  // times that it began to look less often
  uint32_t unsaved;
  uint32_t since_yield; // tiles
};

// They go on over launches of the kernel.
__device__ void begin_counting(const ResidentArguments &a, uint32_t index, Counters &counters) {
  gpuos_worker_record *record = worker_of(a, index + 1);
  const uint4 first = load_host(reinterpret_cast<const uint4 *>(&record->tiles));
  const uint4 second = load_host(reinterpret_cast<const uint4 *>(&record->failed));
  const auto join = [](uint32_t low, uint32_t high) { return static_cast<uint64_t>(high) << 32 | low; };
  counters = {join(first.x, first.y), join(first.z, first.w), join(second.x, second.y), join(second.z, second.w), 0, 0};
  store_host(&record->state, GPUOS_WORKER_STATE_RUNNING);
}

__device__ void save(const ResidentArguments &a, uint32_t index, Counters &counters) {
  gpuos_worker_record *record = worker_of(a, index + 1);
  store_host(&record->tiles, counters.tiles);
  store_host(&record->tasks, counters.tasks);
  store_host(&record->failed, counters.failed);
  store_host(&record->parks, counters.parks);
  counters.unsaved = 0;
}

// Without work for a while.
__device__ void settle(const ResidentArguments &a, uint32_t index, Counters &counters) {
  store_relaxed(&a.steps[index], static_cast<uint64_t>(0));
  if (counters.unsaved != 0) save(a, index, counters);
}

// After a letter, and what it published: counts, and gives way after so many tiles to kernels on the same multiprocessor.
__device__ void count(const ResidentArguments &a, uint32_t index, Counters &counters, uint32_t tiles, bool over, bool failed, uint32_t yield_every) {
  counters.tiles += tiles;
  if (over) counters.tasks++;
  if (failed) counters.failed++;
  if (++counters.unsaved >= GPUOS_SAVE_LETTERS) save(a, index, counters);
  counters.since_yield += tiles;
  if (yield_every == 0 || counters.since_yield < yield_every) return;
  counters.since_yield = 0;
  // At nothing meanwhile. The other warps wait at a barrier, which takes none of the multiprocessor's time.
  store_relaxed(&a.steps[index], static_cast<uint64_t>(0));
  for (const uint64_t from = now_ns(); now_ns() - from < GPUOS_YIELD_NS;) __nanosleep(20000);
}

// What a lane of a worker's first warp knows of its mailbox: lane s of that of shard s.
struct Inbox {
  Mailbox *mailbox;
  uint32_t taken;
  bool holding; // a letter that was taken is not through
  bool waited;  // and was looked at before
};

// Brings all that a letter tells of, at one time: the record, and behind it the function's entry; and the kill bit. All
// lanes of one warp.
__device__ void take(const ResidentArguments &a, const Letter &letter, Held &held) {
  const uint32_t lane = threadIdx.x & 31;
  constexpr uint32_t PIECES = sizeof(TaskRecord) / 16;
  static_assert(sizeof(TaskRecord) % alignof(FunctionEntry) == 0 && sizeof(FunctionEntry) == 16, "the entry is the next piece");
  // What it tells of, and all that the tasks before have written, comes after the letter.
  fence_device();
  const uint32_t killed = load_relaxed(&a.killed[letter.slot]);
  const TaskRecord *record = &a.tasks[static_cast<size_t>(letter.queue) * a.slots + (letter.sequence & (a.slots - 1))];
  if (lane > PIECES) return;
  const uint4 *from = lane < PIECES ? record->descriptor + lane : reinterpret_cast<const uint4 *>(&a.functions[letter.fn]);
  const uint4 piece = load_relaxed(from);
  reinterpret_cast<uint4 *>(&held)[lane] = piece;
  // The first line's tag is the whole sequence.
  if (lane == 3) held.share = {piece.w, letter.queue, letter.share, 0};
  if (lane == 0) held.killed = killed;
}

// Takes letters until there is one whose task may begin. Returns the shard that it came from, and in `status` whether it
// may run; -1: the kernel leaves. All lanes of one warp; `last` is the shard before.
__device__ int32_t next_letter(const ResidentArguments &a, uint32_t index, Inbox &inbox, Held *held, Counters &counters, uint32_t last,
                               uint32_t &status) {
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
      take(a, unseal(__shfl_sync(0xffffffffu, letter, shard)), held[shard]);
      if (lane == shard) {
        store_relaxed(&inbox.mailbox->taken, ++inbox.taken);
        inbox.holding = true;
        inbox.waited = false;
      }
    }
    __syncwarp();
    uint32_t begins = GPUOS_STATUS_OK;
    bool able = false;
    if (inbox.holding) {
      const Held &own = held[lane];
      const gpuos_descriptor *d = reinterpret_cast<const gpuos_descriptor *>(own.task.descriptor);
      able = dependencies_complete(a, d, own.share.queue, begins);
      if (able && begins == GPUOS_STATUS_OK) begins = own.task.status;
      if (able && begins == GPUOS_STATUS_OK) {
        // The kill bit came with the task; it is looked at again if dependencies had to be waited for.
        if ((inbox.waited ? load_relaxed(&a.killed[d->operator_]) : own.killed) != 0) begins = GPUOS_STATUS_KILLED;
        else if (own.function.address == 0) begins = GPUOS_STATUS_EMPTY_SLOT;
      }
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
    // Of one mind: a lane that left alone would leave the others to wait for it. More often where looks are far apart.
    const uint32_t often = idle > GPUOS_AWAKE_LOOKS ? 7 : 63;
    if ((idle & often) == often && __any_sync(0xffffffffu, load_relaxed(a.leave) != 0)) return -1;
    if (lane == 0 && idle == GPUOS_AWAKE_LOOKS) settle(a, index, counters);
    if (lane == 0 && idle == GPUOS_DROWSY_LOOKS) {
      counters.parks++;
      save(a, index, counters);
    }
    if (idle > GPUOS_AWAKE_LOOKS && !__any_sync(0xffffffffu, inbox.holding)) __nanosleep(idle > GPUOS_DROWSY_LOOKS ? 8000 : 500);
  }
}

__device__ void worker(const ResidentArguments &a, uint32_t index, char *shared) {
  __shared__ Held held[GPUOS_MAX_SHARDS];
  __shared__ int32_t chosen; // the shard, or less than 0
  __shared__ uint32_t gate;
  __shared__ uint32_t failure;
  __shared__ Counters counters;
  if (threadIdx.x == 0) begin_counting(a, index, counters);
  Mailbox *mailbox = a.mailboxes + static_cast<size_t>(min(threadIdx.x & 31, a.shards - 1)) * a.workers + index;
  Inbox inbox = {mailbox, mailbox->taken, false, false};
  uint32_t last = 0; // the shard that the last letter came from
  for (;;) {
    if (threadIdx.x < 32) {
      uint32_t begins = GPUOS_STATUS_OK;
      const int32_t shard = next_letter(a, index, inbox, held, counters, last, begins);
      last = static_cast<uint32_t>(max(shard, 0));
      if (threadIdx.x == 0) {
        chosen = shard;
        gate = begins;
        if (shard >= 0) begin_step(a, held[shard].share, held[shard].share.number, 0);
      }
    }
    __syncthreads();
    if (chosen < 0) break;
    const Held &own = held[chosen];
    const TaskRecord &task = own.task;
    uint32_t status = gate;
    const bool external = own.function.address == GPUOS_EXTERNAL;
    uint32_t ran = 0;
    if (status == GPUOS_STATUS_OK && !external) status = run_tiles(a, own, shared, &failure, ran);
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint32_t sequence = own.share.sequence;
      const uint32_t queue = own.share.queue;
      const bool failed = status != GPUOS_STATUS_OK;
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
      count(a, index, counters, ran, over && !external, failed, task.yield_every);
    }
  }
  if (threadIdx.x != 0) return;
  settle(a, index, counters);
  store_host(&worker_of(a, index + 1)->state, GPUOS_WORKER_STATE_LEFT);
}
