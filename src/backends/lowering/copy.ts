import type { Shape } from '../../ops/define.ts';
import { elementBytes } from '../../ops/dtype.ts';
import { strides as contiguousStrides } from '../../ops/shape.ts';
import type { KernelCall, OperandView } from '../backend.ts';
import { at, call, coalesce, product, type Space } from './words.ts';

// Elements of a unit, about: small enough to share out, large enough that a unit's start does not count.
const BLOCK = 8192;
// Nanoseconds an element, measured: a run, a transpose in blocks, single elements.
const RUN_NS = 0.1;
const TRANSPOSE_NS = 0.5;
const ELEMENT_NS = 0.8;

/** Which dimension takes the part of a matrix's rows: one that lies consecutively if the columns do not, else the last but one. */
function rowDimension({ dims, strides }: Space): number {
  const source = strides[0] as number[];
  const columns = dims.length - 1;
  if (at(source, columns) !== 1 && at(source, columns) !== 0) {
    const consecutive = source.lastIndexOf(1);
    if (consecutive >= 0) return consecutive;
  }
  return columns - 1;
}

/** Copies the space `dims`, read by `strides`, into consecutive elements. */
export function copyCall(dims: Shape, strides: readonly number[], input: OperandView, output: OperandView): KernelCall {
  const total = product(dims);
  const space = coalesce(dims, strides, contiguousStrides(dims));
  if (space.dims.length === 0) {
    space.dims.push(1);
    for (const own of space.strides) own.push(1);
  }
  const [source, target] = space.strides as [number[], number[]];
  const row = rowDimension(space);
  const columns = at(space.dims, -1);
  const rows = row >= 0 ? at(space.dims, row) : 1;
  const [sourceColumn, sourceRow] = [at(source, -1), row >= 0 ? at(source, row) : 0];
  const outer = space.dims.map((_, d) => d).filter((d) => d !== row && d !== space.dims.length - 1);
  const pick = (list: readonly number[]) => outer.map((d) => at(list, d));
  const columnBlock = Math.max(1, Math.min(columns, BLOCK));
  // Blocks of rows in multiples of 16: the transpose takes 16 at a time.
  const rowBlock = Math.max(1, Math.min(rows, Math.ceil(BLOCK / columnBlock / 16) * 16));
  const units = total === 0 ? 0 : product(pick(space.dims)) * Math.ceil(rows / rowBlock) * Math.ceil(columns / columnBlock);
  const elementNs = sourceColumn === 1 || sourceColumn === 0 ? RUN_NS : sourceRow === 1 ? TRANSPOSE_NS : ELEMENT_NS;
  return call(
    elementBytes(output.dtype) === 2 ? 'copy_halves' : 'copy_strided',
    [input],
    [output],
    [
      units,
      rows,
      columns,
      rowBlock,
      columnBlock,
      sourceRow,
      sourceColumn,
      row >= 0 ? at(target, row) : columns,
      outer.length,
      ...pick(space.dims),
      ...pick(source),
      ...pick(target),
    ],
    total * elementNs + units * 10,
  );
}

/** Materialises a view of any strides into a contiguous output of the same shape. */
export function lowerCopy(view: OperandView, output: OperandView): KernelCall {
  return copyCall(view.shape, view.strides, view, output);
}

/** `x` repeated along its axes: each axis of size d becomes a repetition of stride 0 before it. */
export function lowerTile(x: OperandView, output: OperandView, reps: readonly number[]): KernelCall {
  return copyCall(
    x.shape.flatMap((size, i) => [at(reps, i), size]),
    x.strides.flatMap((stride) => [0, stride]),
    x,
    output,
  );
}
