import { GpuosError } from '../errors.ts';
import type { DType, Shape, TensorSpec } from './define.ts';
import { checkShape, elementCount, formatShape } from './shape.ts';

/** Elements on the host, row-major: Float32Array for float32, Int32Array for int32, Uint8Array (0 or 1) for bool. */
export type HostData = Float32Array | Int32Array | Uint8Array;

/** A tensor whose values lie on the host, contiguous and row-major. */
export interface HostTensor extends TensorSpec {
  readonly data: HostData;
}

export const DTYPES: readonly DType[] = ['float32', 'int32', 'bool'];

/** An array of `length` zeros of the host's type for `dtype`. */
export function hostData(dtype: DType, length: number): HostData {
  return dtype === 'float32' ? new Float32Array(length) : dtype === 'int32' ? new Int32Array(length) : new Uint8Array(length);
}

/**
 * A host tensor with these values (booleans and numbers other than 0 are 1 for bool). Throws GPUOS_BAD_SHAPE for a bad
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
  for (let i = 0; i < count; i++) data[i] = dtype === 'bool' ? Number(Boolean(values[i]) || Number.isNaN(values[i])) : Number(values[i]);
  return { shape, dtype, data };
}

/** A host tensor of zeros. */
export function hostZeros(spec: TensorSpec): HostTensor {
  checkShape('tensor', spec.shape);
  return { shape: spec.shape, dtype: spec.dtype, data: hostData(spec.dtype, elementCount(spec.shape)) };
}
