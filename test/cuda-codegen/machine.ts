/**
 * Runs fused programs on the emulation of a CUDA block, compiled or interpreted: operands between guard zones, tile after
 * tile, and afterwards every byte that is no output must be as before.
 */
import { emitProgram } from '../../src/backends/cuda/codegen/index.ts';
import type { DType } from '../../src/ops/define.ts';
import { MIN_POINTERS, type Program } from '../../src/ops/program.ts';
import { compileEmulated, type DeviceMemory, deviceMemory, type Emulated } from '../cuda/emulation/emulation.ts';
import { evaluateRow } from '../wasm-codegen/evaluator.ts';
import { type Case, describe, type Placement } from '../wasm-codegen/machine.ts';

const GUARD = 16;
const SIZE = 1 << 22;

/** One block's way of running a task: all its tiles over this parameter block. */
export type Run = (params: Uint8Array, tiles: number) => number;

let memory: DeviceMemory | undefined;
let words: Int32Array;
let floats: Float32Array;
let base: bigint;

function reset(): void {
  if (memory === undefined) {
    memory = deviceMemory(SIZE);
    words = new Int32Array(memory.bytes.buffer, memory.bytes.byteOffset, SIZE / 4);
    floats = new Float32Array(memory.bytes.buffer, memory.bytes.byteOffset, SIZE / 4);
    base = memory.address;
  }
  for (let i = 0; i < words.length; i++) words[i] = 0x5a5a0000 + (i & 0xffff);
}

const read = (element: number, dtype: DType): number => (dtype === 'float32' ? floats[element]! : words[element]!);
function write(element: number, dtype: DType, value: number): void {
  if (dtype === 'float32') floats[element] = value;
  else words[element] = value;
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
  let top = GUARD;
  const place = (size: number): number => {
    random = (Math.imul(random, 1664525) + 1013904223) | 0;
    top += (random >>> 8) % 3 === 0 ? (random >>> 16) % 4 : -top & 3;
    const start = top;
    top += size + GUARD;
    if (top > SIZE / 4) throw new Error('the operands do not fit');
    return start;
  };
  const origins = program.inputs.map((input, i) => {
    const { low, size } = extent(test.inputs[i]!, dims, columns);
    const start = place(size);
    for (let e = 0; e < size; e++) write(start + e, input.dtype, test.value(input.dtype));
    return start - low;
  });
  const rows = dims.reduce((a, b) => a * b, 1);
  const outputs = program.outputs.map((output, o) => {
    const into = test.inPlace[o]!;
    if (into >= 0) return origins[into]!;
    if (output.space === 'row') return place(rows);
    const { low, size } = extent(test.outputs[o]!, dims, columns);
    return place(size) - low;
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
  const addresses = [...origins, ...outputs].map((element) => base + BigInt(4 * element));
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
      (input, column) =>
        read(origins[input]! + rowStart(test.inputs[input]!) + column * test.inputs[input]!.columnStride, program.inputs[input]!.dtype),
      test.scalars,
    );
    program.outputs.forEach((output, o) => {
      if (output.space === 'row') wanted.set(outputs[o]! + row, { value: get(output.node, 0), dtype: output.dtype });
      else {
        const start = outputs[o]! + rowStart(test.outputs[o]!);
        for (let column = 0; column < columns; column++)
          wanted.set(start + column, { value: get(output.node, column), dtype: output.dtype });
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
  for (const [element, { value, dtype }] of wanted) {
    const actual = read(element, dtype);
    if (!same(actual, value, dtype)) throw new Error(`element ${element} is ${actual}, not ${value} (${dtype})\n${describe(test)}`);
    expected[element] = words[element]!;
  }
  for (let i = 0; i < expected.length; i++) {
    if (words[i] !== expected[i]) throw new Error(`word ${i} was overwritten\n${describe(test)}`);
  }
  return words.slice(0, top);
}

/** Programs as operators `p0`, `p1`, ... of one shared object. */
export function compileAll(programs: readonly Program[], options: readonly string[] = []): Emulated {
  return compileEmulated(programs.map((program, i) => emitProgram(program, `p${i}`)).join('\n'), options);
}

/** One row of contiguous inputs through a program of outer rank 0; its outputs. */
export function runRow(program: Program, run: Run, inputs: readonly (readonly number[])[]): number[][] {
  reset();
  const columns = Math.max(0, ...inputs.map((list) => list.length));
  let top = GUARD;
  const starts = [...program.inputs, ...program.outputs].map((spec, i) => {
    const start = top;
    inputs[i]?.forEach((value, e) => {
      write(start + e, spec.dtype, value);
    });
    top += Math.ceil((i < inputs.length ? inputs[i]!.length : columns) / 4) * 4 + GUARD;
    if (top > SIZE / 4) throw new Error('the operands do not fit');
    return start;
  });
  const block = parameterBlock(
    program,
    starts.map((start) => base + BigInt(4 * start)),
    [columns, ...new Array<number>(program.scalars).fill(0)],
  );
  const status = run(block, 1);
  if (status !== 0) throw new Error(`status ${status}`);
  return program.outputs.map((output, o) =>
    Array.from({ length: output.space === 'row' ? 1 : columns }, (_, e) => read(starts[inputs.length + o]! + e, output.dtype)),
  );
}
