import type { Attributes, Shape } from '../ops/define.ts';
import { normalizeAxes } from '../ops/shape.ts';
import { resolvePermutation } from '../ops/view.ts';
import type { ShapeInfo } from './shape-info.ts';

/** How elements lie in memory: strides and offset in elements; a stride of 0 repeats one element. */
export interface View {
  readonly strides: readonly number[];
  readonly offset: number;
}

/** Whether the elements lie row-major without gaps. Strides of dimensions of size 1 do not count. */
export function isContiguous(info: ShapeInfo, view: View): boolean {
  if (info.size <= 1 || view.strides === info.strides) return true;
  for (let i = 0; i < info.dims.length; i++) {
    if (info.dims[i] !== 1 && view.strides[i] !== info.strides[i]) return false;
  }
  return true;
}

/**
 * Strides of the same memory under another shape of the same size, or undefined where no strides give
 * that order. Dimensions are matched in runs of equal products; a run must be gapless in itself.
 */
export function reshapeStrides(from: Shape, strides: readonly number[], to: Shape): number[] | undefined {
  const result = new Array<number>(to.length).fill(0);
  let i = from.length - 1;
  let j = to.length - 1;
  while (i >= 0 || j >= 0) {
    while (i >= 0 && from[i] === 1) i--;
    while (j >= 0 && to[j] === 1) j--;
    if (i < 0 || j < 0) break;
    const inner = strides[i] as number;
    let have = from[i] as number;
    let want = to[j] as number;
    let stride = inner;
    result[j] = stride;
    stride *= want;
    j--;
    i--;
    let previous = inner * have;
    while (have !== want) {
      if (have < want) {
        while (i >= 0 && from[i] === 1) i--;
        if (i < 0 || strides[i] !== previous) return undefined;
        previous = (strides[i] as number) * (from[i] as number);
        have *= from[i] as number;
        i--;
      } else {
        while (j >= 0 && to[j] === 1) j--;
        if (j < 0) return undefined;
        result[j] = stride;
        stride *= to[j] as number;
        want *= to[j] as number;
        j--;
      }
    }
  }
  return result;
}

/** Strides of a tensor as seen under the shape that it broadcasts to: aligned at the end, 0 where it repeats. */
export function broadcastStrides(dims: Shape, strides: readonly number[], to: Shape): number[] {
  const lead = to.length - dims.length;
  return to.map((size, i) => {
    const k = i - lead;
    return k < 0 || (dims[k] === 1 && size !== 1) ? 0 : (strides[k] as number);
  });
}

/** The view that a view operator gives of another, or undefined where the elements must be copied first. The attributes have been checked. */
export function composeView(operator: string, attributes: Attributes, from: ShapeInfo, view: View, to: ShapeInfo): View | undefined {
  switch (operator) {
    case 'reshape':
    case 'squeeze':
    case 'expand-dims': {
      if (isContiguous(from, view)) return { strides: to.strides, offset: view.offset };
      const strides = reshapeStrides(from.dims, view.strides, to.dims);
      return strides === undefined ? undefined : { strides, offset: view.offset };
    }
    case 'transpose': {
      const perm = resolvePermutation(from.dims.length, attributes);
      return { strides: perm.map((axis) => view.strides[axis] as number), offset: view.offset };
    }
    case 'slice': {
      const begin = attributes['begin'] as readonly number[];
      return { strides: view.strides, offset: view.offset + dot(begin, view.strides, to.size) };
    }
    case 'strided-slice': {
      const begin = attributes['begin'] as readonly number[];
      const steps = attributes['strides'] as readonly number[];
      return {
        strides: steps.map((step, i) => step * (view.strides[i] as number)),
        offset: view.offset + dot(begin, view.strides, to.size),
      };
    }
    case 'expand':
      return { strides: broadcastStrides(from.dims, view.strides, to.dims), offset: view.offset };
    case 'reverse': {
      const axes = normalizeAxes('reverse', attributes['axes'] as readonly number[], from.dims.length);
      let offset = view.offset;
      const strides = [...view.strides];
      for (const axis of axes) {
        if (from.size > 0) offset += ((from.dims[axis] as number) - 1) * (strides[axis] as number);
        strides[axis] = -(strides[axis] as number);
      }
      return { strides, offset };
    }
    default:
      return undefined;
  }
}

/** Sum of begin x stride; an empty result reads nothing, so its offset stays inside. */
function dot(begin: readonly number[], strides: readonly number[], size: number): number {
  if (size === 0) return 0;
  let sum = 0;
  for (let i = 0; i < begin.length; i++) sum += (begin[i] as number) * (strides[i] as number);
  return sum;
}
