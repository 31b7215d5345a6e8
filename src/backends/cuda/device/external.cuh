// Tasks whose work is done beside the resident kernel, by an ordinary launch of the device process: a library's matrix
// product. Such a task keeps its place in the ring. When all that it depends on is complete, a worker opens the task's
// gate, a word of the segment that the device process looks at; the end is published behind the work, by a launch of
// one warp on the same stream.
#pragma once

// What the table has instead of an address.
#define GPUOS_EXTERNAL 2

// Pointers: the gate. Words: the slot of the operator that the work stands for, whose kill bit counts. What is not to
// run ends here and now, like any other task.
__device__ __forceinline__ void hand_over(const ResidentArguments &a, const gpuos_descriptor *d, uint32_t queue, uint32_t sequence, uint32_t status) {
  if (status == GPUOS_STATUS_OK && load_relaxed(&a.killed[d->words[0] % GPUOS_OPERATOR_SLOTS]) != 0) status = GPUOS_STATUS_KILLED;
  if (status != GPUOS_STATUS_OK) {
    publish_end(a, queue, sequence, status);
    return;
  }
  // What the tasks before have written comes before the work that the host launches now.
  fence_system();
  store_host(reinterpret_cast<uint32_t *>(d->pointers[0]), sequence);
}
