import type { Program, ProgramNode } from '../../../ops/program.ts';
import { type Analysis, analyze, contentsOf, reductionType, stageOf } from '../codegen/analysis.ts';
import { programParameters } from '../codegen/parameters.ts';
import {
  CLASS,
  FLAG_REDUCES,
  FLAG_ROW_OUTPUTS,
  fits,
  HEADER,
  HEADER_WORDS,
  MAX_INDEX,
  MAX_REGISTER,
  ROW_TARGET,
  storage,
  VERSION,
} from './bytecode.ts';
import { opcode } from './opcodes.ts';
import { constantBits, operationOf } from './operations.ts';
import { encodeStraight } from './straight.ts';

/** Inputs with one element a row that are kept in registers for the row; of more, each is loaded where it is used. */
const MAX_ROW_INPUTS = 6;

const LOAD = opcode('load');
const LOAD_ROW = opcode('load_row');
const STORE = opcode('store');
const STORE_ROW = opcode('store_row');
const SETTLE = opcode('settle');

/** A value that will have a register, of the row or of an element. */
interface Value {
  readonly row: boolean;
  readonly size: 1 | 2;
  /** The last instruction that reads it. */
  last: number;
  register: number;
}

type Source = Value | { readonly class: number; readonly index: number };

interface Instruction {
  readonly operation: number;
  readonly target: Value | undefined;
  readonly sources: readonly Source[];
  /** Of loads and stores: the input or output. */
  readonly extra: number | undefined;
}

/**
 * Bytecode of a program for `operator_interpret`, or undefined for a program that does not fit: too many values alive at
 * once (at 256 threads about 26 registers, `fits` has it exactly), or too long for shared memory.
 */
export function encodeProgram(program: Program): Uint32Array | undefined {
  return encodeStraight(program) ?? encodeGeneral(program);
}

/** The same, of any program in the way that all can be encoded in. */
export function encodeGeneral(program: Program): Uint32Array | undefined {
  return new Encoder(program).encode();
}

class Encoder {
  readonly #program: Program;
  readonly #analysis: Analysis;
  readonly #instructions: Instruction[] = [];
  readonly #ends: number[] = [];
  readonly #constants: number[] = [];
  readonly #rowValues = new Map<number, Value>();
  /** States of the reductions. */
  readonly #states = new Map<number, Value>();
  readonly #lazyRows: boolean;

  constructor(program: Program) {
    this.#program = program;
    this.#analysis = analyze(program);
    const { live, uniform } = this.#analysis;
    this.#lazyRows = program.nodes.filter((node, i) => node.kind === 'input' && live[i] && uniform[i]).length > MAX_ROW_INPUTS;
  }

  encode(): Uint32Array | undefined {
    const program = this.#program;
    const { passes, hasReduction } = this.#analysis;
    for (let stage = 0; stage <= passes; stage++) {
      this.#emitStage(stage);
      if (stage < passes) this.#emitPass(stage);
    }
    const registers = this.#allocate();
    if (registers === undefined) return undefined;
    const { size: parameters } = programParameters(program);
    const { inputs, outputs } = program;
    const instructions = HEADER_WORDS + inputs.length + outputs.length + this.#ends.length + this.#constants.length;
    const words = new Uint32Array(instructions + 2 * this.#instructions.length);
    let at = HEADER_WORDS;
    let strided = 0;
    for (const { columnStride, dtype } of inputs)
      words[at++] = storage(dtype) + (columnStride === 'strided' ? 2 + strided++ : columnStride);
    let full = 0;
    for (const { space, dtype } of outputs) words[at++] = storage(dtype) + (space === 'full' ? ++full : 0);
    words.set(this.#ends, at);
    words.set(this.#constants, at + this.#ends.length);
    this.#instructions.forEach((instruction, i) => {
      write(instruction, words, instructions + 2 * i);
    });
    const rowOutputs = program.outputs.some(({ space }) => space === 'row');
    words[HEADER.VERSION] = VERSION;
    words[HEADER.WORDS] = words.length;
    words[HEADER.INPUTS] = program.inputs.length;
    words[HEADER.OUTPUTS] = program.outputs.length;
    words[HEADER.RANK] = program.outerRank;
    words[HEADER.PASSES] = passes;
    words[HEADER.CONSTANTS] = this.#constants.length;
    words[HEADER.SCALARS] = program.scalars;
    words[HEADER.ELEMENTS] = registers.elements;
    words[HEADER.ROWS] = registers.rows;
    words[HEADER.PARAMETERS] = parameters;
    words[HEADER.FLAGS] = (hasReduction ? FLAG_REDUCES : 0) | (rowOutputs ? FLAG_ROW_OUTPUTS : 0);
    const tooLarge = [program.inputs.length, program.outputs.length, program.scalars, this.#constants.length].some((n) => n > MAX_INDEX);
    if (tooLarge || !fits(parameters, words.length, registers.elements + registers.rows, hasReduction)) return undefined;
    return words;
  }

  #emit(operation: number, sources: readonly Source[], target?: Value, extra?: number): void {
    const at = this.#instructions.length;
    for (const source of sources) if ('last' in source) source.last = at;
    if (target) target.last = Math.max(target.last, at);
    this.#instructions.push({ operation, sources, target, extra });
  }

  #value(row: boolean, size: 1 | 2 = 1): Value {
    return { row, size, last: -1, register: -1 };
  }

  /** A constant or scalar as it is; another node's value from `values`, or from the row's. */
  #source(index: number, values?: ReadonlyMap<number, Value>): Source {
    const node = this.#program.nodes[index]!;
    if (node.kind === 'scalar') return { class: CLASS.SCALAR, index: node.scalar };
    if (node.kind !== 'constant') return (values?.get(index) ?? this.#rowValues.get(index))!;
    const bits = constantBits(node.value, node.dtype);
    let place = this.#constants.indexOf(bits);
    if (place < 0) place = this.#constants.push(bits) - 1;
    return { class: CLASS.CONSTANT, index: place };
  }

  #emitMap(node: ProgramNode & { kind: 'map' }, values: ReadonlyMap<number, Value> | undefined, target: Value): void {
    this.#emit(
      operationOf(this.#program.nodes, node),
      node.args.map((arg) => this.#source(arg, values)),
      target,
    );
  }

  #emitStage(stage: number): void {
    const program = this.#program;
    const { live, level, passes, hasReduction, uniform } = this.#analysis;
    program.nodes.forEach((node, i) => {
      if (node.kind !== 'reduce' || !live[i] || level[i] !== stage) return;
      const state = this.#states.get(i)!;
      const result = this.#value(true);
      this.#rowValues.set(i, result);
      this.#emit(opcode(`finish_${this.#reduction(node)}`), [state], result);
    });
    for (const i of stageOf(program, this.#analysis, stage)) {
      const node = program.nodes[i]!;
      if (node.kind === 'map') {
        for (const arg of node.args) this.#loadRow(arg);
        const result = this.#value(true);
        this.#rowValues.set(i, result);
        this.#emitMap(node, undefined, result);
      } else if (node.kind === 'input' && !this.#lazyRows) this.#loadRow(i);
    }
    if (stage < passes) {
      for (const i of contentsOf(program, this.#analysis, stage).reductions) {
        const state = this.#value(true, 2);
        this.#states.set(i, state);
        this.#emit(opcode(`begin_${this.#reduction(program.nodes[i] as ProgramNode & { kind: 'reduce' })}`), [], state);
      }
    } else {
      // A row output may lie in the place of an input that has one element a row.
      const rows = program.outputs.flatMap((output, o) => (output.space === 'row' ? [o] : []));
      for (const o of rows) this.#loadRow(program.outputs[o]!.node);
      const reads = program.nodes.some((node, i) => node.kind === 'input' && live[i] && uniform[i]);
      if (rows.length > 0 && reads && (!hasReduction || this.#lazyRows)) this.#emit(SETTLE, []);
      for (const o of rows) this.#emit(STORE_ROW, [this.#source(program.outputs[o]!.node)], undefined, o);
    }
    this.#ends.push(this.#instructions.length);
  }

  #reduction(node: ProgramNode & { kind: 'reduce' }): string {
    return reductionType(node.op, this.#program.nodes[node.arg]!.dtype);
  }

  /** Loads a uniform input into a row register, where that has not been done. */
  #loadRow(index: number): void {
    const node = this.#program.nodes[index]!;
    if (node.kind !== 'input' || this.#rowValues.has(index)) return;
    const value = this.#value(true);
    this.#rowValues.set(index, value);
    this.#emit(LOAD_ROW, [], value, node.input);
  }

  #emitPass(pass: number): void {
    const program = this.#program;
    const { uniform } = this.#analysis;
    const { full, reductions, stores } = contentsOf(program, this.#analysis, pass);
    const values = new Map<number, Value>();
    const ensure = (index: number) => {
      const node = program.nodes[index]!;
      if (node.kind !== 'input' || values.has(index) || this.#rowValues.has(index)) return;
      const value = this.#value(false);
      values.set(index, value);
      this.#emit(uniform[index] ? LOAD_ROW : LOAD, [], value, node.input);
    };
    // A reduction takes its operand as soon as it is there, so that its register is free again.
    const fold = (arg: number) => {
      for (const i of reductions) {
        const node = program.nodes[i] as ProgramNode & { kind: 'reduce' };
        if (node.arg !== arg) continue;
        ensure(arg);
        this.#emit(opcode(`fold_${this.#reduction(node)}`), [this.#source(arg, values)], this.#states.get(i)!);
      }
    };
    for (const i of full) {
      const node = program.nodes[i]!;
      if (node.kind === 'map') {
        for (const arg of node.args) ensure(arg);
        const value = this.#value(false);
        values.set(i, value);
        this.#emitMap(node, values, value);
      }
      fold(i);
    }
    for (const arg of new Set(reductions.map((i) => (program.nodes[i] as ProgramNode & { kind: 'reduce' }).arg)))
      if (uniform[arg]) fold(arg);
    if (stores) {
      // All inputs are read before an output is written: one may lie in the place of the other.
      for (const output of program.outputs) if (output.space === 'full') ensure(output.node);
      program.outputs.forEach((output, o) => {
        if (output.space === 'full') this.#emit(STORE, [this.#source(output.node, values)], undefined, o);
      });
    }
    this.#ends.push(this.#instructions.length);
  }

  /**
   * Gives each value the lowest registers that are free from where it is made to where it is read last. A pass runs many
   * times, but what it reads of the row keeps its place: row registers are given out in stages only.
   */
  #allocate(): { elements: number; rows: number } | undefined {
    const rank = this.#program.outerRank;
    // Row registers 0, 1, ... have the row's coordinates.
    const busy = { rows: new Array<number>(rank).fill(Number.POSITIVE_INFINITY), elements: [] as number[] };
    for (const [at, { target }] of this.#instructions.entries()) {
      if (target === undefined || target.register >= 0) continue;
      const list = target.row ? busy.rows : busy.elements;
      // A value that this very instruction reads last can make room for its result: each element is read before it is written.
      let register = 0;
      while ((list[register] ?? -1) > at || (target.size === 2 && (list[register + 1] ?? -1) > at)) register++;
      for (let k = 0; k < target.size; k++) list[register + k] = target.last;
      target.register = register;
    }
    const tooMany = busy.rows.length > MAX_REGISTER || busy.elements.length > MAX_REGISTER;
    return tooMany ? undefined : { elements: busy.elements.length, rows: busy.rows.length };
  }
}

function operandOf(source: Source | undefined): number {
  if (source === undefined) return CLASS.CONSTANT << 14;
  return 'last' in source ? ((source.row ? CLASS.ROW : CLASS.ELEMENT) << 14) | source.register : (source.class << 14) | source.index;
}

/** An instruction's two words. */
function write({ operation, target, sources, extra }: Instruction, words: Uint32Array, at: number): void {
  const into = target === undefined ? ROW_TARGET : (target.row ? ROW_TARGET : 0) | target.register;
  const third = extra ?? (sources.length > 2 ? operandOf(sources[2]) : 0);
  words[at] = operation | (into << 8) | (third << 16);
  words[at + 1] = operandOf(sources[0]) | (operandOf(sources[1]) << 16);
}
