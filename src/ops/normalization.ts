import { at, checkDType, checkExactShape, checkRank, checkSameDType, FLOATS } from './checks.ts';
import { defineOperator, type ExpressionBuilder, type OperatorDefinition } from './define.ts';
import { expandMean } from './reduction.ts';
import { normalizeAxis } from './shape.ts';

const AXIS = { axis: { type: 'integer', default: -1, about: 'axis to normalise over, negative from the end' } } as const;

function inferAlongAxis(name: string): OperatorDefinition['infer'] {
  return (inputs, attributes) => {
    const x = at(inputs, 0);
    checkDType(name, 'x', x, FLOATS);
    normalizeAxis(name, attributes['axis'] as number, x.shape.length);
    return [{ shape: x.shape, dtype: x.dtype }];
  };
}

/** x - max(x) along the axis, so that no exponential overflows, and the exponentials' sum. */
function shiftedExp<V>(builder: ExpressionBuilder<V>, x: V, axis: number): { shifted: V; exp: V; sum: V } {
  const along = { axes: [axis], keepDims: true };
  const shifted = builder.apply('sub', [x, builder.apply('max', [x], along)]);
  const exp = builder.apply('exp', [shifted]);
  return { shifted, exp, sum: builder.apply('sum', [exp], along) };
}

function inferOverLastAxis(name: string, parameters: readonly string[]): OperatorDefinition['infer'] {
  return (inputs) => {
    const x = at(inputs, 0);
    checkDType(name, 'x', x, FLOATS);
    checkRank(name, 'x', x, 1);
    for (let i = 1; i < inputs.length; i++) {
      const parameter = at(parameters, i - 1);
      checkSameDType(name, ['x', parameter], x, at(inputs, i));
      checkExactShape(name, parameter, at(inputs, i), [x.shape[x.shape.length - 1] as number]);
    }
    return [{ shape: x.shape, dtype: x.dtype }];
  };
}

/** x / sqrt(mean(x^2) + epsilon) over the last axis. */
function expandScaleByRms<V>(builder: ExpressionBuilder<V>, x: V, epsilon: number): V {
  const last = builder.spec(x).shape.length - 1;
  const meanSquare = expandMean(builder, builder.apply('square', [x]), [last], true);
  return builder.apply('mul', [x, builder.apply('rsqrt', [builder.apply('add', [meanSquare, builder.constant(epsilon)])])]);
}

export const NORMALIZATION_OPERATORS: readonly OperatorDefinition[] = [
  defineOperator({
    name: 'softmax',
    family: 'normalization',
    kind: 'composite',
    about: 'e^(x - m) / sum(e^(x - m)) with m the greatest x along the axis',
    inputs: ['x'],
    attributes: AXIS,
    infer: inferAlongAxis('softmax'),
    expand(builder, inputs, attributes) {
      const x = at(inputs, 0);
      const axis = normalizeAxis('softmax', attributes['axis'] as number, builder.spec(x).shape.length);
      const { exp, sum } = shiftedExp(builder, x, axis);
      return builder.apply('div', [exp, sum]);
    },
  }),
  defineOperator({
    name: 'log-softmax',
    family: 'normalization',
    kind: 'composite',
    about: 'x - m - log(sum(e^(x - m))) with m the greatest x along the axis',
    inputs: ['x'],
    attributes: AXIS,
    infer: inferAlongAxis('log-softmax'),
    expand(builder, inputs, attributes) {
      const x = at(inputs, 0);
      const axis = normalizeAxis('log-softmax', attributes['axis'] as number, builder.spec(x).shape.length);
      const { shifted, sum } = shiftedExp(builder, x, axis);
      return builder.apply('sub', [shifted, builder.apply('log', [sum])]);
    },
  }),
  defineOperator({
    name: 'layer-norm',
    family: 'normalization',
    kind: 'composite',
    about: '(x - mean) / sqrt(variance + epsilon) gamma + beta over the last axis, the variance of x - mean (Ba et al. 2016)',
    inputs: ['x', 'gamma?', 'beta?'],
    attributes: { epsilon: { type: 'number', default: 1e-5, min: 0, about: 'added to the variance' } },
    infer: inferOverLastAxis('layer-norm', ['gamma', 'beta']),
    expand(builder, inputs, attributes) {
      const x = at(inputs, 0);
      const centred = builder.apply('sub', [x, expandMean(builder, x, [builder.spec(x).shape.length - 1], true)]);
      let result = expandScaleByRms(builder, centred, attributes['epsilon'] as number);
      if (inputs.length > 1) result = builder.apply('mul', [result, at(inputs, 1)]);
      if (inputs.length > 2) result = builder.apply('add', [result, at(inputs, 2)]);
      return result;
    },
  }),
  defineOperator({
    name: 'rms-norm',
    family: 'normalization',
    kind: 'composite',
    about: 'x / sqrt(mean(x^2) + epsilon) gamma over the last axis (Zhang and Sennrich 2019)',
    inputs: ['x', 'gamma?'],
    attributes: { epsilon: { type: 'number', default: 1e-6, min: 0, about: 'added to the mean square' } },
    infer: inferOverLastAxis('rms-norm', ['gamma']),
    expand(builder, inputs, attributes) {
      const result = expandScaleByRms(builder, at(inputs, 0), attributes['epsilon'] as number);
      return inputs.length > 1 ? builder.apply('mul', [result, at(inputs, 1)]) : result;
    },
  }),
];
