import { GpuosError } from '../errors.ts';
import type { Shape } from './define.ts';

/** Most elements that a tensor may have: element indices are int32 on every device. */
export const MAX_ELEMENTS = 2 ** 31 - 1;
/** Most dimensions that a tensor may have: a program's five outer dimensions and its columns, and the limit of TensorFlow.js. */
export const MAX_RANK = 6;

/** A value in the words of a message. Anything may come from JavaScript, also what has no text, so objects are only named. */
export function formatValue(value: unknown): string {
  if (Array.isArray(value)) return formatShape(value);
  if (typeof value === 'string') return JSON.stringify(value.slice(0, 64));
  if (value === null || (typeof value !== 'object' && typeof value !== 'function' && typeof value !== 'symbol')) return String(value);
  return `a value of type ${typeof value}`;
}

/** `[2,3]`; `[]` for a scalar. */
export function formatShape(shape: readonly unknown[]): string {
  const shown = shape.slice(0, 16).map((size) => (Array.isArray(size) ? '[..]' : formatValue(size)));
  return `[${shown.join(',')}${shape.length > 16 ? ',..' : ''}]`;
}

/** Number of elements; 1 for a scalar, 0 when any dimension is 0. */
export function elementCount(shape: Shape): number {
  let count = 1;
  for (let i = 0; i < shape.length; i++) count *= shape[i] as number;
  return count;
}

/** Throws GPUOS_BAD_SHAPE when a shape of otherwise valid sizes has more than MAX_RANK dimensions or MAX_ELEMENTS elements. */
export function checkExtent(what: string, shape: Shape): void {
  if (shape.length > MAX_RANK) {
    throw new GpuosError(
      'GPUOS_BAD_SHAPE',
      `${what}: ${formatShape(shape)} has ${shape.length} dimensions; at most ${MAX_RANK} are possible.`,
    );
  }
  // Written so that NaN, from a size beyond doubles next to one of 0, is refused.
  if (!(elementCount(shape) <= MAX_ELEMENTS)) {
    throw new GpuosError(
      'GPUOS_BAD_SHAPE',
      `${what}: ${formatShape(shape)} has ${elementCount(shape)} elements; at most ${MAX_ELEMENTS} are possible.`,
    );
  }
}

/**
 * Throws GPUOS_BAD_SHAPE unless `shape` is an array of at most MAX_RANK integers of at least 0 (of at least -1 with
 * `wildcard`, and at most one of them -1) whose product is at most MAX_ELEMENTS. `what` opens the message.
 */
export function checkShape(what: string, shape: unknown, wildcard = false): asserts shape is Shape {
  if (!Array.isArray(shape))
    throw new GpuosError('GPUOS_BAD_SHAPE', `${what}: a shape must be an array of integers, not ${formatValue(shape)}.`);
  let wildcards = 0;
  for (let i = 0; i < shape.length; i++) {
    const size: unknown = shape[i];
    if (wildcard && size === -1) wildcards++;
    else if (typeof size !== 'number' || !Number.isInteger(size) || size < 0) {
      throw new GpuosError(
        'GPUOS_BAD_SHAPE',
        `${what}: dimension ${i} of ${formatShape(shape)} is ${formatValue(size)}, not an integer of at least 0.`,
      );
    }
  }
  if (wildcards > 1)
    throw new GpuosError(
      'GPUOS_BAD_SHAPE',
      `${what}: ${formatShape(shape)} has ${wildcards} dimensions of -1; at most one can be worked out.`,
    );
  checkExtent(what, wildcards ? shape.filter((size) => size !== -1) : shape);
}

export function sameShape(a: Shape, b: Shape): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

/** Row-major strides in elements: `strides([2,3,4])` is `[12,4,1]`. */
export function strides(shape: Shape): number[] {
  const result = new Array<number>(shape.length);
  let stride = 1;
  for (let i = shape.length - 1; i >= 0; i--) {
    result[i] = stride;
    stride *= shape[i] as number;
  }
  return result;
}

/** The shape that both broadcast to under NumPy's rule (align at the end; sizes are equal or one of them is 1), or undefined. */
export function broadcastPair(a: Shape, b: Shape): Shape | undefined {
  if (sameShape(a, b)) return a;
  const rank = Math.max(a.length, b.length);
  const result = new Array<number>(rank);
  for (let i = 1; i <= rank; i++) {
    const sizeA = i <= a.length ? (a[a.length - i] as number) : 1;
    const sizeB = i <= b.length ? (b[b.length - i] as number) : 1;
    if (sizeA !== sizeB && sizeA !== 1 && sizeB !== 1) return undefined;
    result[rank - i] = sizeA === 1 ? sizeB : sizeA;
  }
  return result;
}

/** The error for shapes that do not broadcast together: GPUOS_SHAPE_MISMATCH. */
export function noBroadcast(what: string, ...shapes: readonly Shape[]): GpuosError {
  return new GpuosError('GPUOS_SHAPE_MISMATCH', `${what}: the shapes ${shapes.map(formatShape).join(' and ')} do not broadcast together.`);
}

/** The shape that all of them broadcast to; throws GPUOS_SHAPE_MISMATCH that names the shapes. `what` opens the message. */
export function broadcastShapes(what: string, ...shapes: readonly Shape[]): Shape {
  let result: Shape = shapes[0] ?? [];
  for (let i = 1; i < shapes.length; i++) {
    const next = broadcastPair(result, shapes[i] as Shape);
    if (!next) throw noBroadcast(what, ...shapes);
    result = next;
  }
  return result;
}

/** Whether a tensor of shape `from` can be read as one of shape `to` by broadcasting. */
export function broadcastsTo(from: Shape, to: Shape): boolean {
  const offset = to.length - from.length;
  return offset >= 0 && from.every((size, i) => size === 1 || size === to[i + offset]);
}

/** Strides in elements that read a contiguous tensor of shape `from` as one of shape `to`: 0 along broadcast dimensions. */
export function broadcastStrides(from: Shape, to: Shape): number[] {
  const own = strides(from);
  const offset = to.length - from.length;
  return to.map((_, i) => (i < offset || from[i - offset] === 1 ? 0 : (own[i - offset] as number)));
}

/** `axis` counted from the front; throws GPUOS_BAD_AXIS unless -rank <= axis < rank. */
export function normalizeAxis(what: string, axis: number, rank: number): number {
  if (!Number.isInteger(axis) || axis < -rank || axis >= rank) {
    const range = rank === 0 ? 'a scalar has no axes' : `the axes of a tensor of rank ${rank} are ${-rank} to ${rank - 1}`;
    throw new GpuosError('GPUOS_BAD_AXIS', `${what}: axis ${axis} is out of range: ${range}.`);
  }
  return axis < 0 ? axis + rank : axis;
}

/** The axes counted from the front and in ascending order; all of them for undefined. Throws GPUOS_BAD_AXIS when one occurs twice. */
export function normalizeAxes(what: string, axes: readonly number[] | undefined, rank: number): number[] {
  if (axes === undefined) return Array.from({ length: rank }, (_, i) => i);
  const result = axes.map((axis) => normalizeAxis(what, axis, rank)).sort((a, b) => a - b);
  for (let i = 1; i < result.length; i++) {
    if (result[i] === result[i - 1])
      throw new GpuosError('GPUOS_BAD_AXIS', `${what}: axis ${result[i]} is given twice in ${formatShape(axes)}.`);
  }
  return result;
}

/** Shape after a reduction over `axes` (ascending, from the front): they become 1 with `keepDims` and vanish without. */
export function reducedShape(shape: Shape, axes: readonly number[], keepDims: boolean): Shape {
  return keepDims ? shape.map((size, i) => (axes.includes(i) ? 1 : size)) : shape.filter((_, i) => !axes.includes(i));
}
