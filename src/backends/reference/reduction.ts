import type { DType, Shape } from '../../ops/define.ts';
import type { HostTensor } from '../../ops/host-tensor.ts';
import { reducedAxes } from '../../ops/reduction.ts';
import { elementCount, normalizeAxis, reducedShape, strides } from '../../ops/shape.ts';
import { at, forEachIndex, forEachLane, offsetOf, type ReferenceOperator } from './elements.ts';
import { storeValue } from './map.ts';

interface Fold {
  readonly identity: (dtype: DType) => number;
  readonly step: (accumulated: number, value: number, dtype: DType) => number;
}

const LEAST = -(2 ** 31);
const GREATEST = 2 ** 31 - 1;

/** Accumulated in double for float32; wrapping for int32. */
const FOLDS: Readonly<Record<string, Fold>> = {
  sum: { identity: () => 0, step: (acc, x, dtype) => (dtype === 'int32' ? (acc + x) | 0 : acc + x) },
  prod: { identity: () => 1, step: (acc, x, dtype) => (dtype === 'int32' ? Math.imul(acc, x) : acc * x) },
  max: { identity: (dtype) => (dtype === 'int32' ? LEAST : Number.NEGATIVE_INFINITY), step: (acc, x) => Math.max(acc, x) },
  min: { identity: (dtype) => (dtype === 'int32' ? GREATEST : Number.POSITIVE_INFINITY), step: (acc, x) => Math.min(acc, x) },
  any: { identity: () => 0, step: (acc, x) => (acc !== 0 || x !== 0 ? 1 : 0) },
  all: { identity: () => 1, step: (acc, x) => (acc !== 0 && x !== 0 ? 1 : 0) },
};

/** Calls `visit` for each element of the shape with its place and the place of its group after reducing the axes. */
function forEachGrouped(shape: Shape, axes: readonly number[], visit: (element: number, group: number) => void): void {
  const kept = reducedShape(shape, axes, true);
  const steps = strides(kept).map((step, i) => (axes.includes(i) ? 0 : step));
  forEachIndex(shape, (index, flat) => visit(flat, offsetOf(index, steps)));
}

function foldReference(name: string): ReferenceOperator {
  const { identity, step } = FOLDS[name] as Fold;
  return (inputs, attributes, outputs) => {
    const [x, output] = [inputs[0] as HostTensor, outputs[0] as HostTensor];
    const { axes } = reducedAxes(name, x.shape, attributes);
    const accumulated = new Float64Array(output.data.length).fill(identity(x.dtype));
    forEachGrouped(x.shape, axes, (element, group) => {
      accumulated[group] = step(at(accumulated, group), at(x.data, element), x.dtype);
    });
    for (let i = 0; i < accumulated.length; i++) output.data[i] = storeValue(at(accumulated, i), output.dtype);
  };
}

/** Whether `x` takes the place of `best`, which comes before it: greater (or less), or the first NaN. */
function argReference(name: 'argmax' | 'argmin'): ReferenceOperator {
  const beats = (x: number, best: number) => (Number.isNaN(x) ? !Number.isNaN(best) : name === 'argmax' ? x > best : x < best);
  return (inputs, attributes, outputs) => {
    const [x, output] = [inputs[0] as HostTensor, outputs[0] as HostTensor];
    const axis = normalizeAxis(name, attributes['axis'] as number, x.shape.length);
    forEachLane(x.shape, axis, (start, step, length, lane) => {
      let best = 0;
      for (let i = 1; i < length; i++) if (beats(at(x.data, start + i * step), at(x.data, start + best * step))) best = i;
      output.data[lane] = best;
    });
  };
}

export const REDUCTIONS: Readonly<Record<string, ReferenceOperator>> = {
  ...Object.fromEntries(Object.keys(FOLDS).map((name) => [name, foldReference(name)])),
  argmax: argReference('argmax'),
  argmin: argReference('argmin'),

  mean(inputs, attributes, outputs) {
    const [x, output] = [inputs[0] as HostTensor, outputs[0] as HostTensor];
    const { axes } = reducedAxes('mean', x.shape, attributes);
    const count = elementCount(axes.map((axis) => at(x.shape, axis)));
    const sums = new Float64Array(output.data.length);
    forEachGrouped(x.shape, axes, (element, group) => {
      sums[group] = at(sums, group) + at(x.data, element);
    });
    for (let i = 0; i < sums.length; i++) output.data[i] = at(sums, i) / count;
  },

  'log-sum-exp'(inputs, attributes, outputs) {
    const [x, output] = [inputs[0] as HostTensor, outputs[0] as HostTensor];
    const { axes } = reducedAxes('log-sum-exp', x.shape, attributes);
    const greatest = new Float64Array(output.data.length).fill(Number.NEGATIVE_INFINITY);
    const sums = new Float64Array(output.data.length);
    forEachGrouped(x.shape, axes, (element, group) => {
      greatest[group] = Math.max(at(greatest, group), at(x.data, element));
    });
    forEachGrouped(x.shape, axes, (element, group) => {
      sums[group] = at(sums, group) + Math.exp(at(x.data, element) - at(greatest, group));
    });
    for (let i = 0; i < sums.length; i++) {
      const m = at(greatest, i);
      // The limit, where m itself is not finite: the greatest decides.
      output.data[i] = Number.isFinite(m) ? m + Math.log(at(sums, i)) : m;
    }
  },
};
