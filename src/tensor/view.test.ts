import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Attributes, Shape } from '../ops/define.ts';
import { operatorByName } from '../ops/index.ts';
import { elementCount } from '../ops/shape.ts';
import { shapeInfo } from './shape-info.ts';
import { composeView, isContiguous, reshapeStrides, type View } from './view.ts';

/** The memory index of each element of a view, in row-major order, by plain loops. */
function indices(shape: Shape, view: View): number[] {
  let result = [view.offset];
  shape.forEach((size, axis) => {
    result = result.flatMap((at) => Array.from({ length: size }, (_, i) => at + i * (view.strides[axis] as number)));
  });
  return result;
}

interface Value {
  readonly shape: Shape;
  /** Memory index of each element, row-major. */
  readonly flat: readonly number[];
}

/** What a view operator does to the elements, one by one, with neither strides nor the code under test. */
function viewed(name: string, attributes: Attributes, { shape, flat }: Value, to: Shape): Value {
  const pick = (source: (index: number[]) => number[]): Value => {
    const result: number[] = [];
    const walk = (index: number[]): void => {
      if (index.length < to.length) {
        for (let i = 0; i < (to[index.length] as number); i++) walk([...index, i]);
        return;
      }
      let at = 0;
      source(index).forEach((place, axis) => {
        at = at * (shape[axis] as number) + place;
      });
      result.push(flat[at] as number);
    };
    walk([]);
    return { shape: to, flat: result };
  };
  const begin = attributes['begin'] as number[];
  switch (name) {
    case 'transpose': {
      const perm = (attributes['perm'] as number[]).map((axis) => (axis < 0 ? axis + shape.length : axis));
      return pick((index) => shape.map((_, axis) => index[perm.indexOf(axis)] as number));
    }
    case 'slice':
      return pick((index) => index.map((place, axis) => place + (begin[axis] as number)));
    case 'strided-slice':
      return pick((index) => index.map((place, axis) => (begin[axis] as number) + place * (attributes['strides'] as number[])[axis]!));
    case 'expand':
      return pick((index) => index.slice(to.length - shape.length).map((place, axis) => (shape[axis] === 1 ? 0 : place)));
    case 'reverse':
      return pick((index) =>
        index.map((place, axis) => ((attributes['axes'] as number[]).includes(axis) ? (shape[axis] as number) - 1 - place : place)),
      );
    default:
      // reshape, squeeze, expand-dims: the same elements in the same order.
      return { shape: to, flat };
  }
}

type Choice = { readonly kind: number; readonly numbers: readonly number[] };

/** A view operator that fits this shape, out of numbers of any size. */
function operation({ kind, numbers }: Choice, shape: Shape): [string, Attributes] | undefined {
  const rank = shape.length;
  const number = (i: number, below: number) => (numbers[i % numbers.length] as number) % Math.max(1, below);
  switch (kind % 8) {
    case 0: {
      const order = shape.map((_, i) => i).sort((a, b) => (numbers[a] as number) - (numbers[b] as number) || a - b);
      return ['transpose', { perm: order.map((axis, i) => (number(i + 5, 3) === 0 ? axis - rank : axis)) }];
    }
    case 1: {
      const begin = shape.map((size, i) => number(i, size + 1));
      return [
        'slice',
        { begin, size: shape.map((size, i) => (number(i + 2, 3) === 0 ? -1 : number(i + 3, size - (begin[i] as number) + 1))) },
      ];
    }
    case 2: {
      if (shape.includes(0)) return undefined;
      const strides = shape.map((_, i) => [1, 2, -1, -2, 3][number(i, 5)] as number);
      const begin = shape.map((size, i) => number(i + 1, size));
      return ['strided-slice', { begin, strides, end: shape.map((size, i) => ((strides[i] as number) > 0 ? size : -1)) }];
    }
    case 3:
      return rank > 4
        ? undefined
        : ['expand', { shape: [...(number(0, 2) === 0 ? [] : [2]), ...shape.map((size, i) => (size === 1 ? 1 + number(i, 3) : size))] }];
    case 4:
      return ['reverse', { axes: shape.map((_, i) => i).filter((i) => number(i, 2) === 0) }];
    case 5:
      return ['squeeze', {}];
    case 6:
      return rank > 5 ? undefined : ['expand-dims', { axis: number(0, rank + 1) }];
    default: {
      const factors: number[] = [];
      let rest = elementCount(shape);
      if (rest === 0) return ['reshape', { shape: [...shape].reverse() }];
      for (let divisor = 2; rest > 1; divisor++) {
        for (; rest % divisor === 0; rest /= divisor) factors.push(divisor);
      }
      const to = new Array<number>(1 + number(0, 5)).fill(1);
      factors.forEach((factor, i) => {
        const place = number(i + 1, to.length);
        to[place] = (to[place] as number) * factor;
      });
      return ['reshape', { shape: to }];
    }
  }
}

const choices = fc.array(fc.record({ kind: fc.nat(7), numbers: fc.array(fc.nat(1000), { minLength: 12, maxLength: 12 }) }), {
  minLength: 1,
  maxLength: 8,
});
const shapes = fc.array(fc.oneof(fc.integer({ min: 1, max: 4 }), fc.integer({ min: 1, max: 6 }), fc.constant(0)), { maxLength: 4 });

/** Whether any strides give these memory indices in this shape, by looking at every pair of neighbours. */
function stridesExist(shape: Shape, flat: readonly number[]): boolean {
  if (flat.length === 0) return true;
  let inner = 1;
  const strides = new Array<number>(shape.length).fill(0);
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    if ((shape[axis] as number) > 1) strides[axis] = (flat[inner] as number) - (flat[0] as number);
    inner *= shape[axis] as number;
  }
  return indices(shape, { strides, offset: flat[0] as number }).every((at, i) => at === flat[i]);
}

describe('composeView', () => {
  it('of any chain of views equals picking the elements one by one; undefined only where no strides can', () => {
    let refused = 0;
    fc.assert(
      fc.property(shapes, choices, (shape, list) => {
        let info = shapeInfo(shape);
        let view: View = { strides: info.strides, offset: 0 };
        let value: Value = { shape, flat: Array.from({ length: info.size }, (_, i) => i) };
        for (const choice of list) {
          const made = operation(choice, value.shape);
          if (made === undefined) continue;
          const [name, attributes] = made;
          const to = shapeInfo(operatorByName(name).infer([{ shape: value.shape, dtype: 'float32' }], attributes)[0]!.shape);
          if (to.size > 3000) return;
          const next = composeView(name, attributes, info, view, to);
          value = viewed(name, attributes, value, to.dims);
          if (next === undefined) {
            expect(
              stridesExist(to.dims, value.flat),
              `${name} ${JSON.stringify(attributes)} of [${info.dims}] with strides [${view.strides}]`,
            ).toBe(false);
            refused++;
            return;
          }
          expect(next.strides.length).toBe(to.dims.length);
          expect(indices(to.dims, next), `${name} ${JSON.stringify(attributes)} of [${info.dims}]`).toEqual(value.flat);
          // An empty view reads nothing, but its address is passed on: it stays inside.
          expect(next.offset).toBeGreaterThanOrEqual(0);
          expect(next.offset).toBeLessThanOrEqual(Math.max(0, elementCount(shape)));
          expect(isContiguous(to, next) && to.size > 0).toBe(
            to.size > 0 && value.flat.every((at, i) => at === (value.flat[0] as number) + i),
          );
          info = to;
          view = next;
        }
      }),
      { seed: 118, numRuns: 1500 },
    );
    expect(refused).toBeGreaterThan(10);
  });
});

describe('reshapeStrides', () => {
  it.each([
    [[2, 3], [3, 1], [6], [1]],
    [[2, 3], [1, 2], [6], undefined],
    [
      [4, 6],
      [12, 2],
      [2, 2, 6],
      [24, 12, 2],
    ],
    [[4, 6], [12, 2], [24], [2]],
    [[4, 6], [13, 2], [24], undefined],
    [[2, 1, 3], [3, 99, 1], [6], [1]],
    [
      [2, 3],
      [0, 0],
      [3, 2],
      [0, 0],
    ],
    [[6], [-1], [2, 3], [-3, -1]],
    [
      [4, 6],
      [6, 1],
      [8, 3],
      [3, 1],
    ],
  ])('[%s] with strides [%s] as [%s]: %s', (from, strides, to, expected) => {
    expect(reshapeStrides(from, strides, to)).toEqual(expected);
  });
});
