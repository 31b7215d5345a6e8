import { GpuosError } from '../errors.ts';
import { nearMatchHint } from '../spelling.ts';
import type { ComputeType } from './dtype.ts';
import { operatorByName } from './index.ts';
import { MAPS } from './map.ts';
import type { MapName, Program, ProgramNode } from './program.ts';
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
const NAME = /^[A-Za-z][A-Za-z0-9_]{0,31}$/;
const COMPARISONS: Readonly<Record<string, MapName>> = {
  '<': 'less',
  '<=': 'less-equal',
  '>': 'greater',
  '>=': 'greater-equal',
  '==': 'equal',
  '!=': 'not-equal',
};

/** Operations as they are spelt in an expression, where `-` is a minus. */
const CALLABLE = Object.keys(MAPS)
  .filter((name) => name !== 'cast')
  .map((name) => name.replaceAll('-', '_'));

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
    if (typeof input !== 'string' || !NAME.test(input)) throw refuse(`Input ${i} is not a name of letters, digits and _.`);
    if (inputs.indexOf(input) !== i) throw refuse(`Input "${input}" is named twice.`);
    if (Object.hasOwn(MAPS, input.replaceAll('_', '-'))) throw refuse(`Input "${input}" has the name of an operation.`);
  }
  if (typeof expression !== 'string' || expression.length > MAX_LENGTH)
    throw refuse(`expression has to be a text of at most ${MAX_LENGTH} characters.`);
  if (name !== undefined && (typeof name !== 'string' || !/^[A-Za-z][\w-]{0,63}$/.test(name)))
    throw refuse('name has to be letters, digits, - and _, at most 64.');
  const nodes = new ExpressionParser(inputs, expression).parse();
  const last = nodes.length - 1;
  if (nodes[last]?.dtype !== 'float32')
    throw refuse('The expression gives a truth value; use select(condition, a, b) to make it a number.');
  return {
    name: name ?? `map:${expression.length > 40 ? `${expression.slice(0, 37)}...` : expression}`,
    program: {
      inputs: inputs.map(() => ({ dtype: 'float32', columnStride: 1 })),
      scalars: 0,
      nodes,
      outputs: [{ node: last, dtype: 'float32', space: 'full' }],
      outerRank: 0,
    },
  };
}

/** Recursive descent over: comparison > sum > product > unary > call, number, name or parentheses. */
class ExpressionParser {
  readonly #tokens: readonly string[];
  readonly #inputs: readonly string[];
  readonly #nodes: ProgramNode[] = [];
  readonly #inputNodes = new Map<string, number>();
  #at = 0;
  #depth = 0;

  constructor(inputs: readonly string[], text: string) {
    this.#inputs = inputs;
    const tokens: string[] = [];
    const pattern = /\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z]\w*)|(<=|>=|==|!=|[-+*/(),<>]))/y;
    let at = 0;
    const end = text.trimEnd().length;
    while (at < end) {
      pattern.lastIndex = at;
      const match = pattern.exec(text);
      if (match === null) throw refuse(`The expression has something unexpected at character ${at + 1}: "${text.slice(at, at + 10)}".`);
      tokens.push((match[1] ?? match[2] ?? match[3]) as string);
      at = pattern.lastIndex;
    }
    this.#tokens = tokens;
  }

  parse(): ProgramNode[] {
    if (this.#tokens.length === 0) throw refuse('The expression is empty.');
    this.#comparison();
    if (this.#at < this.#tokens.length) throw refuse(`The expression ends before "${this.#tokens[this.#at]}".`);
    // A bare input or constant still has to be copied to the output.
    if (this.#nodes.at(-1)?.kind !== 'map') this.#map('add', [this.#nodes.length - 1, this.#constant(0)]);
    return this.#nodes;
  }

  #peek(): string | undefined {
    return this.#tokens[this.#at];
  }

  #expect(token: string): void {
    const found = this.#tokens[this.#at++];
    if (found !== token) throw refuse(`The expression lacks a "${token}" ${found === undefined ? 'at its end' : `before "${found}"`}.`);
  }

  #push(node: ProgramNode): number {
    if (this.#nodes.length >= MAX_NODES) throw refuse(`The expression has more than ${MAX_NODES} operations.`);
    return this.#nodes.push(node) - 1;
  }

  #constant(value: number): number {
    return this.#push({ kind: 'constant', value, dtype: 'float32' });
  }

  #map(op: MapName, args: readonly number[]): number {
    const specs = args.map((arg) => ({ shape: [], dtype: (this.#nodes[arg] as ProgramNode).dtype }));
    let dtype: ComputeType;
    try {
      dtype = operatorByName(op).infer(specs, {})[0]?.dtype as ComputeType;
    } catch (cause) {
      throw refuse(`In the expression, ${(cause as Error).message.split(' [')[0]}`);
    }
    return this.#push({ kind: 'map', op, args, dtype });
  }

  #comparison(): number {
    if (++this.#depth > MAX_DEPTH) throw refuse(`The expression is nested more than ${MAX_DEPTH} deep.`);
    let left = this.#sum();
    const token = this.#peek() ?? '';
    if (Object.hasOwn(COMPARISONS, token)) {
      const op = COMPARISONS[token] as MapName;
      this.#at++;
      left = this.#map(op, [left, this.#sum()]);
    }
    this.#depth--;
    return left;
  }

  #sum(): number {
    let left = this.#product();
    for (let token = this.#peek(); token === '+' || token === '-'; token = this.#peek()) {
      this.#at++;
      left = this.#map(token === '+' ? 'add' : 'sub', [left, this.#product()]);
    }
    return left;
  }

  #product(): number {
    let left = this.#unary();
    for (let token = this.#peek(); token === '*' || token === '/'; token = this.#peek()) {
      this.#at++;
      left = this.#map(token === '*' ? 'mul' : 'div', [left, this.#unary()]);
    }
    return left;
  }

  #unary(): number {
    let negative = false;
    while (this.#peek() === '-') {
      this.#at++;
      negative = !negative;
    }
    const value = this.#primary();
    return negative ? this.#map('neg', [value]) : value;
  }

  #primary(): number {
    const token = this.#tokens[this.#at++];
    if (token === undefined) throw refuse('The expression breaks off.');
    if (token === '(') {
      const value = this.#comparison();
      this.#expect(')');
      return value;
    }
    if (/^[\d.]/.test(token)) {
      const value = Number(token);
      if (!Number.isFinite(Math.fround(value))) throw refuse(`${token} is past the range of float32.`);
      return this.#constant(value);
    }
    if (!/^[A-Za-z]/.test(token)) throw refuse(`The expression has a "${token}" where a value should be.`);
    if (this.#peek() === '(') return this.#call(token);
    const input = this.#inputs.indexOf(token);
    if (input < 0) throw refuse(`"${token}" is not an input.${nearMatchHint(token, this.#inputs)}`);
    let node = this.#inputNodes.get(token);
    if (node === undefined) {
      node = this.#push({ kind: 'input', input, dtype: 'float32' });
      this.#inputNodes.set(token, node);
    }
    return node;
  }

  #call(name: string): number {
    const op = name.replaceAll('_', '-');
    if (op === 'cast') throw refuse('An expression has no casts: its inputs and its result are float32.');
    if (!Object.hasOwn(MAPS, op)) throw refuse(`"${name}" is not an element-wise operation.${nearMatchHint(name, CALLABLE)}`);
    this.#expect('(');
    const args = [this.#comparison()];
    while (this.#peek() === ',') {
      this.#at++;
      args.push(this.#comparison());
    }
    this.#expect(')');
    const arity = MAPS[op as MapName].inputs.length;
    if (args.length !== arity) throw refuse(`${name} takes ${arity} value${arity === 1 ? '' : 's'}; ${args.length} were given.`);
    return this.#map(op as MapName, args);
  }
}
