import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { editDistance, nearest, nearMatchHint } from './spelling.ts';

describe('editDistance', () => {
  it('counts one step for an insertion, a deletion, a replacement and a swap', () => {
    expect(editDistance('demo', 'demos')).toBe(1);
    expect(editDistance('demo', 'dem')).toBe(1);
    expect(editDistance('demo', 'dema')).toBe(1);
    expect(editDistance('demo', 'dmeo')).toBe(1);
    expect(editDistance('', 'abc')).toBe(3);
  });

  it('is symmetric, and zero exactly for equal words', () => {
    const word = fc.string({ maxLength: 12 });
    fc.assert(
      fc.property(word, word, (a, b) => {
        const distance = editDistance(a, b);
        expect(distance).toBe(editDistance(b, a));
        expect(distance === 0).toBe(a === b);
        expect(distance).toBeLessThanOrEqual(Math.max(a.length, b.length));
      }),
    );
  });
});

describe('nearest', () => {
  const commands = ['info', 'demo', 'bench'];

  it('finds the word that was meant', () => {
    expect(nearest('dmeo', commands)).toBe('demo');
    expect(nearest('BENCH', commands)).toBe('bench');
    expect(nearest('benhc', commands)).toBe('bench');
  });

  it('stays silent when no word is near', () => {
    expect(nearest('quit', commands)).toBeUndefined();
    expect(nearMatchHint('xylophone', commands)).toBe('');
    expect(nearest('', commands)).toBeUndefined();
  });

  it('never proposes what was typed', () => {
    expect(nearest('demo', commands)).toBeUndefined();
    expect(nearest('cast', ['cast', 'cost'])).toBe('cost');
  });

  it('takes a word of any length in bounded time', () => {
    expect(nearest('a'.repeat(1_000_000), commands)).toBeUndefined();
  });
});
