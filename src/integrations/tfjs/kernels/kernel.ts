import { GpuosError } from '../../../errors.ts';
import type { DType } from '../../../ops/define.ts';
import { broadcastPair, formatShape } from '../../../ops/shape.ts';
import { DECLINED, type GpuosBackend } from '../backend.ts';
import type { TensorInfo } from '../tfjs.ts';

/**
 * A kernel of tfjs on our backend: takes the inputs and attributes that tfjs gives it, and adds to exactly one counter.
 * It throws DECLINED, before it has done anything, for a call that the CPU kernel has to take.
 */
export type Kernel = (backend: GpuosBackend, inputs: never, attributes: never) => TensorInfo | TensorInfo[];

/** Kernels of one family by their names in tfjs. */
export type Kernels = Readonly<Record<string, Kernel>>;

export interface X {
  readonly x: TensorInfo;
}

export interface AB {
  readonly a: TensorInfo;
  readonly b: TensorInfo;
}

export type NoAttributes = unknown;

/** Sets of dtypes, one bit each. */
export const FLOAT = 1;
export const INT = 2;
export const BOOL = 4;
export const NUMBER = FLOAT | INT;
export const ANY = FLOAT | INT | BOOL;

const BITS: Readonly<Record<string, number>> = { float32: FLOAT, int32: INT, bool: BOOL };

/** Declines unless the tensor's dtype is in the set: strings, complex numbers, and what the operator does not take. */
export function accept(info: TensorInfo, dtypes: number): void {
  if (((BITS[info.dtype] ?? 0) & dtypes) === 0) throw DECLINED;
}

/** The same for two tensors that must also agree. */
export function acceptBoth(a: TensorInfo, b: TensorInfo, dtypes: number): void {
  if (a.dtype !== b.dtype) throw DECLINED;
  accept(a, dtypes);
}

/** The dtype of a tensor that has been accepted. */
export function dtypeOf(info: TensorInfo): DType {
  return info.dtype as DType;
}

/** tfjs gives axes as a number, a list, or nothing for all of them. */
export function axesOf(axis: number | readonly number[] | null | undefined): readonly number[] | undefined {
  if (axis === null || axis === undefined) return undefined;
  return typeof axis === 'number' ? [axis] : axis;
}

/** The shape that both broadcast to. Throws GPUOS_SHAPE_MISMATCH. */
export function broadcast(kernel: string, a: readonly number[], b: readonly number[]): readonly number[] {
  const shape = broadcastPair(a, b);
  if (shape === undefined) {
    throw new GpuosError(
      'GPUOS_SHAPE_MISMATCH',
      `${kernel}: the shapes ${formatShape(a)} and ${formatShape(b)} do not broadcast together.`,
    );
  }
  return shape;
}
