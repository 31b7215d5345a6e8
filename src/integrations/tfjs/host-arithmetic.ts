/**
 * Shape arithmetic on the host: what operators of the library do to int32 and bool, for at most 64 elements, so that
 * sizes, indices and masks that the host knows never wait on the device.
 *
 * Values are plain arrays of numbers, each exactly a value of its dtype. Every function gives what the device would
 * give, bit for bit; shapes have been checked by the caller.
 */
import { GpuosError } from '../../errors.ts';
import { elementCount, strides } from '../../ops/shape.ts';
import { SHADOW_ELEMENTS } from './record.ts';

export type Values = readonly number[];
export type Shape = readonly number[];
export type Binary = (a: number, b: number) => number;

/** Element-wise int32 arithmetic (wrapping), comparisons and logic, by operator. */
export const BINARY: Readonly<Record<string, Binary>> = {
  add: (a, b) => (a + b) | 0,
  sub: (a, b) => (a - b) | 0,
  mul: Math.imul,
  'floor-div': (a, b) => (b === 0 ? 0 : Math.floor(a / b) | 0),
  mod: (a, b) => {
    if (b === 0) return 0;
    const rest = (a % b) | 0;
    return rest !== 0 && rest < 0 !== b < 0 ? rest + b : rest;
  },
  maximum: (a, b) => Math.max(a, b),
  minimum: (a, b) => Math.min(a, b),
  'squared-difference': (a, b) => Math.imul((a - b) | 0, (a - b) | 0),
  equal: (a, b) => (a === b ? 1 : 0),
  'not-equal': (a, b) => (a === b ? 0 : 1),
  less: (a, b) => (a < b ? 1 : 0),
  'less-equal': (a, b) => (a <= b ? 1 : 0),
  greater: (a, b) => (a > b ? 1 : 0),
  'greater-equal': (a, b) => (a >= b ? 1 : 0),
  'logical-and': (a, b) => a & b,
  'logical-or': (a, b) => a | b,
  'logical-xor': (a, b) => a ^ b,
};

export const UNARY: Readonly<Record<string, (x: number) => number>> = {
  neg: (x) => (0 - x) | 0,
  abs: (x) => (x < 0 ? (0 - x) | 0 : x),
  sign: (x) => (x > 0 ? 1 : x < 0 ? -1 : 0),
  square: (x) => Math.imul(x, x),
  relu: (x) => Math.max(x, 0),
  'logical-not': (x) => x ^ 1,
};

/** Reductions: identity, and one step. */
export const REDUCTION: Readonly<Record<string, { readonly identity: number; readonly step: Binary }>> = {
  sum: { identity: 0, step: BINARY['add'] as Binary },
  prod: { identity: 1, step: Math.imul },
  max: { identity: -(2 ** 31), step: BINARY['maximum'] as Binary },
  min: { identity: 2 ** 31 - 1, step: BINARY['minimum'] as Binary },
  any: { identity: 0, step: BINARY['logical-or'] as Binary },
  all: { identity: 1, step: BINARY['logical-and'] as Binary },
};

/** Whether a result of this shape is small enough to be worked out on the host. */
export function isSmall(shape: Shape): boolean {
  return elementCount(shape) <= SHADOW_ELEMENTS;
}

/** op(a, b) for operands of one shape, or one of them with a single element. */
export function zip(op: Binary, a: Values, b: Values): number[] {
  if (a.length === b.length) {
    const result = new Array<number>(a.length);
    for (let i = 0; i < a.length; i++) result[i] = op(a[i] as number, b[i] as number);
    return result;
  }
  if (b.length === 1) {
    const only = b[0] as number;
    return a.map((value) => op(value, only));
  }
  const only = a[0] as number;
  return b.map((value) => op(only, value));
}

/** The elements at offset + sum(index_i * stride_i) for every index of `shape` in row-major order: any view of `values`. */
export function readStrided(values: Values, shape: Shape, steps: readonly number[], offset: number): number[] {
  const count = elementCount(shape);
  const rank = shape.length;
  const result = new Array<number>(count);
  if (rank === 1) {
    const step = steps[0] as number;
    for (let i = 0; i < count; i++) result[i] = values[offset + i * step] as number;
    return result;
  }
  const index = new Array<number>(rank).fill(0);
  let position = offset;
  for (let i = 0; i < count; i++) {
    result[i] = values[position] as number;
    for (let axis = rank - 1; axis >= 0; axis--) {
      position += steps[axis] as number;
      if (++(index[axis] as number) < (shape[axis] as number)) break;
      position -= (steps[axis] as number) * (shape[axis] as number);
      index[axis] = 0;
    }
  }
  return result;
}

/** A reduction over `axes` (ascending, from the front): one value for every index of the other axes. */
export function reduce(op: string, values: Values, shape: Shape, axes: readonly number[]): number[] {
  const { identity, step } = REDUCTION[op] as { identity: number; step: Binary };
  if (axes.length === shape.length) {
    let total = identity;
    for (let i = 0; i < values.length; i++) total = step(total, values[i] as number);
    return [total];
  }
  const kept = shape.map((size, axis) => (axes.includes(axis) ? 1 : size));
  const places = readStrided(
    Array.from({ length: elementCount(kept) }, (_, i) => i),
    shape,
    strides(kept).map((stride, axis) => (axes.includes(axis) ? 0 : stride)),
    0,
  );
  const result = new Array<number>(elementCount(kept)).fill(identity);
  for (let i = 0; i < values.length; i++) {
    const place = places[i] as number;
    result[place] = step(result[place] as number, values[i] as number);
  }
  return result;
}

/** Tensors one after the other along an axis. */
export function concat(parts: readonly { readonly values: Values; readonly shape: Shape }[], axis: number): number[] {
  const result: number[] = [];
  const outer = elementCount((parts[0] as { shape: Shape }).shape.slice(0, axis));
  for (let i = 0; i < outer; i++) {
    for (const { values } of parts) {
      const inner = values.length / outer;
      for (let j = i * inner; j < (i + 1) * inner; j++) result.push(values[j] as number);
    }
  }
  return result;
}

function outOfRange(operator: string, index: number, size: number): GpuosError {
  return new GpuosError('GPUOS_INDEX_OUT_OF_RANGE', `${operator}: the index ${index} is not in [0, ${size - 1}].`);
}

/** Slices of x at the indices along an axis, as `gather` of the library with no batch dimensions. */
export function gather(x: Values, shape: Shape, indices: Values, axis: number): number[] {
  const size = shape[axis] as number;
  const outer = elementCount(shape.slice(0, axis));
  const inner = elementCount(shape.slice(axis + 1));
  const result: number[] = [];
  for (const index of indices) if (index < 0 || index >= size) throw outOfRange('gather', index, size);
  for (let i = 0; i < outer; i++) {
    for (const index of indices) {
      const from = (i * size + index) * inner;
      for (let j = from; j < from + inner; j++) result.push(x[j] as number);
    }
  }
  return result;
}

/** Where each of the indices [.., depth] points in a tensor: offsets of blocks in elements. */
function offsets(operator: string, indices: Values, depth: number, shape: Shape): number[] {
  const steps = strides(shape);
  const result: number[] = [];
  for (let i = 0; i < indices.length; i += depth) {
    let offset = 0;
    for (let axis = 0; axis < depth; axis++) {
      const index = indices[i + axis] as number;
      if (index < 0 || index >= (shape[axis] as number)) throw outOfRange(operator, index, shape[axis] as number);
      offset += index * (steps[axis] as number);
    }
    result.push(offset);
  }
  return result;
}

/** Blocks of x that the indices [.., depth] name. */
export function gatherNd(x: Values, shape: Shape, indices: Values, depth: number): number[] {
  const block = elementCount(shape.slice(depth));
  return offsets('gather-nd', indices, depth, shape).flatMap((offset) => x.slice(offset, offset + block));
}

/**
 * Blocks of `updates` written over `base` at the indices [.., depth], or added to it. `updates` with fewer values than
 * there are places is repeated (a scalar for every place).
 */
export function scatter(
  operator: string,
  base: Values,
  shape: Shape,
  indices: Values,
  depth: number,
  updates: Values,
  add: boolean,
): number[] {
  const block = elementCount(shape.slice(depth));
  const result = base.slice();
  let from = 0;
  for (const offset of offsets(operator, indices, depth, shape)) {
    for (let i = 0; i < block; i++) {
      const value = updates[from++ % updates.length] as number;
      result[offset + i] = add ? ((result[offset + i] as number) + value) | 0 : value;
    }
  }
  return result;
}
