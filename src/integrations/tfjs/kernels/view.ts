/** Kernels that read a tensor under other strides: views of the tensor engine, which need no task of their own. */
import { normalizeAxes, normalizeAxis, strides } from '../../../ops/shape.ts';
import { blockAttributes, permutationAttributes, shapeAttributes } from '../attributes.ts';
import type { GpuosBackend } from '../backend.ts';
import { isSmall, readStrided } from '../host-arithmetic.ts';
import { type TensorInfo, tf } from '../tfjs.ts';
import { ANY, accept, axesOf, type Kernels, type X } from './kernel.ts';

type Integers = readonly number[];

function onHost(backend: GpuosBackend, x: TensorInfo, shape: Integers, steps: Integers, offset: number): TensorInfo | undefined {
  const known = backend.shadow(x);
  if (known === undefined || !isSmall(shape)) return undefined;
  return backend.hostResult(readStrided(known, shape, steps, offset), shape, x.dtype as 'int32');
}

function transpose(backend: GpuosBackend, { x }: X, { perm }: { perm: Integers }): TensorInfo {
  accept(x, ANY);
  if (backend.shadow(x)) {
    const own = strides(x.shape);
    const steps = perm.map((axis) => own[axis] as number);
    const shape = perm.map((axis) => x.shape[axis] as number);
    const known = onHost(backend, x, shape, steps, 0);
    if (known) return known;
  }
  return backend.ring('transpose', [backend.operand(x)], permutationAttributes(perm));
}

/** The offset in elements of an index. */
function offsetOf(begin: Integers, steps: Integers): number {
  let offset = 0;
  for (let i = 0; i < begin.length; i++) offset += (begin[i] as number) * (steps[i] as number);
  return offset;
}

/** A block whose bounds have been checked. */
function block(backend: GpuosBackend, x: TensorInfo, begin: Integers, size: Integers): TensorInfo {
  if (backend.shadow(x)) {
    const steps = strides(x.shape);
    const known = onHost(backend, x, size, steps, offsetOf(begin, steps));
    if (known) return known;
  }
  return backend.ring('slice', [backend.operand(x)], blockAttributes(begin, size));
}

function slice(backend: GpuosBackend, { x }: X, attributes: { begin: number | number[]; size: number | number[] }): TensorInfo {
  accept(x, ANY);
  const [begin, size] = tf.slice_util.parseSliceParams(x, attributes.begin, attributes.size) as [number[], number[]];
  tf.slice_util.assertParamsValid(x as never, begin, size);
  return block(backend, x, begin, size);
}

interface StridedSliceAttributes {
  readonly begin: number[];
  readonly end: number[];
  /** Left out: 1 on every axis. */
  readonly strides?: number[];
  readonly beginMask: number;
  readonly endMask: number;
  readonly ellipsisMask: number;
  readonly newAxisMask: number;
  readonly shrinkAxisMask: number;
}

/** The commonest case, x[i] or x[i:j] of a vector whose values the host knows, without the general rules of slices. */
function vectorSlice(known: Integers, attributes: StridedSliceAttributes): Integers | number | undefined {
  const { begin, end, beginMask, endMask, shrinkAxisMask } = attributes;
  if (begin.length !== 1 || (attributes.strides?.[0] ?? 1) !== 1 || attributes.ellipsisMask !== 0 || attributes.newAxisMask !== 0)
    return undefined;
  const count = known.length;
  let from = begin[0] as number;
  if (from < 0) from += count;
  if ((shrinkAxisMask & 1) !== 0) return from >= 0 && from < count ? from : undefined;
  let to = end[0] as number;
  if (to < 0) to += count;
  if (beginMask & 1) from = 0;
  if (endMask & 1) to = count;
  from = Math.min(Math.max(from, 0), count);
  to = Math.min(Math.max(to, from), count);
  return known.slice(from, to);
}

function stridedSlice(backend: GpuosBackend, { x }: X, attributes: StridedSliceAttributes): TensorInfo {
  accept(x, ANY);
  if (x.shape.length === 1) {
    const known = backend.shadow(x);
    const part = known && vectorSlice(known, attributes);
    if (typeof part === 'number') return backend.hostResult([(known as Integers)[part] as number], [], x.dtype as 'int32');
    if (part !== undefined) return backend.hostResult(part, [part.length], x.dtype as 'int32');
  }
  const { begin, end, strides: steps, beginMask, endMask, ellipsisMask, newAxisMask, shrinkAxisMask } = attributes;
  const info = tf.slice_util.sliceInfo(
    x.shape,
    begin,
    end,
    steps as number[],
    beginMask,
    endMask,
    ellipsisMask,
    newAxisMask,
    shrinkAxisMask,
  );
  const shape = info.finalShape;
  if (info.isIdentity) return backend.share(x, shape);
  // A shrunk axis has size 1 in `sizes`, and is gone in `shape`.
  const sizes = x.shape.map((_, i) => {
    const span = (info.end[i] as number) - (info.begin[i] as number);
    return Math.max(0, Math.ceil(span / (info.strides[i] as number)));
  });
  if (backend.shadow(x)) {
    const own = strides(x.shape);
    const scaled = own.map((stride, i) => stride * (info.strides[i] as number));
    const known = readStrided(backend.shadow(x) as Integers, sizes, scaled, offsetOf(info.begin, own));
    return backend.hostResult(known, shape, x.dtype as 'int32');
  }
  const operand = backend.operand(x);
  const unit = info.strides.every((step) => step === 1);
  const view = unit
    ? backend.apply('slice', [operand], blockAttributes(info.begin, sizes))
    : backend.apply('strided-slice', [operand], { begin: info.begin, end: info.end, strides: info.strides });
  if (tf.util.arraysEqual(sizes, shape)) {
    backend.counters.ring++;
    return backend.result(view);
  }
  const result = backend.ring('reshape', [view], shapeAttributes(shape));
  view.dispose();
  return result;
}

function reverse(backend: GpuosBackend, { x }: X, { dims }: { dims: number | number[] }): TensorInfo {
  accept(x, ANY);
  const rank = x.shape.length;
  if (rank === 0) return backend.share(x, x.shape);
  const axes = normalizeAxes('Reverse', axesOf(dims), rank);
  if (backend.shadow(x)) {
    const own = strides(x.shape);
    const steps = own.map((stride, axis) => (axes.includes(axis) ? -stride : stride));
    const last = axes.reduce((sum, axis) => sum + ((x.shape[axis] as number) - 1) * (own[axis] as number), 0);
    const known = onHost(backend, x, x.shape, steps, last);
    if (known) return known;
  }
  return backend.ring('reverse', [backend.operand(x)], { axes });
}

/** A call of tfjs counts once, however many parts it gives. */
function countOnce(backend: GpuosBackend, whole: TensorInfo, parts: number): void {
  if (backend.shadow(whole)) backend.counters.host -= parts - 1;
  else backend.counters.ring -= parts - 1;
}

function splitV(backend: GpuosBackend, { x }: X, attributes: { numOrSizeSplits: number | number[]; axis: number }): TensorInfo[] {
  accept(x, ANY);
  const axis = normalizeAxis('SplitV', attributes.axis, x.shape.length);
  const sizes = tf.backend_util.prepareSplitSize(x as never, attributes.numOrSizeSplits, axis);
  const begin = new Array<number>(x.shape.length).fill(0);
  const parts = sizes.map((count) => {
    const size = x.shape.slice();
    size[axis] = count;
    const part = block(backend, x, begin.slice(), size);
    begin[axis] = (begin[axis] as number) + count;
    return part;
  });
  countOnce(backend, x, parts.length);
  return parts;
}

function unpack(backend: GpuosBackend, { value }: { value: TensorInfo }, attributes: { axis: number }): TensorInfo[] {
  accept(value, ANY);
  const axis = normalizeAxis('Unpack', attributes.axis, value.shape.length);
  const shape = value.shape.filter((_, i) => i !== axis);
  const count = value.shape[axis] as number;
  const known = backend.shadow(value);
  const own = strides(value.shape);
  const size = value.shape.map((n, i) => (i === axis ? 1 : n));
  const parts: TensorInfo[] = [];
  for (let i = 0; i < count; i++) {
    const offset = i * (own[axis] as number);
    if (known) {
      const steps = own.filter((_, other) => other !== axis);
      parts.push(backend.hostResult(readStrided(known, shape, steps, offset), shape, value.dtype as 'int32'));
      continue;
    }
    const begin = own.map((_, other) => (other === axis ? i : 0));
    const view = backend.apply('slice', [backend.operand(value)], blockAttributes(begin, size));
    parts.push(backend.ring('reshape', [view], shapeAttributes(shape)));
    view.dispose();
  }
  countOnce(backend, value, count);
  return parts;
}

function broadcastTo(backend: GpuosBackend, { x }: X, { shape }: { shape: Integers }): TensorInfo {
  accept(x, ANY);
  return backend.ring('expand', [backend.operand(x)], shapeAttributes(shape));
}

export const VIEW: Kernels = {
  Transpose: transpose,
  Slice: slice,
  StridedSlice: stridedSlice,
  Reverse: reverse,
  SplitV: splitV,
  Unpack: unpack,
  BroadcastTo: broadcastTo,
};
