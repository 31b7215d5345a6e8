import { elementCount, normalizeAxis, sameShape } from '../../../ops/shape.ts';
import { axisAttributes, gatherAttributes, shapeAttributes } from '../attributes.ts';
import { DECLINED, type GpuosBackend } from '../backend.ts';
import { concat as concatOnHost, gather as gatherOnHost, gatherNd as gatherNdOnHost, isSmall, scatter } from '../host-arithmetic.ts';
import type { RingTensor } from '../record.ts';
import { type DataType, type TensorInfo, tf } from '../tfjs.ts';
import { ANY, accept, acceptBoth, INT, type Kernels, NUMBER, type X } from './kernel.ts';

type Integers = readonly number[];

/** Tensors joined along an axis; `shapes` are theirs, of which pack gives others than the tensors have. */
function join(backend: GpuosBackend, inputs: readonly TensorInfo[], shapes: readonly Integers[], axis: number): TensorInfo {
  const first = inputs[0] as TensorInfo;
  const shape = (shapes[0] as Integers).slice();
  shape[axis] = 0;
  for (const own of shapes) shape[axis] = (shape[axis] as number) + (own[axis] as number);
  if (first.dtype !== 'float32' && isSmall(shape)) {
    const parts: { values: Integers; shape: Integers }[] = [];
    for (let i = 0; i < inputs.length; i++) {
      const values = backend.shadow(inputs[i] as TensorInfo);
      if (values === undefined) break;
      parts.push({ values, shape: shapes[i] as Integers });
    }
    if (parts.length === inputs.length) return backend.hostResult(concatOnHost(parts, axis), shape, first.dtype as 'int32');
  }
  const operands = inputs.map((input, i) => backend.operandAs(input, shapes[i] as Integers));
  return backend.ring('concat', operands, axisAttributes(axis));
}

function concat(backend: GpuosBackend, inputs: readonly TensorInfo[], attributes: { axis: number | number[] }): TensorInfo {
  const first = inputs[0] as TensorInfo;
  const given = typeof attributes.axis === 'number' ? attributes.axis : (attributes.axis[0] as number);
  const axis = normalizeAxis('Concat', given, first.shape.length);
  for (const input of inputs) acceptBoth(first, input, ANY);
  tf.backend_util.assertParamsConsistent(
    inputs.map((input) => input.shape),
    axis,
  );
  const filled = inputs.filter((input) => elementCount(input.shape) > 0);
  if (filled.length === 1) return backend.share(filled[0] as TensorInfo, (filled[0] as TensorInfo).shape);
  const joined = filled.length === 0 ? inputs : filled;
  return join(
    backend,
    joined,
    joined.map((input) => input.shape),
    axis,
  );
}

function pack(backend: GpuosBackend, inputs: readonly TensorInfo[], attributes: { axis: number }): TensorInfo {
  const first = inputs[0] as TensorInfo;
  const axis = normalizeAxis('Pack', attributes.axis, first.shape.length + 1);
  const shape = first.shape.slice();
  shape.splice(axis, 0, 1);
  if (inputs.length === 1) return backend.share(first, shape);
  for (const input of inputs) {
    acceptBoth(first, input, ANY);
    tf.util.assertShapesMatch(first.shape, input.shape, 'All tensors passed to stack must have matching shapes');
  }
  return join(
    backend,
    inputs,
    inputs.map(() => shape),
    axis,
  );
}

function gatherV2(
  backend: GpuosBackend,
  { x, indices }: X & { indices: TensorInfo },
  attributes: { axis: number | number[]; batchDims?: number },
): TensorInfo {
  accept(x, ANY);
  accept(indices, INT);
  const batchDims = attributes.batchDims ?? 0;
  const given = typeof attributes.axis === 'number' ? attributes.axis : (attributes.axis[0] as number);
  const axis = normalizeAxis('GatherV2', given, x.shape.length);
  const known = batchDims === 0 ? backend.shadow(x) : undefined;
  const at = known && backend.shadow(indices);
  if (known && at) {
    const shape = [...x.shape.slice(0, axis), ...indices.shape, ...x.shape.slice(axis + 1)];
    if (isSmall(shape)) return backend.hostResult(gatherOnHost(known, x.shape, at, axis), shape, x.dtype as 'int32');
  }
  return backend.ring('gather', [backend.operand(x), backend.operand(indices)], gatherAttributes(axis, batchDims));
}

function gatherNd(backend: GpuosBackend, { params, indices }: { params: TensorInfo; indices: TensorInfo }): TensorInfo {
  accept(params, ANY);
  accept(indices, INT);
  const [shape] = tf.backend_util.prepareAndValidate(params, indices);
  const known = backend.shadow(params);
  const at = known && backend.shadow(indices);
  if (known && at && isSmall(shape)) {
    const depth = indices.shape[indices.shape.length - 1] as number;
    return backend.hostResult(gatherNdOnHost(known, params.shape, at, depth), shape, params.dtype as 'int32');
  }
  return backend.ring('gather-nd', [backend.operand(params), backend.operand(indices)]);
}

/** tfjs takes a vector of indices for indices of one axis each. */
function indexColumns(indices: TensorInfo): TensorInfo {
  return indices.shape.length === 1 ? { ...indices, shape: [indices.shape[0] as number, 1] } : indices;
}

/** Whether updates have the shape that the operator asks of them: indices[:-1] + shape[depth:]. */
function updatesFit(indices: Integers, updates: Integers, shape: Integers): boolean {
  const depth = indices[indices.length - 1] as number;
  return depth <= shape.length && sameShape(updates, [...indices.slice(0, -1), ...shape.slice(depth)]);
}

function scatterNd(
  backend: GpuosBackend,
  { indices: given, updates }: { indices: TensorInfo; updates: TensorInfo },
  { shape }: { shape: Integers },
): TensorInfo {
  accept(given, INT);
  accept(updates, NUMBER);
  if (given.shape.length === 0) throw DECLINED;
  const indices = indexColumns(given);
  if (!updatesFit(indices.shape, updates.shape, shape)) throw DECLINED;
  const known = backend.shadow(updates);
  const at = known && backend.shadow(indices);
  if (known && at && isSmall(shape)) {
    const zeros = new Array<number>(elementCount(shape)).fill(0);
    return backend.hostResult(
      scatter('scatter-nd', zeros, shape, at, indices.shape[indices.shape.length - 1] as number, known, true),
      shape,
      'int32',
    );
  }
  return backend.ring('scatter-nd', [backend.operand(indices), backend.operand(updates)], shapeAttributes(shape));
}

function tensorScatterUpdate(
  backend: GpuosBackend,
  { tensor, indices: given, updates }: { tensor: TensorInfo; indices: TensorInfo; updates: TensorInfo },
): TensorInfo {
  acceptBoth(tensor, updates, ANY);
  accept(given, INT);
  if (given.shape.length === 0) throw DECLINED;
  const indices = indexColumns(given);
  if (!updatesFit(indices.shape, updates.shape, tensor.shape)) throw DECLINED;
  return backend.ring('tensor-scatter-update', [backend.operand(tensor), backend.operand(indices), backend.operand(updates)]);
}

function sparseToDense(
  backend: GpuosBackend,
  inputs: { sparseIndices: TensorInfo; sparseValues: TensorInfo; defaultValue: TensorInfo },
  { outputShape: shape }: { outputShape: Integers },
): TensorInfo {
  const { sparseIndices: indices, sparseValues: values, defaultValue } = inputs;
  accept(indices, INT);
  acceptBoth(values, defaultValue, ANY);
  const rank = indices.shape.length;
  const depth = rank === 2 ? (indices.shape[1] as number) : 1;
  const count = rank === 0 ? 1 : (indices.shape[0] as number);
  const fits = values.shape.length === 0 || (values.shape.length === 1 && values.shape[0] === count);
  if (rank > 2 || depth !== shape.length || !fits || defaultValue.shape.length !== 0) throw DECLINED;
  if (values.dtype !== 'float32' && isSmall(shape)) {
    const [at, known, other] = [backend.shadow(indices), backend.shadow(values), backend.shadow(defaultValue)];
    if (at && known && other) {
      const base = new Array<number>(elementCount(shape)).fill(other[0] as number);
      return backend.hostResult(scatter('sparse-to-dense', base, shape, at, depth, known, false), shape, values.dtype as 'int32');
    }
  }
  return backend.ring(
    'sparse-to-dense',
    [backend.operand(indices), backend.operand(values), backend.operand(defaultValue)],
    shapeAttributes(shape),
  );
}

function oneHot(
  backend: GpuosBackend,
  { indices }: { indices: TensorInfo },
  attributes: { depth: number; onValue: number; offValue: number; dtype: DataType },
): TensorInfo {
  const { depth, onValue: on, offValue: off, dtype } = attributes;
  accept(indices, INT);
  if (dtype !== 'float32' && !(dtype === 'int32' && Number.isInteger(on) && Number.isInteger(off))) throw DECLINED;
  return backend.ring('one-hot', [backend.operand(indices)], { depth, on, off, dtype });
}

function topK(backend: GpuosBackend, { x }: X, { k, sorted }: { k: number; sorted: boolean }): TensorInfo[] {
  accept(x, NUMBER);
  if (x.shape.length === 0) throw DECLINED;
  const [values, indices] = backend.engine.apply('top-k', [backend.operand(x)], { k, sorted }) as [RingTensor, RingTensor];
  backend.counters.ring++;
  return [backend.result(values), backend.result(indices)];
}

/** Repetition; along axes of size 1 it is only another way to read the tensor. */
function tile(backend: GpuosBackend, { x }: X, { reps }: { reps: Integers }): TensorInfo {
  accept(x, ANY);
  if (reps.every((count) => count === 1)) return backend.share(x, x.shape);
  if (reps.length !== x.shape.length) throw DECLINED;
  const shape = x.shape.map((size, i) => size * (reps[i] as number));
  const spread = x.shape.every((size, i) => size === 1 || reps[i] === 1);
  return spread
    ? backend.ring('expand', [backend.operand(x)], shapeAttributes(shape))
    : backend.ring('tile', [backend.operand(x)], { reps });
}

function pad(backend: GpuosBackend, { x }: X, attributes: { paddings: readonly Integers[]; constantValue: number }): TensorInfo {
  const { paddings, constantValue } = attributes;
  accept(x, ANY);
  if (paddings.every(([before, after]) => before === 0 && after === 0)) return backend.share(x, x.shape);
  const value = Number(constantValue ?? 0);
  const exact = x.dtype === 'float32' || (x.dtype === 'int32' ? (value | 0) === value : value === 0 || value === 1);
  if (!exact) throw DECLINED;
  return backend.ring('pad', [backend.operand(x)], { paddings: paddings.flat(), value });
}

function cumsum(backend: GpuosBackend, { x }: X, attributes: { axis: number; exclusive: boolean; reverse: boolean }): TensorInfo {
  accept(x, NUMBER);
  const { axis, exclusive, reverse } = attributes;
  return backend.ring('cumsum', [backend.operand(x)], { axis, exclusive: exclusive === true, reverse: reverse === true });
}

/** Depth to blocks of pixels (NHWC), as a change of shape and a permutation. */
function depthToSpace(backend: GpuosBackend, { x }: X, attributes: { blockSize: number; dataFormat: string }): TensorInfo {
  const { blockSize: block, dataFormat } = attributes;
  accept(x, ANY);
  if (dataFormat !== 'NHWC') throw DECLINED;
  const [batch, height, width, channels] = x.shape as [number, number, number, number];
  const depth = channels / (block * block);
  const split = backend.operandAs(x, [batch, height, width, block, block, depth]);
  const turned = backend.apply('transpose', [split], { perm: [0, 1, 3, 2, 4, 5] });
  const result = backend.ring('reshape', [turned], { shape: [batch, height * block, width * block, depth] });
  turned.dispose();
  return result;
}

export const INDEXING: Kernels = {
  Concat: concat,
  Pack: pack,
  GatherV2: gatherV2,
  GatherNd: gatherNd,
  ScatterNd: scatterNd,
  TensorScatterUpdate: tensorScatterUpdate,
  SparseToDense: sparseToDense,
  OneHot: oneHot,
  TopK: topK,
  Tile: tile,
  PadV2: pad,
  Cumsum: cumsum,
  DepthToSpace: depthToSpace,
};
