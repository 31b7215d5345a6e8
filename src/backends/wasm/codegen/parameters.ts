import { POINTER_BYTES, type Program, programLayout } from '../../../ops/program.ts';

/** Byte offsets of a program's parameters in its block, as `ops/program.ts` lays them out. */
export interface Parameters {
  readonly columns: number;
  readonly rows: number;
  readonly units: number;
  dim(d: number): number;
  inputPointer(input: number): number;
  outputPointer(output: number): number;
  inputRowStride(input: number, d: number): number;
  /** `output` counts all outputs; it must be of full space. */
  outputRowStride(output: number, d: number): number;
  /** `input` counts all inputs; its column stride must be 'strided'. */
  columnStride(input: number): number;
  scalar(scalar: number): number;
}

export function programParameters(program: Program): Parameters {
  const k = program.outerRank;
  const base = POINTER_BYTES * programLayout(program).pointers;
  const dims = 3;
  const inputStrides = dims + k;
  const outputStrides = inputStrides + k * program.inputs.length;
  const fullBefore: number[] = [];
  let full = 0;
  for (const output of program.outputs) fullBefore.push(output.space === 'full' ? full++ : full);
  const columnStrides = k > 0 ? outputStrides + k * full : 1;
  const stridedBefore: number[] = [];
  let strided = 0;
  for (const input of program.inputs) stridedBefore.push(input.columnStride === 'strided' ? strided++ : strided);
  const word = (index: number) => base + 4 * index;
  return {
    columns: word(0),
    rows: word(1),
    units: word(2),
    dim: (d) => word(dims + d),
    inputPointer: (input) => POINTER_BYTES * input,
    outputPointer: (output) => POINTER_BYTES * (program.inputs.length + output),
    inputRowStride: (input, d) => word(inputStrides + k * input + d),
    outputRowStride: (output, d) => word(outputStrides + k * (fullBefore[output] as number) + d),
    columnStride: (input) => word(columnStrides + (stridedBefore[input] as number)),
    scalar: (scalar) => word(columnStrides + strided + scalar),
  };
}
