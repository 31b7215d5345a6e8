import { type Program, programLayout } from '../../../ops/program.ts';

/** Places in a program's parameter block in 32-bit words, pointers (two words each) included, as `ops/program.ts` lays them out. */
export interface Parameters {
  /** Words of the whole block. */
  readonly size: number;
  readonly columns: number;
  readonly rows: number;
  readonly units: number;
  dim(d: number): number;
  inputRowStride(input: number, d: number): number;
  /** `output` counts all outputs; it must be of full space. */
  outputRowStride(output: number, d: number): number;
  /** `input` counts all inputs; its column stride must be 'strided'. */
  columnStride(input: number): number;
  scalar(scalar: number): number;
}

export function programParameters(program: Program): Parameters {
  const { pointers, words } = programLayout(program);
  const k = program.outerRank;
  const base = 2 * pointers;
  const dims = base + 3;
  const inputStrides = dims + k;
  const outputStrides = inputStrides + k * program.inputs.length;
  const fullBefore = (output: number) => program.outputs.slice(0, output).filter(({ space }) => space === 'full').length;
  const stridedBefore = (input: number) => program.inputs.slice(0, input).filter(({ columnStride }) => columnStride === 'strided').length;
  const columnStrides = k > 0 ? outputStrides + k * fullBefore(program.outputs.length) : base + 1;
  const scalars = columnStrides + stridedBefore(program.inputs.length);
  return {
    size: base + words,
    columns: base,
    rows: base + 1,
    units: base + 2,
    dim: (d) => dims + d,
    inputRowStride: (input, d) => inputStrides + k * input + d,
    outputRowStride: (output, d) => outputStrides + k * fullBefore(output) + d,
    columnStride: (input) => columnStrides + stridedBefore(input),
    scalar: (scalar) => scalars + scalar,
  };
}
