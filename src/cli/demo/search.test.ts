import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { maxDifference } from './compare.ts';
import { dot, median, TopHits } from './search.ts';

describe('TopHits', () => {
  it('holds the best, in order, whatever the order in which they come', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: -5, max: 5 }), { maxLength: 40 }), fc.integer({ min: 1, max: 8 }), (scores, size) => {
        const hits = scores.map((score, passage) => ({ score, passage }));
        const top = new TopHits(size);
        for (const hit of hits) {
          const place = top.offer(hit);
          if (place < 0) expect(top.hits).not.toContain(hit);
          else expect(top.hits[place]).toBe(hit);
        }
        const expected = [...hits].sort((a, b) => b.score - a.score || a.passage - b.passage).slice(0, size);
        expect(top.hits).toEqual(expected);
        const reversed = new TopHits(size);
        for (const hit of [...hits].reverse()) reversed.offer(hit);
        expect(reversed.hits).toEqual(expected);
      }),
    );
  });
});

describe('dot, median, maxDifference', () => {
  it('compute what they are named after', () => {
    expect(dot(Float32Array.of(1, 2, 3), Float32Array.of(4, 5, 6))).toBe(32);
    expect(median([3, 1, 2])).toBe(2);
    expect(median([4, 1, 2, 3])).toBe(2.5);
    expect(median([])).toBeNaN();
    expect(maxDifference(Float32Array.of(1, 2), Float32Array.of(1, 2.5))).toBe(0.5);
  });

  it('never take a missing or undefined value for equal', () => {
    expect(maxDifference(Float32Array.of(1), Float32Array.of(1, 2))).toBe(Infinity);
    expect(maxDifference(Float32Array.of(1, Number.NaN), Float32Array.of(1, 1))).toBe(Infinity);
    expect(maxDifference(Float32Array.of(Number.NaN, 1), Float32Array.of(1, 1))).toBe(Infinity);
  });
});
