import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GpuosError } from '../errors.ts';
import type { Attributes, DType, TensorSpec } from './define.ts';
import { OPERATORS, operatorByName } from './index.ts';

const f = (...shape: number[]): TensorSpec => ({ shape, dtype: 'float32' });
const i = (...shape: number[]): TensorSpec => ({ shape, dtype: 'int32' });
const b = (...shape: number[]): TensorSpec => ({ shape, dtype: 'bool' });

function infer(name: string, inputs: readonly TensorSpec[], attributes: Attributes = {}): readonly TensorSpec[] {
  return operatorByName(name).infer(inputs, attributes);
}

type Case = readonly [name: string, inputs: readonly TensorSpec[], attributes: Attributes, outputs: readonly TensorSpec[]];
type Refusal = readonly [name: string, inputs: readonly TensorSpec[], attributes: Attributes, message: RegExp];

const GOOD: readonly Case[] = [
  ['add', [f(2, 1), f(3)], {}, [f(2, 3)]],
  ['less', [i(2), i()], {}, [b(2)]],
  ['select', [b(2, 1), f(3), f()], {}, [f(2, 3)]],
  ['cast', [b(2)], { dtype: 'int32' }, [i(2)]],
  ['sum', [f(2, 3, 4)], { axes: [-1, 0] }, [f(3)]],
  ['sum', [f(2, 3)], { keepDims: true }, [f(1, 1)]],
  ['sum', [f()], {}, [f()]],
  ['argmax', [f(2, 3)], { axis: -1 }, [i(2)]],
  ['argmax', [f(0, 3)], { axis: 1 }, [i(0)]],
  ['mean', [i(2, 3)], { axes: [1] }, [f(2)]],
  ['any', [b(2, 3)], {}, [b()]],
  ['layer-norm', [f(2, 3), f(3), f(3)], {}, [f(2, 3)]],
  ['matmul', [f(2, 3), f(3, 4)], {}, [f(2, 4)]],
  ['matmul', [f(5, 1, 2, 3), f(7, 3, 4), f(4)], { activation: 'gelu' }, [f(5, 7, 2, 4)]],
  ['matmul', [f(3, 2), f(4, 3)], { transposeA: true, transposeB: true }, [f(2, 4)]],
  ['matmul', [f(2, 0), f(0, 4)], {}, [f(2, 4)]],
  ['attention', [f(2, 8, 5, 16), f(2, 4, 9, 16), f(2, 4, 9, 3), f(5, 9)], { causal: true }, [f(2, 8, 5, 3)]],
  ['attention', [f(1, 4), f(6, 4), f(6, 4)], {}, [f(1, 4)]],
  ['rotary', [f(2, 4, 6), f(4, 3), f(4, 3)], {}, [f(2, 4, 6)]],
  ['cache-append', [f(2, 8, 4), f(2, 3, 4), i()], {}, [f(2, 8, 4)]],
  ['cache-update', [i(8, 4), i(3, 4), i(3)], {}, [i(8, 4)]],
  ['prefix-match', [i(3), i(9)], {}, [i()]],
  ['cache-compress', [f(2, 5)], {}, [i(2, 2), f(2)]],
  ['cache-decompress', [i(2, 2), f(2)], { size: 5 }, [f(2, 5)]],
  ['cache-evict', [f(2, 9, 4)], { window: 3, sinks: 1 }, [f(2, 4, 4)]],
  ['gather', [f(5, 4), i(2, 3)], { axis: 1 }, [f(5, 2, 3)]],
  ['gather', [f(2, 5, 4), i(2, 3)], { axis: 1, batchDims: 1 }, [f(2, 3, 4)]],
  ['gather-nd', [f(5, 4, 3), i(7, 2)], {}, [f(7, 3)]],
  ['scatter-nd', [i(7, 1), f(7, 3)], { shape: [5, 3] }, [f(5, 3)]],
  ['tensor-scatter-update', [b(5), i(2, 1), b(2)], {}, [b(5)]],
  ['sparse-to-dense', [i(2, 2), f(2), f()], { shape: [3, 4] }, [f(3, 4)]],
  ['concat', [f(2, 3), f(2, 0), f(2, 5)], { axis: -1 }, [f(2, 8)]],
  ['pad', [f(2, 3)], { paddings: [1, 0, 0, 2] }, [f(3, 5)]],
  ['one-hot', [i(2)], { depth: 3, dtype: 'int32' }, [i(2, 3)]],
  ['top-k', [f(2, 5)], { k: 3 }, [f(2, 3), i(2, 3)]],
  ['tile', [f(2, 3)], { reps: [2, 0] }, [f(4, 0)]],
  ['cumsum', [i(2, 3)], { axis: 0 }, [i(2, 3)]],
  ['reshape', [f(2, 3)], { shape: [-1, 2] }, [f(3, 2)]],
  ['reshape', [f(0, 3)], { shape: [3, -1] }, [f(3, 0)]],
  ['transpose', [f(2, 3, 4)], {}, [f(4, 3, 2)]],
  ['transpose', [f(2, 3, 4)], { perm: [0, -1, 1] }, [f(2, 4, 3)]],
  ['slice', [f(4, 5)], { begin: [1, 5], size: [2, -1] }, [f(2, 0)]],
  ['strided-slice', [f(7)], { begin: [6], end: [-1], strides: [-3] }, [f(3)]],
  ['strided-slice', [f(7)], { begin: [5], end: [2], strides: [1] }, [f(0)]],
  ['expand', [f(3, 1)], { shape: [2, 3, 4] }, [f(2, 3, 4)]],
  ['reverse', [f(3, 2)], { axes: [0] }, [f(3, 2)]],
  ['squeeze', [f(1, 3, 1)], {}, [f(3)]],
  ['squeeze', [f(1, 3, 1)], { axes: [-1] }, [f(1, 3)]],
  ['expand-dims', [f(3)], { axis: -1 }, [f(3, 1)]],
  ['fill', [], { shape: [2, 2], value: Number.NaN }, [f(2, 2)]],
  ['range', [], { start: 5, stop: 0, step: -2, dtype: 'int32' }, [i(3)]],
  ['range', [], { stop: 0, start: 5 }, [f(0)]],
];

const REFUSED: Readonly<Record<string, readonly Refusal[]>> = {
  GPUOS_SHAPE_MISMATCH: [
    ['add', [f(2)], {}, /add: takes \(a, b\), but got 1 inputs/],
    ['add', [f(2), f(3)], {}, /add: the shapes \[2\] and \[3\] do not broadcast/],
    ['argmax', [f(2, 0)], { axis: 1 }, /axis 1 of x \[2,0\] is empty/],
    ['matmul', [f(2, 3), f(4, 5)], {}, /matmul: a \[2,3\] and b \[4,5\]: inner sizes 3 and 4 differ/],
    ['matmul', [f(2, 2, 3), f(3, 3, 4)], {}, /leading sizes \[2\] and \[3\]/],
    ['matmul', [f(3), f(3, 4)], {}, /a \[3\] has rank 1; it must have at least 2/],
    ['matmul', [f(2, 3), f(3, 4), f(3)], {}, /bias \[3\] must have the shape \[4\]/],
    ['layer-norm', [f(2, 3), f(2)], {}, /gamma \[2\] must have the shape \[3\]/],
    ['rms-norm', [f()], {}, /x \[\] has rank 0/],
    ['attention', [f(1, 4), f(6, 5), f(6, 4)], {}, /sizes 4 of a query and 5 of a key differ/],
    ['attention', [f(1, 4), f(6, 4), f(7, 4)], {}, /6 keys and 7 values/],
    ['attention', [f(8, 1, 4), f(3, 6, 4), f(3, 6, 4)], {}, /number of heads that divides/],
    ['attention', [f(2, 1, 4), f(6, 4), f(6, 4)], {}, /leading sizes of q and k differ/],
    ['attention', [f(1, 4), f(6, 4), f(6, 4), f(2, 6)], {}, /mask \[2,6\] does not broadcast to the logits \[1,6\]/],
    ['attention', [f(1, 0), f(6, 0), f(6, 4)], {}, /no elements/],
    ['rotary', [f(4, 5), f(4, 2), f(4, 2)], {}, /the last size 5 is odd/],
    ['rotary', [f(4, 6), f(3, 3), f(4, 3)], {}, /cos \[3,3\] must have the shape \[4,3\]/],
    ['cache-append', [f(8, 4), f(9, 4), i()], {}, /update \[9,4\] has 9 rows, but cache \[8,4\] only 8/],
    ['cache-append', [f(8, 4), f(2, 3), i()], {}, /may differ only in their rows/],
    ['cache-append', [f(8, 4), f(2, 4), i(1)], {}, /position \[1\] must have the shape \[\]/],
    ['cache-update', [f(8, 4), f(2, 4), i(3)], {}, /positions \[3\] must have the shape \[2\]/],
    ['prefix-match', [i(2, 2), i(2)], {}, /a \[2,2\] must have rank 1/],
    ['cache-compress', [f()], {}, /rank 0/],
    ['cache-decompress', [i(2, 2), f(2)], { size: 9 }, /packed \[2,2\] must have the shape \[2,3\]/],
    ['gather', [f(2, 5), i(3, 3)], { axis: 1, batchDims: 1 }, /the first 1 sizes differ/],
    ['gather-nd', [f(5), i(2, 2)], {}, /more than the rank/],
    ['gather-nd', [f(5), i()], {}, /at least rank 1/],
    ['scatter-nd', [i(7, 1), f(7, 4)], { shape: [5, 3] }, /updates \[7,4\] must have the shape \[7,3\]/],
    ['sparse-to-dense', [i(2, 3), f(2), f()], { shape: [3, 4] }, /do not address a tensor \[3,4\] of rank 2/],
    ['sparse-to-dense', [i(2), f(3), f()], { shape: [3] }, /values \[3\] must be a scalar or have the shape \[2\]/],
    ['add', [f(2), f(2), f(2)], {}, /takes \(a, b\), but got 3 inputs/],
    ['layer-norm', [], {}, /takes \(x, gamma\?, beta\?\), but got 0/],
    ['fill', [f()], { shape: [], value: 0 }, /takes \(\), but got 1/],
    ['concat', [], {}, /takes \(xs\.\.\.\), but got 0/],
    ['concat', [f(2, 3), f(3, 3)], { axis: 1 }, /input 1 \[3,3\] may differ only on axis 1/],
    ['reshape', [f(2, 3)], { shape: [4] }, /x \[2,3\] of 6 elements does not fit \[4\] of 4/],
    ['reshape', [f(2, 3)], { shape: [-1, 4] }, /6 is not a multiple of 4/],
    ['reshape', [f(0)], { shape: [-1, 0] }, /could be any size/],
    ['expand', [f(2)], { shape: [3] }, /x \[2\] does not broadcast to \[3\]/],
    ['squeeze', [f(1, 3)], { axes: [1] }, /axis 1 of x \[1,3\] has size 3/],
  ],
  GPUOS_DTYPE_MISMATCH: [
    ['add', [f(2), i(2)], {}, /add: a is float32 and b is int32/],
    ['add', [b(2), b(2)], {}, /a is bool; it must be float32 or int32/],
    ['div', [i(2), i(2)], {}, /div: a is int32; it must be float32/],
    ['select', [f(2), f(2), f(2)], {}, /condition is float32; it must be bool/],
    ['select', [b(2), f(2), i(2)], {}, /a is float32 and b is int32/],
    ['logical-and', [i(2), i(2)], {}, /must be bool/],
    ['exp', [i(2)], {}, /exp: x is int32/],
    ['sum', [b(2)], {}, /x is bool/],
    ['any', [f(2)], {}, /must be bool/],
    ['softmax', [i(2)], {}, /must be float32/],
    ['matmul', [i(2, 2), i(2, 2)], {}, /a is int32/],
    ['gather', [f(2), f(2)], {}, /indices is float32; it must be int32/],
    ['concat', [f(2), i(2)], {}, /input 0 is float32 and input 1 is int32/],
    ['cache-append', [f(8, 4), i(2, 4), i()], {}, /cache is float32 and update is int32/],
    ['cache-append', [f(8, 4), f(2, 4), f()], {}, /position is float32/],
    ['scatter-nd', [i(1, 1), b(1)], { shape: [2] }, /updates is bool/],
  ],
  GPUOS_BAD_AXIS: [
    ['sum', [f(2, 3)], { axes: [2] }, /sum: axis 2 is out of range: the axes of a tensor of rank 2 are -2 to 1/],
    ['sum', [f(2, 3)], { axes: [-3] }, /axis -3/],
    ['sum', [f(2, 3)], { axes: [0, -2] }, /axis 0 is given twice/],
    ['softmax', [f()], {}, /a scalar has no axes/],
    ['argmin', [f(2)], { axis: 1 }, /axis 1/],
    ['gather', [f(2), i()], { axis: -2 }, /axis -2/],
    ['concat', [f(), f()], {}, /a scalar has no axes/],
    ['transpose', [f(2, 3)], { perm: [0] }, /perm \[0\] has 1 axes, but x has rank 2/],
    ['transpose', [f(2, 3)], { perm: [0, 0] }, /given twice/],
    ['reverse', [f(2)], { axes: [5] }, /axis 5/],
    ['squeeze', [f(1)], { axes: [1] }, /axis 1/],
    ['expand-dims', [f(2)], { axis: 3 }, /axis 3/],
    ['cumsum', [f(2)], { axis: 1 }, /axis 1/],
  ],
  GPUOS_BAD_ATTRIBUTE: [
    ['add', [f(2), f(2)], { axis: 1 }, /add: there is no attribute "axis"; it has none/],
    ['sum', [f(2)], { axis: 1 }, /no attribute "axis".*Did you mean "axes"/],
    ['cast', [f(2)], {}, /dtype is missing/],
    ['cast', [f(2)], { dtype: 'float64' }, /it may be float32, int32, bool/],
    ['clip', [f(2)], { min: 2, max: 1 }, /min must not be above max/],
    ['clip', [f(2)], { min: Number.NaN }, /min is NaN/],
    ['clip', [i(2)], { min: 0.5 }, /must be an integer/],
    ['layer-norm', [f(2)], { epsilon: -1 }, /epsilon is -1/],
    ['matmul', [f(2, 2), f(2, 2)], { activation: 'rellu' }, /Did you mean "relu"/],
    ['attention', [f(1, 4), f(6, 4), f(6, 4)], { scale: Number.NaN }, /scale is NaN/],
    ['cache-evict', [f(4, 2)], { window: 4, sinks: 1 }, /ask for 5 rows, but cache \[4,2\] has 4/],
    ['cache-evict', [f(4, 2)], { window: -1 }, /window is -1/],
    ['gather', [f(2, 2), i(2)], { axis: 0, batchDims: 1 }, /batchDims 1 is more than the axis 0/],
    ['pad', [f(2)], { paddings: [1] }, /two values for each axis/],
    ['pad', [f(2)], { paddings: [-1, 0] }, /paddings is \[-1,0\]/],
    ['pad', [i(2)], { paddings: [1, 1], value: 0.5 }, /not an integer of 32 bits/],
    ['one-hot', [i(2)], { depth: -1 }, /depth is -1/],
    ['top-k', [f(2)], { k: 3 }, /k is 3, but the last axis of x \[2\] has 2 elements/],
    ['tile', [f(2)], { reps: [2, 2] }, /one value for each axis/],
    ['slice', [f(4)], { begin: [3], size: [2] }, /leave x \[4\] on axis 0/],
    ['slice', [f(4)], { begin: [5], size: [-1] }, /leave x/],
    ['slice', [f(4)], { begin: [0, 0], size: [1, 1] }, /it needs 1 values/],
    ['strided-slice', [f(4)], { begin: [0], end: [4], strides: [0] }, /stride 0 of \[0\] is 0/],
    ['strided-slice', [f(4)], { begin: [0], end: [5], strides: [1] }, /leave x/],
    ['strided-slice', [f(4)], { begin: [4], end: [-1], strides: [-1] }, /leave x/],
    ['fill', [], { shape: [1], value: 2 ** 31, dtype: 'int32' }, /not an integer of 32 bits/],
    ['fill', [], { shape: [1], value: 2, dtype: 'bool' }, /bool needs 0 or 1/],
    ['range', [], { stop: 3, step: 0 }, /step is 0/],
    ['range', [], { stop: Number.POSITIVE_INFINITY }, /stop is Infinity/],
  ],
  GPUOS_BAD_SHAPE: [
    ['fill', [], { shape: [Number.NaN], value: 0 }, /dimension 0 of \[NaN\] is NaN/],
    ['fill', [], { shape: [-1], value: 0 }, /is -1, not an integer of at least 0/],
    ['reshape', [f(2)], { shape: [1.5] }, /1.5/],
    ['expand', [f(1)], { shape: [1e9, 1e9] }, /at most 2147483647/],
    ['add', [f(1e9, 1), f(1, 1e9)], {}, /add: \[1000000000,1000000000\] has/],
    ['tile', [f(1e6)], { reps: [1e6] }, /tile: /],
    ['range', [], { stop: 1e10 }, /10000000000 elements/],
    ['expand-dims', [f(1, 1, 1, 1, 1, 1)], { axis: 0 }, /7 dimensions; at most 6/],
  ],
};

describe('infer', () => {
  it.each(GOOD)('%s %j %j gives %j', (name, inputs, attributes, outputs) => {
    expect(infer(name, inputs, attributes)).toEqual(outputs);
  });

  for (const [code, cases] of Object.entries(REFUSED)) {
    it.each(cases)(`%s %j %j is ${code}`, (name, inputs, attributes, message) => {
      let caught: unknown;
      try {
        infer(name, inputs, attributes);
      } catch (error) {
        caught = error;
      }
      expect(caught).toBeInstanceOf(GpuosError);
      expect((caught as GpuosError).message).toMatch(message);
      expect((caught as GpuosError).message).toMatch(new RegExp(`^${name}: `));
      expect((caught as GpuosError).code).toBe(code);
    });
  }

  it('ends in valid specs or an error of the table, for every operator and random inputs', () => {
    const spec = fc.record({
      shape: fc.array(fc.integer({ min: 0, max: 4 }), { maxLength: 4 }),
      dtype: fc.constantFrom<DType>('float32', 'int32', 'bool'),
    });
    const attributes = fc.record(
      {
        axis: fc.integer({ min: -4, max: 4 }),
        axes: fc.array(fc.integer({ min: -4, max: 3 }), { maxLength: 3 }),
        shape: fc.array(fc.integer({ min: -1, max: 4 }), { maxLength: 4 }),
        k: fc.nat(4),
        reps: fc.array(fc.nat(3), { maxLength: 4 }),
        depth: fc.nat(3),
        window: fc.nat(3),
        size: fc.oneof(fc.nat(4), fc.array(fc.integer({ min: -1, max: 4 }), { maxLength: 3 })),
        begin: fc.array(fc.nat(4), { maxLength: 3 }),
        end: fc.array(fc.integer({ min: -1, max: 4 }), { maxLength: 3 }),
        strides: fc.array(fc.integer({ min: -2, max: 2 }), { maxLength: 3 }),
        perm: fc.array(fc.nat(3), { maxLength: 3 }),
        paddings: fc.array(fc.nat(2), { maxLength: 6 }),
        dtype: fc.constantFrom('float32', 'int32', 'bool'),
        value: fc.integer({ min: 0, max: 1 }),
        stop: fc.integer({ min: -3, max: 3 }),
      },
      { requiredKeys: [] },
    );
    fc.assert(
      fc.property(fc.constantFrom(...OPERATORS), fc.array(spec, { maxLength: 4 }), attributes, (operator, inputs, given) => {
        // Only names that the operator has, so that most runs get past the check of names.
        const known = Object.fromEntries(Object.entries(given).filter(([name]) => operator.attributes && name in operator.attributes));
        try {
          for (const output of operator.infer(inputs, known as Attributes)) {
            expect(['float32', 'int32', 'bool']).toContain(output.dtype);
            expect(output.shape.every((size) => Number.isInteger(size) && size >= 0)).toBe(true);
          }
        } catch (error) {
          if (!(error instanceof GpuosError)) throw error;
          expect(Object.keys(REFUSED)).toContain(error.code);
        }
      }),
      { numRuns: 3000 },
    );
  });
});
