/**
 * The contract between the runtime and a device.
 *
 * A device is a set of workers that never stop, and memory that they and the host share. The runtime
 * writes 128-byte task descriptors into rings in that memory; workers claim the tiles of tasks, call
 * the function that the operator table names, and publish how each task ended. After start-up nothing
 * on that path crosses into a driver or another thread's event loop: submission is a few stores, and
 * completion is read from memory.
 *
 * What differs between devices is behind this interface: how memory is obtained and seen by the host,
 * how a fused program becomes machine code and gets into a running executor, how a fixed operator's
 * parameter block is filled, and what the host can do while it waits. The wasm device lends the host
 * as one more worker; on a GPU the host can only wait.
 *
 * Addresses are the device's own, as a pointer in a parameter block holds them, up to 2^53: byte offsets in
 * its memory on the wasm device, virtual addresses on a GPU. Sequences are the host's, counted without wrapping; a
 * descriptor carries them modulo 2^32.
 */
import type { Attributes, DType, Shape } from '../ops/define.ts';
import type { Program } from '../ops/program.ts';

export type DeviceKind = 'wasm' | 'cuda' | 'reference';

/** A tensor's memory as an operator sees it: strides and offset in elements. */
export interface OperandView {
  readonly shape: Shape;
  readonly dtype: DType;
  readonly strides: readonly number[];
  readonly offset: number;
}

/** A device function with everything its parameter block needs but the addresses. */
export interface KernelCall {
  /** Name of the device function. */
  readonly kernel: string;
  readonly pointers: readonly ({ readonly input: number } | { readonly output: number } | { readonly none: true })[];
  /** 32-bit words; float32 values as their bits. Word 0 is the number of units. */
  readonly words: readonly number[];
  /** Independent units of work: the most tiles that it can be split into. */
  readonly units: number;
  /** Estimate of the time on one worker. */
  readonly costNs: number;
  /**
   * Set when unit u writes only the u-th of `units` equal, contiguous pieces of each output: then the
   * inputs, contiguous ones, of which it also reads only the u-th piece. What makes such a piece can run
   * before it in the same tile (see `chain`).
   */
  readonly aligned?: readonly number[];
  /** Set where it is nothing but a matrix product of pointers 0 and 1 into 2: a device may have another way for it. */
  readonly product?: MatrixProduct;
}

/** C = A B, row by row, or a batch of those. Sizes and strides in elements. */
export interface MatrixProduct {
  readonly dtype: DType;
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly a: ProductMatrix;
  readonly b: ProductMatrix;
  readonly c: ProductMatrix;
  /** How many of them; 1 for a single one. */
  readonly batch: number;
}

export interface ProductMatrix {
  /** It lies as its transposition does. */
  readonly transposed: boolean;
  /** From one row of what lies there to the next. */
  readonly stride: number;
  /** From one matrix of the batch to the next; 0: all use the same. */
  readonly batchStride: number;
}

/** What the planner knows beyond the operator itself. */
export interface LoweringOptions {
  /** matmul: input 1 is a packing (see Device.packing); its view says only the matrix's shape. */
  readonly packed?: boolean;
  /** matmul: what tiles split, rows of the result or panels of its columns; else chosen by the sizes. */
  readonly partition?: 'rows' | 'columns';
}

/** Typed views of device memory. They are replaced when memory grows: take them anew from the device for each use. */
export interface MemoryViews {
  readonly u32: Uint32Array;
  readonly i32: Int32Array;
  readonly f32: Float32Array;
  readonly bytes: number;
}

/** Where a queue's shared words stand. */
export interface QueueAddresses {
  readonly record: number;
  readonly ring: number;
  readonly completions: number;
  /** What the host clears before a task of several tiles, where workers claim tiles through shared memory. */
  readonly claims?: {
    /** MAX_TILES rows of one word of 8 bytes a slot. */
    readonly tileWords: number;
    /** Functions that tasks of several tiles resolved to, 8 bytes a slot. */
    readonly resolutions: number;
  };
  readonly slots: number;
}

/** What the host found and did in one slice of helping. */
export interface HelpResult {
  /** Tiles run. */
  readonly ran: number;
  /** nothing: no task to take; waiting: the next task depends on a running one; left: a task of one tile was left to the workers. */
  readonly found: 'nothing' | 'waiting' | 'left';
}

export interface WorkerStatus {
  readonly worker: number;
  readonly state: 'starting' | 'running' | 'parked' | 'yielded' | 'dead' | 'left';
  /** Counters; not there where the device does not keep them. */
  readonly tiles?: number;
  readonly tasks?: number;
  readonly failed?: number;
  readonly parks?: number;
  readonly installs?: number;
}

/** A program that has been turned into machine code, not yet installed. */
export interface Artifact {
  readonly bytes: Uint8Array;
}

/** Submits a control task with these parameters. @throws GPUOS_SHUT_DOWN, GPUOS_DEVICE_LOST */
export type SubmitChange = (pointers: readonly number[], words: readonly number[]) => void;

/** Memory that a heap draws from. It is there from `start` to `end`, and grows on demand up to `limit`. */
export interface MemorySpace {
  readonly start: number;
  readonly end: number;
  readonly limit: number;
  /** Makes sure that it is there up to `end`; throws GPUOS_OUT_OF_MEMORY with the sizes. */
  ensure(end: number): void;
}

/**
 * Work that an ordinary launch does beside the executor. Its task stands in the ring like any other, keeps its place in
 * the order, and ends when the work is done.
 */
export interface OrdinaryLaunches {
  /**
   * What to write into the queue, next and with this sequence, for a product that `lower` has kept in its call; undefined:
   * it is to run as the kernel call that it came with.
   */
  begin(
    product: MatrixProduct,
    pointers: readonly [a: number, b: number, c: number],
    queue: number,
    sequence: number,
  ): { readonly slot: number; readonly pointers: readonly number[]; readonly words: readonly number[] } | undefined;
  /** Products begun so, and why no more are if that is so. */
  readonly state: { readonly begun: number; readonly library: string | undefined; readonly unavailable: string | undefined };
}

export interface Device {
  readonly kind: DeviceKind;
  readonly name: string;
  /** What a tile should last at least, by `costNs`: below it, sharing costs more than it gains. */
  readonly tileNs: number;
  /** Workers beside the host. */
  readonly workers: number;
  readonly queues: readonly QueueAddresses[];

  /** Where operators compute. Its start may be read: it stands for operands that have no memory, as they have no elements. (Address 0 is for those that a kernel has no use for.) */
  readonly memory: MemorySpace;
  /**
   * What host and device both see: parameter blocks, and values on their way in and out. The same space where the host
   * sees all that operators compute in.
   */
  readonly hostMemory: MemorySpace;
  /** The host's views of what both see, from `viewBase` on. */
  views(): MemoryViews;
  /** Address of the views' first byte. */
  readonly viewBase: number;

  /** Wakes workers that sleep, at most `count`. Cheap when none does. */
  ringDoorbell(count: number): void;
  /** Workers that sleep or are about to. */
  parked(): number;
  /** Runs up to `limit` tiles on the calling thread; with `shared` only of tasks that have several. */
  help(limit: number, shared: boolean): HelpResult;
  /** Blocks the calling thread until the queue's mark is no longer `mark` (32-bit), or for `ms`. */
  sleep(queue: number, mark: number, ms: number): void;
  /** The same without blocking. */
  sleepAsync(queue: number, mark: number, ms: number): Promise<void>;

  /** Slots of the operator table that hold built-in functions, by name. */
  readonly kernels: ReadonlyMap<string, number>;
  compile(program: Program): Artifact;
  /** A cache key of the program: equal programs have equal signatures. */
  signature(program: Program): string;
  /** Makes code callable under a new function index by every worker that has reached the returned epoch. */
  install(artifact: Artifact): { readonly fn: number; readonly epoch: number };
  /**
   * For a device whose functions are entered by control tasks (CHANGE.ENTER): the runtime gives it the way to submit one,
   * in order with all that it submits itself to the first queue.
   */
  setChanges?(submit: SubmitChange): void;
  /** The function index is no longer in use by any task. */
  uninstall(fn: number): void;
  /** The newest table epoch. */
  readonly epoch: number;

  lower(
    operator: string,
    inputs: readonly OperandView[],
    outputs: readonly OperandView[],
    attributes: Attributes,
    options?: LoweringOptions,
  ): KernelCall;
  acceptsStrides(operator: string, input: number): boolean;
  /** Whether a fixed operator can be lowered for float16 and bfloat16; others are recorded in float32, between casts. */
  acceptsHalves(operator: string): boolean;
  lowerCopy(view: OperandView, output: OperandView): KernelCall;
  /** Weights [K, N] in the order that matmul reads fastest, or undefined where the device has no such order. */
  readonly packing?: {
    elements(k: number, n: number): number;
    lower(view: OperandView, output: OperandView): KernelCall;
  };

  /** Large products done beside the executor by ordinary launches, where the device has a library for that. */
  readonly ordinary?: OrdinaryLaunches;

  status(): readonly WorkerStatus[];
  /** Workers that died and were replaced. */
  readonly losses: number;
  /** Set once the device cannot go on; every pending task is lost. */
  readonly lost: string | undefined;
  /** After how many tiles a worker gives way; set while it runs. 0: never. */
  setYieldEvery(tiles: number): void;
  /** Ends the workers; the host's memory stays readable. */
  stop(): Promise<void>;
}
