import type { Device, MatrixProduct } from '../runtime/device.ts';
import { MIN_POINTERS, POINTER_BYTES } from '../ops/program.ts';
import { elementBytes } from '../ops/dtype.ts';
import type { Operators } from '../runtime/operators.ts';
import { INLINE_POINTERS, INLINE_WORDS } from '../runtime/queue.ts';
import { type Chain, formChains } from './chains.ts';
import type { Variant } from './emission.ts';
import { Drafting, type Packing, type Task } from './drafts.ts';
import { type GraphNode, isExternal } from './graph.ts';
import { formRuns, makes, type Run, readsTilewise, type Uses, usesOf } from './runs.ts';
import type { Instance, Structure } from './structure.ts';
import { align, Workspace } from './workspace.ts';

/** Pointers without memory: of an operand that the kernel does without, and of one that has no elements (of which a kernel may yet look at the first). */
export const NO_OPERAND = -1;
export const NO_ELEMENTS = -2;

/** One device function of a step: its slot and its parameter block but for addresses. */
export interface Stage {
  readonly slot: number;
  /** Index into the run's addresses; NO_OPERAND or NO_ELEMENTS. */
  readonly pointers: readonly number[];
  /** Byte offset to add to each address. */
  readonly offsets: readonly number[];
  readonly words: readonly number[];
  /** Externals whose values the last of the words are. */
  readonly scalars: readonly number[];
  /** Byte offset of its parameter block in the run's. */
  readonly params: number;
  /** Of a step of one stage: see KernelCall.product. */
  readonly product?: MatrixProduct | undefined;
}

/** One task of a plan. With several stages it is a chain, whose own parameter block names theirs. */
export interface Step {
  readonly slot: number;
  readonly tiles: number;
  readonly units: number;
  readonly stages: readonly Stage[];
  /** Byte offset of the chain's parameter block, or that of the only stage; -1: it fits the descriptor. */
  readonly params: number;
  /** Steps that write what it reads; at most 4. */
  readonly dependencies: readonly number[];
  /** Bit i: a tile of it needs only the same tile of dependency i. */
  readonly tilewise: number;
  /** It writes memory that steps up to this one use for something else; -1: none. */
  readonly after: number;
  /** Externals that it reads. */
  readonly externals: readonly number[];
}

/** Where a value that the caller may ask for lies after a run. */
export interface Result {
  /** See GraphNode.tag. */
  readonly tag: number;
  /** Owned output, or ~external for a view of one. */
  readonly memory: number;
  readonly strides: readonly number[];
  readonly offset: number;
}

/**
 * A computation as tasks. A run's addresses are, in order: externals, packings, owned outputs, and the
 * workspace in which everything else lies.
 */
export interface Plan {
  readonly steps: readonly Step[];
  readonly owned: readonly { readonly bytes: number; readonly step: number }[];
  readonly results: readonly Result[];
  readonly packings: readonly Packing[];
  readonly workspaceBytes: number;
  readonly paramsBytes: number;
  readonly externals: number;
  /** Slots of the operator table that its steps name, built-in ones included. */
  readonly operators: readonly number[];
  /** Tiles of all steps. */
  readonly tiles: number;
  /** Estimate of the whole work on one core. */
  readonly costNs: number;
}

const MAX_DEPENDENCIES = 4;
const NOTHING: readonly number[] = [];
/** Of a parameter block. */
const WORD_BYTES = 4;

export interface PlannerHost {
  readonly device: Device;
  readonly operators: Operators;
}

/** Makes the plan of a structure at given sizes. */
export class Planner {
  readonly #host: PlannerHost;
  readonly #structure: Structure;
  readonly #drafting: Drafting;
  readonly #externals: number;
  #operators: number[] | undefined;
  #paramsBytes = 0;
  #costNs = 0;

  // What assembling the steps goes by.
  #chains: readonly Chain[] = NO_CHAINS;
  #runs: readonly Run[] = NO_RUNS;
  #uses: Uses | undefined;
  #steps: Step[] = [];
  #stepCount = 0;
  /** The step that each chain has become. */
  #stepOf: number[] = [];
  /** The step that writes each value. */
  readonly #writer = new Writers();
  #workspace: Workspace | undefined;
  /** The address behind those of externals and packings. */
  #firstOwned = 0;

  constructor(host: PlannerHost, instance: Instance) {
    this.#host = host;
    this.#structure = instance.structure;
    this.#drafting = new Drafting(host.device, instance);
    this.#externals = instance.externals.length;
  }

  plan(): Plan {
    const drafting = this.#drafting;
    const chains = formChains(drafting.tasks(), this.#structure.fused, drafting);
    const owned = this.#owned();
    this.#firstOwned = this.#externals + drafting.packings.length;
    this.#chains = chains;
    this.#runs = formRuns(chains, this.#host.device);
    this.#uses = usesOf(chains, this.#runs);
    this.#steps = new Array<Step>(chains.length);
    this.#stepOf = new Array<number>(chains.length);
    for (let index = 0; index < chains.length; index++) this.#addStep(index, owned);
    const steps = this.#steps;
    let tiles = 0;
    for (let i = 0; i < steps.length; i++) tiles += (steps[i] as Step).tiles;
    return {
      steps,
      owned,
      results: this.#results(),
      packings: drafting.packings,
      workspaceBytes: this.#workspace?.bytes ?? 0,
      paramsBytes: this.#paramsBytes,
      externals: this.#externals,
      operators: this.#operators ?? NOTHING,
      tiles,
      costNs: this.#costNs,
    };
  }

  #slot(task: Task): number {
    const { operators } = this.#host;
    const id = typeof task.function === 'string' ? operators.builtIn(task.function) : this.#injected(task.function);
    if (this.#operators?.includes(id) === true) return id;
    // Held at once: the next injection of this plan may find the table full.
    operators.retain([id]);
    if (this.#operators === undefined) this.#operators = [id];
    else this.#operators.push(id);
    return id;
  }

  #injected(variant: Variant): number {
    if (variant.slot !== undefined) return variant.slot;
    const { operators } = this.#host;
    const { id } = operators.inject(variant.program(), variant.name);
    const { slots } = this.#structure;
    if (!slots.has(id)) operators.retain([id]);
    slots.add(id);
    variant.slot = id;
    return id;
  }

  #params(pointers: number, words: number): number {
    const at = this.#paramsBytes;
    this.#paramsBytes += align(Math.max(MIN_POINTERS, pointers) * POINTER_BYTES + words * WORD_BYTES);
    return at;
  }

  /** Its outputs, before it is known which steps write them. */
  #owned(): { readonly bytes: number; step: number }[] {
    const { ownedNodes } = this.#structure;
    const owned = new Array<{ readonly bytes: number; step: number }>(ownedNodes.length);
    for (let i = 0; i < ownedNodes.length; i++) owned[i] = { bytes: this.#drafting.bytes(ownedNodes[i] as number), step: -1 };
    return owned;
  }

  /** Makes the chain a step. */
  #addStep(index: number, owned: readonly { step: number }[]): void {
    const chain = this.#chains[index] as Chain;
    const run = this.#runs[index] as Run;
    const stages = new Array<Stage>(chain.stages.length);
    let after = -1;
    for (let i = 0; i < stages.length; i++) {
      const task = chain.stages[i] as Task;
      after = Math.max(after, this.#place(task, chain, index));
      stages[i] = this.#stage(task, chain);
    }
    const chained = stages.length > 1;
    const first = stages[0] as Stage;
    const dependencies = this.#dependencies(chain, index);
    const params = chained ? this.#params(0, 2 + 2 * stages.length) : first.params;
    const step = this.#stepCount++;
    this.#steps[step] = {
      slot: chained ? this.#host.operators.builtIn('chain') : first.slot,
      tiles: run.tiles,
      units: chain.units,
      stages,
      params,
      dependencies,
      tilewise: run.first < index ? 1 : 0,
      after,
      externals: externalsOf(chain),
    };
    this.#stepOf[index] = step;
    for (const task of chain.stages) {
      for (let i = 0; i < task.writes.length; i++) {
        const node = task.writes[i] as number;
        // Nobody reads after the last one.
        if (index < this.#chains.length - 1) this.#writer.set(node, step);
        const output = this.#structure.owned.get(node);
        if (output !== undefined) (owned[output] as { step: number }).step = step;
      }
    }
  }

  /** Places what the task writes; the step that has to be complete before it may, or -1. */
  #place(task: Task, chain: Chain, index: number): number {
    const uses = this.#uses;
    let after = -1;
    for (let i = 0; i < task.writes.length; i++) {
      const node = task.writes[i] as number;
      if (this.#structure.owned.has(node)) continue;
      this.#workspace ??= new Workspace();
      const waits = this.#workspace.place(
        node,
        this.#drafting.bytes(node),
        elementBytes(this.#drafting.dtype(node)),
        index,
        uses?.lastReader.get(node) ?? index,
        uses === undefined || uses.inRun.has(node) ? (this.#runs[index] as Run).first : -1,
        isElementWise(chain),
      );
      if (waits >= 0) after = Math.max(after, this.#stepOf[waits] as number);
    }
    return after;
  }

  #stage(task: Task, chain: Chain): Stage {
    const count = task.pointers.length;
    const pointers = new Array<number>(count);
    const offsets = new Array<number>(count);
    for (let i = 0; i < count; i++) {
      const pointer = task.pointers[i];
      offsets[i] = pointer === undefined ? 0 : pointer.offset * elementBytes(this.#drafting.dtype(pointer.ref));
      pointers[i] = pointer === undefined ? NO_OPERAND : this.#address(pointer.ref);
      if (pointers[i] === this.#workspaceAddress) {
        offsets[i] = (offsets[i] as number) + (this.#workspace as Workspace).offset((pointer as { ref: number }).ref);
      }
    }
    this.#costNs += task.costNs;
    const alone = chain.stages.length === 1;
    const inline = alone && count <= INLINE_POINTERS && task.words.length <= INLINE_WORDS;
    const params = inline ? -1 : this.#params(count, task.words.length);
    const { words, scalars } = task;
    return { slot: this.#slot(task), pointers, offsets, words, scalars, params, product: alone ? task.product : undefined };
  }

  get #workspaceAddress(): number {
    return this.#firstOwned + this.#structure.ownedNodes.length;
  }

  /** Which of a run's addresses the value's is. */
  #address(ref: number): number {
    if (isExternal(ref)) return ~ref;
    if (this.#drafting.info(ref).size === 0) return NO_ELEMENTS;
    const output = this.#structure.owned.get(ref);
    return output === undefined ? this.#workspaceAddress : this.#firstOwned + output;
  }

  /** The steps that the chain has to wait for. */
  #dependencies(chain: Chain, index: number): readonly number[] {
    if (index === 0) return NOTHING;
    const { first } = this.#runs[index] as Run;
    // Tile by tile, a run is in order: of what it reads in that way only the step before has to be waited for.
    const previous = first < index ? (this.#stepOf[index - 1] as number) : -1;
    const reads: number[] = [];
    for (const task of chain.stages) {
      for (let i = 0; i < task.pointers.length; i++) {
        const ref = task.pointers[i]?.ref;
        if (ref === undefined || isExternal(ref) || makes(chain, ref) || this.#drafting.info(ref).size === 0) continue;
        const step = this.#writer.get(ref);
        if (step < 0 || reads.includes(step) || step === previous) continue;
        if (previous < 0 || !this.#isBehind(step, chain, first, index)) reads.push(step);
      }
    }
    reads.sort((a, b) => a - b);
    if (previous < 0) return this.#joined(reads, MAX_DEPENDENCIES);
    return [previous, ...this.#joined(reads, MAX_DEPENDENCIES - 1)];
  }

  /** Whether the step is an earlier one of the run, and the chain reads of it tile by tile. */
  #isBehind(step: number, chain: Chain, first: number, index: number): boolean {
    const producer = this.#stepOf.indexOf(step);
    return producer >= first && producer < index && readsTilewise(chain, this.#chains[producer] as Chain);
  }

  /** More producers than a descriptor holds are gathered by tasks that do nothing. */
  #joined(producers: readonly number[], most: number): readonly number[] {
    let rest = producers;
    while (rest.length > most) {
      const nop = this.#host.operators.builtIn('nop');
      const stage = { slot: nop, pointers: NOTHING, offsets: NOTHING, words: ONE_UNIT, scalars: NOTHING, params: -1, product: undefined };
      const join = this.#stepCount++;
      this.#steps[join] = {
        slot: nop,
        tiles: 1,
        units: 1,
        stages: [stage],
        params: -1,
        dependencies: rest.slice(0, MAX_DEPENDENCIES),
        tilewise: 0,
        after: -1,
        externals: NOTHING,
      };
      rest = [...rest.slice(MAX_DEPENDENCIES), join];
    }
    return rest;
  }

  #results(): Result[] {
    const { graph, results, owned } = this.#structure;
    const list = new Array<Result>(results.length);
    for (let i = 0; i < results.length; i++) {
      const index = results[i] as number;
      const { base, view } = this.#drafting.operand(index);
      const memory = isExternal(base) ? base : (owned.get(base) as number);
      list[i] = { tag: (graph.nodes[index] as GraphNode).tag, memory, strides: view.strides, offset: view.offset };
    }
    return list;
  }
}

const NO_CHAINS: readonly Chain[] = [];
const NO_RUNS: readonly Run[] = [];
/** The one word of a task that does nothing. */
const ONE_UNIT: readonly number[] = [0];

/** The step that writes each value. Of a plan of one step nobody asks. */
class Writers {
  #steps: Map<number, number> | undefined;

  set(node: number, step: number): void {
    this.#steps ??= new Map();
    this.#steps.set(node, step);
  }

  /** -1: none. */
  get(node: number): number {
    return this.#steps?.get(node) ?? -1;
  }
}

/** The externals that a chain reads, each once. */
function externalsOf({ stages }: Chain): readonly number[] {
  let most = 0;
  for (const task of stages) most += task.pointers.length;
  const list = new Array<number>(most);
  let count = 0;
  for (const task of stages) {
    for (let i = 0; i < task.pointers.length; i++) {
      const ref = task.pointers[i]?.ref;
      if (ref === undefined || !isExternal(ref)) continue;
      let known = 0;
      while (known < count && list[known] !== ~ref) known++;
      if (known === count) list[count++] = ~ref;
    }
  }
  if (count < most) list.length = count;
  return list;
}

/** Each element of its one result is made from the same elements of what it reads, and stored after they are loaded. */
function isElementWise({ stages, split }: Chain): boolean {
  return stages.length === 1 && split < 0 && stages[0]?.writes.length === 1;
}
