import { type Block, Heap } from '../runtime/heap.ts';
import type { Queue } from '../runtime/queue.ts';
import type { System } from '../runtime/system.ts';

/** Pieces that large transfers pass through in turn: enough that host and device each have some to work on. */
const PIECES = 8;
/** Far more than starting a task costs, and small enough that the device is at work soon. */
const MOST_PIECE_BYTES = 4 * 2 ** 20;
const GRAIN_BYTES = 4096;

/** Memory that a part of a large transfer passes through. */
export interface Piece {
  readonly address: number;
  /** Sequence of the last task that reads or writes it; -1: none. */
  lastUse: number;
  /** Values that a task brings here and that have not been taken out yet. */
  arrival: Arrival | undefined;
}

/** Takes the values out of a piece whose task is complete. */
export interface Arrival {
  save(): void;
}

/**
 * The part of what host and device both see that values pass through: half of it, so that they never take the place of
 * parameter blocks. A quarter are pieces for what is large; they are used again and again. Nobody holds a piece for
 * longer than its task takes, as whoever needs it takes out what a slower reader has left there: so to wait for one is to
 * wait for tasks that have been submitted, and those always end.
 */
export class Staging {
  readonly pieceBytes: number;
  readonly #queue: Queue;
  readonly #heap: Heap;
  readonly #pieces: Piece[] = [];

  /** @throws GPUOS_OUT_OF_MEMORY if buffers take up nearly all of the memory already */
  constructor(system: System) {
    const { hostHeap } = system;
    this.#queue = system.queue(0);
    const { mark } = this.#queue;
    const half = Math.floor(hostHeap.capacityBytes / 2 / GRAIN_BYTES) * GRAIN_BYTES;
    // Less where buffers have taken more than the other half.
    const part =
      hostHeap.tryAllocate(half, mark, true) ?? hostHeap.tryAllocate(half / 4, mark, true) ?? hostHeap.allocate(half / 16, mark, true);
    const end = part.address + part.bytes;
    this.#heap = new Heap({ start: part.address, end, limit: end, ensure: () => {} });
    this.pieceBytes = Math.min(MOST_PIECE_BYTES, Math.max(1, Math.floor(part.bytes / 2 / PIECES / GRAIN_BYTES)) * GRAIN_BYTES);
    for (let i = 0; i < PIECES; i++) {
      const { address } = this.#heap.allocate(this.pieceBytes, mark);
      this.#pieces.push({ address, lastUse: -1, arrival: undefined });
    }
  }

  /** Memory for a transfer that is no larger than a piece; undefined if it would have to be waited for. */
  block(bytes: number): Block | undefined {
    if (bytes > this.pieceBytes) return undefined;
    this.#queue.refresh();
    return this.#heap.tryAllocate(bytes, this.#queue.mark, true);
  }

  release(block: Block): void {
    this.#heap.release(block);
  }

  /** The piece that can be had soonest. */
  next(): Piece {
    let best = this.#pieces[0] as Piece;
    for (const piece of this.#pieces) {
      if (piece.arrival === undefined && this.isIdle(piece)) return piece;
      if (piece.lastUse < best.lastUse) best = piece;
    }
    return best;
  }

  /** Whether it can be taken without waiting. */
  isIdle({ lastUse }: Piece): boolean {
    return lastUse < 0 || this.#queue.isComplete(lastUse);
  }

  /** Makes the piece the caller's; waits for its last task. @throws GPUOS_SHUT_DOWN, GPUOS_DEVICE_LOST */
  take(piece: Piece): Piece {
    if (!this.isIdle(piece)) this.#queue.waitSync(piece.lastUse);
    const { arrival } = piece;
    piece.arrival = undefined;
    arrival?.save();
    return piece;
  }
}
