import * as tf from '@tensorflow/tfjs-core';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { compare, onEachEngine, RUNS, seeds, tensor } from '../../../../test/tfjs-compare.ts';

onEachEngine(() => {
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
});
