import { axisAttributes } from '../attributes.ts';
import type { GpuosBackend } from '../backend.ts';
import type { TensorInfo } from '../tfjs.ts';
import { accept, FLOAT, type Kernels } from './kernel.ts';

interface Logits {
  readonly logits: TensorInfo;
}

function softmax(backend: GpuosBackend, { logits }: Logits, { dim }: { dim: number }): TensorInfo {
  accept(logits, FLOAT);
  return backend.ring('softmax', [backend.operand(logits)], axisAttributes(dim));
}

function logSoftmax(backend: GpuosBackend, { logits }: Logits, { axis }: { axis: number }): TensorInfo {
  accept(logits, FLOAT);
  return backend.ring('log-softmax', [backend.operand(logits)], axisAttributes(axis));
}

export const NORMALIZATION: Kernels = {
  Softmax: softmax,
  LogSoftmax: logSoftmax,
};
