import type { Attributes, Shape } from '../../ops/define.ts';
import { elementBytes } from '../../ops/dtype.ts';
import { matmulSizes } from '../../ops/matrix.ts';
import { strides as contiguousStrides } from '../../ops/shape.ts';
import type { KernelCall, MatrixProduct, OperandView, ProductMatrix } from '../backend.ts';
import { at, broadcastTo, call, coalesce, product, type Space, spaceWords } from './words.ts';

/** How a matrix product is to be run; what is left out is chosen by its sizes. */
export interface MatmulOptions {
  /** Input 1 is the panels that `lowerPack` made of b (after its transpose); its view says only b's shape. */
  readonly packed?: boolean;
  /** What a unit is: a row of the result (the rows of all matrices, in order), or a panel of 8 of its columns. */
  readonly partition?: 'rows' | 'columns';
}

// Measured on one core of a Zen 5 (EPYC): 48 floating-point operations a nanosecond in the register blocks, 25 bytes of
// B a nanosecond where one to three rows read it once; packing B or a transposed A costs about as much as a copy.
const FLOPS_PER_NS = 48;
const NARROW_BYTES_PER_NS = 25;
const PACK_NS = 0.2;
const NARROW_ROWS = 3;
// By rows, each tile reads all of b. If b is larger than a good part of the second-level cache (elements), tiles of one or
// two rows take twice as long as tiles of columns, of which each reads its own part of b.
const COLUMN_ROWS = 7;
const LARGE_MATRIX = 65_536;

/** Bit of the kernel's word that tells the form of its operands: the result is float32 whatever they are. */
const WIDE = 2;

/** Elements of b [K, N] as panels [ceil(N/8)][K][8]. */
export function packedSize(k: number, n: number): number {
  return Math.ceil(n / 8) * k * 8;
}

/** Packs b [.., K, N], of any strides, into panels; those of one matrix follow those of the one before. */
export function lowerPack(view: OperandView, output: OperandView): KernelCall {
  const [k, n] = view.shape.slice(-2) as [number, number];
  const space = coalesce(view.shape.slice(0, -2), view.strides.slice(0, -2));
  const units = product(view.shape.slice(0, -2)) * Math.ceil(n / 8);
  const words = [units, n, k, at(view.strides, -2), at(view.strides, -1), ...spaceWords(space)];
  return call('pack_panels', [view], [output], words, units * k * 8 * PACK_NS);
}

/** Strides of a matrix's row and column dimension, exchanged if it is to be transposed. */
function matrixStrides(strides: readonly number[], transpose: boolean): [row: number, column: number] {
  const [row, column] = strides.slice(-2) as [number, number];
  return transpose ? [column, row] : [row, column];
}

function isRowMajor(view: OperandView): boolean {
  const dense = contiguousStrides(view.shape);
  return view.offset === 0 && view.strides.every((stride, i) => view.shape[i] === 1 || stride === dense[i]);
}

/** a b alone: the planner runs bias and activation as a fused stage after it. */
export function lowerMatmul(
  inputs: readonly OperandView[],
  output: OperandView,
  attributes: Attributes,
  options: MatmulOptions,
): KernelCall {
  const [a, b] = inputs as readonly [OperandView, OperandView];
  const { batch, m: matrixRows, n, k } = matmulSizes(a.shape, b.shape, attributes);
  const packed = options.packed === true;
  // Of halves the result may be asked for before it is rounded.
  const wide = output.dtype !== a.dtype;
  let [aRow, aColumn] = matrixStrides(a.strides, attributes['transposeA'] === true);
  const [bRow, bColumn] = matrixStrides(b.strides, attributes['transposeB'] === true);
  let cRow = at(output.strides, -2);
  const bBatch: Shape = b.shape.slice(0, -2);
  const bStrides = packed ? contiguousStrides(bBatch).map((stride) => stride * packedSize(k, n)) : b.strides.slice(0, -2);
  const space = coalesce(
    batch,
    broadcastTo(a.shape.slice(0, -2), a.strides.slice(0, -2), batch),
    broadcastTo(bBatch, bStrides, batch),
    output.strides.slice(0, -2),
  );
  const [aBatch, ownB, cBatch] = space.strides as [number[], number[], number[]];
  // Matrices of a that meet the same b are one tall matrix if their rows go on in one stride.
  let m = matrixRows;
  while (space.dims.length > 0 && at(ownB, -1) === 0) {
    if (m === 1) [aRow, cRow] = [at(aBatch, -1), at(cBatch, -1)];
    else if (at(aBatch, -1) !== m * aRow || at(cBatch, -1) !== m * cRow) break;
    m *= at(space.dims, -1);
    for (const list of [space.dims, ...space.strides]) list.pop();
  }
  const count = product(space.dims);
  const fewRows = m <= (k * n < LARGE_MATRIX ? NARROW_ROWS : COLUMN_ROWS);
  const columns = (options.partition ?? (fewRows && count === 1 ? 'columns' : 'rows')) === 'columns';
  const units = n === 0 ? 0 : count * (columns ? (m === 0 ? 0 : Math.ceil(n / 8)) : m);
  const form = Number(packed) | (wide ? WIDE : 0);
  const words = [units, form, Number(columns), m, n, k, aRow, aColumn, bRow, bColumn, cRow, ...spaceWords(space)];
  const work = Math.max((2 * m * n * k) / FLOPS_PER_NS, (elementBytes(b.dtype) * k * n) / NARROW_BYTES_PER_NS);
  const packing = packed || m <= NARROW_ROWS || bColumn === 1 ? 0 : k * n * PACK_NS;
  const plain = packed || wide ? undefined : plainProduct(a, [m, n, k], space, [[aRow, aColumn], [bRow, bColumn], [cRow, 1]]); // biome-ignore format: a table
  const kernel = { ...call('matmul', [a, b], [output], words, count * (work + packing)), ...(plain && { product: plain }) };
  // Row u of the result needs row u of a, where a has a row for each and they follow one another.
  const rowByRow = attributes['transposeA'] !== true && product(a.shape) === units * k && isRowMajor(a);
  return columns ? kernel : { ...kernel, aligned: rowByRow ? [0] : [] };
}

/** The product without the kernel's own terms; undefined where a matrix has no rows that lie one element after another. */
function plainProduct(
  { dtype }: OperandView,
  [m, n, k]: readonly [m: number, n: number, k: number],
  { dims, strides }: Space,
  matrices: readonly (readonly [row: number, column: number])[],
): MatrixProduct | undefined {
  if (dims.length > 1) return undefined;
  const [a, b, c] = matrices.map(([row, column], i): ProductMatrix | undefined => {
    const batchStride = strides[i]?.[0] ?? 0;
    if (column === 1) return { transposed: false, stride: row, batchStride };
    return row === 1 ? { transposed: true, stride: column, batchStride } : undefined;
  });
  return a && b && c && { dtype, m, n, k, a, b, c, batch: dims[0] ?? 1 };
}
