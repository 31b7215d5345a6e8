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
 */
const ENTRY_WORDS = 4;
const HEADER_BYTES = FUNCTION_SLOTS * ENTRY_WORDS * 4;
const GRAIN_BYTES = 512;
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
  #epoch = 0;

  constructor(first: number) {
    this.buffer = new SharedArrayBuffer(HEADER_BYTES + (1 << 20), { maxByteLength: MAX_BYTES });
    this.#entries = new Int32Array(this.buffer, 0, FUNCTION_SLOTS * ENTRY_WORDS);
    this.#first = first;
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

/** Brings one thread's function table up to date with the store. */
export class Installer {
  readonly #buffer: SharedArrayBuffer;
  readonly #entries: Int32Array;
  readonly #table: WebAssembly.Table;
  readonly #memory: WebAssembly.Memory;
  readonly #installed = new Int32Array(FUNCTION_SLOTS);

  constructor(buffer: SharedArrayBuffer, table: WebAssembly.Table, memory: WebAssembly.Memory) {
    this.#buffer = buffer;
    this.#entries = new Int32Array(buffer, 0, FUNCTION_SLOTS * ENTRY_WORDS);
    this.#table = table;
    this.#memory = memory;
  }

  /** The host has the bytes at hand. */
  installBytes(fn: number, epoch: number, bytes: Uint8Array): void {
    this.#set(fn, bytes as Uint8Array<ArrayBuffer>);
    this.#installed[fn] = epoch;
  }

  /** Installs every entry that this thread does not have yet. Called from inside the executor; returns `epoch`. */
  readonly install = (epoch: number): number => {
    for (let fn = 0; fn < FUNCTION_SLOTS; fn++) {
      const at = fn * ENTRY_WORDS;
      const entryEpoch = Atomics.load(this.#entries, at);
      if (entryEpoch === 0 || entryEpoch === this.#installed[fn]) continue;
      const offset = this.#entries[at + 1] as number;
      const length = this.#entries[at + 2] as number;
      if (offset < HEADER_BYTES || offset + length > this.#buffer.byteLength) continue; // torn: it is being written
      const bytes = new Uint8Array(length);
      bytes.set(new Uint8Array(this.#buffer, offset, length));
      if (Atomics.load(this.#entries, at) !== entryEpoch) continue;
      this.#set(fn, bytes);
      this.#installed[fn] = entryEpoch;
    }
    return epoch;
  };

  #set(fn: number, bytes: Uint8Array<ArrayBuffer>): void {
    const module = new WebAssembly.Module(bytes);
    const instance = new WebAssembly.Instance(module, { env: { memory: this.#memory } });
    this.#table.set(fn, instance.exports['f'] as () => number);
  }
}
