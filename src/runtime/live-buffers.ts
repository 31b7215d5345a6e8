/** A piece of memory that a caller holds: what pointers of raw tasks may point into. */
export interface LiveBuffer {
  readonly address: number;
  /** One past its last byte that the caller asked for; the block behind it may be longer. */
  readonly end: number;
}

/**
 * The buffers that are alive, by address. Pointers are looked up at every raw task, buffers come and go rarely: so a sorted
 * list, whose search touches only numbers that lie side by side.
 */
export class LiveBuffers {
  readonly #starts: number[] = [];
  readonly #ends: number[] = [];

  get size(): number {
    return this.#starts.length;
  }

  add({ address, end }: LiveBuffer): void {
    const at = this.#floor(address) + 1;
    this.#starts.splice(at, 0, address);
    this.#ends.splice(at, 0, end);
  }

  remove(address: number): void {
    const at = this.#floor(address);
    if (this.#starts[at] !== address) return;
    this.#starts.splice(at, 1);
    this.#ends.splice(at, 1);
  }

  /** Index of the buffer that the address lies in, or is the end of; -1: in none. Good until buffers come or go. */
  find(address: number): number {
    const at = this.#floor(address);
    return at >= 0 && address <= (this.#ends[at] as number) ? at : -1;
  }

  start(index: number): number {
    return this.#starts[index] as number;
  }

  end(index: number): number {
    return this.#ends[index] as number;
  }

  /** The last that starts at or before the address; -1: none does. */
  #floor(address: number): number {
    const starts = this.#starts;
    let low = 0;
    let high = starts.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((starts[middle] as number) <= address) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }
}
