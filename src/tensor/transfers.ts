import { MIN_POINTERS } from '../ops/program.ts';
import type { DType } from '../ops/define.ts';
import { elementBytes, isHalf } from '../ops/dtype.ts';
import { toHalfBits } from '../ops/half.ts';
import type { KernelCall } from '../runtime/device.ts';
import type { Heap } from '../runtime/heap.ts';
import type { Dependency, Order } from '../runtime/queue.ts';
import type { System } from '../runtime/system.ts';
import { Storage } from './storage.ts';
import { tilesFor } from './tiles.ts';

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
  const params = hostHeap.allocate(bytes, queue.mark, true);
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

/** Where the host can read values, and where they were made. */
export interface Fetched {
  readonly storage: Storage;
  readonly offset: number;
  readonly origin: Storage;
}

/**
 * Values on their way between the host and the memory that operators compute in. Where the host sees all of that, they
 * are written and read in place; else a task copies them from or to memory that both see, in order with all other tasks.
 */
export class Transfers {
  readonly #system: System;
  /** The host sees what operators compute in. */
  readonly #shared: boolean;

  constructor(system: System) {
    this.#system = system;
    this.#shared = system.heap === system.hostHeap;
  }

  /** The values in memory, or on their way there. @throws GPUOS_OUT_OF_MEMORY */
  upload(values: ArrayLike<number | boolean>, dtype: DType): Storage {
    const { device, heap, hostHeap } = this.#system;
    const queue = this.#system.queue(0);
    queue.refresh();
    const written = new Storage(hostHeap, hostHeap.allocate(values.length * elementBytes(dtype), queue.mark, true));
    const { f32, i32 } = device.views();
    const at = (written.block.address - device.viewBase) / 4;
    if (isHalf(dtype)) {
      const bits = new Uint16Array(i32.buffer, i32.byteOffset + 4 * at, values.length);
      if (values instanceof Uint16Array) bits.set(values);
      else for (let i = 0; i < values.length; i++) bits[i] = toHalfBits(Number(values[i]), dtype);
    } else if (dtype === 'float32') f32.set(values as ArrayLike<number>, at);
    else if (dtype === 'int32') i32.set(values as ArrayLike<number>, at);
    else for (let i = 0; i < values.length; i++) i32[at + i] = values[i] ? 1 : Number.isNaN(values[i]) ? 1 : 0;
    if (this.#shared || values.length === 0) return written;
    try {
      return this.#copy(written, 0, values.length, dtype, heap);
    } finally {
      written.release();
    }
  }

  /** `size` values of complete or coming memory where the host can read them once `storage`'s producer is done; that is to be released. */
  fetch(origin: Storage, offset: number, size: number, dtype: DType): Fetched {
    const { hostHeap } = this.#system;
    if (origin.isOf(hostHeap) || origin.error !== undefined || size === 0) return { storage: origin.retain(), offset, origin };
    return { storage: this.#copy(origin, offset, size, dtype, hostHeap), offset: 0, origin };
  }

  #copy(source: Storage, offset: number, size: number, dtype: DType, heap: Heap): Storage {
    const { device } = this.#system;
    const queue = this.#system.queue(0);
    const bytes = elementBytes(dtype);
    const view = { shape: [size], dtype, strides: [1], offset: 0 } as const;
    const call = device.lowerCopy(view, view);
    const target = new Storage(heap, heap.allocate(size * bytes, queue.mark));
    const dependencies: Dependency[] = source.producer >= queue.mark ? [{ queue: 0, sequence: source.producer }] : [];
    try {
      target.producer = submitCall(
        this.#system,
        call,
        (pointer) => ('input' in pointer ? source.block.address + bytes * offset : target.block.address),
        tilesFor(device, call.costNs, call.units),
        { after: target.block.lastUse, dependencies },
      );
    } catch (error) {
      target.release();
      throw error;
    }
    target.block.lastUse = source.block.lastUse = target.producer;
    device.ringDoorbell(1);
    return target;
  }
}
