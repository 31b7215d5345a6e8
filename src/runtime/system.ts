import { INLINE_POINTERS, INLINE_WORDS } from '../abi/descriptor.ts';
import type { Device, WorkerStatus } from '../backends/backend.ts';
import { createDevice } from '../backends/index.ts';
import { GpuosError } from '../errors.ts';
import { formatValue } from '../ops/shape.ts';
import { nearMatchHint } from '../spelling.ts';
import { readFlags } from '../flags.ts';
import { MIN_POINTERS, POINTER_BYTES, type Program } from '../ops/program.ts';
import { programFromTemplate, type Template, type TemplateParameters } from '../ops/template.ts';
import { type Block, Heap } from './heap.ts';
import { keepFreedPages } from './host-allocator.ts';
import { Extents } from './extents.ts';
import { LiveBuffers } from './live-buffers.ts';
import { type InjectedOperator, Operators } from './operators.ts';
import { type Dependency, MOST_DEPENDENCIES, NO_ORDER, type Order, Queue } from './queue.ts';
import {
  badDescriptor,
  checkCounts,
  checkExtents,
  checkFields,
  checkList,
  checkPointers,
  checkRequest,
  checkTiles,
  checkValues,
  checkWords,
  integer,
} from './request.ts';

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
  checkFields('init()', 'option', options, OPTIONS, 'GPUOS_BAD_OPTION');
  const { fuse, device, fault } = options;
  if (fuse !== undefined && typeof fuse !== 'boolean')
    throw new GpuosError('GPUOS_BAD_OPTION', `fuse is ${formatValue(fuse)}; it has to be true or false.`);
  if (device !== undefined && typeof device !== 'string')
    throw new GpuosError('GPUOS_UNKNOWN_DEVICE', `device is ${formatValue(device)}; it has to be the name of one.`);
  if (fault !== undefined && !(fault instanceof SharedArrayBuffer))
    throw new GpuosError('GPUOS_BAD_OPTION', `fault is ${formatValue(fault)}; it has to be a SharedArrayBuffer.`);
}

function checkFunction(call: string, value: unknown): void {
  if (typeof value !== 'function') throw new GpuosError('GPUOS_BAD_OPTION', `${call} takes a function, not ${formatValue(value)}.`);
}

/**
 * A pointer that the caller did not give: past the end of any memory of the device, so that an operator which
 * uses it traps, and ends its own task alone.
 */
const NO_POINTER = 0xffff_fff0;
const NONE: readonly never[] = [];

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
  /**
   * Addresses in buffers: the operator's inputs, then its outputs. All that a task of an injected operator touches through one
   * has to lie in the one buffer that it points into. For a built-in function at most 4, and how far it goes is not checked.
   */
  readonly pointers?: readonly number[];
  /** 32-bit words, of which the first says how many elements; at most 7. */
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
  readonly #buffers = new LiveBuffers();
  // The parameter block at hand: a task is written many times a second, and neither list outlives the call.
  readonly #pointers = new Array<number>(INLINE_POINTERS).fill(NO_POINTER);
  readonly #words = new Array<number>(INLINE_WORDS).fill(0);
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
    if (!(typeof this.spinUs === 'number' && this.spinUs >= 0 && this.spinUs <= MAX_SPIN_US)) {
      throw new GpuosError('GPUOS_BAD_OPTION', `spinUs is ${formatValue(this.spinUs)}; it has to be a number from 0 to ${MAX_SPIN_US}.`);
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
    // Also the name of one of the list's own properties is no index.
    const queue = typeof index === 'number' ? this.queues[index] : undefined;
    if (queue === undefined)
      throw new GpuosError('GPUOS_BAD_OPTION', `There is no queue ${formatValue(index)}; the system has ${this.queues.length}.`);
    return queue;
  }

  operatorName(slot: number): string {
    return typeof slot === 'number' ? this.operators.name(slot) : `#${formatValue(slot)}`;
  }

  /** @throws GPUOS_SHUT_DOWN, GPUOS_DEVICE_LOST */
  checkOpen(): void {
    if (this.#closed) throw new GpuosError('GPUOS_SHUT_DOWN', 'This system has been shut down.');
    const lost = this.device.lost;
    if (lost !== undefined) throw new GpuosError('GPUOS_DEVICE_LOST', `The device is lost: ${lost}.`);
  }

  /** Called when a worker died and was replaced; its task has failed. */
  onWorkerLost(listener: (event: { worker: number; tiles: number; reason: string | undefined }) => void): void {
    checkFunction('onWorkerLost()', listener);
    this.#lossListeners.push(listener);
  }

  /** Called once by shutdown, before anything is released. */
  onClose(listener: () => void): void {
    checkFunction('onClose()', listener);
    this.#closing.push(listener);
  }

  /**
   * Memory that device and host see, for `elements` 4-byte elements or for these values.
   * @throws GPUOS_OUT_OF_MEMORY, GPUOS_BAD_OPTION, GPUOS_DTYPE_MISMATCH
   */
  buffer(values: number | ArrayLike<number>): DeviceBuffer {
    this.checkOpen();
    if (typeof values !== 'number') checkValues(values);
    const elements = integer('elements', typeof values === 'number' ? values : values.length, 0, 2 ** 30);
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
        checkValues(source);
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
        this.#buffers.remove(block.address);
        block.lastUse = queue.tail - 1;
        // The heap looks at queue 0 alone; tasks of the others may still use it.
        const others = this.queues.filter(({ index, depth }) => index > 0 && depth > 0).map((other) => ({ other, last: other.tail - 1 }));
        if (others.length === 0) this.hostHeap.release(block);
        else this.hostHeap.releaseWhen(block, () => others.every(({ other, last }) => other.isComplete(last) && other.mark > last));
      },
    };
    this.#buffers.add({ address: block.address, end: block.address + elements * 4 });
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
    checkRequest(request);
    const operator = this.#operatorId(request.operator);
    const queue = this.queue(request.queue ?? 0);
    const tiles = checkTiles(request.tiles ?? 1);
    const pointers = request.pointers ?? NONE;
    const words = request.words ?? NONE;
    checkList('pointers', pointers, 'GPUOS_BAD_DESCRIPTOR');
    checkList('words', words, 'GPUOS_BAD_DESCRIPTOR');
    const needs = this.operators.needs(operator);
    const name = this.operators.name(operator);
    if (needs === undefined) throw badDescriptor(`${name} is a part of the executor itself.`);
    checkCounts(name, needs, pointers.length, words.length);
    checkPointers(pointers, this.#buffers);
    checkWords(words);
    if (needs instanceof Extents) checkExtents(name, needs, pointers, words, tiles, this.#buffers);
    const order = this.#order(request.dependencies ?? NONE);
    const { wait } = request;
    if (wait !== undefined && typeof wait !== 'boolean') throw badDescriptor(`wait is ${formatValue(wait)}; it has to be true or false.`);
    if (wait === false && !queue.hasSpace) {
      throw new GpuosError('GPUOS_QUEUE_FULL', `All ${queue.slots} slots of queue ${queue.index} are in use.`);
    }
    const sequence =
      pointers.length <= INLINE_POINTERS && words.length <= INLINE_WORDS
        ? this.#writeInline(queue, operator, tiles, pointers, words, order)
        : this.#writeBlock(queue, operator, tiles, pointers, words, order);
    this.device.ringDoorbell(tiles);
    return this.#handle(queue, sequence, name);
  }

  #writeInline(queue: Queue, operator: number, tiles: number, pointers: readonly number[], words: readonly number[], order: Order): number {
    // What is not given must not be what the slot held before.
    for (let i = 0; i < INLINE_POINTERS; i++) this.#pointers[i] = i < pointers.length ? (pointers[i] as number) : NO_POINTER;
    for (let i = 0; i < INLINE_WORDS; i++) this.#words[i] = i < words.length ? (words[i] as number) : 0;
    return queue.writeInline(operator, tiles, this.#pointers, this.#words, order);
  }

  /** More pointers or words than a descriptor holds: a block of memory that is free again once the task is complete. */
  #writeBlock(queue: Queue, operator: number, tiles: number, pointers: readonly number[], words: readonly number[], order: Order): number {
    const count = Math.max(MIN_POINTERS, pointers.length);
    const bytes = count * POINTER_BYTES + words.length * 4;
    const first = this.queue(0);
    first.refresh();
    const block = this.hostHeap.allocate(bytes, first.mark, true);
    const { u32 } = this.device.views();
    const at = (block.address - this.device.viewBase) / 4;
    for (let i = 0; i < count; i++) {
      const pointer = i < pointers.length ? (pointers[i] as number) : NO_POINTER;
      u32[at + 2 * i] = pointer | 0;
      u32[at + 2 * i + 1] = (pointer / 2 ** 32) | 0;
    }
    for (let i = 0; i < words.length; i++) u32[at + 2 * count + i] = words[i] as number;
    const sequence = queue.writeDescriptor(operator, tiles, block.address, bytes, order);
    if (queue === first) {
      block.lastUse = sequence;
      this.hostHeap.release(block);
    } else {
      this.hostHeap.releaseWhen(block, () => queue.isComplete(sequence) && queue.mark > sequence);
    }
    return sequence;
  }

  /** A handle on a task that has been written. */
  task(queue: Queue, sequence: number, operator: number): Task {
    if (!(queue instanceof Queue)) throw new GpuosError('GPUOS_BAD_OPTION', `task() takes a queue, not ${formatValue(queue)}.`);
    integer('sequence', sequence, this.#firstSequence, queue.tail - 1);
    return this.#handle(queue, sequence, this.operatorName(operator));
  }

  #handle(queue: Queue, sequence: number, operator: string): Task {
    const settle = (): void => {
      const failure = queue.failure(sequence);
      if (failure !== undefined) throw failure;
    };
    return {
      queue: queue.index,
      sequence,
      operator,
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
    if (typeof operator === 'number') return this.operators.get(operator).id;
    if (typeof operator === 'string') {
      const id = this.device.kernels.get(operator);
      if (id !== undefined) return id;
      const hint = nearMatchHint(operator, this.device.kernels.keys());
      throw new GpuosError('GPUOS_UNKNOWN_OPERATOR', `The device has no function "${operator.slice(0, 64)}".${hint}`);
    }
    const id: unknown = (operator as InjectedOperator | null | undefined)?.id;
    if (typeof operator !== 'object' || typeof id !== 'number')
      throw new GpuosError(
        'GPUOS_UNKNOWN_OPERATOR',
        `An operator is what inject() returns, an id or a name, not ${formatValue(operator)}.`,
      );
    return this.operators.get(id).id;
  }

  #order(tasks: readonly Task[]): Order {
    if (!Array.isArray(tasks))
      throw new GpuosError('GPUOS_BAD_DEPENDENCY', `dependencies is ${formatValue(tasks)}; it has to be a list of tasks.`);
    if (tasks.length === 0) return NO_ORDER;
    if (tasks.length > MOST_DEPENDENCIES)
      throw new GpuosError('GPUOS_BAD_DEPENDENCY', `${tasks.length} dependencies given; a task may have ${MOST_DEPENDENCIES}.`);
    const dependencies: Dependency[] = [];
    for (let i = 0; i < tasks.length; i++) {
      const task = tasks[i] as Task | null | undefined;
      if (typeof task !== 'object' || task === null)
        throw new GpuosError(
          'GPUOS_BAD_DEPENDENCY',
          `Dependency ${i} is ${formatValue(task)}; it has to be a task that submit() returned.`,
        );
      const queue = typeof task.queue === 'number' ? this.queues[task.queue] : undefined;
      if (
        queue === undefined ||
        !Number.isSafeInteger(task.sequence) ||
        task.sequence < this.#firstSequence ||
        task.sequence >= queue.tail
      ) {
        throw new GpuosError(
          'GPUOS_BAD_DEPENDENCY',
          `Task ${formatValue(task.sequence)} of queue ${formatValue(task.queue)} has not been submitted.`,
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
    checkFields('shutdown()', 'option', options, ['drain'], 'GPUOS_BAD_OPTION');
    if (options.drain !== undefined && typeof options.drain !== 'boolean')
      throw new GpuosError('GPUOS_BAD_OPTION', `drain is ${formatValue(options.drain)}; it has to be true or false.`);
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
