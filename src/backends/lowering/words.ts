import type { DType, Shape } from '../../ops/define.ts';
import { isHalf } from '../../ops/dtype.ts';
import { toHalfBits } from '../../ops/half.ts';
import type { KernelCall, OperandView } from '../backend.ts';

const BITS = new DataView(new ArrayBuffer(8));

/** The bits of a float32 as an int32. */
export function floatBits(value: number): number {
  BITS.setFloat32(0, value, true);
  return BITS.getInt32(0, true);
}

/** The bits of a float64 as two int32, the low one first. */
export function doubleBits(value: number): [number, number] {
  BITS.setFloat64(0, value, true);
  return [BITS.getInt32(0, true), BITS.getInt32(4, true)];
}

/** A scalar attribute as the word of an element of this dtype. */
export function elementBits(value: number, dtype: DType): number {
  if (isHalf(dtype)) return toHalfBits(value, dtype);
  return dtype === 'float32' ? floatBits(value) : dtype === 'bool' ? Number(value !== 0) : value | 0;
}

export function product(sizes: Shape): number {
  let result = 1;
  for (const size of sizes) result *= size;
  return result;
}

/** Element `i`, from the end if negative; the caller knows that it is there. */
export function at(list: readonly number[], i: number): number {
  return (i < 0 ? list[list.length + i] : list[i]) as number;
}

/** Strides of a view read as one of the (longer or broadcast) shape `to`: 0 along dimensions of size 1. */
export function broadcastTo(shape: Shape, strides: readonly number[], to: Shape): number[] {
  const offset = to.length - shape.length;
  return to.map((_, i) => (i < offset || shape[i - offset] === 1 ? 0 : at(strides, i - offset)));
}

export interface Space {
  readonly dims: number[];
  /** Strides of each operand, outermost dimension first. */
  readonly strides: number[][];
}

/** The same space with as few dimensions as it takes: those of size 1 go, neighbours that all operands pass in one stride join. */
export function coalesce(dims: Shape, ...operands: readonly (readonly number[])[]): Space {
  const result: Space = { dims: [], strides: operands.map(() => []) };
  for (let d = 0; d < dims.length; d++) {
    const size = at(dims, d);
    if (size === 1) continue;
    const last = result.dims.length - 1;
    const joins = last >= 0 && operands.every((strides, o) => at(result.strides[o] as number[], last) === at(strides, d) * size);
    if (joins) result.dims[last] = at(result.dims, last) * size;
    else result.dims.push(size);
    for (const [o, strides] of operands.entries()) {
      const own = result.strides[o] as number[];
      if (joins) own[last] = at(strides, d);
      else own.push(at(strides, d));
    }
  }
  return result;
}

/** The words of a space: its rank, dims, then the strides of each operand. */
export function spaceWords(space: Space): number[] {
  return [space.dims.length, ...space.dims, ...space.strides.flat()];
}

// A call, a claim and reading the parameters, before any work.
const CALL_NS = 100;

/** A call with the operator's inputs and outputs in order as its pointers. */
export function call(
  kernel: string,
  inputs: readonly OperandView[],
  outputs: readonly OperandView[],
  words: readonly number[],
  costNs: number,
): KernelCall {
  return {
    kernel,
    pointers: [...inputs.map((_, input) => ({ input })), ...outputs.map((_, output) => ({ output }))],
    words,
    units: at(words, 0),
    costNs: CALL_NS + costNs,
  };
}
