import { describe, expect, it } from 'vitest';
import { slope } from './model.ts';
import { type BenchRow, rowProblem } from './suite.ts';

const row: BenchRow = { name: 'submit.descriptor', value: 21, unit: 'ns', device: 'wasm' };

describe('rowProblem', () => {
  it('takes whole rows', () => {
    expect(rowProblem(row)).toBeUndefined();
    expect(rowProblem({ ...row, name: 'model.encoder.vs.tfjs-wasm', unit: 'ratio', value: 2, baseline: 10, ours: 5 })).toBeUndefined();
  });

  it.each([
    [{ value: Number.NaN }, 'value is NaN'],
    [{ value: Infinity }, 'value is Infinity'],
    [{ name: '' }, 'name is ""'],
    [{ unit: '' }, 'no unit'],
    [{ device: '' }, 'no device'],
    [{ baseline: 0 }, 'baseline is 0'],
    [{ name: 'a.vs.b', unit: 'ratio' }, 'lacks baseline or ours'],
    [{ name: 'a.vs.b', unit: 'ratio', value: 3, baseline: 10, ours: 5 }, 'not baseline / ours'],
  ])('refuses %j', (change, message) => {
    expect(rowProblem({ ...row, ...change })).toContain(message);
  });
});

describe('slope', () => {
  it('is that of the least-squares line', () => {
    expect(
      slope([
        [0, 1],
        [1, 3],
        [2, 5],
      ]),
    ).toBe(2);
    expect(
      slope([
        [0, 0],
        [1, 1],
        [2, 0],
      ]),
    ).toBe(0);
    expect(
      slope([
        [0, 0],
        [1, 4],
        [2, 5],
      ]),
    ).toBeCloseTo(2.5);
  });
});
