import { ANY, at, BOOLS, checkDType, FLOATS, mismatch, NUMBERS } from './checks.ts';
import { type Attributes, type DType, defineOperator, type ExpressionBuilder, type OperatorDefinition, type TensorSpec } from './define.ts';
import { isFloat } from './dtype.ts';
import type { ReduceName } from './program.ts';
import { elementCount, formatShape, normalizeAxes, normalizeAxis, reducedShape } from './shape.ts';

export interface ReduceRule {
  readonly operands: readonly DType[];
  /** `same` as the operand, or `int32` for the index of an extreme. */
  readonly result: 'same' | 'int32';
  readonly about: string;
}

/** Every reduction: type rule and formula. Of no elements it gives its identity; argmax and argmin have none and refuse. */
export const REDUCES: Readonly<Record<ReduceName, ReduceRule>> = {
  sum: { operands: NUMBERS, result: 'same', about: 'sum; int32 wraps; identity 0' },
  prod: { operands: NUMBERS, result: 'same', about: 'product; int32 wraps; identity 1' },
  max: { operands: NUMBERS, result: 'same', about: 'greatest; NaN if any is; identity -Infinity or -2^31' },
  min: { operands: NUMBERS, result: 'same', about: 'least; NaN if any is; identity Infinity or 2^31 - 1' },
  any: { operands: BOOLS, result: 'same', about: 'whether one is true; identity false' },
  all: { operands: BOOLS, result: 'same', about: 'whether each is true; identity true' },
  argmax: { operands: NUMBERS, result: 'int32', about: 'first index of the greatest; of the first NaN if there is one' },
  argmin: { operands: NUMBERS, result: 'int32', about: 'first index of the least; of the first NaN if there is one' },
};

export const AXES_ATTRIBUTES = {
  axes: { type: 'integers', optional: true, about: 'axes to reduce, negative ones from the end; all by default' },
  keepDims: { type: 'boolean', default: false, about: 'whether reduced axes stay with size 1' },
} as const;

export interface ReducedAxes {
  /** Ascending, counted from the front. */
  readonly axes: readonly number[];
  readonly keepDims: boolean;
  readonly shape: readonly number[];
}

/** The normalised axes of a reduction with AXES_ATTRIBUTES and the shape that it leaves. Throws GPUOS_BAD_AXIS. */
export function reducedAxes(name: string, shape: readonly number[], attributes: Attributes): ReducedAxes {
  const axes = normalizeAxes(name, attributes['axes'] as readonly number[] | undefined, shape.length);
  const keepDims = attributes['keepDims'] === true;
  return { axes, keepDims, shape: reducedShape(shape, axes, keepDims) };
}

function reduceOperator(name: Exclude<ReduceName, 'argmax' | 'argmin'>, rule: ReduceRule): OperatorDefinition {
  return defineOperator({
    name,
    family: 'reduction',
    kind: 'reduce',
    about: rule.about,
    inputs: ['x'],
    attributes: AXES_ATTRIBUTES,
    infer(inputs, attributes) {
      const x = at(inputs, 0);
      checkDType(name, 'x', x, rule.operands);
      return [{ shape: reducedAxes(name, x.shape, attributes).shape, dtype: x.dtype }];
    },
  });
}

function argOperator(name: 'argmax' | 'argmin', rule: ReduceRule): OperatorDefinition {
  return defineOperator({
    name,
    family: 'reduction',
    kind: 'reduce',
    about: rule.about,
    inputs: ['x'],
    attributes: { axis: { type: 'integer', about: 'axis to search, negative from the end' } },
    infer(inputs, attributes) {
      const x = at(inputs, 0);
      checkDType(name, 'x', x, rule.operands);
      const axis = normalizeAxis(name, attributes['axis'] as number, x.shape.length);
      if (x.shape[axis] === 0) throw mismatch(name, `axis ${axis} of x ${formatShape(x.shape)} is empty and so has no extreme.`);
      return [{ shape: reducedShape(x.shape, [axis], false), dtype: 'int32' }];
    },
  });
}

/** Mean over `axes` in float32; also what the normalizations are made of. NaN for no elements. */
export function expandMean<V>(builder: ExpressionBuilder<V>, x: V, axes: readonly number[], keepDims: boolean): V {
  const { shape, dtype } = builder.spec(x);
  const float = dtype === 'float32' ? x : builder.apply('cast', [x], { dtype: 'float32' });
  const count = elementCount(axes.map((axis) => at(shape, axis)));
  return builder.apply('div', [builder.apply('sum', [float], { axes, keepDims }), builder.constant(count)]);
}

export const REDUCTION_OPERATORS: readonly OperatorDefinition[] = [
  reduceOperator('sum', REDUCES.sum),
  reduceOperator('prod', REDUCES.prod),
  reduceOperator('max', REDUCES.max),
  reduceOperator('min', REDUCES.min),
  reduceOperator('any', REDUCES.any),
  reduceOperator('all', REDUCES.all),
  argOperator('argmax', REDUCES.argmax),
  argOperator('argmin', REDUCES.argmin),
  defineOperator({
    name: 'mean',
    family: 'reduction',
    kind: 'composite',
    about: 'sum / n in float32; int32 and bool are cast and give float32; NaN for no elements',
    inputs: ['x'],
    attributes: AXES_ATTRIBUTES,
    infer(inputs, attributes) {
      const x = at(inputs, 0);
      checkDType('mean', 'x', x, ANY);
      return [{ shape: reducedAxes('mean', x.shape, attributes).shape, dtype: isFloat(x.dtype) ? x.dtype : 'float32' }];
    },
    expand(builder, inputs, attributes) {
      const x = at(inputs, 0);
      const { axes, keepDims } = reducedAxes('mean', builder.spec(x).shape, attributes);
      return expandMean(builder, x, axes, keepDims);
    },
  }),
  defineOperator({
    name: 'log-sum-exp',
    family: 'reduction',
    kind: 'composite',
    about: 'log of the sum of e^x, as m + log(sum(e^(x - m))) with m the greatest x where that is finite, else 0',
    inputs: ['x'],
    attributes: AXES_ATTRIBUTES,
    infer(inputs, attributes) {
      const x: TensorSpec = at(inputs, 0);
      checkDType('log-sum-exp', 'x', x, FLOATS);
      return [{ shape: reducedAxes('log-sum-exp', x.shape, attributes).shape, dtype: x.dtype }];
    },
    expand(builder, inputs, attributes) {
      const x = at(inputs, 0);
      const { axes, keepDims, shape } = reducedAxes('log-sum-exp', builder.spec(x).shape, attributes);
      const max = builder.apply('max', [x], { axes, keepDims: true });
      // Infinite only for rows that are empty, all -Infinity, or hold Infinity or NaN: x - max would be NaN there.
      const shift = builder.apply('select', [builder.apply('is-finite', [max]), max, builder.constant(0)]);
      const exp = builder.apply('exp', [builder.apply('sub', [x, shift])]);
      const sum = builder.apply('sum', [exp], { axes, keepDims: true });
      const result = builder.apply('add', [builder.apply('log', [sum]), shift]);
      return keepDims || axes.length === 0 ? result : builder.apply('reshape', [result], { shape });
    },
  }),
];
