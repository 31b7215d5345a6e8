import type { Device, KernelCall, OperandView } from '../backends/backend.ts';
import { GpuosError } from '../errors.ts';
import type { DType } from '../ops/define.ts';
import { matmulSizes } from '../ops/matrix.ts';
import { MIN_POINTERS, POINTER_BYTES } from '../ops/program.ts';
import type { Operators } from '../runtime/operators.ts';
import { emitProgram, type Emission } from './emission.ts';
import { Fusion, type FusionResult, type Group, type Operand, type ProgramGroup } from './fusion.ts';
import { type Graph, type GraphNode, isExternal } from './graph.ts';
import type { ShapeInfo } from './shape-info.ts';
import { isContiguous } from './view.ts';

/** One task of a plan: a descriptor and its parameter block but for addresses and sequences. */
export interface Step {
  readonly slot: number;
  readonly tiles: number;
  /** Index into the run's addresses, or -1 for none. */
  readonly pointers: Int32Array;
  /** Byte offset to add to each address. */
  readonly offsets: Int32Array;
  readonly words: Int32Array;
  readonly scalars: readonly { readonly word: number; readonly external: number }[];
  /** Byte offset of its parameter block in the run's. */
  readonly params: number;
  /** Steps that write what it reads; at most 4. */
  readonly dependencies: Int32Array;
  /** It writes memory that steps up to this one use for something else; -1: none. */
  readonly after: number;
  /** Externals that it reads. */
  readonly externals: Int32Array;
}

/** A constant matrix to be brought into the order that matmul reads fastest, once. */
export interface Packing {
  readonly external: number;
  readonly key: string;
  readonly elements: number;
  readonly call: KernelCall;
  readonly offsetBytes: number;
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
}

/** A tile should last at least this long: below it, sharing costs more than it gains. */
const TILE_NS = 6000;
const ELEMENT_BYTES = 4;
const ALIGN_BYTES = 64;
const MAX_DEPENDENCIES = 4;
/** A slot of the workspace is used anew only this many steps later, so that the order that this forces costs nothing. */
const REUSE_DISTANCE = 3;
/** A product of fewer rows than this reads its matrix once either way, so packing gains nothing. */
const PACKING_ROWS = 4;

const align = (bytes: number): number => Math.ceil(bytes / ALIGN_BYTES) * ALIGN_BYTES;

interface Draft {
  readonly slot: number;
  readonly units: number;
  readonly costNs: number;
  readonly pointers: readonly ({ readonly ref: number; readonly offset: number } | undefined)[];
  readonly words: readonly number[];
  readonly scalars: Emission['scalars'];
  readonly writes: readonly number[];
}

export interface PlannerHost {
  readonly device: Device;
  readonly operators: Operators;
}

/** Makes the plan of a graph. */
export class Planner {
  readonly #host: PlannerHost;
  readonly #graph: Graph;
  readonly #fusion: FusionResult;
  readonly #packings: Packing[] = [];

  constructor(host: PlannerHost, graph: Graph, fused: boolean) {
    this.#host = host;
    this.#graph = graph;
    this.#fusion = new Fusion(graph, fused).run();
  }

  plan(): Plan {
    const materialized = this.#materialized();
    const drafts: Draft[] = [];
    for (const group of this.#fusion.groups) drafts.push(...this.#draft(group, materialized));
    return this.#assemble(drafts, materialized);
  }

  #dtype(ref: number): DType {
    // Packings, numbered on from the externals, are of float32 as matmul is.
    if (isExternal(ref)) return this.#graph.externals[~ref]?.dtype ?? 'float32';
    const node = this.#graph.nodes[ref];
    return node === undefined ? (this.#fusion.copies[ref - this.#graph.nodes.length]?.dtype as DType) : node.dtype;
  }

  #info(ref: number): ShapeInfo {
    const node = this.#graph.nodes[ref];
    return node === undefined ? (this.#fusion.copies[ref - this.#graph.nodes.length]?.info as ShapeInfo) : node.info;
  }

  /** Nodes that get memory: read from outside their kernel, or wanted by the caller. */
  #materialized(): Set<number> {
    const result = new Set<number>();
    const read = (ref: number): void => {
      if (!isExternal(ref)) result.add(ref);
    };
    for (const group of this.#fusion.groups) {
      if (group.kind === 'program') {
        for (const member of group.members) for (const arg of member.args) if ('access' in arg) read(arg.access.ref);
      } else if (group.kind === 'copy') {
        read(group.source.base);
        result.add(group.node);
      } else {
        const node = this.#graph.nodes[group.node] as GraphNode;
        for (const ref of node.inputs) read(this.#operand(ref).base);
        result.add(group.node);
      }
    }
    this.#graph.nodes.forEach((node, index) => {
      if (node.needed) read((this.#fusion.operands[index] as Operand).base);
      if (node.output > 0) result.add(index);
    });
    return result;
  }

  #operand(ref: number): Operand {
    if (!isExternal(ref)) return this.#fusion.operands[ref] as Operand;
    const external = this.#graph.externals[~ref] as Graph['externals'][number];
    const view = external.kind === 'storage' ? external.view : { strides: external.info.strides, offset: 0 };
    return { base: ref, info: external.info, view };
  }

  #view(operand: Operand): OperandView {
    return { shape: operand.info.dims, dtype: this.#dtype(operand.base), strides: operand.view.strides, offset: operand.view.offset };
  }

  #draft(group: Group, materialized: ReadonlySet<number>): Draft[] {
    if (group.kind === 'fixed') return this.#draftFixed(group.node);
    if (group.kind === 'copy') {
      const info = this.#info(group.node);
      if (info.size === 0) return [];
      const output = { shape: group.source.info.dims, dtype: this.#dtype(group.node), strides: group.source.info.strides, offset: 0 };
      return [this.#call(this.#host.device.lowerCopy(this.#view(group.source), output), [group.source], [group.node])];
    }
    return this.#draftProgram(group, materialized);
  }

  #draftProgram(group: ProgramGroup, materialized: ReadonlySet<number>): Draft[] {
    const writes = group.members.filter((member) => materialized.has(member.node));
    if (writes.every((member) => this.#info(member.node).size === 0)) return [];
    const emission = emitProgram(group, this.#graph, (ref) => this.#dtype(ref), (node) => materialized.has(node));
    if (emission === undefined) {
      throw new GpuosError('GPUOS_INTERNAL', `A kernel of ${group.members.length} operations has too many dimensions.`);
    }
    const names = group.members.map((member) => (this.#graph.nodes[member.node] as GraphNode).definition.name);
    const name = names.length === 1 ? (names[0] as string) : `fused:${names.length > 6 ? `${names.slice(0, 5).join('+')}+${names.length - 5} more` : names.join('+')}`;
    const { id } = this.#host.operators.inject(emission.program, name);
    return [
      {
        slot: id,
        units: emission.units,
        costNs: emission.costNs,
        pointers: [...emission.reads, ...emission.writes.map((node) => ({ ref: node, offset: 0 }))],
        words: emission.words,
        scalars: emission.scalars,
        writes: emission.writes,
      },
    ];
  }

  #draftFixed(index: number): Draft[] {
    const node = this.#graph.nodes[index] as GraphNode;
    const { device } = this.#host;
    const { name } = node.definition;
    const outputs = [index];
    this.#graph.nodes.forEach((other, i) => {
      if (other.output > 0 && other.inputs[0] === index) outputs[other.output] = i;
    });
    if (outputs.every((output) => this.#info(output).size === 0)) return [];
    const inputs = node.inputs.map((ref) => this.#operand(ref));
    const outputViews = outputs.map((output) => {
      const info = this.#info(output);
      return { shape: info.dims, dtype: this.#dtype(output), strides: info.strides, offset: 0 };
    });
    const packed = name === 'matmul' && this.#pack(node, inputs);
    // What the device's function cannot read with strides is copied first.
    const copies: Draft[] = [];
    inputs.forEach((operand, i) => {
      if (isContiguous(operand.info, operand.view) || device.acceptsStrides(name, i)) return;
      const copy = this.#temporary(operand);
      copies.push(this.#call(device.lowerCopy(this.#view(operand), this.#view(copy)), [operand], [copy.base]));
      inputs[i] = copy;
    });
    const call = device.lower(name, inputs.map((operand) => this.#view(operand)), outputViews, node.attributes, { packed });
    return [...copies, this.#call(call, inputs, outputs)];
  }

  /** Workspace of the operand's size, contiguous. */
  #temporary(operand: Operand): Operand {
    const base = this.#graph.nodes.length + this.#fusion.copies.length;
    this.#fusion.copies.push({ info: operand.info, dtype: this.#dtype(operand.base) });
    return { base, info: operand.info, view: { strides: operand.info.strides, offset: 0 } };
  }

  /**
   * A matrix that is used again and again is packed, if the product has enough rows to gain by it: input
   * 1 then refers to the packing instead. Packings are numbered on from the externals.
   */
  #pack(node: GraphNode, inputs: Operand[]): boolean {
    const { packing } = this.#host.device;
    const [a, b] = inputs as [Operand, Operand];
    const external = isExternal(b.base) ? this.#graph.externals[~b.base] : undefined;
    if (packing === undefined || external?.kind !== 'storage' || !external.reused || b.info.dims.length !== 2) return false;
    const { n, k } = matmulSizes(a.info.dims, b.info.dims, node.attributes);
    if (n * k === 0 || node.info.size / n < PACKING_ROWS) return false;
    const [first, second] = b.view.strides as [number, number];
    const strides = node.attributes['transposeB'] === true ? [second, first] : [first, second];
    const key = `${b.view.offset}/${k}x${n}/${strides.join()}`;
    let index = this.#packings.findIndex((known) => known.external === ~b.base && known.key === key);
    if (index < 0) {
      const elements = packing.elements(k, n);
      const source = { shape: [k, n], dtype: external.dtype, strides, offset: 0 };
      const call = packing.lower(source, { shape: [elements], dtype: external.dtype, strides: [1], offset: 0 });
      index = this.#packings.push({ external: ~b.base, key, elements, call, offsetBytes: b.view.offset * ELEMENT_BYTES }) - 1;
    }
    inputs[1] = { base: ~(this.#graph.externals.length + index), info: b.info, view: { strides: b.info.strides, offset: 0 } };
    return true;
  }

  #call(call: KernelCall, inputs: readonly Operand[], outputs: readonly number[]): Draft {
    return {
      slot: this.#host.operators.builtIn(call.kernel),
      units: call.units,
      costNs: call.costNs,
      pointers: call.pointers.map((pointer) => {
        if ('input' in pointer) {
          const operand = inputs[pointer.input] as Operand;
          return { ref: operand.base, offset: operand.view.offset };
        }
        return 'output' in pointer ? { ref: outputs[pointer.output] as number, offset: 0 } : undefined;
      }),
      words: call.words,
      scalars: [],
      writes: outputs,
    };
  }

  #tiles(draft: Draft): number {
    const workers = this.#host.device.workers + 1;
    return Math.max(1, Math.min(64, draft.units, 2 * workers, Math.round(draft.costNs / TILE_NS)));
  }

  #assemble(drafts: readonly Draft[], materialized: ReadonlySet<number>): Plan {
    const externals = this.#graph.externals.length;
    const ownedOf = new Map<number, number>();
    const owned: { bytes: number; step: number }[] = [];
    this.#graph.nodes.forEach((node, index) => {
      const { base } = this.#fusion.operands[index] as Operand;
      if (!(node.alive || node.needed) || isExternal(base) || !materialized.has(base) || ownedOf.has(base)) return;
      ownedOf.set(base, owned.push({ bytes: this.#info(base).size * ELEMENT_BYTES, step: -1 }) - 1);
    });

    const lastReader = new Map<number, number>();
    drafts.forEach((draft, step) => {
      for (const pointer of draft.pointers) if (pointer !== undefined && !isExternal(pointer.ref)) lastReader.set(pointer.ref, step);
    });

    const firstOwned = externals + this.#packings.length;
    const workspaceAddress = firstOwned + owned.length;
    const workspace = new Workspace();
    const writer = new Map<number, number>();
    const steps: Step[] = [];
    const stepOfDraft: number[] = [];
    let params = 0;
    const push = (step: Omit<Step, 'params'>): number => {
      const at = params;
      params += align(Math.max(MIN_POINTERS, step.pointers.length) * POINTER_BYTES + step.words.length * ELEMENT_BYTES);
      return steps.push({ ...step, params: at }) - 1;
    };
    const nop = this.#host.operators.builtIn('nop');

    drafts.forEach((draft, index) => {
      let after = -1;
      for (const node of draft.writes) {
        if (ownedOf.has(node)) continue;
        const waits = workspace.place(node, this.#info(node).size * ELEMENT_BYTES, index, lastReader.get(node) ?? index);
        if (waits >= 0) after = Math.max(after, stepOfDraft[waits] as number);
      }
      const pointers = new Int32Array(draft.pointers.length).fill(-1);
      const offsets = new Int32Array(draft.pointers.length);
      const reads = new Set<number>();
      const outside = new Set<number>();
      draft.pointers.forEach((pointer, i) => {
        if (pointer === undefined) return;
        const { ref, offset } = pointer;
        offsets[i] = offset * ELEMENT_BYTES;
        if (isExternal(ref)) {
          pointers[i] = ~ref;
          outside.add(~ref);
          return;
        }
        const own = ownedOf.get(ref);
        if (own !== undefined) pointers[i] = firstOwned + own;
        else {
          pointers[i] = workspaceAddress;
          offsets[i] = (offsets[i] as number) + workspace.offset(ref);
        }
        if (!draft.writes.includes(ref)) reads.add(writer.get(ref) ?? -1);
      });
      reads.delete(-1);
      // More producers than a descriptor holds are gathered by tasks that do nothing.
      let dependencies = [...reads].sort((a, b) => a - b);
      while (dependencies.length > MAX_DEPENDENCIES) {
        const joined = dependencies.slice(0, MAX_DEPENDENCIES);
        const empty = new Int32Array(0);
        const join = push({ slot: nop, tiles: 1, pointers: empty, offsets: empty, words: new Int32Array(1), scalars: [], dependencies: Int32Array.from(joined), after: -1, externals: empty });
        dependencies = [...dependencies.slice(MAX_DEPENDENCIES), join];
      }
      const step = push({
        slot: draft.slot,
        tiles: this.#tiles(draft),
        pointers,
        offsets,
        words: Int32Array.from(draft.words),
        scalars: draft.scalars,
        dependencies: Int32Array.from(dependencies),
        after,
        externals: Int32Array.from(outside),
      });
      stepOfDraft.push(step);
      for (const node of draft.writes) {
        writer.set(node, step);
        const own = ownedOf.get(node);
        if (own !== undefined) (owned[own] as { step: number }).step = step;
      }
    });

    const results: Result[] = [];
    this.#graph.nodes.forEach((node, index) => {
      const operand = this.#fusion.operands[index] as Operand;
      if (!(node.alive || node.needed)) return;
      const memory = isExternal(operand.base) ? operand.base : ownedOf.get(operand.base);
      if (memory === undefined) return;
      results.push({ node: index, memory, strides: operand.view.strides, offset: operand.view.offset });
    });
    return { steps, owned, results, packings: this.#packings, workspaceBytes: workspace.bytes, paramsBytes: params, externals };
  }
}

/** Places the intermediate values of a plan; memory whose last reader is far enough back is used anew. */
class Workspace {
  readonly #offsets = new Map<number, number>();
  readonly #busy: { offset: number; bytes: number; until: number }[] = [];
  bytes = 0;

  /** Returns the draft that has to be complete before the place may be written, or -1. */
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
