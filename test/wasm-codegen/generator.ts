/** Random programs over random shapes, strides and layouts, with edge values of every dtype. */
import type { DType } from '../../src/ops/define.ts';
import { type ComputeType, computeType, elementBytes, type HalfType } from '../../src/ops/dtype.ts';
import { roundToHalf } from '../../src/ops/half.ts';
import type { MapName, Program, ProgramInput, ProgramNode, ReduceName, RoundName } from '../../src/ops/program.ts';
import { EXACT_BOOL, EXACT_FLOAT, EXACT_INT } from './evaluator.ts';
import type { Case, Placement } from './machine.ts';

export class Random {
  #state: number;
  constructor(seed: number) {
    this.#state = seed | 0;
  }
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let t = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }
  below(n: number): number {
    return Math.floor(this.next() * n);
  }
  pick<T>(list: readonly T[]): T {
    return list[this.below(list.length)] as T;
  }
  chance(p: number): boolean {
    return this.next() < p;
  }
}

const FLOATS = [
  0,
  -0,
  1,
  -1,
  0.5,
  -2.5,
  3,
  7,
  1e-40,
  -1e-45,
  1.17e-38,
  3.4e38,
  -3.4e38,
  1e10,
  -1e10,
  2147483648,
  16777217,
  Number.NaN,
  Number.POSITIVE_INFINITY,
  Number.NEGATIVE_INFINITY,
];
const INTS = [0, 1, -1, 2, -2, 3, 7, -5, 31, 100, 65536, 2147483647, -2147483648, 123456789];

function value(random: Random, dtype: DType): number {
  if (dtype === 'bool') return random.below(2);
  if (dtype === 'int32') return random.chance(0.4) ? random.pick(INTS) : random.below(21) - 10;
  const any = Math.fround(random.chance(0.3) ? random.pick(FLOATS) : (random.next() - 0.5) * 2 ** random.below(12));
  return dtype === 'float32' ? any : roundToHalf(any, dtype);
}

const UNARY = new Set<MapName | RoundName>([
  'round-float16',
  'round-bfloat16',
  'neg',
  'abs',
  'sign',
  'sqrt',
  'rsqrt',
  'square',
  'reciprocal',
  'floor',
  'ceil',
  'round',
  'relu',
  'relu6',
  'is-nan',
  'is-inf',
  'is-finite',
  'logical-not',
]);
const TO_BOOL = new Set<MapName | RoundName>([
  'equal',
  'not-equal',
  'less',
  'less-equal',
  'greater',
  'greater-equal',
  'is-nan',
  'is-inf',
  'is-finite',
]);

function randomProgram(random: Random, outerRank: number): Program {
  const dtypes: ComputeType[] = ['float32', 'float32', 'int32', 'bool'];
  const halves: HalfType[] = ['float16', 'bfloat16'];
  const inputs: ProgramInput[] = Array.from({ length: 1 + random.below(4) }, () => ({
    dtype: random.pick([...dtypes, ...halves]),
    columnStride: random.pick([1, 1, 0, 'strided'] as const),
  }));
  const nodes: ProgramNode[] = [];
  const add = (node: ProgramNode): number => nodes.push(node) - 1;
  const scalars: ComputeType[] = [];
  for (const [i, input] of inputs.entries()) add({ kind: 'input', input: i, dtype: computeType(input.dtype) });
  const typed = (dtype: ComputeType): number => {
    const candidates = nodes.flatMap((node, i) => (node.dtype === dtype ? [i] : []));
    if (candidates.length > 0 && random.chance(0.93)) return random.chance(0.6) ? (candidates.at(-1) as number) : random.pick(candidates);
    if (random.chance(0.5)) return add({ kind: 'constant', value: value(random, dtype), dtype });
    scalars.push(dtype);
    return add({ kind: 'scalar', scalar: scalars.length - 1, dtype });
  };
  const reduces = random.chance(0.5);
  const steps = 1 + random.below(14);
  for (let step = 0; step < steps; step++) {
    const dtype = random.pick(dtypes);
    if (reduces && random.chance(0.3)) {
      const arg = typed(dtype);
      const names: ReduceName[] = dtype === 'bool' ? ['any', 'all'] : ['sum', 'prod', 'max', 'min', 'argmax', 'argmin'];
      const op = random.pick(names);
      let from = arg;
      if (dtype === 'float32' && (op === 'sum' || op === 'prod')) {
        // Small integers, so that the sum is the same in any order.
        const bound = op === 'sum' ? 4 : 1;
        const low = add({ kind: 'constant', value: -bound, dtype });
        const high = add({ kind: 'constant', value: bound, dtype });
        from = add({ kind: 'map', op: 'maximum', args: [from, low], dtype });
        from = add({ kind: 'map', op: 'minimum', args: [from, high], dtype });
        from = add({ kind: 'map', op: 'round', args: [from], dtype });
      }
      add({ kind: 'reduce', op, arg: from, dtype: op === 'argmax' || op === 'argmin' ? 'int32' : dtype });
    } else if (random.chance(0.15)) {
      const arg = typed(dtype);
      add({ kind: 'map', op: 'cast', args: [arg], dtype: random.pick(['float32', 'int32', 'bool'] as const) });
    } else {
      const table = dtype === 'float32' ? EXACT_FLOAT : dtype === 'int32' ? EXACT_INT : EXACT_BOOL;
      const op = random.pick(Object.keys(table) as (MapName | RoundName)[]);
      const args =
        op === 'select' ? [typed('bool'), typed(dtype), typed(dtype)] : UNARY.has(op) ? [typed(dtype)] : [typed(dtype), typed(dtype)];
      add({ kind: 'map', op, args, dtype: TO_BOOL.has(op) ? 'bool' : dtype });
    }
  }
  const uniform = nodes.map(() => false);
  nodes.forEach((node, i) => {
    uniform[i] =
      node.kind === 'input' ? inputs[node.input]?.columnStride === 0 : node.kind === 'map' ? node.args.every((arg) => uniform[arg]) : true;
  });
  const outputs = Array.from({ length: 1 + random.below(3) }, (_, i) => {
    const node = i === 0 ? nodes.length - 1 : random.below(nodes.length);
    const own = (nodes[node] as ProgramNode).dtype;
    const dtype = own === 'float32' && random.chance(0.4) ? random.pick(halves) : own;
    return { node, dtype, space: uniform[node] && random.chance(0.7) ? 'row' : 'full' } as const;
  });
  return { inputs, scalars: scalars.length, nodes, outputs, outerRank };
}

const COLUMNS = [0, 1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 130, 259];

/** Also rows that are `longer` than those that every device is tried with. */
export function randomCase(seed: number, longer: readonly number[] = []): Case {
  const random = new Random(seed);
  const outerRank = random.below(5);
  const program = randomProgram(random, outerRank);
  const columns = random.pick([...COLUMNS, ...longer]);
  const dims = Array.from({ length: outerRank }, () => (random.chance(0.04) ? 0 : 1 + random.below(4)));
  // Long rows in few rows: the operands have to fit into the memory of the tests.
  for (let d = 0; d < outerRank; d++) if (dims.reduce((a, b) => a * b, 1) * columns > 12_000) dims[d] = 1;
  const rows = dims.reduce((a, b) => a * b, 1);
  const compact = (inner: number) => {
    const strides: number[] = [];
    for (let d = outerRank - 1, size = inner; d >= 0; d--) {
      strides[d] = size;
      size *= Math.max(1, dims[d] as number);
    }
    return strides;
  };
  const inputs: Placement[] = program.inputs.map((input) => {
    const columnStride = input.columnStride === 'strided' ? random.pick([-3, -1, 1, 2, 3]) : input.columnStride;
    const plain = random.chance(0.4);
    return {
      rowStrides: compact(Math.max(1, Math.abs(columnStride) * columns)).map((stride) =>
        plain ? stride : random.chance(0.3) ? 0 : random.chance(0.2) ? -stride : stride,
      ),
      columnStride,
    };
  });
  const taken = new Set<number>();
  const inPlace = program.outputs.map((output) => {
    if (output.space !== 'full' || !random.chance(0.5)) return -1;
    const found = program.inputs.findIndex(
      (input, i) =>
        !taken.has(i) &&
        input.columnStride === 1 &&
        elementBytes(input.dtype) === elementBytes(output.dtype) &&
        inputs[i]?.rowStrides.every((stride, d) => stride === compact(Math.max(1, columns))[d]),
    );
    if (found >= 0) taken.add(found);
    return found;
  });
  const outputs = program.outputs.map((_, o) =>
    (inPlace[o] as number) >= 0
      ? (inputs[inPlace[o] as number] as Placement)
      : { rowStrides: compact(Math.max(1, columns) + random.below(3)), columnStride: 1 },
  );
  const reduction = program.nodes.some((node) => node.kind === 'reduce');
  const inner = outerRank > 0 ? dims.slice(random.below(outerRank + 1)).reduce((a, b) => a * b, 1) : 1;
  const scalars: number[] = [];
  for (const node of program.nodes) if (node.kind === 'scalar') scalars[node.scalar] = value(random, node.dtype);
  return {
    program,
    columns,
    dims,
    units: rows === 0 ? 1 : rows / inner,
    tiles: outerRank === 0 && reduction ? 1 : 1 + random.below(5),
    inputs,
    outputs,
    inPlace,
    scalars,
    value: (dtype) => value(random, dtype),
  };
}

/** More operands than a device keeps at hand, over many columns and up to `mostRank` dimensions outside of them. */
export function manyOperands(seed: number, mostRank: number, widths: readonly number[]): Case {
  const random = new Random(seed);
  const outerRank = random.below(mostRank + 1);
  const count = 7 + random.below(12);
  const inputs: ProgramInput[] = Array.from({ length: count }, () => ({
    dtype: random.chance(0.75) ? 'float32' : random.pick(['int32', 'float16', 'bfloat16'] as const),
    columnStride: random.pick([1, 1, 1, 1, 1, 0, 'strided'] as const),
  }));
  const nodes: ProgramNode[] = inputs.map((input, i) => ({ kind: 'input', input: i, dtype: computeType(input.dtype) }));
  const values: number[] = [];
  inputs.forEach((input, i) => {
    const from = input.dtype === 'int32' ? nodes.push({ kind: 'map', op: 'cast', args: [i], dtype: 'float32' }) - 1 : i;
    const op = random.pick(['add', 'sub', 'mul', 'maximum', 'minimum'] as const);
    const other = values.length === 0 ? from : random.chance(0.75) ? (values.at(-1) as number) : random.pick(values);
    values.push(nodes.push({ kind: 'map', op, args: random.chance(0.5) ? [other, from] : [from, other], dtype: 'float32' }) - 1);
    if (random.chance(0.3)) values.push(nodes.push({ kind: 'map', op: 'relu', args: [values.at(-1) as number], dtype: 'float32' }) - 1);
  });
  const width = random.pick(widths);
  // Operands of several rows have to fit into the memory of the tests.
  const columns = outerRank > 0 ? Math.min(width, 4100) : width;
  const dims = [[], [2], [2, 2]][outerRank]!;
  const compact = (inner: number) => dims.map((_, d) => inner * dims.slice(d + 1).reduce((x, y) => x * y, 1));
  const placements: Placement[] = inputs.map((input) => {
    const columnStride = input.columnStride === 'strided' ? random.pick([-1, 1]) : input.columnStride;
    return { rowStrides: compact(columns).map((stride) => (random.chance(0.3) ? 0 : stride)), columnStride };
  });
  const outputs = [values.at(-1) as number, ...(random.chance(0.4) ? [random.pick(values)] : [])];
  const found = inputs.findIndex(
    (input, i) =>
      input.columnStride === 1 &&
      elementBytes(input.dtype) === 4 &&
      (placements[i] as Placement).rowStrides.every((s, d) => s === compact(columns)[d]),
  );
  return {
    program: { inputs, scalars: 0, nodes, outputs: outputs.map((node) => ({ node, dtype: 'float32', space: 'full' })), outerRank },
    columns,
    dims,
    units: 2,
    tiles: 1 + random.below(3),
    inputs: placements,
    outputs: outputs.map(() => ({ rowStrides: compact(columns), columnStride: 1 })),
    inPlace: outputs.map((_, o) => (o === 0 && random.chance(0.6) ? found : -1)),
    scalars: [],
    value: (dtype) => value(random, dtype),
  };
}

/** More values that are the same for a row than are kept in registers for it: broadcast inputs and scalars. */
export function manyUniforms(seed: number): Case {
  const random = new Random(seed);
  const outerRank = random.below(3);
  const count = 14 + random.below(20);
  const inputs: ProgramInput[] = Array.from({ length: count }, (_, i) => ({ dtype: 'float32', columnStride: i < 2 ? 1 : 0 }));
  const scalars = 14;
  const nodes: ProgramNode[] = inputs.map((input, i) => ({ kind: 'input', input: i, dtype: computeType(input.dtype) }));
  for (let scalar = 0; scalar < scalars; scalar++) nodes.push({ kind: 'scalar', scalar, dtype: 'float32' });
  let last = 0;
  for (let i = 1; i < count + scalars; i++) {
    const op = random.pick(['add', 'sub', 'mul', 'maximum', 'minimum'] as const);
    // Some of them meet each other first, and then are one value a row themselves.
    const other = random.chance(0.2) ? nodes.push({ kind: 'map', op: 'add', args: [i, count - 1], dtype: 'float32' }) - 1 : i;
    last = nodes.push({ kind: 'map', op, args: [last, other], dtype: 'float32' }) - 1;
  }
  const columns = random.pick([1, 5, 64, 100, 300]);
  const dims = [[], [4], [2, 3]][outerRank]!;
  const compact = (inner: number) => dims.map((_, d) => inner * dims.slice(d + 1).reduce((x, y) => x * y, 1));
  const row = nodes.push({ kind: 'map', op: 'mul', args: [count - 1, count - 2], dtype: 'float32' }) - 1;
  return {
    program: {
      inputs,
      scalars,
      nodes,
      outputs: [
        { node: last, dtype: 'float32', space: 'full' },
        { node: row, dtype: 'float32', space: 'row' },
      ],
      outerRank,
    },
    columns,
    dims,
    units: outerRank === 0 ? 1 : 2,
    tiles: outerRank === 0 ? 1 : 1 + random.below(3),
    inputs: inputs.map(({ columnStride }) => ({
      rowStrides: compact(columnStride === 1 ? columns : 1),
      columnStride: columnStride as 0 | 1,
    })),
    outputs: [
      { rowStrides: compact(columns), columnStride: 1 },
      { rowStrides: [], columnStride: 1 },
    ],
    // The value of a row lies where one was read that all its threads need.
    inPlace: [-1, count - 1],
    scalars: Array.from({ length: scalars }, () => value(random, 'float32')),
    value: (dtype) => value(random, dtype),
  };
}

/** A row output in the place of an input with one element a row, which all threads of the row read. */
export function rowInPlace(seed: number): Case {
  const random = new Random(seed);
  const columns = random.pick([2, 33, 100, 700]);
  const rows = random.pick([1, 3, 9]);
  return {
    program: {
      inputs: [
        { dtype: 'float32', columnStride: 1 },
        { dtype: 'float32', columnStride: 0 },
      ],
      scalars: 0,
      nodes: [
        { kind: 'input', input: 0, dtype: 'float32' },
        { kind: 'input', input: 1, dtype: 'float32' },
        { kind: 'map', op: 'add', args: [0, 1], dtype: 'float32' },
        { kind: 'map', op: 'square', args: [1], dtype: 'float32' },
      ],
      outputs: [
        { node: 2, dtype: 'float32', space: 'full' },
        { node: 3, dtype: 'float32', space: 'row' },
      ],
      outerRank: 1,
    },
    columns,
    dims: [rows],
    units: rows,
    tiles: 1 + random.below(2),
    inputs: [
      { rowStrides: [columns], columnStride: 1 },
      { rowStrides: [1], columnStride: 0 },
    ],
    outputs: [
      { rowStrides: [columns], columnStride: 1 },
      { rowStrides: [], columnStride: 1 },
    ],
    inPlace: [-1, 1],
    scalars: [],
    value: () => random.below(9) + 2,
  };
}
