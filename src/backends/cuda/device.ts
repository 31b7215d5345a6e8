import { FUNCTION_SLOTS } from '../../abi/status.ts';
import { GpuosError } from '../../errors.ts';
import type { Program } from '../../ops/program.ts';
import type { Artifact, Device, HelpResult, MemorySpace, MemoryViews, QueueAddresses, WorkerStatus } from '../backend.ts';
import { acceptsStrides, KERNELS, lower, lowerCopy } from '../lowering/index.ts';
import { FunctionTable } from './function-table.ts';
import { ImageCache } from './image-cache.ts';
import { BYTECODE_BYTES } from './injection/functions.ts';
import { planSegment, type SegmentLayout, writeSegment } from './layout.ts';
import { KERNEL } from './process/channel.ts';
import { DeviceProcess } from './process/device-process.ts';
import { SharedSegment } from './process/segment.ts';
import type { ResidentStart, ResidentStarted } from './resident.ts';
import { RESIDENT_OPTIONS, residentSource } from './source.ts';

/** Device functions of the resident kernel itself; they stand before the operators' in the table, and the interpreter behind them. */
const KERNEL_FUNCTIONS = ['controlTable', 'chain', 'external'] as const;
const NAMES: readonly string[] = [...KERNEL_FUNCTIONS, ...KERNELS, 'interpret'];
/** What host and device share, rings and all: less is tried where so much is refused. */
const SHARED_MIB = [256, 128, 64, 32] as const;
const MIB = 2 ** 20;
const PAGE_BYTES = 4096;
/** One of so many questions whether the device is lost looks at its process; a power of two. */
const LOOKS = 16;
/** The longest that a waiting host sleeps before it looks again. */
const LOOK_MS = 0.05;

export interface CudaDeviceOptions {
  readonly queues: number;
  readonly slots: number;
  readonly firstSequence: number;
  /** Memory for tensors. */
  readonly memoryMib: number;
  readonly cudaHome?: string | undefined;
  /** When fused programs are compiled: while they run interpreted, or before they run. */
  readonly compile: 'background' | 'first';
  readonly cacheFolder: string;
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
  readonly lower = lower;
  readonly acceptsStrides = acceptsStrides;
  readonly lowerCopy = lowerCopy;
  readonly epoch = 0;
  readonly losses = 0;
  readonly #segment: SharedSegment;
  readonly #views: MemoryViews;
  readonly #process: DeviceProcess;
  readonly #functions: FunctionTable;
  readonly #sleeper = new Int32Array(new SharedArrayBuffer(4));
  #stopped = false;
  #lost: string | undefined;
  #asked = 0;

  /** @throws GPUOS_CUDA_UNAVAILABLE, GPUOS_CUDA_TOO_OLD, GPUOS_OUT_OF_MEMORY, GPUOS_BAD_OPTION, CudaError */
  constructor(options: CudaDeviceOptions) {
    const layout = planSegment(options);
    this.#segment = shareMemory(layout);
    const buffer = this.#segment.view;
    this.#views = { u32: new Uint32Array(buffer), i32: new Int32Array(buffer), f32: new Float32Array(buffer), bytes: buffer.byteLength };
    writeSegment(this.#views.u32, layout);
    try {
      this.#process = DeviceProcess.start({
        segment: this.#segment,
        cudaHome: options.cudaHome,
        hostModule: new URL('resident.js', import.meta.url).href,
      });
    } catch (error) {
      this.#segment.close();
      throw error;
    }
    try {
      const { info } = this.#process;
      this.viewBase = info.segmentAddress;
      this.hostMemory = fixedSpace(this.viewBase + layout.end, this.viewBase + this.#segment.bytes);
      this.queues = layout.queueList.map((queue) => ({ ...queue, slots: layout.slots }));
      const cache = new ImageCache(options.cacheFolder);
      const image = this.#residentImage(cache);
      const bytes = options.memoryMib * MIB;
      const { address } = this.#process.call('allocate', { bytes });
      this.memory = fixedSpace(address, address + bytes);
      // All memory before the kernel: tools that check a kernel's accesses know of what is there when it starts.
      const bytecode = this.#process.call('allocate', { bytes: BYTECODE_BYTES }).address;
      const start: ResidentStart = { layout, controlSlot: this.#slot('controlTable'), interpreterSlot: this.#slot('interpret') };
      const { started } = this.#process.call('start', { options: { ...start }, payload: image });
      const { workers, registers, stackBytes, functions, interpreter } = started as unknown as ResidentStarted;
      this.workers = workers;
      const [major, minor] = info.computeCapability;
      this.name = `${info.name}, sm_${major}${minor}, ${workers} worker blocks`;
      this.#functions = new FunctionTable(this.#process, cache, {
        table: functions,
        budget: { registers, stackBytes },
        // Slot i has function i + 1; behind the last of them stands the one that is never called.
        first: NAMES.length + 2,
        limit: FUNCTION_SLOTS,
        interpreter,
        bytecode,
        tiered: options.compile === 'background',
      });
    } catch (error) {
      void this.#process.stop();
      this.#segment.close();
      throw error;
    }
  }

  #slot(name: string): number {
    return this.kernels.get(name) as number;
  }

  /** The linked kernel: compiled once for a device's architecture and a compiler. */
  #residentImage(cache: ImageCache): Uint8Array {
    const { source, headers } = residentSource();
    const { computeCapability, nvrtcVersion } = this.#process.info;
    const key = ImageCache.key(['resident', source, headers, RESIDENT_OPTIONS, computeCapability, nvrtcVersion]);
    const known = cache.read(key);
    if (known !== undefined) return known;
    const ask = { source, headers, name: 'resident.cu', options: RESIDENT_OPTIONS, link: true };
    const { payload } = this.#process.call('compile', ask, { limitMs: 300_000 });
    cache.write(key, payload);
    return payload;
  }

  views(): MemoryViews {
    return this.#views;
  }

  ringDoorbell(): void {}

  parked(): number {
    return 0;
  }

  help(): HelpResult {
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
    return JSON.stringify(program);
  }

  install(artifact: Artifact): { fn: number; epoch: number } {
    return { fn: this.#functions.install(artifact), epoch: 0 };
  }

  uninstall(fn: number): void {
    this.#functions.uninstall(fn);
  }

  /** Whether the blocks are there, looked at now; they keep no counters of their own yet. */
  status(): readonly WorkerStatus[] {
    this.#lost ??= this.#stopped ? undefined : this.#process.lost;
    const state = this.#lost !== undefined ? 'dead' : this.#process.kernel === KERNEL.running ? 'running' : 'left';
    return Array.from({ length: this.workers }, (_, i) => ({ worker: i + 1, state }));
  }

  /** Fused kernels that are being compiled while they run interpreted, and why one last could not be placed. */
  get compilation(): { readonly compiling: number; readonly failed: string | undefined } {
    return this.#functions.state;
  }

  get lost(): string | undefined {
    // Asked for every operation and in every turn of a wait; each look costs about a microsecond.
    if (this.#lost !== undefined || (++this.#asked & (LOOKS - 1)) !== 0 || this.#stopped) return this.#lost;
    this.#lost = this.#process.lost;
    return this.#lost;
  }

  /** @throws GPUOS_NOT_ON_DEVICE but for 0: the blocks do not give way yet */
  setYieldEvery(tiles: number): void {
    if (tiles !== 0) throw new GpuosError('GPUOS_NOT_ON_DEVICE', 'Workers of the cuda device cannot give way to others yet.');
  }

  async stop(): Promise<void> {
    if (this.#stopped) return;
    this.#stopped = true;
    await this.#process.stop();
    this.#segment.close();
  }
}

/** @throws GPUOS_OUT_OF_MEMORY where even the least is refused */
function shareMemory(layout: SegmentLayout): SharedSegment {
  for (const [i, mib] of SHARED_MIB.entries()) {
    try {
      return SharedSegment.create(Math.ceil((layout.end + mib * MIB) / PAGE_BYTES) * PAGE_BYTES);
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
