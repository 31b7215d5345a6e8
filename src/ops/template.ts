import { GpuosError } from '../errors.ts';
import { nearMatchHint } from '../spelling.ts';
import type { ComputeType } from './dtype.ts';
import { MAPS, mapDType } from './map.ts';
import type { MapName, Program, ProgramInput, ProgramNode } from './program.ts';
import { formatValue } from './shape.ts';

/**
 * The curated templates that inject() takes. Free-form code is never compiled: a template's parameters
 * are typed and bounded, and what they may say is a formula over the element-wise operations of the
 * library.
 */
export type Template = 'map';

export interface TemplateParameters {
  /** Names of the inputs, in the order of the task's pointers; the output's pointer comes after them. */
  readonly inputs: readonly string[];
  /**
   * A formula over the inputs: numbers, + - * / unary minus, comparisons, parentheses, and calls of
   * element-wise operations by name with `_` for `-` (`gelu_tanh(x)`, `select(x > 0, x, 0.1 * x)`).
   */
  readonly expression: string;
  readonly name?: string;
}

const PARAMETERS: readonly string[] = ['inputs', 'expression', 'name'];
const MAX_INPUTS = 16;
const MAX_LENGTH = 4096;
const MAX_NODES = 256;
const MAX_DEPTH = 64;
const MAX_NAME = 32;
const OPERATOR_NAME = /^[A-Za-z][\w-]{0,63}$/;

/** Operations as they are spelt in an expression, where `-` is a minus. */
const CALLABLE: ReadonlyMap<string, MapName> = new Map(
  (Object.keys(MAPS) as MapName[]).filter((name) => name !== 'cast').map((name) => [name.replaceAll('-', '_'), name]),
);

/** Characters that a text is read by, and what else a token can be. */
const [TAB, RETURN, SPACE, NOT, OPEN, CLOSE, TIMES, PLUS, COMMA, MINUS] = [9, 13, 32, 33, 40, 41, 42, 43, 44, 45];
const [POINT, DIVIDE, LESS, EQUAL, GREATER] = [46, 47, 60, 61, 62];
const [END, NUMBER, WORD] = [-1, -2, -3];

/** How tightly operators bind. */
const COMPARES = 1;
const ADDS = 2;
const MULTIPLIES = 3;

const isDigit = (code: number): boolean => code >= 48 && code <= 57;
// With 32 a letter is a small one; nothing else becomes one.
const isLetter = (code: number): boolean => (code | 32) >= 97 && (code | 32) <= 122 && code < 128;

/** Where the name that begins at `from` ends; there, if none does. */
function nameEnd(text: string, from: number): number {
  if (!isLetter(text.charCodeAt(from))) return from;
  let at = from + 1;
  for (let code = text.charCodeAt(at); isLetter(code) || isDigit(code) || code === 95; code = text.charCodeAt(at)) at++;
  return at;
}

function digitsEnd(text: string, from: number): number {
  let at = from;
  while (isDigit(text.charCodeAt(at))) at++;
  return at;
}

/** Where the number that begins at `from` ends, with a digit or a point before one. */
function numberEnd(text: string, from: number): number {
  let at = digitsEnd(text, from);
  if (text.charCodeAt(at) === POINT) at = digitsEnd(text, at + 1);
  if ((text.charCodeAt(at) | 32) !== 101) return at;
  const sign = text.charCodeAt(at + 1);
  const digits = sign === PLUS || sign === MINUS ? at + 2 : at + 1;
  return isDigit(text.charCodeAt(digits)) ? digitsEnd(text, digits) : at;
}

const INPUT: ProgramInput = { dtype: 'float32', columnStride: 1 };

const refuse = (message: string): GpuosError => new GpuosError('GPUOS_BAD_TEMPLATE', message);

/** The program that a template stands for. Inputs and output are contiguous float32 of the same length. @throws GPUOS_BAD_TEMPLATE */
export function programFromTemplate(template: Template, parameters: TemplateParameters): { program: Program; name: string } {
  if (template !== 'map') throw refuse(`There is no template ${formatValue(template)}; there is: map.`);
  if (typeof parameters !== 'object' || parameters === null) throw refuse('Template map needs parameters {inputs, expression}.');
  for (const key of Object.keys(parameters)) {
    if (!PARAMETERS.includes(key)) throw refuse(`Template map has no parameter "${key.slice(0, 64)}".${nearMatchHint(key, PARAMETERS)}`);
  }
  const { inputs, expression, name } = parameters;
  if (!Array.isArray(inputs) || inputs.length < 1 || inputs.length > MAX_INPUTS)
    throw refuse(`inputs has to be a list of 1 to ${MAX_INPUTS} names.`);
  // By index: forEach would pass over a hole.
  for (let i = 0; i < inputs.length; i++) {
    const input: unknown = inputs[i];
    if (typeof input !== 'string' || input.length > MAX_NAME || input.length === 0 || nameEnd(input, 0) < input.length)
      throw refuse(`Input ${i} is not a name of letters, digits and _.`);
    if (inputs.indexOf(input) !== i) throw refuse(`Input "${input}" is named twice.`);
    if (CALLABLE.has(input) || input === 'cast') throw refuse(`Input "${input}" has the name of an operation.`);
  }
  if (typeof expression !== 'string' || expression.length > MAX_LENGTH)
    throw refuse(`expression has to be a text of at most ${MAX_LENGTH} characters.`);
  if (name !== undefined && (typeof name !== 'string' || !OPERATOR_NAME.test(name)))
    throw refuse('name has to be letters, digits, - and _, at most 64.');
  const nodes = readExpression(inputs, expression);
  const last = nodes.length - 1;
  if (nodes[last]?.dtype !== 'float32')
    throw refuse('The expression gives a truth value; use select(condition, a, b) to make it a number.');
  return {
    name: name ?? `map:${expression.length > 40 ? `${expression.slice(0, 37)}...` : expression}`,
    program: {
      inputs: inputs.map(() => INPUT),
      scalars: 0,
      nodes,
      outputs: [{ node: last, dtype: 'float32', space: 'full' }],
      outerRank: 0,
    },
  };
}

/** An expression that is being read. The token at hand is its first character's code, or NUMBER, WORD or END, and where it stands. */
interface Reading {
  readonly inputs: readonly string[];
  readonly text: string;
  readonly nodes: ProgramNode[];
  /** By input, its node; -1: there is none yet. */
  readonly inputNodes: number[];
  depth: number;
  token: number;
  start: number;
  end: number;
}

/**
 * Recursive descent, by how tightly operators bind, from characters to nodes in one pass. An expression is read once, by code
 * that has not been used for long: what it costs is to fetch what it touches from memory. So a plain object, few functions
 * and loops: of classes, closures and iterators more has to be fetched.
 */
function readExpression(inputs: readonly string[], text: string): ProgramNode[] {
  const inputNodes: number[] = [];
  for (let i = 0; i < inputs.length; i++) inputNodes.push(-1);
  const reading: Reading = { inputs, text, nodes: [], inputNodes, depth: 0, token: END, start: 0, end: 0 };
  advance(reading);
  if (reading.token === END) throw refuse('The expression is empty.');
  const last = readValue(reading);
  if (reading.token !== END) throw refuse(`The expression ends before "${found(reading)}".`);
  // A bare input or constant still has to be copied to the output.
  if (reading.nodes[last]!.kind !== 'map') addMap(reading, 'add', [last, addConstant(reading, 0)]);
  return reading.nodes;
}

const found = (reading: Reading): string => reading.text.slice(reading.start, reading.end);

const isBlank = (code: number): boolean =>
  code === SPACE || (code >= TAB && code <= RETURN) || (code > 127 && /\s/.test(String.fromCharCode(code)));

/** To the next token. */
function advance(reading: Reading): void {
  const { text } = reading;
  let at = reading.end;
  let code = text.charCodeAt(at);
  while (isBlank(code)) code = text.charCodeAt(++at);
  reading.start = at;
  if (at >= text.length) reading.token = END;
  else if (isLetter(code)) {
    reading.token = WORD;
    at = nameEnd(text, at);
  } else if (isDigit(code) || (code === POINT && isDigit(text.charCodeAt(at + 1)))) {
    reading.token = NUMBER;
    at = numberEnd(text, at);
  } else {
    reading.token = code;
    at = symbolEnd(text, at, code);
  }
  reading.end = at;
}

function symbolEnd(text: string, at: number, code: number): number {
  // ( ) * + , - /
  if (code >= OPEN && code <= DIVIDE && code !== POINT) return at + 1;
  const equal = text.charCodeAt(at + 1) === EQUAL;
  if (equal && (code === LESS || code === GREATER || code === EQUAL || code === NOT)) return at + 2;
  if (code === LESS || code === GREATER) return at + 1;
  throw refuse(`The expression has something unexpected at character ${at + 1}: "${text.slice(at, at + 10)}".`);
}

function expectToken(reading: Reading, token: number): void {
  if (reading.token !== token) {
    const where = reading.token === END ? 'at its end' : `before "${found(reading)}"`;
    throw refuse(`The expression lacks a "${String.fromCharCode(token)}" ${where}.`);
  }
  advance(reading);
}

function addNode({ nodes }: Reading, node: ProgramNode): number {
  if (nodes.length >= MAX_NODES) throw refuse(`The expression has more than ${MAX_NODES} operations.`);
  return nodes.push(node) - 1;
}

function addConstant(reading: Reading, value: number): number {
  return addNode(reading, { kind: 'constant', value, dtype: 'float32' });
}

function addMap(reading: Reading, op: MapName, args: readonly number[]): number {
  const operands: ProgramNode[] = [];
  for (let i = 0; i < args.length; i++) operands.push(reading.nodes[args[i]!]!);
  let dtype: ComputeType;
  try {
    dtype = mapDType(op, operands) as ComputeType;
  } catch (cause) {
    throw refuse(`In the expression, ${(cause as Error).message.split(' [')[0]}`);
  }
  return addNode(reading, { kind: 'map', op, args, dtype });
}

/** A whole expression, or what stands in parentheses or between commas. */
function readValue(reading: Reading): number {
  if (++reading.depth > MAX_DEPTH) throw refuse(`The expression is nested more than ${MAX_DEPTH} deep.`);
  const value = readOperations(reading, COMPARES);
  reading.depth--;
  return value;
}

/** Operations that bind at least so tightly, from the left. */
function readOperations(reading: Reading, least: number): number {
  let left = readUnary(reading);
  for (;;) {
    const op = operatorAt(reading);
    if (op === undefined) return left;
    const binds = op === 'mul' || op === 'div' ? MULTIPLIES : op === 'add' || op === 'sub' ? ADDS : COMPARES;
    if (binds < least) return left;
    advance(reading);
    left = addMap(reading, op, [left, readOperations(reading, binds + 1)]);
    // A comparison's result is not compared.
    if (binds === COMPARES) return left;
  }
}

/** What the token at hand does between two values; undefined: it is no such operator. */
function operatorAt({ token, start, end }: Reading): MapName | undefined {
  switch (token) {
    case PLUS:
      return 'add';
    case MINUS:
      return 'sub';
    case TIMES:
      return 'mul';
    case DIVIDE:
      return 'div';
    case LESS:
      return end - start === 2 ? 'less-equal' : 'less';
    case GREATER:
      return end - start === 2 ? 'greater-equal' : 'greater';
    case EQUAL:
      return 'equal';
    case NOT:
      return 'not-equal';
    default:
      return undefined;
  }
}

function readUnary(reading: Reading): number {
  let negative = false;
  while (reading.token === MINUS) {
    advance(reading);
    negative = !negative;
  }
  const value = readPrimary(reading);
  return negative ? addMap(reading, 'neg', [value]) : value;
}

function readPrimary(reading: Reading): number {
  const { token } = reading;
  if (token === END) throw refuse('The expression breaks off.');
  if (token === OPEN) {
    advance(reading);
    const value = readValue(reading);
    expectToken(reading, CLOSE);
    return value;
  }
  const text = found(reading);
  if (token !== NUMBER && token !== WORD) throw refuse(`The expression has a "${text}" where a value should be.`);
  advance(reading);
  if (token === WORD) return reading.token === OPEN ? readCall(reading, text) : readInput(reading, text);
  const value = Number(text);
  if (!Number.isFinite(Math.fround(value))) throw refuse(`${text} is past the range of float32.`);
  return addConstant(reading, value);
}

function readInput(reading: Reading, name: string): number {
  const { inputs, inputNodes } = reading;
  const input = inputs.indexOf(name);
  if (input < 0) throw refuse(`"${name}" is not an input.${nearMatchHint(name, inputs)}`);
  if (inputNodes[input]! < 0) inputNodes[input] = addNode(reading, { kind: 'input', input, dtype: 'float32' });
  return inputNodes[input]!;
}

function readCall(reading: Reading, name: string): number {
  if (name === 'cast') throw refuse('An expression has no casts: its inputs and its result are float32.');
  const op = CALLABLE.get(name);
  if (op === undefined) throw refuse(`"${name}" is not an element-wise operation.${nearMatchHint(name, CALLABLE.keys())}`);
  const args: number[] = [];
  do {
    advance(reading);
    args.push(readValue(reading));
  } while (reading.token === COMMA);
  expectToken(reading, CLOSE);
  const arity = MAPS[op].inputs.length;
  if (args.length !== arity) throw refuse(`${name} takes ${arity} value${arity === 1 ? '' : 's'}; ${args.length} were given.`);
  return addMap(reading, op, args);
}
