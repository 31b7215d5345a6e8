import type { ComputeType } from '../../../ops/dtype.ts';
import { DECLINED, type GpuosBackend, isDeviceDType } from '../backend.ts';
import { isSmall } from '../host-arithmetic.ts';
import { SHADOW_ELEMENTS } from '../record.ts';
import { type DataType, type TensorInfo, tf } from '../tfjs.ts';
import { ANY, accept, type Kernels, type NoAttributes, type X } from './kernel.ts';

/** A constant tensor; small integers stay on the host. */
function constant(backend: GpuosBackend, shape: readonly number[], value: number, dtype: ComputeType): TensorInfo {
  const exact = dtype === 'int32' ? value | 0 : dtype === 'bool' && value !== 0 ? 1 : value;
  if (dtype !== 'float32' && isSmall(shape)) {
    return backend.hostResult(new Array<number>(shape.reduce((a, b) => a * b, 1)).fill(exact), shape, dtype);
  }
  return backend.ring('fill', [], { shape, value: exact, dtype });
}

function fill(
  backend: GpuosBackend,
  _: NoAttributes,
  { shape, value, dtype }: { shape: readonly number[]; value: number | string; dtype?: DataType },
): TensorInfo {
  const type = dtype ?? tf.util.inferDtype(value as number);
  if (typeof value === 'string' || !isDeviceDType(type)) throw DECLINED;
  return constant(backend, shape, Number(value), type);
}

function like(value: number) {
  return (backend: GpuosBackend, { x }: X): TensorInfo => {
    accept(x, ANY);
    return constant(backend, x.shape, value, x.dtype as ComputeType);
  };
}

/** start, start + step, .. before stop, under the rules of tfjs for steps that lead away from stop. */
function range(
  backend: GpuosBackend,
  _: NoAttributes,
  attributes: { start: number; stop: number; step: number; dtype: DataType },
): TensorInfo {
  const { start, stop, dtype } = attributes;
  if (dtype !== 'float32' && dtype !== 'int32') throw DECLINED;
  if (dtype === 'int32' && !(Number.isInteger(start) && Number.isInteger(attributes.step))) throw DECLINED;
  const away = (start < stop && attributes.step < 0) || (stop < start && attributes.step > 1);
  const step = stop < start && attributes.step === 1 ? -1 : attributes.step;
  const count = start === stop || away ? 0 : Math.abs(Math.ceil((stop - start) / step));
  if (dtype === 'int32' && count <= SHADOW_ELEMENTS) {
    return backend.hostResult(
      Array.from({ length: count }, (_, i) => (start + i * step) | 0),
      [count],
      'int32',
    );
  }
  if (count === 0) return backend.ring('fill', [], { shape: [0], value: 0, dtype });
  // The last element is half a step before the bound, so that rounding cannot change their number.
  const bound = dtype === 'int32' ? start + count * step : start + (count - 0.5) * step;
  return backend.ring('range', [], { start, stop: bound, step, dtype });
}

function linSpace(backend: GpuosBackend, _: NoAttributes, { start, stop, num }: { start: number; stop: number; num: number }): TensorInfo {
  const counted = backend.apply('range', [], { start: 0, stop: num, step: 1, dtype: 'float32' });
  const scaled = backend.apply('mul', [counted, backend.scalar(num > 1 ? (stop - start) / (num - 1) : 0)]);
  const result = backend.ring('add', [scaled, backend.scalar(start)]);
  counted.dispose();
  scaled.dispose();
  return result;
}

export const FILL: Kernels = {
  Fill: fill,
  OnesLike: like(1),
  ZerosLike: like(0),
  Range: range,
  LinSpace: linSpace,
};
