import { DEPENDENCIES, descriptor, INLINE_POINTERS, INLINE_WORDS } from '../abi/descriptor.ts';
import { queueRecord } from '../abi/records.ts';
import { FLAG, MAX_TILES, NO_QUEUE, STATUS } from '../abi/status.ts';
import type { Device, QueueAddresses } from '../backends/backend.ts';
import { GpuosError } from '../errors.ts';
import { taskError } from './task-error.ts';

const DESCRIPTOR_SHIFT = 5; // 32 words
const OFFSET = {
  operator: descriptor.offset.operator >> 2,
  flags: descriptor.offset.flags >> 2,
  tiles: descriptor.offset.tiles >> 2,
  epoch: descriptor.offset.epoch >> 2,
  after: descriptor.offset.after >> 2,
  dependencies: descriptor.offset.dependencies >> 2,
  dependencyQueues: descriptor.offset.dependencyQueues >> 2,
  trace: descriptor.offset.trace >> 2,
  params: descriptor.offset.params >> 2,
  tag0: descriptor.offset.tag0 >> 2,
  pointers: descriptor.offset.pointers >> 2,
  words: descriptor.offset.words >> 2,
  tag1: descriptor.offset.tag1 >> 2,
} as const;
const NO_DEPENDENCIES = (NO_QUEUE | (NO_QUEUE << 8) | (NO_QUEUE << 16) | (NO_QUEUE << 24)) >>> 0;

/**
 * On x86 stores become visible in the order of the program, and V8 keeps the order of stores into one array. So the tag of
 * the first line needs no fence of its own behind that line: to threads the second tag, which has one, publishes all; a
 * device that reads single lines finds the first tag behind what it vouches for. Elsewhere each tag is fenced. (A fence
 * waits until the line is this core's, which a device that has read it makes take long: half of a descriptor's time.)
 */
const STORES_IN_ORDER = process.arch === 'x64';

/** How many failed tasks a queue remembers for callers who ask late. */
const REMEMBERED_FAILURES = 65_536;
/** Empty looks before the host takes a task of one tile from workers that are awake. */
const PATIENCE = 24;
/** Looks without a result that follow each other at once, and the longest pause after that, in rounds of pause(). */
const QUICK_LOOKS = 8;
const LONGEST_PAUSE = 400;
/** Tiles between two looks at the clock. */
const SLICE_TILES = 2;
/** Longest slice that the host computes before it lets its event loop turn. */
const SLICE_MS = 1;
/** How long a slice lasts in which nothing moves: the next task often becomes ready sooner. */
const LULL_MS = 0.1;
/** Turns of the event loop without progress before the host leaves the rest to a wake-up. */
const IDLE_TURNS = 50;
const SLEEP_MS = 5;

export { INLINE_POINTERS, INLINE_WORDS, MAX_TILES };

/** True producers that one descriptor can name. */
export const MOST_DEPENDENCIES = DEPENDENCIES;

/** A true producer: its failure fails the dependent. */
export interface Dependency {
  readonly queue: number;
  readonly sequence: number;
  /** A tile needs only the same tile of that task, which has as many. */
  readonly tilewise?: boolean;
}

/** Sequences that a task waits for, in the form that the descriptor takes. */
export interface Order {
  /** Wait until the queue has completed up to and including this sequence; -1: no such wait. */
  readonly after: number;
  readonly dependencies: readonly Dependency[];
}

export const NO_ORDER: Order = { after: -1, dependencies: [] };

let paused = 0;

/**
 * About `rounds` ns in which no memory is touched. Each look at the queue takes lines away from the worker
 * that writes them: a host that looks all the time makes its workers half as fast.
 */
function pause(rounds: number): void {
  let x = paused;
  for (let i = 0; i < rounds; i++) x = (Math.imul(x, 5) + 1) | 0;
  paused = x;
}

/** What a waiting host has found out. */
interface Waiting {
  /** Looks at a task of one tile that was there and not taken by a worker, before the host takes it. */
  patience: number;
  /** Looks since something last happened. */
  looks: number;
}

interface Failure {
  readonly status: number;
  readonly operator: number;
  readonly dependencies: readonly Dependency[];
}

/** Length of a parameter block as a descriptor tells it: a device that brings blocks nearer needs to know; 0 past what fits. */
export function paramLines(bytes: number): number {
  const lines = (bytes + 63) >> 6;
  return lines > 255 ? 0 : lines;
}

/** What a queue needs from the system around it. */
export interface QueueHost {
  readonly device: Device;
  readonly spinUs: number;
  /** Set by shutdown: nothing more will run. */
  readonly closed: boolean;
  operatorName(slot: number): string;
  queue(index: number): Queue;
}

/**
 * The producer's end of one ring. Sequences here are counted without wrapping; the ring carries them
 * modulo 2^32. One thread writes.
 */
export class Queue {
  readonly index: number;
  readonly slots: number;
  readonly #host: QueueHost;
  readonly #device: Device;
  // The records and rings lie in the part of memory that was there from the start, so these views stay valid when memory grows.
  readonly #u32: Uint32Array;
  readonly #viewBase: number;
  readonly #ring: number;
  readonly #mask: number;
  readonly #completions: number;
  /** Indices of words; undefined where the device keeps claims to itself. */
  readonly #claims: { readonly tileWords: number; readonly resolutions: number } | undefined;
  readonly #cursorWord: number;
  readonly #markWord: number;
  readonly #failureWord: number;
  readonly #tailWord: number;
  #tail: number;
  #mark: number;
  #failureCount = 0;
  /** Tasks before this one may have failed without our having looked. */
  #suspectUntil = 0;
  readonly #failures = new Map<number, Failure>();

  constructor(host: QueueHost, index: number, firstSequence: number) {
    const addresses = host.device.queues[index] as QueueAddresses;
    this.index = index;
    this.slots = addresses.slots;
    this.#host = host;
    this.#device = host.device;
    this.#u32 = host.device.views().u32;
    this.#viewBase = host.device.viewBase;
    this.#ring = addresses.ring >> 2;
    this.#mask = addresses.slots - 1;
    this.#completions = addresses.completions >> 2;
    const { claims } = addresses;
    this.#claims = claims && { tileWords: claims.tileWords >> 2, resolutions: claims.resolutions >> 2 };
    this.#cursorWord = (addresses.record + queueRecord.offset.cursor + 4) >> 2; // its high half, the sequence
    this.#markWord = (addresses.record + queueRecord.offset.mark) >> 2;
    this.#failureWord = (addresses.record + queueRecord.offset.failures) >> 2;
    this.#tailWord = (addresses.record + queueRecord.offset.tail) >> 2;
    this.#tail = firstSequence;
    this.#mark = firstSequence;
    this.#free = firstSequence;
  }

  /** Sequence of the next task. */
  get tail(): number {
    return this.#tail;
  }

  /** The first sequence that is not complete, as of the last look. */
  get mark(): number {
    return this.#mark;
  }

  /** Tasks submitted and not complete. */
  get depth(): number {
    this.refresh();
    return this.#tail - this.#mark;
  }

  /** The first sequence with a tile that nobody has claimed. */
  get head(): number {
    return this.#mark + ((Atomics.load(this.#u32, this.#cursorWord) - (this.#mark >>> 0)) | 0);
  }

  /**
   * Looks at the mark, and remembers how the tasks that it passed failed, before their slots are used anew.
   */
  refresh(): void {
    // Once the system is shut down its memory may be gone; what was not complete by then is cancelled.
    if (this.#host.closed) return;
    const mark = this.#mark + ((Atomics.load(this.#u32, this.#markWord) - (this.#mark >>> 0)) | 0);
    if (mark === this.#mark) return;
    const count = Atomics.load(this.#u32, this.#failureWord);
    if (count !== this.#failureCount) {
      // The count runs ahead of the mark: what it tells of may be any task submitted so far.
      this.#failureCount = count;
      this.#suspectUntil = this.#tail;
    }
    if (this.#mark < this.#suspectUntil) {
      for (let sequence = this.#mark; sequence < mark; sequence++) {
        const status = this.#completedStatus(sequence);
        if (status !== STATUS.OK) this.#remember(sequence, status);
      }
    }
    this.#mark = mark;
  }

  /** Some task may have failed: callers who take success for granted have to ask. */
  get hasFailures(): boolean {
    return this.#failureCount !== 0;
  }

  #completedStatus(sequence: number): number {
    return Atomics.load(this.#u32, this.#completions + (((sequence >>> 0) & this.#mask) << 1));
  }

  #remember(sequence: number, status: number): void {
    const at = this.#ring + (((sequence >>> 0) & this.#mask) << DESCRIPTOR_SHIFT);
    const queues = this.#u32[at + OFFSET.dependencyQueues] as number;
    const dependencies: Dependency[] = [];
    for (let i = 0; i < DEPENDENCIES; i++) {
      const queue = (queues >>> (i * 8)) & 0xff;
      if (queue === NO_QUEUE) continue;
      const low = this.#u32[at + OFFSET.dependencies + i] as number;
      const other = this.#host.queue(queue);
      dependencies.push({ queue, sequence: other.tail + ((low - (other.tail >>> 0)) | 0) });
    }
    this.#failures.set(sequence, { status, operator: this.#operatorOf(sequence), dependencies });
    if (this.#failures.size > REMEMBERED_FAILURES) {
      for (const oldest of this.#failures.keys()) {
        this.#failures.delete(oldest);
        break;
      }
    }
  }

  #operatorOf(sequence: number): number {
    return this.#u32[this.#ring + (((sequence >>> 0) & this.#mask) << DESCRIPTOR_SHIFT) + OFFSET.operator] as number;
  }

  /**
   * Makes room for one descriptor; waits while the ring is full. A slot is free when both the mark and
   * the cursor are past its task: a worker may still be reading a task at which the cursor stands, even
   * one that is complete.
   */
  ringSpace(): void {
    if (this.#tail - this.#free < this.slots) return;
    this.#look();
    if (this.#tail - this.#free < this.slots) return;
    const oldest = this.#tail - this.slots;
    this.waitSync(oldest);
    this.#awaitReaders(oldest);
    for (this.#look(); this.#tail - this.#free >= this.slots; this.#look()) {
      // Complete, but nobody has moved the cursor on yet: helping does.
      this.#checkAlive(this.#tail);
      this.#device.help(1, false);
    }
  }

  /** Whether a descriptor can be written without waiting. */
  get hasSpace(): boolean {
    if (this.#tail - this.#free < this.slots) return true;
    this.#look();
    return this.#tail - this.#free < this.slots;
  }

  /** Every slot before `#free` may be written anew. */
  #free = 0;

  #look(): void {
    this.refresh();
    if (this.#readers.size > 0) this.#dropReaders();
    let free = Math.min(this.#mark, this.head);
    for (const held of this.#readers.keys()) free = Math.min(free, held);
    this.#free = free;
  }

  /** Tasks of other queues that still have to see how a task of this one ended, by that task's sequence. */
  readonly #readers = new Map<number, Dependency[]>();

  /** Keeps the completion of `sequence` until the dependent, in another queue, is complete. */
  keepFor(sequence: number, dependent: Dependency): void {
    this.#dropReaders();
    const readers = this.#readers.get(sequence);
    if (readers === undefined) this.#readers.set(sequence, [dependent]);
    else readers.push(dependent);
    this.#free = Math.min(this.#free, sequence);
  }

  #dropReaders(): void {
    for (const [sequence, readers] of this.#readers) {
      if (readers.every((reader) => this.#host.queue(reader.queue).isComplete(reader.sequence))) this.#readers.delete(sequence);
    }
  }

  #awaitReaders(until: number): void {
    for (const [sequence, readers] of this.#readers) {
      if (sequence > until) continue;
      for (const reader of readers) this.#host.queue(reader.queue).waitSync(reader.sequence);
    }
  }

  /**
   * Writes a descriptor whose parameter block of so many bytes stands at `params`, and publishes it. Returns its sequence.
   * The plain stores come first; the two tags, last, make it visible.
   */
  writeDescriptor(operator: number, tiles: number, params: number, bytes: number, order: Order): number {
    this.ringSpace();
    const u32 = this.#u32;
    const at = this.#ring + (((this.#tail >>> 0) & this.#mask) << DESCRIPTOR_SHIFT);
    u32[at + OFFSET.params] = params - this.#viewBase;
    return this.#publish(at, operator, tiles, order, FLAG.PARAMS | (paramLines(bytes) << 24));
  }

  /** The same with the parameter block in the descriptor: at most four pointers and seven words. */
  writeInline(operator: number, tiles: number, pointers: readonly number[], words: readonly number[], order: Order, flags = 0): number {
    if (pointers.length > INLINE_POINTERS || words.length > INLINE_WORDS) {
      throw new GpuosError(
        'GPUOS_BAD_DESCRIPTOR',
        `A descriptor holds ${INLINE_POINTERS} pointers and ${INLINE_WORDS} words; ${pointers.length} and ${words.length} were given.`,
      );
    }
    this.ringSpace();
    const u32 = this.#u32;
    const at = this.#ring + (((this.#tail >>> 0) & this.#mask) << DESCRIPTOR_SHIFT);
    for (let i = 0; i < pointers.length; i++) {
      const pointer = pointers[i] as number;
      u32[at + OFFSET.pointers + 2 * i] = pointer | 0;
      u32[at + OFFSET.pointers + 2 * i + 1] = (pointer / 2 ** 32) | 0;
    }
    for (let i = 0; i < words.length; i++) u32[at + OFFSET.words + i] = words[i] as number;
    return this.#publish(at, operator, tiles, order, flags);
  }

  #publish(at: number, operator: number, tiles: number, order: Order, flags: number): number {
    const u32 = this.#u32;
    const sequence = this.#tail;
    const tag = sequence >>> 0;
    u32[at + OFFSET.operator] = operator;
    u32[at + OFFSET.tiles] = tiles;
    u32[at + OFFSET.epoch] = this.#device.epoch;
    let bits = flags | (this.index << 16);
    if (order.after >= this.#mark) {
      u32[at + OFFSET.after] = order.after >>> 0;
      bits |= FLAG.AFTER;
    }
    let queues = NO_DEPENDENCIES;
    const { dependencies } = order;
    for (let i = 0; i < dependencies.length; i++) {
      const { queue, sequence: producer, tilewise } = dependencies[i] as Dependency;
      if (tilewise === true) bits |= FLAG.TILEWISE << i;
      u32[at + OFFSET.dependencies + i] = producer >>> 0;
      if (queue !== this.index) this.#host.queue(queue).keepFor(producer, { queue: this.index, sequence });
      queues = (queues & ~(0xff << (i * 8))) | (queue << (i * 8));
    }
    u32[at + OFFSET.flags] = bits;
    u32[at + OFFSET.dependencyQueues] = queues;
    if (tiles > 1 && this.#claims !== undefined) this.#clearTiles(this.#claims, tag, tiles);
    u32[at + OFFSET.trace] = tag;
    if (STORES_IN_ORDER) u32[at + OFFSET.tag0] = tag;
    else Atomics.store(u32, at + OFFSET.tag0, tag);
    Atomics.store(u32, at + OFFSET.tag1, tag);
    this.#tail = sequence + 1;
    u32[this.#tailWord] = (tag + 1) >>> 0;
    return sequence;
  }

  /**
   * Words that only tasks of several tiles use may be as old as the last such task in this slot; beyond
   * 2^31 tasks they would seem to be of the future.
   */
  #clearTiles({ tileWords, resolutions }: { readonly tileWords: number; readonly resolutions: number }, tag: number, tiles: number): void {
    const slot = tag & this.#mask;
    const before = (tag - this.slots) >>> 0;
    for (let tile = 1; tile < tiles; tile++) {
      const word = tileWords + ((tile * this.slots + slot) << 1);
      this.#u32[word] = 0;
      this.#u32[word + 1] = before;
    }
    this.#u32[resolutions + (slot << 1)] = 0;
    this.#u32[resolutions + (slot << 1) + 1] = before;
  }

  isComplete(sequence: number): boolean {
    if (sequence < this.#mark) return true;
    this.refresh();
    if (sequence < this.#mark) return true;
    if (this.#host.closed) return false;
    // Beyond the mark: complete, though a task before it is not.
    const word = this.#completions + (((sequence >>> 0) & this.#mask) << 1);
    return sequence < this.#tail && Atomics.load(this.#u32, word + 1) === sequence >>> 0;
  }

  /** The error that a complete task ended with, or undefined. */
  failure(sequence: number): GpuosError | undefined {
    if (sequence >= this.#mark) {
      const status = this.#completedStatus(sequence);
      if (status === STATUS.OK) return undefined;
      this.#remember(sequence, status);
    }
    const failure = this.#failures.get(sequence);
    if (failure === undefined) return undefined;
    let cause: GpuosError | undefined;
    for (const dependency of failure.dependencies) {
      const other = this.#host.queue(dependency.queue);
      if (other.isComplete(dependency.sequence)) cause ??= other.failure(dependency.sequence);
    }
    return taskError(failure.status, this.index, sequence, this.#host.operatorName(failure.operator), cause);
  }

  #checkAlive(sequence: number): void {
    if (this.#host.closed) throw taskError(STATUS.CANCELLED, this.index, sequence, 'any');
    const lost = this.#device.lost;
    // What took the device may have ended the task before.
    if (lost === undefined || this.isComplete(sequence)) return;
    const what = sequence < this.#tail ? ` (operator ${this.#host.operatorName(this.#operatorOf(sequence))})` : '';
    throw new GpuosError('GPUOS_DEVICE_LOST', `Task ${sequence} of queue ${this.index}${what} is lost: ${lost.replace(/\.$/, '')}.`);
  }

  /**
   * One slice of helping, at most SLICE_MS. Tasks of one tile are left to the workers unless they are
   * all asleep or have left a ready one for a while: two threads that race for a chain of small tasks
   * only pass its data to and fro.
   */
  #helpSlice(waiting: Waiting): boolean {
    const asleep = this.#device.parked() >= this.#device.workers;
    const { ran, found } = this.#device.help(SLICE_TILES, !asleep && waiting.patience > 0);
    if (ran > 0) {
      waiting.patience = PATIENCE;
      waiting.looks = 0;
      return true;
    }
    if (found === 'left') waiting.patience--;
    else if (found === 'waiting') waiting.patience = PATIENCE;
    if (++waiting.looks > QUICK_LOOKS) pause(Math.min(LONGEST_PAUSE, (waiting.looks - QUICK_LOOKS) << 3));
    return false;
  }

  /** Blocks, helping, until the task is complete. @throws GPUOS_SHUT_DOWN, GPUOS_DEVICE_LOST */
  waitSync(sequence: number): void {
    if (this.isComplete(sequence)) return;
    const waiting: Waiting = { patience: PATIENCE, looks: 0 };
    let idleSince = 0;
    while (!this.isComplete(sequence)) {
      this.#checkAlive(sequence);
      if (this.#helpSlice(waiting)) {
        idleSince = 0;
        continue;
      }
      if (waiting.patience < PATIENCE && waiting.patience > 0) continue;
      const now = performance.now();
      if (idleSince === 0) idleSince = now;
      // Nothing for the host to do: a worker has the rest. Sleep once that has lasted longer than a wake-up costs.
      if (now - idleSince > 0.2) {
        this.#device.ringDoorbell(1);
        const mark = Atomics.load(this.#u32, this.#markWord);
        if (!this.isComplete(sequence)) this.#device.sleep(this.index, mark, 1);
      }
    }
  }

  /**
   * Resolves when the task is complete: first spins (helping) for `spinUs`, then turns the event loop
   * between slices of helping, then waits to be woken.
   * @throws (rejects) GPUOS_SHUT_DOWN, GPUOS_DEVICE_LOST
   */
  async wait(sequence: number): Promise<void> {
    const waiting: Waiting = { patience: PATIENCE, looks: 0 };
    this.#slice(sequence, waiting, this.#host.spinUs / 1000);
    // The rest is not small: workers that were left asleep for it are needed now.
    if (!this.isComplete(sequence)) this.#device.ringDoorbell(MAX_TILES);
    let idle = 0;
    while (!this.isComplete(sequence)) {
      this.#checkAlive(sequence);
      if (idle < IDLE_TURNS) {
        await new Promise<void>((resolve) => setImmediate(resolve));
      } else {
        const mark = Atomics.load(this.#u32, this.#markWord);
        if (!this.isComplete(sequence)) await this.#device.sleepAsync(this.index, mark, SLEEP_MS);
      }
      idle = this.#slice(sequence, waiting, LULL_MS) ? 0 : idle + 1;
    }
  }

  /**
   * Helps for at most SLICE_MS (or `lullMs`, if that is longer), or until nothing could be done and no task was completed for `lullMs`.
   * Returns whether anything moved.
   */
  #slice(sequence: number, waiting: Waiting, lullMs: number): boolean {
    const start = performance.now();
    let moved = start;
    let mark = this.#mark;
    while (!this.isComplete(sequence)) {
      this.#checkAlive(sequence);
      const ran = this.#helpSlice(waiting);
      const now = performance.now();
      if (ran || this.#mark !== mark) {
        moved = now;
        mark = this.#mark;
      }
      if (now - moved > lullMs || now - start > Math.max(SLICE_MS, lullMs)) break;
    }
    return moved > start;
  }
}
