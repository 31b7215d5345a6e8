import * as tf from '@tensorflow/tfjs-core';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { compare, on, onEachEngine, RUNS, seeds, tensor, type DType, type Value } from '../../../../test/tfjs-compare.ts';

onEachEngine(() => {
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
});
