import * as tf from '@tensorflow/tfjs-core';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { compare, onEachEngine, pairs, RUNS, seeds, shapes, tensor, type DType } from '../../../../test/tfjs-compare.ts';

onEachEngine(() => {
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
});
