/**
 * Every kernel that we have against the CPU kernel of tfjs: random shapes, dtypes and values, through the public
 * operations of tfjs; on the reference engine, so that our mapping alone is at test, and on the real one.
 */
import * as tf from '@tensorflow/tfjs-core';
import '@tensorflow/tfjs-backend-cpu';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ENGINES, type OpenedEngine } from '../../../test/tfjs-engines.ts';
import { GpuosError } from '../../errors.ts';
import { CPU_KERNELS } from './kernel-names.ts';
import { KERNELS } from './kernels/index.ts';
import { type Registration, register } from './registration.ts';

type Result = tf.Tensor | tf.Tensor[];
type DType = 'float32' | 'int32' | 'bool';

let opened: OpenedEngine;
let registration: Registration;

interface Value {
  readonly shape: number[];
  readonly dtype: string;
  readonly values: number[];
}

function on(backend: string, run: () => Result): Value[] {
  void tf.setBackend(backend);
  const before = tf.memory();
  let values: Value[] = [];
  tf.tidy(() => {
    const result = run();
    const tensors = Array.isArray(result) ? result : [result];
    values = tensors.map((tensor) => ({ shape: tensor.shape, dtype: tensor.dtype, values: [...tensor.dataSync()] }));
  });
  expect(tf.memory()).toEqual(before);
  return values;
}

/** Runs the operation on both backends and compares shapes, dtypes and values. */
function compare(run: () => Result, tolerance = 1e-5): void {
  const expected = on('cpu', run);
  const live = opened.live();
  const actual = on('gpuos', run);
  expect(actual.map(({ shape, dtype }) => ({ shape, dtype }))).toEqual(expected.map(({ shape, dtype }) => ({ shape, dtype })));
  for (const [i, { values, dtype }] of actual.entries()) {
    const wanted = (expected[i] as Value).values;
    for (let j = 0; j < wanted.length; j++) {
      const [a, b] = [values[j] as number, wanted[j] as number];
      if (Object.is(a, b) || a === b) continue;
      if (dtype !== 'float32' || !(Math.abs(a - b) <= tolerance * Math.max(1, Math.abs(b)))) {
        expect.fail(`element ${j} of output ${i} is ${a}, not ${b}`);
      }
    }
  }
  // Scalars that the backend keeps are the only thing that stays.
  expect(opened.live() - live).toBeLessThanOrEqual(4);
}

function counts(run: () => void) {
  void tf.setBackend('gpuos');
  registration.backend.resetStatistics();
  tf.tidy(run);
  return registration.backend.statistics();
}

const random = (seed: number) => {
  let state = seed | 1;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) | 0;
    return (state >>> 8) / 2 ** 24;
  };
};

/** A tensor of these random values, made anew on whichever backend is selected. */
function tensor(shape: readonly number[], dtype: DType, seed: number, low = -4, high = 4): tf.Tensor {
  const next = random(seed * 7919 + 17);
  const count = shape.reduce((a, b) => a * b, 1);
  const values = Array.from({ length: count }, () => low + next() * (high - low));
  if (dtype === 'float32') return tf.tensor(values, [...shape], 'float32');
  if (dtype === 'int32') return tf.tensor(Int32Array.from(values, Math.floor), [...shape], 'int32');
  return tf.tensor(
    Uint8Array.from(values, (value) => (value > 0 ? 1 : 0)),
    [...shape],
    'bool',
  );
}

/** Small ones, which the host knows when they are integers, and ones too big for that. */
const shapes = fc.oneof(fc.array(fc.integer({ min: 0, max: 4 }), { maxLength: 4 }), fc.constantFrom([65], [3, 40], [2, 3, 4, 5]));

/** A pair that broadcasts. */
const pairs = shapes.chain((shape) =>
  fc
    .tuple(fc.array(fc.boolean(), { minLength: shape.length, maxLength: shape.length }), fc.nat({ max: shape.length }), fc.boolean())
    .map(([ones, drop, swap]) => {
      const other = shape.map((size, i) => (ones[i] ? 1 : size)).slice(drop);
      return swap ? ([other, shape] as const) : ([shape, other] as const);
    }),
);

const seeds = fc.nat({ max: 1000 });
const RUNS = { numRuns: 25 };

/** The sum over all letters, one assignment of indices at a time. */
function einsumByDefinition(equation: string, tensors: readonly tf.Tensor[]): { shape: number[]; values: number[] } {
  const [left, output] = equation.split('->') as [string, string];
  const terms = left.split(',');
  const size: Record<string, number> = {};
  for (const [i, term] of terms.entries()) {
    for (const [axis, letter] of [...term].entries()) size[letter] = (tensors[i] as tf.Tensor).shape[axis] as number;
  }
  const letters = Object.keys(size);
  const shape = [...output].map((letter) => size[letter] as number);
  const values = new Array<number>(shape.reduce((a, b) => a * b, 1)).fill(0);
  const data = tensors.map((tensor) => tensor.dataSync());
  const flat = (term: string, index: Record<string, number>) =>
    [...term].reduce((at, letter) => at * (size[letter] as number) + (index[letter] as number), 0);
  const visit = (at: number, index: Record<string, number>): void => {
    if (at === letters.length) {
      const factor = terms.reduce((product, term, i) => product * ((data[i] as Float32Array)[flat(term, index)] as number), 1);
      values[flat(output, index)] = (values[flat(output, index)] as number) + factor;
      return;
    }
    const letter = letters[at] as string;
    for (let i = 0; i < (size[letter] as number); i++) visit(at + 1, { ...index, [letter]: i });
  };
  visit(0, {});
  return { shape, values };
}

describe.each(ENGINES)('on the $name engine', ({ open }) => {
  beforeAll(() => {
    opened = open();
    registration = register({ open: () => opened.engine, mode: 'warn', warn: () => {}, inform: () => {} });
  });

  afterAll(async () => {
    registration.remove();
    await opened.close();
  });

  describe('element-wise', () => {
    const unary: Record<string, readonly [(x: tf.Tensor) => tf.Tensor, readonly DType[], number?, number?]> = {
      neg: [tf.neg, ['float32', 'int32']],
      abs: [tf.abs, ['float32', 'int32']],
      sign: [tf.sign, ['float32', 'int32']],
      square: [tf.square, ['float32', 'int32']],
      relu: [tf.relu, ['float32', 'int32']],
      exp: [tf.exp, ['float32']],
      expm1: [tf.expm1, ['float32']],
      log: [tf.log, ['float32']],
      log1p: [tf.log1p, ['float32'], -0.9],
      sqrt: [tf.sqrt, ['float32']],
      rsqrt: [tf.rsqrt, ['float32'], 0.1],
      reciprocal: [tf.reciprocal, ['float32'], 0.5],
      erf: [tf.erf, ['float32']],
      tanh: [tf.tanh, ['float32']],
      sigmoid: [tf.sigmoid, ['float32']],
      softplus: [tf.softplus, ['float32']],
      sin: [tf.sin, ['float32']],
      cos: [tf.cos, ['float32']],
      tan: [tf.tan, ['float32'], -1, 1],
      asin: [tf.asin, ['float32'], -1, 1],
      acos: [tf.acos, ['float32'], -1, 1],
      atan: [tf.atan, ['float32']],
      sinh: [tf.sinh, ['float32']],
      cosh: [tf.cosh, ['float32']],
      asinh: [tf.asinh, ['float32']],
      acosh: [tf.acosh, ['float32'], 1, 4],
      atanh: [tf.atanh, ['float32'], -0.9, 0.9],
      relu6: [tf.relu6, ['float32'], -4, 9],
      elu: [tf.elu, ['float32']],
      selu: [tf.selu, ['float32']],
      floor: [tf.floor, ['float32']],
      ceil: [tf.ceil, ['float32']],
      round: [tf.round, ['float32', 'int32']],
      isNaN: [tf.isNaN, ['float32']],
      isInf: [tf.isInf, ['float32']],
      isFinite: [tf.isFinite, ['float32']],
      leakyRelu: [(x) => tf.leakyRelu(x, 0.3), ['float32']],
      step: [(x) => tf.step(x, 0.5), ['float32']],
      clipByValue: [(x) => tf.clipByValue(x, -2, 3), ['float32', 'int32']],
      logicalNot: [(x) => tf.logicalNot(x), ['bool']],
      toInt: [(x) => tf.cast(x, 'int32'), ['float32', 'int32', 'bool']],
      toFloat: [(x) => tf.cast(x, 'float32'), ['float32', 'int32', 'bool']],
      toBool: [(x) => tf.cast(x, 'bool'), ['float32', 'int32', 'bool']],
      onesLike: [tf.onesLike, ['float32', 'int32', 'bool']],
      zerosLike: [tf.zerosLike, ['float32', 'int32', 'bool']],
    };
    for (const [name, [run, dtypes, low, high]] of Object.entries(unary)) {
      test(name, () => {
        fc.assert(
          fc.property(shapes, fc.constantFrom(...dtypes), seeds, (shape, dtype, seed) => {
            compare(() => run(tensor(shape, dtype, seed, low, high)));
          }),
          RUNS,
        );
      });
    }

    const numbers = ['float32', 'int32'] as const;
    const all = ['float32', 'int32', 'bool'] as const;
    const binary: Record<string, readonly [(a: tf.Tensor, b: tf.Tensor) => tf.Tensor, readonly DType[], number?]> = {
      add: [tf.add, numbers],
      sub: [tf.sub, numbers],
      mul: [tf.mul, numbers],
      div: [tf.div, numbers, 0.6],
      floorDiv: [tf.floorDiv, numbers, 0.6],
      mod: [tf.mod, ['int32']],
      maximum: [tf.maximum, numbers],
      minimum: [tf.minimum, numbers],
      squaredDifference: [tf.squaredDifference, numbers],
      atan2: [tf.atan2, ['float32']],
      prelu: [tf.prelu as (a: tf.Tensor, b: tf.Tensor) => tf.Tensor, ['float32']],
      equal: [tf.equal, all],
      notEqual: [tf.notEqual, all],
      less: [tf.less, all],
      lessEqual: [tf.lessEqual, all],
      greater: [tf.greater, all],
      greaterEqual: [tf.greaterEqual, all],
      logicalAnd: [tf.logicalAnd, ['bool']],
      logicalOr: [tf.logicalOr, ['bool']],
      logicalXor: [tf.logicalXor, ['bool']],
    };
    for (const [name, [run, dtypes, low]] of Object.entries(binary)) {
      test(name, () => {
        fc.assert(
          fc.property(pairs, fc.constantFrom(...dtypes), seeds, ([a, b], dtype, seed) => {
            compare(() => run(tensor(a, dtype, seed), tensor(b, dtype, seed + 1, low)));
          }),
          RUNS,
        );
      });
    }

    test('pow of integers and of floats', () => {
      fc.assert(
        fc.property(pairs, seeds, ([a, b], seed) => {
          compare(() => tf.pow(tensor(a, 'int32', seed), tensor(b, 'int32', seed + 1, 0)));
          compare(() => tf.pow(tensor(a, 'float32', seed, 0.1), tensor(b, 'float32', seed + 1)), 1e-4);
        }),
        RUNS,
      );
    });

    test('mixed dtypes are brought to one by tfjs', () => {
      compare(() => tf.add(tensor([3], 'int32', 1), tensor([3], 'float32', 2)));
      compare(() => tf.mul(tensor([70], 'bool', 1), tensor([70], 'int32', 2)));
    });

    test('NaN and the infinities', () => {
      const odd = () => tf.tensor1d([Number.NaN, Infinity, -Infinity, 0, -0, 1, -1, 0.5, 2.5, -2.5]);
      const other = () => tf.tensor1d([1, Number.NaN, 2, 0, 1, Infinity, -Infinity, 0.5, 2, -2]);
      const unaries = [
        tf.relu,
        tf.relu6,
        tf.isNaN,
        tf.isFinite,
        tf.isInf,
        tf.round,
        tf.elu,
        tf.abs,
        tf.sqrt,
        tf.square,
        tf.step,
        tf.sigmoid,
      ];
      for (const run of unaries) compare(() => (run as (x: tf.Tensor) => tf.Tensor)(odd()));
      for (const run of [tf.add, tf.mul, tf.maximum, tf.minimum, tf.equal, tf.less, tf.notEqual]) {
        compare(() => (run as (a: tf.Tensor, b: tf.Tensor) => tf.Tensor)(odd(), other()));
      }
      compare(() => tf.cast(odd(), 'bool'));
    });

    test('where', () => {
      fc.assert(
        fc.property(pairs, fc.constantFrom(...all), seeds, ([a, b], dtype, seed) => {
          fc.pre(![...a, ...b].includes(0));
          compare(() => tf.where(tensor(a, 'bool', seed + 2), tensor(a, dtype, seed), tensor(b, dtype, seed + 1)));
        }),
        RUNS,
      );
      // A condition of rank 1 chooses rows; only the kernel itself knows that (and the CPU kernel gets it wrong).
      void tf.setBackend('gpuos');
      const rows = tf.tidy(() => {
        const [t, e] = [
          tf.tensor2d([
            [1, 2],
            [3, 4],
          ]),
          tf.tensor2d([
            [5, 6],
            [7, 8],
          ]),
        ];
        return (tf.engine().runKernel('Select', { condition: tf.tensor1d([0, 1], 'bool'), t, e }) as tf.Tensor).dataSync();
      });
      expect([...rows]).toEqual([5, 6, 3, 4]);
    });

    test('addN, eluGrad, batchNorm', () => {
      for (const count of [1, 2, 3, 5]) {
        compare(() => tf.addN(Array.from({ length: count }, (_, i) => tensor([3, 5], 'float32', i))));
        compare(() => tf.addN(Array.from({ length: count }, (_, i) => tensor([3, 50], 'int32', i))));
      }
      compare(
        () => tf.engine().runKernel('EluGrad', { dy: tensor([4, 7], 'float32', 1), y: tensor([4, 7], 'float32', 2, -1) }) as tf.Tensor,
      );
      const four = (seed: number, low = -4) => tensor([4], 'float32', seed, low);
      compare(() => tf.batchNorm(tensor([2, 3, 3, 4], 'float32', 1) as tf.Tensor4D, four(2), four(3, 0.1), four(4), four(5), 0.01));
      compare(() => tf.batchNorm(tensor([2, 3, 3, 4], 'float32', 1) as tf.Tensor4D, four(2), four(3, 0.1)));
      compare(() => tf.batchNorm(tensor([5, 4], 'float32', 1) as tf.Tensor2D, four(2), four(3, 0.1), undefined, four(5)));
    });

    test('the host works small integers out exactly as the device does', () => {
      const edge = fc.oneof(fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 }), fc.constantFrom(0, 1, -1, 2 ** 31 - 1, -(2 ** 31)));
      const run = (values: number[], count: number, op: (a: tf.Tensor, b: tf.Tensor) => tf.Tensor) => {
        void tf.setBackend('gpuos');
        return tf.tidy(() => {
          const repeat = (value: number) => tf.tensor(new Int32Array(count).fill(value), [count], 'int32');
          return op(repeat(values[0] as number), repeat(values[1] as number)).dataSync()[0];
        });
      };
      const ops = {
        add: tf.add,
        sub: tf.sub,
        mul: tf.mul,
        floorDiv: tf.floorDiv,
        mod: tf.mod,
        maximum: tf.maximum,
        minimum: tf.minimum,
        squaredDifference: tf.squaredDifference,
        less: tf.less,
        equal: tf.equal,
      };
      fc.assert(
        fc.property(edge, edge, fc.constantFrom(...(Object.keys(ops) as (keyof typeof ops)[])), (a, b, name) => {
          expect(run([a, b], 2, ops[name])).toBe(run([a, b], 65, ops[name]));
        }),
        { numRuns: 300 },
      );
    });
  });

  describe('shapes and views', () => {
    const ranked = (least: number) =>
      fc
        .array(fc.integer({ min: 1, max: 5 }), { minLength: least, maxLength: 4 })
        .chain((shape) => fc.record({ shape: fc.constant(shape), seed: seeds }));
    const dtypes = fc.constantFrom<DType>('float32', 'int32', 'bool');

    test('reshape, expandDims, squeeze, clone', () => {
      compare(() => tf.reshape(tensor([2, 6], 'float32', 1), [3, -1]));
      compare(() => tf.expandDims(tensor([2, 6], 'int32', 1), -1));
      compare(() => tf.expandDims(tensor([2, 6], 'int32', 1), 1));
      compare(() => tf.squeeze(tensor([1, 2, 1], 'bool', 1)));
      compare(() => tf.add(tf.reshape(tf.clone(tensor([2, 6], 'float32', 1)), [12]), 1));
      compare(() => tf.cast(tf.reshape(tensor([2, 50], 'int32', 1), [100]), 'float32'));
    });

    test('transpose', () => {
      fc.assert(
        fc.property(
          ranked(1).chain((x) =>
            fc.tuple(
              fc.constant(x),
              fc.shuffledSubarray(
                x.shape.map((_, i) => i),
                { minLength: x.shape.length },
              ),
            ),
          ),
          dtypes,
          ([{ shape, seed }, perm], dtype) => compare(() => tf.transpose(tensor(shape, dtype, seed), perm)),
        ),
        RUNS,
      );
    });

    test('slice', () => {
      fc.assert(
        fc.property(ranked(1), dtypes, fc.array(fc.nat({ max: 100 }), { minLength: 8, maxLength: 8 }), ({ shape, seed }, dtype, draw) => {
          const begin = shape.map((size, i) => (draw[i] as number) % (size + 1));
          const size = shape.map((n, i) =>
            (draw[i + 4] as number) % 4 === 0 ? -1 : (draw[i + 4] as number) % (n - (begin[i] as number) + 1),
          );
          compare(() => tf.slice(tensor(shape, dtype, seed), begin, size));
        }),
        RUNS,
      );
    });

    test('stridedSlice under every mask', () => {
      const spec = fc.record({
        begin: fc.integer({ min: -6, max: 6 }),
        end: fc.integer({ min: -6, max: 6 }),
        stride: fc.constantFrom(1, 1, 2, -1, -2),
      });
      const mask = fc.nat({ max: 15 });
      fc.assert(
        fc.property(
          ranked(1),
          dtypes,
          fc.array(spec, { minLength: 1, maxLength: 4 }),
          fc.tuple(mask, mask, fc.constantFrom(0, 0, 1, 2), fc.constantFrom(0, 0, 1, 2), fc.constantFrom(0, 0, 1, 2, 3)),
          ({ shape, seed }, dtype, specs, [beginMask, endMask, ellipsis, newAxis, shrink]) => {
            const used = specs.slice(0, shape.length);
            const given = [used.map(({ begin }) => begin), used.map(({ end }) => end), used.map(({ stride }) => stride)] as const;
            const masks = [beginMask, endMask, ellipsis, newAxis, shrink] as const;
            const run = () => tf.stridedSlice(tensor(shape, dtype, seed), ...given, ...masks);
            let info: ReturnType<typeof tf.slice_util.sliceInfo> | undefined;
            try {
              info = tf.slice_util.sliceInfo(shape, ...given, ...masks);
            } catch {
              // A slice that the rules of tfjs refuse.
            }
            if (info === undefined) {
              expect(() => on('gpuos', run)).toThrow();
              return;
            }
            // The CPU kernel fails at some slices that the rules allow, and is wrong at others, so the truth is the definition.
            const all = on('cpu', () => tensor(shape, dtype, seed))[0] as Value;
            const { begin, end, strides } = info;
            const values = all.values.filter((_, flat) => {
              let rest = flat;
              return shape.every((_, i) => {
                const block = shape.slice(i + 1).reduce((a, b) => a * b, 1);
                const index = Math.floor(rest / block);
                rest %= block;
                const [from, to, step] = [begin[i] as number, end[i] as number, strides[i] as number];
                return (index - from) % step === 0 && (step > 0 ? index >= from && index < to : index <= from && index > to);
              });
            });
            const actual = on('gpuos', run)[0] as Value;
            expect(actual.shape).toEqual(info.finalShape);
            // Of a negative step only the order differs; the compared values are unique enough to be sorted.
            const sorted = (list: readonly number[]) => [...list].sort((a, b) => a - b);
            expect(strides.every((step) => step > 0) ? actual.values : sorted(actual.values)).toEqual(
              strides.every((step) => step > 0) ? values : sorted(values),
            );
          },
        ),
        { numRuns: 200 },
      );
    });

    test('reverse, split, unstack, stack, concat', () => {
      fc.assert(
        fc.property(ranked(1), dtypes, fc.nat(), ({ shape, seed }, dtype, pick) => {
          const axis = pick % shape.length;
          compare(() => tf.reverse(tensor(shape, dtype, seed), axis));
          compare(() => tf.reverse(tensor(shape, dtype, seed)));
          compare(() => tf.unstack(tensor(shape, dtype, seed), axis));
          compare(() => tf.split(tensor(shape, dtype, seed), shape[axis] as number, axis));
          compare(() => tf.stack([tensor(shape, dtype, seed), tensor(shape, dtype, seed + 1)], axis));
          const longer = shape.map((size, i) => (i === axis ? size + 2 : size));
          compare(() => tf.concat([tensor(shape, dtype, seed), tensor(longer, dtype, seed + 1), tensor(shape, dtype, seed + 2)], axis));
        }),
        RUNS,
      );
      compare(() => tf.split(tensor([4, 9], 'float32', 1), [2, 3, 4], 1));
      compare(() => tf.concat([tensor([0, 3], 'float32', 1), tensor([2, 3], 'float32', 2)]));
      compare(() => tf.concat([tensor([0, 3], 'int32', 1), tensor([0, 3], 'int32', 2)]));
      compare(() => tf.stack([tensor([2], 'float32', 1)]));
    });

    test('tile, broadcastTo, pad', () => {
      fc.assert(
        fc.property(ranked(1), dtypes, fc.array(fc.nat({ max: 3 }), { minLength: 8, maxLength: 8 }), ({ shape, seed }, dtype, draw) => {
          compare(() =>
            tf.tile(
              tensor(shape, dtype, seed),
              shape.map((_, i) => draw[i] as number),
            ),
          );
          compare(() => tf.pad(tensor(shape, dtype, seed), shape.map((_, i) => [draw[i], draw[i + 4]]) as [number, number][], 1));
        }),
        RUNS,
      );
      compare(() => tf.broadcastTo(tensor([3, 1], 'float32', 1), [2, 3, 4]));
    });

    test('fill, range, linspace, oneHot, eye', () => {
      for (const dtype of ['float32', 'int32', 'bool'] as const) {
        compare(() => tf.fill([2, 3], 1, dtype));
        compare(() => tf.fill([20, 5], 1, dtype));
      }
      for (const [start, stop, step] of [
        [0, 5, 1],
        [5, 0, -2],
        [5, 0, 1],
        [0, 5, -1],
        [3, 3, 1],
        [0, 200, 3],
        [5, 0, 2],
      ] as const) {
        compare(() => tf.range(start, stop, step, 'int32'));
        compare(() => tf.range(start, stop, step, 'float32'));
      }
      compare(() => tf.range(0, 1, 0.1), 1e-4);
      compare(() => tf.linspace(2, 5, 7));
      compare(() => tf.linspace(2, 5, 1));
      compare(() => tf.oneHot(tensor([6], 'int32', 3), 4));
      compare(() => tf.oneHot(tensor([2, 3], 'int32', 3), 4, 2, -1));
      compare(() => tf.eye(4));
    });

    test('depthToSpace, spaceToBatchND, batchToSpaceND', () => {
      compare(() => tf.depthToSpace(tensor([2, 3, 2, 8], 'float32', 1) as tf.Tensor4D, 2, 'NHWC'));
      compare(() =>
        tf.spaceToBatchND(
          tensor([1, 4, 4, 1], 'float32', 1),
          [2, 2],
          [
            [0, 0],
            [0, 0],
          ],
        ),
      );
      compare(() =>
        tf.batchToSpaceND(
          tensor([4, 2, 2, 1], 'float32', 1),
          [2, 2],
          [
            [0, 0],
            [0, 0],
          ],
        ),
      );
    });
  });

  describe('reductions', () => {
    const reductions: Record<string, readonly [(x: tf.Tensor, axis?: number[], keep?: boolean) => tf.Tensor, readonly DType[]]> = {
      sum: [tf.sum, ['float32', 'int32', 'bool']],
      mean: [tf.mean, ['float32', 'int32', 'bool']],
      prod: [tf.prod, ['float32', 'int32', 'bool']],
      max: [tf.max, ['float32', 'int32']],
      min: [tf.min, ['float32', 'int32']],
      any: [tf.any, ['bool']],
      all: [tf.all, ['bool']],
    };
    const shape = fc.oneof(fc.array(fc.integer({ min: 1, max: 4 }), { maxLength: 4 }), fc.constantFrom([65], [3, 40], [2, 3, 4, 5]));
    const cases = shape.chain((sizes) =>
      fc.tuple(fc.constant(sizes), fc.option(fc.subarray(sizes.map((_, i) => i)), { nil: undefined }), fc.boolean(), seeds),
    );
    for (const [name, [run, dtypes]] of Object.entries(reductions)) {
      test(name, () => {
        fc.assert(
          fc.property(cases, fc.constantFrom(...dtypes), ([sizes, axes, keep, seed], dtype) => {
            const negative = axes?.map((axis) => (seed % 2 ? axis : axis - sizes.length));
            compare(() => run(tensor(sizes, dtype, seed, -2, 2), negative, keep), 1e-4);
          }),
          RUNS,
        );
      });
    }

    test('argMax, argMin, topk, cumsum, softmax, logSoftmax, logSumExp, norm', () => {
      fc.assert(
        fc.property(fc.array(fc.integer({ min: 1, max: 6 }), { minLength: 1, maxLength: 3 }), fc.nat(), seeds, (sizes, pick, seed) => {
          const axis = pick % sizes.length;
          const last = sizes[sizes.length - 1] as number;
          for (const dtype of ['float32', 'int32'] as const) {
            compare(() => tf.argMax(tensor(sizes, dtype, seed), axis));
            compare(() => tf.argMin(tensor(sizes, dtype, seed), axis));
            compare(() => Object.values(tf.topk(tensor(sizes, dtype, seed), 1 + (pick % last))));
            compare(() => tf.cumsum(tensor(sizes, dtype, seed), axis, pick % 2 === 0, pick % 3 === 0));
          }
          compare(() => tf.softmax(tensor(sizes, 'float32', seed)));
          compare(() => tf.logSoftmax(tensor(sizes, 'float32', seed)));
          compare(() => tf.logSumExp(tensor(sizes, 'float32', seed), axis));
          compare(() => tf.norm(tensor(sizes, 'float32', seed), 2, axis));
        }),
        RUNS,
      );
    });
  });

  describe('indexing', () => {
    test('gather', () => {
      fc.assert(
        fc.property(fc.array(fc.integer({ min: 1, max: 5 }), { minLength: 1, maxLength: 3 }), fc.nat(), seeds, (shape, pick, seed) => {
          const axis = pick % shape.length;
          for (const dtype of ['float32', 'int32', 'bool'] as const) {
            compare(() => tf.gather(tensor(shape, dtype, seed), tensor([2, 2], 'int32', seed, 0, shape[axis] as number), axis));
            compare(() => tf.gather(tensor(shape, dtype, seed), tensor([80], 'int32', seed, 0, shape[axis] as number), axis));
          }
        }),
        RUNS,
      );
      compare(() => tf.gather(tensor([2, 3, 4], 'float32', 1), tensor([2, 3], 'int32', 2, 0, 3), 1, 1));
      compare(() => tf.gather(tensor([2, 3], 'int32', 1), tensor([2, 3], 'int32', 2, 0, 3), 1, 1));
    });

    test('gatherND, scatterND, tensorScatterUpdate, sparseToDense', () => {
      for (const dtype of ['float32', 'int32'] as const) {
        for (const count of [3, 70]) {
          const at = (depth: number, size: number) => tensor([count, depth], 'int32', count + depth, 0, size);
          compare(() => tf.gatherND(tensor([3, 4, 2], dtype, 1), at(2, 3)));
          compare(() => tf.gatherND(tensor([3, 4, 2], dtype, 1), at(3, 2)));
          compare(() => tf.scatterND(at(1, 5), tensor([count, 2], dtype, 2), [5, 2]));
          compare(() => tf.scatterND(at(2, 3), tensor([count], dtype, 2), [3, 4]));
          compare(() => tf.tensorScatterUpdate(tensor([3, 4], dtype, 1), at(2, 3), tensor([count], dtype, 2)));
          compare(() =>
            tf.sparseToDense(at(2, 3) as tf.Tensor2D, tensor([count], dtype, 2) as tf.Tensor1D, [3, 4], tensor([], dtype, 5) as tf.Scalar),
          );
          const places = tensor([count], 'int32', 4, 0, 6);
          compare(() =>
            tf.sparseToDense(
              places.clone() as tf.Tensor1D,
              tensor([count], dtype, 2) as tf.Tensor1D,
              [6],
              tensor([], dtype, 5) as tf.Scalar,
            ),
          );
          places.dispose();
        }
      }
      compare(() => tf.sparseToDense([1, 3], true, [5], false));
    });

    test('an index out of range that only the device can see', async () => {
      void tf.setBackend('gpuos');
      const [x, indices] = [tensor([70], 'float32', 1), tf.fill([80], 70, 'int32')];
      const read = async () => {
        const result = tf.gather(x, indices);
        try {
          return await result.data();
        } finally {
          result.dispose();
        }
      };
      await expect(read()).rejects.toMatchObject({ name: 'GpuosError', code: 'GPUOS_INDEX_OUT_OF_RANGE' });
      // It goes on.
      const doubled = tf.mul(x, 2);
      expect(doubled.dataSync()[0]).toBe(2 * (x.dataSync()[0] as number));
      tf.dispose([x, indices, doubled]);
    });

    test('an index out of range that the host knows', () => {
      void tf.setBackend('gpuos');
      const run = () => tf.tidy(() => tf.gather(tf.tensor1d([1, 2], 'int32'), tf.tensor1d([2], 'int32')));
      expect(run).toThrow(expect.objectContaining({ code: 'GPUOS_INDEX_OUT_OF_RANGE' }));
    });
  });

  describe('matrix products', () => {
    const sizes = fc.record({
      m: fc.integer({ min: 1, max: 7 }),
      k: fc.integer({ min: 1, max: 7 }),
      n: fc.integer({ min: 1, max: 7 }),
      seed: seeds,
    });

    test('matMul, batched and transposed', () => {
      fc.assert(
        fc.property(
          sizes,
          fc.boolean(),
          fc.boolean(),
          fc.constantFrom<readonly [number[], number[]]>([[], []], [[2], [2]], [[3], [1]]),
          ({ m, k, n, seed }, ta, tb, [p, q]) => {
            const a = ta ? [k, m] : [m, k];
            const b = tb ? [n, k] : [k, n];
            compare(() => tf.matMul(tensor([...p, ...a], 'float32', seed), tensor([...q, ...b], 'float32', seed + 1), ta, tb), 1e-4);
          },
        ),
        RUNS,
      );
    });

    test('leading sizes broadcast on both sides', () => {
      // The CPU kernel repeats batches in another order, so it is given operands that have them all.
      const both = (spread: boolean) => () => {
        const [a, b] = [tensor([2, 1, 3, 4], 'float32', 1), tensor([3, 4, 2], 'float32', 2)];
        return spread ? tf.matMul(tf.broadcastTo(a, [2, 3, 3, 4]), tf.broadcastTo(b, [2, 3, 4, 2])) : tf.matMul(a, b);
      };
      const [wanted] = on('cpu', both(true)) as [Value];
      const [actual] = on('gpuos', both(false)) as [Value];
      expect(actual.shape).toEqual(wanted.shape);
      for (const [i, value] of actual.values.entries()) expect(value).toBeCloseTo(wanted.values[i] as number, 4);
    });

    test('fused matMul with bias and activation', () => {
      const activations = ['linear', 'relu', 'relu6', 'elu', 'sigmoid', 'prelu', 'leakyrelu'] as const;
      fc.assert(
        fc.property(
          sizes,
          fc.constantFrom(...activations),
          fc.constantFrom('none', 'row', 'scalar', 'full'),
          ({ m, k, n, seed }, activation, kind) => {
            compare(() => {
              const bias =
                kind === 'none' ? undefined : tensor(kind === 'row' ? [n] : kind === 'scalar' ? [1] : [m, n], 'float32', seed + 2);
              return tf.fused.matMul({
                a: tensor([m, k], 'float32', seed) as tf.Tensor2D,
                b: tensor([k, n], 'float32', seed + 1) as tf.Tensor2D,
                ...(bias ? { bias } : {}),
                activation,
                ...(activation === 'prelu' ? { preluActivationWeights: tensor([n], 'float32', seed + 3) } : {}),
                leakyreluAlpha: 0.3,
              });
            }, 1e-4);
          },
        ),
        { numRuns: 60 },
      );
    });

    test('convolution: one pixel here, others on the CPU kernel', () => {
      const x = (channels: number) => tensor([2, 4, 3, channels], 'float32', 1) as tf.Tensor4D;
      compare(() => tf.conv2d(x(5), tensor([1, 1, 5, 6], 'float32', 2) as tf.Tensor4D, 1, 'same'), 1e-4);
      compare(() => tf.conv2d(x(2), tensor([2, 2, 2, 3], 'float32', 2) as tf.Tensor4D, 1, 'valid'), 1e-4);
      for (const activation of ['linear', 'relu', 'prelu', 'leakyrelu'] as const) {
        compare(
          () =>
            tf.fused.conv2d({
              x: x(5),
              filter: tensor([1, 1, 5, 6], 'float32', 2) as tf.Tensor4D,
              strides: 1,
              pad: 'valid',
              bias: tensor([6], 'float32', 3),
              activation,
              leakyreluAlpha: 0.3,
              ...(activation === 'prelu' ? { preluActivationWeights: tensor([1, 1, 6], 'float32', 4) } : {}),
            }),
          1e-4,
        );
      }
      const { fallbacks, ringOps } = counts(() => {
        tf.conv2d(x(5), tensor([1, 1, 5, 6], 'float32', 2) as tf.Tensor4D, 1, 'same');
        tf.conv2d(x(2), tensor([2, 2, 2, 3], 'float32', 2) as tf.Tensor4D, 1, 'valid');
        tf.conv2d(x(5), tensor([1, 1, 5, 6], 'float32', 2) as tf.Tensor4D, 2, 'same');
      });
      expect({ fallbacks, ringOps }).toEqual({ fallbacks: { Conv2D: 2 }, ringOps: 1 });
    });

    test('einsum', () => {
      const t = (shape: number[], seed: number) => tensor(shape, 'float32', seed);
      const cases: readonly [string, number[][]][] = [
        [
          'ij,jk->ik',
          [
            [2, 3],
            [3, 4],
          ],
        ],
        [
          'ij,jk->ki',
          [
            [2, 3],
            [3, 4],
          ],
        ],
        [
          'bij,bjk->bik',
          [
            [2, 3, 4],
            [2, 4, 5],
          ],
        ],
        [
          'bqhd,bkhd->bhqk',
          [
            [2, 3, 2, 4],
            [2, 5, 2, 4],
          ],
        ],
        ['i,j->ij', [[3], [4]]],
        ['i,i->', [[3], [3]]],
        ['ij->ji', [[2, 3]]],
        ['ij->i', [[2, 3]]],
        ['ij->', [[2, 3]]],
        [
          'ij,kj->',
          [
            [2, 3],
            [4, 3],
          ],
        ],
        [
          'ij,ij->ij',
          [
            [2, 3],
            [2, 3],
          ],
        ],
        [
          'abc,cd->abd',
          [
            [2, 3, 4],
            [4, 5],
          ],
        ],
        ['ij,k->k', [[2, 3], [4]]],
      ];
      // The CPU kernel is wrong where several letters of one operand are summed, so the truth is the definition.
      void tf.setBackend('gpuos');
      for (const [equation, operands] of cases) {
        tf.tidy(() => {
          const tensors = operands.map(t);
          const result = tf.einsum(equation, ...tensors);
          const wanted = einsumByDefinition(equation, tensors);
          expect(result.shape, equation).toEqual(wanted.shape);
          for (const [i, value] of result.dataSync().entries()) expect(value, equation).toBeCloseTo(wanted.values[i] as number, 4);
        });
      }
      const { fallbackOps } = counts(() => {
        for (const [equation, operands] of cases) tf.einsum(equation, ...operands.map(t));
      });
      expect(fallbackOps).toBe(0);
    });
  });

  describe('what we lack', () => {
    test('the list of CPU kernels is that of the package', () => {
      expect([...CPU_KERNELS].sort()).toEqual(
        tf
          .getKernelsForBackend('cpu')
          .map(({ kernelName }) => kernelName)
          .sort(),
      );
      for (const name of CPU_KERNELS) expect(tf.getKernel(name, 'gpuos'), name).toBeDefined();
    });

    test('our kernels have names that tfjs knows', () => {
      const known = new Set(Object.values(tf).filter((value) => typeof value === 'string'));
      for (const name of Object.keys(KERNELS)) if (name !== 'LogicalXor') expect(known, name).toContain(name);
    });

    test('runs on the CPU kernels, counted by name', () => {
      compare(() => tf.maxPool(tensor([1, 4, 4, 2], 'float32', 1) as tf.Tensor4D, 2, 2, 'same'));
      compare(() => tf.image.resizeBilinear(tensor([1, 4, 4, 2], 'float32', 1) as tf.Tensor4D, [3, 5]));
      compare(() => tf.cumprod(tensor([3, 4], 'float32', 1), 1));
      const { fallbacks, fallbackOps, frameworkOps, nativeShare } = counts(() => {
        tf.cumprod(tensor([3, 4], 'float32', 1), 1);
        tf.cumprod(tensor([3, 4], 'float32', 1), 1);
        tf.exp(tensor([3], 'int32', 1));
        tf.exp(tensor([3], 'float32', 1));
      });
      // int32 becomes float32 in tf.exp or is declined by our kernel; tfjs decides.
      expect(fallbacks['Cumprod']).toBe(2);
      expect(fallbackOps).toBe(Object.values(fallbacks).reduce((a, b) => a + b, 0));
      expect(nativeShare).toBeCloseTo((frameworkOps - fallbackOps) / frameworkOps);
    });

    test('strings and complex numbers', () => {
      compare(() => tf.abs(tf.fft(tf.complex(tensor([2, 8], 'float32', 1), tensor([2, 8], 'float32', 2)))), 1e-4);
      compare(() => tf.real(tf.mul(tf.complex([1, 2], [3, 4]), tf.complex([5, 6], [7, 8]))));
      compare(() => tf.imag(tf.reshape(tf.complex([1, 2], [3, 4]), [2, 1])));
      compare(() => tf.irfft(tf.rfft(tensor([8], 'float32', 1))), 1e-4);
      void tf.setBackend('gpuos');
      tf.tidy(() => {
        const words = tf.tensor(['a', 'bc', 'd', 'ef'], [2, 2]);
        expect(tf.reshape(words, [4]).dataSync()).toEqual(['a', 'bc', 'd', 'ef']);
        expect(tf.slice(words, [1, 0], [1, 2]).dataSync()).toEqual(['d', 'ef']);
        expect(tf.concat([words, words]).shape).toEqual([4, 2]);
        expect([...tf.equal(words, tf.tensor(['a', 'x', 'd', 'y'], [2, 2])).dataSync()]).toEqual([1, 0, 1, 0]);
        expect(tf.complex([1, 2], [3, 4]).dataSync()).toEqual(Float32Array.of(1, 3, 2, 4));
      });
    });

    test('an error of a CPU kernel leaves nothing behind', () => {
      void tf.setBackend('gpuos');
      const x = tensor([2, 2], 'float32', 1);
      const before = tf.memory();
      const live = opened.live();
      expect(() => tf.engine().runKernel('Conv2D', { x, filter: x }, { strides: 1, pad: 'same', dataFormat: 'NHWC' } as never)).toThrow();
      expect(tf.memory()).toEqual(before);
      expect(opened.live()).toBe(live);
      x.dispose();
    });
  });

  describe('bad input', () => {
    const code = (expected: string) => expect.objectContaining({ code: expected, name: 'GpuosError' });

    test('shapes that do not fit, axes that are not there, a tensor disposed of', () => {
      void tf.setBackend('gpuos');
      tf.tidy(() => {
        const [a, b] = [tensor([2, 3], 'float32', 1), tensor([4], 'float32', 2)];
        expect(() => tf.engine().runKernel('Add', { a, b })).toThrow(code('GPUOS_SHAPE_MISMATCH'));
        expect(() => tf.engine().runKernel('Less', { a: tensor([2], 'int32', 1), b: tensor([3], 'int32', 1) })).toThrow(
          code('GPUOS_SHAPE_MISMATCH'),
        );
        expect(() => tf.engine().runKernel('Sum', { x: a }, { axis: [2], keepDims: false })).toThrow(code('GPUOS_BAD_AXIS'));
        expect(() => tf.engine().runKernel('Sum', { x: a }, { axis: [-3], keepDims: false })).toThrow(code('GPUOS_BAD_AXIS'));
        expect(() => tf.engine().runKernel('Reshape', { x: a }, { shape: [4] })).toThrow(code('GPUOS_SHAPE_MISMATCH'));
        expect(() => tf.engine().runKernel('Fill', {}, { shape: [Number.NaN], value: 1, dtype: 'float32' })).toThrow(
          code('GPUOS_BAD_SHAPE'),
        );
        expect(() => tf.matMul(a as tf.Tensor2D, a as tf.Tensor2D)).toThrow();
        expect(() => tf.zeros([Number.NaN])).toThrow();
        b.dispose();
        expect(() => tf.neg(b)).toThrow(code('GPUOS_TENSOR_DISPOSED'));
        expect(() => b.dataSync()).toThrow(/disposed/);
        expect(new GpuosError('GPUOS_TENSOR_DISPOSED', '').remedy).not.toBe('');
      });
    });
  });
});
