/** Every float32 function against double precision, over all magnitudes and special values, by the tolerances of the conformance suite. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { FLOAT_ELEMENTS } from '../../src/backends/reference/map.ts';
import { MAPS } from '../../src/ops/map.ts';
import type { MapName, Program } from '../../src/ops/program.ts';
import { difference } from '../conformance/tolerances.ts';
import { type Emulated, NO_GXX, reason } from '../cuda/emulation/emulation.ts';
import { compileAll, runRow } from './machine.ts';

const { fround } = Math;
const ULP = 2 ** -23;
const SPECIALS = [
  ...[
    0,
    -0,
    1,
    -1,
    0.5,
    -0.5,
    2,
    -2,
    3,
    -3,
    1.5,
    10,
    -7,
    63,
    64,
    0.1,
    -0.1,
    Number.NaN,
    Number.POSITIVE_INFINITY,
    Number.NEGATIVE_INFINITY,
  ],
  ...[2 ** -149, -(2 ** -149), 1e-40, 2 ** -126, 1.17e-38, 3.4028234663852886e38, -3.4028234663852886e38, 88.72283, 88.72284, -87.33655],
  ...[
    -103.97,
    -103.98,
    89.4,
    -89.4,
    1e5,
    -1e5,
    1e10,
    -1e-10,
    2 ** 24,
    2 ** 24 - 1,
    2 ** 31,
    -(2 ** 31),
    2 ** -24,
    1 - 2 ** -24,
    1 + 2 ** -23,
  ],
  ...[2 ** 62, 2 ** 63, 2 ** 64, 2 ** -62, 2 ** -63, 2 ** -64, 2 ** -100, 1e18, 1e30, 32767.9, 32768, 2.5, 3.5, -2.5],
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
  // Next to the zeros of sine and cosine, small and large.
  for (let i = 1; i < 1500; i++) list.push(fround((i * Math.PI) / 2), fround((i * i * i * Math.PI) / 2));
  return list;
}

/** Rounded once by a device as by the reference: not a bit of difference. */
const EXACT = new Set<MapName>([
  ...(['add', 'sub', 'mul', 'div', 'floor-div', 'mod', 'maximum', 'minimum', 'prelu', 'neg', 'abs', 'sign', 'sqrt', 'square'] as const),
  ...(['reciprocal', 'floor', 'ceil', 'round', 'relu', 'relu6', 'is-nan', 'is-inf', 'is-finite'] as const),
  ...(['equal', 'not-equal', 'less', 'less-equal', 'greater', 'greater-equal'] as const),
]);
/** Right to an absolute error too, as the conformance suite has them. */
const CANCELLING = new Set<MapName>(['gelu-tanh', 'softplus']);

const NAMES = (Object.keys(MAPS) as MapName[]).filter(
  (name) => name !== 'cast' && name !== 'select' && MAPS[name].operands.includes('float32'),
);

function program(op: MapName): Program {
  const count = MAPS[op].inputs.length;
  return {
    inputs: Array.from({ length: count }, () => ({ dtype: 'float32', columnStride: 1 })),
    scalars: 0,
    nodes: [
      ...Array.from({ length: count }, (_, input) => ({ kind: 'input', input, dtype: 'float32' }) as const),
      { kind: 'map', op, args: Array.from({ length: count }, (_, i) => i), dtype: MAPS[op].result === 'bool' ? 'bool' : 'float32' },
    ],
    outputs: [{ node: count, dtype: MAPS[op].result === 'bool' ? 'bool' : 'float32', space: 'full' }],
    outerRank: 0,
  };
}

describe.skipIf(NO_GXX)(reason('functions of float32 on the CUDA device'), () => {
  let emulated: Emulated;
  beforeAll(() => {
    emulated = compileAll(NAMES.map(program));
  }, 120_000);
  afterAll(() => emulated.free());

  const x = points();
  const pairs: [number[], number[]] = [[], []];
  for (const p of SPECIALS) {
    pairs[0].push(...SPECIALS.map(() => p));
    pairs[1].push(...SPECIALS);
  }
  x.forEach((value, i) => {
    const other = x[(i * 7 + 3) % x.length]!;
    pairs[0].push(value, Math.abs(value), value);
    pairs[1].push(other, other, fround(Math.round(other)));
  });

  test.each(NAMES.map((name) => ({ name })))('$name', ({ name }) => {
    const inputs = MAPS[name].inputs.length === 1 ? [x] : pairs;
    const shape = program(name);
    const [actual] = runRow(shape, (params) => emulated.callAll(`p${NAMES.indexOf(name)}`, params, 1), inputs) as [number[]];
    const element = FLOAT_ELEMENTS[name as Exclude<MapName, 'cast'>];
    const expected = inputs[0]!.map((_, i) => fround(element(inputs[0]![i]!, inputs[1]?.[i] ?? 0, 0)));
    const tolerance = EXACT.has(name)
      ? { relative: 0, absolute: 0 }
      : { relative: 4 * ULP, absolute: CANCELLING.has(name) ? 0.4 * ULP : 2 ** -126 };
    // A truth next to the greatest float32 may be rounded to infinity.
    expected.forEach((value, i) => {
      const got = actual[i]!;
      if (!EXACT.has(name) && value !== got && Math.max(Math.abs(value), Math.abs(got)) === Number.POSITIVE_INFINITY) {
        const least = Math.min(Math.abs(value), Math.abs(got));
        if (Math.sign(value) === Math.sign(got) && least > 3.4028e38) expected[i] = got;
      }
    });
    const found = difference(actual, expected, tolerance);
    const at = Number(/element (\d+)/.exec(found ?? '')?.[1]);
    expect(found && `${found} for (${inputs.map((list) => list[at])})`).toBeUndefined();
  });
});
