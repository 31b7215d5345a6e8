/**
 * Runs fused programs on the emulation of a CUDA block, compiled or interpreted: operands between guard zones, tile after
 * tile, and afterwards every byte that is no output must be as before.
 */
import { emitProgram } from '../../src/backends/cuda/codegen/index.ts';
import type { DType } from '../../src/ops/define.ts';
import { elementBytes, isHalf } from '../../src/ops/dtype.ts';
import { fromHalfBits, toHalfBits } from '../../src/ops/half.ts';
import { MIN_POINTERS, type Program } from '../../src/ops/program.ts';
import { compileEmulated, type DeviceMemory, deviceMemory, type Emulated } from '../cuda/emulation/emulation.ts';
import { evaluateRow } from '../wasm-codegen/evaluator.ts';
import { type Case, describe, type Placement, stored } from '../wasm-codegen/machine.ts';

const GUARD = 16;
const SIZE = 1 << 22;

/** One block's way of running a task: all its tiles over this parameter block. */
export type Run = (params: Uint8Array, tiles: number) => number;

let memory: DeviceMemory | undefined;
let words: Int32Array;
let floats: Float32Array;
let halves: Uint16Array;
let base: bigint;

function reset(): void {
  if (memory === undefined) {
    memory = deviceMemory(SIZE);
    words = new Int32Array(memory.bytes.buffer, memory.bytes.byteOffset, SIZE / 4);
    floats = new Float32Array(memory.bytes.buffer, memory.bytes.byteOffset, SIZE / 4);
    halves = new Uint16Array(memory.bytes.buffer, memory.bytes.byteOffset, SIZE / 2);
    base = memory.address;
  }
  for (let i = 0; i < words.length; i++) words[i] = 0x5a5a0000 + (i & 0xffff);
}

/** Of the element at a distance in bytes from the memory's start. */
function read(at: number, dtype: DType): number {
  if (isHalf(dtype)) return fromHalfBits(halves[at / 2]!, dtype);
  return dtype === 'float32' ? floats[at / 4]! : words[at / 4]!;
}
function write(at: number, dtype: DType, value: number): void {
  if (isHalf(dtype)) halves[at / 2] = toHalfBits(value, dtype);
  else if (dtype === 'float32') floats[at / 4] = value;
  else words[at / 4] = value;
}

function extent(placement: Placement, dims: readonly number[], columns: number): { low: number; size: number } {
  let low = 0;
  let high = 0;
  // A row without columns still has the one element that an operand of column stride 0 broadcasts.
  [...dims, Math.max(1, columns)].forEach((dim, d) => {
    const reach = (d < dims.length ? placement.rowStrides[d]! : placement.columnStride) * (dim - 1);
    if (reach < 0) low += reach;
    else high += reach;
  });
  return { low, size: dims.includes(0) ? 0 : high - low + 1 };
}

/** The parameter block of a program: addresses, then words. */
export function parameterBlock(program: Program, addresses: readonly bigint[], values: readonly number[]): Uint8Array {
  const pointers = Math.max(MIN_POINTERS, addresses.length);
  const block = new Uint8Array(8 * pointers + 4 * values.length);
  const view = new DataView(block.buffer);
  addresses.forEach((address, i) => {
    view.setBigUint64(8 * i, address, true);
  });
  values.forEach((value, i) => {
    view.setInt32(8 * pointers + 4 * i, value, true);
  });
  const types = scalarTypes(program);
  types.forEach((dtype, i) => {
    const word = 8 * pointers + 4 * (values.length - program.scalars + i);
    if (dtype === 'float32') view.setFloat32(word, values[values.length - program.scalars + i]!, true);
  });
  return block;
}

function scalarTypes(program: Program): DType[] {
  const types: DType[] = [];
  for (const node of program.nodes) if (node.kind === 'scalar') types[node.scalar] = node.dtype;
  return types;
}

/** Lays out, runs and compares with the evaluator. `same` says whether a result is as good as the expected one. */
export function check(test: Case, run: Run, same: (actual: number, expected: number, dtype: DType) => boolean): Int32Array {
  const { program, dims, columns } = test;
  reset();
  let random = 1;
  // Views begin anywhere: vectors are aligned or not, as it comes.
  let top = 4 * GUARD;
  const place = (size: number, dtype: DType): number => {
    const bytes = elementBytes(dtype);
    random = (Math.imul(random, 1664525) + 1013904223) | 0;
    top += -top & 15;
    if ((random >>> 8) % 3 === 0) top += bytes * ((random >>> 16) % (16 / bytes));
    const start = top;
    top += size * bytes + 4 * GUARD;
    if (top > SIZE) throw new Error('the operands do not fit');
    return start;
  };
  const origins = program.inputs.map((input, i) => {
    const { low, size } = extent(test.inputs[i]!, dims, columns);
    const bytes = elementBytes(input.dtype);
    const start = place(size, input.dtype);
    for (let e = 0; e < size; e++) write(start + e * bytes, input.dtype, test.value(input.dtype));
    return start - low * bytes;
  });
  const rows = dims.reduce((a, b) => a * b, 1);
  const outputs = program.outputs.map((output, o) => {
    const into = test.inPlace[o]!;
    if (into >= 0) return origins[into]!;
    if (output.space === 'row') return place(rows, output.dtype);
    const { low, size } = extent(test.outputs[o]!, dims, columns);
    return place(size, output.dtype) - low * elementBytes(output.dtype);
  });
  const values: number[] = [columns];
  if (program.outerRank > 0) {
    values.push(rows, test.units, ...dims);
    for (const placement of test.inputs) values.push(...placement.rowStrides);
    program.outputs.forEach((output, o) => {
      if (output.space === 'full') values.push(...test.outputs[o]!.rowStrides);
    });
  }
  program.inputs.forEach((input, i) => {
    if (input.columnStride === 'strided') values.push(test.inputs[i]!.columnStride);
  });
  values.push(...Array.from({ length: program.scalars }, (_, i) => test.scalars[i] ?? 0));
  const addresses = [...origins, ...outputs].map((at) => base + BigInt(at));
  const block = parameterBlock(program, addresses, values);

  const expected = words.slice();
  const wanted = new Map<number, { value: number; dtype: DType }>();
  for (let row = 0; row < rows; row++) {
    const coordinates: number[] = [];
    for (let d = dims.length - 1, rest = row; d >= 0; d--) {
      coordinates[d] = rest % dims[d]!;
      rest = Math.floor(rest / dims[d]!);
    }
    const rowStart = (placement: Placement) => placement.rowStrides.reduce((sum, stride, d) => sum + stride * coordinates[d]!, 0);
    const get = evaluateRow(
      program,
      columns,
      (input, column) => {
        const { dtype } = program.inputs[input]!;
        const element = rowStart(test.inputs[input]!) + column * test.inputs[input]!.columnStride;
        return read(origins[input]! + element * elementBytes(dtype), dtype);
      },
      test.scalars,
    );
    program.outputs.forEach((output, o) => {
      const { dtype } = output;
      const want = (element: number, value: number) =>
        wanted.set(outputs[o]! + element * elementBytes(dtype), { value: stored(value, dtype), dtype });
      if (output.space === 'row') want(row, get(output.node, 0));
      else {
        const start = rowStart(test.outputs[o]!);
        for (let column = 0; column < columns; column++) want(start + column, get(output.node, column));
      }
    });
  }

  let status: number;
  try {
    status = run(block, test.tiles);
  } catch (cause) {
    throw new Error(`${cause}\n${describe(test)}`, { cause });
  }
  if (status !== 0) throw new Error(`status ${status}\n${describe(test)}`);
  const expectedHalves = new Uint16Array(expected.buffer);
  for (const [at, { value, dtype }] of wanted) {
    const actual = read(at, dtype);
    if (!same(actual, value, dtype)) throw new Error(`element at ${at} is ${actual}, not ${value} (${dtype})\n${describe(test)}`);
    for (let half = at / 2; half < (at + elementBytes(dtype)) / 2; half++) expectedHalves[half] = halves[half]!;
  }
  for (let i = 0; i < expected.length; i++) {
    if (words[i] !== expected[i]) throw new Error(`word ${i} was overwritten\n${describe(test)}`);
  }
  return words.slice(0, top / 4);
}

/** Programs as operators `p0`, `p1`, ... of one shared object. */
export function compileAll(programs: readonly Program[], options: readonly string[] = []): Emulated {
  return compileEmulated(programs.map((program, i) => emitProgram(program, `p${i}`)).join('\n'), options);
}

/** One row of contiguous inputs through a program of outer rank 0; its outputs. */
export function runRow(program: Program, run: Run, inputs: readonly (readonly number[])[]): number[][] {
  reset();
  const columns = Math.max(0, ...inputs.map((list) => list.length));
  let top = 4 * GUARD;
  const starts = [...program.inputs, ...program.outputs].map((spec, i) => {
    const start = top;
    inputs[i]?.forEach((value, e) => {
      write(start + e * elementBytes(spec.dtype), spec.dtype, value);
    });
    top += Math.ceil((i < inputs.length ? inputs[i]!.length : columns) / 4) * 16 + 4 * GUARD;
    if (top > SIZE) throw new Error('the operands do not fit');
    return start;
  });
  const block = parameterBlock(
    program,
    starts.map((start) => base + BigInt(start)),
    [columns, ...new Array<number>(program.scalars).fill(0)],
  );
  const status = run(block, 1);
  if (status !== 0) throw new Error(`status ${status}`);
  return program.outputs.map((output, o) =>
    Array.from({ length: output.space === 'row' ? 1 : columns }, (_, e) =>
      read(starts[inputs.length + o]! + e * elementBytes(output.dtype), output.dtype),
    ),
  );
}
