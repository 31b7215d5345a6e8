/**
 * Tasks whose work is an ordinary launch beside the resident kernel. A worker opens a task's gate, a word in the segment,
 * when all that it depends on is complete; it is looked for here. Then the work is launched on a side stream, and behind it
 * a kernel that publishes the task's end.
 *
 * A product that fills the GPU for long enough gets it whole, if no other queue has tasks that would wait for it: the kernel
 * steps aside, and is launched again behind the product.
 *
 * Why not have the stream itself wait for the word, which a driver can do: a gate that stays closed, since a dependency
 * failed or the kernel left, would hold up the stream for ever; CUDA does not see an order that is made in that way, and
 * may put work behind it that has to come before; and work that is not to be done would be launched already. It would save
 * some 5 us of work that takes hundreds.
 */
import { isAtLeast } from '../../../abi/sequence.ts';
import { STATUS } from '../../../abi/status.ts';
import type { MatrixProduct } from '../../backend.ts';
import { CudaError } from '../cuda-error.ts';
import type { Address } from '../library.ts';
import type { CallGuard } from './call-guard.ts';
import { isFatal } from './ending.ts';
import type { KernelControl, ProductLibrary } from './product-library.ts';
import type { Aside } from './requests.ts';

/**
 * Floating-point operations from which on the kernel steps aside: a product of 2,048 cubed, which alone takes a large GPU 25 us in
 * halves and 350 us in float32, and beside the kernel, which leaves it half of the registers, 30% to 150% longer. To leave and
 * to be launched again should take some 20 us. Estimated, not measured.
 */
export const ASIDE_FLOPS = 2 ** 34;
/** Without news of any gate, how long it is looked for as often as can be, and at short intervals. */
const EAGER_MS = 2;
const PATIENT_MS = 1000;
/** Work that has been launched for so long without an end has no room beside the kernel. */
const STUCK_MS = 5000;

export interface OrdinaryTask {
  readonly product: MatrixProduct;
  readonly pointers: readonly [a: Address, b: Address, c: Address];
  readonly queue: number;
  /** Modulo 2^32. */
  readonly sequence: number;
  /** Indices of words of the segment: the gate, and the sequence of the task's completion. */
  readonly gateWord: number;
  readonly completionWord: number;
}

export interface OrdinaryParts {
  readonly words: Int32Array;
  readonly library: ProductLibrary;
  readonly guard: CallGuard;
  readonly kernel: KernelControl;
  /** Publishes an end behind what is on the library's stream. */
  end(queue: number, sequence: number, status: number): void;
  readonly aside: Aside;
  /** Whether queues other than this one have tasks that are not complete. */
  othersWait(queue: number): boolean;
}

/** How soon to look again: at once, soon, at some time, or only when there is something new. */
export type Look = 'now' | 'soon' | 'later' | 'idle';

export class OrdinaryTasks {
  readonly #parts: OrdinaryParts;
  /** Those whose gate is closed. */
  #waiting: OrdinaryTask[] = [];
  /** Those whose work was launched, in that order. */
  #launched: OrdinaryTask[] = [];
  /** The one that the kernel has stepped aside for, until it has ended: nothing else is launched meanwhile. */
  #aside: OrdinaryTask | undefined;
  #newsAt = 0;
  #progressAt = 0;
  #begun = 0;
  #asides = 0;
  #failed = 0;

  constructor(parts: OrdinaryParts) {
    this.#parts = parts;
  }

  /** Of those that were begun, for how many the kernel has stepped aside. */
  get counters(): Readonly<Record<'waiting' | 'launched' | 'begun' | 'aside' | 'failed', number>> {
    return {
      waiting: this.#waiting.length,
      launched: this.#launched.length,
      begun: this.#begun,
      aside: this.#asides,
      failed: this.#failed,
    };
  }

  add(task: OrdinaryTask): void {
    this.#waiting.push(task);
    this.#newsAt = performance.now();
  }

  /** Launches what may begin. @throws CudaError of a fault */
  look(): Look {
    if (this.#waiting.length === 0) return 'idle';
    if (this.#aside !== undefined) {
      if (!this.#hasEnded(this.#aside)) return 'now';
      this.#aside = undefined;
    }
    const before = this.#waiting.length;
    this.#waiting = this.#waiting.filter((task) => {
      if (this.#aside !== undefined) return true;
      if (this.#isOpen(task)) this.#begin(task);
      // It ended without: a dependency failed, or its operator is killed.
      else return !this.#hasEnded(task);
      return false;
    });
    const now = performance.now();
    if (this.#waiting.length < before) this.#newsAt = now;
    if (this.#waiting.length === 0) return 'idle';
    const since = now - this.#newsAt;
    return since < EAGER_MS ? 'now' : since < PATIENT_MS ? 'soon' : 'later';
  }

  /** Now and then: work that does not come to an end has the kernel make room, and is the last of its kind. */
  watch(): void {
    const before = this.#launched.length;
    this.#launched = this.#launched.filter((task) => !this.#hasEnded(task));
    const now = performance.now();
    if (this.#launched.length === 0 || this.#launched.length < before) this.#progressAt = now;
    if (now - this.#progressAt < STUCK_MS) return;
    this.#progressAt = now;
    this.#makeRoom(`a product did not end within ${STUCK_MS / 1000} s beside the resident kernel`);
  }

  #isOpen({ gateWord, sequence }: OrdinaryTask): boolean {
    return Atomics.load(this.#parts.words, gateWord) >>> 0 === sequence;
  }

  #hasEnded({ completionWord, sequence }: OrdinaryTask): boolean {
    // Its slot may be another task's by now.
    return isAtLeast(Atomics.load(this.#parts.words, completionWord), sequence);
  }

  #begin(task: OrdinaryTask): void {
    if (this.#stepsAside(task)) return;
    const { library, guard, end } = this.#parts;
    const { product, pointers, queue, sequence } = task;
    if (this.#launched.length === 0) this.#progressAt = performance.now();
    const { late, error } = guard.run(() => library.multiply(product, pointers));
    if (error !== undefined && (isFatal(error) || !(error instanceof CudaError))) throw error;
    this.#noteFailure(error);
    end(queue, sequence, error === undefined ? STATUS.OK : STATUS.FAILED);
    this.#begun++;
    this.#launched.push(task);
    if (late) this.#makeRoom('the launch of a product had to wait for the end of the resident kernel');
  }

  /** Has the kernel step aside for it, if it is large enough and disturbs nobody. */
  #stepsAside(task: OrdinaryTask): boolean {
    const { library, kernel, aside, othersWait } = this.#parts;
    const { product, pointers, queue, sequence } = task;
    const { m, n, k, batch } = product;
    if (aside === 'never' || (aside === 'auto' && 2 * m * n * k * batch < ASIDE_FLOPS) || othersWait(queue)) return false;
    // The workspace is one for all.
    if (this.#launched.some((other) => !this.#hasEnded(other))) return false;
    const begun = kernel.stepAside(queue, sequence, (stream) => library.multiplyAlone(product, pointers, stream));
    if (begun === undefined) return false;
    this.#noteFailure(begun.error);
    this.#begun++;
    this.#asides++;
    this.#aside = task;
    return true;
  }

  #noteFailure(error: unknown): void {
    if (error === undefined) return;
    this.#failed++;
    this.#parts.library.disable(`a product could not be launched: ${(error as Error).message}`);
  }

  #makeRoom(why: string): void {
    const { library, kernel } = this.#parts;
    library.disable(why);
    kernel.without(() => {});
  }
}
