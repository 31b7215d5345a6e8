import { INLINE_POINTERS, INLINE_WORDS } from '../abi/descriptor.ts';
import { MAX_TILES } from '../abi/status.ts';
import type { Device, MemorySpace, WorkerStatus } from '../backends/backend.ts';
import { createDevice } from '../backends/index.ts';
import { fitsDescriptor } from '../backends/lowering/needs.ts';
import { GpuosError } from '../errors.ts';
import { formatValue } from '../ops/shape.ts';
import { nearMatchHint } from '../spelling.ts';
import { readFlags } from '../flags.ts';
import type { Program } from '../ops/program.ts';
import { programFromTemplate, type Template, type TemplateParameters } from '../ops/template.ts';
import { type Block, Heap } from './heap.ts';
import { keepFreedPages } from './host-allocator.ts';
import { type InjectedOperator, Operators } from './operators.ts';
import { type Dependency, type Order, Queue } from './queue.ts';

export interface SystemOptions {
  /** `auto` takes wasm. Default: GPUOS_DEVICE. */
  readonly device?: 'auto' | 'wasm' | 'cuda';
  /** Workers beside the host. Default: GPUOS_WORKERS, else one a core but the host's. */
  readonly workers?: number;
  /** Queues, each with a ring of its own. Default 1, at most 16. */
  readonly queues?: number;
  /** Slots of each ring; a power of two. Default: GPUOS_RING. */
  readonly ring?: number;
  readonly memoryMib?: number;
  /** How long a waiting host spins before it lets the event loop turn. */
  readonly spinUs?: number;
  /** How long a worker without work spins before it sleeps. Default 1000. */
  readonly workerSpinUs?: number;
  readonly taskBudgetMs?: number;
  /** Whether recorded operations are fused. Default: GPUOS_FUSE. */
  readonly fuse?: boolean;
  /** Sequence of the first task, for tests of its wrap-around. */
  readonly firstSequence?: number;
  /** For tests: see WasmDeviceOptions. */
  readonly fault?: SharedArrayBuffer;
}

const OPTIONS = [
  'device',
  'workers',
  'queues',
  'ring',
  'memoryMib',
  'spinUs',
  'workerSpinUs',
  'taskBudgetMs',
  'fuse',
  'firstSequence',
  'fault',
] as const satisfies readonly (keyof SystemOptions)[];

function checkOptions(options: SystemOptions): void {
  if (typeof options !== 'object' || options === null) {
    throw new GpuosError('GPUOS_BAD_OPTION', `init() takes an object of options, not ${formatValue(options)}.`);
  }
  for (const name of Object.keys(options)) {
    if ((OPTIONS as readonly string[]).includes(name)) continue;
    throw new GpuosError('GPUOS_BAD_OPTION', `init() has no option "${name.slice(0, 64)}".${nearMatchHint(name, OPTIONS)}`);
  }
  if (options.fuse !== undefined && typeof options.fuse !== 'boolean') {
    throw new GpuosError('GPUOS_BAD_OPTION', `fuse is ${formatValue(options.fuse)}; it has to be true or false.`);
  }
}

/**
 * A pointer that the caller did not give: past the end of any memory of the device, so that an operator which
 * uses it traps, and ends its own task alone.
 */
const NO_POINTER = 0xffff_fff0;

/** A submitted task. */
export interface Task {
  readonly queue: number;
  readonly sequence: number;
  readonly operator: string;
  /** Resolves when it has completed; rejects with the GpuosError that it ended with. */
  done(): Promise<void>;
  /** The same, blocking. */
  doneSync(): void;
}

export interface TaskRequest {
  /** Id of an operator, what inject() returned, or the name of a built-in device function. */
  readonly operator: number | string | InjectedOperator;
  /** Addresses of buffers; at most 4 unless `params` is given. */
  readonly pointers?: readonly number[];
  /** 32-bit words; at most 7 inline. */
  readonly words?: readonly number[];
  readonly tiles?: number;
  readonly queue?: number;
  /** Tasks that must have completed before, and whose failure fails this one; at most 4. */
  readonly dependencies?: readonly Task[];
  /** false: GPUOS_QUEUE_FULL instead of waiting when the ring is full. Default true. */
  readonly wait?: boolean;
}

/** Memory of the device that the host can write and read. */
export interface DeviceBuffer {
  readonly address: number;
  readonly elements: number;
  write(values: ArrayLike<number>): void;
  read(): Float32Array;
  free(): void;
}

export interface QueueState {
  /** First sequence with work that nobody has begun. */
  readonly head: number;
  /** Sequence of the next task to be submitted. */
  readonly tail: number;
  /** Tasks completed. */
  readonly processed: number;
  readonly depth: number;
  readonly slots: number;
}

const MAX_QUEUES = 16;
const DEFAULT_WORKER_SPIN_US = 1000;
const MAX_SPIN_US = 1_000_000;

function integer(name: string, value: number, min: number, max: number): number {
  if (!Number.isInteger(value) || value < min || value > max) {
    throw new GpuosError('GPUOS_BAD_OPTION', `${name} is ${String(value)}; it has to be an integer from ${min} to ${max}.`);
  }
  return value;
}

let running: System | undefined;

/** The running system: a device with its resident executor, queues, memory and operator table. */
export class System {
  readonly device: Device;
  readonly queues: readonly Queue[];
  /** Memory that operators compute in. */
  readonly heap: Heap;
  /** Memory that the host sees too: the same where it sees all. */
  readonly hostHeap: Heap;
  readonly operators: Operators;
  readonly spinUs: number;
  /** Whether recorded operations are fused; set through fuse(). */
  fused: boolean;
  readonly #closing: (() => void)[] = [];
  readonly #firstSequence: number;
  #closed = false;
  #lossListeners: ((event: { worker: number; tiles: number; reason: string | undefined }) => void)[] = [];

  constructor(options: SystemOptions = {}) {
    checkOptions(options);
    keepFreedPages();
    const flags = readFlags();
    const ring = integer('ring', options.ring ?? flags.ring, 2, 65_536);
    if ((ring & (ring - 1)) !== 0) throw new GpuosError('GPUOS_BAD_OPTION', `ring is ${ring}; it has to be a power of two.`);
    this.#firstSequence = integer('firstSequence', options.firstSequence ?? 0, 0, 2 ** 32 - 1);
    const workers = options.workers ?? flags.workers;
    this.spinUs = options.spinUs ?? flags.spinUs;
    if (!(this.spinUs >= 0 && this.spinUs <= MAX_SPIN_US)) {
      throw new GpuosError('GPUOS_BAD_OPTION', `spinUs is ${String(this.spinUs)}; it has to be a number from 0 to ${MAX_SPIN_US}.`);
    }
    this.fused = options.fuse ?? flags.fuse;
    this.device = createDevice(options.device ?? flags.device, {
      workers: workers === undefined ? undefined : integer('workers', workers, 0, 255),
      queues: integer('queues', options.queues ?? 1, 1, MAX_QUEUES),
      slots: ring,
      firstSequence: this.#firstSequence,
      memoryMib: integer('memoryMib', options.memoryMib ?? flags.memoryMib, 16, 4096),
      spinUs: integer('workerSpinUs', options.workerSpinUs ?? DEFAULT_WORKER_SPIN_US, 0, MAX_SPIN_US),
      taskBudgetMs: integer('taskBudgetMs', options.taskBudgetMs ?? flags.taskBudgetMs, 1, 3_600_000),
      ...(options.fault === undefined ? {} : { fault: options.fault }),
      onWorkerLost: (event) => {
        for (const listener of this.#lossListeners) listener(event);
      },
    });
    this.queues = this.device.queues.map((_, index) => new Queue(this, index, this.#firstSequence));
    const { memory, hostMemory } = this.device;
    this.heap = new Heap(memory);
    this.hostHeap = memory === hostMemory ? this.heap : new Heap(hostMemory);
    this.operators = new Operators(this);
  }

  get closed(): boolean {
    return this.#closed;
  }

  queue(index: number): Queue {
    const queue = this.queues[index];
    if (queue === undefined) throw new GpuosError('GPUOS_BAD_OPTION', `There is no queue ${index}; the system has ${this.queues.length}.`);
    return queue;
  }

  operatorName(slot: number): string {
    return this.operators.name(slot);
  }

  /** @throws GPUOS_SHUT_DOWN, GPUOS_DEVICE_LOST */
  checkOpen(): void {
    if (this.#closed) throw new GpuosError('GPUOS_SHUT_DOWN', 'This system has been shut down.');
    const lost = this.device.lost;
    if (lost !== undefined) throw new GpuosError('GPUOS_DEVICE_LOST', `The device is lost: ${lost}.`);
  }

  /** Called when a worker died and was replaced; its task has failed. */
  onWorkerLost(listener: (event: { worker: number; tiles: number; reason: string | undefined }) => void): void {
    this.#lossListeners.push(listener);
  }

  /** Called once by shutdown, before anything is released. */
  onClose(listener: () => void): void {
    this.#closing.push(listener);
  }

  /** Memory that device and host see, for `elements` 4-byte elements or for these values. @throws GPUOS_OUT_OF_MEMORY */
  buffer(values: number | ArrayLike<number>): DeviceBuffer {
    this.checkOpen();
    const elements = typeof values === 'number' ? integer('elements', values, 0, 2 ** 30) : values.length;
    const queue = this.queue(0);
    queue.refresh();
    const block: Block = this.hostHeap.allocate(elements * 4, queue.mark, true);
    let freed = false;
    const at = (block.address - this.device.viewBase) / 4;
    const check = (): void => {
      this.checkOpen();
      if (freed) throw new GpuosError('GPUOS_TENSOR_DISPOSED', `The buffer at ${block.address} has been freed.`);
    };
    const buffer: DeviceBuffer = {
      address: block.address,
      elements,
      write: (source) => {
        check();
        if (source.length > elements)
          throw new GpuosError('GPUOS_SHAPE_MISMATCH', `${source.length} values do not fit a buffer of ${elements}.`);
        this.device.views().f32.set(source, at);
      },
      read: () => {
        check();
        return this.device.views().f32.slice(at, at + elements);
      },
      free: () => {
        check();
        freed = true;
        block.lastUse = queue.tail - 1;
        // The heap looks at queue 0 alone; tasks of the others may still use it.
        const others = this.queues.filter(({ index, depth }) => index > 0 && depth > 0).map((other) => ({ other, last: other.tail - 1 }));
        if (others.length === 0) this.hostHeap.release(block);
        else this.hostHeap.releaseWhen(block, () => others.every(({ other, last }) => other.isComplete(last) && other.mark > last));
      },
    };
    if (typeof values !== 'number') buffer.write(values);
    return buffer;
  }

  /**
   * Writes one task into a ring. The call returns at once; `done()` tells how the task ended.
   * @throws GPUOS_BAD_DESCRIPTOR, GPUOS_OPERATOR_OUT_OF_RANGE, GPUOS_BAD_DEPENDENCY, GPUOS_QUEUE_FULL, GPUOS_SHUT_DOWN,
   *   GPUOS_DEPENDENCY_FAILED if a dependency is known to have failed (one that fails later rejects done())
   */
  submit(request: TaskRequest): Task {
    this.checkOpen();
    if (typeof request !== 'object' || request === null)
      throw new GpuosError('GPUOS_BAD_DESCRIPTOR', `submit() takes a task, not ${formatValue(request)}.`);
    const operator = this.#operatorId(request.operator);
    const queue = this.queue(request.queue ?? 0);
    const tiles = request.tiles ?? 1;
    const bad = (message: string): GpuosError => new GpuosError('GPUOS_BAD_DESCRIPTOR', message);
    if (!Number.isInteger(tiles) || tiles < 1 || tiles > MAX_TILES)
      throw bad(`tiles is ${String(tiles)}; it has to be an integer from 1 to ${MAX_TILES}.`);
    const pointers = request.pointers ?? [];
    const words = request.words ?? [];
    if (pointers.length > INLINE_POINTERS) throw bad(`${pointers.length} pointers given; a descriptor holds ${INLINE_POINTERS}.`);
    if (words.length > INLINE_WORDS) throw bad(`${words.length} words given; a descriptor holds ${INLINE_WORDS}.`);
    const { memory, hostMemory } = this.device;
    const within = (space: MemorySpace, address: number): boolean => address >= space.start && address < space.end;
    for (const pointer of pointers) {
      if (!Number.isInteger(pointer) || pointer % 4 !== 0 || !(within(memory, pointer) || within(hostMemory, pointer))) {
        throw bad(`pointer ${String(pointer)} is not an aligned address of the heap.`);
      }
    }
    for (const word of words) {
      if (!Number.isInteger(word) || word < -(2 ** 31) || word >= 2 ** 32) throw bad(`word ${String(word)} is not a 32-bit integer.`);
    }
    const needs = this.operators.needs(operator);
    const name = this.operators.name(operator);
    if (needs === undefined) throw bad(`${name} is a part of the executor itself.`);
    if (!fitsDescriptor(needs)) throw bad(`${name} has a longer parameter block than a descriptor holds; use tensors.`);
    if (pointers.length < needs.pointers || words.length < needs.words) {
      throw bad(
        `${name} needs ${needs.pointers} pointers (inputs, then outputs) and ${needs.words} words (elements first); ${pointers.length} and ${words.length} were given.`,
      );
    }
    const order = this.#order(request.dependencies ?? []);
    if (request.wait === false && !queue.hasSpace) {
      throw new GpuosError('GPUOS_QUEUE_FULL', `All ${queue.slots} slots of queue ${queue.index} are in use.`);
    }
    // What is not given must not be what the slot held before.
    const block = [...pointers, ...new Array<number>(INLINE_POINTERS - pointers.length).fill(NO_POINTER)];
    const sequence = queue.writeInline(
      operator,
      tiles,
      block,
      [...words, ...new Array<number>(INLINE_WORDS - words.length).fill(0)],
      order,
    );
    this.device.ringDoorbell(tiles);
    return this.task(queue, sequence, operator);
  }

  /** A handle on a task that has been written. */
  task(queue: Queue, sequence: number, operator: number): Task {
    const name = this.operators.name(operator);
    const settle = (): void => {
      const failure = queue.failure(sequence);
      if (failure !== undefined) throw failure;
    };
    return {
      queue: queue.index,
      sequence,
      operator: name,
      done: async () => {
        await queue.wait(sequence);
        settle();
      },
      doneSync: () => {
        queue.waitSync(sequence);
        settle();
      },
    };
  }

  #operatorId(operator: number | string | InjectedOperator): number {
    if (typeof operator === 'string') {
      const id = this.device.kernels.get(operator);
      if (id === undefined) throw new GpuosError('GPUOS_UNKNOWN_OPERATOR', `The device has no function "${operator.slice(0, 64)}".`);
      return id;
    }
    return this.operators.get(typeof operator === 'number' ? operator : operator.id).id;
  }

  #order(tasks: readonly Task[]): Order {
    if (tasks.length > 4) throw new GpuosError('GPUOS_BAD_DEPENDENCY', `${tasks.length} dependencies given; a task may have 4.`);
    const dependencies: Dependency[] = [];
    for (const task of tasks) {
      const queue = this.queues[task.queue];
      if (
        queue === undefined ||
        !Number.isSafeInteger(task.sequence) ||
        task.sequence < this.#firstSequence ||
        task.sequence >= queue.tail
      ) {
        throw new GpuosError(
          'GPUOS_BAD_DEPENDENCY',
          `Task ${String(task.sequence)} of queue ${String(task.queue)} has not been submitted.`,
        );
      }
      if (queue.isComplete(task.sequence)) {
        const failure = queue.failure(task.sequence);
        if (failure !== undefined) {
          throw new GpuosError('GPUOS_DEPENDENCY_FAILED', `Task ${task.sequence} of queue ${task.queue} has failed.`, { cause: failure });
        }
        continue;
      }
      dependencies.push({ queue: task.queue, sequence: task.sequence });
    }
    return { after: -1, dependencies };
  }

  /**
   * Compiles a curated template with these parameters, and puts it into the operator table of the
   * running executor; cached by what it computes.
   * @throws GPUOS_BAD_TEMPLATE, GPUOS_OPERATOR_TABLE_FULL
   */
  inject(template: Template, parameters: TemplateParameters): InjectedOperator {
    this.checkOpen();
    const { program, name } = programFromTemplate(template, parameters);
    return this.operators.inject(program, name, true);
  }

  /** A new version of an injected operator, in its slot. Tasks submitted before it run the old one. */
  replace(operator: number | InjectedOperator, template: Template, parameters: TemplateParameters): InjectedOperator {
    this.checkOpen();
    const program: Program = programFromTemplate(template, parameters).program;
    return this.operators.replace(this.#operatorId(operator), program);
  }

  /** Takes an injected operator out of the table; its slot is free for another once its tasks are complete. */
  remove(operator: number | InjectedOperator): void {
    this.checkOpen();
    this.operators.remove(this.#operatorId(operator));
  }

  /** Tasks of the operator fail from here on. Resolves when the device has taken notice. */
  async kill(operator: number | string | InjectedOperator): Promise<void> {
    this.checkOpen();
    await this.queue(0).wait(this.operators.kill(this.#operatorId(operator)));
  }

  async revive(operator: number | string | InjectedOperator): Promise<void> {
    this.checkOpen();
    await this.queue(0).wait(this.operators.revive(this.#operatorId(operator)));
  }

  /** Every `tiles` tiles a worker gives its core away once; 0: never. */
  setYieldEvery(tiles: number): void {
    this.checkOpen();
    this.device.setYieldEvery(integer('tiles', tiles, 0, 2 ** 31 - 1));
  }

  /** Head, tail, processed and more of a queue. */
  peekQueue(index = 0): QueueState {
    this.checkOpen();
    const queue = this.queue(index);
    const depth = queue.depth;
    return { head: queue.head, tail: queue.tail, processed: queue.mark - this.#firstSequence, depth, slots: queue.slots };
  }

  /** Whether the resident executor is there: the device is not lost and a worker (or, with none, the host) serves it. */
  workerAlive(): boolean {
    if (this.#closed || this.device.lost !== undefined) return false;
    return (
      this.device.workers === 0 || this.workers().some((worker) => worker.worker > 0 && worker.state !== 'dead' && worker.state !== 'left')
    );
  }

  workers(): readonly WorkerStatus[] {
    return this.device.status();
  }

  /**
   * Ends the system. Workers leave between two tiles; tasks that are not complete are cancelled and
   * their promises reject with GPUOS_SHUT_DOWN. With `drain` what has been submitted completes first.
   */
  async shutdown(options: { readonly drain?: boolean } = {}): Promise<void> {
    if (this.#closed) return;
    if (options.drain === true && this.device.lost === undefined) {
      for (const queue of this.queues) if (queue.tail > queue.mark) await queue.wait(queue.tail - 1);
    }
    for (const listener of this.#closing) listener();
    for (const queue of this.queues) queue.refresh();
    this.#closed = true;
    if (running === this) running = undefined;
    await this.device.stop();
  }
}

/**
 * Starts the system: reserves memory, builds the rings, and starts the resident workers. Returns at
 * once; tasks may be submitted from the return on.
 * @throws GPUOS_ALREADY_INITIALIZED, GPUOS_BAD_OPTION, GPUOS_BAD_FLAG, GPUOS_UNKNOWN_DEVICE, GPUOS_NO_SHARED_MEMORY
 */
export function init(options?: SystemOptions): System {
  if (running !== undefined) throw new GpuosError('GPUOS_ALREADY_INITIALIZED', 'A system is running already.');
  running = new System(options);
  return running;
}

/** The running system. */
export function current(): System | undefined {
  return running;
}

/** The running system. @throws GPUOS_NOT_INITIALIZED */
export function requireSystem(): System {
  if (running === undefined) throw new GpuosError('GPUOS_NOT_INITIALIZED', 'No system is running.');
  return running;
}
