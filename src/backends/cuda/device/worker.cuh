// A worker: one block, which takes letters from its mailboxes, each in order, calls the operator for its share of the tiles
// once what the task depends on is complete, and publishes the end with the last share.
//
// It holds the first letter of each mailbox, and runs one of those whose tasks may begin: it never waits for one while
// another could run. What a task depends on in its own queue was admitted before it by the same shard, what it depends
// on in others is complete by then. So of the tasks of a shard that are not complete the first one waits for nothing, all
// its letters are the first in their mailboxes, and whoever holds them runs them. (With one letter at a time two workers
// could wait for each other: each with a task of one shard, before one of the other shard that the other waits for.)
#pragma once

// A letter that was taken, and the function that it names.
struct __align__(64) Held {
  Letter letter;
  FunctionEntry function;
  Share share;
  bool unsure; // the table has changed since the task was admitted
};

__device__ __forceinline__ const gpuos_descriptor *descriptor_of(const Held &held) {
  return reinterpret_cast<const gpuos_descriptor *>(held.letter.descriptor);
}

// What a worker knows without a look: of the last task that it ended itself, and up to which one all of that queue are
// complete, where that task had to wait for all before it.
struct Ended {
  uint32_t queue; // NO_QUEUE: none
  uint32_t sequence;
  uint32_t status;
  uint32_t all_queue;
  uint32_t all_before; // the first one that may not be
};

// Whether the task may begin, and with which status: OK or DEPENDENCY_FAILED. One look.
static __device__ bool dependencies_complete(const ResidentArguments &a, const gpuos_descriptor *d, uint32_t queue, const Ended &ended, uint32_t &status) {
  status = GPUOS_STATUS_OK;
  if ((d->flags & GPUOS_FLAG_AFTER) != 0 && !(ended.all_queue == queue && is_before(d->after, ended.all_before)) &&
      !is_before(d->after, load_acquire(&a.marks[queue]))) {
    return false;
  }
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t other = d->dependency_queues[i];
    if (other == GPUOS_NO_QUEUE) continue;
    if (other >= a.queues) {
      status = GPUOS_STATUS_DEPENDENCY_FAILED;
      continue;
    }
    const uint32_t producer = d->dependencies[i];
    if (other == ended.queue && producer == ended.sequence) {
      if (ended.status != GPUOS_STATUS_OK) status = GPUOS_STATUS_DEPENDENCY_FAILED;
      continue;
    }
    const uint64_t seen = load_acquire(&a.completions[other * a.slots + (producer & (a.slots - 1))]);
    if (is_before(static_cast<uint32_t>(seen >> 32), producer)) return false;
    if (static_cast<uint32_t>(seen >> 32) == producer && static_cast<uint32_t>(seen) != GPUOS_STATUS_OK) {
      status = GPUOS_STATUS_DEPENDENCY_FAILED;
    }
  }
  return true;
}

// What a letter came to.
struct Outcome {
  uint32_t status;
  uint32_t ran;  // tiles
  uint32_t done; // what it adds to the task's progress
};

// The tiles that this worker pulls. All threads have the status; the first one has the rest.
static __device__ Outcome run_pulled(const ResidentArguments &a, const Held &held, const uint64_t *params, char *scratch, uint32_t *word) {
  // In turn, as a thread may still read the one when the first one writes the other.
  __shared__ uint32_t pulled[2];
  const gpuos_descriptor *d = descriptor_of(held);
  const OperatorFunction function = reinterpret_cast<OperatorFunction>(held.function.address);
  Share share = held.share;
  share.began = now_ns();
  Progress &progress = progress_of(a, share.queue, share.sequence);
  Outcome outcome = {GPUOS_STATUS_OK, 0, 0};
  if (threadIdx.x == 0) {
    pulled[0] = pull_tile(progress, share.sequence, d->tiles);
    if (pulled[0] < d->tiles) begin_step(a, share, pulled[0], 0);
  }
  __syncthreads();
  for (uint32_t tile = pulled[0]; tile < d->tiles && outcome.status == GPUOS_STATUS_OK; tile = pulled[outcome.ran & 1]) {
    outcome.ran++;
    outcome.done++;
    outcome.status = function(params, tile, d->tiles, scratch, nullptr);
    uint32_t next = d->tiles;
    if (threadIdx.x == 0) {
      // Asked for even if this thread has failed: what follows is in step with the others.
      next = pulled[outcome.ran & 1] = pull_tile(progress, share.sequence, d->tiles);
    }
    outcome.status = end_step(a, share, d->operator_, next < d->tiles, next, 0, outcome.status, word);
    if (outcome.status != GPUOS_STATUS_OK && threadIdx.x == 0) {
      if (next < d->tiles) outcome.done++;
      outcome.done += pull_rest(progress, share.sequence, d->tiles);
    }
  }
  return outcome;
}

// The shares of the letter's tiles: letter i of n has tiles i, i + n, ... All threads have the status.
static __device__ Outcome run_dealt(const ResidentArguments &a, const Held &held, const uint64_t *params, char *shared, char *scratch,
                                    uint32_t *word) {
  const gpuos_descriptor *d = descriptor_of(held);
  const uint32_t letters = held.letter.envelope.letters;
  const OperatorFunction function = reinterpret_cast<OperatorFunction>(held.function.address);
  const uint32_t *data = reinterpret_cast<const uint32_t *>(held.function.data);
  const bool chained = held.function.address == GPUOS_CHAIN;
  Share share = held.share;
  // The clock takes its time, which a task of one step has no use for.
  if (chained || share.number + letters < d->tiles) share.began = now_ns();
  Outcome outcome = {GPUOS_STATUS_OK, 0, 1};
  for (uint32_t tile = share.number; tile < d->tiles && outcome.status == GPUOS_STATUS_OK; tile += letters) {
    const uint32_t next = tile + letters;
    outcome.ran++;
    if (chained) {
      outcome.status = run_chain(a, share, d->operator_, params, tile, d->tiles, next, shared + GPUOS_PARAMS_BYTES, scratch, word);
    } else {
      outcome.status = function(params, tile, d->tiles, scratch, data);
      outcome.status = end_step(a, share, d->operator_, next < d->tiles, next, 0, outcome.status, word);
    }
  }
  return outcome;
}

static __device__ bool is_pulled(const Held &held) { return held.function.data == GPUOS_PULLED && held.letter.envelope.letters > 1; }

// Runs what the letter asks for.
static __device__ Outcome run_tiles(const ResidentArguments &a, const Held &held, char *shared, uint32_t *word) {
  const gpuos_descriptor *d = descriptor_of(held);
  const uint64_t *params = d->pointers;
  if ((d->flags & GPUOS_FLAG_PARAMS) != 0) {
    const bool near = (d->params & GPUOS_NEAR) != 0;
    params = bring_params(near ? reinterpret_cast<const char *>(d->params & ~GPUOS_NEAR) : a.host + d->params, d->param_lines, shared);
  }
  char *scratch = shared + 2 * GPUOS_PARAMS_BYTES;
  return is_pulled(held) ? run_pulled(a, held, params, scratch, word) : run_dealt(a, held, params, shared, scratch, word);
}

// A letter that did not run: what it adds to the task's progress. Of pulled tiles that is all that nobody has, once. One thread.
static __device__ uint32_t refuse(const ResidentArguments &a, const Held &held) {
  if (!is_pulled(held)) return 1;
  const uint32_t tiles = descriptor_of(held)->tiles;
  Progress &progress = progress_of(a, held.share.queue, held.share.sequence);
  if (pull_tile(progress, held.share.sequence, tiles) == tiles) return 0;
  return 1 + pull_rest(progress, held.share.sequence, tiles);
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
static __device__ void begin_counting(const ResidentArguments &a, uint32_t index, Counters &counters) {
  gpuos_worker_record *record = worker_of(a, index + 1);
  const uint4 first = load_host(reinterpret_cast<const uint4 *>(&record->tiles));
  const uint4 second = load_host(reinterpret_cast<const uint4 *>(&record->failed));
  const auto join = [](uint32_t low, uint32_t high) { return static_cast<uint64_t>(high) << 32 | low; };
  counters = {join(first.x, first.y), join(first.z, first.w), join(second.x, second.y), join(second.z, second.w), 0, 0};
  store_host(&record->state, GPUOS_WORKER_STATE_RUNNING);
}

static __device__ void save(const ResidentArguments &a, uint32_t index, Counters &counters) {
  gpuos_worker_record *record = worker_of(a, index + 1);
  store_host(&record->tiles, counters.tiles);
  store_host(&record->tasks, counters.tasks);
  store_host(&record->failed, counters.failed);
  store_host(&record->parks, counters.parks);
  counters.unsaved = 0;
}

// Without work for a while.
static __device__ void settle(const ResidentArguments &a, uint32_t index, Counters &counters) {
  store_relaxed(&a.steps[index], static_cast<uint64_t>(0));
  if (counters.unsaved != 0) save(a, index, counters);
}

// After a letter, and what it published: counts, and gives way after so many tiles to kernels on the same multiprocessor.
static __device__ void count(const ResidentArguments &a, uint32_t index, Counters &counters, uint32_t tiles, bool over, bool failed, uint32_t yield_every) {
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

// What a worker knows of its mailboxes: of those of all shards in bits, the same in all lanes of its first warp.
struct Inbox {
  Mailbox *mailboxes; // shard s: s * workers from here
  uint32_t taken;     // letters of shard s: lane s's. The mailbox is told when they are through
  uint32_t holding;   // a letter that was taken is not through
  uint32_t waited;    // and was looked at before
  // The letter behind the one that ran last was asked for before that ran: its pieces, the shard that it is of, and when.
  uint4 *ahead;
  uint32_t ahead_of; // NO_SHARD: none
  uint64_t asked;
};
#define GPUOS_NO_SHARD 255
// What was asked for longer ago says too little of changes of the table.
#ifndef GPUOS_AHEAD_CYCLES
#define GPUOS_AHEAD_CYCLES 40000
#endif

// Functions that a worker has called before, so that it need not look them up again, while the table stays as it is.
#define GPUOS_KNOWN_FUNCTIONS 32
struct Known {
  uint32_t dispatched; // changes of the table, as of the newest letter
  uint32_t entered;
  uint32_t fns[GPUOS_KNOWN_FUNCTIONS]; // 0: none
  FunctionEntry entries[GPUOS_KNOWN_FUNCTIONS];
};

// Has `held` have the letter whose pieces the lanes from `first` on have, and behind them the table's changes. All lanes
// of one warp.
static __device__ void take(const ResidentArguments &a, uint4 piece, uint32_t first, Held &held, Known &known) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t at = lane - first;
  if (at < GPUOS_LETTER_PIECES) {
    uint32_t *words = reinterpret_cast<uint32_t *>(&held.letter) + 3 * at;
    words[0] = piece.x;
    words[1] = piece.y;
    words[2] = piece.z;
  }
  // What the letter tells of, and all that the tasks before have written, comes after it.
  fence_device();
  const uint32_t fn = __shfl_sync(0xffffffffu, piece.x, first + GPUOS_LETTER_PIECES - 1);
  const uint32_t changes = __shfl_sync(0xffffffffu, piece.y, first + GPUOS_LETTER_PIECES - 1);
  const uint32_t dispatched = __shfl_sync(0xffffffffu, piece.x, first + GPUOS_LETTER_PIECES);
  const uint32_t entered = __shfl_sync(0xffffffffu, piece.y, first + GPUOS_LETTER_PIECES);
  const bool forgets = is_before(known.dispatched, changes) || known.entered != entered;
  const uint32_t place = fn % GPUOS_KNOWN_FUNCTIONS;
  const bool found = !forgets && known.fns[place] == fn && fn != 0;
  __syncwarp();
  if (forgets) {
    for (uint32_t i = lane; i < GPUOS_KNOWN_FUNCTIONS; i += 32) known.fns[i] = 0;
  }
  __syncwarp();
  if (lane == 0) {
    if (forgets) {
      known.dispatched = changes;
      known.entered = entered;
    }
    if (!found) {
      reinterpret_cast<uint4 &>(known.entries[place]) = load_relaxed(reinterpret_cast<const uint4 *>(&a.functions[fn]));
      known.fns[place] = fn;
    }
    held.function = known.entries[place];
    const Envelope &envelope = held.letter.envelope;
    // The first line's tag is the whole sequence.
    held.share = {descriptor_of(held)->tag0, envelope.queue, envelope.share, 0};
    held.unsure = changes != dispatched;
  }
  __syncwarp();
}

// Where a lane's piece of the next letter of a mailbox comes from; behind the last piece stands how often the table has changed.
static __device__ const uint4 *piece_of(const ResidentArguments &a, const Inbox &inbox, uint32_t shard, uint32_t number, uint32_t piece) {
  if (piece == GPUOS_LETTER_PIECES) return reinterpret_cast<const uint4 *>(a.changes);
  return &inbox.mailboxes[static_cast<size_t>(shard) * a.workers].places[number % GPUOS_MAILBOX_DEPTH][piece];
}

// Asks for the letter behind the one that is going to run, so that it is in shared memory by the end of that. All lanes of
// one warp.
static __device__ void ask_ahead(const ResidentArguments &a, Inbox &inbox, uint32_t shard) {
  if (GPUOS_COPIES_AHEAD == 0) return;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t number = __shfl_sync(0xffffffffu, inbox.taken, shard);
  if (lane <= GPUOS_LETTER_PIECES) copy_ahead(inbox.ahead + lane, piece_of(a, inbox, shard, number, lane));
  inbox.ahead_of = shard;
  inbox.asked = cycles();
}

// Looks into all mailboxes once, and takes a letter from each from which none is held. A lane has a piece of a letter, so
// that all of it comes at one time; two mailboxes to a warp, and as many loads at a time as it takes. False if the kernel
// leaves.
static __device__ bool look_for_letters(const ResidentArguments &a, Inbox &inbox, Held *held, Known &known) {
  constexpr uint32_t LOADS = (GPUOS_MAX_SHARDS + 1) / 2;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t piece = lane & 15;
  const auto looks = [&](uint32_t shard) { return shard < a.shards && (inbox.holding >> shard & 1) == 0; };
  const uint32_t ahead_of = inbox.ahead_of;
  inbox.ahead_of = GPUOS_NO_SHARD;
  // Of one mind: the clock of each lane is its own.
  const bool fresh = ahead_of != GPUOS_NO_SHARD && __any_sync(0xffffffffu, cycles() - inbox.asked < GPUOS_AHEAD_CYCLES);
  if (ahead_of != GPUOS_NO_SHARD) {
    wait_for_copies();
    __syncwarp();
  }
  uint4 pieces[LOADS];
#pragma unroll
  for (uint32_t i = 0; i < LOADS; i++) {
    if (2 * i >= a.shards) break;
    const uint32_t shard = 2 * i + (lane >> 4);
    const uint32_t number = __shfl_sync(0xffffffffu, inbox.taken, shard);
    // Whether the kernel leaves is asked even with all hands full.
    if (piece > GPUOS_LETTER_PIECES || (!looks(shard) && !(lane == GPUOS_LETTER_PIECES && i == 0))) continue;
    pieces[i] = fresh && shard == ahead_of ? inbox.ahead[piece] : load_relaxed(piece_of(a, inbox, shard, number, piece));
  }
  if (__any_sync(0xffffffffu, lane == GPUOS_LETTER_PIECES && pieces[0].z != 0)) return false;
  uint32_t arrived = 0;
#pragma unroll
  for (uint32_t i = 0; i < LOADS; i++) {
    if (2 * i >= a.shards) break;
    const uint32_t shard = 2 * i + (lane >> 4);
    const uint32_t number = __shfl_sync(0xffffffffu, inbox.taken, shard);
    const bool there = looks(shard) && (piece >= GPUOS_LETTER_PIECES || pieces[i].w == number + 1);
    const uint32_t votes = __ballot_sync(0xffffffffu, there);
    if ((votes & 0xffff) == 0xffff) arrived |= 1u << 2 * i;
    if (votes >> 16 == 0xffff) arrived |= 2u << 2 * i;
  }
  for (; arrived != 0; arrived &= arrived - 1) {
    const uint32_t shard = __ffs(arrived) - 1;
    uint4 own = pieces[0];
#pragma unroll
    for (uint32_t i = 1; i < LOADS; i++) {
      if (shard / 2 == i) own = pieces[i];
    }
    take(a, own, shard % 2 * 16, held[shard], known);
    if (lane == shard) inbox.taken++;
    inbox.holding |= 1u << shard;
    inbox.waited &= ~(1u << shard);
  }
  return true;
}

// That the letter of this shard which was held is through: its place may have another one. One that is held when the kernel
// leaves is the next kernel's.
static __device__ __forceinline__ void tell_taken(const ResidentArguments &a, const Inbox &inbox, uint32_t shard) {
  if ((threadIdx.x & 31) == shard) store_relaxed(&inbox.mailboxes[static_cast<size_t>(shard) * a.workers].taken, inbox.taken);
}

// Takes letters until there is one whose task may begin. Returns the shard that it came from, and in `status` whether it
// may run; -1: the kernel leaves. All lanes of one warp; `last` is the shard before.
static __device__ int32_t next_letter(const ResidentArguments &a, uint32_t index, Inbox &inbox, Held *held, Known &known, const Ended &ended,
                               Counters &counters, uint32_t last, uint32_t &status) {
  const uint32_t lane = threadIdx.x & 31;
  for (uint32_t idle = 0;; idle++) {
    if (!look_for_letters(a, inbox, held, known)) return -1;
    uint32_t begins = GPUOS_STATUS_OK;
    bool able = false;
    if ((inbox.holding >> lane & 1) != 0) {
      const Held &own = held[lane];
      const gpuos_descriptor *d = descriptor_of(own);
      able = dependencies_complete(a, d, own.share.queue, ended, begins);
      if (able && begins == GPUOS_STATUS_OK) begins = own.letter.envelope.status;
      if (able && begins == GPUOS_STATUS_OK) {
        // The dispatcher has looked at the kill bit; it is looked at again if there was time for another one to be set.
        const bool again = own.unsure || (inbox.waited >> lane & 1) != 0;
        if (again && load_relaxed(&a.killed[d->operator_]) != 0) begins = GPUOS_STATUS_KILLED;
        else if (own.function.address == 0) begins = GPUOS_STATUS_EMPTY_SLOT;
      }
    }
    inbox.waited |= inbox.holding;
    const uint32_t ready = __ballot_sync(0xffffffffu, able);
    if (ready != 0) {
      // In turn, so that no shard waits for ever: the first after the last one.
      const uint32_t later = ready & ~((2u << last) - 1);
      const uint32_t shard = __ffs(later != 0 ? later : ready) - 1;
      status = __shfl_sync(0xffffffffu, begins, shard);
      inbox.holding &= ~(1u << shard);
      return static_cast<int32_t>(shard);
    }
    if (lane == 0 && idle == GPUOS_AWAKE_LOOKS) settle(a, index, counters);
    if (lane == 0 && idle == GPUOS_DROWSY_LOOKS) {
      counters.parks++;
      save(a, index, counters);
    }
    if (idle > GPUOS_AWAKE_LOOKS && inbox.holding == 0) __nanosleep(idle > GPUOS_DROWSY_LOOKS ? 8000 : 500);
  }
}

// At the start; the first warp.
static __device__ void forget_all(const ResidentArguments &a, Known &known, Ended &ended) {
  for (uint32_t i = threadIdx.x; i < GPUOS_KNOWN_FUNCTIONS; i += 32) known.fns[i] = 0;
  if (threadIdx.x == 0) {
    known.dispatched = load_relaxed(&a.changes->dispatched);
    known.entered = load_relaxed(&a.changes->entered);
    ended = {GPUOS_NO_QUEUE, 0, 0, GPUOS_NO_QUEUE, 0};
  }
  __syncwarp();
}

// That this worker has ended a task. One that had to wait for all before it tells of those too.
static __device__ void remember(Ended &ended, const gpuos_descriptor *d, uint32_t queue, uint32_t sequence, uint32_t status) {
  ended.queue = queue;
  ended.sequence = sequence;
  ended.status = status;
  if ((d->flags & GPUOS_FLAG_AFTER) != 0 && d->after + 1 == sequence) {
    ended.all_queue = queue;
    ended.all_before = sequence + 1;
  } else if (queue == ended.all_queue && sequence - ended.all_before > 1u << 30) {
    // Before it is so old that numbers modulo 2^32 could not tell any more which one comes first.
    ended.all_queue = GPUOS_NO_QUEUE;
  }
}

static __device__ void worker(const ResidentArguments &a, uint32_t index, char *shared) {
  __shared__ Held held[GPUOS_MAX_SHARDS];
  __shared__ Known known;
  __shared__ Ended ended;
  __shared__ uint4 ahead[GPUOS_LETTER_PIECES + 1];
  __shared__ int32_t chosen; // the shard, or less than 0
  __shared__ uint32_t gate;
  __shared__ uint32_t failure;
  __shared__ Counters counters;
  if (threadIdx.x == 0) begin_counting(a, index, counters);
  if (threadIdx.x < 32) forget_all(a, known, ended);
  Inbox inbox = {a.mailboxes + index, 0, 0, 0, ahead, GPUOS_NO_SHARD, 0};
  if ((threadIdx.x & 31) < a.shards) inbox.taken = inbox.mailboxes[static_cast<size_t>(threadIdx.x & 31) * a.workers].taken;
  uint32_t last = 0; // the shard that the last letter came from
  for (;;) {
    if (threadIdx.x < 32) {
      uint32_t begins = GPUOS_STATUS_OK;
      const int32_t shard = next_letter(a, index, inbox, held, known, ended, counters, last, begins);
      last = static_cast<uint32_t>(max(shard, 0));
      if (shard >= 0) ask_ahead(a, inbox, last);
      if (threadIdx.x == 0) {
        chosen = shard;
        gate = begins;
        if (shard >= 0) begin_step(a, held[shard].share, held[shard].share.number, 0);
      }
    }
    __syncthreads();
    if (chosen < 0) break;
    const Held &own = held[chosen];
    const gpuos_descriptor *d = descriptor_of(own);
    uint32_t status = gate;
    const bool external = own.function.address == GPUOS_EXTERNAL;
    Outcome outcome = {status, 0, 0};
    if (status == GPUOS_STATUS_OK && !external) outcome = run_tiles(a, own, shared, &failure);
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint32_t sequence = own.share.sequence;
      const uint32_t queue = own.share.queue;
      const uint32_t letters = own.letter.envelope.letters;
      if (status != GPUOS_STATUS_OK || external) outcome.done = refuse(a, own);
      status = outcome.status;
      const bool failed = status != GPUOS_STATUS_OK;
      bool over = true;
      if (letters > 1) {
        Progress &progress = progress_of(a, queue, sequence);
        // Who has pulled no tile has nothing to do with the task any more.
        if (outcome.done > 0 && failed) atomicCAS(&progress.worst, GPUOS_STATUS_OK, status);
        // What this share has written comes before its end, and those of all shares before that of the task.
        fence_device();
        over = outcome.done > 0 && atomicAdd(&progress.done, outcome.done) + outcome.done == (is_pulled(own) ? d->tiles : letters);
        if (over) {
          fence_device();
          status = load_relaxed(&progress.worst);
        }
      }
      if (over && external) hand_over(a, d, queue, sequence, status);
      else if (over) publish_end(a, queue, sequence, status);
      if (over && !external) remember(ended, d, queue, sequence, status);
      count(a, index, counters, outcome.ran, over && !external, failed, own.letter.yield_every);
    }
    if (threadIdx.x < 32) {
      // The first warp's other lanes ask what was remembered.
      __syncwarp();
      tell_taken(a, inbox, last);
    }
  }
  if (threadIdx.x != 0) return;
  settle(a, index, counters);
  store_host(&worker_of(a, index + 1)->state, GPUOS_WORKER_STATE_LEFT);
}
