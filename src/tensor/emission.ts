import { GpuosError } from '../errors.ts';
import type { DType } from '../ops/define.ts';
import { computeType, isHalf } from '../ops/dtype.ts';
import type { MapName, Program, ProgramInput, ProgramNode, ProgramOutput, ReduceName } from '../ops/program.ts';
import { type Access, boundaries, mergeBoundaries, refine } from './access.ts';
import type { Member, ProgramGroup } from './fusion.ts';
import { type Graph, type GraphExternal, type GraphNode, isExternal } from './graph.ts';

/** A program group as a kernel at given sizes: the program, and its parameter block but for the addresses. */
export interface Emission {
  readonly variant: Variant;
  /** Memory that it reads, in pointer order: a node's index or ~external, and an offset in elements. */
  readonly reads: readonly { readonly ref: number; readonly offset: number }[];
  /** The last are to be filled with the values of these externals at run time. */
  readonly words: readonly number[];
  readonly scalars: readonly number[];
  readonly units: number;
  /** See Chain.split. */
  readonly split: number;
  readonly costNs: number;
  /** Reads of which row u needs only the u-th of `rows` equal pieces; undefined where tiles do not split rows. */
  readonly aligned: readonly number[] | undefined;
}

/** A kernel's program for one pattern of reading, which many sizes share. */
export interface Variant {
  /** What its operator is called. */
  readonly name: string;
  /** Makes the program. It is not kept: it is wanted once, unless the slot is given away. */
  readonly program: () => Program;
  /** Slot of the operator table, once it has one. */
  slot: number | undefined;
}

/** What the sizes at hand make of the values that a group reads. */
export interface Extents {
  /** How a member reads its argument from memory. */
  access(member: number, argument: number): Access;
  /** Elements of a value in memory. */
  elements(ref: number): number;
}

/** Most outer dimensions that a kernel takes. */
export const MAX_OUTER_RANK = 5;
const VECTOR = 16;

// Rough costs on one core, in ns an element, for the choice of the tile count only.
const LOAD_NS = 0.05;
const SIMPLE_NS = 0.07;
const COSTLY_NS = 1;
const SIMPLE: ReadonlySet<string> = new Set<MapName>([
  ...([
    'add',
    'sub',
    'mul',
    'div',
    'maximum',
    'minimum',
    'squared-difference',
    'prelu',
    'neg',
    'abs',
    'sign',
    'square',
    'sqrt',
    'reciprocal',
  ] as const),
  ...([
    'equal',
    'not-equal',
    'less',
    'less-equal',
    'greater',
    'greater-equal',
    'logical-and',
    'logical-or',
    'logical-xor',
    'logical-not',
  ] as const),
  ...(['select', 'floor', 'ceil', 'round', 'relu', 'relu6', 'cast', 'is-nan', 'is-inf', 'is-finite', 'rsqrt'] as const),
]);

/** Estimate of one element-wise operation by itself, in ns an element on one core. */
export function mapCostNs(name: string, inputs: number): number {
  return LOAD_NS * (inputs + 1) + (SIMPLE.has(name) ? SIMPLE_NS : COSTLY_NS);
}

/** What a member reads from memory; the same for every member that reads the same value in the same way. */
interface Read {
  readonly member: number;
  readonly argument: number;
  /** An element for each of the space, not for each row. */
  readonly full: boolean;
  readonly dtype: DType;
}

/** An operation's arguments, as numbers, since structures are kept: a member's node (at least 0), a single value, or a read. */
interface Operation {
  readonly node: number;
  readonly args: readonly number[];
}

/** An argument that is a single value, the external ~k (k = ~ref), or the read k. */
const valueSource = (ref: number): number => ~(2 * ~ref);
const readSource = (read: number): number => ~(2 * read + 1);

/** Work in ns for each element of the space, and for each row. */
interface Cost {
  full: number;
  row: number;
}

/**
 * A program group as a kernel that writes the members that are outputs. What does not depend on sizes is worked out
 * once; `emit` fills in the sizes, and takes a program that is there already if memory is read in the same pattern.
 */
export class Kernel {
  readonly #graph: Graph;
  readonly #dtypeOf: (ref: number) => DType;
  readonly #operations: Operation[] = [];
  readonly #reads: Read[] = [];
  readonly #outputs: Member[];
  readonly #reduces: boolean;
  readonly #cost: Cost = { full: 0, row: 0 };
  /** Externals that are single values, in the order of the words that hold them. */
  readonly #scalars: number[] = [];
  readonly #variants = new Map<string, Variant>();
  /** What was emitted last, and what it was for: most often that of the next sizes, too. */
  #last:
    | { readonly outerRank: number; readonly inputsOf: readonly number[]; readonly pattern: string; readonly variant: Variant }
    | undefined;
  /** Members that it writes, in pointer order after the reads. */
  readonly writes: readonly number[];
  /** These, as pointers. */
  readonly outputs: readonly { readonly ref: number; readonly offset: number }[];
  /** The operators it is made of. */
  readonly names: readonly string[];
  readonly name: string;
  /** Its space; see ProgramGroup. */
  readonly rows: number;
  readonly columns: number | undefined;

  constructor(group: ProgramGroup, graph: Graph, dtypeOf: (ref: number) => DType, isOutput: (node: number) => boolean) {
    this.#graph = graph;
    this.rows = group.rows;
    this.columns = group.columns;
    this.#dtypeOf = dtypeOf;
    this.#outputs = group.members.filter((member) => isOutput(member.node));
    this.writes = this.#outputs.map((member) => member.node);
    this.outputs = this.writes.map((ref) => ({ ref, offset: 0 }));
    this.names = group.members.map((member) => this.#node(member.node).definition.name);
    this.name = nameOf(this.names);
    this.#reduces = group.members.some((member) => this.#node(member.node).definition.kind === 'reduce');
    const known = new Map<string, number>();
    for (const member of group.members) this.#addMember(member, known);
    for (const member of this.#outputs) this.#cost[member.full ? 'full' : 'row'] += LOAD_NS;
  }

  get variants(): Iterable<Variant> {
    return this.#variants.values();
  }

  #node(index: number): GraphNode {
    const node = this.#graph.nodes[index];
    if (node === undefined) throw new GpuosError('GPUOS_INTERNAL', `A kernel names node ${index}, which is not there.`);
    return node;
  }

  #addMember(member: Member, known: Map<string, number>): void {
    const node = this.#node(member.node);
    const reduces = node.definition.kind === 'reduce';
    // A reduction's result is a value a row, but it reads all of the row.
    const full = member.full || reduces;
    const args = member.args.map((arg, argument): number => {
      if ('member' in arg) return arg.member;
      const { ref } = arg.access;
      if (isExternal(ref) && this.#graph.externals[~ref]?.kind !== 'storage') {
        if (singleValue(this.#graph, ref).kind === 'scalar' && !this.#scalars.includes(~ref)) this.#scalars.push(~ref);
        return valueSource(ref);
      }
      // The same operand under the same shape is the same elements, whatever the sizes are.
      const key = reduces ? `${member.node}` : `${node.inputs[argument]}/${node.info.id}/${full}`;
      let read = known.get(key);
      if (read === undefined) {
        read = this.#reads.push({ member: member.node, argument, full, dtype: this.#dtypeOf(ref) }) - 1;
        known.set(key, read);
      }
      return readSource(read);
    });
    this.#operations.push({ node: member.node, args });
    this.#cost[full ? 'full' : 'row'] += SIMPLE.has(node.definition.name) || reduces ? SIMPLE_NS : COSTLY_NS;
  }

  /**
   * The kernel at these sizes, `groupRows` x `groupColumns`, or undefined where its space has too many dimensions. `hint`: take
   * the space as this many rows, where nothing else says how many there are.
   */
  emit(extents: Extents, groupRows: number, groupColumns: number | undefined, hint?: number): Emission | undefined {
    const reads = this.#reads;
    const accesses = new Array<Access>(reads.length);
    // The space's dimensions: begin a new one wherever some operand does.
    let bounds: readonly number[] = groupColumns !== undefined && groupColumns > 0 && groupRows > 1 ? [groupColumns] : NONE;
    for (let i = 0; i < reads.length; i++) {
      const { member, argument, full } = reads[i] as Read;
      const access = extents.access(member, argument);
      accesses[i] = access;
      const scale = full ? 1 : (groupColumns as number);
      if (scale === 0 || access.dims.length < 2) continue;
      const own = boundaries(access.dims);
      for (let k = 0; k < own.length; k++) own[k] = (own[k] as number) * scale;
      bounds = mergeBoundaries(bounds, own) as number[];
    }
    const total = groupRows * (groupColumns ?? 1);
    if (hint !== undefined && groupColumns === undefined && hint > 1 && total > 0) {
      const hinted = total % hint === 0 ? mergeBoundaries(bounds, [total / hint]) : undefined;
      if (hinted === undefined || (hinted[0] as number) < total / hint) return undefined;
      bounds = hinted;
    }
    const columns = groupColumns ?? bounds[0] ?? total;
    const rows = groupColumns !== undefined ? groupRows : columns === 0 ? 0 : total / columns;
    const outer = columns === 0 ? (rows !== 1 ? [rows] : NONE) : outerDims(bounds, columns, total);
    if (outer.length > MAX_OUTER_RANK) return undefined;
    return this.#filled(extents, accesses, { rows, columns, outer });
  }

  #filled(extents: Extents, accesses: readonly Access[], space: Space): Emission {
    const { rows, columns, outer } = space;
    const outerRank = outer.length;
    const total = rows * columns;
    // At most as many as there are reads: a list that grows would take room for more.
    const inputs = new Array<Input>(accesses.length);
    let count = 0;
    // Which input each read is.
    const inputsOf = new Array<number>(accesses.length);
    let inputCost = 0;
    for (let i = 0; i < accesses.length; i++) {
      const { full, dtype } = this.#reads[i] as Read;
      const input = inputOf(accesses[i] as Access, full, dtype, space);
      let index = 0;
      while (index < count && !isSameInput(inputs[index] as Input, input)) index++;
      if (index === count) {
        inputs[count++] = input;
        inputCost += LOAD_NS * (full ? total : rows);
      }
      inputsOf[i] = index;
    }
    if (count < inputs.length) inputs.length = count;
    return {
      variant: this.#variant(outerRank, inputsOf, inputs),
      reads: inputs,
      words: this.#words(inputs, space),
      scalars: this.#scalars,
      units: outerRank > 0 ? rows : this.#reduces ? 1 : Math.ceil(columns / VECTOR),
      split: outerRank > 0 ? rows : -columns,
      costNs: inputCost + this.#cost.full * total + this.#cost.row * rows,
      aligned: this.#aligned(extents, inputs, space),
    };
  }

  #words(inputs: readonly Input[], { rows, columns, outer }: Space): number[] {
    const outerRank = outer.length;
    let strided = 0;
    for (let i = 0; i < inputs.length; i++) if (isStrided((inputs[i] as Input).stride)) strided++;
    if (outerRank === 0) {
      // Most kernels are of this kind: a list of the right length.
      const words = new Array<number>(1 + strided + this.#scalars.length).fill(0);
      words[0] = columns;
      let at = 1;
      for (const { stride } of inputs) if (isStrided(stride)) words[at++] = stride;
      return words;
    }
    const words: number[] = [columns, rows, rows, ...outer];
    for (const { rowStrides } of inputs) words.push(...rowStrides);
    for (const output of this.#outputs) {
      if (!output.full) continue;
      const from = words.length;
      let step = columns;
      for (let i = outerRank - 1; i >= 0; i--) {
        words[from + i] = step;
        step *= outer[i] as number;
      }
    }
    for (const { stride } of inputs) if (isStrided(stride)) words.push(stride);
    for (let i = 0; i < this.#scalars.length; i++) words.push(0);
    return words;
  }

  #aligned(extents: Extents, inputs: readonly Input[], space: Space): readonly number[] | undefined {
    const { outer, columns } = space;
    if (outer.length === 0 && this.#reduces) return undefined;
    const result = new Array<number>(inputs.length);
    let count = 0;
    for (let i = 0; i < inputs.length; i++) {
      const input = inputs[i] as Input;
      const size = extents.elements(input.ref);
      const aligned = outer.length > 0 ? isAligned(space, input, size) : input.stride === 1 && input.offset === 0 && size === columns;
      if (aligned) result[count++] = i;
    }
    if (count < result.length) result.length = count;
    return result;
  }

  #variant(outerRank: number, inputsOf: readonly number[], inputs: readonly Input[]): Variant {
    let pattern = '';
    for (let i = 0; i < inputs.length; i++) pattern += patternOf((inputs[i] as Input).stride);
    const last = this.#last;
    if (last !== undefined && last.outerRank === outerRank && last.pattern === pattern && isSameList(last.inputsOf, inputsOf)) {
      return last.variant;
    }
    const key = `${outerRank}${pattern}${inputsOf.join()}`;
    const variant = this.#variants.get(key) ?? this.#newVariant(key, outerRank, inputsOf, inputs);
    this.#last = { outerRank, inputsOf, pattern, variant };
    return variant;
  }

  #newVariant(key: string, outerRank: number, inputsOf: readonly number[], inputs: readonly Input[]): Variant {
    const pattern = inputs.map(
      ({ dtype, stride }): ProgramInput => ({ dtype, columnStride: isStrided(stride) ? 'strided' : (stride as 0 | 1) }),
    );
    const variant = { name: this.name, program: () => this.#program(outerRank, inputsOf, pattern), slot: undefined };
    this.#variants.set(key, variant);
    return variant;
  }

  #program(outerRank: number, inputOf: readonly number[], inputs: readonly ProgramInput[]): Program {
    const nodes: ProgramNode[] = [];
    const nodeOf = new Map<number, number>(); // graph node -> program node
    const inputNodes = new Map<number, number>();
    const valueNodes = new Map<string, number>();
    let scalars = 0;
    const inputNode = (read: number): number => {
      const input = inputOf[read] as number;
      const { dtype } = inputs[input] as ProgramInput;
      let node = inputNodes.get(input);
      if (node === undefined) {
        node = nodes.push({ kind: 'input', input, dtype: computeType(dtype) }) - 1;
        inputNodes.set(input, node);
      }
      return node;
    };
    const valueNode = (ref: number): number => {
      const external = singleValue(this.#graph, ref);
      const key = valueKey(ref, external);
      let node = valueNodes.get(key);
      if (node === undefined) {
        const dtype = computeType(external.dtype);
        node =
          external.kind === 'constant'
            ? nodes.push({ kind: 'constant', value: external.value, dtype }) - 1
            : nodes.push({ kind: 'scalar', scalar: scalars++, dtype }) - 1;
        valueNodes.set(key, node);
      }
      return node;
    };
    // A value goes on within the kernel as it would by way of memory: what is computed does not depend on what is fused.
    const rounded = new Set<number>();
    const memberNode = (member: number): number => {
      const node = nodeOf.get(member) as number;
      const { dtype } = this.#node(member);
      if (!isHalf(dtype) || rounded.has(member)) return node;
      const round = nodes.push({ kind: 'map', op: `round-${dtype}`, args: [node], dtype: 'float32' }) - 1;
      nodeOf.set(member, round);
      rounded.add(member);
      return round;
    };
    for (const { node: index, args: sources } of this.#operations) {
      const graphNode = this.#node(index);
      const { definition } = graphNode;
      const dtype = computeType(graphNode.dtype);
      const args = sources.map((source) =>
        source >= 0 ? memberNode(source) : (~source & 1) === 0 ? valueNode(~(~source >> 1)) : inputNode(~source >> 1),
      );
      const node: ProgramNode =
        definition.kind === 'reduce'
          ? { kind: 'reduce', op: definition.name as ReduceName, arg: args[0] as number, dtype }
          : { kind: 'map', op: definition.name as MapName, args, dtype };
      nodeOf.set(index, nodes.push(node) - 1);
      if (isExact(graphNode, this.#graph)) rounded.add(index);
    }
    const outputs = this.#outputs.map(
      ({ node, full }): ProgramOutput => ({
        node: nodeOf.get(node) as number,
        dtype: this.#dtypeOf(node),
        space: full ? 'full' : 'row',
      }),
    );
    return { inputs, scalars, nodes, outputs, outerRank };
  }
}

/** The space of a kernel: rows x columns, and the dimensions that the rows fall into. */
interface Space {
  readonly rows: number;
  readonly columns: number;
  readonly outer: readonly number[];
}

/** Memory that a kernel reads. */
interface Input {
  readonly ref: number;
  readonly offset: number;
  readonly dtype: DType;
  readonly full: boolean;
  readonly rowStrides: readonly number[];
  /** Along the columns. */
  readonly stride: number;
}

const NONE: readonly number[] = [];

function outerDims(bounds: readonly number[], columns: number, total: number): readonly number[] {
  if (total === columns) return NONE;
  const outer: number[] = [];
  let inner = columns;
  for (let i = 0; i <= bounds.length; i++) {
    const edge = i < bounds.length ? (bounds[i] as number) : total;
    if (i < bounds.length && edge <= columns) continue;
    if (edge !== inner) outer.push(edge / inner);
    inner = edge;
  }
  return outer.reverse();
}

function inputOf(access: Access, full: boolean, dtype: DType, { columns, outer }: Space): Input {
  const { ref, offset } = access;
  if (outer.length === 0) {
    const along = access.strides.length === 0 ? 0 : (access.strides[access.strides.length - 1] as number);
    return { ref, offset, dtype, full, rowStrides: NONE, stride: full ? (columns === 1 ? 1 : along) : 0 };
  }
  const fine = refine(access, full ? [...outer, columns] : outer);
  const stride = full ? (columns === 1 ? 1 : (fine[outer.length] as number)) : 0;
  return { ref, offset, dtype, full, rowStrides: fine.slice(0, outer.length), stride };
}

/** Along the columns, 0 and 1 are part of the program; others are words. */
const isStrided = (stride: number): boolean => stride !== 0 && stride !== 1;
const patternOf = (stride: number): string => (stride === 0 ? '-' : stride === 1 ? '+' : '*');

function isSameList(a: readonly number[], b: readonly number[]): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

function isSameInput(a: Input, b: Input): boolean {
  if (a.ref !== b.ref || a.offset !== b.offset || a.full !== b.full || a.stride !== b.stride) return false;
  for (let i = 0; i < a.rowStrides.length; i++) if (a.rowStrides[i] !== b.rowStrides[i]) return false;
  return true;
}

/** Whether row r of the space reads only the r-th of `rows` equal pieces of a value of `size` elements. */
function isAligned({ rows, columns, outer }: Space, { offset, rowStrides, stride }: Input, size: number): boolean {
  const piece = size / rows;
  if (!Number.isInteger(piece) || piece === 0 || stride < 0) return false;
  let expected = piece;
  for (let i = outer.length - 1; i >= 0; i--) {
    if (outer[i] !== 1 && rowStrides[i] !== expected) return false;
    expected *= outer[i] as number;
  }
  return offset >= 0 && offset + Math.max(0, columns - 1) * stride < piece;
}

/** Operations whose result is one of the values of their operands' dtype. */
const EXACT: ReadonlySet<string> = new Set([
  ...['neg', 'abs', 'sign', 'maximum', 'minimum', 'select', 'floor', 'ceil', 'round', 'relu', 'relu6', 'max', 'min'],
]);

/** Whether the result needs no rounding to its dtype. */
function isExact({ definition, dtype, inputs }: GraphNode, graph: Graph): boolean {
  if (!isHalf(dtype) || EXACT.has(definition.name)) return true;
  const [ref] = inputs as readonly [number];
  return definition.name === 'cast' && (isExternal(ref) ? graph.externals[~ref] : graph.nodes[ref])?.dtype === dtype;
}

/** Names in a fused operator's name. */
const NAMED = 6;

function nameOf(names: readonly string[]): string {
  if (names.length === 1) return names[0] as string;
  const shown = names.length > NAMED ? [...names.slice(0, NAMED - 1), `${names.length - NAMED + 1} more`] : names;
  return `fused:${shown.join('+')}`;
}

function singleValue(graph: Graph, ref: number): Exclude<GraphExternal, { kind: 'storage' }> {
  const external = graph.externals[~ref];
  if (external === undefined || external.kind === 'storage')
    throw new GpuosError('GPUOS_INTERNAL', `External ${~ref} is not a single value.`);
  return external;
}

/** Constants of one value are one node. */
function valueKey(ref: number, external: Exclude<GraphExternal, { kind: 'storage' }>): string {
  if (external.kind === 'scalar') return `s${~ref}`;
  return `c${computeType(external.dtype)}${Object.is(external.value, -0) ? '-0' : external.value}`;
}
