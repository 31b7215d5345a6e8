/**
 * Programs by plain loops, one element at a time, in double with a rounding after every node: what compiled
 * programs are held to. It shares no code with the compiler or with the reference device.
 */
import type { DType } from '../../src/ops/define.ts';
import { roundToHalf } from '../../src/ops/half.ts';
import type { MapName, Program, ProgramNode, ReduceName, RoundName } from '../../src/ops/program.ts';

type Element = (a: number, b: number, c: number) => number;
const r = Math.fround;

export function halfEven(x: number): number {
  if (!Number.isFinite(x) || Math.abs(x) >= 2 ** 23) return x;
  const below = Math.floor(x);
  const rounded = x - below < 0.5 || (x - below === 0.5 && below % 2 === 0) ? below : below + 1;
  return rounded === 0 ? x * 0 : rounded;
}

/** Operations whose float32 result is the same however they are computed. relu and relu6 keep the sign of zero. */
export const EXACT_FLOAT: Partial<Record<MapName | RoundName, Element>> = {
  'round-float16': (x) => roundToHalf(x, 'float16'),
  'round-bfloat16': (x) => roundToHalf(x, 'bfloat16'),
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  div: (a, b) => a / b,
  'floor-div': (a, b) => Math.floor(r(a / b)),
  maximum: (a, b) => Math.max(a, b),
  minimum: (a, b) => Math.min(a, b),
  'squared-difference': (a, b) => r(a - b) * r(a - b),
  prelu: (a, b) => (a < 0 ? a * b : a),
  equal: (a, b) => Number(a === b),
  'not-equal': (a, b) => Number(a !== b),
  less: (a, b) => Number(a < b),
  'less-equal': (a, b) => Number(a <= b),
  greater: (a, b) => Number(a > b),
  'greater-equal': (a, b) => Number(a >= b),
  select: (a, b, c) => (a ? b : c),
  neg: (a) => -a,
  abs: (a) => Math.abs(a),
  sign: (a) => (a > 0 ? 1 : a < 0 ? -1 : 0),
  sqrt: (a) => Math.sqrt(a),
  rsqrt: (a) => 1 / r(Math.sqrt(a)),
  square: (a) => a * a,
  reciprocal: (a) => 1 / a,
  floor: (a) => Math.floor(a),
  ceil: (a) => Math.ceil(a),
  round: halfEven,
  relu: (a) => (Object.is(a, -0) ? a : Math.max(a, 0)),
  relu6: (a) => (Object.is(a, -0) ? a : Math.min(Math.max(a, 0), 6)),
  'is-nan': (a) => Number(Number.isNaN(a)),
  'is-inf': (a) => Number(Math.abs(a) === Number.POSITIVE_INFINITY),
  'is-finite': (a) => Number(Number.isFinite(a)),
};

export const EXACT_INT: Partial<Record<MapName | RoundName, Element>> = {
  ...Object.fromEntries(
    (['add', 'sub', 'maximum', 'minimum', 'equal', 'not-equal', 'less', 'less-equal', 'greater', 'greater-equal', 'select'] as const).map(
      (name) => [name, EXACT_FLOAT[name]],
    ),
  ),
  mul: (a, b) => Math.imul(a, b),
  'floor-div': (a, b) => (b === 0 ? 0 : Math.floor(a / b)),
  mod: (a, b) => (b === 0 ? 0 : a - b * Math.floor(a / b)),
  pow: (a, b) => {
    if (b < 0) return a === 1 ? 1 : a === -1 ? 1 - 2 * (b & 1) : 0;
    return Number(BigInt.asIntN(32, modularPower(BigInt(a), BigInt(b))));
  },
  'squared-difference': (a, b) => Math.imul(a - b, a - b),
  neg: (a) => -a,
  abs: (a) => Math.abs(a),
  sign: (a) => Math.sign(a),
  square: (a) => Math.imul(a, a),
  relu: (a) => Math.max(a, 0),
};

function modularPower(base: bigint, exponent: bigint): bigint {
  let result = 1n;
  for (let b = base, e = exponent; e > 0n; e >>= 1n, b = BigInt.asIntN(32, b * b)) if (e & 1n) result = BigInt.asIntN(32, result * b);
  return result;
}

export const EXACT_BOOL: Partial<Record<MapName | RoundName, Element>> = {
  'logical-and': (a, b) => a & b,
  'logical-or': (a, b) => a | b,
  'logical-xor': (a, b) => a ^ b,
  'logical-not': (a) => 1 - a,
  equal: (a, b) => Number(a === b),
  'not-equal': (a, b) => Number(a !== b),
  less: (a, b) => Number(a < b),
  'less-equal': (a, b) => Number(a <= b),
  greater: (a, b) => Number(a > b),
  'greater-equal': (a, b) => Number(a >= b),
  select: (a, b, c) => (a ? b : c),
};

const TABLES = { float32: EXACT_FLOAT, int32: EXACT_INT, bool: EXACT_BOOL };

export function round(value: number, dtype: DType): number {
  return dtype === 'float32' ? r(value) : dtype === 'int32' ? value | 0 : Number(value !== 0);
}

export function cast(value: number, from: DType, to: DType): number {
  if (to === 'int32' && from === 'float32') return Number.isNaN(value) ? 0 : Math.max(-(2 ** 31), Math.min(2 ** 31 - 1, value)) | 0;
  return round(value, to);
}

function reduce(op: ReduceName, dtype: DType, values: readonly number[]): number {
  const float = dtype === 'float32';
  switch (op) {
    case 'sum':
      return values.reduce((a, b) => (float ? a + b : (a + b) | 0), 0);
    case 'prod':
      return values.reduce((a, b) => (float ? a * b : Math.imul(a, b)), 1);
    case 'max':
      return values.reduce((a, b) => Math.max(a, b), float ? Number.NEGATIVE_INFINITY : -(2 ** 31));
    case 'min':
      return values.reduce((a, b) => Math.min(a, b), float ? Number.POSITIVE_INFINITY : 2 ** 31 - 1);
    case 'any':
      return Number(values.some((value) => value !== 0));
    case 'all':
      return Number(values.every((value) => value !== 0));
    default: {
      let best = 0;
      for (let i = 1; i < values.length; i++) {
        const a = values[i] as number;
        const b = values[best] as number;
        if (Number.isNaN(b)) break;
        if (Number.isNaN(a) || (op === 'argmax' ? a > b : a < b)) best = i;
      }
      return best;
    }
  }
}

/** All nodes of one row: `columns` values each, or one if the node is the same over the row. */
export function evaluateRow(
  program: Program,
  columns: number,
  input: (input: number, column: number) => number,
  scalars: readonly number[],
  extra: Partial<Record<MapName | RoundName, Element>> = {},
): (node: number, column: number) => number {
  const { nodes } = program;
  const values: number[][] = [];
  const get = (node: number, column: number): number => {
    const list = values[node] as number[];
    return list.length === 1 ? (list[0] as number) : (list[column] as number);
  };
  const row: boolean[] = [];
  nodes.forEach((node, i) => {
    row[i] =
      node.kind === 'input'
        ? program.inputs[node.input]?.columnStride === 0
        : node.kind === 'map'
          ? node.args.every((arg) => row[arg])
          : true;
    const length = row[i] ? 1 : columns;
    const each = (f: (column: number) => number) => Array.from({ length }, (_, column) => f(column));
    if (node.kind === 'constant') values[i] = [round(node.value, node.dtype)];
    else if (node.kind === 'scalar') values[i] = [scalars[node.scalar] as number];
    else if (node.kind === 'input') values[i] = each((column) => input(node.input, column));
    else if (node.kind === 'reduce') {
      const all = Array.from({ length: columns }, (_, column) => get(node.arg, column));
      values[i] = [round(reduce(node.op, (nodes[node.arg] as ProgramNode).dtype, all), node.dtype)];
    } else {
      const [a = 0, b = a, c = a] = node.args;
      const operand = (nodes[node.op === 'select' ? b : a] as ProgramNode).dtype;
      if (node.op === 'cast') {
        values[i] = each((column) => cast(get(a, column), operand, node.dtype));
      } else {
        const f = TABLES[operand][node.op] ?? extra[node.op];
        if (f === undefined) throw new Error(`the evaluator does not know ${node.op} of ${operand}`);
        values[i] = each((column) => round(f(get(a, column), get(b, column), get(c, column)), node.dtype));
      }
    }
  });
  return get;
}
