import type { Storage } from './storage.ts';
import type { Tensor } from './tensor.ts';

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
    this.#watch(tensor);
  }

  /** Gives the tensor the memory that its value is, or will be, in. */
  settle(tensor: Tensor, storage: Storage, strides: readonly number[], offset: number): void {
    tensor.place = { storage, strides, offset };
    if (tensor.tracked) this.#watch(tensor);
  }

  /**
   * The same for a result of the run at hand. Most are read and disposed of before the next one, and to be told of garbage
   * takes as long as many operations: so they are watched from then on.
   */
  settleResult(tensor: Tensor, storage: Storage, strides: readonly number[], offset: number): void {
    tensor.place = { storage, strides, offset };
    if (tensor.tracked) this.#results.push(tensor);
  }

  /** Results of the last run. */
  readonly #results: Tensor[] = [];

  /** A run begins. */
  beforeRun(): void {
    const results = this.#results;
    while (results.length > 0) this.#watch(results.pop() as Tensor);
  }

  #watch(tensor: Tensor): void {
    if (tensor.watched || tensor.place === undefined) return;
    tensor.watched = true;
    this.#garbage.register(tensor, tensor.place.storage, tensor);
  }

  /**
   * After a flush, for its nodes, each of which comes after its inputs: lets go of what each needed, unless it was only
   * computed on the way and it, or what is made of it, may be asked for again.
   */
  afterRun(nodes: readonly (Tensor | undefined)[], count: number): void {
    // Readers first: what one that may still be asked for is made from has to stay.
    for (let i = count - 1; i >= 0; i--) {
      const tensor = nodes[i] as Tensor;
      if (tensor.operation === undefined) continue;
      if (tensor.place === undefined && (tensor.handle || tensor.uses > 0)) {
        if (tensor.handle) tensor.skipped = true;
        continue;
      }
      const { first, second, extra } = tensor;
      if (first !== undefined) this.#afterUse(first);
      if (second !== undefined) this.#afterUse(second);
      if (extra !== undefined) for (const other of extra.others) this.#afterUse(other);
      tensor.forgetInputs();
      if (!tensor.handle) this.#releaseStorage(tensor);
    }
  }

  /** An operation that needed the tensor has run. One that was recorded is a node that is still to come. */
  #afterUse(input: Tensor): void {
    input.unuse();
    if (input.uses === 0 && !input.handle && input.operation === undefined) this.#discard(input);
  }

  /** The caller gives the tensor up. */
  dispose(tensor: Tensor): void {
    if (!tensor.handle) return;
    tensor.handle = false;
    if (tensor.uses === 0) this.#discard(tensor);
  }

  #releaseInputs(tensor: Tensor): void {
    const { first, second, extra } = tensor;
    const others = extra?.others;
    tensor.forgetInputs();
    if (first !== undefined) this.#afterGivingUp(first);
    if (second !== undefined) this.#afterGivingUp(second);
    if (others !== undefined) for (const other of others) this.#afterGivingUp(other);
  }

  /** An operation that needed the tensor will not run. */
  #afterGivingUp(input: Tensor): void {
    input.unuse();
    if (input.uses === 0 && !input.handle) this.#discard(input);
  }

  /** Nobody can ask for the tensor any more. */
  #discard(tensor: Tensor): void {
    if (tensor.place !== undefined) this.#releaseStorage(tensor);
    else if (tensor.operation !== undefined) this.#releaseInputs(tensor);
  }

  #releaseStorage(tensor: Tensor): void {
    const { place } = tensor;
    if (place === undefined || tensor.uses > 0) return;
    tensor.place = undefined;
    if (tensor.watched) this.#garbage.unregister(tensor);
    tensor.watched = false;
    place.storage.release();
  }
}
