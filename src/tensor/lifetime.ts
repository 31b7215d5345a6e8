import type { Storage } from './storage.ts';
import { NO_INPUTS, type Tensor } from './tensor.ts';

/**
 * When tensors let go of memory and of what they are made from. A tensor is wanted while the caller has its
 * handle or a recorded operation uses it.
 */
export class Lifetimes {
  // The last resort for tensors that nobody disposed of.
  readonly #garbage = new FinalizationRegistry<Storage>((storage) => storage.release());

  /** Frees the tensor when it becomes garbage. */
  track(tensor: Tensor): void {
    tensor.tracked = true;
    if (tensor.storage !== undefined) this.#garbage.register(tensor, tensor.storage, tensor);
  }

  /** Gives the tensor the memory that its value is, or will be, in. */
  settle(tensor: Tensor, storage: Storage): void {
    tensor.storage = storage;
    if (tensor.tracked) this.#garbage.register(tensor, storage, tensor);
  }

  /** After a flush: lets go of what a node needed, unless it was only computed on the way and it, or what is made of it, may be asked for again. */
  afterRun(tensor: Tensor): void {
    if (tensor.operation === undefined) return;
    if (tensor.storage === undefined && (tensor.handle || tensor.uses > 0)) {
      if (tensor.handle) tensor.skipped = true;
      return;
    }
    this.#releaseInputs(tensor);
    if (!tensor.handle) this.#releaseStorage(tensor);
  }

  /** The caller gives the tensor up. */
  dispose(tensor: Tensor): void {
    if (!tensor.handle) return;
    tensor.handle = false;
    if (tensor.uses === 0) this.#discard(tensor);
  }

  #releaseInputs(tensor: Tensor): void {
    const { inputs } = tensor;
    tensor.inputs = NO_INPUTS;
    tensor.operation = undefined;
    for (let i = 0; i < inputs.length; i++) {
      const input = inputs[i] as Tensor;
      input.uses--;
      if (input.uses === 0 && !input.handle) this.#discard(input);
    }
  }

  /** Nobody can ask for the tensor any more. */
  #discard(tensor: Tensor): void {
    if (tensor.storage !== undefined) this.#releaseStorage(tensor);
    else if (tensor.operation !== undefined) this.#releaseInputs(tensor);
  }

  #releaseStorage(tensor: Tensor): void {
    const { storage } = tensor;
    if (storage === undefined || tensor.uses > 0) return;
    tensor.storage = undefined;
    if (tensor.tracked) this.#garbage.unregister(tensor);
    storage.release();
  }
}
