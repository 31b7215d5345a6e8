import type { DType } from '../../../ops/define.ts';
import type { ReduceName } from '../../../ops/program.ts';
import type { FunctionBuilder } from '../encoder/function-builder.ts';
import { f32Bits } from '../encoder/byte-writer.ts';
import { SIMD } from '../encoder/opcodes.ts';

/**
 * Reductions over the columns of a row. Each unrolled vector has an accumulator of its own, so that
 * consecutive steps do not wait for each other; at the end of the row the accumulators are combined, then
 * their lanes, in a tree. argmax and argmin keep a value and a column a lane; of equal extremes the lower
 * column wins, and the first NaN beats all.
 */
export interface Accumulators {
  readonly op: ReduceName;
  readonly dtype: DType;
  /** Locals, one a vector in flight. */
  readonly values: readonly number[];
  /** Locals of the columns; only for argmax and argmin. */
  readonly columns: readonly number[];
  /** Total of the finished chunks, for a float32 sum: long rows are summed in chunks to bound the rounding error. */
  readonly total: number;
}

const MIN_INT = 0x80000000 | 0;
const MAX_INT = 0x7fffffff;

export const isArg = (op: ReduceName) => op === 'argmax' || op === 'argmin';

/** Bits of the identity of a reduction. A bool is a mask. */
export function identityBits(op: ReduceName, dtype: DType): number {
  if (dtype === 'bool') return op === 'all' || op === 'min' || op === 'prod' || op === 'argmin' ? -1 : 0;
  const float = dtype === 'float32';
  switch (op) {
    case 'prod':
      return float ? f32Bits(1) : 1;
    case 'max':
    case 'argmax':
      return float ? f32Bits(Number.NEGATIVE_INFINITY) : MIN_INT;
    case 'min':
    case 'argmin':
      return float ? f32Bits(Number.POSITIVE_INFINITY) : MAX_INT;
    case 'all':
      return -1;
    default:
      return 0;
  }
}

/** The instruction that combines two values; of bools, sum and max mean any, prod and min mean all. */
function combiner(op: ReduceName, dtype: DType): number {
  if (dtype === 'bool') return op === 'all' || op === 'min' || op === 'prod' ? SIMD.and : SIMD.or;
  const float = dtype === 'float32';
  switch (op) {
    case 'sum':
      return float ? SIMD.f32x4Add : SIMD.i32x4Add;
    case 'prod':
      return float ? SIMD.f32x4Mul : SIMD.i32x4Mul;
    case 'max':
      return float ? SIMD.f32x4Max : SIMD.i32x4MaxS;
    case 'min':
      return float ? SIMD.f32x4Min : SIMD.i32x4MinS;
    case 'all':
      return SIMD.and;
    default:
      return SIMD.or;
  }
}

export function createAccumulators(f: FunctionBuilder, op: ReduceName, dtype: DType, vectors: number): Accumulators {
  const locals = () => Array.from({ length: vectors }, () => f.vector());
  return { op, dtype, values: locals(), columns: isArg(op) ? locals() : [], total: op === 'sum' && dtype === 'float32' ? f.vector() : -1 };
}

export function releaseAccumulators(f: FunctionBuilder, accumulators: Accumulators): void {
  for (const local of accumulators.values) f.release(local);
  for (const local of accumulators.columns) f.release(local);
  if (accumulators.total >= 0) f.release(accumulators.total);
}

export function resetAccumulators(f: FunctionBuilder, accumulators: Accumulators): void {
  const { op, dtype, values, columns, total } = accumulators;
  for (const local of values) f.splatBits(identityBits(op, dtype)).set(local);
  for (const local of columns) f.splatBits(0).set(local);
  if (total >= 0) f.splatBits(0).set(total);
}

/** Leaves the mask of the lanes where candidate a is strictly better than b by value, NaN being best. */
function better(f: FunctionBuilder, op: ReduceName, dtype: DType, a: number, b: number): void {
  const greater = op === 'argmax';
  f.get(a).get(b);
  if (dtype !== 'float32') {
    f.simd(greater ? SIMD.i32x4GtS : SIMD.i32x4LtS);
    return;
  }
  f.simd(greater ? SIMD.f32x4Gt : SIMD.f32x4Lt);
  f.get(a).get(a).simd(SIMD.f32x4Ne).get(b).get(b).simd(SIMD.f32x4Eq).simd(SIMD.and).simd(SIMD.or);
}

/**
 * Takes vector `value` into accumulator `u`. `columns` is the local of the vector's column numbers (argmax
 * and argmin), `mask` the local of the lanes that count, or -1 for all.
 */
export function accumulate(f: FunctionBuilder, accumulators: Accumulators, u: number, value: number, columns: number, mask: number): void {
  const { op, dtype } = accumulators;
  const accumulator = accumulators.values[u] as number;
  if (!isArg(op)) {
    f.get(accumulator).get(value);
    if (mask >= 0) f.splatBits(identityBits(op, dtype)).get(mask).simd(SIMD.bitselect);
    f.simd(combiner(op, dtype)).set(accumulator);
    return;
  }
  const wins = f.vector();
  const best = accumulators.columns[u] as number;
  better(f, op, dtype, value, accumulator);
  if (mask >= 0) f.get(mask).simd(SIMD.and);
  f.set(wins);
  f.get(value).get(accumulator).get(wins).simd(SIMD.bitselect).set(accumulator);
  f.get(columns).get(best).get(wins).simd(SIMD.bitselect).set(best);
  f.release(wins);
}

/** Combines a sum's accumulators into the total and starts them anew. */
export function foldChunk(f: FunctionBuilder, accumulators: Accumulators): void {
  if (accumulators.total < 0) return;
  f.get(accumulators.total);
  tree(f, accumulators.values, SIMD.f32x4Add);
  f.simd(SIMD.f32x4Add).set(accumulators.total);
  for (const local of accumulators.values) f.splatBits(0).set(local);
}

function tree(f: FunctionBuilder, locals: readonly number[], opcode: number): void {
  if (locals.length === 1) {
    f.get(locals[0] as number);
    return;
  }
  const middle = locals.length >> 1;
  tree(f, locals.slice(0, middle), opcode);
  tree(f, locals.slice(middle), opcode);
  f.simd(opcode);
}

/** Sets `result` to the reduction of the row, in all lanes. */
export function finishReduction(f: FunctionBuilder, accumulators: Accumulators, result: number): void {
  const { op, dtype, values, columns } = accumulators;
  if (isArg(op)) {
    for (let u = 1; u < values.length; u++) {
      mergeArg(f, accumulators, values[0] as number, columns[0] as number, values[u] as number, columns[u] as number);
    }
    const value = f.vector();
    const column = f.vector();
    for (const distance of [2, 1]) {
      rotate(f, values[0] as number, distance);
      f.set(value);
      rotate(f, columns[0] as number, distance);
      f.set(column);
      mergeArg(f, accumulators, values[0] as number, columns[0] as number, value, column);
    }
    f.release(value);
    f.release(column);
    f.get(columns[0] as number).set(result);
    return;
  }
  const opcode = combiner(op, dtype);
  tree(f, values, opcode);
  if (accumulators.total >= 0) f.get(accumulators.total).simd(opcode);
  f.set(result);
  for (const distance of [2, 1]) {
    f.get(result);
    rotate(f, result, distance);
    f.simd(opcode).set(result);
  }
}

function rotate(f: FunctionBuilder, local: number, distance: number): void {
  f.get(local).get(local);
  if (distance === 2) f.shuffle(2, 3, 0, 1);
  else f.shuffle(1, 0, 3, 2);
}

/** Makes (value, column) the better of itself and (otherValue, otherColumn), lane by lane. */
function mergeArg(
  f: FunctionBuilder,
  { op, dtype }: Accumulators,
  value: number,
  column: number,
  otherValue: number,
  otherColumn: number,
): void {
  const wins = f.vector();
  // Better by value; or no worse and with the lower column.
  better(f, op, dtype, otherValue, value);
  better(f, op, dtype, value, otherValue);
  f.simd(SIMD.not).get(otherColumn).get(column).simd(SIMD.i32x4LtS).simd(SIMD.and).simd(SIMD.or).set(wins);
  f.get(otherValue).get(value).get(wins).simd(SIMD.bitselect).set(value);
  f.get(otherColumn).get(column).get(wins).simd(SIMD.bitselect).set(column);
  f.release(wins);
}
