import { GpuosError } from '../../../errors.ts';

/** What the interpreter can do, in the order of `device/interpreter.cuh`: an operation's number is its place in the list. */
const REDUCTIONS = [
  ...['SumFloat', 'ProdFloat', 'MaxFloat', 'MinFloat', 'ArgmaxFloat', 'ArgminFloat'],
  ...['SumInt', 'ProdInt', 'MaxInt', 'MinInt', 'ArgmaxInt', 'ArgminInt', 'Any', 'All'],
];
const FLOAT_UNARY = [
  ...['neg', 'abs', 'sign', 'exp', 'expm1', 'log', 'log1p', 'sqrt', 'rsqrt', 'square', 'reciprocal', 'floor', 'ceil', 'round'],
  ...['erf', 'tanh', 'sigmoid', 'softplus', 'sin', 'cos', 'tan', 'asin', 'acos', 'atan', 'sinh', 'cosh', 'asinh', 'acosh'],
  ...['atanh', 'relu', 'relu6', 'elu', 'selu', 'gelu', 'gelu_tanh', 'silu', 'is_nan', 'is_inf', 'is_finite', 'to_int', 'to_bool'],
  ...['round_float16', 'round_bfloat16'],
];
const FLOAT_BINARY = [
  ...['add', 'sub', 'mul', 'div', 'floor_div', 'mod', 'maximum', 'minimum', 'pow', 'squared_difference', 'atan2', 'prelu'],
  ...['equal', 'not_equal', 'less', 'less_equal', 'greater', 'greater_equal'],
];
const INT_UNARY = ['neg', 'abs', 'sign', 'square', 'relu', 'to_float', 'to_bool'];
const INT_BINARY = [
  ...['add', 'sub', 'mul', 'floor_div', 'mod', 'maximum', 'minimum', 'pow', 'squared_difference', 'equal'],
  ...['not_equal', 'less', 'less_equal', 'greater', 'greater_equal'],
];
const BOOL_BINARY = ['logical_and', 'logical_or', 'logical_xor'];

export const OPCODES: readonly string[] = [
  ...['load', 'load_row', 'store', 'store_row', 'settle', 'move', 'select', 'logical_not'],
  ...BOOL_BINARY,
  ...[...FLOAT_UNARY, ...FLOAT_BINARY].map((name) => `${name}_float`),
  ...[...INT_UNARY, ...INT_BINARY].map((name) => `${name}_int`),
  ...REDUCTIONS.flatMap((name) => [`begin_${name}`, `fold_${name}`, `finish_${name}`]),
];

const NUMBERS = new Map(OPCODES.map((name, number) => [name, number]));

export function opcode(name: string): number {
  const number = NUMBERS.get(name);
  if (number === undefined) throw new GpuosError('GPUOS_INTERNAL', `The interpreter has no operation ${name}.`);
  return number;
}

export type OperationKind =
  | 'load'
  | 'load-row'
  | 'store'
  | 'store-row'
  | 'settle'
  | 'unary'
  | 'binary'
  | 'select'
  | 'begin'
  | 'fold'
  | 'finish';

const UNARY = new Set(['move', 'logical_not', ...FLOAT_UNARY.map((name) => `${name}_float`), ...INT_UNARY.map((name) => `${name}_int`)]);

/** What operands an operation has; undefined for a number that is none. */
export function operationKind(number: number): OperationKind | undefined {
  const name = OPCODES[number];
  if (name === undefined) return undefined;
  const special = /^(load|load_row|store|store_row|settle|select)$/.exec(name)?.[1] ?? /^(begin|fold|finish)_/.exec(name)?.[1];
  if (special !== undefined) return special.replace('_', '-') as OperationKind;
  return UNARY.has(name) ? 'unary' : 'binary';
}
