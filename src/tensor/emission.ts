import { GpuosError } from '../errors.ts';
import type { DType } from '../ops/define.ts';
import { computeType, isHalf } from '../ops/dtype.ts';
import type { MapName, Program, ProgramInput, ProgramNode, ProgramOutput, ReduceName } from '../ops/program.ts';
import { type Access, boundaries, mergeBoundaries, refine } from './access.ts';
import type { Member, ProgramGroup } from './fusion.ts';
import { type Graph, type GraphNode, isExternal } from './graph.ts';

/** A program group as a kernel: the program, and its parameter block but for the addresses. */
export interface Emission {
  readonly program: Program;
  /** Memory that it reads, in pointer order: a node's index or ~external, and an offset in elements. */
  readonly reads: readonly { readonly ref: number; readonly offset: number }[];
  /** Nodes that it writes, in pointer order after the reads. */
  readonly writes: readonly number[];
  readonly words: readonly number[];
  /** Words to be filled with the value of a scalar external at run time. */
  readonly scalars: readonly { readonly word: number; readonly external: number }[];
  readonly units: number;
  readonly costNs: number;
  /** Reads of which row u needs only the u-th of `rows` equal pieces; undefined where tiles do not split rows. */
  readonly aligned: readonly number[] | undefined;
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

export interface EmissionOptions {
  readonly dtypeOf: (ref: number) => DType;
  /** Elements of a value in memory. */
  readonly sizeOf: (ref: number) => number;
  readonly isOutput: (node: number) => boolean;
  /** Take the space as this many rows, where nothing else says how many there are. */
  readonly rows?: number;
}

/** Estimate of one element-wise operation by itself, in ns an element on one core. */
export function mapCostNs(name: string, inputs: number): number {
  return LOAD_NS * (inputs + 1) + (SIMPLE.has(name) ? SIMPLE_NS : COSTLY_NS);
}

/** The group as a kernel that writes the members that are outputs, or undefined where its space has too many dimensions. */
export function emitProgram(group: ProgramGroup, graph: Graph, options: EmissionOptions): Emission | undefined {
  const { dtypeOf, isOutput } = options;
  const { members } = group;
  const accesses = members.flatMap((member) =>
    member.args.flatMap((arg) => ('access' in arg && !isValue(arg.access.ref, graph) ? [{ member, access: arg.access }] : [])),
  );

  // The space's dimensions: begin a new one wherever some operand does.
  let bounds: number[] = group.columns !== undefined && group.columns > 0 && group.rows > 1 ? [group.columns] : [];
  for (const { member, access } of accesses) {
    const scale = member.full || readsFull(graph, member) ? 1 : (group.columns as number);
    if (scale === 0) continue;
    bounds = mergeBoundaries(
      bounds,
      boundaries(access.dims).map((bound) => bound * scale),
    ) as number[];
  }
  const total = group.rows * (group.columns ?? 1);
  if (options.rows !== undefined && group.columns === undefined && options.rows > 1 && total > 0) {
    const hinted = total % options.rows === 0 ? mergeBoundaries(bounds, [total / options.rows]) : undefined;
    if (hinted === undefined || (hinted[0] as number) < total / options.rows) return undefined;
    bounds = hinted;
  }
  const columns = group.columns ?? bounds[0] ?? total;
  const outer: number[] = [];
  const edges = [...bounds.filter((bound) => bound > columns), total];
  let inner = columns;
  for (const edge of edges) {
    if (columns === 0) break;
    if (edge !== inner) outer.unshift(edge / inner);
    inner = edge;
  }
  const rows = group.columns !== undefined ? group.rows : columns === 0 ? 0 : total / columns;
  if (columns === 0 && rows !== 1) outer.unshift(rows);
  const outerRank = outer.length;
  if (outerRank > MAX_OUTER_RANK) return undefined;

  const inputs: ProgramInput[] = [];
  const reads: { ref: number; offset: number }[] = [];
  const inputRowStrides: number[][] = [];
  const inputColumnStrides: number[] = [];
  const inputKeys = new Map<string, number>();
  const nodes: ProgramNode[] = [];
  const nodeOf = new Map<number, number>(); // graph node -> program node
  const valueNodes = new Map<string, number>();
  const scalarExternals: number[] = [];
  let costNs = 0;

  const inputNode = (access: Access, full: boolean): number => {
    const fine = refine(access, full ? [...outer, columns] : outer);
    const dtype = dtypeOf(access.ref);
    const rowStrides = fine.slice(0, outerRank);
    const stride = full ? (columns === 1 ? 1 : (fine[outerRank] as number)) : 0;
    const key = `${access.ref}/${access.offset}/${full}/${rowStrides.join()}/${stride}`;
    let node = inputKeys.get(key);
    if (node === undefined) {
      const input = inputs.push({ dtype, columnStride: stride === 0 || stride === 1 ? stride : 'strided' }) - 1;
      reads.push({ ref: access.ref, offset: access.offset });
      inputRowStrides.push(rowStrides);
      inputColumnStrides.push(stride);
      node = nodes.push({ kind: 'input', input, dtype: computeType(dtype) }) - 1;
      inputKeys.set(key, node);
      costNs += LOAD_NS * (full ? total : rows);
    }
    return node;
  };
  const valueNode = (ref: number): number => {
    const external = graph.externals[~ref];
    if (external === undefined || external.kind === 'storage')
      throw new GpuosError('GPUOS_INTERNAL', `External ${~ref} is not a single value.`);
    const dtype = computeType(external.dtype);
    const key = external.kind === 'scalar' ? `s${~ref}` : `c${dtype}${Object.is(external.value, -0) ? '-0' : external.value}`;
    let node = valueNodes.get(key);
    if (node === undefined) {
      node =
        external.kind === 'constant'
          ? nodes.push({ kind: 'constant', value: external.value, dtype }) - 1
          : nodes.push({ kind: 'scalar', scalar: scalarExternals.push(~ref) - 1, dtype }) - 1;
      valueNodes.set(key, node);
    }
    return node;
  };

  // A value goes on within the kernel as it would by way of memory: what is computed does not depend on what is fused.
  const rounded = new Set<number>();
  const memberNode = (member: number): number => {
    const node = nodeOf.get(member) as number;
    const { dtype } = graph.nodes[member] as Graph['nodes'][number];
    if (!isHalf(dtype) || rounded.has(member)) return node;
    const round = nodes.push({ kind: 'map', op: `round-${dtype}`, args: [node], dtype: 'float32' }) - 1;
    nodeOf.set(member, round);
    rounded.add(member);
    return round;
  };

  for (const member of members) {
    const graphNode = graph.nodes[member.node];
    if (graphNode === undefined) throw new GpuosError('GPUOS_INTERNAL', `A kernel names node ${member.node}, which is not there.`);
    const name = graphNode.definition.name;
    const reduces = graphNode.definition.kind === 'reduce';
    const args = member.args.map((arg) => {
      if ('member' in arg) return memberNode(arg.member);
      if (isValue(arg.access.ref, graph)) return valueNode(arg.access.ref);
      return inputNode(arg.access, member.full || reduces);
    });
    const dtype = computeType(graphNode.dtype);
    const node: ProgramNode = reduces
      ? { kind: 'reduce', op: name as ReduceName, arg: args[0] as number, dtype }
      : { kind: 'map', op: name as MapName, args, dtype };
    nodeOf.set(member.node, nodes.push(node) - 1);
    if (isExact(name, graphNode, graph)) rounded.add(member.node);
    costNs += (SIMPLE.has(name) || reduces ? SIMPLE_NS : COSTLY_NS) * (member.full || reduces ? total : rows);
  }

  const outputs: ProgramOutput[] = [];
  const writes: number[] = [];
  for (const member of members) {
    if (!isOutput(member.node)) continue;
    outputs.push({ node: nodeOf.get(member.node) as number, dtype: dtypeOf(member.node), space: member.full ? 'full' : 'row' });
    writes.push(member.node);
    costNs += LOAD_NS * (member.full ? total : rows);
  }

  const words: number[] = [columns];
  if (outerRank > 0) {
    words.push(rows, rows, ...outer);
    for (const strides of inputRowStrides) words.push(...strides);
    const contiguous = outer.map((_, i) => outer.slice(i + 1).reduce((product, size) => product * size, columns));
    for (const output of outputs) if (output.space === 'full') words.push(...contiguous);
  }
  inputs.forEach((input, i) => {
    if (input.columnStride === 'strided') words.push(inputColumnStrides[i] as number);
  });
  const scalars = scalarExternals.map((external) => ({ word: words.push(0) - 1, external }));
  const hasReduction = nodes.some((node) => node.kind === 'reduce');
  return {
    program: { inputs, scalars: scalars.length, nodes, outputs, outerRank },
    reads,
    writes,
    words,
    scalars,
    units: outerRank > 0 ? rows : hasReduction ? 1 : Math.ceil(columns / VECTOR),
    costNs,
    aligned:
      outerRank > 0
        ? reads.flatMap((read, i) => {
            const space = { rows, columns, outer };
            return isAligned(space, inputRowStrides[i] as number[], inputColumnStrides[i] as number, read.offset, options.sizeOf(read.ref))
              ? [i]
              : [];
          })
        : hasReduction
          ? undefined
          : reads.flatMap((read, i) =>
              inputColumnStrides[i] === 1 && read.offset === 0 && options.sizeOf(read.ref) === columns ? [i] : [],
            ),
  };
}

/** Whether row r of the space reads only the r-th of `rows` equal pieces of a value of `size` elements. */
function isAligned(
  space: { readonly rows: number; readonly columns: number; readonly outer: readonly number[] },
  rowStrides: readonly number[],
  columnStride: number,
  offset: number,
  size: number,
): boolean {
  const piece = size / space.rows;
  if (!Number.isInteger(piece) || piece === 0 || columnStride < 0) return false;
  let stride = piece;
  for (let i = space.outer.length - 1; i >= 0; i--) {
    if (space.outer[i] !== 1 && rowStrides[i] !== stride) return false;
    stride *= space.outer[i] as number;
  }
  return offset >= 0 && offset + Math.max(0, space.columns - 1) * columnStride < piece;
}

/** Operations whose result is one of the values of their operands' dtype. */
const EXACT: ReadonlySet<string> = new Set([
  ...['neg', 'abs', 'sign', 'maximum', 'minimum', 'select', 'floor', 'ceil', 'round', 'relu', 'relu6', 'max', 'min'],
]);

/** Whether the result needs no rounding to its dtype. */
function isExact(name: string, { dtype, inputs }: GraphNode, graph: Graph): boolean {
  if (!isHalf(dtype) || EXACT.has(name)) return true;
  const [ref] = inputs as readonly [number];
  return name === 'cast' && (isExternal(ref) ? graph.externals[~ref] : graph.nodes[ref])?.dtype === dtype;
}

function isValue(ref: number, graph: Graph): boolean {
  return isExternal(ref) && graph.externals[~ref]?.kind !== 'storage';
}

/** A reduction's result is ROW, but it reads FULL. */
function readsFull(graph: Graph, member: Member): boolean {
  return graph.nodes[member.node]?.definition.kind === 'reduce';
}
