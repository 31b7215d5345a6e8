/** Large products as requests: from the look for the library, before the kernel starts, to the tasks that it does the work of. */
import { GpuosError } from '../../../errors.ts';
import type { MatrixProduct, ProductMatrix } from '../../backend.ts';
import { checkPlain, PRODUCT_BYTES, type ProductType } from '../cublas.ts';
import type { Address } from '../library.ts';
import { isFatal } from './ending.ts';
import { toFailure } from './failure.ts';
import { type Look, type OrdinaryParts, OrdinaryTasks } from './ordinary-tasks.ts';
import { type KernelControl, ProductLibrary, type ProductParts } from './product-library.ts';
import { square } from './product-trial.ts';
import type { Answer, Ask, ProductsAsk, ProductsMissing, ProductsReport } from './requests.ts';
import { SegmentTasks } from './segment-tasks.ts';

/** How long a form's first product waits for the end of all that was submitted. */
const SETTLE_MS = 10_000;

export interface ProductServiceParts extends ProductParts {
  readonly words: Int32Array;
  readonly kernel: KernelControl;
  /** Publishes the end of a task behind what is on the stream. */
  end(queue: number, sequence: number, status: number, stream: Address): void;
  /** What else this thread has to do for tasks to come to their ends, where it waits for that. */
  tend(): void;
  /** @throws GPUOS_BAD_OPTION for memory that a product must not be told to use */
  check(address: unknown, bytes: number): void;
}

export class ProductService {
  readonly #parts: ProductServiceParts;
  readonly #submitted: SegmentTasks;
  readonly #library: ProductLibrary | undefined;
  readonly #tasks: OrdinaryTasks | undefined;
  readonly #missing: string | undefined;

  /** Before the kernel starts. Without a library it goes on without. @throws CudaError of a fault */
  constructor(parts: ProductServiceParts, ask: ProductsAsk) {
    this.#parts = parts;
    this.#submitted = new SegmentTasks(parts.words, ask.layout);
    try {
      const library = new ProductLibrary(parts, ask);
      const { words, guard, kernel, end } = parts;
      const ordinary: OrdinaryParts = {
        words,
        library,
        guard,
        kernel,
        end: (queue, sequence, status) => end(queue, sequence, status, library.stream),
        aside: ask.aside,
        othersWait: (queue) => !this.#submitted.settledBut(queue),
      };
      this.#library = library;
      this.#tasks = new OrdinaryTasks(ordinary);
    } catch (error) {
      if (isFatal(error) || !(error instanceof GpuosError)) throw error;
      this.#missing = toFailure(error).message;
    }
  }

  get report(): ProductsReport | ProductsMissing {
    return this.#library?.report ?? { unavailable: this.#missing ?? 'it was not asked for' };
  }

  fits({ product }: Ask<'productFits'>): Answer<'productFits'> {
    checkPlain(product);
    const library = this.#library;
    if (library === undefined) return { fits: false };
    if (!library.knows(product) && !this.#isPrepared(library, product)) return { fits: false, busy: true };
    return { fits: library.fits(product), report: library.report };
  }

  add({ product, pointers, queue, sequence, gate, completion }: Ask<'product'>): Answer<'product'> {
    const { words, check } = this.#parts;
    const [library, tasks] = this.#both();
    checkPlain(product);
    extents(product).forEach((bytes, i) => {
      check(pointers[i], bytes);
    });
    const wordAt = (offset: number): number => {
      if (Number.isInteger(offset) && offset >= 0 && offset % 4 === 0 && offset >> 2 < words.length) return offset >> 2;
      throw new GpuosError('GPUOS_BAD_OPTION', `${JSON.stringify(offset)} is no word of the segment.`);
    };
    if (![queue, sequence].every((value) => Number.isInteger(value) && value >= 0 && value < 2 ** 32))
      throw new GpuosError('GPUOS_BAD_OPTION', `There is no task ${JSON.stringify(sequence)} of queue ${JSON.stringify(queue)}.`);
    tasks.add({ product, pointers, queue, sequence, gateWord: wordAt(gate), completionWord: wordAt(completion) });
    const { unavailable } = library;
    return unavailable === undefined ? {} : { unavailable };
  }

  measure({ dtype, n, rounds }: Ask<'measureProduct'>): Answer<'measureProduct'> {
    const [library] = this.#both();
    if (![n, rounds].every((value) => Number.isInteger(value) && value > 0 && value < 65_536))
      throw new GpuosError(
        'GPUOS_BAD_OPTION',
        `${JSON.stringify(rounds)} rounds of products of ${JSON.stringify(n)} rows cannot be measured.`,
      );
    const product = checkPlain(square({ dtype, transposedA: false, transposedB: false }, n));
    if (!(library.knows(product) ? this.#settles() : this.#isPrepared(library, product)))
      throw new GpuosError('GPUOS_DEVICE_BUSY', `Tasks that run did not end within ${SETTLE_MS / 1000} s.`);
    return { ...library.measure(product, rounds, this.#parts.kernel), report: library.report };
  }

  get counters(): OrdinaryTasks['counters'] | undefined {
    return this.#tasks?.counters;
  }

  look(): Look {
    return this.#tasks?.look() ?? 'idle';
  }

  watch(): void {
    this.#tasks?.watch();
  }

  /** Finds out how products of its form are done; false if tasks took too long for that. */
  #isPrepared(library: ProductLibrary, product: MatrixProduct): boolean {
    if (!this.#settles()) return false;
    library.prepare(product, this.#parts.kernel);
    return true;
  }

  /**
   * Waits until all that was submitted is complete, so that the kernel has nothing to lose when it leaves, and a product
   * nothing to wait for behind one that is tried. Nothing is submitted meanwhile: who would is waiting for the answer.
   */
  #settles(): boolean {
    for (const until = performance.now() + SETTLE_MS; !this.#submitted.settled; this.#parts.tend()) {
      if (performance.now() > until) return false;
    }
    return true;
  }

  #both(): readonly [ProductLibrary, OrdinaryTasks] {
    if (this.#library !== undefined && this.#tasks !== undefined) return [this.#library, this.#tasks];
    throw new GpuosError('GPUOS_BAD_OPTION', `There is no library for products: ${this.#missing ?? 'it was not asked for'}.`);
  }
}

/** Bytes from where each matrix (or the first of a batch) begins to the end of the last one. */
function extents({ dtype, m, n, k, a, b, c, batch }: MatrixProduct): number[] {
  const bytes = ({ transposed, stride, batchStride }: ProductMatrix, rows: number, columns: number): number => {
    const [lying, long] = transposed ? [columns, rows] : [rows, columns];
    return ((batch - 1) * batchStride + (lying - 1) * stride + long) * PRODUCT_BYTES[dtype as ProductType];
  };
  return [bytes(a, m, k), bytes(b, k, n), bytes(c, m, n)];
}
