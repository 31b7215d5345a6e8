import type { MemorySpace } from '../backends/backend.ts';
import { GpuosError } from '../errors.ts';

/** A piece of device memory. It is used anew by size class; `lastUse` says which task must be complete before. */
export interface Block {
  readonly address: number;
  readonly bytes: number;
  /** Sequence (in the engine's queue) of the last task that reads or writes it; -1: none. */
  lastUse: number;
}

const GRAIN_BYTES = 256;
/** Steps between two powers of two: at most an eighth of a block is wasted. */
const STEP_BITS = 3;
const STEPS = 2 ** STEP_BITS;

/**
 * Blocks of a page or more are set apart by this much. Sizes are often powers of two; back to back, the
 * same element of many such blocks would fall into the same few sets of the caches, and a kernel that
 * reads many operands at once would evict each line before it is used. Three cache lines, an odd number,
 * pass through all sets in turn.
 */
const STAGGER_BYTES = 192;
const PAGE_BYTES = 4096;

/** Size class of a request: a multiple of GRAIN_BYTES with STEPS classes a power of two. */
export function sizeClass(bytes: number): number {
  if (bytes <= GRAIN_BYTES * STEPS) return Math.max(1, Math.ceil(bytes / GRAIN_BYTES)) * GRAIN_BYTES;
  const step = bytes < 2 ** 31 ? 1 << (31 - Math.clz32(bytes) - STEP_BITS) : 2 ** (Math.floor(Math.log2(bytes)) - STEP_BITS);
  return Math.ceil(bytes / step) * step;
}

/**
 * Device memory of tensors and parameter blocks. Freed blocks go to the list of their class; memory is
 * never given back to the device while it runs.
 */
export class Heap {
  readonly #space: MemorySpace;
  readonly #free = new Map<number, Block[]>();
  /** Blocks that tasks of other queues than the engine's may still use. */
  #waiting: { readonly block: Block; readonly idle: () => boolean }[] = [];
  #end: number;
  #used = 0;
  #held = 0;

  constructor(space: MemorySpace) {
    this.#space = space;
    this.#end = Math.ceil(space.start / GRAIN_BYTES) * GRAIN_BYTES;
  }

  /** Bytes in blocks that are in use. */
  get usedBytes(): number {
    return this.#used;
  }

  /** Bytes ever taken from the device. */
  get heldBytes(): number {
    return this.#held;
  }

  /** The most that it can hold. */
  get capacityBytes(): number {
    return this.#space.limit - this.#space.start;
  }

  /**
   * A block of at least `bytes`. Prefers one whose last use is before `mark`; with `idle` it takes no
   * other, so that the host may write it at once.
   * @throws GPUOS_OUT_OF_MEMORY with the sizes
   */
  allocate(bytes: number, mark: number, idle = false): Block {
    const block = this.tryAllocate(bytes, mark, idle);
    if (block === undefined) {
      const mib = (value: number): string => `${(value / 2 ** 20).toFixed(1)} MiB`;
      throw new GpuosError(
        'GPUOS_OUT_OF_MEMORY',
        `${mib(bytes)} asked for; ${mib(this.#used)} are in use, ${mib(this.#held - this.#used)} are free in other sizes, and the device may hold ${mib(this.#space.limit - this.#space.start)}.`,
      );
    }
    return block;
  }

  /** The same; undefined if there is none. */
  tryAllocate(bytes: number, mark: number, idle = false): Block | undefined {
    if (this.#waiting.length > 0) this.#releaseIdle();
    const size = sizeClass(bytes);
    const block =
      this.#reuse(size, mark, idle) ?? this.#reuseSimilar(size, mark) ?? this.#extend(size) ?? this.#reuseLarger(size, mark, idle);
    if (block !== undefined) this.#used += block.bytes;
    return block;
  }

  #reuse(size: number, mark: number, idle: boolean): Block | undefined {
    const list = this.#free.get(size);
    if (list === undefined || list.length === 0) return undefined;
    const last = list.length - 1;
    const newest = list[last] as Block;
    if (newest.lastUse < mark) return list.pop();
    const oldest = list[0] as Block;
    if (oldest.lastUse < mark) {
      list[0] = newest;
      list.pop();
      return oldest;
    }
    return idle ? undefined : list.pop();
  }

  /**
   * A block of a class somewhat larger, if one lies idle. Sizes vary with what a program is given (a sentence's
   * length), and memory that was never touched costs a page fault for every 4 KiB, more than the work on it.
   */
  #reuseSimilar(size: number, mark: number): Block | undefined {
    if (size < PAGE_BYTES) return undefined;
    for (let similar = sizeClass(size + 1); similar <= 2 * size; similar = sizeClass(similar + 1)) {
      const block = this.#reuse(similar, mark, true);
      if (block !== undefined) return block;
    }
    return undefined;
  }

  #extend(size: number): Block | undefined {
    const end = this.#end + size + (size >= PAGE_BYTES ? STAGGER_BYTES : 0);
    if (end > this.#space.limit) return undefined;
    try {
      this.#space.ensure(end);
    } catch (error) {
      if (error instanceof GpuosError && error.code === 'GPUOS_OUT_OF_MEMORY') return undefined;
      throw error;
    }
    const block = { address: this.#end, bytes: size, lastUse: -1 };
    this.#end = end;
    this.#held += size;
    return block;
  }

  /** The device is at its limit: a free block of any larger class will do. */
  #reuseLarger(size: number, mark: number, idle: boolean): Block | undefined {
    const classes = [...this.#free.keys()].filter((bytes) => bytes > size).sort((a, b) => a - b);
    for (const larger of classes) {
      const block = this.#reuse(larger, mark, idle);
      if (block !== undefined) return block;
    }
    return undefined;
  }

  release(block: Block): void {
    let list = this.#free.get(block.bytes);
    if (list === undefined) {
      list = [];
      this.#free.set(block.bytes, list);
    }
    list.push(block);
    this.#used -= block.bytes;
  }

  /** Releases the block once `idle` says that no task uses it; until then it counts as in use. */
  releaseWhen(block: Block, idle: () => boolean): void {
    this.#waiting.push({ block, idle });
  }

  #releaseIdle(): void {
    this.#waiting = this.#waiting.filter(({ block, idle }) => {
      if (!idle()) return true;
      this.release(block);
      return false;
    });
  }
}
