import type { Program } from '../../../ops/program.ts';
import { programParameters } from '../codegen/parameters.ts';
import {
  CLASS,
  FLAG_REDUCES,
  FLAG_ROW_OUTPUTS,
  fits,
  HEADER,
  HEADER_WORDS,
  MAX_REGISTER,
  ROW_TARGET,
  storage,
  VERSION,
} from './bytecode.ts';
import { operationKind, type OperationKind, OPCODES } from './opcodes.ts';

/** Operands that each kind of operation reads, besides its target. */
const OPERANDS: Readonly<Record<OperationKind, number>> = {
  ...{ load: 0, 'load-row': 0, store: 1, 'store-row': 1, settle: 0, unary: 1, binary: 2, select: 3, begin: 0, fold: 1, finish: 1 },
};

/**
 * Decides whether the interpreter can run these words on the parameter block of this program without reading or writing
 * anything but the block, the bytecode, its registers and the operands that the block names. The reason why not, or
 * undefined. (It does not say that they compute what the program does.)
 */
export function checkBytecode(words: Uint32Array, program: Program): string | undefined {
  const header = (field: number): number => words[field] ?? 0;
  if (words.length < HEADER_WORDS || header(HEADER.VERSION) !== VERSION) return 'it is no bytecode of this version';
  if (header(HEADER.WORDS) !== words.length) return `it says that it has ${header(HEADER.WORDS)} words, and has ${words.length}`;
  const { size: parameters } = programParameters(program);
  const [inputs, outputs] = [program.inputs.length, program.outputs.length];
  const expected: readonly (readonly [string, number, number])[] = [
    ['inputs', header(HEADER.INPUTS), inputs],
    ['outputs', header(HEADER.OUTPUTS), outputs],
    ['outer dimensions', header(HEADER.RANK), program.outerRank],
    ['scalars', header(HEADER.SCALARS), program.scalars],
    ['words of parameters', header(HEADER.PARAMETERS), parameters],
  ];
  for (const [what, actual, wanted] of expected) if (actual !== wanted) return `it has ${actual} ${what}, the program ${wanted}`;
  const [passes, constants] = [header(HEADER.PASSES), header(HEADER.CONSTANTS)];
  const [elements, rows] = [header(HEADER.ELEMENTS), header(HEADER.ROWS)];
  if (elements > MAX_REGISTER || rows > MAX_REGISTER || rows < program.outerRank) return 'it has too many registers, or too few';
  const flags = header(HEADER.FLAGS);
  const rowOutputs = program.outputs.some(({ space }) => space === 'row');
  if ((flags & ~(FLAG_REDUCES | FLAG_ROW_OUTPUTS)) !== 0 || ((flags & FLAG_ROW_OUTPUTS) !== 0) !== rowOutputs) return 'its flags are wrong';
  const reduces = (flags & FLAG_REDUCES) !== 0;
  if (!fits(parameters, words.length, elements + rows, reduces)) return 'it does not fit into shared memory';

  let strided = 0;
  for (let i = 0; i < inputs; i++) {
    const { columnStride, dtype } = program.inputs[i]!;
    if (words[HEADER_WORDS + i] !== storage(dtype) + (columnStride === 'strided' ? 2 + strided++ : columnStride))
      return `input ${i} has another column stride or dtype`;
  }
  let full = 0;
  for (let o = 0; o < outputs; o++) {
    const { space, dtype } = program.outputs[o]!;
    if (words[HEADER_WORDS + inputs + o] !== storage(dtype) + (space === 'full' ? ++full : 0))
      return `output ${o} has another space or dtype`;
  }
  // Before any arithmetic with them, since they may be as large as a word.
  if (passes > words.length || constants > words.length) return 'it ends before its instructions';
  const ends = HEADER_WORDS + inputs + outputs;
  const first = ends + 2 * passes + 1 + constants;
  const count = (words.length - first) / 2;
  if (count < 0 || !Number.isInteger(count)) return 'it ends within its instructions';
  const limits = { elements, rows, constants, scalars: program.scalars };
  let at = 0;
  for (let part = 0; part <= 2 * passes; part++) {
    const end = words[ends + part]!;
    if (end < at || end > count) return `part ${part} ends at instruction ${end}`;
    for (; at < end; at++) {
      const wrong = checkInstruction(words[first + 2 * at]!, words[first + 2 * at + 1]!, part % 2 === 1, reduces, program, limits);
      if (wrong !== undefined) return `instruction ${at} ${wrong}`;
    }
  }
  return at === count ? undefined : `instructions from ${at} on belong to no part`;
}

interface Limits {
  readonly elements: number;
  readonly rows: number;
  readonly constants: number;
  readonly scalars: number;
}

function checkInstruction(
  high: number,
  low: number,
  inPass: boolean,
  reduces: boolean,
  program: Program,
  limits: Limits,
): string | undefined {
  const kind = operationKind(high & 0xff);
  if (kind === undefined) return `has operation ${high & 0xff} of ${OPCODES.length}`;
  const [target, extra] = [(high >>> 8) & 0xff, high >>> 16];
  const operands = [low & 0xffff, low >>> 16, extra].slice(0, OPERANDS[kind]);
  for (const operand of operands) {
    const [of, index] = [operand >>> 14, operand & 0x3fff];
    const limit = [limits.elements, limits.rows, limits.constants, limits.scalars][of] as number;
    if (index >= limit) return `reads place ${index} of ${limit}`;
    if (of === CLASS.ELEMENT && !inPass) return 'reads an element outside of a pass';
  }
  const toRow = (target & ROW_TARGET) !== 0;
  const register = target & ~ROW_TARGET;
  const writes = kind !== 'store' && kind !== 'store-row' && kind !== 'settle';
  const states = kind === 'begin' || kind === 'fold';
  if (writes) {
    if (register + (states ? 1 : 0) >= (toRow ? limits.rows : limits.elements)) return `writes register ${register}`;
    // The coordinates of the row decide what loads and stores reach.
    if (toRow && register < program.outerRank) return 'writes a coordinate';
    if (toRow ? inPass && kind !== 'fold' : !inPass)
      return toRow ? 'writes a row register in a pass' : 'writes an element outside of a pass';
    if (!toRow && (states || kind === 'finish')) return 'has the state of a reduction in an element';
  }
  switch (kind) {
    case 'load':
    case 'load-row':
      if (extra >= program.inputs.length) return `loads input ${extra}`;
      if (kind === 'load' && !inPass) return 'loads an element outside of a pass';
      return undefined;
    case 'store':
      return !inPass || program.outputs[extra]?.space !== 'full' ? `stores output ${extra} where it must not` : undefined;
    case 'store-row':
      return inPass || program.outputs[extra]?.space !== 'row' ? `stores output ${extra} where it must not` : undefined;
    case 'settle':
    case 'begin':
      return inPass ? 'belongs into a stage' : undefined;
    case 'fold':
      return inPass ? undefined : 'belongs into a pass';
    case 'finish': {
      if (inPass || !reduces) return 'belongs into a stage of a program that reduces';
      const state = low & 0xffff;
      return state >>> 14 !== CLASS.ROW || (state & 0x3fff) + 1 >= limits.rows ? 'finishes what is no state' : undefined;
    }
    default:
      return undefined;
  }
}
