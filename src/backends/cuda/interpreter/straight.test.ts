import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { programFromTemplate } from '../../../ops/template.ts';
import type { Program, ProgramInput, ProgramNode, ProgramOutput } from '../../../ops/program.ts';
import { encodeGeneral } from './encode.ts';
import { encodeStraight } from './straight.ts';

const STORED = ['float32', 'float16', 'bfloat16'] as const;

/** Any program without reductions: nodes that nobody reads, inputs that are stored, operands that are constants only among them. */
function randomProgram(next: (n: number) => number): Program {
  // Most have no input with one element for the row, and no operation on constants only.
  const straight = next(4) > 0;
  const inputs: ProgramInput[] = Array.from({ length: 1 + next(5) }, () => ({
    dtype: STORED[next(3)]!,
    columnStride: straight || next(4) > 0 ? (next(3) > 0 ? 1 : 'strided') : 0,
  }));
  const scalars = next(3);
  const nodes: ProgramNode[] = inputs.map((_, input) => ({ kind: 'input', input, dtype: 'float32' }));
  for (let scalar = 0; scalar < scalars; scalar++) nodes.push({ kind: 'scalar', scalar, dtype: 'float32' });
  for (let i = next(4); i > 0; i--)
    nodes.push({ kind: 'constant', value: [0, -0, 1, 2.5, Number.NaN, Number.POSITIVE_INFINITY][next(6)]!, dtype: 'float32' });
  // Few recent values, or many old ones.
  const reach = 1 + next(40);
  const recent = (): number => nodes.length - 1 - next(Math.min(reach, nodes.length));
  for (let i = next(50); i > 0; i--) {
    const first = straight ? next(inputs.length) : recent();
    if (next(3) === 0) nodes.push({ kind: 'map', op: 'neg', args: [straight ? first : recent()], dtype: 'float32' });
    else if (next(6) > 0) nodes.push({ kind: 'map', op: next(2) > 0 ? 'add' : 'mul', args: [recent(), first], dtype: 'float32' });
    else {
      nodes.push({ kind: 'map', op: 'less', args: [first, recent()], dtype: 'bool' });
      nodes.push({ kind: 'map', op: 'select', args: [nodes.length - 1, recent(), first], dtype: 'float32' });
    }
  }
  const outputs = Array.from({ length: 1 + next(3) }, (): ProgramOutput => ({ node: recent(), dtype: STORED[next(3)]!, space: 'full' }));
  return { inputs, scalars, nodes, outputs, outerRank: next(4) };
}

describe('bytecode of a program that is one pass', () => {
  it('is word for word what the general encoder makes, and there for most programs without reductions', () => {
    let [straight, programs] = [0, 0];
    fc.assert(
      fc.property(fc.infiniteStream(fc.nat()), (numbers) => {
        const program = randomProgram((n) => numbers.next().value! % n);
        programs++;
        const words = encodeStraight(program);
        if (words === undefined) return;
        straight++;
        expect(words).toEqual(encodeGeneral(program));
      }),
      { seed: 43, numRuns: 1500 },
    );
    expect(straight).toBeGreaterThan(programs / 3);
  });

  it('is there for what inject() makes of an expression', () => {
    for (const expression of ['x', '2.5', 'x * 2 + 0.5', 'select(x > 0, x, 0.1 * y)', '-x / (y + exp(x))', 'x - x']) {
      const { program } = programFromTemplate('map', { inputs: ['x', 'y'], expression });
      const words = encodeStraight(program);
      // An operation on numbers only is the row's.
      if (expression === '2.5') expect(words).toBeUndefined();
      else expect(words).toEqual(encodeGeneral(program));
    }
  });

  it('is none where there is a reduction, or something has one value for the row', () => {
    const input: ProgramNode = { kind: 'input', input: 0, dtype: 'float32' };
    const program = (nodes: readonly ProgramNode[], more: Partial<Program> = {}): Program => ({
      inputs: [{ dtype: 'float32', columnStride: 1 }],
      scalars: 1,
      nodes: [input, ...nodes],
      outputs: [{ node: nodes.length, dtype: 'float32', space: 'full' }],
      outerRank: 1,
      ...more,
    });
    const sum: ProgramNode = { kind: 'reduce', op: 'sum', arg: 0, dtype: 'float32' };
    const scalar: ProgramNode = { kind: 'scalar', scalar: 0, dtype: 'float32' };
    const neg = (arg: number): ProgramNode => ({ kind: 'map', op: 'neg', args: [arg], dtype: 'float32' });
    expect(encodeStraight(program([neg(0)]))).toBeDefined();
    expect(encodeStraight(program([sum, neg(0)]))).toBeDefined();
    for (const other of [
      program([sum]),
      program([scalar]),
      program([scalar, neg(1), { kind: 'map', op: 'add', args: [0, 2], dtype: 'float32' }]),
      program([neg(0)], { inputs: [{ dtype: 'float32', columnStride: 0 }] }),
      program([sum], { outputs: [{ node: 1, dtype: 'float32', space: 'row' }] }),
    ]) {
      expect(encodeStraight(other)).toBeUndefined();
      expect(encodeGeneral(other)).toBeDefined();
    }
  });
});
