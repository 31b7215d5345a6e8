import { describe, expect, it } from 'vitest';
import type { DType } from '../ops/define.ts';
import type { Device } from '../runtime/device.ts';
import { blankValues, readValues, writeValues } from './host-values.ts';

const BASE = 2 ** 40;

/** What the host sees of a device: so many bytes from BASE on. */
function seen(bytes: number): Device {
  const buffer = new ArrayBuffer(bytes);
  const views = { u32: new Uint32Array(buffer), i32: new Int32Array(buffer), f32: new Float32Array(buffer), bytes };
  return { viewBase: BASE, views: () => views } as unknown as Device;
}

describe.each(['float32', 'int32', 'bool', 'float16', 'bfloat16'] satisfies DType[])('%s', (dtype) => {
  it('is written and read in parts', () => {
    const device = seen(64);
    const values = dtype === 'bool' ? [1, 0, 1, 1, 0] : [3, -2, 0, 7, 1];
    writeValues(device, BASE + 16, values, 1, 3, dtype);
    const read = blankValues(dtype, 5).fill(0);
    readValues(device, BASE + 16, read, 1, 3, dtype);
    expect([...read]).toEqual([0, ...values.slice(1, 4), 0]);
  });

  it('of which there is nothing, has no place', () => {
    const device = seen(64);
    for (const address of [0, BASE - 2 ** 31, BASE + 2 ** 31, BASE + 64]) {
      writeValues(device, address, [], 0, 0, dtype);
      readValues(device, address, blankValues(dtype, 0), 0, 0, dtype);
    }
    expect(device.views().u32.every((word) => word === 0)).toBe(true);
  });
});
