import { GpuosError } from '../../errors.ts';
import type { Attributes, Shape } from '../../ops/define.ts';
import type { HostTensor } from '../../ops/host-tensor.ts';
import { elementCount, strides } from '../../ops/shape.ts';

/**
 * One operator as plain loops. Inputs and attributes have passed the operator's checks; `outputs` are zeros of the
 * specs that it inferred, to be filled in.
 */
export type ReferenceOperator = (inputs: readonly HostTensor[], attributes: Attributes, outputs: readonly HostTensor[]) => void;

/** Element `i` of a list that has it. */
export function at(list: ArrayLike<number>, i: number): number {
  return list[i] as number;
}

/** Calls `visit` with each index of the shape in row-major order; the array is reused. Not at all when the shape is empty. */
export function forEachIndex(shape: Shape, visit: (index: readonly number[], flat: number) => void): void {
  const index = new Array<number>(shape.length).fill(0);
  const count = elementCount(shape);
  for (let flat = 0; flat < count; flat++) {
    visit(index, flat);
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      index[axis] = at(index, axis) + 1;
      if (at(index, axis) < at(shape, axis)) break;
      index[axis] = 0;
    }
  }
}

/** Where an index lies, in elements. */
export function offsetOf(index: readonly number[], steps: readonly number[]): number {
  let offset = 0;
  for (let i = 0; i < index.length; i++) offset += at(index, i) * at(steps, i);
  return offset;
}

/** Fills `output` with the elements of `x` read by these strides from `start`. */
export function copyStrided(x: HostTensor, steps: readonly number[], start: number, output: HostTensor): void {
  forEachIndex(output.shape, (index, flat) => {
    output.data[flat] = at(x.data, start + offsetOf(index, steps));
  });
}

/** Calls `visit` once for each line of the shape along the axis, with the offset of its first element. */
export function forEachLane(shape: Shape, axis: number, visit: (start: number, step: number, length: number, lane: number) => void): void {
  const others = shape.map((size, i) => (i === axis ? 1 : size));
  const steps = strides(shape);
  forEachIndex(others, (index, lane) => visit(offsetOf(index, steps), at(steps, axis), at(shape, axis), lane));
}

/** Checks an index that comes from a tensor's values. Throws GPUOS_INDEX_OUT_OF_RANGE. */
export function checkIndex(operator: string, index: number, size: number): number {
  if (index < 0 || index >= size) {
    throw new GpuosError('GPUOS_INDEX_OUT_OF_RANGE', `${operator}: index ${index} is out of range for a size of ${size}.`);
  }
  return index;
}
