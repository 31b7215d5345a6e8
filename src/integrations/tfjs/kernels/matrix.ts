import type { Attributes } from '../../../ops/define.ts';
import { elementCount, sameShape } from '../../../ops/shape.ts';
import { productAttributes, shapeAttributes } from '../attributes.ts';
import { DECLINED, type GpuosBackend } from '../backend.ts';
import type { RingTensor } from '../record.ts';
import { type TensorInfo, tf } from '../tfjs.ts';
import { type AB, accept, acceptBoth, FLOAT, type Kernels } from './kernel.ts';

type Activation = 'linear' | 'relu' | 'relu6' | 'elu' | 'sigmoid' | 'prelu' | 'leakyrelu';

interface Fusion {
  readonly activation?: Activation | null;
  readonly leakyreluAlpha?: number;
}

interface FusedInputs {
  readonly bias?: TensorInfo | null;
  readonly preluActivationWeights?: TensorInfo | null;
}

/** Activations that the product applies itself, by their names in tfjs. */
const IN_PRODUCT: Readonly<Record<string, string>> = { linear: 'none', relu: 'relu', relu6: 'relu6', elu: 'elu', sigmoid: 'sigmoid' };

function declineUnlessFusable(inputs: FusedInputs, { activation }: Fusion): void {
  if (inputs.bias) accept(inputs.bias, FLOAT);
  if (inputs.preluActivationWeights) accept(inputs.preluActivationWeights, FLOAT);
  if (activation && !Object.hasOwn(IN_PRODUCT, activation) && activation !== 'prelu' && activation !== 'leakyrelu') throw DECLINED;
}

/**
 * activation(a b + bias), with as much of it in the product as the operator takes: a bias [n], and an activation of its
 * own when nothing has to come between. `shape` is that of the result before the bias.
 */
function product(
  backend: GpuosBackend,
  a: RingTensor,
  b: RingTensor,
  transposes: { transposeA: boolean; transposeB: boolean },
  shape: readonly number[],
  inputs: FusedInputs,
  fusion: Fusion,
): TensorInfo {
  const { bias, preluActivationWeights } = inputs;
  const columns = shape[shape.length - 1] as number;
  const inside = bias && elementCount(bias.shape) === columns && bias.shape.length > 0 && bias.shape[bias.shape.length - 1] === columns;
  const activation = fusion.activation ?? 'linear';
  const own = !bias || inside ? IN_PRODUCT[activation] : undefined;
  const operands = inside ? [a, b, backend.operandAs(bias, [columns])] : [a, b];
  let current = backend.apply('matmul', operands, productAttributes(transposes.transposeA, transposes.transposeB, own ?? 'none'));
  const replace = (operator: string, tensors: readonly RingTensor[], attributes?: Attributes) => {
    const next = backend.apply(operator, tensors, attributes);
    current.dispose();
    current = next;
  };
  if (!sameShape(current.shape, shape)) replace('reshape', [current], shapeAttributes(shape));
  if (bias && !inside) replace('add', [current, backend.operand(bias)]);
  if (own === undefined) {
    if (activation === 'prelu') replace('prelu', [current, backend.operand(preluActivationWeights as TensorInfo)]);
    else if (activation === 'leakyrelu') replace('leaky-relu', [current], { alpha: fusion.leakyreluAlpha ?? 0.2 });
    else if (activation !== 'linear') replace(activation, [current]);
  }
  backend.counters.ring++;
  return backend.result(current);
}

interface MatMulAttributes extends Fusion {
  readonly transposeA: boolean;
  readonly transposeB: boolean;
}

function productShape(a: readonly number[], b: readonly number[], attributes: MatMulAttributes): readonly number[] {
  const { transposeA, transposeB } = attributes;
  const batch = tf.broadcast_util.assertAndGetBroadcastShape(a.slice(0, -2), b.slice(0, -2));
  return [...batch, a[a.length - (transposeA ? 1 : 2)] as number, b[b.length - (transposeB ? 2 : 1)] as number];
}

function batchMatMul(backend: GpuosBackend, { a, b }: AB, { transposeA, transposeB }: MatMulAttributes): TensorInfo {
  acceptBoth(a, b, FLOAT);
  const attributes = productAttributes(transposeA === true, transposeB === true, 'none');
  return backend.ring('matmul', [backend.operand(a), backend.operand(b)], attributes);
}

function fusedMatMul(backend: GpuosBackend, inputs: AB & FusedInputs, attributes: MatMulAttributes): TensorInfo {
  const { a, b } = inputs;
  acceptBoth(a, b, FLOAT);
  declineUnlessFusable(inputs, attributes);
  const transposes = { transposeA: attributes.transposeA === true, transposeB: attributes.transposeB === true };
  const shape = productShape(a.shape, b.shape, attributes);
  return product(backend, backend.operand(a), backend.operand(b), transposes, shape, inputs, attributes);
}

interface ConvolutionAttributes extends Fusion {
  readonly strides: number | readonly number[];
  readonly pad: 'valid' | 'same' | number | unknown;
  readonly dataFormat?: string;
}

/** Convolution with a filter of one pixel: a product of the channels at each pixel with the filter. */
function convolution(
  backend: GpuosBackend,
  inputs: { x: TensorInfo; filter: TensorInfo } & FusedInputs,
  attributes: ConvolutionAttributes,
): TensorInfo {
  const { x, filter } = inputs;
  const { strides, pad, dataFormat } = attributes;
  acceptBoth(x, filter, FLOAT);
  declineUnlessFusable(inputs, attributes);
  const [height, width, channels, filters] = filter.shape as [number, number, number, number];
  const unit = typeof strides === 'number' ? strides === 1 : strides.every((step) => step === 1);
  const unpadded = pad === 'valid' || pad === 'same' || pad === 0;
  const last = dataFormat === undefined || dataFormat === 'NHWC';
  if (height !== 1 || width !== 1 || !unit || !unpadded || !last || x.shape[3] !== channels) throw DECLINED;
  const pixels = elementCount(x.shape.slice(0, 3));
  const a = backend.operandAs(x, [pixels, channels]);
  const b = backend.operandAs(filter, [channels, filters]);
  return product(backend, a, b, { transposeA: false, transposeB: false }, [...x.shape.slice(0, 3), filters], inputs, attributes);
}

/** One letter an axis; undefined for what we leave to tfjs: repeated letters in one operand. */
function labels(equation: string, operands: number): { inputs: string[]; output: string } | undefined {
  const [left, output] = equation.replace(/\s/g, '').split('->') as [string, string | undefined];
  const inputs = left.split(',');
  if (output === undefined || inputs.length !== operands || output.includes(',')) return undefined;
  for (const term of [...inputs, output]) if (!/^[A-Za-z]*$/.test(term) || new Set(term).size !== term.length) return undefined;
  return [...output].every((letter) => left.includes(letter)) ? { inputs, output } : undefined;
}

/** The axes of `from` in the order of `to`. */
function permutation(from: string, to: string): number[] {
  return [...to].map((letter) => from.indexOf(letter));
}

/**
 * Einsum as sums over letters that only one operand has, and one matrix product: letters of both operands and the
 * result are batch, those of both but not the result are summed.
 */
function einsum(backend: GpuosBackend, inputs: TensorInfo | readonly TensorInfo[], { equation }: { equation: string }): TensorInfo {
  const tensors = Object.values(inputs) as TensorInfo[];
  const terms = labels(equation, tensors.length);
  if (terms === undefined || tensors.length > 2) throw DECLINED;
  for (const tensor of tensors) accept(tensor, FLOAT);
  const { output } = terms;
  const made: RingTensor[] = [];
  const apply = (operator: string, operands: readonly RingTensor[], attributes: Record<string, number[] | boolean | readonly number[]>) => {
    const tensor = backend.apply(operator, operands, attributes);
    made.push(tensor);
    return tensor;
  };
  const size = new Map<string, number>();
  const terms2 = terms.inputs.map((term, i) => {
    const info = tensors[i] as TensorInfo;
    if (term.length !== info.shape.length) throw DECLINED;
    const other = terms.inputs[1 - i] ?? '';
    const alone = [...term].flatMap((letter, axis) => (output.includes(letter) || other.includes(letter) ? [] : [axis]));
    [...term].forEach((letter, axis) => {
      if ((size.get(letter) ?? info.shape[axis]) !== info.shape[axis]) throw DECLINED;
      size.set(letter, info.shape[axis] as number);
    });
    return { term, alone, left: [...term].filter((_, axis) => !alone.includes(axis)).join('') };
  });
  const operands = terms2.map(({ alone }, i) => {
    const operand = backend.operand(tensors[i] as TensorInfo);
    return alone.length === 0 ? operand : apply('sum', [operand], { axes: alone });
  });
  const sizes = (letters: string) => [...letters].map((letter) => size.get(letter) as number);
  const count = (letters: string) => elementCount(sizes(letters));
  let result = operands[0] as RingTensor;
  let order = (terms2[0] as { left: string }).left;
  if (tensors.length === 2) {
    const [first, second] = terms2.map(({ left }) => left) as [string, string];
    const shared = [...first].filter((letter) => second.includes(letter));
    const batch = shared.filter((letter) => output.includes(letter)).join('');
    const summed = shared.filter((letter) => !output.includes(letter)).join('');
    const rows = [...first].filter((letter) => !second.includes(letter)).join('');
    const columns = [...second].filter((letter) => !first.includes(letter)).join('');
    const arrange = (operand: RingTensor, from: string, to: string, shape: readonly number[]) => {
      const turned = from === to ? operand : apply('transpose', [operand], { perm: permutation(from, to) });
      return apply('reshape', [turned], { shape });
    };
    const a = arrange(operands[0] as RingTensor, first, batch + rows + summed, [count(batch), count(rows), count(summed)]);
    const b = arrange(operands[1] as RingTensor, second, batch + summed + columns, [count(batch), count(summed), count(columns)]);
    order = batch + rows + columns;
    result = apply('reshape', [apply('matmul', [a, b], {})], { shape: sizes(order) });
  }
  const info =
    order === output
      ? backend.ring('reshape', [result], { shape: sizes(output) })
      : backend.ring('transpose', [result], { perm: permutation(order, output) });
  for (const tensor of made) tensor.dispose();
  return info;
}

export const MATRIX: Kernels = {
  BatchMatMul: batchMatMul,
  _FusedMatMul: fusedMatMul,
  Conv2D: convolution,
  FusedConv2D: convolution,
  Einsum: einsum,
};
