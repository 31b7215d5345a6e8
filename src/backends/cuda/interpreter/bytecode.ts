import type { DType } from '../../../ops/dtype.ts';

/**
 * The bytecode of a fused program, in 32-bit words:
 *  - the header;
 *  - a word for each input: 0 (column stride 0), 1 (contiguous), or 2 + its place among the inputs with a run-time stride;
 *  - a word for each output: 0 (one element a row), or 1 + its place among the outputs of full space;
 *    in both the two highest bits say how elements are stored: words (0), float16 (1), bfloat16 (2);
 *  - for stage 0, pass 0, stage 1, ..., the last stage: the number of instructions up to its end;
 *  - constants;
 *  - instructions of two words: operation (8 bits), destination (8: register, with the highest bit a row register) and c
 *    (16); a and b (16 each). An operand has its class in its two highest bits. Of loads and stores c is the input or output.
 *
 * Stages run once a row, passes for each column. A reduction's state is two row registers in sequence.
 */
export const VERSION = 0x47500002;

/** Words of the header. */
export const HEADER = {
  VERSION: 0,
  WORDS: 1,
  INPUTS: 2,
  OUTPUTS: 3,
  RANK: 4,
  PASSES: 5,
  CONSTANTS: 6,
  SCALARS: 7,
  ELEMENTS: 8,
  ROWS: 9,
  PARAMETERS: 10,
  FLAGS: 11,
} as const;
export const HEADER_WORDS = 12;
export const FLAG_REDUCES = 1;
export const FLAG_ROW_OUTPUTS = 2;

/** How elements are stored, in the word of an input or output. */
export function storage(dtype: DType): number {
  return ((dtype === 'float16' ? 1 : dtype === 'bfloat16' ? 2 : 0) << 30) >>> 0;
}

export const CLASS = { ELEMENT: 0, ROW: 1, CONSTANT: 2, SCALAR: 3 } as const;
export const ROW_TARGET = 0x80;
export const MAX_INDEX = 0x3fff;
export const MAX_REGISTER = 0x7f;

/** Shared memory of an operator (GPUOS_SHARED_BYTES), and the largest block whose registers have to fit into it. */
const SHARED_WORDS = 8192;
const BLOCK_THREADS = 256;

/**
 * Whether parameter block, bytecode, scratch and registers fit into the shared memory of a block of 256 threads, as the
 * interpreter lays them out: with a small program up to 26 registers, 30 without a reduction.
 */
export function fits(parameters: number, words: number, registers: number, reduces: boolean): boolean {
  return Math.ceil((parameters + words) / 4) * 4 + (reduces ? 4 * BLOCK_THREADS : 0) + registers * BLOCK_THREADS <= SHARED_WORDS;
}
