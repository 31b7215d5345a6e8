import type { DType, Shape } from '../../ops/define.ts';
import { isHalf } from '../../ops/dtype.ts';
import { roundToHalf } from '../../ops/half.ts';
import type { HostTensor } from '../../ops/host-tensor.ts';
import { clipBounds, SELU_ALPHA, SELU_LAMBDA } from '../../ops/map.ts';
import type { MapName } from '../../ops/program.ts';
import { broadcastStrides } from '../../ops/shape.ts';
import { at, forEachIndex, offsetOf, type ReferenceOperator } from './elements.ts';
import { erf, erfc } from './erf.ts';

/** One element: doubles that hold values of the operands' dtype. Its result is rounded to the output's dtype afterwards. */
export type ElementFunction = (a: number, b: number, c: number) => number;

export function roundHalfEven(x: number): number {
  const below = Math.floor(x);
  const part = x - below;
  const rounded = part < 0.5 ? below : part > 0.5 ? below + 1 : below % 2 === 0 ? below : below + 1;
  return rounded === 0 && x < 0 ? -0 : rounded;
}

function floorMod(a: number, b: number): number {
  const rest = a % b;
  return rest !== 0 && rest < 0 !== b < 0 ? rest + b : rest;
}

/** base^exponent modulo 2^32 by squaring; a negative exponent truncates 1 / base^-exponent towards 0, and 0 gives 0. */
function integerPower(base: number, exponent: number): number {
  if (exponent < 0) return base === 1 ? 1 : base === -1 ? (exponent % 2 === 0 ? 1 : -1) : 0;
  let result = 1;
  let square = base;
  for (let rest = exponent; rest > 0; rest = Math.floor(rest / 2)) {
    if (rest % 2 === 1) result = Math.imul(result, square);
    square = Math.imul(square, square);
  }
  return result;
}

function softplus(x: number): number {
  return Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
}

/** On float32 values, in double. Comparisons, logic and select are the same for every dtype. */
export const FLOAT_ELEMENTS: Readonly<Record<Exclude<MapName, 'cast'>, ElementFunction>> = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  div: (a, b) => a / b,
  'floor-div': (a, b) => Math.floor(Math.fround(a / b)),
  mod: floorMod,
  maximum: (a, b) => Math.max(a, b),
  minimum: (a, b) => Math.min(a, b),
  pow: (a, b) => a ** b,
  'squared-difference': (a, b) => (a - b) * (a - b),
  atan2: (a, b) => Math.atan2(a, b),
  prelu: (x, alpha) => (x < 0 ? alpha * x : x),

  equal: (a, b) => Number(a === b),
  'not-equal': (a, b) => Number(a !== b),
  less: (a, b) => Number(a < b),
  'less-equal': (a, b) => Number(a <= b),
  greater: (a, b) => Number(a > b),
  'greater-equal': (a, b) => Number(a >= b),

  'logical-and': (a, b) => Number(a !== 0 && b !== 0),
  'logical-or': (a, b) => Number(a !== 0 || b !== 0),
  'logical-xor': (a, b) => Number((a !== 0) !== (b !== 0)),
  'logical-not': (a) => Number(a === 0),

  select: (condition, a, b) => (condition !== 0 ? a : b),

  neg: (x) => -x,
  abs: Math.abs,
  sign: (x) => (x > 0 ? 1 : x < 0 ? -1 : 0),
  exp: Math.exp,
  expm1: Math.expm1,
  log: Math.log,
  log1p: Math.log1p,
  sqrt: Math.sqrt,
  rsqrt: (x) => 1 / Math.sqrt(x),
  square: (x) => x * x,
  reciprocal: (x) => 1 / x,
  floor: Math.floor,
  ceil: Math.ceil,
  round: roundHalfEven,
  erf,
  tanh: Math.tanh,
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  softplus,
  sin: Math.sin,
  cos: Math.cos,
  tan: Math.tan,
  asin: Math.asin,
  acos: Math.acos,
  atan: Math.atan,
  sinh: Math.sinh,
  cosh: Math.cosh,
  asinh: Math.asinh,
  acosh: Math.acosh,
  atanh: Math.atanh,
  relu: (x) => Math.max(x, 0),
  relu6: (x) => Math.min(Math.max(x, 0), 6),
  elu: (x) => (x >= 0 ? x : Math.expm1(x)),
  selu: (x) => SELU_LAMBDA * (x >= 0 ? x : SELU_ALPHA * Math.expm1(x)),
  // erfc keeps the tail below 0, where 1 + erf would cancel.
  gelu: (x) => 0.5 * x * erfc(-x * Math.SQRT1_2),
  'gelu-tanh': (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  silu: (x) => x / (1 + Math.exp(-x)),

  'is-nan': (x) => Number(Number.isNaN(x)),
  'is-inf': (x) => Number(Math.abs(x) === Number.POSITIVE_INFINITY),
  'is-finite': (x) => Number(Number.isFinite(x)),
};

/** On int32 values where that differs from the doubles above: wrapping and division. */
const INTEGER_ELEMENTS: Readonly<Partial<Record<MapName, ElementFunction>>> = {
  mul: Math.imul,
  'floor-div': (a, b) => (b === 0 ? 0 : Math.floor(a / b)),
  mod: (a, b) => (b === 0 ? 0 : floorMod(a, b)),
  pow: integerPower,
  'squared-difference': (a, b) => Math.imul(a - b, a - b),
  square: (x) => Math.imul(x, x),
};

/** A value of one dtype in another: the rules of `cast`. */
export function castValue(value: number, to: DType): number {
  if (to === 'float32' || isHalf(to)) return storeValue(value, to);
  if (to === 'bool') return value !== 0 ? 1 : 0;
  return Number.isNaN(value) ? 0 : Math.min(Math.max(Math.trunc(value), -(2 ** 31)), 2 ** 31 - 1);
}

/** A double as an element of `dtype`; int32 wraps, and a half is rounded from float32. */
export function storeValue(value: number, dtype: DType): number {
  if (isHalf(dtype)) return roundToHalf(value, dtype);
  return dtype === 'float32' ? Math.fround(value) : value | 0;
}

function elementFunction(name: MapName, operands: DType, result: DType): ElementFunction {
  if (name === 'cast') return (x) => castValue(x, result);
  return (operands === 'int32' && INTEGER_ELEMENTS[name]) || FLOAT_ELEMENTS[name];
}

function readBroadcast(input: HostTensor, shape: Shape): (index: readonly number[]) => number {
  const steps = broadcastStrides(input.shape, shape);
  return (index) => at(input.data, offsetOf(index, steps));
}

/** The element-wise operator of this name. */
export function mapReference(name: MapName): ReferenceOperator {
  return (inputs, _, outputs) => {
    const output = outputs[0] as HostTensor;
    // The last input is an operand for every map, also for select, whose first is the condition.
    const apply = elementFunction(name, (inputs[inputs.length - 1] as HostTensor).dtype, output.dtype);
    const reads = inputs.map((input) => readBroadcast(input, output.shape));
    forEachIndex(output.shape, (index, flat) => {
      const [a, b, c] = reads.map((read) => read(index));
      output.data[flat] = storeValue(apply(a as number, b as number, c as number), output.dtype);
    });
  };
}

function elementwise(apply: (x: number) => number): ReferenceOperator {
  return (inputs, _, outputs) => {
    const [x, output] = [inputs[0] as HostTensor, outputs[0] as HostTensor];
    for (let i = 0; i < x.data.length; i++) output.data[i] = apply(at(x.data, i));
  };
}

export const COMPOSITE_MAPS: Readonly<Record<string, ReferenceOperator>> = {
  clip(inputs, attributes, outputs) {
    const [min, max] = clipBounds((inputs[0] as HostTensor).dtype, attributes);
    elementwise((x) => Math.min(Math.max(x, min), max))(inputs, attributes, outputs);
  },
  'leaky-relu'(inputs, attributes, outputs) {
    const alpha = attributes['alpha'] as number;
    elementwise((x) => (x < 0 ? alpha * x : x))(inputs, attributes, outputs);
  },
  step(inputs, attributes, outputs) {
    const alpha = attributes['alpha'] as number;
    elementwise((x) => (Number.isNaN(x) ? x : x > 0 ? 1 : alpha))(inputs, attributes, outputs);
  },
};
