import { describe, expect, it } from 'vitest';
import type { GpuosError } from '../errors.ts';
import { hostTensor, hostZeros } from './host-tensor.ts';

function codeOf(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    return (error as GpuosError).code;
  }
  return 'none';
}

describe('host tensors', () => {
  it('hold the array type of their dtype', () => {
    expect(hostTensor([2], [1.5, 2]).data).toEqual(new Float32Array([1.5, 2]));
    expect(hostTensor([2], [-1, 2], 'int32').data).toEqual(new Int32Array([-1, 2]));
    expect(hostTensor([4], [true, false, 0.5, Number.NaN], 'bool').data).toEqual(new Uint8Array([1, 0, 1, 1]));
    expect(hostZeros({ shape: [2, 0], dtype: 'int32' }).data).toEqual(new Int32Array(0));
  });

  it('copy the values that they are given', () => {
    const values = new Float32Array([1, 2]);
    const tensor = hostTensor([2], values);
    values[0] = 5;
    expect(tensor.data[0]).toBe(1);
  });

  it('refuse a wrong number of values and a bad shape', () => {
    expect(codeOf(() => hostTensor([3], [1, 2]))).toBe('GPUOS_SHAPE_MISMATCH');
    expect(codeOf(() => hostTensor([], []))).toBe('GPUOS_SHAPE_MISMATCH');
    expect(codeOf(() => hostTensor([Number.NaN], [1]))).toBe('GPUOS_BAD_SHAPE');
    expect(codeOf(() => hostZeros({ shape: [-1], dtype: 'bool' }))).toBe('GPUOS_BAD_SHAPE');
  });
});
