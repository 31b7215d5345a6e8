import { FUNCTION_SLOTS } from '../../abi/status.ts';
import { GpuosError } from '../../errors.ts';

/**
 * Machine code (WebAssembly modules) in shared memory, one entry a function index. Function tables
 * cannot be shared between threads, so every thread fills its own from here: the host writes an entry,
 * raises the epoch, and names the epoch in the descriptors that need it; a worker that is behind
 * brings its table up to date before it claims. A replacement worker starts from here as well.
 *
 * An entry is {epoch, offset, length}. Its epoch is zero while it is being written, and is checked
 * again after the bytes were copied, so a reader never takes a half-written module.
 *
 * The log behind the entries says which index got an epoch, for as many epochs as there are indices: a thread that is
 * a few behind looks at these alone. In front of it stands the epoch up to which it may have been written over.
 */
const ENTRY_WORDS = 4;
const LOG_MARK = FUNCTION_SLOTS * ENTRY_WORDS;
const LOG = LOG_MARK + 1;
const HEADER_WORDS = LOG + FUNCTION_SLOTS;
const GRAIN_BYTES = 512;
const HEADER_BYTES = Math.ceil((HEADER_WORDS * 4) / GRAIN_BYTES) * GRAIN_BYTES;
const MAX_BYTES = 256 << 20;

export class CodeStore {
  readonly buffer: SharedArrayBuffer;
  readonly #entries: Int32Array;
  /** First function index that injected code may have; those below are built in. */
  readonly #first: number;
  #highWater: number;
  #end = HEADER_BYTES;
  readonly #freeIndices: number[] = [];
  readonly #freeSpans = new Map<number, number[]>();
  #epoch: number;

  /** @param epoch the one before the first; another than 0 to try how they wrap */
  constructor(first: number, epoch = 0) {
    this.buffer = new SharedArrayBuffer(HEADER_BYTES + (1 << 20), { maxByteLength: MAX_BYTES });
    this.#entries = new Int32Array(this.buffer, 0, HEADER_WORDS);
    this.#first = first;
    this.#epoch = epoch;
    Atomics.store(this.#entries, LOG_MARK, epoch);
    this.#highWater = first;
  }

  get epoch(): number {
    return this.#epoch;
  }

  /** Stores a module under a function index that nothing uses. @throws GPUOS_OPERATOR_TABLE_FULL */
  add(bytes: Uint8Array): { fn: number; epoch: number } {
    const fn = this.#freeIndices.pop() ?? (this.#highWater < FUNCTION_SLOTS ? this.#highWater++ : undefined);
    if (fn === undefined)
      throw new GpuosError('GPUOS_OPERATOR_TABLE_FULL', `All ${FUNCTION_SLOTS - this.#first} function indices are in use.`);
    const size = Math.ceil(bytes.length / GRAIN_BYTES) * GRAIN_BYTES;
    let offset = this.#freeSpans.get(size)?.pop();
    if (offset === undefined) {
      offset = this.#end;
      this.#end += size;
      if (this.#end > this.buffer.byteLength) {
        if (this.#end > MAX_BYTES) throw new GpuosError('GPUOS_OUT_OF_MEMORY', `Injected code takes more than ${MAX_BYTES >> 20} MiB.`);
        this.buffer.grow(Math.min(MAX_BYTES, Math.max(this.#end, this.buffer.byteLength * 2)));
      }
    }
    const at = fn * ENTRY_WORDS;
    Atomics.store(this.#entries, at, 0);
    new Uint8Array(this.buffer, offset, bytes.length).set(bytes);
    this.#entries[at + 1] = offset;
    this.#entries[at + 2] = bytes.length;
    this.#epoch = (this.#epoch + 1) | 0;
    if (this.#epoch === 0) this.#epoch = 1;
    // Before the word of the log: who reads that finds out that it is not the one of long ago.
    Atomics.store(this.#entries, LOG_MARK, this.#epoch);
    Atomics.store(this.#entries, logAt(this.#epoch), fn);
    Atomics.store(this.#entries, at, this.#epoch);
    return { fn, epoch: this.#epoch };
  }

  /** The index and its bytes may be used anew: no task that could call it is left. */
  remove(fn: number): void {
    const at = fn * ENTRY_WORDS;
    const offset = this.#entries[at + 1] as number;
    const size = Math.ceil((this.#entries[at + 2] as number) / GRAIN_BYTES) * GRAIN_BYTES;
    Atomics.store(this.#entries, at, 0);
    let spans = this.#freeSpans.get(size);
    if (spans === undefined) {
      spans = [];
      this.#freeSpans.set(size, spans);
    }
    spans.push(offset);
    this.#freeIndices.push(fn);
  }
}

/** Where the log tells the index that got an epoch. */
const logAt = (epoch: number): number => LOG + (epoch & (FUNCTION_SLOTS - 1));

/** Brings one thread's function table up to date with the store. */
export class Installer {
  readonly #buffer: SharedArrayBuffer;
  readonly #entries: Int32Array;
  readonly #table: WebAssembly.Table;
  readonly #memory: WebAssembly.Memory;
  /** Epoch of the code that each index has here. */
  readonly #installed = new Int32Array(FUNCTION_SLOTS);
  /** Everything up to this epoch is installed. */
  #epoch = 0;

  constructor(buffer: SharedArrayBuffer, table: WebAssembly.Table, memory: WebAssembly.Memory) {
    this.#buffer = buffer;
    this.#entries = new Int32Array(buffer, 0, HEADER_WORDS);
    this.#table = table;
    this.#memory = memory;
  }

  /** The host has the bytes at hand. */
  installBytes(fn: number, epoch: number, bytes: Uint8Array): void {
    this.#set(fn, bytes as Uint8Array<ArrayBuffer>);
    this.#installed[fn] = epoch;
  }

  /** Installs every entry up to `epoch` that this thread does not have yet. Called from inside the executor; returns `epoch`. */
  readonly install = (epoch: number): number => {
    const since = this.#epoch;
    if (behind(since, epoch) < FUNCTION_SLOTS) {
      for (let at = (since + 1) | 0; behind(at, epoch) < FUNCTION_SLOTS; at = (at + 1) | 0) {
        this.#bring(Atomics.load(this.#entries, logAt(at)));
      }
    }
    // Too far behind, from the start or because the host has gone on meanwhile: then the log has lost some of it.
    if (behind(since, Atomics.load(this.#entries, LOG_MARK)) >= FUNCTION_SLOTS) for (let fn = 0; fn < FUNCTION_SLOTS; fn++) this.#bring(fn);
    this.#epoch = epoch;
    return epoch;
  };

  /** Installs what the store has under an index, unless that has been done, or it is being written: then another epoch follows. */
  #bring(fn: number): void {
    const at = fn * ENTRY_WORDS;
    const entryEpoch = Atomics.load(this.#entries, at);
    if (entryEpoch === 0 || entryEpoch === this.#installed[fn]) return;
    const offset = this.#entries[at + 1] as number;
    const length = this.#entries[at + 2] as number;
    if (offset < HEADER_BYTES || offset + length > this.#buffer.byteLength) return; // torn: it is being written
    const bytes = new Uint8Array(length);
    bytes.set(new Uint8Array(this.#buffer, offset, length));
    if (Atomics.load(this.#entries, at) !== entryEpoch) return;
    this.#set(fn, bytes);
    this.#installed[fn] = entryEpoch;
  }

  #set(fn: number, bytes: Uint8Array<ArrayBuffer>): void {
    const module = new WebAssembly.Module(bytes);
    const instance = new WebAssembly.Instance(module, { env: { memory: this.#memory } });
    this.#table.set(fn, instance.exports['f'] as () => number);
  }
}

/** How many epochs `a` comes before `b`, as they wrap. */
const behind = (a: number, b: number): number => (b - a) >>> 0;
