import { type Program, type ProgramNode, programLayout } from '../../../ops/program.ts';
import { CLASS, fits, HEADER, HEADER_WORDS, MAX_INDEX, MAX_REGISTER, ROW_TARGET, storage, VERSION } from './bytecode.ts';
import { constantBits, operationOf } from './operations.ts';
import { opcode } from './opcodes.ts';

const LOAD = opcode('load');
const STORE = opcode('store');
/** An operand that is not there. */
const NOTHING = CLASS.CONSTANT << 14;
/** The stages before and after the only pass, and that. */
const PARTS = 3;

/** A program on its way to bytecode. A plain object and loops: of classes, closures and iterators more has to be fetched. */
interface Encoding {
  readonly nodes: readonly ProgramNode[];
  /** By node, the last node that reads it, or past the end for an output; -1: nobody. */
  readonly reads: readonly number[];
  /** Of inputs and operations that are loaded or computed by now; -1: it is not. */
  readonly registers: number[];
  /** By register, the last node that reads what it holds. */
  readonly busy: number[];
  readonly constants: number[];
  readonly code: number[];
}

/**
 * Bytecode of a program that is one pass with empty stages around it, as nearly all that inject() makes are: no reduction,
 * and nothing that has one value for a row but constants and scalars. Word for word what the general encoder makes of it;
 * this one is there because inject()'s caller waits for it, and runs it so seldom that what it costs is to fetch from
 * memory what it touches. Undefined for any other program, and for one that does not fit.
 */
export function encodeStraight(program: Program): Uint32Array | undefined {
  const { nodes, inputs, outputs } = program;
  for (let i = 0; i < inputs.length; i++) if (inputs[i]!.columnStride === 0) return undefined;
  const reads: number[] = [];
  const registers: number[] = [];
  for (let i = 0; i < nodes.length; i++) {
    reads.push(-1);
    registers.push(-1);
  }
  for (let o = 0; o < outputs.length; o++) {
    const output = outputs[o]!;
    if (output.space !== 'full' || isRow(nodes[output.node]!)) return undefined;
    reads[output.node] = nodes.length;
  }
  if (!findReads(nodes, reads)) return undefined;
  const encoding: Encoding = { nodes, reads, registers, busy: [], constants: [], code: [] };
  for (let i = 0; i < nodes.length; i++) {
    const node = nodes[i]!;
    if (node.kind === 'map' && reads[i]! >= 0) encodeMap(encoding, node, i);
  }
  // All inputs are read before an output is written: one may lie in the place of the other.
  for (let o = 0; o < outputs.length; o++) load(encoding, outputs[o]!.node, nodes.length);
  for (let o = 0; o < outputs.length; o++)
    encoding.code.push(STORE | (ROW_TARGET << 8) | (o << 16), operand(encoding, outputs[o]!.node) | (NOTHING << 16));
  return wordsOf(program, encoding);
}

const isRow = (node: ProgramNode): boolean => node.kind === 'constant' || node.kind === 'scalar';

/** Finds which node reads each one last, given what outputs read. False: the program is not one pass. */
function findReads(nodes: readonly ProgramNode[], reads: number[]): boolean {
  for (let i = nodes.length - 1; i >= 0; i--) {
    const node = nodes[i]!;
    if (reads[i]! < 0) continue;
    if (node.kind === 'reduce') return false;
    if (node.kind !== 'map') continue;
    const { args } = node;
    let rows = 0;
    for (let k = 0; k < args.length; k++) {
      const arg = args[k]!;
      if (isRow(nodes[arg]!)) rows++;
      else if (reads[arg]! < 0) reads[arg] = i;
    }
    // It has one value for the row, and belongs into the stage.
    if (rows === args.length) return false;
  }
  return true;
}

function encodeMap(encoding: Encoding, node: ProgramNode & { kind: 'map' }, at: number): void {
  const { args } = node;
  for (let k = 0; k < args.length; k++) load(encoding, args[k]!, at);
  const a = operand(encoding, args[0]!);
  const b = args.length > 1 ? operand(encoding, args[1]!) : NOTHING;
  const c = args.length > 2 ? operand(encoding, args[2]!) : 0;
  // What this node reads last makes room for its result: each element is read before it is written.
  const into = takeRegister(encoding, at, at + 1);
  encoding.code.push(operationOf(encoding.nodes, node) | (into << 8) | (c << 16), a | (b << 16));
}

/** Loads an input that node `at` reads, where that has not been done. */
function load(encoding: Encoding, index: number, at: number): void {
  const node = encoding.nodes[index]!;
  if (node.kind !== 'input' || encoding.registers[index]! >= 0) return;
  encoding.code.push(LOAD | (takeRegister(encoding, index, at) << 8) | (node.input << 16), NOTHING | (NOTHING << 16));
}

/** The lowest register that nobody reads from node `free` on. */
function takeRegister({ busy, reads, registers }: Encoding, index: number, free: number): number {
  let register = 0;
  while (register < busy.length && busy[register]! >= free) register++;
  busy[register] = reads[index]!;
  registers[index] = register;
  return register;
}

function operand({ nodes, registers, constants }: Encoding, index: number): number {
  const node = nodes[index]!;
  if (node.kind === 'scalar') return (CLASS.SCALAR << 14) | node.scalar;
  if (node.kind !== 'constant') return (CLASS.ELEMENT << 14) | registers[index]!;
  const bits = constantBits(node.value, node.dtype);
  let place = 0;
  while (place < constants.length && constants[place] !== bits) place++;
  constants[place] = bits;
  return (CLASS.CONSTANT << 14) | place;
}

function wordsOf(program: Program, { busy, constants, code }: Encoding): Uint32Array | undefined {
  const { inputs, outputs, scalars, outerRank } = program;
  const registers = busy.length;
  const layout = programLayout(program);
  const parameters = 2 * layout.pointers + layout.words;
  const ends = HEADER_WORDS + inputs.length + outputs.length;
  const length = ends + PARTS + constants.length + code.length;
  if (registers > MAX_REGISTER || inputs.length > MAX_INDEX || outputs.length > MAX_INDEX) return undefined;
  if (scalars > MAX_INDEX || constants.length > MAX_INDEX) return undefined;
  if (!fits(parameters, length, registers + outerRank, false)) return undefined;
  const words = new Uint32Array(length);
  words[HEADER.VERSION] = VERSION;
  words[HEADER.WORDS] = length;
  words[HEADER.INPUTS] = inputs.length;
  words[HEADER.OUTPUTS] = outputs.length;
  words[HEADER.RANK] = outerRank;
  words[HEADER.PASSES] = 1;
  words[HEADER.CONSTANTS] = constants.length;
  words[HEADER.SCALARS] = scalars;
  words[HEADER.ELEMENTS] = registers;
  // The row's coordinates.
  words[HEADER.ROWS] = outerRank;
  words[HEADER.PARAMETERS] = parameters;
  let at = HEADER_WORDS;
  let strided = 0;
  for (let i = 0; i < inputs.length; i++) {
    const input = inputs[i]!;
    words[at++] = storage(input.dtype) + (input.columnStride === 'strided' ? 2 + strided++ : input.columnStride);
  }
  for (let o = 0; o < outputs.length; o++) words[at++] = storage(outputs[o]!.dtype) + 1 + o;
  // The first of the parts is empty, and so is the last.
  words[at + 1] = words[at + 2] = code.length / 2;
  at += PARTS;
  for (let i = 0; i < constants.length; i++) words[at++] = constants[i]!;
  for (let i = 0; i < code.length; i++) words[at++] = code[i]!;
  return words;
}
