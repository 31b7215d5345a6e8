import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GpuosError } from '../errors.ts';
import { MAPS } from './map.ts';
import type { MapName, Program } from './program.ts';
import { programFromTemplate, type TemplateParameters } from './template.ts';

/** Operations in double, as JavaScript has them. */
const ELEMENTS: Readonly<Partial<Record<MapName, (a: number, b: number, c: number) => number>>> = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  div: (a, b) => a / b,
  neg: (a) => -a,
  pow: (a, b) => a ** b,
  maximum: (a, b) => Math.max(a, b),
  minimum: (a, b) => Math.min(a, b),
  atan2: (a, b) => Math.atan2(a, b),
  'squared-difference': (a, b) => (a - b) ** 2,
  prelu: (a, b) => (a < 0 ? a * b : a),
  abs: (a) => Math.abs(a),
  exp: (a) => Math.exp(a),
  log: (a) => Math.log(a),
  sqrt: (a) => Math.sqrt(a),
  floor: (a) => Math.floor(a),
  tanh: (a) => Math.tanh(a),
  sin: (a) => Math.sin(a),
  relu: (a) => Math.max(a, 0),
  square: (a) => a * a,
  less: (a, b) => Number(a < b),
  'less-equal': (a, b) => Number(a <= b),
  greater: (a, b) => Number(a > b),
  'greater-equal': (a, b) => Number(a >= b),
  equal: (a, b) => Number(a === b),
  'not-equal': (a, b) => Number(a !== b),
  'logical-and': (a, b) => Number(a !== 0 && b !== 0),
  'logical-not': (a) => Number(a === 0),
  'is-nan': (a) => Number(Number.isNaN(a)),
  select: (condition, a, b) => (condition !== 0 ? a : b),
};

/** Evaluates a program on one element in double. */
function evaluate(program: Program, inputs: readonly number[]): number {
  const values: number[] = [];
  for (const node of program.nodes) {
    if (node.kind === 'input') values.push(inputs[node.input] as number);
    else if (node.kind === 'constant') values.push(node.value);
    else if (node.kind === 'map') {
      expect(Math.max(...node.args), 'arguments come before the node').toBeLessThan(values.length);
      const [a, b, c] = node.args.map((arg) => values[arg] as number) as [number, number, number];
      values.push(ELEMENTS[node.op as MapName]!(a, b, c));
    } else throw new Error(`a template makes no ${node.kind}`);
  }
  return values[program.outputs[0]!.node] as number;
}

const names = ['x', 'y', 'rate_2'];
const program = (expression: string, inputs: readonly string[] = names): Program =>
  programFromTemplate('map', { inputs, expression }).program;

/** How a call ends: with a program, or with the code of its error. Anything but a GpuosError is thrown on. */
function outcome(template: unknown, parameters: unknown): string {
  try {
    const made = programFromTemplate(template as 'map', parameters as TemplateParameters);
    expect(made.program.nodes.length).toBeGreaterThan(0);
    expect(made.name.length).toBeGreaterThan(0);
    return 'a program';
  } catch (error) {
    if (!(error instanceof GpuosError)) throw error;
    return error.code;
  }
}

/** Formulas whose text means the same in JavaScript. */
const FLOAT_CALLS = Object.entries(MAPS).filter(
  ([name, rule]) => Object.hasOwn(ELEMENTS, name) && rule.operands.includes('float32') && rule.result === 'same' && name !== 'select',
);
const formula: fc.Arbitrary<string> = fc.letrec<{ number: string; truth: string }>((tie) => ({
  number: fc.oneof(
    { maxDepth: 6, withCrossShrink: true },
    fc.constantFrom(...names, '0', '1', '2.5', '.5', '3.', '1e2', '4E-1', '7'),
    fc.tuple(tie('number'), fc.constantFrom('+', '-', '*', '/', ' + ', '\n*\t'), tie('number')).map(([a, op, b]) => `(${a})${op}(${b})`),
    // Without parentheses precedence and order from the left count.
    fc
      .tuple(
        fc.constantFrom(...names, '2', '0.5'),
        fc.constantFrom('+', '-', '*', '/'),
        fc.constantFrom(...names, '3'),
        fc.constantFrom('+', '-', '*', '/'),
        fc.constantFrom(...names, '4'),
      )
      .map((parts) => `(${parts.join(' ')})`),
    tie('number').map((a) => `(-(${a}))`),
    tie('number').map((a) => `( ${a} )`),
    fc
      .tuple(fc.constantFrom(...FLOAT_CALLS), tie('number'), tie('number'))
      .map(([[name, rule], a, b]) => `${name.replaceAll('-', '_')}(${[a, b].slice(0, rule.inputs.length).join(', ')})`),
    fc.tuple(tie('truth'), tie('number'), tie('number')).map(([condition, a, b]) => `select(${condition}, ${a}, ${b})`),
  ),
  truth: fc.oneof(
    { maxDepth: 3 },
    fc.tuple(tie('number'), fc.constantFrom('<', '<=', '>', '>=', '==', '!='), tie('number')).map(([a, op, b]) => `(${a} ${op} ${b})`),
    fc.tuple(tie('truth'), tie('truth')).map(([a, b]) => `logical_and(${a}, ${b})`),
    tie('truth').map((a) => `logical_not(${a})`),
    tie('number').map((a) => `is_nan(${a})`),
  ),
})).number;

/** The formula's text run by JavaScript itself, with the operations in scope. */
function javascript(expression: string, inputs: readonly number[]): number {
  const scope: Record<string, unknown> = {};
  for (const [name, element] of Object.entries(ELEMENTS))
    scope[name.replaceAll('-', '_')] = (...values: number[]) => element(Number(values[0]), Number(values[1]), Number(values[2]));
  names.forEach((name, i) => {
    scope[name] = inputs[i];
  });
  return Number(new Function(...Object.keys(scope), `return (${expression});`)(...Object.values(scope)));
}

describe('template map', () => {
  it('means what the formula means in JavaScript', () => {
    let evaluated = 0;
    fc.assert(
      fc.property(formula, fc.array(fc.double({ min: -8, max: 8, noNaN: false }), { minLength: 3, maxLength: 3 }), (expression, inputs) => {
        let made: Program;
        try {
          made = program(expression);
        } catch (error) {
          // Only for its size.
          expect((error as GpuosError).message).toMatch(/more than|at most/);
          return;
        }
        evaluated++;
        const [got, want] = [evaluate(made, inputs), javascript(expression, inputs)];
        expect(
          got === want || (Number.isNaN(got) && Number.isNaN(want)) || Object.is(got, want),
          `${expression} at ${inputs}: ${got}, not ${want}`,
        ).toBe(true);
      }),
      { seed: 40, numRuns: 1500 },
    );
    expect(evaluated).toBeGreaterThan(1200);
  });

  it('refuses every other text with GPUOS_BAD_TEMPLATE, in no time', () => {
    const piece = fc.constantFrom(
      ...names,
      '(',
      ')',
      ',',
      '+',
      '-',
      '*',
      '/',
      '<',
      '>=',
      '==',
      '!',
      '=',
      '1',
      '.',
      '1e',
      '1e999',
      'select(',
      'exp(',
      'cast(',
      ' ',
      '\n',
      '_',
      'z',
      '?',
      '"',
      '`',
      '[',
      '$',
      'constructor',
      '__proto__',
      'toString(',
      '\u00a0',
      '\u2028',
      '😀',
    );
    fc.assert(
      fc.property(
        fc.oneof(
          fc.string({ maxLength: 60 }),
          fc.array(piece, { maxLength: 30 }).map((pieces) => pieces.join('')),
        ),
        (expression) => {
          const started = performance.now();
          expect(outcome('map', { inputs: names, expression })).toMatch(/^(a program|GPUOS_BAD_TEMPLATE)$/);
          expect(performance.now() - started).toBeLessThan(1000);
        },
      ),
      { seed: 41, numRuns: 3000 },
    );
  });

  it('refuses parameters of any other form with GPUOS_BAD_TEMPLATE', () => {
    fc.assert(
      fc.property(
        fc.anything({ withNullPrototype: true, withSparseArray: true, withBigInt: true, withDate: true, withMap: true }),
        (value) => {
          const bad = 'GPUOS_BAD_TEMPLATE';
          if (value !== 'map') expect(outcome(value, { inputs: ['x'], expression: 'x' })).toBe(bad);
          expect(outcome('map', value)).toBe(bad);
          if (typeof value !== 'string') expect(outcome('map', { inputs: ['x'], expression: value })).toBe(bad);
          expect(outcome('map', { inputs: value, expression: '1' })).toMatch(/^(a program|GPUOS_BAD_TEMPLATE)$/);
          expect(outcome('map', { inputs: [value], expression: '1' })).toMatch(/^(a program|GPUOS_BAD_TEMPLATE)$/);
          expect(outcome('map', { inputs: ['x'], expression: 'x', other: value })).toBe(bad);
          if (value !== undefined && typeof value !== 'string')
            expect(outcome('map', { inputs: ['x'], expression: 'x', name: value })).toBe(bad);
        },
      ),
      { seed: 42, numRuns: 1000 },
    );
  });

  const bad: readonly (readonly [string, string, readonly string[]])[] = [
    ['nothing', '', ['x']],
    ['blank', '  \n ', ['x']],
    ['a name that is no input', 'z + 1', ['x']],
    ['an operation that is none', 'expp(x)', ['x']],
    ['cast', 'cast(x)', ['x']],
    ['too few values', 'pow(x)', ['x']],
    ['too many values', 'exp(x, x)', ['x']],
    ['a truth value', 'x > 1', ['x']],
    ['a truth value in arithmetic', '(x > 1) + 1', ['x']],
    ['a number as condition', 'select(x, x, x)', ['x']],
    ['a chain of comparisons', 'select(1 < x < 2, x, 0)', ['x']],
    ['two values side by side', 'x x', ['x']],
    ['an open parenthesis', '(x', ['x']],
    ['a closing one', 'x)', ['x']],
    ['an end too early', 'x *', ['x']],
    ['a number past float32', '1e39 * x', ['x']],
    ['an inherited property', 'x constructor x', ['x']],
    ['a hole in the inputs', '1', new Array(2)],
    ['no inputs', '1', []],
    ['17 inputs', '1', Array.from({ length: 17 }, (_, i) => `x${i}`)],
    ['an input twice', 'x', ['x', 'x']],
    ['an input that is an operation', 'exp', ['exp']],
    ['an input that is no name', '1', ['1x']],
  ];
  it.each(bad)('refuses %s', (_, expression, inputs) => {
    expect(outcome('map', { inputs, expression })).toBe('GPUOS_BAD_TEMPLATE');
  });

  it('says what is wrong so that it can be put right', () => {
    const message = (expression: string): string => {
      try {
        program(expression);
      } catch (error) {
        return (error as GpuosError).message;
      }
      return 'taken';
    };
    expect(message('(x')).toMatch(/lacks a "\)" at its end\./);
    expect(message('exp(x y')).toMatch(/lacks a "\)" before "y"\./);
    expect(message('cast(x)')).toMatch(/has no casts/);
    // As it is spelt here: with a "-" it would be a difference.
    expect(message('gelu_tnah(x)')).toMatch(/Did you mean "gelu_tanh"\?/);
    expect(message('casts(x)')).not.toMatch(/Did you mean "cast"/);
    expect(() => programFromTemplate('map', { inputs: ['x'], expresion: 'x' } as never)).toThrow(/Did you mean "expression"\?/);
  });

  it('refuses what is too deep, too long or too large, without exhausting the stack', () => {
    const refused = (expression: string) => expect(outcome('map', { inputs: ['x'], expression })).toBe('GPUOS_BAD_TEMPLATE');
    refused('('.repeat(2000));
    refused(`${'('.repeat(200)}x${')'.repeat(200)}`);
    refused(`${'exp('.repeat(100)}x${')'.repeat(100)}`);
    refused('x+'.repeat(2000));
    refused(' '.repeat(5000));
    refused(`x${'+x'.repeat(300)}`);
    expect(outcome('map', { inputs: ['x'], expression: `${'-'.repeat(4000)}x` })).toBe('a program');
    expect(outcome('map', { inputs: ['x'], expression: `${'('.repeat(60)}x${')'.repeat(60)}` })).toBe('a program');
  });

  it('copies a bare input or number, and reads each input once', () => {
    expect(evaluate(program('x'), [3, 0, 0])).toBe(3);
    expect(evaluate(program('2.5'), [3, 0, 0])).toBe(2.5);
    expect(program('x + x * x').nodes.filter(({ kind }) => kind === 'input').length).toBe(1);
    expect(programFromTemplate('map', { inputs: ['x'], expression: 'x', name: 'mine' }).name).toBe('mine');
  });
});
