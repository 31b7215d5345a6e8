import * as tf from '@tensorflow/tfjs-core';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { compare, counts, on, onEachEngine, RUNS, seeds, tensor, type Value } from '../../../../test/tfjs-compare.ts';

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

onEachEngine(() => {
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
});
