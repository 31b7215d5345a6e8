import type { Device, KernelCall, MatrixProduct, OperandView } from '../runtime/device.ts';
import { GpuosError } from '../errors.ts';
import type { DType } from '../ops/define.ts';
import { elementBytes } from '../ops/dtype.ts';
import { matmulSizes } from '../ops/matrix.ts';
import type { Access } from './access.ts';
import type { Extents, Kernel, Variant } from './emission.ts';
import { accessOf, type Operand, reductionOf } from './fusion.ts';
import { type Graph, type GraphNode, isExternal } from './graph.ts';
import { shapeInfo, type ShapeInfo } from './shape-info.ts';
import type { Instance, Work } from './structure.ts';
import { composeView, isContiguous } from './view.ts';

/** A device function and what it works on, before it has addresses or a place in the order. */
export interface Task {
  /** A built-in function's name, or a kernel's program, which may have to be injected. */
  readonly function: string | Variant;
  readonly units: number;
  /** See Chain.split. */
  readonly split: number;
  readonly costNs: number;
  readonly pointers: readonly ({ readonly ref: number; readonly offset: number } | undefined)[];
  /** See Emission. */
  readonly words: readonly number[];
  readonly scalars: readonly number[];
  /** Values that it makes. */
  readonly writes: readonly number[];
  /** See KernelCall.aligned; indices of `pointers`. */
  readonly aligned: readonly number[] | undefined;
  /** See KernelCall.product. */
  readonly product: MatrixProduct | undefined;
  /** What it was drafted of, where it might as well be split into another number of rows (see Drafting.withRows). */
  readonly kernel: Kernel | undefined;
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
const NO_SCALARS: readonly number[] = [];

/** Turns a structure into tasks at given sizes. Values are numbered: graph nodes, then the planner's copies; ~k: external k, then packings. */
export class Drafting implements Extents {
  readonly #device: Device;
  readonly #instance: Instance;
  readonly #graph: Graph;
  /** Nodes that are views of others, as far as they were asked for. */
  #views: Map<number, Operand> | undefined;
  /** Values that are not in the graph, numbered on from its nodes. */
  readonly #added: { readonly info: ShapeInfo; readonly dtype: DType }[] = [];
  readonly packings: Packing[] = [];

  constructor(device: Device, instance: Instance) {
    this.#device = device;
    this.#instance = instance;
    const { structure } = instance;
    this.#graph = structure.graph;
    for (const { reader, dtype } of structure.copies) this.#added.push({ info: this.#reduced(reader).info, dtype });
  }

  /** A node that is a view. It is one at all sizes that have the structure. */
  #viewed(index: number): Operand {
    const { definition, attributes, inputs } = this.#graph.nodes[index] as GraphNode;
    const source = this.operand(inputs[0] as number);
    const info = this.info(index);
    const view = composeView(definition.name, attributes, source.info, source.view, info);
    if (view === undefined)
      throw new GpuosError('GPUOS_INTERNAL', `Node ${index} of a plan, ${definition.name}, is no view at these sizes.`);
    return { base: source.base, info, view };
  }

  /** What a reduction reads, before it is copied. */
  #reduced(reader: number): Operand {
    const node = this.#graph.nodes[reader] as GraphNode;
    return reductionOf(node, this.operand(node.inputs[0] as number)).operand;
  }

  dtype(ref: number): DType {
    // Packings, numbered on from the externals, are of float32 as matmul is.
    if (isExternal(ref)) return this.#graph.externals[~ref]?.dtype ?? 'float32';
    const { nodes } = this.#graph;
    return ref < nodes.length ? (nodes[ref] as GraphNode).dtype : (this.#added[ref - nodes.length]?.dtype as DType);
  }

  info(ref: number): ShapeInfo {
    const { info, externals } = this.#instance;
    if (isExternal(ref)) return (externals[~ref] as Graph['externals'][number]).info;
    const { length } = this.#graph.nodes;
    return ref < length ? info(ref) : (this.#added[ref - length]?.info as ShapeInfo);
  }

  /** Bytes that a value takes in memory. */
  bytes(ref: number): number {
    return this.info(ref).size * elementBytes(this.dtype(ref));
  }

  /** How a value lies in memory. */
  operand(ref: number): Operand {
    if (!isExternal(ref)) {
      if (this.#instance.structure.bases[ref] === ref) return this.#contiguous(ref);
      let operand = this.#views?.get(ref);
      if (operand === undefined) {
        operand = this.#viewed(ref);
        this.#views ??= new Map();
        this.#views.set(ref, operand);
      }
      return operand;
    }
    const external = this.#instance.externals[~ref] as Graph['externals'][number];
    const view = external.kind === 'storage' ? external.view : external.info.contiguous;
    return { base: ref, info: external.info, view };
  }

  tasks(): Task[] {
    const tasks: Task[] = [];
    for (const work of this.#instance.structure.work) this.#draft(work, tasks);
    return tasks;
  }

  /** The kernel's task split into so many rows, if it can be. */
  withRows({ kernel }: Task, rows: number): Task | undefined {
    return kernel && this.#kernel(kernel, rows);
  }

  #view(operand: Operand): OperandView {
    return { shape: operand.info.dims, dtype: this.dtype(operand.base), strides: operand.view.strides, offset: operand.view.offset };
  }

  #draft(work: Work, tasks: Task[]): void {
    switch (work.kind) {
      case 'fixed':
        this.#fixed(work.node, tasks);
        return;
      case 'copy':
        this.#copy(work.node, tasks);
        return;
      default: {
        const task = this.#kernel(work.kernel, undefined);
        if (task === undefined)
          throw new GpuosError('GPUOS_INTERNAL', `A kernel of ${work.kernel.names.length} operations has too many dimensions.`);
        tasks.push(task);
      }
    }
  }

  #copy(node: number, tasks: Task[]): void {
    if (this.info(node).size === 0) return;
    const { nodes } = this.#graph;
    const added = this.#instance.structure.copies[node - nodes.length];
    const source = added === undefined ? this.operand((nodes[node] as GraphNode).inputs[0] as number) : this.#reduced(added.reader);
    const output = { shape: source.info.dims, dtype: this.dtype(node), strides: source.info.strides, offset: 0 };
    tasks.push(this.#call(this.#device.lowerCopy(this.#view(source), output), [source], [node]));
  }

  #kernel(kernel: Kernel, wanted: number | undefined): Task | undefined {
    const { sizes } = this.#instance;
    const rows = sizes?.actual(kernel.rows) ?? kernel.rows;
    const columns = kernel.columns === undefined ? undefined : (sizes?.actual(kernel.columns) ?? kernel.columns);
    const emission = kernel.emit(this, rows, columns, wanted);
    if (emission === undefined) return undefined;
    const { variant, reads, words, scalars, units, split, costNs, aligned } = emission;
    const { outputs } = kernel;
    const pointers = new Array<Task['pointers'][number]>(reads.length + outputs.length);
    for (let i = 0; i < reads.length; i++) pointers[i] = reads[i];
    for (let i = 0; i < outputs.length; i++) pointers[reads.length + i] = outputs[i];
    return {
      function: variant,
      units,
      split,
      costNs,
      pointers,
      words,
      scalars,
      writes: kernel.writes,
      aligned,
      product: undefined,
      kernel: wanted === undefined ? kernel : undefined,
    };
  }

  /** How a member of a kernel reads its argument from memory. */
  access(member: number, argument: number): Access {
    const node = this.#graph.nodes[member] as GraphNode;
    if (node.definition.kind !== 'reduce') return accessOf(this.operand(node.inputs[argument] as number), this.info(member).dims);
    const copy = this.#instance.structure.copyOf.get(member);
    const operand = copy === undefined ? this.#reduced(member) : this.#contiguous(copy);
    return accessOf(operand, operand.info.dims);
  }

  #contiguous(ref: number): Operand {
    const info = this.info(ref);
    return { base: ref, info, view: info.contiguous };
  }

  #fixed(index: number, tasks: Task[]): void {
    const node = this.#graph.nodes[index] as GraphNode;
    const { name } = node.definition;
    const outputs = [index];
    this.#graph.nodes.forEach((other, i) => {
      if (other.output > 0 && other.inputs[0] === index) outputs[other.output] = i;
    });
    const inputs = node.inputs.map((ref) => this.operand(ref));
    // An output that nobody can ask for any more is not in the graph; the device's function writes it all the same.
    const specs = node.definition.infer(
      inputs.map((operand) => ({ shape: operand.info.dims, dtype: this.dtype(operand.base) })),
      node.attributes,
    );
    specs.forEach(({ shape, dtype }, output) => {
      if (outputs[output] === undefined) outputs[output] = this.#room(shapeInfo(shape), dtype);
    });
    if (outputs.every((output) => this.info(output).size === 0)) return;
    const outputViews = outputs.map((output) => {
      const info = this.info(output);
      return { shape: info.dims, dtype: this.dtype(output), strides: info.strides, offset: 0 };
    });
    const packed = name === 'matmul' && this.#pack(node, this.info(index).size, inputs);
    // What the device's function cannot read with strides is copied first.
    inputs.forEach((operand, i) => {
      if (isContiguous(operand.info, operand.view) || this.#device.acceptsStrides(name, i)) return;
      const copy = this.#temporary(operand);
      tasks.push(this.#call(this.#device.lowerCopy(this.#view(operand), this.#view(copy)), [operand], [copy.base]));
      inputs[i] = copy;
    });
    const views = inputs.map((operand) => this.#view(operand));
    tasks.push(this.#call(this.#device.lower(name, views, outputViews, node.attributes, { packed }), inputs, outputs));
  }

  /** Workspace for a value that is not in the graph. */
  #room(info: ShapeInfo, dtype: DType): number {
    return this.#graph.nodes.length + this.#added.push({ info, dtype }) - 1;
  }

  /** Workspace of the operand's size, contiguous. */
  #temporary(operand: Operand): Operand {
    return this.#contiguous(this.#room(operand.info, this.dtype(operand.base)));
  }

  /**
   * A matrix that is used again and again is packed, if the product has enough rows to gain by it: input
   * 1 then refers to the packing instead. Packings are numbered on from the externals.
   */
  #pack(node: GraphNode, size: number, inputs: Operand[]): boolean {
    const { packing } = this.#device;
    const [a, b] = inputs as [Operand, Operand];
    const external = isExternal(b.base) ? this.#instance.externals[~b.base] : undefined;
    if (packing === undefined || external?.kind !== 'storage' || !external.reused || b.info.dims.length !== 2) return false;
    const { n, k } = matmulSizes(a.info.dims, b.info.dims, node.attributes);
    if (n * k === 0 || size / n < PACKING_ROWS) return false;
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
    inputs[1] = { base: ~(this.#graph.externals.length + index), info: b.info, view: b.info.contiguous };
    return true;
  }

  #call(call: KernelCall, inputs: readonly Operand[], outputs: readonly number[]): Task {
    const aligned = call.aligned;
    return {
      function: call.kernel,
      product: call.product,
      kernel: undefined,
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
      scalars: NO_SCALARS,
      writes: outputs,
      // A piece of a view is not a piece of the value that it is a view of, unless the view is all of it.
      aligned: aligned?.flatMap((input) => {
        const operand = inputs[input] as Operand;
        const whole =
          isContiguous(operand.info, operand.view) && operand.view.offset === 0 && operand.info.size === this.elements(operand.base);
        const pointer = call.pointers.findIndex((candidate) => 'input' in candidate && candidate.input === input);
        return whole && pointer >= 0 ? [pointer] : [];
      }),
    };
  }

  /** Elements of a value in memory. */
  elements(ref: number): number {
    return isExternal(ref) ? (this.#instance.externals[~ref]?.info.size ?? -1) : this.info(ref).size;
  }
}
