/** Reductions with what comes before and after them, on rows that fit into scratch and on rows that do not. */
import { describe, expect, test } from 'vitest';
import type { MapName, Program, ProgramNode, ReduceName } from '../../src/ops/program.ts';
import { rowScratch, runRow } from './machine.ts';

const input = { kind: 'input', input: 0, dtype: 'float32' } as const;
const map = (op: MapName, ...args: number[]): ProgramNode => ({ kind: 'map', op, args, dtype: 'float32' });
const reduce = (op: ReduceName, arg: number): ProgramNode => ({ kind: 'reduce', op, arg, dtype: 'float32' });
const constant = (value: number): ProgramNode => ({ kind: 'constant', value, dtype: 'float32' });

function program(nodes: ProgramNode[], space: 'full' | 'row'): Program {
  return {
    inputs: [{ dtype: 'float32', columnStride: 1 }],
    scalars: 0,
    nodes,
    outputs: [{ node: nodes.length - 1, dtype: 'float32', space }],
    outerRank: 0,
  };
}

const SOFTMAX = program([input, reduce('max', 0), map('sub', 0, 1), map('exp', 2), reduce('sum', 3), map('div', 3, 4)], 'full');

function values(count: number, scale: number, offset = 0): number[] {
  let state = 99;
  return Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) | 0;
    return Math.fround(((state >>> 0) / 2 ** 32 - 0.5) * scale + offset);
  });
}

// 262,128 columns are the most of which one value each fits into scratch.
const LENGTHS = [1, 3, 16, 67, 1000, 4096, 262_128, 262_129, 300_007];

describe('rows of all lengths', () => {
  test.each(LENGTHS)('softmax of %i columns', (columns) => {
    const x = values(columns, 20);
    const [actual] = runRow(SOFTMAX, [x]) as [number[]];
    const max = x.reduce((a, b) => Math.max(a, b));
    const e = x.map((v) => Math.exp(Math.fround(v - max)));
    const sum = e.reduce((a, b) => a + b, 0);
    let worst = 0;
    actual.forEach((value, i) => {
      const truth = (e[i] as number) / sum;
      worst = Math.max(worst, Math.abs(value - truth) / (truth + 1e-30));
    });
    expect(worst).toBeLessThan(1e-6);
  });

  test.each(LENGTHS)('sum of %i columns keeps its precision', (columns) => {
    const x = values(columns, 1, 0.7);
    const [[actual]] = runRow(program([input, reduce('sum', 0)], 'row'), [x]) as [[number]];
    const truth = x.reduce((a, b) => a + b, 0);
    expect(Math.abs(actual - truth) / truth).toBeLessThan(1e-6);
  });

  test.each(LENGTHS)('layer normalization of %i columns', (columns) => {
    const n = constant(columns);
    const nodes: ProgramNode[] = [
      input,
      n,
      reduce('sum', 0),
      map('div', 2, 1),
      map('sub', 0, 3),
      map('square', 4),
      reduce('sum', 5),
      map('div', 6, 1),
      constant(1e-5),
      map('add', 7, 8),
      map('rsqrt', 9),
      map('mul', 4, 10),
    ];
    const x = values(columns, 4, 1);
    const [actual] = runRow(program(nodes, 'full'), [x]) as [number[]];
    const mean = x.reduce((a, b) => a + b, 0) / columns;
    const variance = x.reduce((a, b) => a + (b - mean) ** 2, 0) / columns;
    for (let i = 0; i < columns; i++)
      expect(Math.abs((actual[i] as number) - ((x[i] as number) - mean) / Math.sqrt(variance + 1e-5))).toBeLessThan(3e-6);
  });

  test('argmax gives the first of equal values and the first NaN, wherever they are', () => {
    const argmax: Program = {
      ...program([input, { kind: 'reduce', op: 'argmax', arg: 0, dtype: 'int32' }], 'row'),
      outputs: [{ node: 1, dtype: 'int32', space: 'row' }],
    };
    for (const columns of [1, 2, 5, 16, 17, 40, 67]) {
      for (let at = 0; at < columns; at++) {
        const x = new Array<number>(columns).fill(-1);
        x.fill(2, at);
        expect(runRow(argmax, [x])[0]).toEqual([at]);
        x.fill(Number.NaN, at);
        x[0] = at > 0 ? Number.POSITIVE_INFINITY : (x[0] as number);
        expect(runRow(argmax, [x])[0]).toEqual([at]);
      }
      expect(runRow(argmax, [new Array<number>(columns).fill(Number.NEGATIVE_INFINITY)])[0]).toEqual([0]);
    }
  });

  test('the exponentials of softmax are kept in scratch exactly where they fit', () => {
    for (const [columns, kept] of [
      [1000, 1000],
      [262_128, 262_128],
      [262_129, 0],
    ] as const) {
      rowScratch.fill(-1);
      runRow(SOFTMAX, [values(columns, 20)]);
      // Whole vectors are kept: up to three more than the columns.
      expect(rowScratch.reduce((count, word) => count + Number(word !== -1), 0)).toBe(Math.ceil(kept / 4) * 4);
    }
  });
});
