import { expect, it } from 'vitest';
import type { DType } from '../../ops/define.ts';
import { lower } from '../lowering/index.ts';
import type { SegmentLayout } from './layout.ts';
import type { DeviceProcess } from './process/device-process.ts';
import { Products } from './products.ts';

/** Whether products of this type and size go to a library that takes all that it is asked for. */
function takes(dtype: DType, n: number, result: DType = dtype): boolean {
  const process = { call: () => ({ fits: true }) } as unknown as DeviceProcess;
  const library = { path: '', from: '', version: '' };
  const options = { mode: 'auto', layout: {} as SegmentLayout, base: 0, externalSlot: 0, matmulSlot: 0 } as const;
  const products = new Products(process, { library, ways: [], n: 0 }, options);
  const view = { shape: [n, n], dtype, strides: [n, 1], offset: 0 };
  return products.route(lower('matmul', [view, view], [{ ...view, dtype: result }], {})).product !== undefined;
}

it('large products go to the library, those of halves from a quarter of the size on', () => {
  expect([1024, 1280, 1296, 2048].map((n) => takes('float32', n))).toEqual([false, false, true, true]);
  for (const dtype of ['float16', 'bfloat16'] as const)
    expect([512, 808, 816, 1024].map((n) => takes(dtype, n))).toEqual([false, false, true, true]);
});

it('is asked about each form of product once, and again where tasks took too long', () => {
  const answers = [
    { fits: false, busy: true },
    { fits: true, report: { library: { path: 'p', from: '', version: '13.1' }, ways: [], n: 1 } },
  ];
  const asked: unknown[] = [];
  const process = {
    call: (name: string, ask: unknown) => {
      asked.push(name, ask);
      return answers.shift();
    },
  } as unknown as DeviceProcess;
  const options = { mode: 'always', layout: {} as SegmentLayout, base: 0, externalSlot: 0, matmulSlot: 0 } as const;
  const products = new Products(process, { library: { path: 'p', from: '', version: '13' }, ways: [], n: 1 }, options);
  expect(products.state.library).toBe('cuBLAS 13 (p)');
  const view = { shape: [64, 64], dtype: 'float32', strides: [64, 1], offset: 0 } as const;
  const goes = (): boolean => products.route(lower('matmul', [view, view], [view], {})).product !== undefined;
  expect([goes(), goes(), goes()]).toEqual([false, true, true]);
  expect(asked.filter((name) => name === 'productFits')).toHaveLength(2);
  expect(products.state.library).toBe('cuBLAS 13.1 (p)');
});

it('a product of halves whose result is to be float32 stays in the kernel', () => {
  expect(takes('float16', 2048, 'float32')).toBe(false);
});
