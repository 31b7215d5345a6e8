import type { ComputeType, DType } from './dtype.ts';

/**
 * The intermediate form of a fused kernel: what the planner hands to a device's compiler.
 *
 * A program runs over an iteration space of `rows x columns`. Every node is either FULL (one value an
 * element of that space) or ROW (one value a row: the result of a reduction over the columns, or made
 * of such values, constants and scalars only). Nodes are in single-assignment form and topological
 * order: an argument's index is always smaller than the node's own.
 *
 * Shapes never occur here. They are run-time parameters, so one compiled kernel serves every shape
 * with the same access pattern, and the compiler's cache is keyed by the program alone.
 *
 * Nodes have values of the dtypes that are computed with. float16 and bfloat16 are in memory only: an input of them is a
 * float32 node, and an output rounds the float32 node that it stores. Where a value goes on within the program as if it
 * had been stored in between, `round-float16` or `round-bfloat16` says so.
 */
export interface Program {
  readonly inputs: readonly ProgramInput[];
  /** Number of run-time scalars (32-bit words in the parameter block). */
  readonly scalars: number;
  readonly nodes: readonly ProgramNode[];
  readonly outputs: readonly ProgramOutput[];
  /**
   * Number of outer dimensions that the row index is split into: 0 means that there is one row (the
   * space is one contiguous run and tiles split its columns), 1..5 means that tiles split the rows and
   * that every input has that many run-time row strides.
   */
  readonly outerRank: number;
}

export interface ProgramInput {
  /** That of memory; the node's is the one that it is computed in. */
  readonly dtype: DType;
  /**
   * Stride along the columns: 1 (contiguous), 0 (the same element for the whole row: broadcast), or
   * 'strided' (a run-time stride in elements, may be any integer, also negative).
   */
  readonly columnStride: 0 | 1 | 'strided';
}

export type ProgramNode =
  | { readonly kind: 'input'; readonly input: number; readonly dtype: ComputeType }
  | { readonly kind: 'constant'; readonly value: number; readonly dtype: ComputeType }
  | { readonly kind: 'scalar'; readonly scalar: number; readonly dtype: ComputeType }
  /** An element-wise operation. `args` are node indices; `dtype` is that of the result. */
  | { readonly kind: 'map'; readonly op: MapName | RoundName; readonly args: readonly number[]; readonly dtype: ComputeType }
  /** A reduction of a FULL node over the columns; the result is ROW. */
  | { readonly kind: 'reduce'; readonly op: ReduceName; readonly arg: number; readonly dtype: ComputeType };

export interface ProgramOutput {
  readonly node: number;
  /** That of memory: float16 and bfloat16 round a float32 node. */
  readonly dtype: DType;
  /** `full`: rows x columns, contiguous along the columns, run-time row strides; `row`: one element a row. */
  readonly space: 'full' | 'row';
}

/** float32 to the nearest value (halves to even) that the narrower dtype has, as a float32. */
export type RoundName = 'round-float16' | 'round-bfloat16';

/** What an element-wise operation can be. Argument and result types are in `MAPS` of `ops/map.ts`. */
export type MapName =
  // two numbers -> number
  | 'add'
  | 'sub'
  | 'mul'
  | 'div'
  | 'floor-div'
  | 'mod'
  | 'maximum'
  | 'minimum'
  | 'pow'
  | 'squared-difference'
  | 'atan2'
  | 'prelu'
  // two numbers -> bool
  | 'equal'
  | 'not-equal'
  | 'less'
  | 'less-equal'
  | 'greater'
  | 'greater-equal'
  // bools -> bool
  | 'logical-and'
  | 'logical-or'
  | 'logical-xor'
  | 'logical-not'
  // (bool, number, number) -> number
  | 'select'
  // one number -> number
  | 'neg'
  | 'abs'
  | 'sign'
  | 'exp'
  | 'expm1'
  | 'log'
  | 'log1p'
  | 'sqrt'
  | 'rsqrt'
  | 'square'
  | 'reciprocal'
  | 'floor'
  | 'ceil'
  | 'round'
  | 'erf'
  | 'tanh'
  | 'sigmoid'
  | 'softplus'
  | 'sin'
  | 'cos'
  | 'tan'
  | 'asin'
  | 'acos'
  | 'atan'
  | 'sinh'
  | 'cosh'
  | 'asinh'
  | 'acosh'
  | 'atanh'
  | 'relu'
  | 'relu6'
  | 'elu'
  | 'selu'
  | 'gelu'
  | 'gelu-tanh'
  | 'silu'
  // one number -> bool
  | 'is-nan'
  | 'is-inf'
  | 'is-finite'
  // any dtype -> the node's dtype
  | 'cast';

/**
 * argmax/argmin give the first index (int32) that attains the extreme, or the first NaN's if there is one; they never
 * run over no columns. any/all take and give bool. Of no columns the others give their identity: `REDUCES` of
 * `ops/reduction.ts` says which.
 */
export type ReduceName = 'sum' | 'prod' | 'max' | 'min' | 'any' | 'all' | 'argmax' | 'argmin';

/**
 * The parameter block of a compiled program, in order:
 *  - pointers, 8 bytes each (on the wasm device the low word counts): inputs, then outputs, padded to
 *    at least 4 pointers;
 *  - then 32-bit words: `columns`; for outerRank 0 nothing else but the words below; for outerRank k > 0:
 *    `rows`, `units` (rows % units === 0; tile t of T takes the rows of units [floor(U*t/T), floor(U*(t+1)/T)) ),
 *    `dims[k]` (outermost first), then for each input k row strides (in elements, may be 0 or negative),
 *    then for each `full` output k row strides; (a `row` output is contiguous: element index = row index);
 *  - then, for each input with columnStride 'strided', its column stride;
 *  - then the scalars (float32 bits or int32, as the node's dtype states).
 * With outerRank 0, tile t of T takes the columns [t*c, min(columns, (t+1)*c)) with c = ceil(columns/T/16)*16,
 * and a program with a reduction is always run with one tile.
 * Elements are 4 bytes in device memory (bool: int32 0 or 1), of float16 and bfloat16 2.
 */
export interface ProgramLayout {
  readonly pointers: number;
  readonly words: number;
}

export const POINTER_BYTES = 8;
export const MIN_POINTERS = 4;

/** Number of pointers and words in the parameter block of a program, as laid out above. */
export function programLayout(program: Program): ProgramLayout {
  const k = program.outerRank;
  const full = program.outputs.filter((output) => output.space === 'full').length;
  const strided = program.inputs.filter((input) => input.columnStride === 'strided').length;
  const words = 1 + (k > 0 ? 2 + k + k * (program.inputs.length + full) : 0) + strided + program.scalars;
  return { pointers: Math.max(MIN_POINTERS, program.inputs.length + program.outputs.length), words };
}
