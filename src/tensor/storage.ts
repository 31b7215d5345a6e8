import type { Block, Heap } from '../runtime/heap.ts';

/** The memory of a value, shared by its views. Freed when the last tensor on it is gone and nothing pending needs it. */
export class Storage {
  readonly block: Block;
  /** Sequence of the task that writes it; -1: the host wrote it. */
  producer = -1;
  refs = 1;
  /** Flushes in which it was the second matrix of a product. */
  products = 0;
  /** The last such recording. */
  productWindow = 0;
  /** The same matrix in the order that matmul reads fastest, made once for a constant: as it is and transposed, for example. */
  packed: Map<string, Storage> | undefined;
  /** Why it never got its values. */
  error: unknown;
  readonly #heap: Heap;

  constructor(heap: Heap, block: Block) {
    this.#heap = heap;
    this.block = block;
  }

  /** Whether its memory is this heap's. */
  isOf(heap: Heap): boolean {
    return this.#heap === heap;
  }

  retain(): this {
    this.refs++;
    return this;
  }

  release(): void {
    if (--this.refs > 0) return;
    if (this.packed !== undefined) for (const packing of this.packed.values()) packing.release();
    this.packed = undefined;
    this.#heap.release(this.block);
  }
}
