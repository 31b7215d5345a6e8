import { control, workerRecord } from '../../abi/records.ts';
import { CONTROL_ADDRESS } from '../../abi/status.ts';
import { GpuosError } from '../../errors.ts';
import type { Program } from '../../ops/program.ts';
import type {
  Artifact,
  Device,
  HelpResult,
  KernelCall,
  MemorySpace,
  MemoryViews,
  QueueAddresses,
  SubmitChange,
  WorkerStatus,
} from '../backend.ts';
import { acceptsHalvesOnGpu, acceptsStrides, GPU_KERNELS, KERNELS, lower, lowerCopy } from '../lowering/index.ts';
import { BYTECODE_BYTES, type Functions, type InjectionMode, signatureOf } from './injection/functions.ts';
import { type Injection, type StartedKernel, startKernel } from './injection/start.ts';
import { planSegment } from './layout.ts';
import { KERNEL } from './process/channel.ts';
import type { DeviceProcess } from './process/device-process.ts';
import { keepFreedMemory } from './process/libc.ts';
import type { Aside, Pause } from './process/requests.ts';
import { SharedSegment } from './process/segment.ts';
import { Products, type ProductsMode } from './products.ts';

/** Device functions of the resident kernel itself; they stand before the operators' in the table, and the interpreter behind them. */
const KERNEL_FUNCTIONS = ['controlTable', 'chain', 'external'] as const;
const NAMES: readonly string[] = [...KERNEL_FUNCTIONS, ...KERNELS, ...GPU_KERNELS, 'interpret'];
/** What host and device share, rings and all: less is tried where so much is refused. */
const SHARED_MIB = [256, 128, 64, 32] as const;
const MIB = 2 ** 20;
const PAGE_BYTES = 4096;
/** How long the start may take, where a driver has many GPUs to wake. */
const START_MS = 60_000;
/** One of so many questions whether the device is lost looks at its process; a power of two. */
const LOOKS = 16;
/** Of the blocks, by what the kernel is doing; one that is being replaced comes back. */
const STATES: Readonly<Record<number, WorkerStatus['state']>> = { [KERNEL.running]: 'running', [KERNEL.relaunching]: 'starting' };
/** The longest that a waiting host sleeps before it looks again. */
const LOOK_MS = 0.05;

/** What a block counts. */
type Counters = Required<Pick<WorkerStatus, 'tiles' | 'tasks' | 'failed' | 'parks'>>;

export interface CudaDeviceOptions {
  readonly queues: number;
  readonly slots: number;
  readonly firstSequence: number;
  /** Memory for tensors. */
  readonly memoryMib: number;
  /** How long a task may run: it ends between two of its tiles, or with the device. Default: for ever. */
  readonly taskBudgetMs?: number;
  readonly cudaHome?: string | undefined;
  /** When fused programs are compiled: while they run interpreted, or before they run. */
  readonly compile: 'background' | 'first';
  /** How new code gets into the running kernel. Default `auto`: `direct` if its self-test passes, else `relaunch`. */
  readonly inject?: 'auto' | InjectionMode;
  readonly cacheFolder: string;
  /** Whether large products are done beside the kernel, by cuBLAS. Default: no. */
  readonly products?: ProductsMode;
  /** Whether the kernel steps aside for them. Default `auto`: for long ones that nobody else waits for. */
  readonly aside?: Aside;
}

/**
 * An NVIDIA GPU: one resident kernel, in a process of its own, which this one speaks to through memory that both and the
 * device see. Calls into the driver are that process's; submitting and completing tasks need none.
 */
export class CudaDevice implements Device {
  readonly kind = 'cuda';
  readonly name: string;
  /** Worker blocks. (The host can do nothing for them but wait.) */
  readonly workers: number;
  readonly queues: readonly QueueAddresses[];
  /** A block is about as many times faster than the core that costs are estimated for as it takes longer to start a tile. */
  readonly tileNs = 1500;
  readonly memory: MemorySpace;
  readonly hostMemory: MemorySpace;
  readonly viewBase: number;
  readonly kernels: ReadonlyMap<string, number> = new Map(NAMES.map((name, slot) => [name, slot]));
  readonly lower: typeof lower = (...of) => this.#route(lower(...of));
  readonly ordinary?: Products;
  readonly acceptsStrides = acceptsStrides;
  readonly acceptsHalves = acceptsHalvesOnGpu;
  readonly lowerCopy = lowerCopy;
  readonly epoch = 0;
  readonly losses = 0;
  readonly #segment: SharedSegment;
  readonly #views: MemoryViews;
  readonly #process: DeviceProcess;
  readonly #functions: Functions;
  readonly #injection: Injection;
  readonly #sleeper = new Int32Array(new SharedArrayBuffer(4));
  readonly #workerRecords: number;
  #counters: readonly Counters[] = [];
  #stopped = false;
  #released = false;
  #lost: string | undefined;
  #asked = 0;

  /** @throws GPUOS_CUDA_UNAVAILABLE, GPUOS_CUDA_TOO_OLD, GPUOS_OUT_OF_MEMORY, GPUOS_BAD_OPTION, CudaError */
  constructor(options: CudaDeviceOptions) {
    const layout = planSegment(options);
    keepFreedMemory();
    // Behind what the kernel knows of come programs for its interpreter on their way to it, then the rest.
    const rest = layout.end + BYTECODE_BYTES;
    this.#segment = shareMemory(rest);
    this.#workerRecords = layout.workerRecords;
    const buffer = this.#segment.view;
    this.#views = { u32: new Uint32Array(buffer), i32: new Int32Array(buffer), f32: new Float32Array(buffer), bytes: buffer.byteLength };
    const bytes = options.memoryMib * MIB;
    const { products: mode = 'off', aside = 'auto' } = options;
    let kernel: StartedKernel | undefined;
    try {
      kernel = startKernel({
        segment: this.#segment,
        layout,
        staging: layout.end,
        bytes,
        names: NAMES,
        cudaHome: options.cudaHome,
        cacheFolder: options.cacheFolder,
        tiered: options.compile === 'background',
        inject: options.inject ?? 'auto',
        taskBudgetMs: options.taskBudgetMs,
        startLimitMs: START_MS,
        more: mode === 'off' ? {} : { products: { layout, cacheFolder: options.cacheFolder, insist: mode === 'always', aside } },
      });
      this.#process = kernel.process;
      this.#functions = kernel.functions;
      this.#injection = kernel.injection;
      this.memory = fixedSpace(kernel.memory, kernel.memory + bytes);
      const { info } = this.#process;
      this.viewBase = info.segmentAddress;
      this.hostMemory = fixedSpace(this.viewBase + rest, this.viewBase + this.#segment.bytes);
      this.queues = layout.queueList.map((queue) => ({ ...queue, slots: layout.slots }));
      const { products: report } = kernel.answer;
      if (mode !== 'off' && report !== undefined) {
        const slots = { externalSlot: this.#slot('external'), matmulSlot: this.#slot('matmul') };
        this.ordinary = new Products(this.#process, report, { mode, layout, base: this.viewBase, ...slots });
      }
      const { workers } = kernel.started;
      this.workers = workers;
      const [major, minor] = info.computeCapability;
      this.name = `${info.name}, sm_${major}${minor}, ${workers} worker blocks`;
    } catch (error) {
      void kernel?.process.stop();
      this.#segment.close();
      throw error;
    }
  }

  #route(call: KernelCall): KernelCall {
    return this.ordinary?.route(call) ?? call;
  }

  #slot(name: string): number {
    return this.kernels.get(name) as number;
  }

  /** @throws GPUOS_SHUT_DOWN once the memory is given back: who is late must not read zeros for values */
  views(): MemoryViews {
    if (this.#released) throw new GpuosError('GPUOS_SHUT_DOWN', 'The memory of this device has been given back.');
    return this.#views;
  }

  ringDoorbell(): void {}

  parked(): number {
    return 0;
  }

  help(): HelpResult {
    this.#functions.whileWaiting?.();
    return { ran: 0, found: 'nothing' };
  }

  sleep(_queue: number, _mark: number, ms: number): void {
    Atomics.wait(this.#sleeper, 0, 0, Math.min(ms, LOOK_MS));
  }

  async sleepAsync(): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, 1));
  }

  compile(program: Program): Artifact {
    return this.#functions.compile(program);
  }

  signature(program: Program): string {
    return signatureOf(program);
  }

  install(artifact: Artifact): { fn: number; epoch: number } {
    return { fn: this.#functions.install(artifact), epoch: 0 };
  }

  uninstall(fn: number): void {
    this.#functions.uninstall(fn);
  }

  setChanges(submit: SubmitChange): void {
    this.#functions.setChanges?.(submit);
  }

  /**
   * Whether the blocks are there, looked at now, and what each has done as of when it last wrote that down: when it had
   * nothing to do for a moment, or had run a thousand tasks since.
   */
  status(): readonly WorkerStatus[] {
    this.#lost ??= this.#stopped ? undefined : this.#process.lost;
    const state = this.#lost !== undefined ? 'dead' : (STATES[this.#process.kernel] ?? 'left');
    // The memory goes with the device.
    if (!this.#stopped) this.#counters = Array.from({ length: this.workers }, (_, i) => this.#countersOf(i + 1));
    return this.#counters.map((counters, i) => ({ worker: i + 1, state, ...counters }));
  }

  #countersOf(worker: number): Counters {
    const at = this.#workerRecords + worker * workerRecord.size;
    const word = (address: number): number => Atomics.load(this.#views.u32, address >> 2);
    const long = (offset: number): number => word(at + offset) + word(at + offset + 4) * 2 ** 32;
    const o = workerRecord.offset;
    return { tiles: long(o.tiles), tasks: long(o.tasks), failed: long(o.failed), parks: long(o.parks) };
  }

  /** Fused kernels that are being compiled while they run interpreted, and why one last could not be placed. */
  get compilation(): { readonly compiling: number; readonly failed: string | undefined } {
    return this.#functions.state;
  }

  /** How new code gets into the running kernel and why so; by `relaunch`, how often it was replaced, and how long it was away the last time, and with what. */
  get injection(): Injection & { readonly relaunches: number } & Pause {
    const { count, ...pause } = this.#process.swaps;
    return { ...this.#injection, relaunches: count, ...pause };
  }

  get lost(): string | undefined {
    // Asked for every operation and in every turn of a wait; each look costs about a microsecond.
    if (this.#lost !== undefined || (++this.#asked & (LOOKS - 1)) !== 0 || this.#stopped) return this.#lost;
    this.#lost = this.#process.lost;
    return this.#lost;
  }

  /** After so many tiles a block pauses for a tenth of a millisecond: its multiprocessor is then that of the ordinary kernels beside it. */
  setYieldEvery(tiles: number): void {
    if (!this.#stopped) Atomics.store(this.#views.i32, (CONTROL_ADDRESS + control.offset.yieldEvery) >> 2, tiles);
  }

  async stop(): Promise<void> {
    if (this.#stopped) return;
    this.#stopped = true;
    await this.#process.stop();
    this.#released = true;
    this.#segment.close();
  }
}

/** @throws GPUOS_OUT_OF_MEMORY where even the least is refused */
function shareMemory(least: number): SharedSegment {
  for (const [i, mib] of SHARED_MIB.entries()) {
    try {
      return SharedSegment.create(Math.ceil((least + mib * MIB) / PAGE_BYTES) * PAGE_BYTES);
    } catch (error) {
      if (i === SHARED_MIB.length - 1 || !(error instanceof GpuosError) || error.code !== 'GPUOS_OUT_OF_MEMORY') throw error;
    }
  }
  throw new GpuosError('GPUOS_INTERNAL', 'No size of shared memory was tried.');
}

/** Memory that is there from the start and does not grow. */
function fixedSpace(start: number, end: number): MemorySpace {
  return {
    start,
    end,
    limit: end,
    ensure: (wanted) => {
      if (wanted <= end) return;
      const mib = (bytes: number): string => `${(bytes / MIB).toFixed(1)} MiB`;
      throw new GpuosError('GPUOS_OUT_OF_MEMORY', `${mib(wanted - start)} are needed; there are ${mib(end - start)}.`);
    },
  };
}
