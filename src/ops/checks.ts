import { type ErrorCode, GpuosError } from '../errors.ts';
import { DTYPES } from './dtype.ts';
import type { DType, Shape, TensorSpec } from './define.ts';
import { formatShape, sameShape } from './shape.ts';

export const FLOATS: readonly DType[] = ['float32', 'float16', 'bfloat16'];
export const NUMBERS: readonly DType[] = ['float32', 'int32', 'float16', 'bfloat16'];
export const BOOLS: readonly DType[] = ['bool'];
export const ANY = DTYPES;

type Typed = Pick<TensorSpec, 'dtype'>;

/** Element `i` of a list that is known to have it: inputs are counted before an operator's functions see them. */
export function at<T>(list: readonly T[], i: number): T {
  return list[i] as T;
}

/** An error of an operator, its name in front of the message. */
export function refuse(code: ErrorCode, operator: string, message: string): GpuosError {
  return new GpuosError(code, `${operator}: ${message}`);
}

export function mismatch(operator: string, message: string): GpuosError {
  return refuse('GPUOS_SHAPE_MISMATCH', operator, message);
}

/** Throws GPUOS_DTYPE_MISMATCH unless the input has one of the dtypes. */
export function checkDType(operator: string, input: string, spec: Typed, allowed: readonly DType[]): void {
  if (!allowed.includes(spec.dtype)) {
    throw refuse('GPUOS_DTYPE_MISMATCH', operator, `${input} is ${spec.dtype}; it must be ${allowed.join(' or ')}.`);
  }
}

/** Throws GPUOS_DTYPE_MISMATCH unless all inputs have one dtype, that of the first, and one of these. */
export function checkOneDType(operator: string, names: readonly string[], inputs: readonly TensorSpec[], allowed: readonly DType[]): DType {
  const first = at(inputs, 0);
  for (let i = 0; i < inputs.length; i++) {
    checkDType(operator, at(names, i), at(inputs, i), allowed);
    if (i > 0) checkSameDType(operator, [at(names, 0), at(names, i)], first, at(inputs, i));
  }
  return first.dtype;
}

/** Throws GPUOS_DTYPE_MISMATCH unless both have the same dtype. */
export function checkSameDType(operator: string, names: readonly [string, string], a: Typed, b: Typed): void {
  if (a.dtype !== b.dtype) {
    throw refuse('GPUOS_DTYPE_MISMATCH', operator, `${names[0]} is ${a.dtype} and ${names[1]} is ${b.dtype}; they must be of one dtype.`);
  }
}

/** Throws GPUOS_SHAPE_MISMATCH unless the input has at least `least` dimensions. */
export function checkRank(operator: string, input: string, spec: TensorSpec, least: number): void {
  if (spec.shape.length < least) {
    throw mismatch(operator, `${input} ${formatShape(spec.shape)} has rank ${spec.shape.length}; it must have at least ${least}.`);
  }
}

/** Throws GPUOS_SHAPE_MISMATCH unless the input has exactly this shape. */
export function checkExactShape(operator: string, input: string, spec: TensorSpec, shape: Shape): void {
  if (!sameShape(spec.shape, shape)) {
    throw mismatch(operator, `${input} ${formatShape(spec.shape)} must have the shape ${formatShape(shape)}.`);
  }
}

/** Throws GPUOS_BAD_ATTRIBUTE unless `value` is exactly a value of `dtype` (an integer of 32 bits for int32, 0 or 1 for bool). */
export function checkScalarOf(operator: string, attribute: string, value: number, dtype: DType): void {
  if (dtype === 'int32' && (value | 0) !== value) {
    throw refuse('GPUOS_BAD_ATTRIBUTE', operator, `attribute ${attribute} is ${value}, not an integer of 32 bits, as int32 needs.`);
  }
  if (dtype === 'bool' && value !== 0 && value !== 1) {
    throw refuse('GPUOS_BAD_ATTRIBUTE', operator, `attribute ${attribute} is ${value}; bool needs 0 or 1.`);
  }
}
