import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Copy, Tape } from './tape.ts';

const tapeOf = (words: readonly number[]): Tape => {
  const tape = new Tape();
  for (const word of words) tape.put(word);
  return tape;
};
const valuesOf = ({ words, at, length }: Copy): number[] => [...words.subarray(at, at + length)];
const lists = fc.array(fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 }), { maxLength: 40 });

describe('a tape', () => {
  it('equals its copy, which has the same hash, and no list that differs anywhere', () => {
    fc.assert(
      fc.property(lists, fc.nat(), fc.integer({ min: 0, max: 31 }), (words, at, bit) => {
        const tape = tapeOf(words);
        const copy = tape.copy();
        expect(valuesOf(copy)).toEqual(words);
        expect(tape.equals(copy)).toBe(true);
        expect(tapeOf(words).hash()).toBe(tape.hash());
        expect(tapeOf([...words, 0]).equals(copy)).toBe(false);
        if (words.length === 0) return;
        const other = words.with(at % words.length, (words[at % words.length] as number) ^ (1 << bit));
        expect(tapeOf(other).equals(copy)).toBe(false);
        // One bit in one place always shows: the factor is odd.
        expect(tapeOf(other).hash()).not.toBe(tape.hash());
      }),
      { seed: 41 },
    );
  });

  it('keeps what stands before the place where it begins anew', () => {
    const tape = tapeOf([1, 2, 3, 4, 5]);
    tape.restart(2);
    tape.put(9);
    expect(valuesOf(tape.copy())).toEqual([1, 2, 9]);
  });

  it('copies into memory that was let go, and disturbs no copy that is kept', () => {
    const kept: { readonly copy: Copy; readonly first: number }[] = [];
    const pieces = new Set<Int32Array>();
    for (let i = 0; i < 4000; i++) {
      const copy = tapeOf(Array.from({ length: 300 + (i % 7) * 20 }, (_, k) => i + k)).copy();
      pieces.add(copy.words);
      kept.push({ copy, first: i });
      // As of a cache: mostly the oldest, now and then another.
      if (kept.length > 200) kept.splice(i % 5 === 0 ? 1 + (i % 50) : 0, 1)[0]?.copy.release();
      if (i % 97 === 0) for (const { copy: old, first } of kept) expect(valuesOf(old).every((value, k) => value === first + k)).toBe(true);
    }
    expect(pieces.size).toBeLessThan(20);
  });
});
