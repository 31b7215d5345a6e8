import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GpuosError } from '../errors.ts';
import {
  broadcastPair,
  broadcastShapes,
  broadcastStrides,
  broadcastsTo,
  checkShape,
  elementCount,
  MAX_ELEMENTS,
  MAX_RANK,
  normalizeAxes,
  normalizeAxis,
  reducedShape,
  strides,
} from './shape.ts';

const shape = fc.array(fc.integer({ min: 0, max: 5 }), { maxLength: MAX_RANK });

/** A shape, and the same with some sizes made 1 and some leading ones dropped: it broadcasts to the first. */
const broadcastable = fc
  .tuple(shape, fc.array(fc.boolean(), { minLength: MAX_RANK, maxLength: MAX_RANK }), fc.nat(MAX_RANK))
  .map(([to, ones, drop]) => ({ to, from: to.map((size, i) => (ones[i] ? 1 : size)).slice(Math.min(drop, to.length)) }));

function refused(run: () => unknown): GpuosError {
  try {
    run();
  } catch (error) {
    if (error instanceof GpuosError) return error;
    throw error;
  }
  throw new Error('It was not refused.');
}

describe('checkShape', () => {
  it('takes every list of integers from 0', () => {
    fc.assert(
      fc.property(shape, (sizes) => {
        expect(() => checkShape('x', sizes)).not.toThrow();
      }),
    );
  });

  it.each([
    ['NaN', [2, Number.NaN]],
    ['a negative size', [-1]],
    ['a fraction', [1.5]],
    ['an infinity', [Number.POSITIVE_INFINITY]],
    ['a string', ['2']],
    ['null', [null]],
    ['a hole', [undefined]],
    ['no array', 3],
    ['nothing', undefined],
    ['an array-like', { length: 1, 0: 2 }],
    ['too many dimensions', new Array(MAX_RANK + 1).fill(1)],
    ['too many elements', [MAX_ELEMENTS, 2]],
    ['too many elements in sizes that are fine alone', [1e9, 1e9]],
    ['sizes beyond doubles next to a size of 0', [1e200, 1e200, 0]],
    ['one size beyond exact integers', [2 ** 60]],
  ])('refuses %s', (_, sizes) => {
    const error = refused(() => checkShape('fill', sizes));
    expect(error.code).toBe('GPUOS_BAD_SHAPE');
    expect(error.message).toMatch(/^fill: /);
  });

  it('refuses anything that is not a number in any place', () => {
    const junk = fc.anything().filter((value) => !(typeof value === 'number' && Number.isInteger(value) && value >= 0));
    fc.assert(
      fc.property(fc.array(fc.nat(3), { maxLength: 2 }), junk, fc.array(fc.nat(3), { maxLength: 2 }), (before, value, after) => {
        expect(refused(() => checkShape('x', [...before, value, ...after])).code).toBe('GPUOS_BAD_SHAPE');
      }),
    );
  });

  it('takes the largest tensor, empty ones, and one wildcard where that is asked for', () => {
    expect(() => checkShape('x', [MAX_ELEMENTS])).not.toThrow();
    expect(() => checkShape('x', [0, 5])).not.toThrow();
    expect(() => checkShape('x', [-1, 5], true)).not.toThrow();
    expect(refused(() => checkShape('x', [-1, -1], true)).message).toContain('at most one');
    expect(refused(() => checkShape('x', [-2], true)).code).toBe('GPUOS_BAD_SHAPE');
  });
});

describe('strides', () => {
  it('number the elements in row-major order, each once', () => {
    fc.assert(
      fc.property(shape, (sizes) => {
        const steps = strides(sizes);
        let offsets = [0];
        for (const [axis, size] of sizes.entries()) {
          offsets = offsets.flatMap((offset) => Array.from({ length: size }, (_, i) => offset + i * (steps[axis] as number)));
        }
        expect(offsets).toEqual(Array.from({ length: elementCount(sizes) }, (_, i) => i));
      }),
    );
  });
});

describe('broadcasting', () => {
  it('follows the rules of NumPy', () => {
    expect(broadcastPair([], [])).toEqual([]);
    expect(broadcastPair([8, 1, 6, 1], [7, 1, 5])).toEqual([8, 7, 6, 5]);
    expect(broadcastPair([256, 256, 3], [3])).toEqual([256, 256, 3]);
    expect(broadcastPair([0], [1])).toEqual([0]);
    expect(broadcastPair([0], [3])).toBeUndefined();
    expect(broadcastPair([3], [4])).toBeUndefined();
    expect(broadcastPair([2, 1], [8, 4, 3])).toBeUndefined();
  });

  it('names the shapes that do not go together', () => {
    const error = refused(() => broadcastShapes('add', [2, 3], [4]));
    expect(error.code).toBe('GPUOS_SHAPE_MISMATCH');
    expect(error.message).toContain('add: the shapes [2,3] and [4] do not broadcast together');
  });

  it('is symmetric, and neutral for a scalar and for itself', () => {
    fc.assert(
      fc.property(shape, shape, (a, b) => {
        expect(broadcastPair(a, b)).toEqual(broadcastPair(b, a));
        expect(broadcastPair(a, [])).toEqual(a);
        expect(broadcastPair(a, a)).toEqual(a);
      }),
    );
  });

  it('gives a shape that both broadcast to, and finds it whenever one does', () => {
    fc.assert(
      fc.property(shape, shape, (a, b) => {
        const both = broadcastPair(a, b);
        if (both) {
          expect(broadcastsTo(a, both) && broadcastsTo(b, both)).toBe(true);
        } else {
          expect(broadcastsTo(a, b) || broadcastsTo(b, a)).toBe(false);
        }
      }),
    );
    fc.assert(
      fc.property(broadcastable, ({ from, to }) => {
        expect(broadcastPair(from, to)).toEqual(to);
      }),
    );
  });

  it('reads by strides the element whose index has 0 wherever the size is 1', () => {
    fc.assert(
      fc.property(broadcastable, ({ from, to }) => {
        const steps = broadcastStrides(from, to);
        const own = strides(from);
        expect(steps).toHaveLength(to.length);
        for (const [axis, step] of steps.entries()) {
          const axisOfFrom = axis - (to.length - from.length);
          expect(step).toBe(axisOfFrom < 0 || from[axisOfFrom] === 1 ? 0 : own[axisOfFrom]);
        }
      }),
    );
  });
});

describe('axes', () => {
  it('count from the end when negative', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: MAX_RANK }), fc.nat(MAX_RANK - 1), (rank, seed) => {
        const axis = seed % rank;
        expect(normalizeAxis('x', axis - rank, rank)).toBe(axis);
        expect(normalizeAxis('x', axis, rank)).toBe(axis);
      }),
    );
  });

  it.each([
    [2, 2],
    [-3, 2],
    [0, 0],
    [-1, 0],
    [Number.NaN, 2],
    [0.5, 2],
    [Number.POSITIVE_INFINITY, 2],
  ])('refuse %d for rank %d', (axis, rank) => {
    expect(refused(() => normalizeAxis('sum', axis, rank)).code).toBe('GPUOS_BAD_AXIS');
  });

  it('are sorted, default to all, and are refused when named twice', () => {
    expect(normalizeAxes('sum', [-1, 0], 3)).toEqual([0, 2]);
    expect(normalizeAxes('sum', undefined, 3)).toEqual([0, 1, 2]);
    expect(normalizeAxes('sum', [], 3)).toEqual([]);
    expect(refused(() => normalizeAxes('sum', [1, -2], 3)).message).toContain('axis 1 is given twice');
  });

  it('vanish or become 1 in a reduction, and the number of elements divides', () => {
    fc.assert(
      fc.property(shape, fc.array(fc.boolean(), { minLength: MAX_RANK, maxLength: MAX_RANK }), (sizes, chosen) => {
        const axes = sizes.flatMap((_, i) => (chosen[i] ? [i] : []));
        const kept = reducedShape(sizes, axes, true);
        const gone = reducedShape(sizes, axes, false);
        expect(kept).toHaveLength(sizes.length);
        expect(gone).toHaveLength(sizes.length - axes.length);
        expect(elementCount(kept)).toBe(elementCount(gone));
        expect(elementCount(gone) * elementCount(axes.map((axis) => sizes[axis] as number))).toBe(elementCount(sizes));
      }),
    );
  });
});
