import type { Device, MatrixProduct } from '../runtime/device.ts';
import { GpuosError } from '../errors.ts';
import { MIN_POINTERS, POINTER_BYTES } from '../ops/program.ts';
import { elementBytes } from '../ops/dtype.ts';
import type { Operators } from '../runtime/operators.ts';
import { INLINE_POINTERS, INLINE_WORDS } from '../runtime/queue.ts';
import { type Chain, formChains } from './chains.ts';
import type { Variant } from './emission.ts';
import { Drafting, type Packing, type Task } from './drafts.ts';
import { type GraphNode, isExternal } from './graph.ts';
import type { Instance, Structure } from './structure.ts';
import { runTiles, tilesFor } from './tiles.ts';

/** Pointers without memory: of an operand that the kernel does without, and of one that has no elements (of which a kernel may yet look at the first). */
export const NO_OPERAND = -1;
export const NO_ELEMENTS = -2;

/** One device function of a step: its slot and its parameter block but for addresses. */
export interface Stage {
  readonly slot: number;
  /** Index into the run's addresses; NO_OPERAND or NO_ELEMENTS. */
  readonly pointers: Int32Array;
  /** Byte offset to add to each address. */
  readonly offsets: Int32Array;
  readonly words: Int32Array;
  readonly scalars: readonly { readonly word: number; readonly external: number }[];
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
  readonly dependencies: Int32Array;
  /** Bit i: a tile of it needs only the same tile of dependency i. */
  readonly tilewise: number;
  /** It writes memory that steps up to this one use for something else; -1: none. */
  readonly after: number;
  /** Externals that it reads. */
  readonly externals: Int32Array;
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
  readonly operators: ReadonlySet<number>;
  /** Tiles of all steps. */
  readonly tiles: number;
  /** Estimate of the whole work on one core. */
  readonly costNs: number;
}

const ALIGN_BYTES = 64;
const MAX_DEPENDENCIES = 4;
/** A slot of the workspace is used anew only this many steps later, so that the order that this forces costs nothing. */
const REUSE_DISTANCE = 3;

const align = (bytes: number): number => Math.ceil(bytes / ALIGN_BYTES) * ALIGN_BYTES;
const NOTHING = new Int32Array(0);
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
  #paramsBytes = 0;
  readonly #operators = new Set<number>();

  constructor(host: PlannerHost, instance: Instance) {
    this.#host = host;
    this.#structure = instance.structure;
    this.#drafting = new Drafting(host.device, instance);
    this.#externals = instance.externals.length;
  }

  readonly #externals: number;

  plan(): Plan {
    return this.#assemble(formChains(this.#drafting.tasks(), this.#structure.fused));
  }

  #slot(task: Task): number {
    const { operators } = this.#host;
    const id =
      typeof task.function === 'string' ? operators.builtIn(task.function) : this.#injected(task.function.variant, task.function.name);
    // Held at once: the next injection of this plan may find the table full.
    if (!this.#operators.has(id)) operators.retain([id]);
    this.#operators.add(id);
    return id;
  }

  #injected(variant: Variant, name: string): number {
    if (variant.slot !== undefined) return variant.slot;
    const { operators } = this.#host;
    const { id } = operators.inject(variant.program(), name);
    const { slots } = this.#structure;
    if (!slots.has(id)) operators.retain([id]);
    slots.add(id);
    variant.slot = id;
    return id;
  }

  /** Splits the chains, given in the order in which they are submitted, into runs. */
  #runs(chains: readonly Chain[]): Run[] {
    const runs: Run[] = [];
    const { device } = this.#host;
    let first = 0;
    chains.forEach((chain, index) => {
      const next = chains[index + 1];
      if (next !== undefined && readsTilewise(next, chain)) return;
      const costs = chains.slice(first, index + 1).map(({ stages }) => stages.reduce((sum, task) => sum + task.costNs, 0));
      const units = Math.min(...chain.stages.map((task) => task.units));
      const tiles = costs.length === 1 ? tilesFor(device, costs[0] as number, units) : runTiles(device, costs, units);
      // With one tile each there is nothing to go on with: then they are ordinary steps.
      if (costs.length > 1 && tiles === 1) for (let i = first; i <= index; i++) runs.push({ first: i, tiles });
      else for (let i = first; i <= index; i++) runs.push({ first, tiles });
      first = index + 1;
    });
    return runs;
  }

  #params(pointers: number, words: number): number {
    const at = this.#paramsBytes;
    this.#paramsBytes += align(Math.max(MIN_POINTERS, pointers) * POINTER_BYTES + words * WORD_BYTES);
    return at;
  }

  #assemble(chains: readonly Chain[]): Plan {
    const { packings } = this.#drafting;
    const externals = this.#externals;
    const ownedOf = this.#structure.owned;
    const ownedSteps = new Array<number>(ownedOf.size).fill(-1);
    const firstOwned = externals + packings.length;
    const workspaceAddress = firstOwned + ownedOf.size;

    const runs = this.#runs(chains);
    const { lastReader, inRun } = lifetimes(chains, runs);
    const workspace = new Workspace();
    const writer = new Map<number, number>();
    const steps: Step[] = [];
    const stepOf: number[] = []; // chain -> step
    const nop = this.#host.operators.builtIn('nop');
    let total = 0;

    chains.forEach((chain, index) => {
      const run = runs[index] as Run;
      let after = -1;
      const reads = new Set<number>();
      const outside = new Set<number>();
      const own = new Set(chain.stages.flatMap((task) => task.writes));
      const stages = chain.stages.map((task): Stage => {
        for (const node of task.writes) {
          if (ownedOf.has(node)) continue;
          const waits = workspace.place(
            node,
            this.#drafting.bytes(node),
            elementBytes(this.#drafting.dtype(node)),
            index,
            lastReader.get(node) ?? index,
            inRun.has(node) ? run.first : -1,
            isElementWise(chain),
          );
          if (waits >= 0) after = Math.max(after, stepOf[waits] as number);
        }
        const pointers = new Int32Array(task.pointers.length).fill(NO_OPERAND);
        const offsets = new Int32Array(task.pointers.length);
        task.pointers.forEach((pointer, i) => {
          if (pointer === undefined) return;
          const { ref, offset } = pointer;
          offsets[i] = offset * elementBytes(this.#drafting.dtype(ref));
          if (isExternal(ref)) {
            pointers[i] = ~ref;
            outside.add(~ref);
            return;
          }
          if (this.#drafting.info(ref).size === 0) {
            pointers[i] = NO_ELEMENTS;
            return;
          }
          const output = ownedOf.get(ref);
          pointers[i] = output !== undefined ? firstOwned + output : workspaceAddress;
          if (output === undefined) offsets[i] = (offsets[i] as number) + workspace.offset(ref);
          if (!own.has(ref)) reads.add(writer.get(ref) ?? -1);
        });
        total += task.costNs;
        const inline = chain.stages.length === 1 && pointers.length <= INLINE_POINTERS && task.words.length <= INLINE_WORDS;
        const params = inline ? -1 : this.#params(pointers.length, task.words.length);
        const product = chain.stages.length === 1 ? task.product : undefined;
        return { slot: this.#slot(task), pointers, offsets, words: Int32Array.from(task.words), scalars: task.scalars, params, product };
      });
      reads.delete(-1);
      // Tile by tile, a run is in order: of what it reads in that way only the step before has to be waited for.
      const previous = run.first < index ? (stepOf[index - 1] as number) : -1;
      const behind = (step: number): boolean => {
        const producer = stepOf.indexOf(step);
        return producer >= run.first && producer < index && readsTilewise(chain, chains[producer] as Chain);
      };
      const dependencies = this.#joined(
        [...reads].filter((step) => step !== previous && (previous < 0 || !behind(step))).sort((a, b) => a - b),
        steps,
        nop,
        previous < 0 ? MAX_DEPENDENCIES : MAX_DEPENDENCIES - 1,
      );
      const chained = stages.length > 1;
      const step = steps.push({
        slot: chained ? this.#host.operators.builtIn('chain') : (stages[0] as Stage).slot,
        tiles: run.tiles,
        units: chain.units,
        stages,
        params: chained ? this.#params(0, 2 + 2 * stages.length) : (stages[0] as Stage).params,
        dependencies: Int32Array.from(previous < 0 ? dependencies : [previous, ...dependencies]),
        tilewise: previous < 0 ? 0 : 1,
        after,
        externals: Int32Array.from(outside),
      });
      stepOf.push(step - 1);
      for (const node of own) {
        writer.set(node, step - 1);
        const output = ownedOf.get(node);
        if (output !== undefined) ownedSteps[output] = step - 1;
      }
    });

    return {
      steps,
      owned: [...ownedOf.keys()].map((node, i) => ({
        bytes: this.#drafting.bytes(node),
        step: ownedSteps[i] as number,
      })),
      results: this.#results(),
      packings,
      workspaceBytes: workspace.bytes,
      paramsBytes: this.#paramsBytes,
      externals,
      operators: this.#operators,
      tiles: steps.reduce((sum, step) => sum + step.tiles, 0),
      costNs: total,
    };
  }

  /** More producers than a descriptor holds are gathered by tasks that do nothing. */
  #joined(producers: readonly number[], steps: Step[], nop: number, most: number): readonly number[] {
    let rest = producers;
    while (rest.length > most) {
      const stage = { slot: nop, pointers: NOTHING, offsets: NOTHING, words: new Int32Array(1), scalars: [], params: -1 };
      const dependencies = Int32Array.from(rest.slice(0, MAX_DEPENDENCIES));
      const join =
        steps.push({
          slot: nop,
          tiles: 1,
          units: 1,
          stages: [stage],
          params: -1,
          dependencies,
          tilewise: 0,
          after: -1,
          externals: NOTHING,
        }) - 1;
      rest = [...rest.slice(MAX_DEPENDENCIES), join];
    }
    return rest;
  }

  #results(): Result[] {
    const { graph, results, owned } = this.#structure;
    return results.map((index) => {
      const { base, view } = this.#drafting.operand(index);
      const memory = isExternal(base) ? base : (owned.get(base) as number);
      return { tag: (graph.nodes[index] as GraphNode).tag, memory, strides: view.strides, offset: view.offset };
    });
  }
}

/**
 * A run of chains: a tile of each needs of the one before only what the same tile of it made. A worker
 * goes through it with one tile, whose data stays in its core's cache.
 */
interface Run {
  /** Index of its first chain. */
  readonly first: number;
  /** Tiles of each of its chains. */
  readonly tiles: number;
}

/** Each element of its one result is made from the same elements of what it reads, and stored after they are loaded. */
function isElementWise({ stages, split }: Chain): boolean {
  return stages.length === 1 && split < 0 && stages[0]?.writes.length === 1;
}

/** Whether `chain` reads from `producer`, and a piece of that only in the piece of its own that has the same number. */
function readsTilewise(chain: Chain, producer: Chain): boolean {
  if (chain.split === 0 || chain.split !== producer.split || chain.units < 2) return false;
  const made = new Set(producer.stages.flatMap((task) => task.writes));
  let reads = false;
  for (const task of chain.stages) {
    for (let i = 0; i < task.pointers.length; i++) {
      const pointer = task.pointers[i];
      if (pointer === undefined || !made.has(pointer.ref)) continue;
      if (task.aligned?.includes(i) !== true) return false;
      reads = true;
    }
  }
  return reads;
}

/** The last chain that reads each value, and the values that only their own run reads, piece by piece. */
function lifetimes(chains: readonly Chain[], runs: readonly Run[]): { lastReader: Map<number, number>; inRun: Set<number> } {
  const lastReader = new Map<number, number>();
  const writer = new Map<number, number>();
  const inRun = new Set<number>();
  chains.forEach((chain, index) => {
    for (const task of chain.stages) {
      for (const node of task.writes) {
        writer.set(node, index);
        inRun.add(node);
      }
    }
  });
  chains.forEach((chain, index) => {
    for (const task of chain.stages) {
      task.pointers.forEach((pointer, i) => {
        if (pointer === undefined || isExternal(pointer.ref)) return;
        lastReader.set(pointer.ref, index);
        const from = writer.get(pointer.ref) ?? -1;
        if (from < 0 || (runs[from] as Run).first !== (runs[index] as Run).first || (from !== index && task.aligned?.includes(i) !== true))
          inRun.delete(pointer.ref);
      });
    }
  });
  return { lastReader, inRun };
}

interface Slot {
  readonly offset: number;
  /** Room. */
  readonly bytes: number;
  /** Bytes of what lies there, and of an element of it. */
  used: number;
  unit: number;
  /** Last chain that reads what lies there. */
  until: number;
  /** First chain of the run that alone reads what lies there, piece by piece; -1: there is none. */
  run: number;
}

/**
 * Places the intermediate values of a plan. Memory is used anew when its last reader is far enough back;
 * within a run at once, since a tile comes to its next chain only after the one before, and pieces of
 * values of equal size lie in equal places.
 */
class Workspace {
  readonly #offsets = new Map<number, number>();
  readonly #slots: Slot[] = [];
  bytes = 0;

  /**
   * Returns the chain that has to be complete before the place may be written, or -1. `run`: the first chain of
   * the run that alone reads the value, or -1. `inPlace`: it may lie where the chain itself reads its input.
   */
  place(node: number, bytes: number, unit: number, chain: number, lastReader: number, run: number, inPlace: boolean): number {
    const size = align(Math.max(1, bytes));
    const fits = (slot: Slot): boolean => slot.bytes >= size && slot.bytes <= 2 * size;
    const isFree = (slot: Slot): boolean => slot.until < chain || (inPlace && slot.until === chain);
    // Elements of another width would lie in other places, although the bytes are as many.
    const alike = (slot: Slot): boolean => slot.used === bytes && slot.unit === unit;
    let slot = run >= 0 ? this.#slots.find((known) => known.run === run && isFree(known) && alike(known)) : undefined;
    let waits = -1;
    if (slot === undefined) {
      slot = this.#slots.find((known) => known.until <= chain - REUSE_DISTANCE && fits(known));
      if (slot !== undefined) waits = slot.until;
    }
    if (slot === undefined) {
      slot = { offset: this.bytes, bytes: size, used: bytes, unit, until: lastReader, run: -1 };
      this.#slots.push(slot);
      this.bytes += size;
    }
    slot.used = bytes;
    slot.unit = unit;
    slot.until = lastReader;
    slot.run = run;
    this.#offsets.set(node, slot.offset);
    return waits;
  }

  offset(node: number): number {
    const offset = this.#offsets.get(node);
    if (offset === undefined) throw new GpuosError('GPUOS_INTERNAL', `Value ${node} of a plan has no memory.`);
    return offset;
  }
}
