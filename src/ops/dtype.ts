/**
 * dtypes of tensors. float16 (IEEE 754 binary16) and bfloat16 are ways to store a number, in 2 bytes: every operator reads
 * them as float32, computes and accumulates in float32, and rounds once, to the nearest even, when it gives its result.
 */
export type DType = 'float32' | 'int32' | 'bool' | HalfType;

export type HalfType = 'float16' | 'bfloat16';

/** What kernels compute with. */
export type ComputeType = Exclude<DType, HalfType>;

export const DTYPES: readonly DType[] = ['float32', 'int32', 'bool', 'float16', 'bfloat16'];

export function isHalf(dtype: DType): dtype is HalfType {
  return dtype === 'float16' || dtype === 'bfloat16';
}

export function isFloat(dtype: DType): dtype is 'float32' | HalfType {
  return dtype === 'float32' || isHalf(dtype);
}

/** What values of a dtype are computed in. */
export function computeType(dtype: DType): ComputeType {
  return isHalf(dtype) ? 'float32' : dtype;
}

/** Bytes of an element in a device's memory; a bool is an int32, 0 or 1. */
export function elementBytes(dtype: DType): 2 | 4 {
  return isHalf(dtype) ? 2 : 4;
}
