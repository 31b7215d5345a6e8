import { broadcastStrides, elementCount } from '../../../ops/shape.ts';
import { DECLINED, type GpuosBackend } from '../backend.ts';
import { BINARY, isSmall, readStrided, UNARY, zip } from '../host-arithmetic.ts';
import type { RingTensor } from '../record.ts';
import { type DataType, type TensorInfo, tf } from '../tfjs.ts';
import { type AB, ANY, accept, acceptBoth, BOOL, broadcast, FLOAT, type Kernel, type Kernels, NUMBER, type X } from './kernel.ts';

/** Attributes of cast; frozen objects are checked by the engine once. */
const TO = {
  float32: Object.freeze({ dtype: 'float32' }),
  int32: Object.freeze({ dtype: 'int32' }),
  bool: Object.freeze({ dtype: 'bool' }),
};

/** Two small integer operands that the host knows: worked out here. */
function zipOnHost(backend: GpuosBackend, kernel: string, operator: string, a: TensorInfo, b: TensorInfo, dtype: 'int32' | 'bool') {
  const x = backend.shadow(a);
  if (x === undefined) return undefined;
  const y = backend.shadow(b);
  if (y === undefined) return undefined;
  const op = BINARY[operator] as (a: number, b: number) => number;
  const shape = broadcast(kernel, a.shape, b.shape);
  const count = elementCount(shape);
  if (count === Math.max(x.length, y.length) && (x.length === y.length || Math.min(x.length, y.length) === 1)) {
    return backend.hostResult(zip(op, x, y), shape, dtype);
  }
  if (!isSmall(shape)) return undefined;
  const left = readStrided(x, shape, broadcastStrides(a.shape, shape), 0);
  const right = readStrided(y, shape, broadcastStrides(b.shape, shape), 0);
  return backend.hostResult(zip(op, left, right), shape, dtype);
}

/** A kernel (a, b) that is one operator of the library. */
function binary(kernel: string, operator: string, dtypes: number, result?: 'bool'): Kernel {
  const onHost = BINARY[operator] !== undefined;
  return (backend: GpuosBackend, { a, b }: AB) => {
    acceptBoth(a, b, dtypes);
    if (onHost && a.dtype !== 'float32') {
      const known = zipOnHost(backend, kernel, operator, a, b, result ?? (a.dtype as 'int32'));
      if (known) return known;
    }
    return backend.ringBinary(operator, a, b);
  };
}

/** A kernel (x) that is one operator of the library. */
function unary(operator: string, dtypes: number): Kernel {
  const onHost = UNARY[operator];
  return (backend: GpuosBackend, { x }: X) => {
    accept(x, dtypes);
    if (onHost !== undefined && x.dtype !== 'float32') {
      const known = backend.shadow(x);
      if (known) return backend.hostResult(known.map(onHost), x.shape, x.dtype as 'int32');
    }
    return backend.ringUnary(operator, x);
  };
}

/** floor, ceil and round: an integer stays as it is. */
function rounding(operator: string): Kernel {
  return (backend: GpuosBackend, { x }: X) => {
    accept(x, NUMBER);
    return x.dtype === 'int32' ? backend.share(x, x.shape) : backend.ringUnary(operator, x);
  };
}

/** tfjs gives int32 for the floor of a quotient, of floats too. */
function floorDiv(backend: GpuosBackend, { a, b }: AB): TensorInfo {
  acceptBoth(a, b, NUMBER);
  if (a.dtype === 'int32') {
    const known = zipOnHost(backend, 'FloorDiv', 'floor-div', a, b, 'int32');
    return known ?? backend.ringBinary('floor-div', a, b);
  }
  const quotient = backend.apply('floor-div', [backend.operand(a), backend.operand(b)]);
  const result = backend.ring('cast', [quotient], TO.int32);
  quotient.dispose();
  return result;
}

function cast(backend: GpuosBackend, { x }: X, { dtype }: { dtype: DataType }): TensorInfo {
  if (x.dtype === dtype) return backend.share(x, x.shape);
  accept(x, ANY);
  if (dtype === 'string' || dtype === 'complex64') throw DECLINED;
  if (dtype !== 'float32') {
    const known = backend.shadow(x);
    if (known) return backend.hostResult(dtype === 'bool' ? known.map((value) => (value === 0 ? 0 : 1)) : known, x.shape, dtype);
  }
  return backend.ring('cast', [backend.operand(x)], TO[dtype]);
}

function clip(backend: GpuosBackend, { x }: X, attributes: { clipValueMin: number; clipValueMax: number }): TensorInfo {
  const { clipValueMin: min, clipValueMax: max } = attributes;
  accept(x, NUMBER);
  // tfjs clips integers to fractions by truncating afterwards; and NaN bounds are none.
  if (!(min <= max) || (x.dtype === 'int32' && !(Number.isInteger(min) && Number.isInteger(max)))) throw DECLINED;
  return backend.ring('clip', [backend.operand(x)], { min, max });
}

function leakyRelu(backend: GpuosBackend, { x }: X, { alpha }: { alpha: number }): TensorInfo {
  accept(x, FLOAT);
  return backend.ring('leaky-relu', [backend.operand(x)], { alpha });
}

function step(backend: GpuosBackend, { x }: X, { alpha }: { alpha: number }): TensorInfo {
  accept(x, FLOAT);
  return backend.ring('step', [backend.operand(x)], { alpha });
}

function prelu(backend: GpuosBackend, { x, alpha }: X & { alpha: TensorInfo }): TensorInfo {
  acceptBoth(x, alpha, FLOAT);
  return backend.ringBinary('prelu', x, alpha);
}

/** dy where y >= 0, else dy (y + 1): the slope of elu, from its result. */
function eluGrad(backend: GpuosBackend, { dy, y }: { dy: TensorInfo; y: TensorInfo }): TensorInfo {
  acceptBoth(dy, y, FLOAT);
  const [slope, result] = [backend.operand(dy), backend.operand(y)];
  const above = backend.apply('greater-equal', [result, backend.scalar(0)]);
  const next = backend.apply('add', [result, backend.scalar(1)]);
  const below = backend.apply('mul', [slope, next]);
  const gradient = backend.ring('select', [above, slope, below]);
  for (const tensor of [above, next, below]) tensor.dispose();
  return gradient;
}

/** t where the condition holds, else e; a condition of rank 1 chooses whole rows. */
function select(backend: GpuosBackend, inputs: { condition: TensorInfo; t: TensorInfo; e: TensorInfo }): TensorInfo {
  const { condition, t, e } = inputs;
  accept(condition, BOOL);
  acceptBoth(t, e, ANY);
  const rows = condition.shape.length === 1 && t.shape.length > 1;
  const shape = rows ? [...condition.shape, ...new Array<number>(t.shape.length - 1).fill(1)] : condition.shape;
  const known = backend.shadow(condition);
  if (known && t.dtype !== 'float32' && !rows && condition.shape.length === t.shape.length) {
    const [yes, no] = [backend.shadow(t), backend.shadow(e)];
    if (yes && no && yes.length === known.length && no.length === known.length) {
      const values = known.map((chosen, i) => (chosen === 1 ? yes[i] : no[i]) as number);
      return backend.hostResult(values, t.shape, t.dtype as 'int32');
    }
  }
  return backend.ring('select', [backend.operandAs(condition, shape), backend.operand(t), backend.operand(e)]);
}

/** The sum of any number of tensors of one shape. */
function addN(backend: GpuosBackend, inputs: readonly TensorInfo[]): TensorInfo {
  const first = inputs[0] as TensorInfo;
  for (const input of inputs) acceptBoth(first, input, NUMBER);
  if (inputs.length === 1) return backend.share(first, first.shape);
  let total = backend.operand(first);
  for (let i = 1; i < inputs.length - 1; i++) {
    const next = backend.apply('add', [total, backend.operand(inputs[i] as TensorInfo)]);
    if (i > 1) total.dispose();
    total = next;
  }
  const result = backend.ring('add', [total, backend.operand(inputs[inputs.length - 1] as TensorInfo)]);
  if (inputs.length > 2) total.dispose();
  return result;
}

/** Two tensors of sizes to the sizes that they broadcast to. */
function broadcastArgs(backend: GpuosBackend, { s0, s1 }: { s0: TensorInfo; s1: TensorInfo }): TensorInfo {
  const [a, b] = [backend.shadow(s0), backend.shadow(s1)];
  if (a === undefined || b === undefined) throw DECLINED;
  const shape = tf.backend_util.assertAndGetBroadcastShape([...a], [...b]);
  return backend.hostResult(shape, [shape.length], 'int32');
}

/** Whether broadcasting repeats a tensor as tfjs does here: as a flat sequence over the last axes. */
function repeatsOver(shape: readonly number[], over: readonly number[]): boolean {
  const own = shape.slice(shape.findIndex((size) => size !== 1));
  return shape.length <= over.length && own.every((size, i) => size === over[over.length - own.length + i]);
}

/** (x - mean) / sqrt(variance + epsilon) scale + offset, the statistics broadcast to x. */
function batchNorm(
  backend: GpuosBackend,
  inputs: { x: TensorInfo; mean: TensorInfo; variance: TensorInfo; scale?: TensorInfo | null; offset?: TensorInfo | null },
  { varianceEpsilon }: { varianceEpsilon?: number },
): TensorInfo {
  const { x, mean, variance, scale, offset } = inputs;
  const given = [x, mean, variance];
  if (scale) given.push(scale);
  if (offset) given.push(offset);
  for (const input of given) {
    accept(input, FLOAT);
    if (!repeatsOver(input.shape, x.shape)) throw DECLINED;
  }
  const operands = given.map((input) => backend.operand(input)) as [RingTensor, RingTensor, RingTensor, ...RingTensor[]];
  const made: RingTensor[] = [];
  const apply = (operator: string, tensors: RingTensor[]) => {
    const tensor = backend.apply(operator, tensors);
    made.push(tensor);
    return tensor;
  };
  const inverse = apply('rsqrt', [apply('add', [operands[2], backend.scalar(varianceEpsilon ?? 0.001)])]);
  const factor = scale ? apply('mul', [inverse, operands[3] as RingTensor]) : inverse;
  const centred = apply('sub', [operands[0], operands[1]]);
  const result = offset
    ? backend.ring('add', [apply('mul', [centred, factor]), operands[operands.length - 1] as RingTensor])
    : backend.ring('mul', [centred, factor]);
  for (const tensor of made) tensor.dispose();
  return result;
}

/** Sum of (re^2 + im^2), rooted. */
function complexAbs(backend: GpuosBackend, { x }: X): TensorInfo {
  const { complex } = backend.record(x.dataId);
  if (complex === undefined) throw DECLINED;
  const real = backend.apply('square', [backend.operandAs(complex.real, x.shape)]);
  const imag = backend.apply('square', [backend.operandAs(complex.imag, x.shape)]);
  const sum = backend.apply('add', [real, imag]);
  const result = backend.ring('sqrt', [sum]);
  for (const tensor of [real, imag, sum]) tensor.dispose();
  return result;
}

export const ELEMENT_WISE: Kernels = {
  Add: binary('Add', 'add', NUMBER),
  Sub: binary('Sub', 'sub', NUMBER),
  Multiply: binary('Multiply', 'mul', NUMBER),
  RealDiv: binary('RealDiv', 'div', FLOAT),
  FloorDiv: floorDiv,
  Mod: binary('Mod', 'mod', NUMBER),
  Maximum: binary('Maximum', 'maximum', NUMBER),
  Minimum: binary('Minimum', 'minimum', NUMBER),
  Pow: binary('Pow', 'pow', NUMBER),
  SquaredDifference: binary('SquaredDifference', 'squared-difference', NUMBER),
  Atan2: binary('Atan2', 'atan2', FLOAT),
  Equal: binary('Equal', 'equal', ANY, 'bool'),
  NotEqual: binary('NotEqual', 'not-equal', ANY, 'bool'),
  Less: binary('Less', 'less', ANY, 'bool'),
  LessEqual: binary('LessEqual', 'less-equal', ANY, 'bool'),
  Greater: binary('Greater', 'greater', ANY, 'bool'),
  GreaterEqual: binary('GreaterEqual', 'greater-equal', ANY, 'bool'),
  LogicalAnd: binary('LogicalAnd', 'logical-and', BOOL),
  LogicalOr: binary('LogicalOr', 'logical-or', BOOL),
  LogicalXor: binary('LogicalXor', 'logical-xor', BOOL),
  LogicalNot: unary('logical-not', BOOL),
  Neg: unary('neg', NUMBER),
  Abs: unary('abs', NUMBER),
  Sign: unary('sign', NUMBER),
  Square: unary('square', NUMBER),
  Relu: unary('relu', NUMBER),
  Exp: unary('exp', FLOAT),
  Expm1: unary('expm1', FLOAT),
  Log: unary('log', FLOAT),
  Log1p: unary('log1p', FLOAT),
  Sqrt: unary('sqrt', FLOAT),
  Rsqrt: unary('rsqrt', FLOAT),
  Reciprocal: unary('reciprocal', FLOAT),
  Erf: unary('erf', FLOAT),
  Tanh: unary('tanh', FLOAT),
  Sigmoid: unary('sigmoid', FLOAT),
  Softplus: unary('softplus', FLOAT),
  Sin: unary('sin', FLOAT),
  Cos: unary('cos', FLOAT),
  Tan: unary('tan', FLOAT),
  Asin: unary('asin', FLOAT),
  Acos: unary('acos', FLOAT),
  Atan: unary('atan', FLOAT),
  Sinh: unary('sinh', FLOAT),
  Cosh: unary('cosh', FLOAT),
  Asinh: unary('asinh', FLOAT),
  Acosh: unary('acosh', FLOAT),
  Atanh: unary('atanh', FLOAT),
  Relu6: unary('relu6', FLOAT),
  Elu: unary('elu', FLOAT),
  Selu: unary('selu', FLOAT),
  Floor: rounding('floor'),
  Ceil: rounding('ceil'),
  Round: rounding('round'),
  IsNan: unary('is-nan', FLOAT),
  IsInf: unary('is-inf', FLOAT),
  IsFinite: unary('is-finite', FLOAT),
  Cast: cast,
  ClipByValue: clip,
  LeakyRelu: leakyRelu,
  Step: step,
  Prelu: prelu,
  EluGrad: eluGrad,
  Select: select,
  AddN: addN,
  BroadcastArgs: broadcastArgs,
  FusedBatchNorm: batchNorm,
  ComplexAbs: complexAbs,
};
