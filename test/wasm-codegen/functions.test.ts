/** Every float32 function against double precision, in units in the last place, over all magnitudes and special values. */
import { describe, expect, test } from 'vitest';
import { erf, erfc } from '../../src/backends/reference/erf.ts';
import { SELU_ALPHA, SELU_LAMBDA } from '../../src/ops/map.ts';
import type { MapName } from '../../src/ops/program.ts';
import { runMap } from './machine.ts';

const { fround } = Math;
const SPECIALS = [
  0,
  -0,
  1,
  -1,
  0.5,
  -0.5,
  2,
  -2,
  Number.NaN,
  Number.POSITIVE_INFINITY,
  Number.NEGATIVE_INFINITY,
  2 ** -149,
  -(2 ** -149),
  1e-40,
  2 ** -126,
  3.4028234663852886e38,
  -3.4028234663852886e38,
  88.72283,
  88.72284,
  -87.33655,
  -103.97,
  -103.98,
  1e5,
  -1e5,
  2 ** 24,
  2 ** 31,
  2 ** -24,
  1 - 2 ** -24,
  1 + 2 ** -23,
].map(fround);

function points(): number[] {
  const list = [...SPECIALS];
  let state = 12345;
  const next = () => {
    state = (Math.imul(state, 1664525) + 1013904223) | 0;
    return (state >>> 0) / 2 ** 32;
  };
  for (let i = 0; i < 3000; i++) list.push(fround((next() - 0.5) * 24)); // where most functions bend
  for (let i = 0; i < 3000; i++) list.push(fround((next() < 0.5 ? -1 : 1) * 2 ** (next() * 276 - 149)));
  for (let i = 0; i < 1500; i++) list.push(fround((next() - 0.5) * 210)); // exp from underflow to overflow
  for (let i = 0; i < 1500; i++) list.push(fround(1 + (next() - 0.5) * 2 ** (-20 * next())));
  for (let i = 0; i < 1000; i++) list.push(fround((next() - 0.5) * 2e5));
  return list;
}

/** Distance in units in the last place of the float32 nearest to the truth; 0 for equal infinities and NaNs. */
function ulps(actual: number, truth: number): number {
  const rounded = fround(truth);
  if (Object.is(actual, rounded) || actual === rounded || (Number.isNaN(actual) && Number.isNaN(truth))) return 0;
  if (!Number.isFinite(actual) || !Number.isFinite(rounded)) {
    // A truth within two units of the overflow limit may go either way.
    const limit = 3.4028234663852886e38;
    return Math.abs(Math.abs(truth) - limit) < limit * 2 ** -21 && Math.sign(actual) === Math.sign(truth) ? 1 : Number.POSITIVE_INFINITY;
  }
  // Below 2^-122 the silu and the gelu multiply by a denormal number: what it has lost, times up to 104, is allowed for.
  const exponent = Math.max(-122, Math.floor(Math.log2(Math.abs(rounded) || 1e-45)));
  return Math.abs(actual - truth) / 2 ** (exponent - 23);
}

/** Truth, and the greatest error allowed in units in the last place. */
const UNARY: readonly (readonly [MapName, (x: number) => number, number])[] = [
  ['exp', Math.exp, 2],
  ['expm1', Math.expm1, 2],
  ['log', Math.log, 2],
  ['log1p', Math.log1p, 3],
  ['erf', erf, 3],
  ['tanh', Math.tanh, 3],
  ['sigmoid', (x) => 1 / (1 + Math.exp(-x)), 4],
  ['softplus', (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x))), 4],
  ['silu', (x) => x / (1 + Math.exp(-x)), 4],
  ['gelu', (x) => 0.5 * x * erfc(-x * Math.SQRT1_2), 6],
  ['elu', (x) => (x >= 0 ? x : Math.expm1(x)), 2],
  ['selu', (x) => SELU_LAMBDA * (x >= 0 ? x : SELU_ALPHA * Math.expm1(x)), 4],
  ['sin', Math.sin, 1],
  ['cos', Math.cos, 1],
  ['tan', Math.tan, 1],
  ['asin', Math.asin, 1],
  ['acos', Math.acos, 1],
  ['atan', Math.atan, 1],
  ['sinh', Math.sinh, 1],
  ['cosh', Math.cosh, 1],
  ['asinh', (x) => Math.sign(x) * Math.asinh(Math.abs(x)), 1],
  ['acosh', Math.acosh, 1],
  ['atanh', Math.atanh, 1],
  ['sqrt', Math.sqrt, 0.5],
  ['rsqrt', (x) => 1 / Math.sqrt(x), 2],
  ['reciprocal', (x) => 1 / x, 0.5],
];

function worst(inputs: readonly (readonly number[])[], actual: readonly number[], truth: (...args: number[]) => number): [number, string] {
  let most = 0;
  let where = '';
  actual.forEach((value, i) => {
    const args = inputs.map((list) => list[i] as number);
    const error = ulps(value, truth(...args));
    if (error > most) {
      most = error;
      where = `(${args}) gives ${value}, truth ${truth(...args)}, ${error} ulp`;
    }
  });
  return [most, where];
}

describe('functions of one float32', () => {
  const x = points();
  test.each(UNARY.map(([name, truth, bound]) => ({ name, truth, bound })))('$name is within $bound ulp', ({ name, truth, bound }) => {
    const [most, where] = worst([x], runMap(name, [x]), truth);
    if (process.env['SHOW']) console.log(name, most, where);
    expect(most, where).toBeLessThanOrEqual(bound + 1e-6);
  });

  test('gelu-tanh is within 2e-6 of |x| and keeps its special values', () => {
    const actual = runMap('gelu-tanh', [x]);
    x.forEach((value, i) => {
      const truth = fround(0.5 * value * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (value + 0.044715 * value ** 3))));
      if (Number.isFinite(truth)) expect(Math.abs((actual[i] as number) - truth)).toBeLessThanOrEqual(2e-6 * Math.abs(truth) + 1e-7);
      else expect(actual[i]).toBe(truth);
    });
  });
});

describe('functions of two float32', () => {
  const few = [...SPECIALS, 3, -3, 4, 0.1, -0.1, 1.5, 10, -7, 63, 64, 1e10, -1e-10, 16777215, fround(1.0000001), fround(0.9999999)].map(
    fround,
  );
  const a: number[] = [];
  const b: number[] = [];
  for (const p of few) {
    for (const q of few) {
      a.push(p);
      b.push(q);
    }
  }
  const spread = points();
  for (let i = 0; i < spread.length; i++) {
    a.push(Math.abs(spread[i] as number));
    b.push(spread[(i * 7 + 3) % spread.length] as number);
  }
  const floorMod = (p: number, q: number) => {
    const rest = p % q;
    return rest !== 0 && rest < 0 !== q < 0 ? rest + q : rest;
  };
  const BINARY: readonly (readonly [MapName, (p: number, q: number) => number, number])[] = [
    ['pow', (p, q) => p ** q, 1],
    ['atan2', Math.atan2, 1],
    ['mod', floorMod, 0.5],
  ];
  test.each(BINARY.map(([name, truth, bound]) => ({ name, truth, bound })))('$name is within $bound ulp', ({ name, truth, bound }) => {
    const [most, where] = worst([a, b], runMap(name, [a, b]), truth as (...args: number[]) => number);
    if (process.env['SHOW']) console.log(name, most, where);
    expect(most, where).toBeLessThanOrEqual(bound + 1e-6);
  });
  test('atan2 keeps the sign of zero', () => {
    const zeros = runMap(
      'atan2',
      [
        [0, -0, 0, -0],
        [1, 1, -1, -0],
      ].map((list) => list.map(fround)),
    );
    expect(zeros.map((value, i) => Object.is(value, [0, -0, fround(Math.PI), fround(-Math.PI)][i]))).toEqual([true, true, true, true]);
  });
});
