// A worker: one block, which takes letters from its mailbox in order, waits for what each depends on, calls
// the operator, and publishes the end. A worker never waits for a task that could be behind it: what a task
// depends on was admitted before it, and every mailbox is read in order.
#pragma once

// Waits for the dependencies of the task; its status is then OK or DEPENDENCY_FAILED.
__device__ uint32_t await_dependencies(const ResidentArguments &a, const gpuos_descriptor *d, uint32_t queue) {
  if ((d->flags & GPUOS_FLAG_AFTER) != 0) {
    while (!is_before(d->after, load_acquire(&a.marks[queue]))) {
      if (load_acquire(a.leave) != 0) return GPUOS_STATUS_CANCELLED;
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
      if (load_acquire(a.leave) != 0) return GPUOS_STATUS_CANCELLED;
      seen = load_acquire(word);
    }
    if (static_cast<uint32_t>(seen >> 32) == producer && static_cast<uint32_t>(seen) != GPUOS_STATUS_OK) {
      status = GPUOS_STATUS_DEPENDENCY_FAILED;
    }
  }
  return status;
}

__device__ void worker(const ResidentArguments &a, uint32_t index) {
  __shared__ Letter letter;
  __shared__ uint32_t gate;
  Mailbox &mailbox = a.mailboxes[index];
  const gpuos_descriptor *d = reinterpret_cast<const gpuos_descriptor *>(letter.descriptor);
  for (uint32_t number = 0;; number++) {
    if (threadIdx.x == 0) {
      gate = GPUOS_STATUS_OK;
      uint32_t idle = 0;
      while (load_acquire(&mailbox.full[number % GPUOS_MAILBOX_DEPTH]) != number + 1) {
        if (load_acquire(a.leave) != 0) {
          gate = GPUOS_STATUS_CANCELLED;
          break;
        }
        if (++idle > 4000) __nanosleep(500);
      }
    }
    __syncthreads();
    if (gate == GPUOS_STATUS_CANCELLED) return;
    if (threadIdx.x < sizeof(Letter) / 16) {
      reinterpret_cast<uint4 *>(&letter)[threadIdx.x] =
          reinterpret_cast<const uint4 *>(&mailbox.letters[number % GPUOS_MAILBOX_DEPTH])[threadIdx.x];
    }
    __syncthreads();
    const uint32_t sequence = d->tag0;
    if (threadIdx.x == 0) {
      store_release(&mailbox.taken, number + 1);
      uint32_t status = await_dependencies(a, d, letter.queue);
      if (status == GPUOS_STATUS_OK) {
        if (d->operator_ >= GPUOS_OPERATOR_SLOTS) status = GPUOS_STATUS_OUT_OF_RANGE_ID;
        else if (a.table[d->operator_].killed != 0) status = GPUOS_STATUS_KILLED;
        else if (a.table[d->operator_].function == 0) status = GPUOS_STATUS_EMPTY_SLOT;
      }
      gate = status;
    }
    __syncthreads();
    uint32_t status = gate;
    if (status == GPUOS_STATUS_OK) {
      const OperatorFunction function =
          reinterpret_cast<OperatorFunction>(*reinterpret_cast<volatile uint64_t *>(&a.table[d->operator_].function));
      const uint64_t *params = (d->flags & GPUOS_FLAG_PARAMS) != 0 ? reinterpret_cast<const uint64_t *>(a.host + d->params) : d->pointers;
      for (uint32_t tile = 0; tile < d->tiles && status == GPUOS_STATUS_OK; tile++) {
        status = __syncthreads_or(function(params, tile, d->tiles));
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint64_t word = (static_cast<uint64_t>(sequence) << 32) | status;
      const uint32_t slot = sequence & (a.slots - 1);
      // What the task wrote comes before its end, on the device and on the host.
      __threadfence_system();
      if (status != GPUOS_STATUS_OK) atomicAdd_system(&queue_of(a, letter.queue)->failures, 1u);
      store_host(completions_of(a, letter.queue) + slot, word);
      store_release(&a.completions[letter.queue * a.slots + slot], word);
    }
  }
}
