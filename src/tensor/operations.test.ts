import { describe, expect, it } from 'vitest';
import { operatorByName } from '../ops/index.ts';
import { Operations } from './operations.ts';

describe('operators with attributes', () => {
  const oneHot = operatorByName('one-hot');

  it('are one object where they are equal, and others where they differ, infinities and signs of 0 too', () => {
    const operations = new Operations();
    const of = (on: number) => operations.of(oneHot, { depth: 2, on });
    expect(of(1)).toBe(of(1));
    const all = [1, 2, 0, -0, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, Number.NaN].map(of);
    expect(new Set(all.map(({ id }) => id)).size).toBe(all.length);
  });

  it('are forgotten when there are too many, and no number is given twice', () => {
    const operations = new Operations();
    const first = operations.of(oneHot, { depth: 2, on: -1 });
    const ids = new Set([first.id]);
    const count = 70_000;
    for (let on = 0; on < count; on++) ids.add(operations.of(oneHot, { depth: 2, on }).id);
    expect(ids.size).toBe(count + 1);
    const again = operations.of(oneHot, { depth: 2, on: -1 });
    expect(again).not.toBe(first);
    expect(ids.has(again.id)).toBe(false);
  });
});
