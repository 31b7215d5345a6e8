import { describe, expect, it } from 'vitest';
import type { Program, ProgramNode } from '../../../ops/program.ts';
import { signatureOf } from './functions.ts';

const input: ProgramNode = { kind: 'input', input: 0, dtype: 'float32' };
const constant = (value: number): ProgramNode => ({ kind: 'constant', value, dtype: 'float32' });
const program = (nodes: readonly ProgramNode[], more: Partial<Program> = {}): Program => ({
  inputs: [{ dtype: 'float32', columnStride: 1 }],
  scalars: 0,
  nodes: [input, ...nodes],
  outputs: [{ node: nodes.length, dtype: 'float32', space: 'full' }],
  outerRank: 1,
  ...more,
});

describe('the signature of a program', () => {
  it('is that of an equal one, and of no other', () => {
    const add = (value: number): Program => program([constant(value), { kind: 'map', op: 'add', args: [0, 1], dtype: 'float32' }]);
    const reduced = (op: 'sum' | 'max'): Program => program([{ kind: 'reduce', op, arg: 0, dtype: 'float32' }]);
    const all = (): Program[] => [
      // Numbers that JSON does not have among them.
      ...[0, -0, 1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY].map(add),
      reduced('sum'),
      reduced('max'),
      program([{ kind: 'map', op: 'neg', args: [0], dtype: 'float32' }]),
      program([{ kind: 'scalar', scalar: 0, dtype: 'float32' }], { scalars: 1 }),
      program([{ kind: 'scalar', scalar: 1, dtype: 'float32' }], { scalars: 2 }),
      program([{ kind: 'scalar', scalar: 0, dtype: 'int32' }], { scalars: 2 }),
      program([]),
      program([], { outerRank: 2 }),
      program([], { inputs: [{ dtype: 'float32', columnStride: 'strided' }] }),
      program([], { inputs: [{ dtype: 'float16', columnStride: 1 }] }),
      program([], { outputs: [{ node: 0, dtype: 'float16', space: 'full' }] }),
      program([], { outputs: [{ node: 0, dtype: 'float32', space: 'row' }] }),
    ];
    const signatures = all().map(signatureOf);
    expect(all().map(signatureOf)).toEqual(signatures);
    expect(new Set(signatures).size).toBe(signatures.length);
  });
});
