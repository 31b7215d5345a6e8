import { GpuosError } from '../../errors.ts';
import type { Attributes, Shape } from '../../ops/define.ts';
import { isFloat } from '../../ops/dtype.ts';
import { gatherAxes } from '../../ops/indexing.ts';
import { normalizeAxis } from '../../ops/shape.ts';
import type { KernelCall, OperandView } from '../backend.ts';
import { at, call, elementBits, product } from './words.ts';

const COPY_NS = 0.2;
const ROW_NS = 3;
/** Pointers in the parameter blocks of the concat kernels, and so one more than the inputs that each takes. */
const CONCAT_BLOCKS = [4, 16, 256, 4096] as const;

export function lowerGather(inputs: readonly OperandView[], outputs: readonly OperandView[], attributes: Attributes): KernelCall {
  const [x, indices] = inputs as readonly [OperandView, OperandView];
  const { axis, batchDims } = gatherAxes(x.shape, indices.shape, attributes);
  const outer = product(x.shape.slice(batchDims, axis));
  const count = product(indices.shape.slice(batchDims));
  const inner = product(x.shape.slice(axis + 1));
  const units = inner === 0 ? 0 : product(x.shape.slice(0, axis)) * count;
  const words = [units, outer, at(x.shape, axis), count, inner];
  return { ...call('gather', inputs, outputs, words, units * (ROW_NS + inner * COPY_NS)), aligned: [] };
}

export function lowerGatherNd(inputs: readonly OperandView[], outputs: readonly OperandView[]): KernelCall {
  const [x, indices] = inputs as readonly [OperandView, OperandView];
  const depth = at(indices.shape, -1);
  const inner = product(x.shape.slice(depth));
  const units = inner === 0 ? 0 : product(indices.shape.slice(0, -1));
  const words = [units, inner, depth, ...x.shape.slice(0, depth)];
  return { ...call('gather_nd', inputs, outputs, words, units * (ROW_NS * (depth + 1) + inner * COPY_NS)), aligned: [] };
}

/** Words that the scatter kernels share: rows of the output as units, its inner size, and how updates and indices lie. */
function scatterWords(shape: Shape, depth: number, count: number, step: number | undefined): { words: number[]; costNs: number } {
  const inner = product(shape.slice(depth));
  const units = inner === 0 ? 0 : product(shape.slice(0, depth));
  const words = [units, inner, depth, count, step ?? inner, ...shape.slice(0, depth)];
  return { words, costNs: units * inner * COPY_NS + count * (2 * ROW_NS * (depth + 1) + inner * COPY_NS) };
}

export function lowerScatterNd(inputs: readonly OperandView[], outputs: readonly OperandView[]): KernelCall {
  const [indices, updates] = inputs as readonly [OperandView, OperandView];
  const shape = (outputs[0] as OperandView).shape;
  const { words, costNs } = scatterWords(shape, at(indices.shape, -1), product(indices.shape.slice(0, -1)), undefined);
  return { ...call('scatter_nd', inputs, outputs, [...words, Number(!isFloat(updates.dtype))], costNs), aligned: [] };
}

/** The output may share the memory of x. */
export function lowerScatterUpdate(inputs: readonly OperandView[], outputs: readonly OperandView[]): KernelCall {
  const [x, indices] = inputs as readonly [OperandView, OperandView];
  const { words, costNs } = scatterWords(x.shape, at(indices.shape, -1), product(indices.shape.slice(0, -1)), undefined);
  return call('tensor_scatter_update', inputs, outputs, words, costNs);
}

export function lowerSparseToDense(inputs: readonly OperandView[], outputs: readonly OperandView[]): KernelCall {
  const [indices, values] = inputs as readonly [OperandView, OperandView];
  const depth = indices.shape.length === 2 ? at(indices.shape, 1) : 1;
  const count = indices.shape.length === 0 ? 1 : at(indices.shape, 0);
  const step = values.shape.length === 0 ? 0 : 1;
  const { words, costNs } = scatterWords((outputs[0] as OperandView).shape, depth, count, step);
  return { ...call('sparse_to_dense', inputs, outputs, words, costNs), aligned: [] };
}

export function lowerConcat(inputs: readonly OperandView[], outputs: readonly OperandView[], attributes: Attributes): KernelCall {
  const output = outputs[0] as OperandView;
  const axis = normalizeAxis('concat', attributes['axis'] as number, output.shape.length);
  const pointers = CONCAT_BLOCKS.find((size) => inputs.length < size);
  if (pointers === undefined) {
    const most = CONCAT_BLOCKS[CONCAT_BLOCKS.length - 1] as number;
    throw new GpuosError('GPUOS_BAD_OPTION', `concat: ${inputs.length} inputs given; at most ${most - 1} can be joined at once.`);
  }
  const total = product(output.shape);
  const inner = product(output.shape.slice(axis + 1));
  const units = total === 0 ? 0 : product(output.shape.slice(0, axis)) * inputs.length;
  const sizes = inputs.map((input) => at(input.shape, axis) * inner);
  const unused = new Array<{ none: true }>(pointers - 1 - inputs.length).fill({ none: true });
  const words = [units, inputs.length, at(output.shape, axis) * inner, ...sizes];
  const plain = call(`concat_${pointers}`, inputs, outputs, words, units * ROW_NS + total * COPY_NS);
  return { ...plain, pointers: [...inputs.map((_, input) => ({ input })), ...unused, { output: 0 }] };
}

export function lowerPad(inputs: readonly OperandView[], outputs: readonly OperandView[], attributes: Attributes): KernelCall {
  const [x, output] = [inputs[0] as OperandView, outputs[0] as OperandView];
  const value = elementBits(attributes['value'] as number, x.dtype);
  const total = product(output.shape);
  // A scalar is a row of one element without padding.
  const rank = x.shape.length;
  if (rank === 0) return call('pad', inputs, outputs, [1, value, 0, 1, 0, 1, 0], 0);
  const paddings = attributes['paddings'] as readonly number[];
  const outer = Array.from({ length: rank - 1 }, (_, i) => i);
  const width = at(output.shape, -1);
  const units = total === 0 ? 0 : total / width;
  const words = [
    units,
    value,
    at(paddings, -2),
    at(x.shape, -1),
    at(paddings, -1),
    at(x.strides, -1),
    rank - 1,
    ...output.shape.slice(0, -1),
    ...outer.map((i) => at(paddings, 2 * i)),
    ...x.shape.slice(0, -1),
    ...x.strides.slice(0, -1),
  ];
  return call('pad', inputs, outputs, words, units * ROW_NS * rank + total * COPY_NS);
}

export function lowerOneHot(inputs: readonly OperandView[], outputs: readonly OperandView[], attributes: Attributes): KernelCall {
  const dtype = (outputs[0] as OperandView).dtype;
  const depth = attributes['depth'] as number;
  const units = depth === 0 ? 0 : product((inputs[0] as OperandView).shape);
  const [on, off] = [attributes['on'] as number, attributes['off'] as number].map((value) => elementBits(value, dtype));
  return call('one_hot', inputs, outputs, [units, depth, on as number, off as number], units * (ROW_NS + depth * COPY_NS));
}

export function lowerTopK(inputs: readonly OperandView[], outputs: readonly OperandView[], attributes: Attributes): KernelCall {
  const x = inputs[0] as OperandView;
  const k = attributes['k'] as number;
  const units = k === 0 ? 0 : product(x.shape.slice(0, -1));
  const length = at(x.shape, -1);
  const costNs = units * (1.5 * length + k * 10 * Math.log2(k + 1));
  return call('top_k', inputs, outputs, [units, length, k, Number(!isFloat(x.dtype))], costNs);
}

export function lowerCumsum(inputs: readonly OperandView[], outputs: readonly OperandView[], attributes: Attributes): KernelCall {
  const x = inputs[0] as OperandView;
  const axis = normalizeAxis('cumsum', attributes['axis'] as number, x.shape.length);
  const size = at(x.shape, axis);
  const inner = product(x.shape.slice(axis + 1));
  const units = size === 0 ? 0 : product(x.shape.slice(0, axis)) * inner;
  const flags = [attributes['exclusive'] === true, attributes['reverse'] === true, !isFloat(x.dtype)].map(Number);
  return call('cumsum', inputs, outputs, [units, size, inner, ...flags], units * (2 + size));
}
