import type { Shape } from '../ops/define.ts';

/**
 * How a fused kernel reads one operand: over the linear order of the kernel's space, as dimensions
 * (outermost first) with strides in elements. Neighbouring dimensions that one stride covers are
 * joined, so a contiguous operand has at most one dimension, whatever its shape was.
 */
export interface Access {
  /** A node's index or ~external. */
  readonly ref: number;
  readonly offset: number;
  readonly dims: readonly number[];
  readonly strides: readonly number[];
}

/** Joins neighbouring dimensions where the outer stride continues the inner one; drops dimensions of size 1. */
export function collapse(dims: Shape, strides: readonly number[]): { dims: number[]; strides: number[] } {
  const outDims: number[] = [];
  const outStrides: number[] = [];
  for (let i = dims.length - 1; i >= 0; i--) {
    const size = dims[i] as number;
    const stride = strides[i] as number;
    if (size === 1) continue;
    const last = outDims.length - 1;
    if (last >= 0 && stride === (outStrides[last] as number) * (outDims[last] as number)) {
      outDims[last] = (outDims[last] as number) * size;
    } else {
      outDims.push(size);
      outStrides.push(stride);
    }
  }
  return { dims: outDims.reverse(), strides: outStrides.reverse() };
}

/**
 * Products of the trailing dimensions: where a new dimension begins in the linear order, counted from
 * the innermost. Without 1 and the total.
 */
export function boundaries(dims: readonly number[]): number[] {
  const result: number[] = [];
  let product = 1;
  for (let i = dims.length - 1; i > 0; i--) {
    product *= dims[i] as number;
    result.push(product);
  }
  return result;
}

/** The boundaries of both, ascending, or undefined when one does not divide the next: no dimensions could give both. */
export function mergeBoundaries(a: readonly number[], b: readonly number[]): number[] | undefined {
  if (b.length === 0) return [...a];
  const merged = [...new Set([...a, ...b])].sort((x, y) => x - y);
  for (let i = 1; i < merged.length; i++) {
    if ((merged[i] as number) % (merged[i - 1] as number) !== 0) return undefined;
  }
  return merged;
}

/** Strides of an access over finer dimensions (outermost first) of the same space. */
export function refine(access: { dims: readonly number[]; strides: readonly number[] }, fine: readonly number[]): number[] {
  const result = new Array<number>(fine.length).fill(0);
  let own = access.dims.length - 1;
  let inside = 1; // elements of the own dimension that finer ones further in have taken
  for (let i = fine.length - 1; i >= 0 && own >= 0; i--) {
    result[i] = (access.strides[own] as number) * inside;
    inside *= fine[i] as number;
    if (inside >= (access.dims[own] as number)) {
      own--;
      inside = 1;
    }
  }
  return result;
}

/** Whether the innermost `columns` elements of the order lie at one stride. */
export function columnsAtOneStride(access: { dims: readonly number[]; strides: readonly number[] }, columns: number): boolean {
  if (columns <= 1 || access.dims.length === 0) return true;
  const inner = access.dims[access.dims.length - 1] as number;
  return inner % columns === 0;
}
