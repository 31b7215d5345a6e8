import { FUNCTION_SLOTS, OPERATOR_SLOTS, STATUS } from '../../abi/status.ts';
import { GpuosError } from '../../errors.ts';
import { CudaError } from './cuda-error.ts';
import { LoadedImage } from './injection/loaded-image.ts';
import { QUIT, QUIT_WORD, Replacement, type Running } from './injection/replacement.ts';
import { completionBefore, MOST_WORKERS, type SegmentLayout } from './layout.ts';
import type { Address } from './library.ts';
import { blame } from './process/blame.ts';
import { isFatal } from './process/ending.ts';
import type { BlockShape } from './process/block-room.ts';
import { IdleWatch } from './process/idle-watch.ts';
import type { Swapped, TableEntry } from './process/requests.ts';
import type { ResidentContext, ResidentHost } from './process/resident-host.ts';
import { SegmentTasks } from './process/segment-tasks.ts';
import { StepWatch } from './process/step-watch.ts';

/** What `device/resident.cuh` defines under the same names: threads of a block, its shared memory, warps that admit at most, ... */
export const KERNEL_LIMITS = {
  BLOCK_THREADS: 256,
  PARAMS_BYTES: 4096,
  SHARED_BYTES: 32_768,
  MAX_SHARDS: 6,
  NEAR_BYTES: 1024,
} as const;
/** Bytes of the structures that it and we both know. */
export const KERNEL_SIZES = {
  Mailbox: 6272,
  Progress: 16,
  Changes: 16,
  FunctionEntry: 16,
  SlotEntry: 8,
  ResidentArguments: 144,
  Dispatching: 8272,
  Shard: 4240,
} as const;
/** `Changes::leave`. */
const LEAVE_AT = 8;
/** A block's dynamic shared memory. */
const DYNAMIC_BYTES = 2 * KERNEL_LIMITS.PARAMS_BYTES + KERNEL_LIMITS.SHARED_BYTES;
/** As long as a 32-bit number of milliseconds can tell: weeks. */
const NO_BUDGET = 2 ** 32 - 1;
/** The most device memory that is taken for parameter blocks. */
const MOST_NEAR_BYTES = 256 << 20;
/**
 * Stack a thread that an injected operator may use (GPUOS_OPERATOR_STACK_BYTES of `device/operators.cuh`). Not what the
 * driver says of the kernel: that has the kernel's own frames in it.
 */
export const OPERATOR_STACK_BYTES = 512;

/** What the host says of the kernel that is to start; JSON. */
export interface ResidentStart {
  readonly layout: SegmentLayout;
  /** Worker blocks; the dispatcher's comes on top. Default: one for each multiprocessor but one. */
  readonly workers?: number;
  /** Slot of the operator that changes the table. */
  readonly controlSlot: number;
  /** Slot of the interpreter of fused programs. */
  readonly interpreterSlot: number;
  /** How long a worker may be at one task. Default: for ever. */
  readonly taskBudgetMs?: number;
}

/** What the host then knows; JSON. */
export interface ResidentStarted {
  readonly workers: number;
  /** Registers a thread that the kernel was linked with: what an injected operator may use. */
  readonly registers: number;
  /** Stack a thread that an injected operator may use. */
  readonly stackBytes: number;
  /** The table of functions: {address, data} of 8 bytes each. */
  readonly functions: Address;
  /** Address of the interpreter's code. */
  readonly interpreter: Address;
}

/**
 * Warps that admit: one for each queue, as long as there are warps and the dispatcher's shared memory holds what each of them
 * knows of all workers' mailboxes.
 */
export function shardsFor(queues: number, workers: number): number {
  const room = DYNAMIC_BYTES - Math.ceil(KERNEL_SIZES.Dispatching / 16) * 16;
  const fit = Math.floor(room / (KERNEL_SIZES.Shard + 8 * workers));
  if (fit < 1) throw new GpuosError('GPUOS_BAD_OPTION', `${workers} worker blocks are more than the dispatcher has memory for.`);
  return Math.min(queues, KERNEL_LIMITS.MAX_SHARDS, fit);
}

/** The resident kernel on a device. It lives in the process that has the context. */
export class ResidentKernel implements ResidentHost {
  readonly #context: ResidentContext;
  readonly #words: Int32Array;
  #stream: Address = 0;
  #leave: Address = 0;
  #running: Running | undefined;
  #replacement: Replacement | undefined;
  #layout: SegmentLayout | undefined;
  #steps: StepWatch | undefined;
  #idle: IdleWatch | undefined;

  constructor(context: ResidentContext) {
    this.#context = context;
    this.#words = new Int32Array(context.segment.view);
  }

  /**
   * Loads and launches it; the context must be current. Nothing of this process may be loaded onto the device from
   * here to `stop()`: loading a module waits for running kernels to end.
   * @throws CudaError, GPUOS_OUT_OF_MEMORY
   */
  start(options: Readonly<Record<string, unknown>>, image: Uint8Array | undefined): Readonly<Record<string, unknown>> {
    const { layout, controlSlot, interpreterSlot, workers: asked, taskBudgetMs = NO_BUDGET } = options as unknown as ResidentStart;
    const { driver, device, segment, allocate } = this.#context;
    const { queues, slots, firstSequence } = layout;
    const workers = Math.min(asked ?? driver.deviceAttribute(device, 'sms') - 1, MOST_WORKERS);
    const shards = shardsFor(queues, workers);
    const loaded = new LoadedImage(driver, image as Uint8Array);
    this.#stream = driver.createStream();
    const zeroed = (bytes: number): Address => {
      const address = allocate(bytes);
      driver.fillBytes(address, 0, bytes, this.#stream);
      return address;
    };
    const mailboxes = zeroed(shards * workers * KERNEL_SIZES.Mailbox);
    const progress = zeroed(queues * slots * KERNEL_SIZES.Progress);
    const completions = allocate(queues * slots * 8);
    const marks = allocate(queues * 4);
    const heads = allocate(queues * 4);
    const table = zeroed(OPERATOR_SLOTS * KERNEL_SIZES.SlotEntry);
    const functions = zeroed(FUNCTION_SLOTS * KERNEL_SIZES.FunctionEntry);
    const killed = zeroed(OPERATOR_SLOTS * 4);
    const steps = zeroed(workers * 8);
    const changes = zeroed(KERNEL_SIZES.Changes);
    this.#leave = changes + LEAVE_AT;
    const before = Uint32Array.from({ length: queues * slots * 2 }, (_, i) =>
      i % 2 === 0 ? 0 : completionBefore(firstSequence, (i >> 1) & (slots - 1), slots),
    );
    driver.copyToDevice(completions, before, before.byteLength, this.#stream);
    const first = new Uint32Array(queues).fill(firstSequence);
    driver.copyToDevice(marks, first, queues * 4, this.#stream);
    driver.copyToDevice(heads, first, queues * 4, this.#stream);

    const argument = new DataView(new ArrayBuffer(KERNEL_SIZES.ResidentArguments));
    const nearBytes = queues * slots * KERNEL_LIMITS.NEAR_BYTES;
    const near = nearBytes <= MOST_NEAR_BYTES ? allocate(nearBytes) : 0;
    const own = [mailboxes, progress, completions, marks, heads, table, functions, killed, near, this.#leave, steps, changes];
    [segment.deviceAddress, ...own].forEach((address, i) => {
      argument.setBigUint64(8 * i, BigInt(address), true);
    });
    const { queueRecords, rings, queueStride, workerRecords } = layout;
    [workers, queues, slots, shards, queueRecords, rings, queueStride, controlSlot, workerRecords, taskBudgetMs].forEach((value, i) => {
      argument.setUint32(104 + 4 * i, value, true);
    });
    // Its own functions have the first entries: slot i has function i + 1, and behind the last stands one that is never called.
    const built = new BigUint64Array(2 * (interpreterSlot + 3));
    loaded.fillTable(argument, this.#stream);
    driver.copyToHost(built, functions, built.byteLength, this.#stream);
    driver.synchronizeStream(this.#stream);
    const interpreterWord = 2 * (interpreterSlot + 1);
    const shape = {
      grid: [workers + 1],
      block: [KERNEL_LIMITS.BLOCK_THREADS],
      sharedBytes: DYNAMIC_BYTES,
      stream: this.#stream,
      cooperative: true,
    } as const;
    this.#running = { image: loaded, argument, shape };
    this.#replacement = new Replacement({
      driver,
      words: this.#words,
      stream: this.#stream,
      leave: this.#leave,
      functions,
      interpreterWord,
      own: built,
      changes,
      allocate,
    });
    this.#layout = layout;
    this.#idle = new IdleWatch(new SegmentTasks(this.#words, layout));
    if (taskBudgetMs !== NO_BUDGET) this.#steps = this.#stepWatch(layout, steps, workers, taskBudgetMs);
    loaded.launch(shape, argument);
    return {
      workers,
      registers: loaded.registers,
      stackBytes: OPERATOR_STACK_BYTES,
      functions,
      interpreter: Number(built[interpreterWord]),
    } satisfies ResidentStarted;
  }

  /** Whether the kernel has left. @throws CudaError if it did so by a fault */
  get left(): boolean {
    return this.#context.driver.streamDone(this.#stream);
  }

  get block(): BlockShape {
    if (this.#running === undefined) throw new GpuosError('GPUOS_INTERNAL', 'No kernel was started.');
    const { registers, staticSharedBytes } = this.#running.image;
    return { threads: KERNEL_LIMITS.BLOCK_THREADS, registers, sharedBytes: DYNAMIC_BYTES + staticSharedBytes };
  }

  #stepWatch(layout: SegmentLayout, steps: Address, workers: number, budgetMs: number): StepWatch {
    const { driver, segment } = this.#context;
    // The kernel's own stream is the kernel's until it leaves.
    const side = driver.createStream(driver.streamPriorities().greatest);
    const words = new BigUint64Array(segment.view, layout.steps, workers);
    return new StepWatch(this.#words, layout, budgetMs, () => {
      driver.copyToHost(segment.address + layout.steps, steps, workers * 8, side);
      driver.synchronizeStream(side);
      return words;
    });
  }

  watch(): void {
    this.#steps?.look(performance.now());
  }

  get mayTidy(): boolean {
    return this.#replacement !== undefined && this.#idle !== undefined && this.#replacement.holds && this.#idle.look(performance.now());
  }

  tidy(meanwhile: () => void): void {
    if (this.#running !== undefined) this.#replacement?.tidy(this.#running, meanwhile);
  }

  explain(fault: CudaError): CudaError {
    return this.#layout === undefined ? fault : blame(this.#words, this.#layout, fault);
  }

  /** Launches it again where it stood: all that was admitted is complete, and the rings hold the rest. */
  relaunch(): void {
    const { driver } = this.#context;
    driver.fillBytes(this.#leave, 0, 4, this.#stream);
    Atomics.store(this.#words, QUIT_WORD, 0);
    this.#running?.image.launch(this.#running.shape, this.#running.argument);
  }

  swap(image: Uint8Array, symbols: readonly string[], drainMs: number, meanwhile: () => void): Swapped {
    if (this.#running === undefined || this.#replacement === undefined) throw new GpuosError('GPUOS_INTERNAL', 'No kernel was started.');
    const { running, pause } = this.#replacement.put(this.#running, image, symbols, drainMs, meanwhile);
    this.#running = running;
    return pause === undefined ? { swapped: false } : { swapped: true, ...pause };
  }

  enter(entries: readonly TableEntry[]): void {
    this.#replacement?.enter(entries);
  }

  /** Publishes, behind what is on the stream, how a task ended whose work was done beside the kernel. */
  endExternal(queue: number, sequence: number, status: number, stream: Address): void {
    this.#running?.image.endExternal(this.#running.argument, [queue, sequence, status], stream);
  }

  stepAside(queue: number, sequence: number, work: (stream: Address) => void): { readonly error?: CudaError } | undefined {
    if (this.#running === undefined) throw new GpuosError('GPUOS_INTERNAL', 'No kernel was started.');
    const { image, argument, shape } = this.#running;
    if (Atomics.compareExchange(this.#words, QUIT_WORD, QUIT.no, QUIT.aside) !== QUIT.no) return undefined;
    let error: CudaError | undefined;
    try {
      work(this.#stream);
    } catch (cause) {
      if (isFatal(cause) || !(cause instanceof CudaError)) throw cause;
      error = cause;
    }
    image.endExternal(argument, [queue, sequence, error === undefined ? STATUS.OK : STATUS.FAILED], this.#stream, true);
    image.launch(shape, argument);
    return error === undefined ? {} : { error };
  }

  /** Tells the kernel to leave and waits until it has. Its memory goes with the process. @throws CudaError if it left by a fault */
  stop(): void {
    const { driver } = this.#context;
    Atomics.store(this.#words, QUIT_WORD, QUIT.now);
    driver.synchronizeStream(this.#stream);
    driver.destroyStream(this.#stream);
    this.#replacement?.unload();
    this.#running?.image.unload();
  }
}

/** For the device process: see `process/resident-host.ts`. */
export const createResidentHost = (context: ResidentContext): ResidentHost => new ResidentKernel(context);
