import { checkExactShape, checkOneDType, checkRank, FLOATS, mismatch } from './checks.ts';
import { type Attributes, defineOperator, type OperatorDefinition, type Shape, type TensorSpec } from './define.ts';
import { broadcastPair, formatShape } from './shape.ts';

/** What may be applied to the result of a matrix product; each is the map of the same name. */
export const ACTIVATIONS = ['none', 'relu', 'relu6', 'elu', 'sigmoid', 'tanh', 'gelu', 'gelu-tanh', 'silu'] as const;
export type Activation = (typeof ACTIVATIONS)[number];

export interface MatmulSizes {
  /** Leading dimensions of the result. */
  readonly batch: Shape;
  readonly m: number;
  readonly n: number;
  readonly k: number;
}

/** The sizes of a [.., m, k] by [.., k, n] product, transposes applied. Throws GPUOS_SHAPE_MISMATCH. */
export function matmulSizes(a: Shape, b: Shape, attributes: Attributes): MatmulSizes {
  const transposeA = attributes['transposeA'] === true;
  const transposeB = attributes['transposeB'] === true;
  const m = a[a.length - (transposeA ? 1 : 2)] as number;
  const k = a[a.length - (transposeA ? 2 : 1)] as number;
  const inner = b[b.length - (transposeB ? 1 : 2)] as number;
  const n = b[b.length - (transposeB ? 2 : 1)] as number;
  const shown = () => `a ${formatShape(a)}${transposeA ? ' transposed' : ''} and b ${formatShape(b)}${transposeB ? ' transposed' : ''}`;
  if (k !== inner) throw mismatch('matmul', `${shown()}: inner sizes ${k} and ${inner} differ.`);
  const batch = broadcastPair(a.slice(0, -2), b.slice(0, -2));
  if (!batch)
    throw mismatch(
      'matmul',
      `${shown()}: leading sizes ${formatShape(a.slice(0, -2))} and ${formatShape(b.slice(0, -2))} do not broadcast together.`,
    );
  return { batch, m, n, k };
}

export const MATRIX_OPERATORS: readonly OperatorDefinition[] = [
  defineOperator({
    name: 'matmul',
    family: 'matrix',
    kind: 'fixed',
    about: 'activation(a b + bias): a [.., m, k], b [.., k, n] (before their transposes), bias [n]; leading sizes broadcast',
    inputs: ['a', 'b', 'bias?'],
    attributes: {
      transposeA: { type: 'boolean', default: false, about: 'whether a is [.., k, m]' },
      transposeB: { type: 'boolean', default: false, about: 'whether b is [.., n, k]' },
      activation: { type: 'string', default: 'none', values: ACTIVATIONS, about: 'map applied to the result' },
    },
    infer(inputs, attributes) {
      const dtype = checkOneDType('matmul', ['a', 'b', 'bias'], inputs, FLOATS);
      const [a, b, bias] = inputs as readonly [TensorSpec, TensorSpec, TensorSpec?];
      checkRank('matmul', 'a', a, 2);
      checkRank('matmul', 'b', b, 2);
      const { batch, m, n } = matmulSizes(a.shape, b.shape, attributes);
      if (bias) checkExactShape('matmul', 'bias', bias, [n]);
      return [{ shape: [...batch, m, n], dtype }];
    },
  }),
];
