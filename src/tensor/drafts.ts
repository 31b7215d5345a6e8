import type { Device, KernelCall, MatrixProduct, OperandView } from '../runtime/device.ts';
import { GpuosError } from '../errors.ts';
import type { DType } from '../ops/define.ts';
import { elementBytes } from '../ops/dtype.ts';
import { matmulSizes } from '../ops/matrix.ts';
import type { Program } from '../ops/program.ts';
import { emitProgram, type Emission } from './emission.ts';
import type { FusionResult, Group, Operand, ProgramGroup } from './fusion.ts';
import { type Graph, type GraphNode, isExternal } from './graph.ts';
import { shapeInfo, type ShapeInfo } from './shape-info.ts';
import { isContiguous } from './view.ts';

/** A device function and what it works on, before it has addresses or a place in the order. */
export interface Task {
  /** A built-in function's name, or a program to be injected. */
  readonly function: string | { readonly program: Program; readonly name: string };
  readonly units: number;
  /** See Chain.split. */
  readonly split: number;
  readonly costNs: number;
  readonly pointers: readonly ({ readonly ref: number; readonly offset: number } | undefined)[];
  readonly words: readonly number[];
  readonly scalars: Emission['scalars'];
  /** Values that it makes. */
  readonly writes: readonly number[];
  /** See KernelCall.aligned; indices of `pointers`. */
  readonly aligned: readonly number[] | undefined;
  /** See KernelCall.product. */
  readonly product?: MatrixProduct | undefined;
  /** The same task split into this many rows, if it can be. */
  readonly withRows?: (rows: number) => Task | undefined;
}

/** A constant matrix to be brought into the order that matmul reads fastest, once. */
export interface Packing {
  readonly external: number;
  readonly key: string;
  readonly elements: number;
  readonly call: KernelCall;
  readonly offsetBytes: number;
}

/** A product of fewer rows than this reads its matrix once either way, so packing gains nothing. */
const PACKING_ROWS = 4;
/** Names in a fused operator's name. */
const NAMED = 6;

/** Turns groups of nodes into tasks. Values are numbered: graph nodes, then the planner's copies; ~k: external k, then packings. */
export class Drafting {
  readonly #device: Device;
  readonly #graph: Graph;
  readonly #fusion: FusionResult;
  readonly packings: Packing[] = [];

  constructor(device: Device, graph: Graph, fusion: FusionResult) {
    this.#device = device;
    this.#graph = graph;
    this.#fusion = fusion;
  }

  dtype(ref: number): DType {
    // Packings, numbered on from the externals, are of float32 as matmul is.
    if (isExternal(ref)) return this.#graph.externals[~ref]?.dtype ?? 'float32';
    const node = this.#graph.nodes[ref];
    return node === undefined ? (this.#fusion.copies[ref - this.#graph.nodes.length]?.dtype as DType) : node.dtype;
  }

  info(ref: number): ShapeInfo {
    if (isExternal(ref)) return (this.#graph.externals[~ref] as Graph['externals'][number]).info;
    const node = this.#graph.nodes[ref];
    return node === undefined ? (this.#fusion.copies[ref - this.#graph.nodes.length]?.info as ShapeInfo) : node.info;
  }

  /** Bytes that a value takes in memory. */
  bytes(ref: number): number {
    return this.info(ref).size * elementBytes(this.dtype(ref));
  }

  /** Nodes that get memory: read from outside their kernel, or wanted by the caller. */
  materialized(): Set<number> {
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

  tasks(materialized: ReadonlySet<number>): Task[] {
    return this.#fusion.groups.flatMap((group) => this.#group(group, materialized));
  }

  #operand(ref: number): Operand {
    if (!isExternal(ref)) return this.#fusion.operands[ref] as Operand;
    const external = this.#graph.externals[~ref] as Graph['externals'][number];
    const view = external.kind === 'storage' ? external.view : { strides: external.info.strides, offset: 0 };
    return { base: ref, info: external.info, view };
  }

  #view(operand: Operand): OperandView {
    return { shape: operand.info.dims, dtype: this.dtype(operand.base), strides: operand.view.strides, offset: operand.view.offset };
  }

  #group(group: Group, materialized: ReadonlySet<number>): Task[] {
    if (group.kind === 'fixed') return this.#fixed(group.node);
    if (group.kind === 'copy') {
      const info = this.info(group.node);
      if (info.size === 0) return [];
      const output = { shape: group.source.info.dims, dtype: this.dtype(group.node), strides: group.source.info.strides, offset: 0 };
      return [this.#call(this.#device.lowerCopy(this.#view(group.source), output), [group.source], [group.node])];
    }
    if (group.members.every((member) => !materialized.has(member.node) || this.info(member.node).size === 0)) return [];
    const task = this.#program(group, materialized, undefined);
    if (task === undefined)
      throw new GpuosError('GPUOS_INTERNAL', `A kernel of ${group.members.length} operations has too many dimensions.`);
    return [task];
  }

  #program(group: ProgramGroup, materialized: ReadonlySet<number>, rows: number | undefined): Task | undefined {
    const emission = emitProgram(group, this.#graph, {
      dtypeOf: (ref) => this.dtype(ref),
      sizeOf: (ref) => this.info(ref).size,
      isOutput: (node) => materialized.has(node),
      ...(rows === undefined ? {} : { rows }),
    });
    if (emission === undefined) return undefined;
    const names = group.members.map((member) => (this.#graph.nodes[member.node] as GraphNode).definition.name);
    const shown = names.length > NAMED ? [...names.slice(0, NAMED - 1), `${names.length - NAMED + 1} more`] : names;
    return {
      function: { program: emission.program, name: names.length === 1 ? (names[0] as string) : `fused:${shown.join('+')}` },
      units: emission.units,
      split: emission.program.outerRank > 0 ? emission.units : -(emission.words[0] as number),
      costNs: emission.costNs,
      pointers: [...emission.reads, ...emission.writes.map((node) => ({ ref: node, offset: 0 }))],
      words: emission.words,
      scalars: emission.scalars,
      writes: emission.writes,
      aligned: emission.aligned,
      ...(rows === undefined ? { withRows: (wanted: number) => this.#program(group, materialized, wanted) } : {}),
    };
  }

  #fixed(index: number): Task[] {
    const node = this.#graph.nodes[index] as GraphNode;
    const { name } = node.definition;
    const outputs = [index];
    this.#graph.nodes.forEach((other, i) => {
      if (other.output > 0 && other.inputs[0] === index) outputs[other.output] = i;
    });
    const inputs = node.inputs.map((ref) => this.#operand(ref));
    // An output that nobody can ask for any more is not in the graph; the device's function writes it all the same.
    const specs = node.definition.infer(
      inputs.map((operand) => ({ shape: operand.info.dims, dtype: this.dtype(operand.base) })),
      node.attributes,
    );
    specs.forEach(({ shape, dtype }, output) => {
      if (outputs[output] === undefined) outputs[output] = this.#room(shapeInfo(shape), dtype);
    });
    if (outputs.every((output) => this.info(output).size === 0)) return [];
    const outputViews = outputs.map((output) => {
      const info = this.info(output);
      return { shape: info.dims, dtype: this.dtype(output), strides: info.strides, offset: 0 };
    });
    const packed = name === 'matmul' && this.#pack(node, inputs);
    // What the device's function cannot read with strides is copied first.
    const copies: Task[] = [];
    inputs.forEach((operand, i) => {
      if (isContiguous(operand.info, operand.view) || this.#device.acceptsStrides(name, i)) return;
      const copy = this.#temporary(operand);
      copies.push(this.#call(this.#device.lowerCopy(this.#view(operand), this.#view(copy)), [operand], [copy.base]));
      inputs[i] = copy;
    });
    const views = inputs.map((operand) => this.#view(operand));
    return [...copies, this.#call(this.#device.lower(name, views, outputViews, node.attributes, { packed }), inputs, outputs)];
  }

  /** Workspace for a value that is not in the graph. */
  #room(info: ShapeInfo, dtype: DType): number {
    return this.#graph.nodes.length + this.#fusion.copies.push({ info, dtype }) - 1;
  }

  /** Workspace of the operand's size, contiguous. */
  #temporary(operand: Operand): Operand {
    const base = this.#room(operand.info, this.dtype(operand.base));
    return { base, info: operand.info, view: { strides: operand.info.strides, offset: 0 } };
  }

  /**
   * A matrix that is used again and again is packed, if the product has enough rows to gain by it: input
   * 1 then refers to the packing instead. Packings are numbered on from the externals.
   */
  #pack(node: GraphNode, inputs: Operand[]): boolean {
    const { packing } = this.#device;
    const [a, b] = inputs as [Operand, Operand];
    const external = isExternal(b.base) ? this.#graph.externals[~b.base] : undefined;
    if (packing === undefined || external?.kind !== 'storage' || !external.reused || b.info.dims.length !== 2) return false;
    const { n, k } = matmulSizes(a.info.dims, b.info.dims, node.attributes);
    if (n * k === 0 || node.info.size / n < PACKING_ROWS) return false;
    const [first, second] = b.view.strides as [number, number];
    const strides = node.attributes['transposeB'] === true ? [second, first] : [first, second];
    const key = `${b.view.offset}/${k}x${n}/${strides.join()}`;
    let index = this.packings.findIndex((known) => known.external === ~b.base && known.key === key);
    if (index < 0) {
      const elements = packing.elements(k, n);
      const source = { shape: [k, n], dtype: external.dtype, strides, offset: 0 };
      const call = packing.lower(source, { shape: [elements], dtype: external.dtype, strides: [1], offset: 0 });
      index = this.packings.push({ external: ~b.base, key, elements, call, offsetBytes: b.view.offset * elementBytes(external.dtype) }) - 1;
    }
    inputs[1] = { base: ~(this.#graph.externals.length + index), info: b.info, view: { strides: b.info.strides, offset: 0 } };
    return true;
  }

  #call(call: KernelCall, inputs: readonly Operand[], outputs: readonly number[]): Task {
    const aligned = call.aligned;
    return {
      function: call.kernel,
      product: call.product,
      units: call.units,
      split: call.units,
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
      // A piece of a view is not a piece of the value that it is a view of, unless the view is all of it.
      aligned: aligned?.flatMap((input) => {
        const operand = inputs[input] as Operand;
        const whole =
          isContiguous(operand.info, operand.view) && operand.view.offset === 0 && operand.info.size === this.#sizeOf(operand.base);
        const pointer = call.pointers.findIndex((candidate) => 'input' in candidate && candidate.input === input);
        return whole && pointer >= 0 ? [pointer] : [];
      }),
    };
  }

  #sizeOf(ref: number): number {
    return isExternal(ref) ? (this.#graph.externals[~ref]?.info.size ?? -1) : this.info(ref).size;
  }
}
