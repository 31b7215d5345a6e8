import * as tf from '@tensorflow/tfjs-core';
import { describe, expect, test } from 'vitest';
import { compare, counts, live, onEachEngine, tensor } from '../../../test/tfjs-compare.ts';
import { GpuosError } from '../../errors.ts';
import { CPU_KERNELS } from './kernel-names.ts';
import { KERNELS } from './kernels/index.ts';

onEachEngine(() => {
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
      const held = live();
      expect(() => tf.engine().runKernel('Conv2D', { x, filter: x }, { strides: 1, pad: 'same', dataFormat: 'NHWC' } as never)).toThrow();
      expect(tf.memory()).toEqual(before);
      expect(live()).toBe(held);
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
