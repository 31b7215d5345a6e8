import { type HostData, hostData } from '../ops/host-tensor.ts';
import type { System } from '../runtime/system.ts';
import type { Lifetimes } from './lifetime.ts';
import type { Recorder } from './recorder.ts';
import type { Storage } from './storage.ts';
import type { Submission } from './submission.ts';
import type { Tensor } from './tensor.ts';
import type { Reader, Transfers } from './transfers.ts';
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
    const reader = this.#reader(tensor);
    try {
      for (let step = reader.next(); ; step = reader.next()) {
        if (step.done === true) return step.value;
        await this.#system.queue(0).wait(step.value);
      }
    } finally {
      reader.return(undefined as never);
    }
  }

  dataSync(tensor: Tensor): HostData {
    this.#check(tensor);
    if (tensor.value !== undefined && tensor.storage === undefined) return readValue(tensor);
    const reader = this.#reader(tensor);
    try {
      for (let step = reader.next(); ; step = reader.next()) {
        if (step.done === true) return step.value;
        this.#system.queue(0).waitSync(step.value);
      }
    } finally {
      reader.return(undefined as never);
    }
  }

  /** Brings the values, in order. It has to be driven to its end, or told to return: it holds their memory. */
  #reader(tensor: Tensor): Reader {
    const ready = this.#ready(tensor);
    const storage = (ready.storage as Storage).retain();
    const { offset } = ready;
    if (ready !== tensor) this.#lifetimes.dispose(ready);
    return this.#transfers.read(storage, offset, tensor.size, tensor.dtype);
  }
}

function readValue(tensor: Tensor): HostData {
  const data = hostData(tensor.dtype, 1);
  data[0] = tensor.value as number;
  return data;
}
