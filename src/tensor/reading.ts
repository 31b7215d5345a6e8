import { isHalf } from '../ops/dtype.ts';
import { fromHalfBits } from '../ops/half.ts';
import { type HostData, hostData } from '../ops/host-tensor.ts';
import type { System } from '../runtime/system.ts';
import type { Lifetimes } from './lifetime.ts';
import type { Recorder } from './recorder.ts';
import type { Storage } from './storage.ts';
import type { Submission } from './submission.ts';
import type { Tensor } from './tensor.ts';
import type { Fetched, Transfers } from './transfers.ts';
import { isContiguous } from './view.ts';

/** Brings values to the host. */
export class Reading {
  readonly #system: System;
  readonly #recorder: Recorder;
  readonly #submission: Submission;
  readonly #lifetimes: Lifetimes;
  readonly #transfers: Transfers;

  constructor(system: System, recorder: Recorder, submission: Submission, lifetimes: Lifetimes, transfers: Transfers) {
    this.#system = system;
    this.#recorder = recorder;
    this.#submission = submission;
    this.#lifetimes = lifetimes;
    this.#transfers = transfers;
  }

  /** The tensor, or a copy of it, with memory that its values are or will be in, in order. */
  #ready(tensor: Tensor): Tensor {
    if (tensor.storage === undefined) this.#submission.flush(tensor, true);
    if (tensor.storage !== undefined && isContiguous(tensor.info, tensor)) return tensor;
    const copy = this.#recorder.contiguous(tensor);
    try {
      if (copy.storage === undefined) this.#submission.flush(copy, true);
    } catch (error) {
      this.#lifetimes.dispose(copy);
      throw error;
    }
    return copy;
  }

  #check(tensor: Tensor): void {
    this.#system.checkOpen();
    this.#recorder.check(tensor);
  }

  async data(tensor: Tensor): Promise<HostData> {
    this.#check(tensor);
    if (tensor.value !== undefined && tensor.storage === undefined) return readValue(tensor);
    // The tensor may be disposed of meanwhile; its memory stays until it is read.
    const fetched = this.#fetch(tensor);
    const { storage } = fetched;
    try {
      if (storage.producer >= 0) await this.#system.queue(0).wait(storage.producer);
      return this.#read(tensor, fetched);
    } finally {
      storage.release();
    }
  }

  dataSync(tensor: Tensor): HostData {
    this.#check(tensor);
    if (tensor.value !== undefined && tensor.storage === undefined) return readValue(tensor);
    const fetched = this.#fetch(tensor);
    const { storage } = fetched;
    try {
      if (storage.producer >= 0) this.#system.queue(0).waitSync(storage.producer);
      return this.#read(tensor, fetched);
    } finally {
      storage.release();
    }
  }

  /** Where the values are or will be, in order and for the host to read; to be released. */
  #fetch(tensor: Tensor): Fetched {
    const ready = this.#ready(tensor);
    try {
      return this.#transfers.fetch(ready.storage as Storage, ready.offset, tensor.size, tensor.dtype);
    } finally {
      if (ready !== tensor) this.#lifetimes.dispose(ready);
    }
  }

  /** Copies complete values out. @throws the error of the task that was to make them */
  #read({ dtype, size }: Tensor, { storage, offset, origin }: Fetched): HostData {
    // What made them comes first: that it failed is why they could not be brought here.
    for (const each of [origin, storage]) {
      if (each.error === undefined && each.producer >= 0) each.error = this.#system.queue(0).failure(each.producer);
      if (each.error !== undefined) throw each.error;
    }
    const { device } = this.#system;
    const { f32, i32 } = device.views();
    if (isHalf(dtype)) {
      const from = i32.byteOffset + storage.block.address - device.viewBase + 2 * offset;
      const halves = new Uint16Array(i32.buffer, from, size);
      return Float32Array.from(halves, (bits) => fromHalfBits(bits, dtype));
    }
    const at = (storage.block.address - device.viewBase) / 4 + offset;
    if (dtype === 'bool') return Uint8Array.from(i32.subarray(at, at + size));
    // All of it is written next, so it need not be zero first.
    const { buffer } = Buffer.allocUnsafeSlow(size * 4);
    const values = dtype === 'float32' ? new Float32Array(buffer) : new Int32Array(buffer);
    values.set((dtype === 'float32' ? f32 : i32).subarray(at, at + size));
    return values;
  }
}

function readValue(tensor: Tensor): HostData {
  const data = hostData(tensor.dtype, 1);
  data[0] = tensor.value as number;
  return data;
}
