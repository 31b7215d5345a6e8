/**
 * Runs compiled programs without the executor: operands between guard zones in a small memory, the last one at its very
 * end (so that reading past it traps), every tile in turn, and afterwards every byte that is no output must be as before.
 */
import { expect } from 'vitest';
import { compileProgram } from '../../src/backends/wasm/codegen/index.ts';
import type { DType } from '../../src/ops/define.ts';
import { elementBytes, isHalf } from '../../src/ops/dtype.ts';
import { fromHalfBits, roundToHalf, toHalfBits } from '../../src/ops/half.ts';
import { type MapName, MIN_POINTERS, POINTER_BYTES, type Program } from '../../src/ops/program.ts';
import { evaluateRow } from './evaluator.ts';

const SCRATCH = 0;
const SCRATCH_BYTES = 1 << 20;
const PARAMETERS = SCRATCH_BYTES;
const GUARD = 64;

interface Views {
  readonly memory: WebAssembly.Memory;
  readonly words: Int32Array;
  readonly floats: Float32Array;
  readonly halves: Uint16Array;
}

function createMemory(pages: number): Views {
  const memory = new WebAssembly.Memory({ initial: pages, maximum: 65536, shared: true });
  return { memory, words: new Int32Array(memory.buffer), floats: new Float32Array(memory.buffer), halves: new Uint16Array(memory.buffer) };
}

/** For random cases, which compare all of it, and for long rows. */
const small = createMemory(36);
const large = createMemory(96);

/** An operand's place: row strides and column stride, in elements. */
export interface Placement {
  readonly rowStrides: readonly number[];
  readonly columnStride: number;
}

export interface Case {
  readonly program: Program;
  readonly columns: number;
  readonly dims: readonly number[];
  readonly units: number;
  readonly tiles: number;
  readonly inputs: readonly Placement[];
  /** Row strides of full outputs. */
  readonly outputs: readonly Placement[];
  /** Input that an output is in the place of, or -1. */
  readonly inPlace: readonly number[];
  readonly scalars: readonly number[];
  /** A value for an element of an input. */
  value(dtype: DType): number;
}

function extent(placement: Placement, dims: readonly number[], columns: number): { low: number; size: number } {
  let low = 0;
  let high = 0;
  // A row without columns still has the one element that an operand of column stride 0 broadcasts.
  [...dims, Math.max(1, columns)].forEach((dim, d) => {
    const stride = d < dims.length ? (placement.rowStrides[d] as number) : placement.columnStride;
    const reach = stride * (dim - 1);
    if (reach < 0) low += reach;
    else high += reach;
  });
  return { low, size: dims.includes(0) ? 0 : high - low + 1 };
}

function read({ floats, words, halves }: Views, address: number, dtype: DType): number {
  if (isHalf(dtype)) return fromHalfBits(halves[address / 2] as number, dtype);
  return dtype === 'float32' ? (floats[address / 4] as number) : (words[address / 4] as number);
}

function write({ floats, words, halves }: Views, address: number, dtype: DType, value: number): void {
  if (isHalf(dtype)) halves[address / 2] = toHalfBits(value, dtype);
  else if (dtype === 'float32') floats[address / 4] = value;
  else words[address / 4] = value;
}

/** What an output of this dtype keeps of a value. */
export function stored(value: number, dtype: DType): number {
  return isHalf(dtype) ? roundToHalf(value, dtype) : value;
}

type Kernel = (params: number, tile: number, tiles: number, scratch: number) => number;

function loadProgram(program: Program, memory: WebAssembly.Memory): Kernel {
  const { bytes } = compileProgram(program);
  expect(WebAssembly.validate(bytes as BufferSource)).toBe(true);
  const instance = new WebAssembly.Instance(new WebAssembly.Module(bytes as BufferSource), { env: { memory } });
  return instance.exports['f'] as Kernel;
}

/** Lays out, runs and compares. `same` says whether a result is as good as the expected one. */
export function check(test: Case, same: (actual: number, expected: number, dtype: DType) => boolean, extra = {}): void {
  const { program, dims, columns } = test;
  const { words } = small;
  const f = loadProgram(program, small.memory);
  for (let i = (PARAMETERS >> 2) | 0; i < words.length; i++) words[i] = 0x5a5a0000 + (i & 0xffff);

  // From the end of memory downwards; all addresses are in bytes.
  let top = 4 * words.length;
  const place = (size: number, dtype: DType): number => {
    top -= size * elementBytes(dtype);
    if (elementBytes(dtype) === 4) top &= -4;
    const start = top;
    top -= GUARD;
    return start;
  };
  const origins = program.inputs.map((input, i) => {
    const { low, size } = extent(test.inputs[i] as Placement, dims, columns);
    const bytes = elementBytes(input.dtype);
    const start = place(size, input.dtype);
    for (let e = 0; e < size; e++) write(small, start + e * bytes, input.dtype, test.value(input.dtype));
    return start - low * bytes;
  });
  const rows = dims.reduce((a, b) => a * b, 1);
  const outputs = program.outputs.map((output, o) => {
    const into = test.inPlace[o] as number;
    if (into >= 0) return origins[into] as number;
    if (output.space === 'row') return place(rows, output.dtype);
    const { low, size } = extent(test.outputs[o] as Placement, dims, columns);
    return place(size, output.dtype) - low * elementBytes(output.dtype);
  });

  const pointers = Math.max(MIN_POINTERS, program.inputs.length + program.outputs.length);
  [...origins, ...outputs].forEach((address, i) => {
    words[(PARAMETERS + POINTER_BYTES * i) >> 2] = address;
  });
  const block: number[] = [columns];
  if (program.outerRank > 0) {
    block.push(rows, test.units, ...dims);
    for (const placement of test.inputs) block.push(...placement.rowStrides);
    program.outputs.forEach((output, o) => {
      if (output.space === 'full') block.push(...(test.outputs[o] as Placement).rowStrides);
    });
  }
  program.inputs.forEach((input, i) => {
    if (input.columnStride === 'strided') block.push((test.inputs[i] as Placement).columnStride);
  });
  const blockStart = (PARAMETERS + POINTER_BYTES * pointers) >> 2;
  block.forEach((word, i) => {
    words[blockStart + i] = word;
  });
  const scalarTypes: DType[] = [];
  for (const node of program.nodes) if (node.kind === 'scalar') scalarTypes[node.scalar] = node.dtype;
  test.scalars.forEach((scalar, i) => {
    write(small, 4 * (blockStart + block.length + i), scalarTypes[i] ?? 'int32', scalar);
  });

  // What memory must hold afterwards: as before but for the outputs.
  const expected = words.slice(PARAMETERS >> 2);
  const wanted = new Map<number, { value: number; dtype: DType }>();
  for (let row = 0; row < rows; row++) {
    const coordinates: number[] = [];
    for (let d = dims.length - 1, rest = row; d >= 0; d--) {
      coordinates[d] = rest % (dims[d] as number);
      rest = Math.floor(rest / (dims[d] as number));
    }
    const rowStart = (placement: Placement) =>
      placement.rowStrides.reduce((sum, stride, d) => sum + stride * (coordinates[d] as number), 0);
    const get = evaluateRow(
      program,
      columns,
      (input, column) => {
        const placement = test.inputs[input] as Placement;
        const dtype = (program.inputs[input] as { dtype: DType }).dtype;
        const at = rowStart(placement) + column * placement.columnStride;
        return read(small, (origins[input] as number) + at * elementBytes(dtype), dtype);
      },
      test.scalars,
      extra,
    );
    program.outputs.forEach((output, o) => {
      const { dtype } = output;
      const want = (element: number, value: number) =>
        wanted.set((outputs[o] as number) + element * elementBytes(dtype), { value: stored(value, dtype), dtype });
      if (output.space === 'row') {
        want(row, get(output.node, 0));
        return;
      }
      const start = rowStart(test.outputs[o] as Placement);
      for (let column = 0; column < columns; column++) want(start + column, get(output.node, column));
    });
  }

  try {
    for (let tile = 0; tile < test.tiles; tile++) expect(f(PARAMETERS, tile, test.tiles, SCRATCH)).toBe(0);
  } catch (cause) {
    throw new Error(`the program ended with ${cause}\n${describe(test)}`, { cause });
  }

  const halves = new Uint16Array(expected.buffer);
  for (const [address, { value, dtype }] of wanted) {
    const actual = read(small, address, dtype);
    if (!same(actual, value, dtype)) throw new Error(`element at ${address} is ${actual}, not ${value} (${dtype})\n${describe(test)}`);
    for (let at = address; at < address + elementBytes(dtype); at += 2) halves[(at - PARAMETERS) / 2] = small.halves[at / 2] as number;
  }
  const after = words.subarray(PARAMETERS >> 2);
  for (let i = 0; i < expected.length; i++) {
    if (after[i] !== expected[i]) throw new Error(`word ${i} was overwritten\n${describe(test)}`);
  }
}

export function describe(test: Case): string {
  return JSON.stringify({ ...test, value: undefined });
}

/** Equal, or both NaN; zeros of either sign are equal. */
export const identical = (actual: number, expected: number): boolean =>
  actual === expected || (Number.isNaN(actual) && Number.isNaN(expected));

/** Copies values to the start of the operands' memory, runs a program of one tile over one row, and reads its outputs back. */
export function runRow(program: Program, inputs: readonly (readonly number[])[]): number[][] {
  const { words } = large;
  const f = loadProgram(program, large.memory);
  const columns = Math.max(...inputs.map((list) => list.length));
  const lists = [...inputs, ...program.outputs.map((output) => new Array<number>(output.space === 'row' ? 1 : columns).fill(0))];
  let address = PARAMETERS + 65536;
  const starts = lists.map((list, i) => {
    const start = address;
    const dtype = (program.inputs[i] ?? (program.outputs[i - program.inputs.length] as { dtype: DType })).dtype;
    list.forEach((value, e) => {
      write(large, start + e * elementBytes(dtype), dtype, value);
    });
    words[(PARAMETERS + POINTER_BYTES * i) >> 2] = start;
    address += 4 * (list.length + 16);
    return start;
  });
  if (address > 4 * words.length) throw new Error('the operands do not fit');
  words[(PARAMETERS + POINTER_BYTES * Math.max(MIN_POINTERS, lists.length)) >> 2] = columns;
  expect(f(PARAMETERS, 0, 1, SCRATCH)).toBe(0);
  return program.outputs.map((output, o) => {
    const start = starts[inputs.length + o] as number;
    return Array.from(lists[inputs.length + o] as number[], (_, e) => read(large, start + e * elementBytes(output.dtype), output.dtype));
  });
}

/** One float32 operation over contiguous operands. */
export function runMap(op: MapName, inputs: readonly (readonly number[])[]): number[] {
  const program: Program = {
    inputs: inputs.map(() => ({ dtype: 'float32', columnStride: 1 })),
    scalars: 0,
    nodes: [
      ...inputs.map((_, input) => ({ kind: 'input', input, dtype: 'float32' }) as const),
      { kind: 'map', op, args: inputs.map((_, i) => i), dtype: 'float32' },
    ],
    outputs: [{ node: inputs.length, dtype: 'float32', space: 'full' }],
    outerRank: 0,
  };
  return runRow(program, inputs)[0] as number[];
}

/** The scratch that runRow lends, as words. */
export const rowScratch = large.words.subarray(SCRATCH >> 2, (SCRATCH + SCRATCH_BYTES) >> 2);
