import * as tf from '@tensorflow/tfjs-core';
import fc from 'fast-check';
import { describe, test } from 'vitest';
import { compare, onEachEngine, RUNS, seeds, tensor, type DType } from '../../../../test/tfjs-compare.ts';

onEachEngine(() => {
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
});
