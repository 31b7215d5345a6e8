import { type DType, elementBytes, isHalf } from '../../../ops/dtype.ts';
import type { Program, ProgramNode } from '../../../ops/program.ts';
import { f32Bits } from '../encoder/byte-writer.ts';
import type { FunctionBuilder } from '../encoder/function-builder.ts';
import type { FunctionDefinition } from '../encoder/module-builder.ts';
import { I32, OP, SIMD } from '../encoder/opcodes.ts';
import { type Analysis, neededIn, operandType } from './analysis.ts';
import { emitColumns, type Pass, type RowFrame } from './columns.ts';
import { fromHalfBits, toHalfBits } from './half.ts';
import { mapEmitter } from './maps.ts';
import { type Parameters, programParameters } from './parameters.ts';
import { type Accumulators, createAccumulators, finishReduction, foldChunk, releaseAccumulators, resetAccumulators } from './reductions.ts';
import { SEGMENT_VECTORS, type Segments, splitPass } from './segments.ts';

/** The parameters of every operator function. */
const PARAMS = 0;
const TILE = 1;
const TILES = 2;
const SCRATCH = 3;
export const KERNEL_PARAMS = [I32, I32, I32, I32] as const;

/** Scratch that a worker lends to the operator that it runs. */
const SCRATCH_BYTES = 1 << 20;
/** Columns of float32 sums that are added into one set of accumulators before these are added to the total. */
const CHUNK_BYTES = 4096 * 4;

/** Bytes of scratch that each stashed node has. */
function stashBytes(analysis: Analysis): number {
  return Math.floor(SCRATCH_BYTES / Math.max(1, analysis.stashed.length)) & ~63;
}

/** The most columns for which the stashed nodes fit into scratch. */
export function stashColumns(analysis: Analysis): number {
  return stashBytes(analysis) / 4 - 16;
}

/**
 * How many vectors to have in flight: four where the code stays small, for short rows fewer. The engine
 * moves all loads of a loop's body to its top, so that with many operands two fill the registers.
 */
function vectorsInFlight(program: Program, analysis: Analysis): number {
  const { cost } = analysis;
  const long = program.outerRank === 0 && !analysis.hasReduction;
  const most = cost <= (long ? 800 : 200) ? 4 : cost <= (long ? 1600 : 600) ? 2 : 1;
  return program.inputs.filter((input) => input.columnStride !== 0).length <= 3 ? most : Math.min(2, most);
}

/** With up to this many operands their addresses are kept in locals for the whole call. */
const MAX_ADDRESSES = 8;

/** The kernel of a program. `stash`: the variant that keeps expensive nodes in scratch. */
export function kernelFunction(program: Program, analysis: Analysis, stash: boolean): FunctionDefinition {
  return {
    params: KERNEL_PARAMS,
    results: [I32],
    emit: (f) => new Kernel(f, program, analysis, stash).emit(),
  };
}

class Kernel implements RowFrame {
  readonly f: FunctionBuilder;
  readonly program: Program;
  readonly analysis: Analysis;
  readonly parameters: Parameters;
  readonly stash: boolean;
  readonly vectors: number;
  readonly column: number;
  readonly begin: number;
  readonly end: number;
  readonly mainEnd: number;
  readonly left: number;
  readonly mask: number;
  readonly address: number;
  /** Address in scratch of column 0; segments move it with their block. */
  scratch = SCRATCH;
  readonly strides: number[] = [];
  readonly uniforms: Int32Array;
  /** Locals of the current row's addresses; with outerRank 0 and many operands addresses are read from the parameter block instead. */
  readonly inputPointers: (number | undefined)[] = [];
  readonly outputPointers: number[] = [];

  constructor(f: FunctionBuilder, program: Program, analysis: Analysis, stash: boolean) {
    this.f = f;
    this.program = program;
    this.analysis = analysis;
    this.stash = stash;
    this.parameters = programParameters(program);
    this.vectors = vectorsInFlight(program, analysis);
    this.column = f.i32Local();
    this.begin = f.i32Local();
    this.end = f.i32Local();
    this.mainEnd = f.i32Local();
    this.left = f.i32Local();
    this.address = f.i32Local();
    this.mask = f.vector();
    this.uniforms = new Int32Array(program.nodes.length).fill(-1);
  }

  emit(): void {
    const { f, program } = this;
    program.inputs.forEach((input, i) => {
      if (input.columnStride !== 'strided') return;
      const stride = f.i32Local();
      const bytes = f.i32Local();
      f.get(PARAMS).i32Load(this.parameters.columnStride(i)).tee(stride).i32(elementShift(input.dtype)).op(OP.i32Shl).set(bytes);
      this.strides[i] = stride;
      this.strides[program.inputs.length + i] = bytes;
    });
    if (program.outerRank === 0) this.emitOneRow();
    else this.emitRows();
    f.i32(0);
  }

  pushInputPointer(input: number): void {
    const local = this.inputPointers[input];
    if (local === undefined) this.f.get(PARAMS).i32Load(this.parameters.inputPointer(input));
    else this.f.get(local);
  }

  pushOutputPointer(output: number): void {
    const local = this.outputPointers[output];
    if (local === undefined) this.f.get(PARAMS).i32Load(this.parameters.outputPointer(output));
    else this.f.get(local);
  }

  pushScratchAddress(offset: number): void {
    this.f.get(this.scratch).get(this.column).op(OP.i32Add);
    if (offset > 0) this.f.i32(offset).op(OP.i32Add);
  }

  /** Returns early if the condition on the stack holds. */
  private returnIf(): void {
    this.f.if().i32(0).op(OP.return).op(OP.end);
  }

  private emitMainEnd(): void {
    const { f } = this;
    f.get(this.begin)
      .get(this.end)
      .get(this.begin)
      .op(OP.i32Sub)
      .i32(-16 * this.vectors)
      .op(OP.i32And)
      .op(OP.i32Add)
      .set(this.mainEnd);
  }

  /** Tile t of T has the columns [t c, min(columns, (t+1) c)), c = ceil(columns / T / 16) 16; with a reduction it has all. */
  private emitOneRow(): void {
    const { f, program } = this;
    if (program.inputs.length + program.outputs.length <= MAX_ADDRESSES) {
      program.inputs.forEach((_, input) => {
        const local = f.i32Local();
        this.pushInputPointer(input);
        f.set(local);
        this.inputPointers[input] = local;
      });
      program.outputs.forEach((_, output) => {
        const local = f.i32Local();
        this.pushOutputPointer(output);
        f.set(local);
        this.outputPointers[output] = local;
      });
    }
    const hasRowOutput = program.outputs.some((output) => output.space === 'row');
    if (this.analysis.hasReduction) {
      f.get(PARAMS).i32Load(this.parameters.columns).i32(2).op(OP.i32Shl).set(this.end);
    } else {
      const columns = this.address;
      const chunk = this.left;
      f.get(PARAMS)
        .i32Load(this.parameters.columns)
        .tee(columns)
        .get(TILES)
        .i32(4)
        .op(OP.i32Shl)
        .tee(chunk)
        .op(OP.i32Add)
        .i32(1)
        .op(OP.i32Sub);
      f.get(chunk).op(OP.i32DivU).i32(4).op(OP.i32Shl).tee(chunk).get(TILE).op(OP.i32Mul).set(this.begin);
      f.get(this.begin).get(columns).op(OP.i32GeU);
      if (hasRowOutput) f.if().get(columns).set(this.begin).op(OP.end);
      else this.returnIf();
      f.get(this.begin).get(chunk).op(OP.i32Add).tee(chunk).get(columns).get(chunk).get(columns).op(OP.i32LtU).op(OP.select);
      f.i32(2).op(OP.i32Shl).set(this.end);
      f.get(this.begin).i32(2).op(OP.i32Shl).set(this.begin);
    }
    this.emitMainEnd();
    this.emitInvariants();
    this.emitRow();
  }

  private emitRows(): void {
    const { f, program, parameters } = this;
    const k = program.outerRank;
    const row = f.i32Local();
    const rowEnd = f.i32Local();
    const rowsPerUnit = f.i32Local();
    const coordinates = Array.from({ length: k }, () => f.i32Local());
    f.get(PARAMS).i32Load(parameters.columns).i32(2).op(OP.i32Shl).set(this.end);
    if (!program.outputs.some((output) => output.space === 'row')) {
      f.get(this.end).op(OP.i32Eqz);
      this.returnIf();
    }
    const bound = (tile: number, plus: number, target: number) => {
      f.get(PARAMS).i32Load(parameters.units).op(OP.i64ExtendI32U).get(tile);
      if (plus !== 0) f.i32(plus).op(OP.i32Add);
      f.op(OP.i64ExtendI32U).op(OP.i64Mul).get(TILES).op(OP.i64ExtendI32U).op(OP.i64DivU).op(OP.i32WrapI64).set(target);
    };
    bound(TILE, 0, row);
    bound(TILE, 1, rowEnd);
    f.get(row).get(rowEnd).op(OP.i32GeU);
    this.returnIf();
    f.get(PARAMS).i32Load(parameters.rows).get(PARAMS).i32Load(parameters.units).op(OP.i32DivU).set(rowsPerUnit);
    f.get(row).get(rowsPerUnit).op(OP.i32Mul).set(row);
    f.get(rowEnd).get(rowsPerUnit).op(OP.i32Mul).set(rowEnd);
    f.get(row).get(rowEnd).op(OP.i32GeU);
    this.returnIf();
    this.emitMainEnd();

    const streams = this.rowStreams();
    for (const stream of streams) f.get(PARAMS).i32Load(stream.pointer).set(stream.local);
    // The first row's coordinates, innermost first; from then on they are counted.
    const rest = this.left;
    f.get(row).set(rest);
    for (let d = k - 1; d >= 0; d--) {
      const coordinate = coordinates[d] as number;
      if (d === 0) {
        f.get(rest).set(coordinate);
      } else {
        f.get(rest).get(PARAMS).i32Load(parameters.dim(d)).op(OP.i32RemU).set(coordinate);
        f.get(rest).get(PARAMS).i32Load(parameters.dim(d)).op(OP.i32DivU).set(rest);
      }
      for (const stream of streams) {
        f.get(stream.local)
          .get(coordinate)
          .get(PARAMS)
          .i32Load(stream.stride(d))
          .op(OP.i32Mul)
          .i32(stream.shift)
          .op(OP.i32Shl)
          .op(OP.i32Add)
          .set(stream.local);
      }
    }
    const rowOutputs: { readonly local: number; readonly bytes: number }[] = [];
    program.outputs.forEach((output, index) => {
      if (output.space !== 'row') return;
      const local = f.i32Local();
      f.get(PARAMS)
        .i32Load(parameters.outputPointer(index))
        .get(row)
        .i32(elementShift(output.dtype))
        .op(OP.i32Shl)
        .op(OP.i32Add)
        .set(local);
      this.outputPointers[index] = local;
      rowOutputs.push({ local, bytes: elementBytes(output.dtype) });
    });
    this.emitInvariants();

    f.block().loop();
    this.emitRow();
    f.get(row).i32(1).op(OP.i32Add).tee(row).get(rowEnd).op(OP.i32GeU).brIf(1);
    for (const { local, bytes } of rowOutputs) f.get(local).i32(bytes).op(OP.i32Add).set(local);
    this.emitCarry(coordinates, streams, k - 1);
    f.br(0).op(OP.end).op(OP.end);
  }

  /** Steps coordinate d; when it is at its end, takes the stream back to its start and steps the next outer one. */
  private emitCarry(coordinates: readonly number[], streams: readonly RowStream[], d: number): void {
    const { f, parameters } = this;
    const coordinate = coordinates[d] as number;
    for (const stream of streams) {
      f.get(stream.local).get(PARAMS).i32Load(stream.stride(d)).i32(stream.shift).op(OP.i32Shl).op(OP.i32Add).set(stream.local);
    }
    // The outermost one never carries: the rows are at their end by then.
    if (d === 0) return;
    f.get(coordinate).i32(1).op(OP.i32Add).tee(coordinate).get(PARAMS).i32Load(parameters.dim(d)).op(OP.i32Eq).if();
    for (const stream of streams) {
      f.get(stream.local)
        .get(coordinate)
        .get(PARAMS)
        .i32Load(stream.stride(d))
        .op(OP.i32Mul)
        .i32(stream.shift)
        .op(OP.i32Shl)
        .op(OP.i32Sub)
        .set(stream.local);
    }
    f.i32(0).set(coordinate);
    this.emitCarry(coordinates, streams, d - 1);
    f.op(OP.end);
  }

  /** The addresses that move from row to row: of the inputs in use, and of the outputs of full space. */
  private rowStreams(): RowStream[] {
    const { f, program, parameters, analysis } = this;
    const streams: RowStream[] = [];
    program.nodes.forEach((node, i) => {
      if (node.kind !== 'input' || analysis.live[i] === 0 || this.inputPointers[node.input] !== undefined) return;
      const local = f.i32Local();
      this.inputPointers[node.input] = local;
      const { dtype } = program.inputs[node.input] as Program['inputs'][number];
      streams.push({
        local,
        shift: elementShift(dtype),
        pointer: parameters.inputPointer(node.input),
        stride: (d) => parameters.inputRowStride(node.input, d),
      });
    });
    program.outputs.forEach((output, index) => {
      if (output.space !== 'full') return;
      const local = f.i32Local();
      this.outputPointers[index] = local;
      streams.push({
        local,
        shift: elementShift(output.dtype),
        pointer: parameters.outputPointer(index),
        stride: (d) => parameters.outputRowStride(index, d),
      });
    });
    return streams;
  }

  /** Values that are the same for all rows. */
  private emitInvariants(): void {
    const { program, analysis } = this;
    program.nodes.forEach((_, i) => {
      if (analysis.live[i] === 1 && analysis.invariant[i] === 1) this.emitUniform(i);
    });
  }

  /** One row: stage 0, pass 0, stage 1, pass 1, ...; then its row outputs. */
  private emitRow(): void {
    const { f, program, analysis } = this;
    for (let stage = 0; stage <= analysis.passes; stage++) {
      program.nodes.forEach((node, i) => {
        if (analysis.live[i] === 0 || analysis.uniform[i] === 0 || analysis.invariant[i] === 1) return;
        if (analysis.level[i] === stage && node.kind !== 'reduce') this.emitUniform(i);
      });
      if (stage < analysis.passes) this.emitPass(stage);
    }
    program.outputs.forEach((output, index) => {
      if (output.space !== 'row') return;
      this.pushOutputPointer(index);
      const value = this.uniforms[output.node] as number;
      if (isHalf(output.dtype)) {
        toHalfBits(f, value, output.dtype);
        f.laneMemory(SIMD.store16Lane, 0, 0, 1);
        return;
      }
      f.get(value);
      if (output.dtype === 'bool') f.splatBits(1).simd(SIMD.and);
      f.laneMemory(SIMD.store32Lane, 0, 0);
    });
  }

  private uniformLocal(index: number): number {
    if ((this.uniforms[index] as number) < 0) this.uniforms[index] = this.f.vector();
    return this.uniforms[index] as number;
  }

  private emitUniform(index: number): void {
    const { f, program } = this;
    const node = program.nodes[index] as ProgramNode;
    switch (node.kind) {
      case 'constant': {
        const bits = node.dtype === 'float32' ? f32Bits(node.value) : node.dtype === 'bool' ? (node.value ? -1 : 0) : node.value | 0;
        this.uniforms[index] = f.splatLocal(bits);
        return;
      }
      case 'scalar':
        f.get(PARAMS).simdMemory(SIMD.load32Splat, this.parameters.scalar(node.scalar));
        break;
      case 'input':
        this.emitUniformInput(index, node.input);
        break;
      case 'map': {
        const [a = -1, b = -1, c = -1] = node.args.map((arg) => this.uniforms[arg] as number);
        mapEmitter(node.op, operandType(program.nodes, node), node.dtype).emit(f, a, b, c);
        break;
      }
      case 'reduce':
        return;
    }
    if (node.dtype === 'bool' && node.kind !== 'map') f.splatBits(0).simd(SIMD.i32x4Ne);
    f.set(this.uniformLocal(index));
  }

  private emitUniformInput(index: number, input: number): void {
    const { f } = this;
    const { dtype } = this.program.inputs[input] as Program['inputs'][number];
    this.pushInputPointer(input);
    if (!isHalf(dtype)) {
      f.simdMemory(SIMD.load32Splat, 0);
      return;
    }
    f.i32Load16(0).simd(SIMD.i32x4Splat).set(this.uniformLocal(index));
    fromHalfBits(f, this.uniformLocal(index), dtype);
  }

  private emitPass(index: number): void {
    const { f, program, analysis, stash, vectors } = this;
    const accumulators = new Map<number, Accumulators>();
    program.nodes.forEach((node, i) => {
      if (node.kind !== 'reduce' || analysis.live[i] === 0 || analysis.level[i] !== index + 1) return;
      const created = createAccumulators(f, node.op, (program.nodes[node.arg] as ProgramNode).dtype, vectors);
      resetAccumulators(f, created);
      accumulators.set(i, created);
    });
    const pass: Pass = {
      needed: neededIn(program, analysis, index, stash),
      from: 0,
      to: program.nodes.length,
      accumulators,
      stash: stash ? analysis.stashed.filter((node) => analysis.level[node] === index) : [],
      slots: new Map(analysis.stashed.map((node, slot) => [node, slot * stashBytes(analysis)])),
      last: index === analysis.passes - 1,
    };
    const segments = analysis.passes === 1 && accumulators.size === 0 ? splitPass(program, analysis, pass) : undefined;
    if (segments === undefined) this.emitMainLoop(pass);
    else this.emitBlocks(segments);

    f.get(this.column).get(this.end).op(OP.i32LtU).if().loop();
    f.get(this.end).get(this.column).op(OP.i32Sub).i32(2).op(OP.i32ShrU).set(this.left);
    if (accumulators.size > 0) f.get(this.left).simd(SIMD.i32x4Splat).laneNumbers().simd(SIMD.i32x4GtS).set(this.mask);
    emitColumns(this, pass, 1, true);
    f.get(this.column).i32(16).op(OP.i32Add).tee(this.column).get(this.end).op(OP.i32LtU).brIf(0).op(OP.end).op(OP.end);

    for (const [node, one] of accumulators) {
      finishReduction(f, one, this.uniformLocal(node));
      releaseAccumulators(f, one);
    }
  }

  /** The columns up to `mainEnd`, in one loop. */
  private emitMainLoop(pass: Pass): void {
    const { f, vectors } = this;
    const chunked = [...pass.accumulators.values()].filter((one) => one.total >= 0);
    const limit = chunked.length > 0 ? this.left : this.mainEnd;
    f.get(this.begin).set(this.column);
    f.get(this.column).get(this.mainEnd).op(OP.i32LtU).if();
    if (chunked.length > 0) {
      f.loop();
      this.emitLimit(CHUNK_BYTES, limit);
    }
    f.loop();
    emitColumns(this, pass, vectors, false);
    this.emitStep(limit, vectors);
    f.op(OP.end);
    if (chunked.length > 0) {
      for (const one of chunked) foldChunk(f, one);
      f.get(this.column).get(this.mainEnd).op(OP.i32LtU).brIf(0).op(OP.end);
    }
    f.op(OP.end);
  }

  /** The columns up to `mainEnd`, block by block through all segments. */
  private emitBlocks(segments: Segments): void {
    const { f } = this;
    const vectors = Math.min(SEGMENT_VECTORS, this.vectors);
    const pointers: number[] = [];
    const start = f.i32Local();
    this.scratch = f.i32Local();
    f.get(this.begin).tee(this.column).get(this.mainEnd).op(OP.i32LtU).if().loop();
    f.get(SCRATCH).get(this.column).tee(start).op(OP.i32Sub).set(this.scratch);
    this.emitLimit(segments.blockBytes, this.left);
    for (const [index, pass] of segments.passes.entries()) {
      const hoisted = this.inputPointers.length === 0 ? (segments.inputs[index] as readonly number[]) : [];
      hoisted.forEach((input, i) => {
        if (i === pointers.length) pointers.push(f.i32Local());
        this.pushInputPointer(input);
        f.set(pointers[i] as number);
      });
      hoisted.forEach((input, i) => {
        this.inputPointers[input] = pointers[i] as number;
      });
      f.get(start).set(this.column).loop();
      emitColumns(this, pass, vectors, false);
      this.emitStep(this.left, vectors);
      f.op(OP.end);
      if (hoisted.length > 0) this.inputPointers.length = 0;
    }
    f.get(this.column).get(this.mainEnd).op(OP.i32LtU).brIf(0).op(OP.end).op(OP.end);
    this.scratch = SCRATCH;
  }

  /** Sets `limit` to the column `bytes` further on, at most to `mainEnd`. */
  private emitLimit(bytes: number, limit: number): void {
    const { f } = this;
    f.get(this.mainEnd)
      .get(this.column)
      .i32(bytes)
      .op(OP.i32Add)
      .tee(limit)
      .get(this.mainEnd)
      .get(limit)
      .op(OP.i32LtU)
      .op(OP.select)
      .set(limit);
  }

  /** Goes on to the next vectors and repeats the loop while they are before `limit`. */
  private emitStep(limit: number, vectors: number): void {
    this.f
      .get(this.column)
      .i32(16 * vectors)
      .op(OP.i32Add)
      .tee(this.column)
      .get(limit)
      .op(OP.i32LtU)
      .brIf(0);
  }
}

/** By how much an index is shifted to be a distance in bytes. */
function elementShift(dtype: DType): number {
  return elementBytes(dtype) === 2 ? 1 : 2;
}

interface RowStream {
  readonly shift: number;
  readonly local: number;
  readonly pointer: number;
  stride(d: number): number;
}
