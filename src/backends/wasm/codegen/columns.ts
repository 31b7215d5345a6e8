import { isHalf } from '../../../ops/dtype.ts';
import type { Program, ProgramNode } from '../../../ops/program.ts';
import type { FunctionBuilder } from '../encoder/function-builder.ts';
import { OP, SIMD, V128 } from '../encoder/opcodes.ts';
import { type Analysis, operandType } from './analysis.ts';
import { mapEmitter } from './maps.ts';
import { fromHalfBits, toHalfBits } from './half.ts';
import { LOAD_HALF_PART, LOAD_PART, LOAD_STRIDED_HALF_PART, LOAD_STRIDED_PART, STORE_HALF_PART, STORE_PART } from './partial-vectors.ts';
import { type Accumulators, accumulate, isArg } from './reductions.ts';

/** Where the code of a row finds its operands: locals of the function, and how an address is made. */
export interface RowFrame {
  readonly f: FunctionBuilder;
  readonly program: Program;
  readonly analysis: Analysis;
  /** Byte offset of the current column from the row's start. */
  readonly column: number;
  /** Byte offset of the row's end. */
  readonly end: number;
  /** In the remainder: how many elements are left (may be over 4). */
  readonly left: number;
  /** In the remainder of a row with reductions: the mask of the lanes that hold elements. */
  readonly mask: number;
  readonly address: number;
  readonly strides: readonly number[];
  /** Locals of uniform nodes, or -1. */
  readonly uniforms: Int32Array;
  pushInputPointer(input: number): void;
  pushOutputPointer(output: number): void;
  /** Pushes the address in scratch of the current column of what is kept from `offset` on. */
  pushScratchAddress(offset: number): void;
}

/** One pass: what it needs and what it feeds. */
export interface Pass {
  /** 0, 1: evaluate, 2: read from scratch. */
  readonly needed: Uint8Array;
  /** The nodes to evaluate are from `from` up to `to`. */
  readonly from: number;
  readonly to: number;
  readonly accumulators: ReadonlyMap<number, Accumulators>;
  /** Nodes to keep in scratch. */
  readonly stash: readonly number[];
  /** Byte offset in scratch of each node that is kept there. */
  readonly slots: ReadonlyMap<number, number>;
  readonly last: boolean;
}

/**
 * Emits the evaluation of `vectors` consecutive vectors at the current column, node by node: the vectors
 * of one node follow each other, so that a long chain of dependent operations still has several
 * independent instructions at a time. With `partial`, one vector of which only the first `left` elements
 * exist. Inputs are loaded where they are first used; outputs are stored at the end, since they may be in
 * the place of an input.
 */
export function emitColumns(frame: RowFrame, pass: Pass, vectors: number, partial: boolean): void {
  const { f, program } = frame;
  const { nodes } = program;
  const count = nodes.length;
  const uses = countUses(frame, pass);
  const values = new Int32Array(count * vectors).fill(-1);

  const value = (node: number, u: number): number => {
    const uniform = frame.uniforms[node] as number;
    return uniform >= 0 ? uniform : (values[node * vectors + u] as number);
  };
  const ensure = (node: number): void => {
    if ((frame.uniforms[node] as number) >= 0 || (values[node * vectors] as number) >= 0) return;
    const isStashed = pass.needed[node] === 2;
    const source = nodes[node] as ProgramNode;
    if (!isStashed && source.kind !== 'input') return;
    for (let u = 0; u < vectors; u++) values[node * vectors + u] = f.vector();
    if (isStashed) {
      frame.pushScratchAddress(pass.slots.get(node) as number);
      f.set(frame.address);
      for (let u = 0; u < vectors; u++)
        f.get(frame.address)
          .simdMemory(SIMD.load, 16 * u)
          .set(value(node, u));
    } else {
      const toMask = source.dtype === 'bool';
      const { input } = source as { input: number };
      const { dtype } = program.inputs[input] as Program['inputs'][number];
      loadInput(frame, input, vectors, partial, (u) => {
        if (toMask) f.splatBits(0).simd(SIMD.i32x4Ne);
        f.set(value(node, u));
        if (!isHalf(dtype)) return;
        fromHalfBits(f, value(node, u), dtype);
        f.set(value(node, u));
      });
    }
  };
  const consume = (node: number): void => {
    if ((frame.uniforms[node] as number) >= 0) return;
    uses[node] = (uses[node] as number) - 1;
    if (uses[node] === 0) for (let u = 0; u < vectors; u++) f.release(value(node, u));
  };

  let columnNumbers = -1;
  const ensureColumnNumbers = (): void => {
    if (columnNumbers >= 0) return;
    columnNumbers = f.vector();
    f.get(frame.column).i32(2).op(OP.i32ShrU).simd(SIMD.i32x4Splat).laneNumbers().simd(SIMD.i32x4Add).set(columnNumbers);
  };

  for (let i = pass.from; i < pass.to; i++) {
    const node = nodes[i] as ProgramNode;
    if (node.kind === 'map' && pass.needed[i] === 1) {
      for (const arg of node.args) ensure(arg);
      const emitter = mapEmitter(node.op, operandType(nodes, node), node.dtype);
      const [a = -1, b = -1, c = -1] = node.args;
      for (let u = 0; u < vectors; u++) {
        const result = f.vector();
        emitter.emit(f, a < 0 ? -1 : value(a, u), b < 0 ? -1 : value(b, u), c < 0 ? -1 : value(c, u));
        f.set(result);
        values[i * vectors + u] = result;
      }
      for (const arg of node.args) consume(arg);
      if (pass.stash.includes(i)) {
        frame.pushScratchAddress(pass.slots.get(i) as number);
        f.set(frame.address);
        for (let u = 0; u < vectors; u++)
          f.get(frame.address)
            .get(value(i, u))
            .simdMemory(SIMD.store, 16 * u);
        consume(i);
      }
    } else if (node.kind === 'reduce') {
      const accumulators = pass.accumulators.get(i);
      if (accumulators === undefined) continue;
      ensure(node.arg);
      if (isArg(node.op)) ensureColumnNumbers();
      for (let u = 0; u < vectors; u++) {
        let columns = columnNumbers;
        if (isArg(node.op) && u > 0) {
          columns = f.vector();
          f.get(columnNumbers)
            .splatBits(4 * u)
            .simd(SIMD.i32x4Add)
            .set(columns);
        }
        accumulate(f, accumulators, u, value(node.arg, u), columns, partial ? frame.mask : -1);
        if (columns !== columnNumbers) f.release(columns);
      }
      consume(node.arg);
    }
  }
  if (columnNumbers >= 0) f.release(columnNumbers);
  if (pass.last) {
    for (const output of program.outputs) if (output.space === 'full') ensure(output.node);
    program.outputs.forEach((output, index) => {
      if (output.space !== 'full') return;
      storeOutput(frame, index, vectors, partial, (u) => {
        const { dtype } = output;
        if (isHalf(dtype)) toHalfBits(f, value(output.node, u), dtype);
        else f.get(value(output.node, u));
        if (dtype === 'bool') f.splatBits(1).simd(SIMD.and);
      });
      consume(output.node);
    });
  }
}

/** How often each node's vectors are read in the pass; they are released after the last time. */
function countUses(frame: RowFrame, pass: Pass): Int32Array {
  const { nodes, outputs } = frame.program;
  const uses = new Int32Array(nodes.length);
  const use = (node: number) => {
    uses[node] = (uses[node] as number) + 1;
  };
  for (let i = pass.from; i < pass.to; i++) {
    const node = nodes[i] as ProgramNode;
    if (node.kind === 'map' && pass.needed[i] === 1) node.args.forEach(use);
    else if (node.kind === 'reduce' && pass.accumulators.has(i)) use(node.arg);
  }
  pass.stash.forEach(use);
  if (pass.last) for (const output of outputs) if (output.space === 'full') use(output.node);
  return uses;
}

/** Pushes the distance of the current column from the row's start, in bytes of an operand whose elements have 4, or half of that. */
function pushColumn(frame: RowFrame, half: boolean): void {
  frame.f.get(frame.column);
  if (half) frame.f.i32(1).op(OP.i32ShrU);
}

/** Loads vectors of an input; of halves, their bits in lanes of 32. */
function loadInput(frame: RowFrame, input: number, vectors: number, partial: boolean, take: (u: number) => void): void {
  const { f, address } = frame;
  const { columnStride, dtype } = frame.program.inputs[input] as Program['inputs'][number];
  const half = isHalf(dtype);
  frame.pushInputPointer(input);
  pushColumn(frame, half);
  if (columnStride === 'strided') {
    const stride = frame.strides[input] as number;
    // The column offset is in bytes, and the stride in elements: their product is the distance in bytes.
    f.get(stride).op(OP.i32Mul).op(OP.i32Add).set(address);
    const step = frame.strides[frame.program.inputs.length + input] as number;
    if (partial) {
      f.get(address)
        .get(step)
        .get(frame.left)
        .call(half ? LOAD_STRIDED_HALF_PART : LOAD_STRIDED_PART);
      take(0);
      return;
    }
    for (let u = 0; u < vectors; u++) {
      const gathered = f.vector();
      for (let lane = 0; lane < 4; lane++) {
        if (u > 0 || lane > 0) f.get(address).get(step).op(OP.i32Add).set(address);
        f.get(address);
        if (half) {
          if (lane === 0) f.splatBits(0);
          else f.get(gathered);
          f.laneMemory(SIMD.load16Lane, 0, 2 * lane, 1);
        } else if (lane === 0) f.simdMemory(SIMD.load32Zero, 0);
        else f.get(gathered).laneMemory(SIMD.load32Lane, 0, lane);
        f.set(gathered);
      }
      f.get(gathered);
      f.release(gathered);
      take(u);
    }
    return;
  }
  f.op(OP.i32Add).set(address);
  const load = (u: number) => {
    if (half) f.get(address).simdMemory(SIMD.load16x4U, 8 * u, 1);
    else f.get(address).simdMemory(SIMD.load, 16 * u);
  };
  if (partial) {
    f.get(frame.left).i32(4).op(OP.i32LtS).if(V128);
    f.get(address)
      .get(frame.left)
      .call(half ? LOAD_HALF_PART : LOAD_PART)
      .op(OP.else);
    load(0);
    f.op(OP.end);
    take(0);
    return;
  }
  for (let u = 0; u < vectors; u++) {
    load(u);
    take(u);
  }
}

/** Stores vectors of an output; of halves, the lower 2 bytes of lanes of 32 bits. */
function storeOutput(frame: RowFrame, output: number, vectors: number, partial: boolean, push: (u: number) => void): void {
  const { f, address } = frame;
  const half = isHalf((frame.program.outputs[output] as Program['outputs'][number]).dtype);
  frame.pushOutputPointer(output);
  pushColumn(frame, half);
  f.op(OP.i32Add).set(address);
  const store = (u: number) => {
    f.get(address);
    push(u);
    // The lanes hold 0 to 65535, which narrowing leaves as they are.
    if (half)
      f.splatBits(0)
        .simd(SIMD.i16x8NarrowI32x4U)
        .laneMemory(SIMD.store64Lane, 8 * u, 0, 1);
    else f.simdMemory(SIMD.store, 16 * u);
  };
  if (partial) {
    f.get(frame.left).i32(4).op(OP.i32LtS).if();
    f.get(address);
    push(0);
    f.get(frame.left)
      .call(half ? STORE_HALF_PART : STORE_PART)
      .op(OP.else);
    store(0);
    f.op(OP.end);
    return;
  }
  for (let u = 0; u < vectors; u++) store(u);
}
