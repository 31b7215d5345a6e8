import { GpuosError } from '../errors.ts';
import type { DType, Shape, TensorSpec } from './define.ts';
import { type HalfType, isHalf } from './dtype.ts';
import { fromHalfBits, roundToHalf } from './half.ts';
import { checkShape, elementCount, formatShape } from './shape.ts';

/** Elements on the host, row-major: Float32Array for float32, float16 and bfloat16, Int32Array for int32, Uint8Array (0 or 1) for bool. */
export type HostData = Float32Array | Int32Array | Uint8Array;

/** A tensor whose values lie on the host, contiguous and row-major. */
export interface HostTensor extends TensorSpec {
  readonly data: HostData;
}

/** An array of `length` zeros of the host's type for `dtype`. */
export function hostData(dtype: DType, length: number): HostData {
  return dtype === 'int32' ? new Int32Array(length) : dtype === 'bool' ? new Uint8Array(length) : new Float32Array(length);
}

/**
 * A host tensor with these values (booleans and numbers other than 0 are 1 for bool; for float16 and bfloat16 they are
 * rounded, and a Uint16Array is taken for the bits). Throws GPUOS_BAD_SHAPE for a bad
 * shape and GPUOS_SHAPE_MISMATCH when the number of values is not the number of elements.
 */
export function hostTensor(shape: Shape, values: ArrayLike<number | boolean>, dtype: DType = 'float32'): HostTensor {
  checkShape('tensor', shape);
  const count = elementCount(shape);
  if (values.length !== count) {
    throw new GpuosError(
      'GPUOS_SHAPE_MISMATCH',
      `tensor: ${formatShape(shape)} has ${count} elements, but ${values.length} values are given.`,
    );
  }
  const data = hostData(dtype, count);
  if (isHalf(dtype)) {
    for (let i = 0; i < count; i++) data[i] = halfValue(values, i, dtype);
    return { shape, dtype, data };
  }
  for (let i = 0; i < count; i++) data[i] = dtype === 'bool' ? Number(Boolean(values[i]) || Number.isNaN(values[i])) : Number(values[i]);
  return { shape, dtype, data };
}

/** Value `i` of a list that a half tensor is made of: rounded, or read from its bits in a Uint16Array. */
export function halfValue(values: ArrayLike<number | boolean>, i: number, dtype: HalfType): number {
  return values instanceof Uint16Array ? fromHalfBits(values[i] as number, dtype) : roundToHalf(Number(values[i]), dtype);
}

/** A host tensor of zeros. */
export function hostZeros(spec: TensorSpec): HostTensor {
  checkShape('tensor', spec.shape);
  return { shape: spec.shape, dtype: spec.dtype, data: hostData(spec.dtype, elementCount(spec.shape)) };
}
