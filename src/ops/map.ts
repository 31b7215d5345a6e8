import { ANY, at, BOOLS, checkDType, checkSameDType, FLOATS, NUMBERS, refuse } from './checks.ts';
import { type Attributes, type DType, defineOperator, type OperatorDefinition, type TensorSpec } from './define.ts';
import { isFloat } from './dtype.ts';
import type { MapName } from './program.ts';
import { broadcastPair, noBroadcast } from './shape.ts';

/** What an element-wise operation takes and gives. The number of `inputs` is its arity. */
export interface MapRule {
  readonly inputs: readonly string[];
  /** dtypes that the operands may have; all operands have the same one. */
  readonly operands: readonly DType[];
  /** The first input is a bool condition and not one of the operands. */
  readonly condition?: true;
  /** `same` as the operands, `bool`, or the `dtype` attribute. */
  readonly result: 'same' | 'bool' | 'attribute';
  /** Formula, and what happens at the edges. Float results are those of the formula in real arithmetic, rounded to float32, and from there to a narrower dtype. */
  readonly about: string;
}

const AB = ['a', 'b'] as const;
const X = ['x'] as const;

const numeric2 = (about: string, operands = NUMBERS): MapRule => ({ inputs: AB, operands, result: 'same', about });
const compare = (about: string): MapRule => ({ inputs: AB, operands: ANY, result: 'bool', about });
const logical = (about: string): MapRule => ({ inputs: AB, operands: BOOLS, result: 'bool', about });
const numeric1 = (about: string, operands = FLOATS): MapRule => ({ inputs: X, operands, result: 'same', about });
const classify = (about: string): MapRule => ({ inputs: X, operands: FLOATS, result: 'bool', about });

/** Every element-wise operation: arity, type rule, formula. int32 arithmetic wraps modulo 2^32. */
export const MAPS: Readonly<Record<MapName, MapRule>> = {
  add: numeric2('a + b'),
  sub: numeric2('a - b'),
  mul: numeric2('a b'),
  div: numeric2('a / b; for int32 cast first, or use floor-div', FLOATS),
  'floor-div': numeric2('floor(a / b), the quotient rounded to float32 first; int32: the exact floor, 0 for b = 0'),
  mod: numeric2('a - b floor(a / b), exact remainder with the sign of b; int32: 0 for b = 0'),
  maximum: numeric2('the greater; NaN if either is'),
  minimum: numeric2('the smaller; NaN if either is'),
  pow: numeric2('a^b as Math.pow; int32: wraps, and a negative b truncates towards 0 (0 for a = 0)'),
  'squared-difference': numeric2('(a - b)^2'),
  atan2: numeric2('the angle of the point (b, a)', FLOATS),
  prelu: { inputs: ['x', 'alpha'], operands: FLOATS, result: 'same', about: 'alpha x where x < 0, else x' },

  equal: compare('a = b; false if either is NaN'),
  'not-equal': compare('a is not b; true if either is NaN'),
  less: compare('a < b'),
  'less-equal': compare('a <= b'),
  greater: compare('a > b'),
  'greater-equal': compare('a >= b'),

  'logical-and': logical('a and b'),
  'logical-or': logical('a or b'),
  'logical-xor': logical('a or b but not both'),
  'logical-not': { inputs: X, operands: BOOLS, result: 'bool', about: 'not x' },

  select: { inputs: ['condition', 'a', 'b'], operands: ANY, condition: true, result: 'same', about: 'a where the condition holds, else b' },

  neg: numeric1('-x', NUMBERS),
  abs: numeric1('|x|; -2^31 stays', NUMBERS),
  sign: numeric1('-1, 0 or 1; 0 for NaN', NUMBERS),
  exp: numeric1('e^x'),
  expm1: numeric1('e^x - 1, exact near 0'),
  log: numeric1('natural logarithm; NaN below 0'),
  log1p: numeric1('log(1 + x), exact near 0'),
  sqrt: numeric1('square root; NaN below 0'),
  rsqrt: numeric1('1 / sqrt(x)'),
  square: numeric1('x^2', NUMBERS),
  reciprocal: numeric1('1 / x'),
  floor: numeric1('the greatest integer not above x'),
  ceil: numeric1('the least integer not below x'),
  round: numeric1('the nearest integer, halves to even'),
  erf: numeric1('2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x'),
  tanh: numeric1('hyperbolic tangent'),
  sigmoid: numeric1('1 / (1 + e^-x)'),
  softplus: numeric1('log(1 + e^x), as max(x, 0) + log1p(e^-|x|)'),
  sin: numeric1('sine'),
  cos: numeric1('cosine'),
  tan: numeric1('tangent'),
  asin: numeric1('arc sine; NaN outside [-1, 1]'),
  acos: numeric1('arc cosine; NaN outside [-1, 1]'),
  atan: numeric1('arc tangent'),
  sinh: numeric1('hyperbolic sine'),
  cosh: numeric1('hyperbolic cosine'),
  asinh: numeric1('inverse hyperbolic sine'),
  acosh: numeric1('inverse hyperbolic cosine; NaN below 1'),
  atanh: numeric1('inverse hyperbolic tangent; NaN outside [-1, 1]'),
  relu: numeric1('max(x, 0); NaN stays', NUMBERS),
  relu6: numeric1('min(max(x, 0), 6); NaN stays'),
  elu: numeric1('x where x >= 0, else e^x - 1'),
  selu: numeric1('lambda x where x >= 0, else lambda alpha (e^x - 1) (Klambauer et al. 2017)'),
  gelu: numeric1('x/2 (1 + erf(x / sqrt 2)) (Hendrycks and Gimpel 2016)'),
  'gelu-tanh': numeric1('x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))'),
  silu: numeric1('x sigmoid(x)'),

  'is-nan': classify('whether x is NaN'),
  'is-inf': classify('whether x is one of the infinities'),
  'is-finite': classify('whether x is neither NaN nor infinite'),

  cast: {
    inputs: X,
    operands: ANY,
    result: 'attribute',
    about:
      'x in another dtype; to int32: truncates, NaN gives 0, out of range saturates; to bool: x is not 0 (true for NaN); ' +
      'to float16 and bfloat16: by way of float32, halves to even',
  },
};

type Typed = Pick<TensorSpec, 'dtype'>;

export const SELU_ALPHA = 1.6732632423543772;
export const SELU_LAMBDA = 1.0507009873554805;

/** The dtype of a map's result; throws GPUOS_DTYPE_MISMATCH. Counts are checked by the caller. */
function mapResult(name: string, rule: MapRule, inputs: readonly Typed[], attributes: Attributes): DType {
  const first = rule.condition ? 1 : 0;
  if (rule.condition) checkDType(name, rule.inputs[0] as string, inputs[0] as Typed, BOOLS);
  const operand = inputs[first] as Typed;
  checkDType(name, rule.inputs[first] as string, operand, rule.operands);
  for (let i = first + 1; i < inputs.length; i++) {
    checkSameDType(name, [rule.inputs[first] as string, rule.inputs[i] as string], operand, inputs[i] as Typed);
  }
  return rule.result === 'same' ? operand.dtype : rule.result === 'bool' ? 'bool' : (attributes['dtype'] as DType);
}

/** What a map other than `cast` gives for as many operands as it takes. @throws GPUOS_DTYPE_MISMATCH */
export function mapDType(name: MapName, operands: readonly Typed[]): DType {
  return mapResult(name, MAPS[name], operands, {});
}

const CAST_ATTRIBUTES = { dtype: { type: 'string', values: ANY, about: 'dtype of the result' } } as const;

function mapOperator(name: MapName, rule: MapRule): OperatorDefinition {
  return defineOperator({
    name,
    family: 'map',
    kind: 'map',
    about: rule.about,
    inputs: rule.inputs,
    ...(rule.result === 'attribute' ? { attributes: CAST_ATTRIBUTES } : {}),
    infer(inputs, attributes) {
      const dtype = mapResult(name, rule, inputs, attributes);
      let { shape } = at(inputs, 0);
      for (let n = 1; n < inputs.length; n++) {
        const next = broadcastPair(shape, at(inputs, n).shape);
        if (!next) throw noBroadcast(name, ...inputs.map((input) => input.shape));
        shape = next;
      }
      return [{ shape, dtype }];
    },
  });
}

function inferFloat(name: string): OperatorDefinition['infer'] {
  return (inputs) => {
    checkDType(name, 'x', at(inputs, 0), FLOATS);
    return [{ shape: at(inputs, 0).shape, dtype: at(inputs, 0).dtype }];
  };
}

/** The bounds of clip in the dtype of its input. */
export function clipBounds(dtype: DType, attributes: Attributes): readonly [number, number] {
  const min = attributes['min'] as number;
  const max = attributes['max'] as number;
  if (!(min <= max)) throw refuse('GPUOS_BAD_ATTRIBUTE', 'clip', `attribute min is ${min} and max is ${max}; min must not be above max.`);
  if (isFloat(dtype)) return [min, max];
  for (const bound of [min, max]) {
    if (Number.isFinite(bound) && !Number.isInteger(bound)) {
      throw refuse('GPUOS_BAD_ATTRIBUTE', 'clip', `a bound is ${bound}; for int32 it must be an integer or infinite.`);
    }
  }
  const saturate = (value: number) => Math.min(Math.max(value, -(2 ** 31)), 2 ** 31 - 1);
  return [saturate(min), saturate(max)];
}

const COMPOSITE_MAPS: readonly OperatorDefinition[] = [
  defineOperator({
    name: 'clip',
    family: 'map',
    kind: 'composite',
    about: 'min(max(x, min), max); NaN stays',
    inputs: ['x'],
    attributes: {
      min: { type: 'number', default: Number.NEGATIVE_INFINITY, about: 'lower bound' },
      max: { type: 'number', default: Number.POSITIVE_INFINITY, about: 'upper bound' },
    },
    infer(inputs, attributes) {
      const x = at(inputs, 0);
      checkDType('clip', 'x', x, NUMBERS);
      clipBounds(x.dtype, attributes);
      return [{ shape: x.shape, dtype: x.dtype }];
    },
    expand(builder, inputs, attributes) {
      const { dtype } = builder.spec(at(inputs, 0));
      const [min, max] = clipBounds(dtype, attributes);
      const raised = builder.apply('maximum', [at(inputs, 0), builder.constant(min, dtype)]);
      return builder.apply('minimum', [raised, builder.constant(max, dtype)]);
    },
  }),
  defineOperator({
    name: 'leaky-relu',
    family: 'map',
    kind: 'composite',
    about: 'alpha x where x < 0, else x',
    inputs: ['x'],
    attributes: { alpha: { type: 'number', default: 0.2, about: 'slope below 0' } },
    infer: inferFloat('leaky-relu'),
    expand(builder, inputs, attributes) {
      return builder.apply('prelu', [at(inputs, 0), builder.constant(attributes['alpha'] as number)]);
    },
  }),
  defineOperator({
    name: 'step',
    family: 'map',
    kind: 'composite',
    about: '1 where x > 0, else alpha; NaN stays',
    inputs: ['x'],
    attributes: { alpha: { type: 'number', default: 0, about: 'value at and below 0' } },
    infer: inferFloat('step'),
    expand(builder, inputs, attributes) {
      const x = at(inputs, 0);
      const above = builder.apply('greater', [x, builder.constant(0)]);
      const step = builder.apply('select', [above, builder.constant(1), builder.constant(attributes['alpha'] as number)]);
      return builder.apply('select', [builder.apply('is-nan', [x]), x, step]);
    },
  }),
];

export const MAP_OPERATORS: readonly OperatorDefinition[] = [
  ...(Object.keys(MAPS) as MapName[]).map((name) => mapOperator(name, MAPS[name])),
  ...COMPOSITE_MAPS,
];
