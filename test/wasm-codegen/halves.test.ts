/** Every value of float16 and bfloat16 through compiled programs: loaded, stored, rounded on the way, contiguous and strided. */
import { describe, expect, test } from 'vitest';
import type { Program } from '../../src/ops/program.ts';
import { ALL_BITS, nearest, same, turningPoints, valueOfBits } from '../half-values.ts';
import { halfPrograms } from './half-programs.ts';
import { runRow } from './machine.ts';

const wrong = (actual: readonly number[], expected: readonly number[]): number =>
  actual.findIndex((x, i) => !same(x, expected[i] as number));

describe.each(['float16', 'bfloat16'] as const)('%s', (dtype) => {
  const { load, store } = halfPrograms(dtype);
  const run = (program: Program, list: readonly number[]) => runRow(program, [list]);

  test('all values are loaded as they are, and stored again', () => {
    const values = ALL_BITS.map((bits) => valueOfBits(bits, dtype));
    const [wide, back] = run(load, values) as [number[], number[]];
    expect(wrong(wide, values)).toBe(-1);
    expect(wrong(back, values)).toBe(-1);
  });

  test('float32 is rounded at every turning point, in a store and on the way', () => {
    const points = turningPoints(dtype);
    const expected = points.map((x) => nearest(x, dtype));
    const [stored, rounded] = run(store, points) as [number[], number[]];
    expect(wrong(stored, expected)).toBe(-1);
    expect(wrong(rounded, expected)).toBe(-1);
  });
});
