import { MIN_POINTERS } from '../ops/program.ts';
import type { KernelCall } from '../runtime/device.ts';
import type { Block } from '../runtime/heap.ts';
import type { Order } from '../runtime/queue.ts';
import type { System } from '../runtime/system.ts';

/**
 * Memory for parameter blocks, which the host may write at once. Where all of it is in use, this waits for tasks that will
 * give some back.
 * @throws GPUOS_OUT_OF_MEMORY if none of them does
 */
export function allocateParams(system: System, bytes: number): Block {
  const { hostHeap } = system;
  const queue = system.queue(0);
  for (;;) {
    const block = hostHeap.tryAllocate(bytes, queue.mark, true);
    if (block !== undefined) return block;
    queue.refresh();
    if (queue.mark >= queue.tail) return hostHeap.allocate(bytes, queue.mark, true);
    // The first that is not complete: with later ones that are, nothing is given back yet.
    queue.waitSync(queue.mark);
    queue.refresh();
  }
}

/**
 * Writes a kernel call of the planner's own into the ring, with a parameter block that is free again when it has run.
 * @param pointerAt the address of each of the call's pointers
 * @returns its sequence
 */
export function submitCall(
  system: System,
  call: KernelCall,
  pointerAt: (pointer: KernelCall['pointers'][number]) => number,
  tiles: number,
  order: Order,
): number {
  const { device, hostHeap, operators } = system;
  const queue = system.queue(0);
  const pointers = Math.max(MIN_POINTERS, call.pointers.length);
  const bytes = pointers * 8 + call.words.length * 4;
  const params = allocateParams(system, bytes);
  const { i32 } = device.views();
  const base = (params.address - device.viewBase) >> 2;
  call.pointers.forEach((pointer, i) => {
    const address = pointerAt(pointer);
    i32[base + 2 * i] = address | 0;
    i32[base + 2 * i + 1] = (address / 2 ** 32) | 0;
  });
  i32.set(call.words, base + 2 * pointers);
  params.lastUse = queue.writeDescriptor(operators.builtIn(call.kernel), tiles, params.address, bytes, order);
  hostHeap.release(params);
  return params.lastUse;
}
