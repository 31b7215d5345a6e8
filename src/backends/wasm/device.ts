import { availableParallelism } from 'node:os';
import { Worker } from 'node:worker_threads';
import { control, operatorSlot, queueRecord, workerRecord } from '../../abi/records.ts';
import { CONTROL_ADDRESS, STATUS } from '../../abi/status.ts';
import type { Program } from '../../ops/program.ts';
import type { Artifact, Device, HelpResult, MemorySpace, MemoryViews, QueueAddresses, WorkerStatus } from '../backend.ts';
import { compileProgram, programSignature } from './codegen/index.ts';
import { CodeStore, type Installer } from './code-store.ts';
import { builtFile, type Executor, instantiate, loadModule } from './instance.ts';
import { type Layout, planLayout, writeLayout } from './layout.ts';
import { acceptsHalves, acceptsStrides, KERNELS, lower, lowerCopy, lowerPack, packedSize } from '../lowering/index.ts';
import { WasmMemory } from './memory.ts';
import { SUPERVISION, type SupervisorStart } from './supervisor.ts';

/** Device functions of the executor itself; they stand before the operators' kernels in every table. */
const EXECUTOR_KERNELS = ['controlTable', 'chain'] as const;
const WORKER_STATES = ['starting', 'running', 'parked', 'yielded', 'dead', 'left'] as const;
/** One empty poll of the executor's loop takes about this long, with the pause after it; only a scale for `spinUs`. */
const POLL_NS = 100;

export interface WasmDeviceOptions {
  /** Workers beside the host; undefined: one a core but the host's. May be 0: the host does all the work. */
  readonly workers?: number | undefined;
  readonly queues: number;
  readonly slots: number;
  readonly firstSequence: number;
  readonly memoryMib: number;
  readonly spinUs: number;
  readonly taskBudgetMs: number;
  /** For tests: the module with fault points, and the plan {point, passes}. */
  readonly fault?: SharedArrayBuffer;
  /** Called on the host's event loop when a worker was lost. */
  readonly onWorkerLost?: (event: { worker: number; tiles: number; reason: string | undefined }) => void;
}

/** The embedded device: worker threads, each inside one WebAssembly loop over shared memory. */
export class WasmDevice implements Device {
  readonly kind = 'wasm';
  readonly name: string;
  readonly workers: number;
  readonly queues: readonly QueueAddresses[];
  readonly tileNs = 6000;
  readonly memory: MemorySpace;
  readonly hostMemory: MemorySpace;
  readonly viewBase = 0;
  readonly kernels: ReadonlyMap<string, number>;
  readonly lower = lower;
  readonly acceptsStrides = acceptsStrides;
  readonly acceptsHalves = acceptsHalves;
  readonly lowerCopy = lowerCopy;
  readonly packing = { elements: packedSize, lower: lowerPack };
  readonly #memory: WasmMemory;
  readonly #layout: Layout;
  readonly #code: CodeStore;
  readonly #executor: Executor;
  readonly #installer: Installer;
  readonly #supervisor: Worker | undefined;
  readonly #supervision: Int32Array<SharedArrayBuffer>;
  #control: Int32Array;
  #lost: string | undefined;
  #stopped = false;

  constructor(options: WasmDeviceOptions) {
    this.workers = options.workers ?? Math.max(0, availableParallelism() - 1);
    this.name = `embedded WebAssembly device, ${this.workers} worker${this.workers === 1 ? '' : 's'} and the host`;
    const layoutOptions = {
      queues: options.queues,
      slots: options.slots,
      workers: this.workers + 1,
      firstSequence: options.firstSequence,
      spinLimit: Math.max(1, Math.round((options.spinUs * 1000) / POLL_NS)),
    };
    this.#layout = planLayout(layoutOptions);
    // First of all that is shared: it says so when nothing can be.
    this.#memory = new WasmMemory(options.memoryMib, this.#layout.end);
    this.#supervision = new Int32Array(new SharedArrayBuffer(16));
    writeLayout(this.#memory.views.u32, this.#layout, layoutOptions);
    this.queues = this.#layout.queues;
    this.memory = this.hostMemory = spaceOf(this.#memory, this.#layout.end);
    this.#control = new Int32Array(this.#memory.memory.buffer);

    const names = [...EXECUTOR_KERNELS, ...KERNELS];
    this.#code = new CodeStore(names.length + 1);
    const source = {
      memory: this.#memory.memory,
      module: loadModule(options.fault !== undefined),
      code: this.#code.buffer,
      kernels: names,
    };
    const { executor, installer } = instantiate(source);
    this.#executor = executor;
    this.#installer = installer;

    // The built-in functions stand in the first slots of the operator table: slot i holds function i + 1.
    const { u32 } = this.#memory.views;
    names.forEach((_, slot) => {
      const at = (this.#layout.operatorTable + slot * operatorSlot.size) >> 2;
      u32[at + (operatorSlot.offset.fn >> 2)] = slot + 1;
      u32[at + (operatorSlot.offset.version >> 2)] = 1;
    });
    this.kernels = new Map(names.map((name, slot) => [name, slot]));

    if (this.workers > 0) {
      const start: SupervisorStart = {
        ...source,
        workers: this.workers,
        taskBudgetMs: options.taskBudgetMs,
        supervision: this.#supervision.buffer,
        ...(options.fault === undefined ? {} : { fault: options.fault }),
      };
      const supervisor = new Worker(builtFile('supervisor.js'), { workerData: start, execArgv: [] });
      supervisor.on('message', (message: { lost?: string; workerLost?: number; tiles?: number; reason?: string }) => {
        if (message.lost !== undefined) this.#lost = message.lost;
        if (message.workerLost !== undefined) {
          options.onWorkerLost?.({ worker: message.workerLost, tiles: message.tiles ?? 0, reason: message.reason });
        }
      });
      supervisor.on('error', (error) => this.#lose(`the supervisor failed: ${error.message}`));
      supervisor.on('exit', () => {
        if (!this.#stopped) this.#lose('the supervisor thread ended');
      });
      // A program that has nothing else to do ends; the resident threads must not keep it alive.
      supervisor.unref();
      this.#supervisor = supervisor;
    }
  }

  #lose(reason: string): void {
    this.#lost ??= reason;
    Atomics.store(this.#supervision, SUPERVISION.LOST, 1);
  }

  get lost(): string | undefined {
    if (this.#lost === undefined && Atomics.load(this.#supervision, SUPERVISION.LOST) !== 0)
      this.#lost = 'its workers cannot be kept running';
    return this.#lost;
  }

  get losses(): number {
    return Atomics.load(this.#supervision, SUPERVISION.LOSSES);
  }

  views(): MemoryViews {
    return this.#memory.views;
  }

  ringDoorbell(count: number): void {
    if (Atomics.load(this.#control, (CONTROL_ADDRESS + control.offset.parked) >> 2) === 0) return;
    const bell = (CONTROL_ADDRESS + control.offset.doorbell) >> 2;
    Atomics.add(this.#control, bell, 1);
    Atomics.notify(this.#control, bell, count);
  }

  parked(): number {
    return Atomics.load(this.#control, (CONTROL_ADDRESS + control.offset.parked) >> 2);
  }

  help(limit: number, shared: boolean): HelpResult {
    let result: number;
    try {
      result = this.#executor.help(0, limit, shared ? 1 : 0);
    } catch (error) {
      if (this.#executor.failTile(0, STATUS.TRAPPED) === 0) throw error;
      return { ran: 1, found: 'nothing' };
    }
    const found = result & 0xffff;
    return { ran: result >>> 16, found: found === 0 ? 'nothing' : found === 1 ? 'waiting' : 'left' };
  }

  sleep(queue: number, mark: number, ms: number): void {
    const { at, waiting } = this.#markWords(queue);
    Atomics.add(this.#control, waiting, 1);
    Atomics.wait(this.#control, at, mark | 0, ms);
    Atomics.sub(this.#control, waiting, 1);
  }

  async sleepAsync(queue: number, mark: number, ms: number): Promise<void> {
    const { at, waiting } = this.#markWords(queue);
    Atomics.add(this.#control, waiting, 1);
    // The promise of waitAsync does not keep the process alive; the timer does.
    let timer: NodeJS.Timeout | undefined;
    const timeout = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, ms);
    });
    const result = waitAsync(this.#control, at, mark | 0, ms);
    await Promise.race([result, timeout]);
    clearTimeout(timer);
    Atomics.sub(this.#control, waiting, 1);
  }

  #markWords(queue: number): { at: number; waiting: number } {
    const record = (this.queues[queue] as QueueAddresses).record;
    return { at: (record + queueRecord.offset.mark) >> 2, waiting: (CONTROL_ADDRESS + control.offset.hostWaiting) >> 2 };
  }

  compile(program: Program): Artifact {
    return { bytes: compileProgram(program).bytes };
  }

  signature(program: Program): string {
    return programSignature(program);
  }

  install(artifact: Artifact): { fn: number; epoch: number } {
    const { fn, epoch } = this.#code.add(artifact.bytes);
    this.#installer.installBytes(fn, epoch, artifact.bytes);
    // Before any descriptor that publishes it: whoever reads the new function finds that it is behind.
    Atomics.store(this.#control, (CONTROL_ADDRESS + control.offset.epoch) >> 2, epoch);
    return { fn, epoch };
  }

  uninstall(fn: number): void {
    this.#code.remove(fn);
  }

  get epoch(): number {
    return this.#code.epoch;
  }

  status(): readonly WorkerStatus[] {
    const u32 = this.#memory.views.u32;
    return Array.from({ length: this.workers + 1 }, (_, worker) => {
      const base = this.#layout.workerRecords + worker * workerRecord.size;
      const word = (field: number): number => Atomics.load(u32, (base + field) >> 2);
      const long = (field: number): number => word(field) + word(field + 4) * 2 ** 32;
      const o = workerRecord.offset;
      return {
        worker,
        state: worker === 0 ? 'running' : (WORKER_STATES[word(o.state)] ?? 'dead'),
        tiles: long(o.tiles),
        tasks: long(o.tasks),
        failed: long(o.failed),
        parks: long(o.parks),
        installs: long(o.installs),
      };
    });
  }

  setYieldEvery(tiles: number): void {
    Atomics.store(this.#control, (CONTROL_ADDRESS + control.offset.yieldEvery) >> 2, tiles);
  }

  /** Ends one worker's thread as a crash would; the supervisor replaces it. For tests and for `gpuos` tools. */
  endWorker(worker: number): void {
    this.#supervisor?.postMessage({ end: worker });
  }

  async stop(): Promise<void> {
    if (this.#stopped) return;
    this.#stopped = true;
    Atomics.store(this.#control, (CONTROL_ADDRESS + control.offset.quit) >> 2, 1);
    Atomics.add(this.#control, (CONTROL_ADDRESS + control.offset.doorbell) >> 2, 1);
    Atomics.notify(this.#control, (CONTROL_ADDRESS + control.offset.doorbell) >> 2);
    const supervisor = this.#supervisor;
    if (supervisor === undefined || this.#lost !== undefined) {
      await supervisor?.terminate();
      return;
    }
    supervisor.ref();
    // Workers leave between tiles; one that does not is ended with the supervisor.
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, 2000);
    });
    await Promise.race([new Promise<void>((resolve) => supervisor.once('exit', () => resolve())), late]);
    clearTimeout(timer);
    await supervisor.terminate();
  }
}

/** What of the memory a heap may have. */
function spaceOf(memory: WasmMemory, start: number): MemorySpace {
  return {
    start,
    limit: memory.limit,
    get end() {
      return memory.views.bytes;
    },
    ensure: (end) => memory.ensure(end),
  };
}

/** `Atomics.waitAsync` (V8 has it; TypeScript's library for this target does not). */
function waitAsync(words: Int32Array, index: number, value: number, ms: number): Promise<unknown> {
  const wait = (Atomics as unknown as { waitAsync(a: Int32Array, i: number, v: number, ms: number): { value: Promise<unknown> | string } })
    .waitAsync;
  return Promise.resolve(wait(words, index, value, ms).value);
}
