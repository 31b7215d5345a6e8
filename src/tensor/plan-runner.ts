import { INLINE_WORDS, MAX_TILES, MOST_DEPENDENCIES, paramLines } from '../runtime/queue.ts';
import { GpuosError } from '../errors.ts';
import { elementBytes, isFloat } from '../ops/dtype.ts';
import { MIN_POINTERS } from '../ops/program.ts';
import type { Block } from '../runtime/heap.ts';
import type { Dependency, Order, Queue } from '../runtime/queue.ts';
import type { System } from '../runtime/system.ts';
import type { EngineCounters } from './engine.ts';
import type { Packing } from './drafts.ts';
import { allocateParams, submitCall } from './parameters.ts';
import { NO_OPERAND, type Plan, type Result, type Stage, type Step } from './plan.ts';
import { Storage } from './storage.ts';
import type { Tensor } from './tensor.ts';

/** One list of each length that a descriptor can name, written anew for every step: the ring copies them. */
const DEPENDENCY_LISTS = Array.from({ length: MOST_DEPENDENCIES + 1 }, (_, length) =>
  Array.from({ length }, () => ({ queue: 0, sequence: 0, tilewise: false })),
);

const NO_PACKINGS: readonly Storage[] = [];
/** By step. */
const NO_FAILURES: readonly unknown[] = [];

function dependencyFailed(cause: unknown): GpuosError {
  return new GpuosError('GPUOS_DEPENDENCY_FAILED', 'A value that this one is made from was never computed.', { cause });
}

/** The output that the value with this tag lies in; -1: none. */
function memoryOf({ results }: Plan, tag: number): number {
  for (let i = 0; i < results.length; i++) if ((results[i] as Result).tag === tag) return (results[i] as Result).memory;
  return -1;
}

/** A value of this size that is about to be read is written to the host by the kernel that computes it, rather than copied after it. */
const NEAR_BYTES = 65_536;
/** As long as no more of that memory is in use, half of which values pass through. */
const NEAR_SHARE = 0.75;

/** Length of a stage's parameter block. */
function paramBytes({ pointers, words }: Stage): number {
  return 8 * Math.max(MIN_POINTERS, pointers.length) + 4 * words.length;
}

/** Writes a stage's words, to `at`, with the scalars that are the last of them. Both views are of the same memory. */
function writeWords({ words, scalars }: Stage, externals: readonly Tensor[], i32: Int32Array, f32: Float32Array, at: number): void {
  const first = words.length - scalars.length;
  for (let i = 0; i < first; i++) i32[at + i] = words[i] as number;
  for (let i = 0; i < scalars.length; i++) {
    const { value, dtype } = externals[scalars[i] as number] as Tensor;
    if (isFloat(dtype)) f32[at + first + i] = value as number;
    else i32[at + first + i] = value as number;
  }
}

/** Fills in a plan's addresses and sequences, and writes its tasks into the ring. */
export class PlanRunner {
  readonly #system: System;
  readonly #counters: EngineCounters;
  #addresses = new Float64Array(256);

  constructor(system: System, counters: EngineCounters) {
    this.#system = system;
    this.#counters = counters;
  }

  /**
   * `settle` is called for every value that the caller may ask for, with the memory that it lies in. The value whose tag is
   * `read` is about to be read: if it is small, the device writes it where the host sees it.
   */
  run(plan: Plan, externals: readonly Tensor[], read: number, settle: (result: Result, storage: Storage, offset: number) => void): void {
    const queue = this.#system.queue(0);
    const { heap, hostHeap } = this.#system;
    const nowhere = this.#system.device.memory.start;
    queue.refresh();
    const { mark } = queue;
    const count = plan.externals + plan.packings.length + plan.owned.length + 1;
    if (this.#addresses.length < count) this.#addresses = new Float64Array(count * 2);
    const addresses = this.#addresses;
    this.#failed.clear();
    for (let i = 0; i < plan.externals; i++) {
      const { storage, offset, dtype } = externals[i] as Tensor;
      // What has no memory has no elements that anyone needs; a kernel may yet look at where the first would be.
      addresses[i] = storage === undefined ? nowhere : storage.block.address + offset * elementBytes(dtype);
      if (storage === undefined) continue;
      const failure = this.#failureOf(queue, storage);
      if (failure !== undefined) this.#failed.set(i, failure);
    }
    const near = read < 0 || heap === hostHeap ? -1 : memoryOf(plan, read);
    const owned = new Array<Storage>(plan.owned.length);
    let workspace: Block | undefined;
    let params: Block | undefined;
    try {
      for (let i = 0; i < plan.owned.length; i++) {
        const { bytes } = plan.owned[i] as Plan['owned'][number];
        const nearby = i === near ? this.#nearby(bytes, mark) : undefined;
        const block = nearby ?? heap.allocate(bytes, mark);
        addresses[plan.externals + plan.packings.length + i] = block.address;
        owned[i] = new Storage(nearby === undefined ? heap : hostHeap, block);
      }
      if (plan.workspaceBytes > 0) {
        workspace = heap.allocate(plan.workspaceBytes, mark);
        addresses[plan.externals + plan.packings.length + plan.owned.length] = workspace.address;
      }
      if (plan.paramsBytes > 0) params = allocateParams(this.#system, plan.paramsBytes);
      if (plan.steps.length > 0) this.#submit(plan, externals, owned, workspace, params, queue);
    } catch (error) {
      // Out of memory, most likely: what this run has taken goes back, and the caller may try again.
      for (const storage of owned) storage?.release();
      throw error;
    } finally {
      if (workspace !== undefined) heap.release(workspace);
      if (params !== undefined) hostHeap.release(params);
    }
    for (let i = 0; i < plan.results.length; i++) {
      const result = plan.results[i] as Result;
      if (result.memory >= 0) settle(result, (owned[result.memory] as Storage).retain(), result.offset);
      else {
        const external = externals[~result.memory] as Tensor;
        settle(result, (external.storage as Storage).retain(), result.offset + external.offset);
      }
    }
    for (let i = 0; i < owned.length; i++) (owned[i] as Storage).release();
  }

  /** Memory where the host sees it, for a small value; values that are kept must not leave too little for parameter blocks. */
  #nearby(bytes: number, mark: number): Block | undefined {
    const { hostHeap } = this.#system;
    if (bytes > NEAR_BYTES || hostHeap.usedBytes + bytes > hostHeap.capacityBytes * NEAR_SHARE) return undefined;
    return hostHeap.tryAllocate(bytes, mark);
  }

  /** A value whose task is known to have failed fails what is made of it; its cause stays the first. */
  #failureOf(queue: Queue, storage: Storage): unknown {
    if (storage.error === undefined && storage.producer >= 0 && queue.isComplete(storage.producer)) {
      storage.error = queue.failure(storage.producer);
      if (storage.error === undefined && storage.producer < queue.mark) storage.producer = -1;
    }
    if (storage.error === undefined) return undefined;
    return dependencyFailed(storage.error);
  }

  #submit(
    plan: Plan,
    externals: readonly Tensor[],
    owned: readonly Storage[],
    workspace: Block | undefined,
    params: Block | undefined,
    queue: Queue,
  ): void {
    const packings = this.#packings(plan, externals, queue);
    for (let i = 0; i < packings.length; i++) {
      const storage = packings[i];
      if (storage !== undefined) this.#addresses[plan.externals + i] = storage.block.address;
    }
    // Memory that is used anew may still be in use by tasks up to here.
    let after = workspace?.lastUse ?? -1;
    for (const storage of owned) after = Math.max(after, storage.block.lastUse);
    if (this.#sequences.length < plan.steps.length) this.#sequences = new Float64Array(2 * plan.steps.length);
    const sequences = this.#sequences;
    let failures = NO_FAILURES;
    const order = this.#order;
    for (let index = 0; index < plan.steps.length; index++) {
      const step = plan.steps[index] as Step;
      this.#failure = undefined;
      order.dependencies = this.#dependencies(plan, step, failures, externals, packings, queue);
      if (this.#failure !== undefined) {
        if (failures === NO_FAILURES) failures = [];
        (failures as unknown[])[index] = this.#failure;
        sequences[index] = -1;
        continue;
      }
      order.after = step.after >= 0 ? Math.max(after, sequences[step.after] as number) : after;
      sequences[index] =
        this.#beginProduct(step, order, queue) ??
        (step.params < 0 ? this.#writeInline(step, externals, order, queue) : this.#write(step, params as Block, externals, order, queue));
      this.#counters.tasks++;
    }
    const last = queue.tail - 1;
    for (let i = 0; i < plan.externals; i++) {
      const { storage } = externals[i] as Tensor;
      if (storage !== undefined) storage.block.lastUse = last;
    }
    for (const packing of packings) if (packing !== undefined) packing.block.lastUse = last;
    for (let i = 0; i < owned.length; i++) {
      const storage = owned[i] as Storage;
      const { step } = plan.owned[i] as Plan['owned'][number];
      storage.producer = step < 0 ? -1 : (sequences[step] as number);
      if (failures.length > 0) storage.error = failures[step];
      storage.block.lastUse = last;
    }
    if (workspace !== undefined) workspace.lastUse = last;
    if (params !== undefined) params.lastUse = last;
  }

  /** Externals of this run that are known to have failed, and why. */
  readonly #failed = new Map<number, unknown>();
  /** Why the step at hand cannot run. */
  #failure: unknown;

  /** Sequences of the run's steps; -1: it was not submitted. */
  #sequences = new Float64Array(64);
  readonly #order: { after: number; dependencies: readonly Dependency[] } = { after: -1, dependencies: [] };
  // What the step at hand waits for.
  readonly #producers: number[] = [];
  readonly #tilewise: boolean[] = [];
  #count = 0;

  /** What a step waits for. Sets #failure if one of its producers has failed already: then it is not to be submitted. */
  #dependencies(
    plan: Plan,
    step: Step,
    failures: readonly unknown[],
    externals: readonly Tensor[],
    packings: readonly (Storage | undefined)[],
    queue: Queue,
  ): readonly Dependency[] {
    this.#count = 0;
    const first = plan.externals;
    for (let i = 0; i < step.dependencies.length; i++) {
      const producer = step.dependencies[i] as number;
      if (failures.length > 0) this.#failure ??= failures[producer];
      this.#waitFor(this.#sequences[producer] as number, ((step.tilewise >> i) & 1) !== 0, queue);
    }
    for (let i = 0; i < step.externals.length; i++) {
      const external = step.externals[i] as number;
      if (this.#failed.size > 0) {
        const source = external < first ? external : (plan.packings[external - first] as Packing).external;
        this.#failure ??= this.#failed.get(source);
      }
      const storage = external < first ? (externals[external] as Tensor).storage : packings[external - first];
      if (storage !== undefined && storage.producer >= 0) this.#waitFor(storage.producer, false, queue);
    }
    if (this.#count > MOST_DEPENDENCIES) return this.#joined(queue);
    const list = DEPENDENCY_LISTS[this.#count] as { queue: number; sequence: number; tilewise: boolean }[];
    for (let i = 0; i < this.#count; i++) {
      const dependency = list[i] as { sequence: number; tilewise: boolean };
      dependency.sequence = this.#producers[i] as number;
      dependency.tilewise = this.#tilewise[i] as boolean;
    }
    return list;
  }

  #waitFor(sequence: number, tilewise: boolean, queue: Queue): void {
    if (sequence < queue.mark) {
      // Complete, but perhaps not well: a full ring lets tasks of this very run end before its last is written.
      const failure = sequence < 0 || !queue.hasFailures ? undefined : queue.failure(sequence);
      if (failure !== undefined) this.#failure ??= dependencyFailed(failure);
      return;
    }
    for (let i = 0; i < this.#count; i++) if (this.#producers[i] === sequence) return;
    this.#producers[this.#count] = sequence;
    this.#tilewise[this.#count++] = tilewise;
  }

  /** More producers than a descriptor holds are gathered by tasks that do nothing, so that the failure of each is passed on. */
  #joined(queue: Queue): readonly Dependency[] {
    let list: Dependency[] = [];
    for (let i = 0; i < this.#count; i++) {
      list.push({ queue: 0, sequence: this.#producers[i] as number, tilewise: this.#tilewise[i] as boolean });
    }
    while (list.length > MOST_DEPENDENCIES) {
      // The last ones: the first may be waited for tile by tile, which only the step itself can.
      const order = { after: -1, dependencies: list.slice(-MOST_DEPENDENCIES).map((each) => ({ ...each, tilewise: false })) };
      const sequence = queue.writeInline(this.#system.operators.builtIn('nop'), 1, [], [1], order);
      this.#counters.tasks++;
      list = [...list.slice(0, -MOST_DEPENDENCIES), { queue: 0, sequence, tilewise: false }];
    }
    return list;
  }

  /** A product that the device does beside its executor: the sequence of the task that stands for it. */
  #beginProduct(step: Step, order: Order, queue: Queue): number | undefined {
    const { ordinary } = this.#system.device;
    const { product, pointers, offsets } = step.stages[0] as Stage;
    if (ordinary === undefined || product === undefined) return undefined;
    const at = (i: number): number => (this.#addresses[pointers[i] as number] as number) + (offsets[i] as number);
    // Its sequence is told before it is written: where room is waited for, the device may submit a task of its own.
    queue.ringSpace();
    const task = ordinary.begin(product, [at(0), at(1), at(2)], queue.index, queue.tail);
    return task && queue.writeInline(task.slot, 1, task.pointers, task.words, order);
  }

  #write(step: Step, params: Block, externals: readonly Tensor[], order: Order, queue: Queue): number {
    const { device } = this.#system;
    const { i32, f32 } = device.views();
    // Parameter blocks name each other, and descriptors name them, by where they stand in the views.
    const base = params.address - device.viewBase;
    const { stages } = step;
    for (let i = 0; i < stages.length; i++) this.#writeStage(i32, f32, stages[i] as Stage, base, externals);
    if (stages.length > 1) {
      let at = ((base + step.params) >> 2) + 2 * MIN_POINTERS;
      i32[at++] = step.units;
      i32[at++] = stages.length;
      for (let i = 0; i < stages.length; i++) {
        const stage = stages[i] as Stage;
        i32[at++] = stage.slot | (paramLines(paramBytes(stage)) << 16);
        i32[at++] = base + stage.params;
      }
    }
    const bytes = stages.length > 1 ? 8 * MIN_POINTERS + 8 + 8 * stages.length : paramBytes(stages[0] as Stage);
    return queue.writeDescriptor(step.slot, step.tiles, params.address + step.params, bytes, order);
  }

  #writeStage(i32: Int32Array, f32: Float32Array, stage: Stage, base: number, externals: readonly Tensor[]): void {
    const at = (base + stage.params) >> 2;
    const { pointers, offsets } = stage;
    const addresses = this.#addresses;
    for (let i = 0; i < pointers.length; i++) {
      const pointer = pointers[i] as number;
      const address = pointer < 0 ? this.#without(pointer) : (addresses[pointer] as number) + (offsets[i] as number);
      i32[at + 2 * i] = address | 0;
      i32[at + 2 * i + 1] = (address / 2 ** 32) | 0;
    }
    writeWords(stage, externals, i32, f32, at + 2 * Math.max(MIN_POINTERS, pointers.length));
  }

  /** The address that stands for a pointer without memory. */
  #without(pointer: number): number {
    return pointer === NO_OPERAND ? 0 : this.#system.device.memory.start;
  }

  readonly #inlinePointers: number[] = [];
  readonly #inlineWords = new Int32Array(INLINE_WORDS);
  readonly #inlineFloats = new Float32Array(this.#inlineWords.buffer);

  #writeInline(step: Step, externals: readonly Tensor[], order: Order, queue: Queue): number {
    const stage = step.stages[0] as Stage;
    const pointers = this.#inlinePointers;
    pointers.length = stage.pointers.length;
    for (let i = 0; i < pointers.length; i++) {
      const pointer = stage.pointers[i] as number;
      pointers[i] = pointer < 0 ? this.#without(pointer) : (this.#addresses[pointer] as number) + (stage.offsets[i] as number);
    }
    const words = this.#inlineWords;
    for (let i = stage.words.length; i < words.length; i++) words[i] = 0;
    writeWords(stage, externals, words, this.#inlineFloats, 0);
    return queue.writeInline(step.slot, step.tiles, pointers, words as unknown as readonly number[], order);
  }

  /** Memory of each packing, submitting what was not packed before. */
  #packings(plan: Plan, externals: readonly Tensor[], queue: Queue): readonly (Storage | undefined)[] {
    if (plan.packings.length === 0) return NO_PACKINGS;
    return plan.packings.map((packing) => {
      if (this.#failed.has(packing.external)) return undefined;
      const external = externals[packing.external] as Tensor;
      const source = external.storage as Storage;
      const key = `${external.offset}|${packing.key}`;
      const known = source.packed?.get(key);
      if (known !== undefined) return known;
      const storage = this.#packOne(packing, external, queue);
      source.packed ??= new Map();
      source.packed.set(key, storage);
      return storage;
    });
  }

  #packOne(packing: Packing, external: Tensor, queue: Queue): Storage {
    const { heap, device } = this.#system;
    const source = external.storage as Storage;
    const storage = new Storage(heap, heap.allocate(packing.elements * 4, queue.mark));
    const target = storage.block;
    const { call } = packing;
    const dependencies = source.producer >= queue.mark ? [{ queue: 0, sequence: source.producer }] : [];
    const from = source.block.address + external.offset * 4 + packing.offsetBytes;
    try {
      storage.producer = submitCall(
        this.#system,
        call,
        (pointer) => ('input' in pointer ? from : 'output' in pointer ? target.address : 0),
        Math.max(1, Math.min(MAX_TILES, call.units, 2 * (device.workers + 1))),
        { after: target.lastUse, dependencies },
      );
    } catch (error) {
      storage.release();
      throw error;
    }
    target.lastUse = source.block.lastUse = storage.producer;
    this.#counters.tasks++;
    return storage;
  }
}
