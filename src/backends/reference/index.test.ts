import { describe, expect, it } from 'vitest';
import type { GpuosError } from '../../errors.ts';
import type { Attributes, DType } from '../../ops/define.ts';
import { type HostTensor, hostTensor } from '../../ops/host-tensor.ts';
import { OPERATORS } from '../../ops/index.ts';
import { MAPS } from '../../ops/map.ts';
import { hasReference, referenceRun } from './index.ts';

const NAN = Number.NaN;
const INF = Number.POSITIVE_INFINITY;

/** A tensor from nested lists: its shape is theirs. */
type Nested = number | readonly Nested[];
function tensor(values: Nested, dtype: DType = 'float32'): HostTensor {
  const shape: number[] = [];
  for (let level: Nested = values; Array.isArray(level); level = level[0] as Nested) {
    shape.push(level.length);
    if (level.length === 0) break;
  }
  const flat = Array.isArray(values) ? (values.flat(16) as number[]) : [values as number];
  return hostTensor(shape, flat, dtype);
}
const f = (values: Nested) => tensor(values);
const i = (values: Nested) => tensor(values, 'int32');
const b = (values: Nested) => tensor(values, 'bool');

type Case = readonly [name: string, inputs: readonly HostTensor[], attributes: Attributes, outputs: readonly HostTensor[]];

const e = Math.E;
const grid = f([[1, 2, 3], [4, 5, 6]]); // biome-ignore format: two rows
const sqrt5 = Math.sqrt(5);

/** Worked out by hand. */
// biome-ignore format: a table reads by its rows
const CASES: readonly Case[] = [
  ['sum', [grid], {}, [f(21)]],
  ['sum', [grid], { axes: [0] }, [f([5, 7, 9])]],
  ['sum', [grid], { axes: [-1], keepDims: true }, [f([[6], [15]])]],
  ['sum', [grid], { axes: [] }, [grid]],
  ['sum', [i([2 ** 31 - 1, 1])], {}, [i(-(2 ** 31))]],
  ['sum', [f([])], {}, [f(0)]],
  ['sum', [f([1e8, 1, -1e8])], {}, [f(1)]],
  ['prod', [grid], { axes: [1] }, [f([6, 120])]],
  ['prod', [i([65537, 65537])], {}, [i(131073)]],
  ['prod', [hostTensor([0, 2], [])], { axes: [0] }, [f([1, 1])]],
  ['max', [f([[1, NAN], [3, 2]])], { axes: [1] }, [f([NAN, 3])]],
  ['max', [hostTensor([2, 0], [])], { axes: [1] }, [f([-INF, -INF])]],
  ['max', [i([])], {}, [i(-(2 ** 31))]],
  ['min', [grid], { axes: [0] }, [f([1, 2, 3])]],
  ['min', [i([])], {}, [i(2 ** 31 - 1)]],
  ['any', [b([[0, 0], [0, 1]])], { axes: [1] }, [b([0, 1])]],
  ['any', [b([])], {}, [b(0)]],
  ['all', [b([[1, 0], [1, 1]])], { axes: [1] }, [b([0, 1])]],
  ['all', [b([])], {}, [b(1)]],
  ['argmax', [f([[1, 3, 3], [NAN, 9, NAN]])], { axis: 1 }, [i([1, 0])]],
  ['argmax', [grid], { axis: 0 }, [i([1, 1, 1])]],
  ['argmax', [f([5, NAN, 7])], { axis: -1 }, [i(1)]],
  ['argmax', [f([-INF, -INF])], { axis: 0 }, [i(0)]],
  ['argmin', [i([[4, -1, -1], [0, 0, 2]])], { axis: 1 }, [i([1, 0])]],
  ['mean', [grid], { axes: [1] }, [f([2, 5])]],
  ['mean', [i([1, 2])], {}, [f(1.5)]],
  ['mean', [b([1, 0, 0, 1])], { keepDims: true }, [f([0.5])]],
  ['mean', [f([])], {}, [f(NAN)]],
  ['log-sum-exp', [f([[0, 0], [1000, 1000]])], { axes: [1] }, [f([Math.LN2, 1000 + Math.LN2])]],
  ['log-sum-exp', [f([[-INF, -INF], [INF, 0], [NAN, 0]])], { axes: [1] }, [f([-INF, INF, NAN])]],
  ['log-sum-exp', [f([])], {}, [f(-INF)]],

  ['softmax', [f([[0, 0], [1, 2], [1000, -INF]])], {}, [f([[0.5, 0.5], [1 / (1 + e), e / (1 + e)], [1, 0]])]],
  ['softmax', [f([[0, 1], [0, 2]])], { axis: 0 }, [f([[0.5, 1 / (1 + e)], [0.5, e / (1 + e)]])]],
  ['log-softmax', [f([0, 0])], {}, [f([-Math.LN2, -Math.LN2])]],
  ['log-softmax', [f([0, 1000])], {}, [f([-1000, 0])]],
  ['layer-norm', [f([1, 3])], { epsilon: 0 }, [f([-1, 1])]],
  ['layer-norm', [f([[1, 3], [2, 2]]), f([2, 4]), f([10, 20])], { epsilon: 0.25 }, [f([[10 - 4 / sqrt5, 20 + 8 / sqrt5], [10, 20]])]],
  ['rms-norm', [f([1, 7])], { epsilon: 0 }, [f([0.2, 1.4])]],
  ['rms-norm', [f([[0, 0]]), f([3, 3])], {}, [f([[0, 0]])]],

  ['matmul', [grid, f([[1, 0], [0, 1], [2, 2]])], {}, [f([[7, 8], [16, 17]])]],
  ['matmul', [grid, f([[1, 0, 2], [0, 1, 2]]), f([-10, 1])], { transposeB: true, activation: 'relu' }, [f([[0, 9], [6, 18]])]],
  ['matmul', [f([[1, 4], [2, 5], [3, 6]]), f([[1], [1], [1]])], { transposeA: true }, [f([[6], [15]])]],
  ['matmul', [f([[[1, 2]], [[3, 4]]]), f([[1], [10]])], {}, [f([[[21]], [[43]]])]],
  ['matmul', [f([[5]]), f([[2]])], { activation: 'relu6' }, [f([[6]])]],
  ['matmul', [hostTensor([2, 0], []), hostTensor([0, 1], []), f([3])], {}, [f([[3], [3]])]],

  ['attention', [f([[0, 0]]), f([[1, 2], [3, 4]]), f([[1], [3]])], {}, [f([[2]])]],
  ['attention', [f([[1]]), f([[0], [1]]), f([[0], [1]])], { scale: 1 }, [f([[e / (1 + e)]])]],
  ['attention', [f([[0], [0]]), f([[1], [2]]), f([[1], [3]])], { causal: true }, [f([[1], [2]])]],
  ['attention', [f([[0]]), f([[1], [2], [3]]), f([[3], [6], [9]])], { causal: true }, [f([[6]])]],
  ['attention', [f([[0], [0], [0]]), f([[1]]), f([[7]])], { causal: true }, [f([[0], [0], [7]])]],
  ['attention', [f([[0]]), f([[1], [2]]), f([[1], [3]]), f([-INF, 0])], {}, [f([[3]])]],
  ['attention', [f([[0]]), f([[1], [2]]), f([[1], [3]]), f([-INF, -INF])], {}, [f([[0]])]],
  ['attention', [f([[[0]], [[0]], [[0]], [[0]]]), f([[[1]], [[1]]]), f([[[5]], [[6]]])], {}, [f([[[5]], [[5]], [[6]], [[6]]])]],

  ['rotary', [f([[1, 2, 3, 4]]), f([[0, 1]]), f([[1, 0]])], {}, [f([[-3, 2, 1, 4]])]],
  ['rotary', [f([[1, 2, 3, 4]]), f([[0, 1]]), f([[1, 0]])], { interleaved: true }, [f([[-2, 1, 3, 4]])]],

  ['cache-append', [f([[1], [2], [3]]), f([[8], [9]]), i(1)], {}, [f([[1], [8], [9]])]],
  ['cache-update', [i([[[1], [2]], [[3], [4]]]), i([[[7], [8]], [[5], [6]]]), i([1, 1])], {}, [i([[[1], [8]], [[3], [6]]])]],
  ['prefix-match', [i([1, 2, 3]), i([1, 2, 4, 5])], {}, [i(2)]],
  ['prefix-match', [i([]), i([1])], {}, [i(0)]],
  ['prefix-match', [i([1, 2]), i([1, 2, 3])], {}, [i(2)]],
  ['cache-compress', [f([[127, -127, 1, 0.5, 1.5], [0, 0, 0, 0, 0], [254, 3, -3, 1, 0]])], {},
    [i([[0x0001817f, 2], [0, 0], [0x00fe027f, 0]]), f([1, 0, 2])]],
  ['cache-compress', [f([[NAN, 5], [INF, 5]])], {}, [i([[0], [0]]), f([NAN, INF])]],
  ['cache-decompress', [i([[0x0001817f, 0xfe]]), f([0.5])], { size: 5 }, [f([[63.5, -63.5, 0.5, 0, -1]])]],
  ['cache-evict', [f([[1], [2], [3], [4], [5]])], { window: 2, sinks: 1 }, [f([[1], [4], [5]])]],

  ['gather', [grid, i([2, 0])], { axis: 1 }, [f([[3, 1], [6, 4]])]],
  ['gather', [grid, i(1)], {}, [f([4, 5, 6])]],
  ['gather', [grid, i([[0, 0], [2, 1]])], { axis: 1, batchDims: 1 }, [f([[1, 1], [6, 5]])]],
  ['gather-nd', [grid, i([[1, 2], [0, 0]])], {}, [f([6, 1])]],
  ['gather-nd', [grid, i([[1]])], {}, [f([[4, 5, 6]])]],
  ['gather-nd', [f([1, 2]), hostTensor([2, 0], [], 'int32')], {}, [f([[1, 2], [1, 2]])]],
  ['scatter-nd', [i([[1], [3], [1]]), f([10, 20, 5])], { shape: [4] }, [f([0, 15, 0, 20])]],
  ['tensor-scatter-update', [grid, i([[0, 1], [0, 1]]), f([7, 8])], {}, [f([[1, 8, 3], [4, 5, 6]])]],
  ['sparse-to-dense', [i([[0, 1], [1, 0]]), f([5, 6]), f(-1)], { shape: [2, 2] }, [f([[-1, 5], [6, -1]])]],
  ['sparse-to-dense', [i([0, 2, 2]), i(4), i(0)], { shape: [3] }, [i([4, 0, 4])]],
  ['sparse-to-dense', [i(1), b(1), b(0)], { shape: [2] }, [b([0, 1])]],
  ['concat', [grid, f([[7], [8]])], { axis: 1 }, [f([[1, 2, 3, 7], [4, 5, 6, 8]])]],
  ['concat', [f([1]), f([2, 3]), f([])], {}, [f([1, 2, 3])]],
  ['pad', [f([[1, 2]])], { paddings: [1, 0, 0, 2], value: 9 }, [f([[9, 9, 9, 9], [1, 2, 9, 9]])]],
  ['one-hot', [i([1, -1, 3])], { depth: 3 }, [f([[0, 1, 0], [0, 0, 0], [0, 0, 0]])]],
  ['one-hot', [i(0)], { depth: 2, on: 5, off: -1, dtype: 'int32' }, [i([5, -1])]],
  ['top-k', [f([[1, 3, 2, 3], [NAN, 0, INF, 1]])], { k: 3 }, [f([[3, 3, 2], [NAN, INF, 1]]), i([[1, 3, 2], [0, 2, 3]])]],
  ['top-k', [i([4, 4])], { k: 1, sorted: false }, [i([4]), i([0])]],
  ['tile', [f([[1, 2]])], { reps: [2, 2] }, [f([[1, 2, 1, 2], [1, 2, 1, 2]])]],
  ['cumsum', [grid], { axis: 1 }, [f([[1, 3, 6], [4, 9, 15]])]],
  ['cumsum', [grid], { axis: 0, exclusive: true }, [f([[0, 0, 0], [1, 2, 3]])]],
  ['cumsum', [i([1, 2, 3])], { axis: 0, reverse: true }, [i([6, 5, 3])]],
  ['cumsum', [i([1, 2, 3])], { axis: 0, reverse: true, exclusive: true }, [i([5, 3, 0])]],

  ['reshape', [grid], { shape: [-1, 2] }, [f([[1, 2], [3, 4], [5, 6]])]],
  ['transpose', [grid], {}, [f([[1, 4], [2, 5], [3, 6]])]],
  ['transpose', [f([[[1, 2]], [[3, 4]]])], { perm: [1, 0, 2] }, [f([[[1, 2], [3, 4]]])]],
  ['slice', [grid], { begin: [1, 0], size: [1, -1] }, [f([[4, 5, 6]])]],
  ['strided-slice', [grid], { begin: [1, 0], end: [-1, 3], strides: [-1, 2] }, [f([[4, 6], [1, 3]])]],
  ['expand', [f([[1], [2]])], { shape: [2, 2, 3] }, [f([[[1, 1, 1], [2, 2, 2]], [[1, 1, 1], [2, 2, 2]]])]],
  ['reverse', [grid], { axes: [1] }, [f([[3, 2, 1], [6, 5, 4]])]],
  ['reverse', [b([1, 0, 0])], {}, [b([0, 0, 1])]],
  ['squeeze', [f([[[1]], [[2]]])], { axes: [1] }, [f([[1], [2]])]],
  ['expand-dims', [f([1, 2])], { axis: -1 }, [f([[1], [2]])]],

  ['fill', [], { shape: [2], value: 0.5 }, [f([0.5, 0.5])]],
  ['fill', [], { shape: [], value: 1, dtype: 'bool' }, [b(1)]],
  ['range', [], { stop: 1, step: 0.25 }, [f([0, 0.25, 0.5, 0.75])]],
  ['range', [], { start: 5, stop: 0, step: -2, dtype: 'int32' }, [i([5, 3, 1])]],
];

/** Tried in map.test.ts. */
const TRIED_ELSEWHERE = new Set([...Object.keys(MAPS), 'clip', 'leaky-relu', 'step']);

function codeOf(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    return (error as GpuosError).code;
  }
  return 'none';
}

describe('the reference', () => {
  it('exists for every operator but nop, and each has a case', () => {
    const names = OPERATORS.map((operator) => operator.name).filter((name) => name !== 'nop');
    const tried = new Set([...TRIED_ELSEWHERE, ...CASES.map(([name]) => name)]);
    expect(names.filter((name) => !hasReference(name))).toEqual([]);
    expect(names.filter((name) => !tried.has(name))).toEqual([]);
    expect(referenceRun('nop', [])).toEqual([]);
  });

  for (const [index, [name, inputs, attributes, outputs]] of CASES.entries()) {
    it(`${index}: ${name} ${JSON.stringify(attributes)}`, () => {
      const before = inputs.map((input) => input.data.slice());
      const got = referenceRun(name, inputs, attributes);
      expect(got.map(({ shape, dtype }) => ({ shape, dtype }))).toEqual(outputs.map(({ shape, dtype }) => ({ shape, dtype })));
      for (const [n, output] of outputs.entries()) {
        for (const [at, value] of output.data.entries()) {
          const actual = got[n]?.data[at] as number;
          if (!Number.isFinite(value) || output.dtype !== 'float32') expect(actual, `element ${at}`).toBe(value);
          // Rounded once: at most one unit in the last place from the value by hand, itself rounded.
          else expect(Math.abs(actual - value), `element ${at}: ${actual} for ${value}`).toBeLessThanOrEqual(1.2e-7 * Math.abs(value));
        }
      }
      expect(inputs.map((input) => input.data)).toEqual(before);
    });
  }

  it.each<[string, readonly HostTensor[], Attributes]>([
    ['gather', [grid, i([2])], {}],
    ['gather', [grid, i([-1])], {}],
    ['gather-nd', [grid, i([[0, 3]])], {}],
    ['scatter-nd', [i([[4]]), f([1])], { shape: [4] }],
    ['tensor-scatter-update', [grid, i([[-1, 0]]), f([1])], {}],
    ['sparse-to-dense', [i([3]), f([1]), f(0)], { shape: [3] }],
    ['cache-append', [f([[1], [2]]), f([[3], [4]]), i(1)], {}],
    ['cache-append', [f([[1], [2]]), f([[3]]), i(-1)], {}],
    ['cache-update', [f([[1], [2]]), f([[3]]), i([2])], {}],
  ])('%s refuses an index that is out of range', (name, inputs, attributes) => {
    expect(codeOf(() => referenceRun(name, inputs, attributes))).toBe('GPUOS_INDEX_OUT_OF_RANGE');
  });

  it('refuses what the operator refuses, before it computes', () => {
    expect(codeOf(() => referenceRun('sine', []))).toBe('GPUOS_UNKNOWN_OPERATOR');
    expect(codeOf(() => referenceRun('add', [grid]))).toBe('GPUOS_SHAPE_MISMATCH');
    expect(codeOf(() => referenceRun('add', [grid, i(1)]))).toBe('GPUOS_DTYPE_MISMATCH');
    expect(codeOf(() => referenceRun('sum', [grid], { axes: [7] }))).toBe('GPUOS_BAD_AXIS');
    expect(codeOf(() => referenceRun('sum', [grid], { axis: 0 }))).toBe('GPUOS_BAD_ATTRIBUTE');
    expect(codeOf(() => referenceRun('neg', [{ shape: [NAN], dtype: 'float32', data: new Float32Array(1) }]))).toBe('GPUOS_BAD_SHAPE');
    expect(codeOf(() => referenceRun('neg', [{ shape: [3], dtype: 'float32', data: new Float32Array(1) }]))).toBe('GPUOS_SHAPE_MISMATCH');
  });
});
