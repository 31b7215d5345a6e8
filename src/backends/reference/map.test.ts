import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Attributes, DType } from '../../ops/define.ts';
import { type HostTensor, hostTensor } from '../../ops/host-tensor.ts';
import { isHalf } from '../../ops/dtype.ts';
import { MAPS } from '../../ops/map.ts';
import type { MapName } from '../../ops/program.ts';
import { broadcastPair, elementCount } from '../../ops/shape.ts';
import { referenceRun } from './index.ts';

const NAN = Number.NaN;
const INF = Number.POSITIVE_INFINITY;
const LEAST = -(2 ** 31);
const GREATEST = 2 ** 31 - 1;
/** The least denormal float32. */
const TINY = 2 ** -149;

/** Rows of arguments and result, for float32 operands and for int32 ones; values by hand or from tables. */
interface Cases {
  readonly float?: readonly (readonly number[])[];
  readonly int?: readonly (readonly number[])[];
  readonly bool?: readonly (readonly number[])[];
}

// biome-ignore format: a table reads by its rows
const CASES: Readonly<Record<Exclude<MapName, 'cast'>, Cases>> = {
  add: { float: [[1.5, 2, 3.5], [INF, -INF, NAN], [TINY, TINY, 2 * TINY]], int: [[1, 2, 3], [GREATEST, 1, LEAST]] },
  sub: { float: [[1.5, 2, -0.5], [INF, INF, NAN]], int: [[1, 2, -1], [LEAST, 1, GREATEST]] },
  mul: { float: [[1.5, 2, 3], [0, INF, NAN], [TINY, 0.25, 0]], int: [[3, -2, -6], [65537, 65537, 131073], [LEAST, -1, LEAST]] },
  div: { float: [[3, 2, 1.5], [1, 0, INF], [-1, 0, -INF], [0, 0, NAN]] },
  'floor-div': { float: [[7, 2, 3], [-7, 2, -4], [7, -2, -4], [1, 0, INF], [0, 0, NAN]], int: [[7, 2, 3], [-7, 2, -4], [7, -2, -4], [-7, -2, 3], [5, 0, 0], [LEAST, -1, LEAST], [GREATEST, 1, GREATEST]] },
  mod: { float: [[7, 3, 1], [-7, 3, 2], [7, -3, -2], [-7, -3, -1], [5.5, 2, 1.5], [1, 0, NAN], [INF, 2, NAN], [3, INF, 3]], int: [[7, 3, 1], [-7, 3, 2], [7, -3, -2], [-7, -3, -1], [5, 0, 0], [LEAST, -1, 0]] },
  maximum: { float: [[1, 2, 2], [NAN, 1, NAN], [1, NAN, NAN], [-INF, 3, 3]], int: [[LEAST, GREATEST, GREATEST]] },
  minimum: { float: [[1, 2, 1], [NAN, 1, NAN], [1, NAN, NAN], [INF, 3, 3]], int: [[LEAST, GREATEST, LEAST]] },
  pow: { float: [[2, 10, 1024], [4, -0.5, 0.5], [-8, 1 / 3, NAN], [0, 0, 1], [0, -1, INF], [-2, 3, -8]], int: [[2, 10, 1024], [3, 40, 689956897], [-2, 31, LEAST], [2, 32, 0], [2, -1, 0], [-1, -3, -1], [-1, -2, 1], [1, -5, 1], [0, -1, 0], [0, 0, 1]] },
  'squared-difference': { float: [[5, 2, 9], [NAN, 1, NAN]], int: [[5, 2, 9], [GREATEST, LEAST, 1]] },
  atan2: { float: [[1, 1, Math.PI / 4], [1, 0, Math.PI / 2], [0, -1, Math.PI], [-1, -1, (-3 * Math.PI) / 4]] },
  prelu: { float: [[2, 0.1, 2], [-2, 0.25, -0.5], [NAN, 0.5, NAN], [-INF, 0.5, -INF]] },
  equal: { float: [[1, 1, 1], [1, 2, 0], [NAN, NAN, 0], [0, -0, 1]], int: [[3, 3, 1]], bool: [[1, 1, 1], [0, 1, 0]] },
  'not-equal': { float: [[1, 1, 0], [1, 2, 1], [NAN, NAN, 1]], int: [[3, 4, 1]], bool: [[0, 1, 1]] },
  less: { float: [[1, 2, 1], [2, 2, 0], [NAN, 1, 0], [-INF, INF, 1]], int: [[LEAST, GREATEST, 1]], bool: [[0, 1, 1], [1, 1, 0]] },
  'less-equal': { float: [[2, 2, 1], [3, 2, 0], [1, NAN, 0]], int: [[GREATEST, LEAST, 0]], bool: [[1, 0, 0]] },
  greater: { float: [[2, 1, 1], [2, 2, 0], [NAN, 1, 0]], int: [[GREATEST, LEAST, 1]], bool: [[1, 0, 1]] },
  'greater-equal': { float: [[2, 2, 1], [1, 2, 0], [NAN, NAN, 0]], int: [[-1, -1, 1]], bool: [[0, 1, 0]] },
  'logical-and': { bool: [[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 1]] },
  'logical-or': { bool: [[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 1]] },
  'logical-xor': { bool: [[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]] },
  'logical-not': { bool: [[0, 1], [1, 0]] },
  select: { float: [[1, 5, NAN, 5], [0, NAN, 7, 7]], int: [[1, 5, 7, 5], [0, 5, 7, 7]], bool: [[1, 0, 1, 0]] },
  neg: { float: [[1.5, -1.5], [INF, -INF]], int: [[3, -3], [LEAST, LEAST]] },
  abs: { float: [[-1.5, 1.5], [-INF, INF], [NAN, NAN]], int: [[-3, 3], [LEAST, LEAST]] },
  sign: { float: [[-2.5, -1], [0, 0], [TINY, 1], [NAN, 0]], int: [[-9, -1], [0, 0], [9, 1]] },
  exp: { float: [[0, 1], [1, Math.E], [-INF, 0], [INF, INF], [100, INF], [-103, 2 ** -149]] },
  expm1: { float: [[0, 0], [1e-8, 1e-8], [1, 1.718281828459045], [-INF, -1]] },
  log: { float: [[1, 0], [10, Math.LN10], [0, -INF], [-1, NAN], [INF, INF]] },
  log1p: { float: [[0, 0], [1e-8, 1e-8], [1, Math.LN2], [-1, -INF], [-2, NAN]] },
  sqrt: { float: [[9, 3], [2, Math.SQRT2], [-1, NAN], [INF, INF]] },
  rsqrt: { float: [[4, 0.5], [2, Math.SQRT1_2], [0, INF], [INF, 0], [-1, NAN]] },
  square: { float: [[-3, 9], [1e20, INF]], int: [[-3, 9], [65537, 131073]] },
  reciprocal: { float: [[4, 0.25], [0, INF], [INF, 0]] },
  floor: { float: [[1.7, 1], [-1.2, -2], [INF, INF], [NAN, NAN]] },
  ceil: { float: [[1.2, 2], [-1.7, -1], [-INF, -INF]] },
  round: { float: [[0.5, 0], [1.5, 2], [2.5, 2], [-0.5, 0], [-1.5, -2], [-2.5, -2], [2.4, 2], [2.6, 3], [8388609, 8388609], [INF, INF], [NAN, NAN]] },
  erf: { float: [[0, 0], [0.5, 0.5204998778130465], [-1, -0.8427007929497149], [INF, 1], [-INF, -1], [NAN, NAN]] },
  tanh: { float: [[0, 0], [0.5, 0.462117157260009], [INF, 1], [-INF, -1]] },
  sigmoid: { float: [[0, 0.5], [1, 0.7310585786300049], [INF, 1], [-INF, 0], [-100, 3.720075976020836e-44]] },
  softplus: { float: [[0, Math.LN2], [1, 1.3132616875182228], [1000, 1000], [-INF, 0], [INF, INF]] },
  sin: { float: [[0, 0], [0.5, 0.479425538604203], [INF, NAN]] },
  cos: { float: [[0, 1], [0.5, 0.8775825618903728], [INF, NAN]] },
  tan: { float: [[0, 0], [0.5, 0.5463024898437905]] },
  asin: { float: [[1, Math.PI / 2], [0.5, Math.PI / 6], [2, NAN]] },
  acos: { float: [[1, 0], [0.5, Math.PI / 3], [2, NAN]] },
  atan: { float: [[1, Math.PI / 4], [INF, Math.PI / 2]] },
  sinh: { float: [[0, 0], [1, 1.1752011936438014], [-INF, -INF]] },
  cosh: { float: [[0, 1], [1, 1.5430806348152437], [-INF, INF]] },
  asinh: { float: [[0, 0], [1, 0.881373587019543], [-INF, -INF]] },
  acosh: { float: [[1, 0], [2, 1.3169578969248166], [0.5, NAN]] },
  atanh: { float: [[0, 0], [0.5, 0.5493061443340548], [1, INF], [2, NAN]] },
  relu: { float: [[2, 2], [-2, 0], [NAN, NAN], [INF, INF]], int: [[-3, 0], [3, 3]] },
  relu6: { float: [[2, 2], [-2, 0], [7, 6], [NAN, NAN], [INF, 6]] },
  elu: { float: [[2, 2], [-1, -0.6321205588285577], [-INF, -1], [NAN, NAN]] },
  selu: { float: [[1, 1.0507009873554805], [-1, -1.1113307378125625], [-INF, -1.7580993408473766]] },
  gelu: { float: [[0, 0], [1, 0.8413447460685429], [-1, -0.15865525393145707], [-6, -5.919525870226189e-9], [100, 100]] },
  'gelu-tanh': { float: [[0, 0], [1, 0.8411919906082768], [-1, -0.15880800939172324]] },
  silu: { float: [[0, 0], [1, 0.7310585786300049], [-1, -0.2689414213699951], [INF, INF]] },
  'is-nan': { float: [[NAN, 1], [INF, 0], [1, 0]] },
  'is-inf': { float: [[NAN, 0], [-INF, 1], [1, 0]] },
  'is-finite': { float: [[NAN, 0], [INF, 0], [TINY, 1]] },
};

/** Runs a map over columns of arguments. */
function columns(name: string, rows: readonly (readonly number[])[], dtype: DType): { got: HostTensor; expected: number[] } {
  const arity = MAPS[name as MapName].inputs.length;
  const inputs = Array.from({ length: arity }, (_, column) => {
    const values = rows.map((row) => row[column] as number);
    return hostTensor([rows.length], values, name === 'select' && column === 0 ? 'bool' : dtype);
  });
  return { got: referenceRun(name, inputs)[0] as HostTensor, expected: rows.map((row) => row[arity] as number) };
}

function one(name: string, value: HostTensor, attributes: Attributes = {}): readonly number[] {
  return Array.from((referenceRun(name, [value], attributes)[0] as HostTensor).data);
}

describe('maps', () => {
  for (const [name, cases] of Object.entries(CASES)) {
    it(`${name}: values by hand`, () => {
      const dtypes = { float: 'float32', int: 'int32', bool: 'bool' } as const;
      const tried = (Object.keys(dtypes) as (keyof typeof dtypes)[]).filter((key) => cases[key]);
      expect(tried.map((key) => dtypes[key]).sort()).toEqual(MAPS[name as MapName].operands.filter((dtype) => !isHalf(dtype)).sort());
      for (const key of tried) {
        const rows = cases[key] as readonly (readonly number[])[];
        const { got, expected } = columns(name, rows, dtypes[key]);
        expect(got.dtype).toBe(MAPS[name as MapName].result === 'bool' ? 'bool' : dtypes[key]);
        for (const [i, value] of expected.entries()) {
          const label = `${name}(${rows[i]?.slice(0, -1).join(', ')})`;
          const actual = got.data[i] as number;
          if (!Number.isFinite(value) || value === 0 || key !== 'float') expect(actual === 0 ? 0 : actual, label).toBe(value);
          // The arguments themselves are rounded to float32, so the last digits are not those of the table.
          else expect(Math.abs(actual - value), label).toBeLessThan(3e-7 * Math.abs(value) + TINY);
        }
      }
    });
  }

  it('cast by the rules of each pair', () => {
    const floats = hostTensor([8], [1.9, -1.9, 0, NAN, INF, -INF, 3e9, TINY]);
    expect(one('cast', floats, { dtype: 'int32' })).toEqual([1, -1, 0, 0, GREATEST, LEAST, GREATEST, 0]);
    expect(one('cast', floats, { dtype: 'bool' })).toEqual([1, 1, 0, 1, 1, 1, 1, 1]);
    expect(one('cast', hostTensor([3], [16777217, -3, 0], 'int32'), { dtype: 'float32' })).toEqual([16777216, -3, 0]);
    expect(one('cast', hostTensor([3], [7, -3, 0], 'int32'), { dtype: 'bool' })).toEqual([1, 1, 0]);
    expect(one('cast', hostTensor([2], [1, 0], 'bool'), { dtype: 'float32' })).toEqual([1, 0]);
    expect(one('cast', hostTensor([2], [1, 0], 'bool'), { dtype: 'int32' })).toEqual([1, 0]);
  });

  it('clip, leaky-relu and step', () => {
    const x = hostTensor([6], [-2, -0.5, 0, 3, NAN, INF]);
    expect(one('clip', x, { min: -1, max: 2 })).toEqual([-1, -0.5, 0, 2, NAN, 2]);
    expect(one('clip', x)).toEqual([-2, -0.5, 0, 3, NAN, INF]);
    expect(one('clip', hostTensor([3], [-5, 0, 5], 'int32'), { min: -INF, max: 2 })).toEqual([-5, 0, 2]);
    expect(one('leaky-relu', x, { alpha: 0.5 })).toEqual([-1, -0.25, 0, 3, NAN, INF]);
    expect(one('step', x, { alpha: 0.25 })).toEqual([0.25, 0.25, 0.25, 1, NAN, 1]);
  });

  it('satisfy the identity of division for int32, wherever b is not 0', () => {
    const int = fc.oneof(fc.integer(), fc.integer({ min: -9, max: 9 }), fc.constantFrom(LEAST, GREATEST));
    fc.assert(
      fc.property(int, int, (a, b) => {
        const [x, y] = [hostTensor([], [a], 'int32'), hostTensor([], [b], 'int32')];
        const quotient = referenceRun('floor-div', [x, y])[0] as HostTensor;
        const rest = referenceRun('mod', [x, y])[0] as HostTensor;
        const back = referenceRun('add', [referenceRun('mul', [quotient, y])[0] as HostTensor, rest])[0] as HostTensor;
        if (b === 0) {
          expect([quotient.data[0], rest.data[0]]).toEqual([0, 0]);
          return;
        }
        expect(back.data[0]).toBe(a);
        expect(Math.abs(rest.data[0] as number)).toBeLessThan(Math.abs(b));
      }),
    );
  });

  it('broadcast: each element is that of the operands repeated in full', () => {
    const shape = fc.array(fc.integer({ min: 0, max: 3 }), { maxLength: 4 });
    const ones = fc.array(fc.boolean(), { minLength: 4, maxLength: 4 });
    fc.assert(
      fc.property(shape, ones, ones, fc.nat(4), (to, onesA, onesB, drop) => {
        const shapeA = to.map((size, i) => (onesA[i] ? 1 : size));
        const shapeB = to.map((size, i) => (onesB[i] ? 1 : size)).slice(Math.min(drop, to.length));
        const fill = (own: readonly number[], seed: number) =>
          hostTensor(
            own,
            Float32Array.from({ length: elementCount(own) }, (_, i) => Math.sin(seed + 3 * i)),
          );
        const [a, b] = [fill(shapeA, 1), fill(shapeB, 2)];
        const both = broadcastPair(shapeA, shapeB) as readonly number[];
        const repeat = (x: HostTensor) => referenceRun('expand', [x], { shape: both })[0] as HostTensor;
        expect(referenceRun('sub', [a, b])).toEqual(referenceRun('sub', [repeat(a), repeat(b)]));
        expect((referenceRun('sub', [a, b])[0] as HostTensor).shape).toEqual(both);
      }),
    );
  });

  it('leave their inputs as they are', () => {
    const x = hostTensor([2], [1, -1]);
    referenceRun('relu', [x]);
    expect(Array.from(x.data)).toEqual([1, -1]);
  });
});
