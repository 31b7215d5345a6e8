// The dispatcher only admits: each of its first warps, a shard, takes tasks from its queues in order, resolves what
// their slots of the operator table hold, and sends them to the workers' mailboxes in turn. Its last warp watches
// completions and the host's signs of life. Dependencies are the workers' business, but for those on other queues.
#pragma once

// A shard's part of the block's shared memory.
struct Shard {
  uint4 stage[32][8];  // descriptors of the batch at hand
  uint32_t before[33]; // letters of the tasks before each of the batch
};

// In the dispatcher's table: tasks that are admitted now are refused, whatever becomes of the operator before they begin.
#define GPUOS_KILLED 0x8000

// Tasks of a queue whose completion is looked at together.
#define GPUOS_LOOK 128

// What the shards share.
struct Dispatching {
  uint32_t pause;       // not 0: nothing more is admitted
  uint32_t paused;      // shards that have seen it
  uint32_t yield_every; // what the host has set, as of the watcher's last look
  uint32_t changes;     // of the table
  uint32_t heads[GPUOS_MAX_QUEUES];
  uint16_t table[GPUOS_OPERATOR_SLOTS]; // the function of each slot, and KILLED
};

// The host takes no more shards than fit into the block's shared memory with all workers (resident.ts).
static_assert(sizeof(Dispatching) == 8272, "Dispatching");
static_assert(sizeof(Shard) == 4240, "Shard");

// A shard's mailboxes, with what it knows of them: [workers].
struct Outbox {
  Mailbox *mailboxes;
  uint32_t *sent;  // letters
  uint32_t *taken; // of these, as of the last look
  uint32_t turn;   // the worker that the last letter went to
  // Of the last task: whether it went out in one letter, and how many behind one another have gone to that worker.
  bool single;
  uint32_t run;
};

// Tasks that wait for the one before go to the same worker, which knows then without a look that it is complete: so many
// of them, as a mailbox has an end, and behind it everybody else would wait.
#define GPUOS_RUN 8

// A batch on its way from a ring. Asked for ahead while the one before is sent out, it is `ahead` until it is looked at.
struct Batch {
  uint4 pieces[8];
  uint32_t head;
  bool ahead;
};

__device__ __forceinline__ const gpuos_descriptor *staged(const Shard &shard, uint32_t i) {
  return reinterpret_cast<const gpuos_descriptor *>(shard.stage[i]);
}

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

// Brings the next descriptors of a queue into `shard.stage`, and returns how many are there. With `eager`, when the last
// look found many, it asks for 32 at once, and having got them for the next 32; else for four first, which is sooner here.
static __device__ uint32_t fetch(const ResidentArguments &a, Shard &shard, const char *ring, uint32_t head, bool eager, Batch &batch) {
  const uint32_t lane = threadIdx.x & 31;
  const bool ahead = batch.ahead && batch.head == head;
  if (!ahead) {
    batch.pieces[0] = load_four(a, ring, head, 0);
    if (eager) {
#pragma unroll
      for (uint32_t i = 1; i < 8; i++) batch.pieces[i] = load_four(a, ring, head, i);
    }
  }
  batch.ahead = false;
  uint32_t count = count_four(batch.pieces[0], head, 0);
  if (count == 0) return 0;
  shard.stage[lane >> 3][lane & 7] = batch.pieces[0];
  if (count == 4) {
    if (!ahead && !eager) {
#pragma unroll
      for (uint32_t i = 1; i < 8; i++) batch.pieces[i] = load_four(a, ring, head, i);
    }
#pragma unroll
    for (uint32_t i = 1; i < 8; i++) {
      if (count != 4 * i) continue;
      count += count_four(batch.pieces[i], head, i);
      shard.stage[4 * i + (lane >> 3)][lane & 7] = batch.pieces[i];
    }
  }
  if (count == 32) {
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) batch.pieces[i] = load_four(a, ring, head + 32, i);
    batch.head = head + 32;
    batch.ahead = true;
  }
  __syncwarp();
  return count;
}

// Whether it depends on tasks of other queues.
static __device__ bool depends_on_others(const ResidentArguments &a, const gpuos_descriptor *d, uint32_t queue) {
  bool any = false;
  for (uint32_t i = 0; i < 4; i++) any = any || (d->dependency_queues[i] != queue && d->dependency_queues[i] < a.queues);
  return any;
}

// Whether every task of another queue that this one depends on is complete. A worker waits for tasks of its own queue
// alone: one of another shard may stand behind this very task in the same worker's other mailbox.
static __device__ bool others_complete(const ResidentArguments &a, const gpuos_descriptor *d, uint32_t queue) {
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t other = d->dependency_queues[i];
    if (other == queue || other >= a.queues) continue;
    const uint64_t word = load_acquire(&a.completions[other * a.slots + (d->dependencies[i] & (a.slots - 1))]);
    if (is_before(static_cast<uint32_t>(word >> 32), d->dependencies[i])) return false;
  }
  return true;
}

// Behind a change of the table: letters from here on say that they are of another time. One lane.
__device__ __forceinline__ void tell_change(const ResidentArguments &a, Dispatching &common) {
  fence_device();
  atomicAdd(&common.changes, 1u);
  atomicAdd(&a.changes->dispatched, 1u);
}

// Has a function's number stand for other code, of which nothing is called yet, or which computes the same. Words: kind,
// function, address, data, bytes that are copied to where the data is from the first pointer, which is in the segment:
// the interpreter's program. All lanes.
static __device__ uint32_t enter_function(const ResidentArguments &a, Dispatching &common, const gpuos_descriptor *d) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t fn = d->words[1];
  if (fn >= GPUOS_FUNCTION_SLOTS) return GPUOS_STATUS_OUT_OF_RANGE_ID;
  const uint64_t address = static_cast<uint64_t>(d->words[3]) << 32 | d->words[2];
  const uint64_t data = static_cast<uint64_t>(d->words[5]) << 32 | d->words[4];
  const uint4 *from = reinterpret_cast<const uint4 *>(d->pointers[0]);
  for (uint32_t i = lane; i < d->words[6] / 16; i += 32) reinterpret_cast<uint4 *>(data)[i] = load_host(from + i);
  // What every lane has copied comes before the entry, by the fence before the end of this task.
  __syncwarp();
  if (lane != 0) return GPUOS_STATUS_OK;
  // The data is the same where the function may be running.
  store_relaxed(&a.functions[fn].data, data);
  store_relaxed(&a.functions[fn].address, address);
  tell_change(a, common);
  return GPUOS_STATUS_OK;
}

// Publishes, kills or revives an operator, and ends the control task. Words: kind, slot, function, version. One lane.
static __device__ void change_table(const ResidentArguments &a, Dispatching &common, const gpuos_descriptor *d, uint32_t queue, uint32_t sequence) {
  const uint32_t slot = d->words[1];
  uint32_t status = GPUOS_STATUS_OK;
  if (slot >= GPUOS_OPERATOR_SLOTS || (d->words[0] == GPUOS_CHANGE_PUBLISH && d->words[2] >= GPUOS_FUNCTION_SLOTS)) {
    status = GPUOS_STATUS_OUT_OF_RANGE_ID;
  } else if (d->words[0] == GPUOS_CHANGE_PUBLISH) {
    common.table[slot] = (common.table[slot] & GPUOS_KILLED) | static_cast<uint16_t>(d->words[2]);
    store_relaxed(reinterpret_cast<uint64_t *>(&a.table[slot]), (static_cast<uint64_t>(d->words[3]) << 32) | d->words[2]);
  } else if (d->words[0] == GPUOS_CHANGE_KILL || d->words[0] == GPUOS_CHANGE_REVIVE) {
    const bool killed = d->words[0] == GPUOS_CHANGE_KILL;
    common.table[slot] = (common.table[slot] & ~GPUOS_KILLED) | (killed ? GPUOS_KILLED : 0);
    store_relaxed(&a.killed[slot], killed ? 1 : 0);
  } else {
    status = GPUOS_STATUS_FAILED;
  }
  if (status == GPUOS_STATUS_OK) tell_change(a, common);
  publish_end(a, queue, sequence, status);
}

// Brings the parameter blocks of staged tasks of several tiles into device memory, where each of their workers finds
// them sooner than in the segment, and does not ask the host once more for the same bytes. Returns whether there were any.
static __device__ bool bring_near(const ResidentArguments &a, Shard &shard, uint32_t queue, uint32_t head, uint32_t count) {
  const uint32_t lane = threadIdx.x & 31;
  const gpuos_descriptor *own = staged(shard, lane);
  const bool wanted = lane < count && (own->flags & GPUOS_FLAG_PARAMS) != 0 && own->tiles > 1 && own->param_lines != 0 &&
                      own->param_lines * 64 <= GPUOS_NEAR_BYTES && own->operator_ < GPUOS_OPERATOR_SLOTS;
  const uint32_t all = __ballot_sync(0xffffffffu, wanted);
  for (uint32_t left = all; left != 0; left &= left - 1) {
    const uint32_t i = __ffs(left) - 1;
    gpuos_descriptor *d = reinterpret_cast<gpuos_descriptor *>(shard.stage[i]);
    const uint32_t pieces = d->param_lines * 4;
    const uint4 *from = reinterpret_cast<const uint4 *>(a.host + d->params);
    char *near = a.params + (static_cast<size_t>(queue) * a.slots + ((head + i) & (a.slots - 1))) * GPUOS_NEAR_BYTES;
    uint4 first, second;
    if (lane < pieces) first = load_host(from + lane);
    if (lane + 32 < pieces) second = load_host(from + lane + 32);
    if (lane < pieces) reinterpret_cast<uint4 *>(near)[lane] = first;
    if (lane + 32 < pieces) reinterpret_cast<uint4 *>(near)[lane + 32] = second;
    __syncwarp();
    if (lane == 0) d->params = reinterpret_cast<uint64_t>(near) | GPUOS_NEAR;
    __syncwarp();
  }
  return all != 0;
}

// What a lane knows of its own task of the batch, for the letters.
struct Admitted {
  uint32_t letters;
  uint32_t envelope; // of its first letter
  uint32_t fn;       // the function that its operator's slot holds now
  uint32_t changes;
  bool follows;      // waits for the task before it in the queue, and has one letter as that has
};

// Resolves the first `count` staged tasks. The lanes behind have no letters.
static __device__ Admitted resolve(const Dispatching &common, const Shard &shard, const Outbox &outbox, uint32_t workers, uint32_t queue, uint32_t head,
                            uint32_t count) {
  const uint32_t lane = threadIdx.x & 31;
  const gpuos_descriptor *d = staged(shard, lane);
  uint32_t status = GPUOS_STATUS_OK;
  Admitted own = {0, 0, 0, 0, false};
  if (lane < count) {
    if (d->operator_ >= GPUOS_OPERATOR_SLOTS) {
      status = GPUOS_STATUS_OUT_OF_RANGE_ID;
    } else {
      own.fn = *const_cast<const volatile uint16_t *>(&common.table[d->operator_]);
      if ((own.fn & GPUOS_KILLED) != 0) status = GPUOS_STATUS_KILLED;
      else if (own.fn == 0) status = GPUOS_STATUS_EMPTY_SLOT;
      own.fn &= GPUOS_KILLED - 1;
    }
    if (status == GPUOS_STATUS_OK && (d->tiles == 0 || d->tiles > GPUOS_MAX_TILES)) status = GPUOS_STATUS_FAILED;
    own.letters = status == GPUOS_STATUS_OK ? min(d->tiles, workers) : 1;
    own.envelope = queue << 8 | own.letters << 16 | status << 24;
    // After the table: under an older number than that of a function that was seen there, a worker would take what it
    // remembers of the one before.
    own.changes = *const_cast<const volatile uint32_t *>(&common.changes);
    const uint32_t before = head + lane - 1;
    own.follows = (d->flags & GPUOS_FLAG_AFTER) != 0 && d->after == before;
    for (uint32_t i = 0; i < 4; i++) own.follows = own.follows || (d->dependency_queues[i] == queue && d->dependencies[i] == before);
  }
  const uint32_t single = __ballot_sync(0xffffffffu, own.letters == 1);
  const bool single_before = lane == 0 ? outbox.single : (single >> (lane - 1) & 1) != 0;
  own.follows = own.follows && single_before && own.letters == 1;
  return own;
}

// Where the letters of a task say together how far it is. Returns whether there are such tasks.
static __device__ bool begin_progress(const ResidentArguments &a, uint32_t queue, uint32_t head, const Admitted &own) {
  const uint32_t lane = threadIdx.x & 31;
  Progress *progress = a.progress + static_cast<size_t>(queue) * a.slots + ((head + lane) & (a.slots - 1));
  if (own.letters > 1) store_relaxed(reinterpret_cast<uint4 *>(progress), make_uint4(0, GPUOS_STATUS_OK, 0, head + lane));
  return __any_sync(0xffffffffu, own.letters > 1) != 0;
}

// Writes up to 32 letters, the lanes' own: `task` of the batch, share, worker and number of each lane's. A lane writes
// a piece, so that a letter goes out in one request; two letters at a time.
static __device__ void write_letters(const ResidentArguments &a, const Shard &shard, const Outbox &outbox, const Admitted &own, uint32_t letters,
                              uint32_t task, uint32_t share, uint32_t to, uint32_t number, uint32_t yield_every) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t piece = lane & 15;
  const uint32_t envelope = __shfl_sync(0xffffffffu, own.envelope, task) | share;
  const uint32_t fn = __shfl_sync(0xffffffffu, own.fn, task);
  const uint32_t changes = __shfl_sync(0xffffffffu, own.changes, task);
  for (uint32_t first = 0; first < letters; first += 2) {
    const uint32_t letter = first + (lane >> 4);
    const uint32_t of = __shfl_sync(0xffffffffu, task, letter);
    const uint32_t mailbox = __shfl_sync(0xffffffffu, to, letter);
    const uint32_t n = __shfl_sync(0xffffffffu, number, letter);
    const uint32_t last[4] = {__shfl_sync(0xffffffffu, envelope, letter), __shfl_sync(0xffffffffu, fn, letter),
                              __shfl_sync(0xffffffffu, changes, letter), yield_every};
    if (letter < letters && piece < GPUOS_LETTER_PIECES) {
      const uint32_t *words = reinterpret_cast<const uint32_t *>(shard.stage[of]) + 3 * piece;
      uint4 written;
      if (piece < 10) written = make_uint4(words[0], words[1], words[2], n + 1);
      else if (piece == 10) written = make_uint4(words[0], words[1], last[0], n + 1);
      else written = make_uint4(last[1], last[2], last[3], n + 1);
      store_relaxed(&outbox.mailboxes[mailbox].places[n % GPUOS_MAILBOX_DEPTH][piece], written);
    }
  }
}

// Sends the letters of the staged tasks, 32 at a time.
static __device__ void send(const ResidentArguments &a, const Dispatching &common, Shard &shard, Outbox &outbox, uint32_t count, const Admitted &own) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t upto = (2u << lane) - 1; // this lane and those before it
  const uint32_t yield_every = *const_cast<const volatile uint32_t *>(&common.yield_every);
  uint32_t total = count;
  const bool single = __all_sync(0xffffffffu, own.letters <= 1);
  if (!single) {
    uint32_t sum = own.letters;
#pragma unroll
    for (uint32_t step = 1; step < 32; step <<= 1) {
      const uint32_t left = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += left;
    }
    shard.before[lane + 1] = sum;
    if (lane == 0) shard.before[0] = 0;
    __syncwarp();
    total = shard.before[32];
  }
  uint32_t task = 0;
  for (uint32_t base = 0; base < total; base += 32) {
    const uint32_t letter = base + lane;
    const uint32_t letters = min(32u, total - base);
    uint32_t share = 0;
    if (single) {
      task = min(letter, 31u);
    } else if (letter < total) {
      while (shard.before[task + 1] <= letter) task++;
      share = letter - shard.before[task];
    }
    // To the next worker in turn; to the same one what follows, as far as a run goes.
    const bool follows = __shfl_sync(0xffffffffu, static_cast<uint32_t>(own.follows), task) != 0;
    const uint32_t breaks = __ballot_sync(0xffffffffu, !follows) & upto;
    const uint32_t run = breaks == 0 ? outbox.run + lane + 1 : lane - (31 - __clz(breaks));
    const uint32_t moves = __ballot_sync(0xffffffffu, letter < total && (!follows || run % GPUOS_RUN == 0));
    const uint32_t to = (outbox.turn + __popc(moves & upto)) % a.workers;
    uint32_t number = 0;
    const uint32_t same = __match_any_sync(0xffffffffu, letter < total ? to : ~0u);
    if (letter < total) {
      number = outbox.sent[to] + __popc(same & (upto >> 1));
      if (number - outbox.taken[to] >= GPUOS_MAILBOX_DEPTH) {
        uint32_t taken = load_relaxed(&outbox.mailboxes[to].taken);
        while (number - taken >= GPUOS_MAILBOX_DEPTH && load_relaxed(a.leave) == 0) taken = load_relaxed(&outbox.mailboxes[to].taken);
        outbox.taken[to] = taken;
      }
    }
    __syncwarp();
    write_letters(a, shard, outbox, own, letters, task, share, to, number, yield_every);
    if (letter < total) atomicAdd(&outbox.sent[to], 1u);
    outbox.turn = __shfl_sync(0xffffffffu, to, letters - 1);
    outbox.run = __shfl_sync(0xffffffffu, run, letters - 1);
    __syncwarp();
  }
  outbox.single = __shfl_sync(0xffffffffu, own.letters, count - 1) == 1;
}

// Admits what a queue has, up to 32 tasks; returns how many.
static __device__ uint32_t admit(const ResidentArguments &a, Dispatching &common, Shard &shard, Outbox &outbox, uint32_t queue, uint32_t head, bool eager,
                          Batch &batch) {
  const uint32_t lane = threadIdx.x & 31;
  uint32_t count = fetch(a, shard, ring_of(a, queue), head, eager, batch);
  if (count == 0) return 0;
  // In order: a change of the table alone, and nothing past a task that has to wait for another queue.
  const gpuos_descriptor *d = staged(shard, lane);
  const bool control = lane < count && d->operator_ == a.control_slot;
  const bool waits = lane < count && !control && !others_complete(a, d, queue);
  const bool crosses = lane < count && !control && depends_on_others(a, d, queue);
  const uint32_t controls = __ballot_sync(0xffffffffu, control);
  const uint32_t waiting = __ballot_sync(0xffffffffu, waits);
  if ((controls & 1) != 0) {
    // That of the task at the head, which every lane reads.
    const gpuos_descriptor *change = staged(shard, 0);
    if (change->words[0] == GPUOS_CHANGE_ENTER) {
      const uint32_t status = enter_function(a, common, change);
      if (lane == 0) publish_end(a, queue, head, status);
    } else if (lane == 0) {
      change_table(a, common, change, queue, head);
    }
    __syncwarp();
    return 1;
  }
  const uint32_t stops = controls | waiting;
  if (stops != 0) count = min(count, static_cast<uint32_t>(__ffs(stops)) - 1);
  if (count == 0) return 0;
  // A letter brings all that it tells of, and needs no fence, which would wait for the next batch too. What was seen of
  // other queues comes before it, though, and what is in memory for several workers.
  bool ordered = __any_sync(0xffffffffu, crosses) != 0;
  if (a.params != nullptr) ordered |= bring_near(a, shard, queue, head, count);
  const Admitted own = resolve(common, shard, outbox, a.workers, queue, head, count);
  ordered |= begin_progress(a, queue, head, own);
  if (ordered) {
    __syncwarp();
    fence_device();
    __syncwarp();
  }
  send(a, common, shard, outbox, count, own);
  return count;
}

// A warp that admits: queues shard, shard + shards, ...
static __device__ void admit_all(const ResidentArguments &a, Dispatching &common, Shard &shard, Outbox outbox, uint32_t index) {
  const uint32_t lane = threadIdx.x & 31;
  const volatile uint32_t *pause = &common.pause;
  const auto held = [&] { return __shfl_sync(0xffffffffu, *pause, 0) != 0; };
  volatile uint32_t *heads = common.heads;
  Batch batch;
  batch.ahead = false;
  uint32_t idle = 0;
  bool eager = false;
  for (;;) {
    uint32_t admitted = 0;
    for (uint32_t queue = index; queue < a.queues && !held(); queue += a.shards) {
      const uint32_t head = heads[queue];
      // What was asked for ahead is the same queue's if there is no other.
      if (a.queues > a.shards) batch.ahead = false;
      const uint32_t count = admit(a, common, shard, outbox, queue, head, eager, batch);
      if (count == 0) continue;
      admitted += count;
      if (lane == 0) {
        heads[queue] = head + count;
        store_relaxed(&a.heads[queue], head + count);
        // The host may write these slots anew: they are copied.
        store_host(reinterpret_cast<uint32_t *>(&queue_of(a, queue)->cursor) + 1, head + count);
      }
      __syncwarp();
    }
    if (held()) {
      if (lane == 0) atomicAdd(&common.paused, 1u);
      // Until the kernel leaves; or goes on, where what runs takes too long for who wanted it to leave.
      do {
        if (__shfl_sync(0xffffffffu, load_relaxed(a.leave), 0) != 0) return;
        __nanosleep(500);
      } while (held());
      if (lane == 0) atomicSub(&common.paused, 1u);
      // Before the next look at `pause`: who sets it again must not find this shard among those that have seen it.
      __threadfence_block();
      __syncwarp();
      batch.ahead = false;
      continue;
    }
    eager = admitted >= 4;
    idle = admitted > 0 ? 0 : idle + 1;
    if (idle > GPUOS_AWAKE_LOOKS) __nanosleep(idle > GPUOS_DROWSY_LOOKS ? 4000 : 1000);
  }
}

// Moves the marks over what is complete, LOOK tasks of each queue at most: all of that in one look, with one fence, as
// every task of every queue has to go through here. Returns whether every task that was admitted is complete. The marks
// are lane q's for queue q; nobody else moves them.
static __device__ bool move_marks(const ResidentArguments &a, const Dispatching &common, uint32_t &mark) {
  const uint32_t lane = threadIdx.x & 31;
  const volatile uint32_t *heads = common.heads;
  bool drained = true;
  uint32_t moved = 0;
  for (uint32_t queue = 0; queue < a.queues; queue++) {
    const uint32_t from = __shfl_sync(0xffffffffu, mark, queue);
    uint64_t words[GPUOS_LOOK / 32];
#pragma unroll
    for (uint32_t i = 0; i < GPUOS_LOOK / 32; i++) {
      words[i] = load_acquire(&a.completions[queue * a.slots + ((from + 32 * i + lane) & (a.slots - 1))]);
    }
    uint32_t complete = 0;
#pragma unroll
    for (uint32_t i = 0; i < GPUOS_LOOK / 32; i++) {
      const uint32_t missing = ~__ballot_sync(0xffffffffu, static_cast<uint32_t>(words[i] >> 32) == from + 32 * i + lane);
      if (complete == 32 * i) complete += missing == 0 ? 32 : __ffs(missing) - 1;
    }
    if (lane == queue) moved = complete;
    drained = drained && __shfl_sync(0xffffffffu, heads[queue], 0) == from + complete;
  }
  if (__any_sync(0xffffffffu, moved > 0)) {
    // What was seen by any lane comes before what each tells.
    __syncwarp();
    mark += moved;
    if (moved > 0) store_release(&a.marks[lane], mark);
    fence_system();
    if (moved > 0) store_host(&queue_of(a, lane)->mark, mark);
    __syncwarp();
  }
  return drained;
}

// What `quit` may be besides 0: the kernel leaves when what it has admitted is complete, after a while without that.
#define GPUOS_QUIT_NOW 1u
// However long that takes. Until then the host may take it back.
#define GPUOS_QUIT_WHEN_DONE 2u
// It leaves as soon as nothing runs, whatever waits: letters that nobody has begun with are the next kernel's.
#define GPUOS_QUIT_ASIDE 3u

// The last warp: moves the marks, and ends the kernel. On `quit`, or when the host shows no sign of life, nothing more
// is admitted, and the kernel leaves once what runs is complete; unless it was asked to wait, after a while without it.
static __device__ void watch(const ResidentArguments &a, Dispatching &common) {
  const uint32_t lane = threadIdx.x & 31;
  const gpuos_control *control = control_of(a);
  const volatile uint32_t *paused = &common.paused;
  uint32_t beat = load_host(&control->heartbeat);
  uint64_t seen = now_ns();
  uint64_t looked = seen;
  uint64_t since = 0;   // when it began to end
  bool patient = false; // it waits for what runs, and may still be told to go on
  bool aside = false;   // it does not wait for what has not begun
  bool stopped = false; // every shard has stopped to admit
  uint32_t mark = lane < a.queues ? load_relaxed(&a.marks[lane]) : 0;
  for (;;) {
    const bool drained = move_marks(a, common, mark);
    const uint64_t now = now_ns();
    if ((since == 0 || patient) && __any_sync(0xffffffffu, now - looked > GPUOS_LOOK_NS)) {
      looked = now;
      const uint32_t shown = load_host(&control->heartbeat);
      if (shown != beat) {
        beat = shown;
        seen = now;
      }
      const uint32_t quit = load_host(&control->quit);
      const uint32_t every = load_host(&control->yield_every);
      if (lane == 0) *const_cast<volatile uint32_t *>(&common.yield_every) = every;
      const bool over = __any_sync(0xffffffffu, quit == GPUOS_QUIT_NOW || now - seen > GPUOS_HEARTBEAT_NS);
      const bool ends = __any_sync(0xffffffffu, over || quit != 0);
      if (ends != (since != 0) || (patient && over)) {
        if (lane == 0) *const_cast<volatile uint32_t *>(&common.pause) = ends ? 1 : 0;
        __threadfence_block();
        __syncwarp();
        since = ends ? now : 0;
        stopped = false;
      }
      patient = ends && !over;
      aside = __any_sync(0xffffffffu, quit == GPUOS_QUIT_ASIDE);
    }
    if (since == 0) {
      if (drained) __nanosleep(500);
      continue;
    }
    // What is there is complete if it was so at a look that began after the last one was admitted.
    const bool all = stopped && (drained || aside);
    stopped = *paused == a.shards;
    __syncwarp();
    if (!__any_sync(0xffffffffu, all || (!patient && now - since > GPUOS_DRAIN_NS))) continue;
    if (lane == 0) store_release(a.leave, 1);
    return;
  }
}

static __device__ void dispatcher(const ResidentArguments &a, char *shared) {
  Dispatching &common = *reinterpret_cast<Dispatching *>(shared);
  Shard *shards = reinterpret_cast<Shard *>(shared + ((sizeof(Dispatching) + 15) & ~static_cast<size_t>(15)));
  uint32_t *sent = reinterpret_cast<uint32_t *>(shards + a.shards); // [shards][workers]
  uint32_t *taken = sent + a.shards * a.workers;
  for (uint32_t i = threadIdx.x; i < a.shards * a.workers; i += blockDim.x) {
    sent[i] = load_relaxed(&a.mailboxes[i].sent);
    taken[i] = load_relaxed(&a.mailboxes[i].taken);
  }
  for (uint32_t i = threadIdx.x; i < GPUOS_OPERATOR_SLOTS; i += blockDim.x) {
    const uint32_t fn = static_cast<uint32_t>(load_relaxed(reinterpret_cast<const uint64_t *>(&a.table[i])));
    common.table[i] = static_cast<uint16_t>(fn | (load_relaxed(&a.killed[i]) != 0 ? GPUOS_KILLED : 0));
  }
  if (threadIdx.x < a.queues) common.heads[threadIdx.x] = load_relaxed(&a.heads[threadIdx.x]);
  if (threadIdx.x == 0) {
    common.pause = common.paused = common.yield_every = 0;
    common.changes = load_relaxed(&a.changes->dispatched);
  }
  __syncthreads();
  const uint32_t warp = threadIdx.x / 32;
  if (warp < a.shards) {
    const uint32_t first = warp * a.workers;
    admit_all(a, common, shards[warp], {a.mailboxes + first, sent + first, taken + first, 0, false, 0}, warp);
  } else if (warp == blockDim.x / 32 - 1) {
    watch(a, common);
  }
  // The kernel leaves. What was sent and has not been begun with is the next one's.
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < a.shards * a.workers; i += blockDim.x) store_relaxed(&a.mailboxes[i].sent, sent[i]);
}
