import { checkExactShape, checkOneDType, checkRank, FLOATS, mismatch } from './checks.ts';
import { defineOperator, type OperatorDefinition, type TensorSpec } from './define.ts';
import { formatShape } from './shape.ts';

export const ROTARY_OPERATORS: readonly OperatorDefinition[] = [
  defineOperator({
    name: 'rotary',
    family: 'rotary',
    kind: 'fixed',
    about:
      'rotates pairs of x [.., S, D] by angles given as cos, sin [S, D/2] (Su et al. 2021): pair i is (x_i, x_(i+D/2)), or (x_2i, x_(2i+1)) ' +
      'when interleaved, and becomes (a cos - b sin, b cos + a sin)',
    inputs: ['x', 'cos', 'sin'],
    attributes: { interleaved: { type: 'boolean', default: false, about: 'whether the two of a pair lie side by side' } },
    infer(inputs) {
      const dtype = checkOneDType('rotary', ['x', 'cos', 'sin'], inputs, FLOATS);
      const [x, cos, sin] = inputs as readonly [TensorSpec, TensorSpec, TensorSpec];
      checkRank('rotary', 'x', x, 2);
      const [s, d] = x.shape.slice(-2) as [number, number];
      if (d % 2 !== 0) throw mismatch('rotary', `x ${formatShape(x.shape)}: the last size ${d} is odd, so its elements do not pair up.`);
      checkExactShape('rotary', 'cos', cos, [s, d / 2]);
      checkExactShape('rotary', 'sin', sin, [s, d / 2]);
      return [{ shape: x.shape, dtype }];
    },
  }),
];
