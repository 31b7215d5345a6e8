import { describe, expect, it } from 'vitest';
import { ALL_BITS, nearest, valueOfBits } from '../../../test/half-values.ts';
import { hostTensor } from '../../ops/host-tensor.ts';
import { referenceRun } from './index.ts';

describe.each(['float16', 'bfloat16'] as const)('%s', (dtype) => {
  it('the reference casts all of them to float32 and back, and to the other by way of float32', () => {
    const all = hostTensor([65_536], Uint16Array.from(ALL_BITS), dtype);
    const wide = referenceRun('cast', [all], { dtype: 'float32' })[0]!;
    expect(wide.data.findIndex((value, i) => !Object.is(value, valueOfBits(i, dtype)))).toBe(-1);
    for (const to of ['float16', 'bfloat16'] as const) {
      const back = referenceRun('cast', [wide], { dtype: to })[0]!;
      expect(back.dtype).toBe(to);
      expect(back.data.findIndex((value, i) => !Object.is(value, nearest(valueOfBits(i, dtype), to)))).toBe(-1);
    }
  });

  it('does not mix with another dtype', () => {
    const half = hostTensor([1], [1], dtype);
    for (const other of ['float32', dtype === 'float16' ? 'bfloat16' : 'float16'] as const) {
      expect(() => referenceRun('add', [half, hostTensor([1], [1], other)])).toThrow(/must be of one dtype.*GPUOS_DTYPE_MISMATCH/);
      expect(() =>
        referenceRun(
          'matmul',
          [half, half].map((x, i) => ({ ...hostTensor([1, 1], x.data, i ? other : dtype) })),
        ),
      ).toThrow(/GPUOS_DTYPE_MISMATCH/);
    }
  });
});
