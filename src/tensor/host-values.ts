/** Values as the host has them, written to and read from memory that it shares with the device. */
import type { DType } from '../ops/define.ts';
import { isHalf } from '../ops/dtype.ts';
import { fromHalfBits, toHalfBits } from '../ops/half.ts';
import type { HostData } from '../ops/host-tensor.ts';
import type { Device } from '../runtime/device.ts';

function bitsAt(device: Device, address: number, count: number): Uint16Array {
  const { i32 } = device.views();
  return new Uint16Array(i32.buffer, i32.byteOffset + address - device.viewBase, count);
}

/** Writes `count` of the values, from the `from`-th on. */
export function writeValues(
  device: Device,
  address: number,
  values: ArrayLike<number | boolean>,
  from: number,
  count: number,
  dtype: DType,
): void {
  // Nothing has no place: it may be named by an address that the host does not see.
  if (count === 0) return;
  const { f32, i32 } = device.views();
  const at = (address - device.viewBase) / 4;
  const whole = from === 0 && count === values.length;
  if (isHalf(dtype)) {
    const bits = bitsAt(device, address, count);
    if (values instanceof Uint16Array) bits.set(values.subarray(from, from + count));
    else for (let i = 0; i < count; i++) bits[i] = toHalfBits(Number(values[from + i]), dtype);
  } else if (dtype === 'bool') {
    for (let i = 0; i < count; i++) i32[at + i] = values[from + i] || Number.isNaN(values[from + i]) ? 1 : 0;
  } else {
    const target = dtype === 'float32' ? f32 : i32;
    if (whole) target.set(values as ArrayLike<number>, at);
    else if (ArrayBuffer.isView(values)) target.set((values as unknown as Float32Array).subarray(from, from + count), at);
    else for (let i = 0; i < count; i++) target[at + i] = Number(values[from + i]);
  }
}

/** An array for values that are all written before anyone sees it. */
export function blankValues(dtype: DType, size: number): HostData {
  if (dtype === 'bool') return new Uint8Array(size);
  // All of it is written next, so it need not be zero first.
  const { buffer } = Buffer.allocUnsafeSlow(size * 4);
  return dtype === 'int32' ? new Int32Array(buffer) : new Float32Array(buffer);
}

/** Takes `count` values out of memory, to the `from`-th place on. */
export function readValues(device: Device, address: number, into: HostData, from: number, count: number, dtype: DType): void {
  if (count === 0) return;
  if (isHalf(dtype)) {
    const bits = bitsAt(device, address, count);
    for (let i = 0; i < count; i++) into[from + i] = fromHalfBits(bits[i] as number, dtype);
    return;
  }
  const { f32, i32 } = device.views();
  const at = (address - device.viewBase) / 4;
  into.set((dtype === 'float32' ? f32 : i32).subarray(at, at + count), from);
}
