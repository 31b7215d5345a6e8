// A worker: one block, which takes letters from its mailboxes, each in order, waits for what each task depends on, calls
// the operator for its share of the tiles, and publishes the end with the last share. A worker never waits for a task
// that could be behind it: what a task depends on in its own queue was admitted before it, through the same mailboxes;
// tasks of other queues are complete by then.
#pragma once

// Waits for the dependencies of the task, and says whether it had to; its status is then OK or DEPENDENCY_FAILED.
__device__ uint32_t await_dependencies(const ResidentArguments &a, const gpuos_descriptor *d, uint32_t queue, bool &waited) {
  if ((d->flags & GPUOS_FLAG_AFTER) != 0) {
    while (!is_before(d->after, load_acquire(&a.marks[queue]))) {
      waited = true;
      if (load_relaxed(a.leave) != 0) return GPUOS_STATUS_CANCELLED;
    }
  }
  uint32_t status = GPUOS_STATUS_OK;
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t other = d->dependency_queues[i];
    if (other == GPUOS_NO_QUEUE) continue;
    if (other >= a.queues) return GPUOS_STATUS_DEPENDENCY_FAILED;
    const uint32_t producer = d->dependencies[i];
    const uint64_t *word = &a.completions[other * a.slots + (producer & (a.slots - 1))];
    uint64_t seen = load_acquire(word);
    while (is_before(static_cast<uint32_t>(seen >> 32), producer)) {
      waited = true;
      if (load_relaxed(a.leave) != 0) return GPUOS_STATUS_CANCELLED;
      seen = load_acquire(word);
    }
    if (static_cast<uint32_t>(seen >> 32) == producer && static_cast<uint32_t>(seen) != GPUOS_STATUS_OK) {
      status = GPUOS_STATUS_DEPENDENCY_FAILED;
    }
  }
  return status;
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

__device__ void worker(const ResidentArguments &a, uint32_t index, char *shared) {
  __shared__ TaskRecord task;
  __shared__ uint64_t word;
  __shared__ uint32_t gate;
  __shared__ uint32_t failure;
  const gpuos_descriptor *d = reinterpret_cast<const gpuos_descriptor *>(task.descriptor);
  const uint32_t lane = threadIdx.x & 31;
  // Lane s of the first warp looks at the mailbox of shard s.
  Mailbox *mailbox = a.mailboxes + static_cast<size_t>(min(lane, a.shards - 1)) * a.workers + index;
  uint32_t taken = mailbox->taken;
  uint32_t last = 0; // the shard that the last letter came from
  for (;;) {
    if (threadIdx.x < 32) {
      uint32_t idle = 0;
      uint32_t ready = 0;
      uint64_t mine = 0;
      for (;;) {
        const uint32_t phase = ((taken / GPUOS_MAILBOX_DEPTH) & 1) ^ 1;
        mine = load_relaxed(&mailbox->words[taken % GPUOS_MAILBOX_DEPTH]);
        ready = __ballot_sync(0xffffffffu, lane < a.shards && (mine >> 63) == phase);
        if (ready != 0) break;
        // All lanes or none: they vote again.
        if ((++idle & 63) == 0 && __any_sync(0xffffffffu, load_relaxed(a.leave) != 0)) break;
        if (idle > GPUOS_AWAKE_LOOKS) __nanosleep(idle > GPUOS_DROWSY_LOOKS ? 8000 : 500);
      }
      if (ready == 0) {
        if (lane == 0) gate = GPUOS_STATUS_CANCELLED;
      } else {
        // In turn, so that no shard waits for ever: the first after the last one.
        const uint32_t later = ready & ~((2u << last) - 1);
        last = __ffs(later != 0 ? later : ready) - 1;
        const uint64_t letter = __shfl_sync(0xffffffffu, mine, last);
        if (lane == last) taken++;
        const uint32_t sequence = static_cast<uint32_t>(letter);
        const uint32_t queue = (letter >> 48) & 0xff;
        // The record, and all that the tasks before have written, comes after the letter.
        fence_device();
        const uint4 *record = reinterpret_cast<const uint4 *>(&a.tasks[static_cast<size_t>(queue) * a.slots + (sequence & (a.slots - 1))]);
        if (lane < sizeof(TaskRecord) / 16) reinterpret_cast<uint4 *>(&task)[lane] = load_relaxed(record + lane);
        if (lane == last) store_relaxed(&mailbox->taken, taken);
        __syncwarp();
        if (lane == 0) {
          word = letter;
          // The kill bit is looked at while the dependencies are; again if they had to be waited for.
          const uint32_t *killed = &a.killed[min(d->operator_, static_cast<uint32_t>(GPUOS_OPERATOR_SLOTS - 1))];
          const uint32_t before = load_relaxed(killed);
          bool waited = false;
          uint32_t status = await_dependencies(a, d, queue, waited);
          if (status == GPUOS_STATUS_OK) status = task.status;
          if (status == GPUOS_STATUS_OK && (waited ? load_relaxed(killed) : before) != 0) status = GPUOS_STATUS_KILLED;
          gate = status;
        }
      }
    }
    __syncthreads();
    uint32_t status = gate;
    if (status == GPUOS_STATUS_CANCELLED) return;
    const bool external = task.function == GPUOS_EXTERNAL;
    if (status == GPUOS_STATUS_OK && !external) status = run_tiles(a, task, static_cast<uint32_t>(word >> 32) & 0xffff, shared, &failure);
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint32_t sequence = static_cast<uint32_t>(word);
      const uint32_t queue = (word >> 48) & 0xff;
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
      if (over && external) hand_over(a, d, queue, sequence, status);
      else if (over) publish_end(a, queue, sequence, status);
    }
  }
}
