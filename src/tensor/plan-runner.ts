import { GpuosError } from '../errors.ts';
import { MIN_POINTERS } from '../ops/program.ts';
import type { Block } from '../runtime/heap.ts';
import type { Dependency, Queue } from '../runtime/queue.ts';
import type { System } from '../runtime/system.ts';
import type { EngineCounters } from './engine.ts';
import type { Packing, Plan, Result, Step } from './plan.ts';
import { Storage } from './storage.ts';
import type { Tensor } from './tensor.ts';

const INLINE_STEP_WORDS = 7;
const NO_DEPENDENCIES: Dependency[] = [];

/** Fills in a plan's addresses and sequences, and writes its tasks into the ring. */
export class PlanRunner {
  readonly #system: System;
  readonly #counters: EngineCounters;
  #addresses = new Int32Array(256);
  readonly #f32 = new Float32Array(1);
  readonly #f32Bits = new Int32Array(this.#f32.buffer);

  constructor(system: System, counters: EngineCounters) {
    this.#system = system;
    this.#counters = counters;
  }

  /** `settle` is called for every value that the caller may ask for, with the memory that it lies in. */
  run(plan: Plan, externals: readonly Tensor[], settle: (result: Result, storage: Storage, offset: number) => void): void {
    const queue = this.#system.queue(0);
    const { heap } = this.#system;
    queue.refresh();
    const { mark } = queue;
    const count = plan.externals + plan.packings.length + plan.owned.length + 1;
    if (this.#addresses.length < count) this.#addresses = new Int32Array(count * 2);
    const addresses = this.#addresses;
    let failed: unknown;
    for (let i = 0; i < externals.length; i++) {
      const { storage, offset } = externals[i] as Tensor;
      if (storage === undefined) continue;
      addresses[i] = storage.block.address + offset * 4;
      failed ??= this.#failureOf(queue, storage);
    }
    // Memory that is used anew may still be in use by tasks up to here.
    let after = -1;
    const owned: Storage[] = [];
    for (const { bytes } of plan.owned) {
      const block = heap.allocate(bytes, mark);
      after = Math.max(after, block.lastUse);
      addresses[plan.externals + plan.packings.length + owned.length] = block.address;
      owned.push(new Storage(heap, block));
    }
    if (failed === undefined && plan.steps.length > 0) this.#submit(plan, externals, owned, queue, after);
    else for (const storage of owned) storage.error = failed;
    for (const result of plan.results) {
      if (result.memory >= 0) settle(result, (owned[result.memory] as Storage).retain(), result.offset);
      else {
        const external = externals[~result.memory] as Tensor;
        settle(result, (external.storage as Storage).retain(), result.offset + external.offset);
      }
    }
    for (const storage of owned) storage.release();
  }

  /** A value whose task is known to have failed fails what is made of it; its cause stays the first. */
  #failureOf(queue: Queue, storage: Storage): unknown {
    if (storage.error === undefined && storage.producer >= 0 && queue.isComplete(storage.producer)) {
      storage.error = queue.failure(storage.producer);
      if (storage.error === undefined && storage.producer < queue.mark) storage.producer = -1;
    }
    if (storage.error === undefined) return undefined;
    return new GpuosError('GPUOS_DEPENDENCY_FAILED', 'A value that this one is made from was never computed.', { cause: storage.error });
  }

  #submit(plan: Plan, externals: readonly Tensor[], owned: readonly Storage[], queue: Queue, afterBlocks: number): void {
    const { heap, device } = this.#system;
    const addresses = this.#addresses;
    let after = afterBlocks;
    const packings = this.#packings(plan, externals, queue);
    packings.forEach((storage, i) => {
      addresses[plan.externals + i] = storage.block.address;
    });
    let workspace: Block | undefined;
    if (plan.workspaceBytes > 0) {
      workspace = heap.allocate(plan.workspaceBytes, queue.mark);
      after = Math.max(after, workspace.lastUse);
      addresses[plan.externals + plan.packings.length + plan.owned.length] = workspace.address;
    }
    const single = plan.steps.length === 1 ? (plan.steps[0] as Step) : undefined;
    const inline = single !== undefined && single.pointers.length <= MIN_POINTERS && single.words.length <= INLINE_STEP_WORDS;
    const params = inline ? undefined : heap.allocate(plan.paramsBytes, queue.mark, true);
    const sequences = new Array<number>(plan.steps.length);
    let tiles = 0;
    for (let index = 0; index < plan.steps.length; index++) {
      const step = plan.steps[index] as Step;
      const dependencies = this.#dependencies(step, sequences, externals, packings, plan.externals, queue);
      const order = { after: step.after >= 0 ? Math.max(after, sequences[step.after] as number) : after, dependencies };
      if (dependencies.length > 4) {
        // Values still on their way that do not fit: wait for all before it instead; a failure shows when they are read.
        order.after = queue.tail - 1;
        order.dependencies = dependencies.slice(0, 4);
      }
      sequences[index] = params === undefined ? this.#writeInline(step, externals, order, queue) : this.#write(step, params, externals, order, queue);
      tiles += step.tiles;
    }
    const last = queue.tail - 1;
    for (const external of externals) if (external.storage !== undefined) external.storage.block.lastUse = last;
    for (const packing of packings) packing.block.lastUse = last;
    owned.forEach((storage, i) => {
      const { step } = plan.owned[i] as Plan['owned'][number];
      storage.producer = step < 0 ? -1 : (sequences[step] as number);
      storage.block.lastUse = last;
    });
    for (const block of [workspace, params]) {
      if (block === undefined) continue;
      block.lastUse = last;
      heap.release(block);
    }
    this.#counters.tasks += plan.steps.length;
    device.ringDoorbell(tiles);
  }

  #dependencies(step: Step, sequences: readonly number[], externals: readonly Tensor[], packings: readonly Storage[], first: number, queue: Queue): Dependency[] {
    let list = NO_DEPENDENCIES;
    const add = (sequence: number): void => {
      if (sequence < queue.mark || list.some((known) => known.sequence === sequence)) return;
      if (list === NO_DEPENDENCIES) list = [];
      list.push({ queue: 0, sequence });
    };
    for (let i = 0; i < step.dependencies.length; i++) add(sequences[step.dependencies[i] as number] as number);
    for (let i = 0; i < step.externals.length; i++) {
      const external = step.externals[i] as number;
      const storage = external < first ? (externals[external] as Tensor).storage : packings[external - first];
      if (storage !== undefined && storage.producer >= 0) add(storage.producer);
    }
    return list;
  }

  #word(words: Int32Array, at: number, value: number, float: boolean): void {
    if (float) {
      this.#f32[0] = value;
      words[at] = this.#f32Bits[0] as number;
    } else words[at] = value | 0;
  }

  #write(step: Step, params: Block, externals: readonly Tensor[], order: { after: number; dependencies: Dependency[] }, queue: Queue): number {
    const { i32 } = this.#system.device.views();
    const address = params.address + step.params;
    let at = address >> 2;
    const { pointers, offsets, words } = step;
    const addresses = this.#addresses;
    for (let i = 0; i < pointers.length; i++) {
      const pointer = pointers[i] as number;
      i32[at + 2 * i] = pointer < 0 ? 0 : (addresses[pointer] as number) + (offsets[i] as number);
    }
    at += 2 * Math.max(MIN_POINTERS, pointers.length);
    for (let i = 0; i < words.length; i++) i32[at + i] = words[i] as number;
    for (const { word, external } of step.scalars) {
      const tensor = externals[external] as Tensor;
      this.#word(i32, at + word, tensor.value as number, tensor.dtype === 'float32');
    }
    return queue.writeDescriptor(step.slot, step.tiles, address, order);
  }

  readonly #inlinePointers: number[] = [];
  readonly #inlineWords = new Int32Array(INLINE_STEP_WORDS);

  #writeInline(step: Step, externals: readonly Tensor[], order: { after: number; dependencies: Dependency[] }, queue: Queue): number {
    const pointers = this.#inlinePointers;
    pointers.length = step.pointers.length;
    for (let i = 0; i < pointers.length; i++) {
      const pointer = step.pointers[i] as number;
      pointers[i] = pointer < 0 ? 0 : (this.#addresses[pointer] as number) + (step.offsets[i] as number);
    }
    const words = this.#inlineWords;
    words.set(step.words);
    for (const { word, external } of step.scalars) {
      const tensor = externals[external] as Tensor;
      this.#word(words, word, tensor.value as number, tensor.dtype === 'float32');
    }
    return queue.writeInline(step.slot, step.tiles, pointers, words as unknown as readonly number[], order);
  }

  /** Memory of each packing, submitting what was not packed before. */
  #packings(plan: Plan, externals: readonly Tensor[], queue: Queue): Storage[] {
    return plan.packings.map((packing) => {
      const external = externals[packing.external] as Tensor;
      const source = external.storage as Storage;
      const key = `${external.offset}|${packing.key}`;
      if (source.packed?.key === key) return source.packed.storage;
      const storage = this.#packOne(packing, external, queue);
      source.packed?.storage.release();
      source.packed = { key, storage };
      return storage;
    });
  }

  #packOne(packing: Packing, external: Tensor, queue: Queue): Storage {
    const { heap, operators, device } = this.#system;
    const source = external.storage as Storage;
    const target = heap.allocate(packing.elements * 4, queue.mark);
    const { call } = packing;
    const bytes = Math.max(MIN_POINTERS, call.pointers.length) * 8 + call.words.length * 4;
    const params = heap.allocate(bytes, queue.mark, true);
    const { i32 } = device.views();
    let at = params.address >> 2;
    call.pointers.forEach((pointer, i) => {
      i32[at + 2 * i] =
        'input' in pointer ? source.block.address + external.offset * 4 + packing.offsetBytes : 'output' in pointer ? target.address : 0;
    });
    at += 2 * Math.max(MIN_POINTERS, call.pointers.length);
    i32.set(call.words, at);
    const dependencies = source.producer >= queue.mark ? [{ queue: 0, sequence: source.producer }] : [];
    const tiles = Math.max(1, Math.min(64, call.units, 2 * (device.workers + 1)));
    const storage = new Storage(heap, target);
    storage.producer = queue.writeDescriptor(operators.builtIn(call.kernel), tiles, params.address, { after: target.lastUse, dependencies });
    target.lastUse = storage.producer;
    source.block.lastUse = storage.producer;
    params.lastUse = storage.producer;
    heap.release(params);
    this.#counters.tasks++;
    return storage;
  }
}
