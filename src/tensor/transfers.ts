import type { DType } from '../ops/define.ts';
import { elementBytes } from '../ops/dtype.ts';
import type { HostData } from '../ops/host-tensor.ts';
import type { Dependency } from '../runtime/queue.ts';
import type { System } from '../runtime/system.ts';
import { blankValues, readValues, writeValues } from './host-values.ts';
import { submitCall } from './parameters.ts';
import { type Arrival, type Piece, Staging } from './staging.ts';
import { Storage } from './storage.ts';
import { tilesFor } from './tiles.ts';

/** Pieces that one reader has on their way: the next comes while the host copies the last one. */
const AHEAD = 3;

/** Values on their way to the host: yields the sequence of each task that has to be complete before it goes on. */
export type Reader = Generator<number, HostData, void>;

/**
 * Values on their way between the host and the memory that operators compute in. Where the host sees all of that, they
 * are written and read in place; else tasks copy them from or to memory that both see, in order with all other tasks: what is
 * small in one go, what is large in pieces, so that the host copies one while the device copies others.
 */
export class Transfers {
  readonly #system: System;
  /** Undefined where the host sees what operators compute in. */
  readonly #staging: Staging | undefined;

  constructor(system: System) {
    this.#system = system;
    this.#staging = system.heap === system.hostHeap ? undefined : new Staging(system);
  }

  /** The values in memory, or on their way there. @throws GPUOS_OUT_OF_MEMORY */
  upload(values: ArrayLike<number | boolean>, dtype: DType): Storage {
    const { device, heap } = this.#system;
    const queue = this.#system.queue(0);
    queue.refresh();
    const staging = this.#staging;
    const bytes = values.length * elementBytes(dtype);
    const target = new Storage(heap, heap.allocate(bytes, queue.mark, staging === undefined));
    if (values.length === 0) return target;
    try {
      if (staging === undefined) {
        writeValues(device, target.block.address, values, 0, values.length, dtype);
        return target;
      }
      const block = staging.block(bytes);
      if (block === undefined) this.#uploadPieces(staging, target, values, dtype);
      else {
        try {
          writeValues(device, block.address, values, 0, values.length, dtype);
          target.producer = this.#copy(block.address, target.block.address, values.length, dtype, target.block.lastUse, -1);
          block.lastUse = target.block.lastUse = target.producer;
        } finally {
          staging.release(block);
        }
      }
      return target;
    } catch (error) {
      target.release();
      throw error;
    }
  }

  #uploadPieces(staging: Staging, target: Storage, values: ArrayLike<number | boolean>, dtype: DType): void {
    const { device } = this.#system;
    const queue = this.#system.queue(0);
    const elements = Math.floor(staging.pieceBytes / elementBytes(dtype));
    const after = target.block.lastUse;
    for (let from = 0; from < values.length; from += elements) {
      const piece = staging.take(staging.next());
      // What became of those before is passed on from piece to piece: who waits for the last waits for all.
      target.error ??= this.#failed(target.producer);
      if (target.error !== undefined) return;
      const count = Math.min(elements, values.length - from);
      writeValues(device, piece.address, values, from, count, dtype);
      const to = target.block.address + from * elementBytes(dtype);
      target.producer = this.#copy(piece.address, to, count, dtype, after, target.producer);
      piece.lastUse = target.block.lastUse = target.producer;
      // A queue that nobody waits for is looked at here: what is complete need not be waited for.
      queue.refresh();
    }
  }

  /**
   * `size` values of complete or coming memory. The storage is the reader's, who releases it in the end; its first step has to be taken at once.
   * @throws (as a generator) the error of the task that was to make them, GPUOS_OUT_OF_MEMORY, GPUOS_SHUT_DOWN
   */
  *read(origin: Storage, offset: number, size: number, dtype: DType): Reader {
    const staging = this.#staging;
    try {
      const values = blankValues(dtype, size);
      if (origin.error !== undefined) throw origin.error;
      const address = origin.block.address + offset * elementBytes(dtype);
      if (staging === undefined || size === 0 || origin.isOf(this.#system.hostHeap)) {
        if (origin.producer >= 0) yield origin.producer;
        this.#check(origin);
        readValues(this.#system.device, address, values, 0, size, dtype);
        return values;
      }
      const block = staging.block(size * elementBytes(dtype));
      if (block === undefined) {
        yield* this.#readPieces(staging, origin, address, values, dtype);
        return values;
      }
      try {
        // It is brought as soon as it is there: nobody need look in between.
        const sequence = this.#copy(address, block.address, size, dtype, block.lastUse, origin.producer);
        block.lastUse = sequence;
        origin.block.lastUse = Math.max(origin.block.lastUse, sequence);
        yield sequence;
        // What made them comes first: that it failed is why they could not be brought here.
        this.#check(origin);
        const failure = this.#failed(sequence);
        if (failure !== undefined) throw failure;
        readValues(this.#system.device, block.address, values, 0, size, dtype);
        return values;
      } finally {
        staging.release(block);
      }
    } finally {
      origin.release();
    }
  }

  *#readPieces(staging: Staging, origin: Storage, address: number, values: HostData, dtype: DType): Generator<number, void, void> {
    const { device } = this.#system;
    const elements = Math.floor(staging.pieceBytes / elementBytes(dtype));
    // No piece is taken before there is something to bring: others may need it meanwhile.
    if (origin.producer >= 0) yield origin.producer;
    this.#check(origin);
    const coming: Incoming[] = [];
    try {
      for (let from = 0; from < values.length || coming.length > 0; ) {
        while (from < values.length && coming.length < AHEAD) {
          const piece = staging.next();
          if (!staging.isIdle(piece)) {
            if (coming.length > 0) break;
            yield piece.lastUse;
            this.#system.checkOpen();
            continue;
          }
          staging.take(piece);
          const count = Math.min(elements, values.length - from);
          piece.lastUse = this.#copy(address + from * elementBytes(dtype), piece.address, count, dtype, -1, -1);
          origin.block.lastUse = Math.max(origin.block.lastUse, piece.lastUse);
          const sequence = piece.lastUse;
          const start = from;
          const incoming = new Incoming(piece, sequence, () => {
            const failure = this.#failed(sequence);
            if (failure === undefined) readValues(device, piece.address, values, start, count, dtype);
            return failure;
          });
          piece.arrival = incoming;
          coming.push(incoming);
          from += count;
        }
        const first = coming[0] as Incoming;
        if (!first.saved) yield first.sequence;
        first.save();
        if (first.failure !== undefined) throw first.failure;
        coming.shift();
      }
    } finally {
      for (const each of coming) each.abandon();
    }
  }

  /** The error of a task if it is complete and failed. */
  #failed(sequence: number): unknown {
    const queue = this.#system.queue(0);
    return sequence >= 0 && queue.isComplete(sequence) ? queue.failure(sequence) : undefined;
  }

  /** @throws what became of the values instead */
  #check(origin: Storage): void {
    origin.error ??= this.#failed(origin.producer);
    if (origin.error !== undefined) throw origin.error;
  }

  /**
   * Submits a task that copies elements.
   * @param after the task after which the target's memory is free
   * @param producer what makes the source, or must have ended well before; -1: nothing that is not known to have
   */
  #copy(from: number, to: number, count: number, dtype: DType, after: number, producer: number): number {
    const { device } = this.#system;
    const view = { shape: [count], dtype, strides: [1], offset: 0 } as const;
    const call = device.lowerCopy(view, view);
    const dependencies: Dependency[] = producer >= this.#system.queue(0).mark ? [{ queue: 0, sequence: producer }] : [];
    const tiles = tilesFor(device, call.costNs, call.units);
    const sequence = submitCall(this.#system, call, (pointer) => ('input' in pointer ? from : to), tiles, { after, dependencies });
    device.ringDoorbell(1);
    return sequence;
  }
}

/** A part of a value on its way, which its reader or whoever needs the piece takes out. */
class Incoming implements Arrival {
  readonly sequence: number;
  saved = false;
  failure: unknown;
  readonly #piece: Piece;
  readonly #take: () => unknown;

  /** @param take takes the values out, or says why they did not come */
  constructor(piece: Piece, sequence: number, take: () => unknown) {
    this.#piece = piece;
    this.sequence = sequence;
    this.#take = take;
  }

  save(): void {
    if (this.saved) return;
    this.saved = true;
    this.failure = this.#take();
    this.abandon();
  }

  /** Nobody will ask for it any more. */
  abandon(): void {
    if (this.#piece.arrival === this) this.#piece.arrival = undefined;
  }
}
