import type { Device } from '../runtime/device.ts';
import { GpuosError } from '../errors.ts';
import { MIN_POINTERS, POINTER_BYTES } from '../ops/program.ts';
import type { Operators } from '../runtime/operators.ts';
import { type Chain, formChains } from './chains.ts';
import { Drafting, ELEMENT_BYTES, type Packing, type Task } from './drafts.ts';
import { Fusion, type FusionResult, type Operand } from './fusion.ts';
import { type Graph, isExternal } from './graph.ts';
import { tilesFor } from './tiles.ts';

/** One device function of a step: its slot and its parameter block but for addresses. */
export interface Stage {
  readonly slot: number;
  /** Index into the run's addresses, or -1 for none. */
  readonly pointers: Int32Array;
  /** Byte offset to add to each address. */
  readonly offsets: Int32Array;
  readonly words: Int32Array;
  readonly scalars: readonly { readonly word: number; readonly external: number }[];
  /** Byte offset of its parameter block in the run's. */
  readonly params: number;
}

/** One task of a plan. With several stages it is a chain, whose own parameter block names theirs. */
export interface Step {
  readonly slot: number;
  readonly tiles: number;
  readonly units: number;
  readonly stages: readonly Stage[];
  /** Byte offset of the chain's parameter block; that of the only stage otherwise. */
  readonly params: number;
  /** Steps that write what it reads; at most 4. */
  readonly dependencies: Int32Array;
  /** It writes memory that steps up to this one use for something else; -1: none. */
  readonly after: number;
  /** Externals that it reads. */
  readonly externals: Int32Array;
}

/** Where a value that the caller may ask for lies after a run. */
export interface Result {
  readonly node: number;
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

export interface PlannerHost {
  readonly device: Device;
  readonly operators: Operators;
}

/** Makes the plan of a graph. */
export class Planner {
  readonly #host: PlannerHost;
  readonly #graph: Graph;
  readonly #fused: boolean;
  readonly #fusion: FusionResult;
  readonly #drafting: Drafting;
  #paramsBytes = 0;
  readonly #operators = new Set<number>();

  constructor(host: PlannerHost, graph: Graph, fused: boolean) {
    this.#host = host;
    this.#graph = graph;
    this.#fused = fused;
    this.#fusion = new Fusion(graph, fused).run();
    this.#drafting = new Drafting(host.device, graph, this.#fusion);
  }

  plan(): Plan {
    const materialized = this.#drafting.materialized();
    const tasks = this.#drafting.tasks(materialized);
    return this.#assemble(formChains(tasks, this.#fused), materialized);
  }

  #slot(task: Task): number {
    const { operators } = this.#host;
    const id =
      typeof task.function === 'string' ? operators.builtIn(task.function) : operators.inject(task.function.program, task.function.name).id;
    // Held at once: the next injection of this plan may find the table full.
    if (!this.#operators.has(id)) operators.retain([id]);
    this.#operators.add(id);
    return id;
  }

  #tiles(chain: Chain): number {
    const costNs = chain.stages.reduce((sum, task) => sum + task.costNs, 0);
    const units = Math.min(...chain.stages.map((task) => task.units));
    return tilesFor(this.#host.device, costNs, units);
  }

  /** Values with memory of their own, which outlives the plan: for each the index of its output. */
  #owned(materialized: ReadonlySet<number>): Map<number, number> {
    const result = new Map<number, number>();
    this.#graph.nodes.forEach((node, index) => {
      const { base } = this.#fusion.operands[index] as Operand;
      if ((node.alive || node.needed) && !isExternal(base) && materialized.has(base) && !result.has(base)) result.set(base, result.size);
    });
    return result;
  }

  #params(pointers: number, words: number): number {
    const at = this.#paramsBytes;
    this.#paramsBytes += align(Math.max(MIN_POINTERS, pointers) * POINTER_BYTES + words * ELEMENT_BYTES);
    return at;
  }

  #assemble(chains: readonly Chain[], materialized: ReadonlySet<number>): Plan {
    const { packings } = this.#drafting;
    const externals = this.#graph.externals.length;
    const ownedOf = this.#owned(materialized);
    const ownedSteps = new Array<number>(ownedOf.size).fill(-1);
    const firstOwned = externals + packings.length;
    const workspaceAddress = firstOwned + ownedOf.size;

    const lastReader = new Map<number, number>();
    chains.forEach((chain, index) => {
      for (const task of chain.stages) {
        for (const pointer of task.pointers) if (pointer !== undefined && !isExternal(pointer.ref)) lastReader.set(pointer.ref, index);
      }
    });

    const workspace = new Workspace();
    const writer = new Map<number, number>();
    const steps: Step[] = [];
    const stepOf: number[] = []; // chain -> step
    const nop = this.#host.operators.builtIn('nop');
    let total = 0;

    chains.forEach((chain, index) => {
      let after = -1;
      const reads = new Set<number>();
      const outside = new Set<number>();
      const own = new Set(chain.stages.flatMap((task) => task.writes));
      const stages = chain.stages.map((task): Stage => {
        for (const node of task.writes) {
          if (ownedOf.has(node)) continue;
          const waits = workspace.place(node, this.#drafting.info(node).size * ELEMENT_BYTES, index, lastReader.get(node) ?? index);
          if (waits >= 0) after = Math.max(after, stepOf[waits] as number);
        }
        const pointers = new Int32Array(task.pointers.length).fill(-1);
        const offsets = new Int32Array(task.pointers.length);
        task.pointers.forEach((pointer, i) => {
          if (pointer === undefined) return;
          const { ref, offset } = pointer;
          offsets[i] = offset * ELEMENT_BYTES;
          if (isExternal(ref)) {
            pointers[i] = ~ref;
            outside.add(~ref);
            return;
          }
          // Nobody writes what has no elements, and nobody reads it.
          if (this.#drafting.info(ref).size === 0) return;
          const output = ownedOf.get(ref);
          pointers[i] = output !== undefined ? firstOwned + output : workspaceAddress;
          if (output === undefined) offsets[i] = (offsets[i] as number) + workspace.offset(ref);
          if (!own.has(ref)) reads.add(writer.get(ref) ?? -1);
        });
        total += task.costNs;
        const params = this.#params(pointers.length, task.words.length);
        return { slot: this.#slot(task), pointers, offsets, words: Int32Array.from(task.words), scalars: task.scalars, params };
      });
      reads.delete(-1);
      const dependencies = this.#joined(
        [...reads].sort((a, b) => a - b),
        steps,
        nop,
      );
      const chained = stages.length > 1;
      const step = steps.push({
        slot: chained ? this.#host.operators.builtIn('chain') : (stages[0] as Stage).slot,
        tiles: this.#tiles(chain),
        units: chain.units,
        stages,
        params: chained ? this.#params(0, 2 + 2 * stages.length) : (stages[0] as Stage).params,
        dependencies: Int32Array.from(dependencies),
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
        bytes: this.#drafting.info(node).size * ELEMENT_BYTES,
        step: ownedSteps[i] as number,
      })),
      results: this.#results(ownedOf),
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
  #joined(producers: readonly number[], steps: Step[], nop: number): readonly number[] {
    let rest = producers;
    while (rest.length > MAX_DEPENDENCIES) {
      const params = this.#params(0, 1);
      const stage = { slot: nop, pointers: NOTHING, offsets: NOTHING, words: new Int32Array(1), scalars: [], params };
      const dependencies = Int32Array.from(rest.slice(0, MAX_DEPENDENCIES));
      const join = steps.push({ slot: nop, tiles: 1, units: 1, stages: [stage], params, dependencies, after: -1, externals: NOTHING }) - 1;
      rest = [...rest.slice(MAX_DEPENDENCIES), join];
    }
    return rest;
  }

  #results(ownedOf: ReadonlyMap<number, number>): Result[] {
    const results: Result[] = [];
    this.#graph.nodes.forEach((node, index) => {
      if (!node.alive && !node.needed) return;
      const { base, view } = this.#fusion.operands[index] as Operand;
      const memory = isExternal(base) ? base : ownedOf.get(base);
      if (memory !== undefined) results.push({ node: index, memory, strides: view.strides, offset: view.offset });
    });
    return results;
  }
}

/** Places the intermediate values of a plan; memory whose last reader is far enough back is used anew. */
class Workspace {
  readonly #offsets = new Map<number, number>();
  readonly #busy: { offset: number; bytes: number; until: number }[] = [];
  bytes = 0;

  /** Returns the chain that has to be complete before the place may be written, or -1. */
  place(node: number, bytes: number, step: number, lastReader: number): number {
    const size = align(Math.max(1, bytes));
    for (const slot of this.#busy) {
      if (slot.until > step - REUSE_DISTANCE || slot.bytes < size || slot.bytes > 2 * size) continue;
      const waits = slot.until;
      slot.until = lastReader;
      this.#offsets.set(node, slot.offset);
      return waits;
    }
    this.#offsets.set(node, this.bytes);
    this.#busy.push({ offset: this.bytes, bytes: size, until: lastReader });
    this.bytes += size;
    return -1;
  }

  offset(node: number): number {
    const offset = this.#offsets.get(node);
    if (offset === undefined) throw new GpuosError('GPUOS_INTERNAL', `Value ${node} of a plan has no memory.`);
    return offset;
  }
}
