/** Kernels that only rename: the result shares the data of the input, and no task can come of them. */
import { resolveReshape } from '../../../ops/view.ts';
import { DECLINED, type GpuosBackend } from '../backend.ts';
import type { TensorInfo } from '../tfjs.ts';
import type { Kernels, X } from './kernel.ts';

function identity(backend: GpuosBackend, { x }: X): TensorInfo {
  return backend.share(x, x.shape);
}

function reshape(backend: GpuosBackend, { x }: X, { shape }: { shape: readonly number[] }): TensorInfo {
  return backend.share(x, resolveReshape(x.shape, shape));
}

function expandDims(backend: GpuosBackend, { input }: { input: TensorInfo }, { dim }: { dim: number }): TensorInfo {
  const shape = input.shape.slice();
  // A negative dim counts from the end of the result.
  shape.splice(dim < 0 ? shape.length + dim + 1 : dim, 0, 1);
  return backend.share(input, shape);
}

/** The parts of a complex tensor are handles of their own on the same data, as the complex tensor owns its parts. */
function alias(backend: GpuosBackend, part: TensorInfo, shape: readonly number[]): TensorInfo {
  return backend.result(backend.apply('reshape', [backend.operand(part)], { shape }));
}

function complex(backend: GpuosBackend, { real, imag }: { real: TensorInfo; imag: TensorInfo }): TensorInfo {
  if (real.dtype !== 'float32' || imag.dtype !== 'float32') throw DECLINED;
  const result = backend.storeComplex(alias(backend, real, real.shape), alias(backend, imag, imag.shape), real.shape);
  backend.counters.metadata++;
  return result;
}

function part(which: 'real' | 'imag') {
  return (backend: GpuosBackend, { input }: { input: TensorInfo }): TensorInfo => {
    const parts = backend.record(input.dataId).complex;
    if (parts === undefined) throw DECLINED;
    const result = alias(backend, parts[which], input.shape);
    backend.counters.metadata++;
    return result;
  };
}

export const METADATA: Kernels = {
  Identity: identity,
  Reshape: reshape,
  ExpandDims: expandDims,
  Complex: complex,
  Real: part('real'),
  Imag: part('imag'),
};
