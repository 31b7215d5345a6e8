import { normalizeAxes, normalizeAxis, reducedShape } from '../../../ops/shape.ts';
import { axisAttributes, reductionAttributes } from '../attributes.ts';
import { DECLINED, type GpuosBackend } from '../backend.ts';
import { REDUCTION as ON_HOST, reduce } from '../host-arithmetic.ts';
import type { TensorInfo } from '../tfjs.ts';
import { ANY, accept, axesOf, BOOL, type Kernel, type Kernels, NUMBER, type X } from './kernel.ts';

interface Axes {
  readonly axis?: number | number[] | null;
  /** The name that Max has for it. */
  readonly reductionIndices?: number | number[] | null;
  readonly keepDims?: boolean;
}

/** A reduction; with `counts`, bool is taken as int32, as tfjs does for sums and products. */
function reduction(kernel: string, operator: string, dtypes: number, counts = false): Kernel {
  const onHost = ON_HOST[operator] !== undefined;
  return (backend: GpuosBackend, { x }: X, attributes: Axes) => {
    accept(x, dtypes);
    const axes = normalizeAxes(kernel, axesOf(attributes.axis ?? attributes.reductionIndices), x.shape.length);
    const keepDims = attributes.keepDims === true;
    const dtype = counts && x.dtype === 'bool' ? 'int32' : x.dtype;
    // Of one element each there is nothing to reduce: the same values under another shape.
    if (dtype === x.dtype && (onHost || dtype === 'float32') && axes.every((axis) => x.shape[axis] === 1)) {
      return backend.share(x, reducedShape(x.shape, axes, keepDims));
    }
    const known = onHost ? backend.shadow(x) : undefined;
    if (known) return backend.hostResult(reduce(operator, known, x.shape, axes), reducedShape(x.shape, axes, keepDims), dtype as 'int32');
    if (dtype === x.dtype) return backend.ring(operator, [backend.operand(x)], reductionAttributes(axes, keepDims));
    const integers = backend.apply('cast', [backend.operand(x)], { dtype: 'int32' });
    const result = backend.ring(operator, [integers], reductionAttributes(axes, keepDims));
    integers.dispose();
    return result;
  };
}

/** The index of the extreme along one axis. */
function arg(kernel: string, operator: string): Kernel {
  return (backend: GpuosBackend, { x }: X, attributes: { axis: number | number[] }): TensorInfo => {
    accept(x, NUMBER);
    const given = typeof attributes.axis === 'number' ? attributes.axis : (attributes.axis[0] as number);
    if (x.shape.length === 0) throw DECLINED;
    return backend.ring(operator, [backend.operand(x)], axisAttributes(normalizeAxis(kernel, given, x.shape.length)));
  };
}

export const REDUCTION: Kernels = {
  Sum: reduction('Sum', 'sum', ANY, true),
  Prod: reduction('Prod', 'prod', ANY, true),
  Mean: reduction('Mean', 'mean', ANY),
  Max: reduction('Max', 'max', NUMBER),
  Min: reduction('Min', 'min', NUMBER),
  Any: reduction('Any', 'any', BOOL),
  All: reduction('All', 'all', BOOL),
  ArgMax: arg('ArgMax', 'argmax'),
  ArgMin: arg('ArgMin', 'argmin'),
};
