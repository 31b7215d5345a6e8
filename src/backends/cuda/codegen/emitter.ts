import { GpuosError } from '../../../errors.ts';
import { isHalf } from '../../../ops/dtype.ts';
import type { Program, ProgramNode } from '../../../ops/program.ts';
import { type Analysis, analyze, contentsOf, nodeCost, operandType, type PassContents, reductionType, stageOf } from './analysis.ts';
import { type Parameters, programParameters } from './parameters.ts';
import { ELEMENT_TYPES, Lines, literal, VALUE_TYPES } from './text.ts';

/** Shared memory of an operator (GPUOS_SHARED_BYTES), and what reductions of a block of up to 1,024 threads take of it. */
const SHARED_BYTES = 32 * 1024;
const SCRATCH_BYTES = 16 * 1024;
/** Operands of which the addresses are kept in registers; with more they are read from shared memory where they are used. */
const MAX_ADDRESSES = 12;
/** Loads that are under way at a time where addresses are read where they are used: a thread waits once for all of them. */
const MAX_LOADS = 32;
/** Values that are the same for a row and are kept in registers; with more the inputs and scalars among them are read where they are used. */
const MAX_UNIFORMS = 24;
/** Elements loaded ahead a thread, over all inputs, and instructions of a turn of the loop over the columns. */
const MAX_IN_FLIGHT = 48;
const MAX_INSTRUCTIONS = 1600;

/** Groups of four columns a thread computes in one turn; 0: single columns. */
function foursInFlight(program: Program, analysis: Analysis, streams: number): number {
  if (streams > MAX_ADDRESSES) return 0;
  let cost = 1;
  let inputs = 1;
  for (let pass = 0; pass < analysis.passes; pass++) {
    const { full, reductions } = contentsOf(program, analysis, pass);
    const nodes = [...full, ...reductions].map((i) => program.nodes[i]!);
    cost = Math.max(
      cost,
      nodes.reduce((sum, node) => sum + nodeCost(node), 0),
    );
    inputs = Math.max(inputs, nodes.filter((node) => node.kind === 'input').length);
  }
  for (const fours of [4, 2, 1]) if (4 * fours * inputs <= MAX_IN_FLIGHT && 4 * fours * cost <= MAX_INSTRUCTIONS) return fours;
  return 0;
}

/** Writes one program as an operator function. What it calls is in device/program.cuh. */
export class Emitter {
  readonly #lines = new Lines();
  readonly #program: Program;
  readonly #name: string;
  readonly #analysis: Analysis;
  readonly #parameters: Parameters;
  readonly #fours: number;
  /** Addresses are not kept in registers. */
  readonly #rereads: boolean;
  /** Uniform inputs and scalars are not kept in registers. */
  readonly #lazy: boolean;
  /** The variable through which parameters are read. */
  #words = 'words';
  /** Inputs of the pass at hand in the order of their first use, where they are loaded some at a time. */
  #loads: readonly number[] = [];
  /** Nodes that have a variable where the text is being written. */
  #known: Set<number> = new Set();

  constructor(program: Program, name: string) {
    const analysis = analyze(program);
    this.#program = program;
    this.#name = name;
    this.#analysis = analysis;
    this.#parameters = programParameters(program);
    const { nodes } = program;
    const used = new Set(
      nodes.flatMap((node, i) => (node.kind === 'input' && analysis.live[i] && !analysis.uniform[i] ? [node.input] : [])),
    );
    const streams = used.size + program.outputs.filter((output) => output.space === 'full').length;
    const uniforms = nodes.filter((node, i) => analysis.live[i] && analysis.uniform[i] && node.kind !== 'constant').length;
    this.#lazy = uniforms > MAX_UNIFORMS;
    this.#fours = this.#lazy ? 0 : foursInFlight(program, analysis, streams);
    this.#rereads = streams > MAX_ADDRESSES || this.#lazy;
    if (this.#scratch + (analysis.hasReduction ? SCRATCH_BYTES : 0) > SHARED_BYTES) {
      throw new GpuosError('GPUOS_INTERNAL', `A fused kernel's parameter block of ${this.#scratch} bytes does not fit into shared memory.`);
    }
  }

  /** Where the scratch of reductions begins in shared memory, in bytes. */
  get #scratch(): number {
    return Math.ceil((4 * this.#parameters.size) / 16) * 16;
  }

  emit(): string {
    const { line, open, close } = this.#writers();
    const { inputs, outputs, nodes, outerRank, scalars } = this.#program;
    line(`// ${nodes.length} nodes, ${inputs.length} inputs, ${outputs.length} outputs, ${scalars} scalars, outer rank ${outerRank}.`);
    line('#include "gpuos_abi.h"');
    line('#include "program.cuh"');
    line('');
    line('extern "C" {');
    line('');
    line(`__device__ __noinline__ uint32_t ${this.#name}(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared,`);
    open('    const uint32_t *data)');
    line('using namespace program;');
    line(`const uint32_t *words = stage(params, ${this.#parameters.size}, shared);`);
    line(`const uint32_t columns = words[${this.#parameters.columns}];`);
    if (outerRank === 0) this.#emitOneRow();
    else this.#emitRows();
    line('return GPUOS_STATUS_OK;');
    close();
    line('}');
    return this.#lines.toString();
  }

  #writers(): { line(text: string): void; open(text: string): void; close(): void } {
    const lines = this.#lines;
    return { line: (text) => lines.line(text), open: (text) => lines.open(text), close: () => lines.close() };
  }

  get #hasRowOutput(): boolean {
    return this.#program.outputs.some((output) => output.space === 'row');
  }

  #emitOneRow(): void {
    const { line } = this.#writers();
    line(`Group group = whole_block(shared + ${this.#scratch});`);
    if (this.#analysis.hasReduction) line('const Span span = {0, columns};');
    else line('const Span span = columns_of_tile(columns, tile, tiles);');
    line('const uint32_t begin = span.begin, end = span.end;');
    this.#emitScalars();
    this.#emitRow();
  }

  #emitRows(): void {
    const { line, open, close } = this.#writers();
    const { outerRank: k } = this.#program;
    const parameters = this.#parameters;
    line(`const uint32_t units = words[${parameters.units}];`);
    line(`if (units == 0${this.#hasRowOutput ? '' : ' || columns == 0'}) return GPUOS_STATUS_OK;`);
    line(`const uint32_t rows_a_unit = words[${parameters.rows}] / units;`);
    line('const uint32_t first_row = first_unit(units, tile, tiles) * rows_a_unit;');
    line('const uint32_t end_row = first_unit(units, tile + 1, tiles) * rows_a_unit;');
    const pieces = this.#fours > 0 ? 'columns / 4 + (columns % 4 != 0 ? 1 : 0)' : 'columns';
    line(`Group group = share_rows(end_row - first_row, ${pieces}, shared + ${this.#scratch});`);
    for (let d = 1; d < k; d++) line(`const uint32_t dim${d} = words[${parameters.dim(d)}];`);
    this.#emitScalars();
    open('for (uint32_t base = first_row; base < end_row; base += group.count)');
    line('// A group without a row of its own goes through the motions, over no columns.');
    line('const bool active = base + group.index < end_row;');
    line('const uint32_t row = active ? base + group.index : base;');
    line('const uint32_t begin = 0, end = active ? columns : 0;');
    let rest = 'row';
    for (let d = k - 1; d > 0; d--) {
      line(`const uint32_t r${d} = ${rest} % dim${d};`);
      line(`const uint32_t rest${d} = ${rest} / dim${d};`);
      rest = `rest${d}`;
    }
    line(`const uint32_t r0 = ${rest};`);
    this.#emitRow();
    close();
  }

  /** Values that are the same for all rows. */
  #emitScalars(): void {
    if (this.#lazy) return;
    this.#program.nodes.forEach((node, i) => {
      if (node.kind === 'scalar' && this.#analysis.live[i]) this.#define(i, this.#scalar(node));
    });
  }

  #scalar(node: ProgramNode & { kind: 'scalar' }): string {
    const word = `${this.#words}[${this.#parameters.scalar(node.scalar)}]`;
    return node.dtype === 'float32' ? `float_of(${word})` : node.dtype === 'int32' ? `wrapped(${word})` : `${word} != 0`;
  }

  /** Address of the current row of an input or (full) output. */
  #address(kind: 'input' | 'output', index: number): string {
    const program = this.#program;
    const parameters = this.#parameters;
    const words = this.#words;
    const spec = kind === 'input' ? program.inputs[index]! : program.outputs[index]!;
    const element = (kind === 'input' ? 'const ' : '') + ELEMENT_TYPES[spec.dtype];
    let text = `pointer<${element}>(${words}, ${kind === 'input' ? index : program.inputs.length + index})`;
    for (let d = 0; d < program.outerRank; d++) {
      const word = kind === 'input' ? parameters.inputRowStride(index, d) : parameters.outputRowStride(index, d);
      text += ` + offset(${words}, ${word}, r${d})`;
    }
    return text;
  }

  /** Text of a node's value. */
  #value(index: number): string {
    const node = this.#program.nodes[index]!;
    return node.kind === 'constant' ? literal(node.value, node.dtype) : `v${index}`;
  }

  #define(index: number, text: string): void {
    this.#lines.line(`const ${VALUE_TYPES[this.#program.nodes[index]!.dtype]} v${index} = ${text};`);
    this.#known.add(index);
  }

  #defineMap(index: number, node: ProgramNode & { kind: 'map' }): void {
    const args = node.args.map((arg) => this.#value(arg)).join(', ');
    if (node.op !== 'cast') this.#define(index, `map_${node.op.replaceAll('-', '_')}(${args})`);
    // A bool is promoted by hand: C++ would find both overloads as good.
    else {
      const from = operandType(this.#program.nodes, node) === 'bool' ? `static_cast<int32_t>(${args})` : args;
      this.#define(index, `map_to_${node.dtype === 'float32' ? 'float' : node.dtype === 'int32' ? 'int' : 'bool'}(${from})`);
    }
  }

  /** One row: stage 0, pass 0, stage 1, pass 1, ...; then its row outputs. */
  #emitRow(): void {
    const { line, open, close } = this.#writers();
    const program = this.#program;
    const analysis = this.#analysis;
    const outside = this.#known;
    this.#known = new Set(outside);
    if (!this.#rereads) this.#emitAddresses();
    for (let stage = 0; stage <= analysis.passes; stage++) {
      for (const i of stageOf(program, analysis, stage)) this.#emitUniform(i);
      if (stage < analysis.passes) this.#emitPass(contentsOf(program, analysis, stage));
    }
    if (this.#hasRowOutput) {
      // A row output may lie in the place of an input that has one element a row.
      const reads = program.nodes.some((node, i) => node.kind === 'input' && analysis.live[i] && analysis.uniform[i]);
      if (reads && (!analysis.hasReduction || this.#lazy)) line('settle(group);');
      open(program.outerRank === 0 ? 'if (tile == 0 && threadIdx.x == 0)' : 'if (active && group.lane == 0)');
      program.outputs.forEach((output, o) => {
        if (output.space !== 'row') return;
        this.#ensure(output.node);
        const target = `pointer<${ELEMENT_TYPES[output.dtype]}>(words, ${program.inputs.length + o})`;
        line(`${target}[${program.outerRank === 0 ? '0' : 'row'}] = ${this.#stored(o)};`);
      });
      close();
    }
    this.#known = outside;
  }

  #emitAddresses(): void {
    const { line } = this.#writers();
    const program = this.#program;
    const analysis = this.#analysis;
    const { nodes } = program;
    const seen = new Set<number>();
    const contiguous: string[] = [];
    nodes.forEach((node, i) => {
      if (node.kind !== 'input' || !analysis.live[i] || analysis.uniform[i] || seen.has(node.input)) return;
      seen.add(node.input);
      line(`const ${this.#elementType(node)} *p${node.input} = ${this.#address('input', node.input)};`);
      if (program.inputs[node.input]!.columnStride === 'strided') {
        line(`const int32_t c${node.input} = wrapped(words[${this.#parameters.columnStride(node.input)}]);`);
      } else contiguous.push(`is_aligned(p${node.input})`);
    });
    program.outputs.forEach((output, o) => {
      if (output.space !== 'full') return;
      line(`${ELEMENT_TYPES[output.dtype]} *q${o} = ${this.#address('output', o)};`);
      contiguous.push(`is_aligned(q${o})`);
    });
    if (this.#fours > 0 && contiguous.length > 0) line(`const bool aligned = ${contiguous.join(' && ')};`);
  }

  #emitUniform(index: number): void {
    const node = this.#program.nodes[index]!;
    if (this.#known.has(index) || node.kind === 'constant') return;
    if (node.kind === 'map') {
      for (const arg of node.args) this.#ensure(arg);
      this.#defineMap(index, node);
    } else if (!this.#lazy) this.#ensure(index);
  }

  /** Defines an input or scalar, where that has not been done. */
  #ensure(index: number): void {
    const node = this.#program.nodes[index]!;
    if (this.#known.has(index) || node.kind === 'constant' || node.kind === 'reduce') return;
    if (node.kind === 'scalar') this.#define(index, this.#scalar(node));
    if (node.kind !== 'input') return;
    const first = this.#loads.indexOf(index);
    if (first < 0) this.#load(index, node);
    else for (const i of this.#loads.slice(first, first + MAX_LOADS)) this.#load(i, this.#program.nodes[i] as typeof node);
  }

  #load(index: number, node: ProgramNode & { kind: 'input' }): void {
    if (this.#known.has(index)) return;
    const at = this.#analysis.uniform[index] ? '0' : this.#column(node.input);
    const kept = !this.#rereads && !this.#analysis.uniform[index];
    const row = kept ? `p${node.input}` : `(${this.#address('input', node.input)})`;
    this.#define(index, this.#loaded(node, `${row}[${at}]`));
  }

  #column(input: number): string {
    if (this.#program.inputs[input]!.columnStride !== 'strided') return 'column';
    return this.#rereads
      ? `offset(${this.#words}, ${this.#parameters.columnStride(input)}, column)`
      : `static_cast<int64_t>(c${input}) * column`;
  }

  /** The C++ type of an input's elements. */
  #elementType(node: ProgramNode & { kind: 'input' }): string {
    return ELEMENT_TYPES[this.#program.inputs[node.input]!.dtype];
  }

  /** The value of a node whose element in memory this is. */
  #loaded(node: ProgramNode & { kind: 'input' }, element: string): string {
    const { dtype } = this.#program.inputs[node.input]!;
    return isHalf(dtype) ? `widened(${element})` : dtype === 'bool' ? `${element} != 0` : element;
  }

  /** The element of an output. */
  #stored(output: number): string {
    const { node, dtype } = this.#program.outputs[output]!;
    const value = this.#value(node);
    return isHalf(dtype) ? `to_${dtype}(${value})` : dtype === 'bool' ? `${value} ? 1 : 0` : value;
  }

  #emitPass(pass: PassContents): void {
    const { line } = this.#writers();
    const { nodes } = this.#program;
    if (pass.full.length === 0 && pass.reductions.length === 0 && !pass.stores) return;
    for (const i of pass.reductions) {
      const node = nodes[i] as ProgramNode & { kind: 'reduce' };
      line(`${reductionType(node.op, nodes[node.arg]!.dtype)} fold${i};`);
    }
    const outside = this.#known;
    this.#known = new Set(outside);
    if (this.#fours > 0) this.#emitFours(pass);
    else this.#emitSingles(pass, 'begin + group.lane');
    this.#known = outside;
    for (const i of pass.reductions) {
      line(`reduce(group, fold${i});`);
      this.#define(i, `fold${i}.result()`);
    }
  }

  #folds(pass: PassContents, column: string): string[] {
    return pass.reductions.map(
      (i) => `fold${i}.fold(${this.#value((this.#program.nodes[i] as ProgramNode & { kind: 'reduce' }).arg)}, ${column});`,
    );
  }

  #emitSingles(pass: PassContents, first: string): void {
    const { line, open, close } = this.#writers();
    const program = this.#program;
    open(`for (uint32_t column = ${first}; column < end; column += group.lanes)`);
    if (this.#rereads) {
      line('const uint32_t *again = reread(words);');
      this.#words = 'again';
      this.#loads = this.#loadOrder(pass);
    }
    for (const i of pass.full) {
      const node = program.nodes[i]!;
      if (node.kind !== 'map') continue;
      for (const arg of node.args) this.#ensure(arg);
      this.#defineMap(i, node);
    }
    for (const i of pass.reductions) this.#ensure((program.nodes[i] as ProgramNode & { kind: 'reduce' }).arg);
    for (const fold of this.#folds(pass, 'column')) line(fold);
    if (pass.stores) {
      // All of them are read before one is written.
      for (const output of program.outputs) if (output.space === 'full') this.#ensure(output.node);
      program.outputs.forEach((output, o) => {
        if (output.space !== 'full') return;
        const row = this.#rereads ? `(${this.#address('output', o)})` : `q${o}`;
        line(`${row}[column] = ${this.#stored(o)};`);
      });
    }
    this.#words = 'words';
    this.#loads = [];
    close();
  }

  #loadOrder(pass: PassContents): number[] {
    const { nodes } = this.#program;
    const order = new Set<number>();
    for (const i of pass.full) {
      const node = nodes[i]!;
      if (node.kind !== 'map') continue;
      for (const arg of node.args) if (nodes[arg]!.kind === 'input' && !this.#analysis.uniform[arg]) order.add(arg);
    }
    return [...order];
  }

  /** Whole turns of the group, then fours of columns that are left, then columns. */
  #emitFours(pass: PassContents): void {
    const { line, open, close } = this.#writers();
    const known = this.#known;
    line('{');
    this.#lines.indent(() => {
      if (this.#fours > 1) {
        const turn = `${4 * this.#fours} * group.lanes`;
        line('uint32_t next = begin;');
        open(`for (; end - next >= ${turn}; next += ${turn})`);
        this.#known = new Set(known);
        this.#emitTurn(pass, this.#fours, 'next + 4 * (u * group.lanes + group.lane)');
        close();
      } else line('const uint32_t next = begin;');
      open('for (uint32_t first = next + 4 * group.lane; first + 3 < end; first += 4 * group.lanes)');
      this.#known = new Set(known);
      this.#emitTurn(pass, 1, '');
      close();
      this.#known = new Set(known);
      this.#emitSingles(pass, 'end - (end - next) % 4 + group.lane');
    });
    line('}');
  }

  /** `fours` fours of columns: all loads, then for each four what is computed of it. Of four `u` the first column is `first`. */
  #emitTurn(pass: PassContents, fours: number, first: string): void {
    const { line, open, close } = this.#writers();
    const program = this.#program;
    const outputs = program.outputs.flatMap((output, o) => (pass.stores && output.space === 'full' ? [o] : []));
    const inputs = pass.full.filter((i) => program.nodes[i]!.kind === 'input');
    const inputOf = (i: number) => (program.nodes[i] as ProgramNode & { kind: 'input' }).input;
    const [strided, contiguous] = [true, false].map((is) =>
      inputs.filter((i) => (program.inputs[inputOf(i)]!.columnStride === 'strided') === is),
    ) as [number[], number[]];
    const [u, column] = fours > 1 ? ['u', 'column'] : ['0', 'first'];
    const forEachFour = (emit: () => void, usesColumn = true) => {
      if (fours === 1) {
        emit();
        return;
      }
      this.#lines.directive('#pragma unroll');
      open(`for (uint32_t u = 0; u < ${fours}; u++)`);
      if (usesColumn) line(`const uint32_t column = ${first};`);
      emit();
      close();
    };
    for (const i of inputs) line(`Four<${this.#elementType(program.nodes[i] as ProgramNode & { kind: 'input' })}> x${i}[${fours}];`);
    for (const o of outputs) line(`Four<${ELEMENT_TYPES[program.outputs[o]!.dtype]}> y${o}[${fours}];`);
    const eitherWay = (emit: (how: string) => void) => {
      open('if (aligned)');
      forEachFour(() => emit(''));
      this.#lines.reopen('else');
      forEachFour(() => emit('_apart'));
      close();
    };
    if (contiguous.length > 0) {
      eitherWay((how) => {
        for (const i of contiguous) line(`x${i}[${u}] = load_four${how}(p${inputOf(i)}, ${column});`);
      });
    }
    if (strided.length > 0) {
      forEachFour(() => {
        for (const i of strided) line(`x${i}[${u}] = load_strided(p${inputOf(i)}, ${column}, c${inputOf(i)});`);
      });
    }
    forEachFour(() => {
      this.#lines.directive('#pragma unroll');
      open('for (uint32_t l = 0; l < 4; l++)');
      for (const i of pass.full) {
        const node = program.nodes[i]!;
        if (node.kind === 'map') this.#defineMap(i, node);
        else this.#define(i, this.#loaded(node as typeof node & { kind: 'input' }, `x${i}[${u}].v[l]`));
      }
      for (const fold of this.#folds(pass, `${column} + l`)) line(fold);
      for (const o of outputs) line(`y${o}[${u}].v[l] = ${this.#stored(o)};`);
      close();
    }, pass.reductions.length > 0);
    if (outputs.length > 0) {
      eitherWay((how) => {
        for (const o of outputs) line(`store_four${how}(q${o}, ${column}, y${o}[${u}]);`);
      });
    }
  }
}
