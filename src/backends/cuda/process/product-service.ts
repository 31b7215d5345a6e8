/** Large products as requests: from the library's preparation, before the kernel starts, to the tasks that it does the work of. */
import { GpuosError } from '../../../errors.ts';
import type { MatrixProduct, ProductMatrix } from '../../backend.ts';
import { checkPlain, PRODUCT_BYTES, type ProductType } from '../cublas.ts';
import type { Address } from '../library.ts';
import { isFatal } from './ending.ts';
import { toFailure } from './failure.ts';
import { type Look, type OrdinaryParts, OrdinaryTasks } from './ordinary-tasks.ts';
import { type KernelControl, ProductLibrary, type ProductParts } from './product-library.ts';
import type { Answer, Ask, ProductsAsk, ProductsMissing, ProductsReport } from './requests.ts';

export interface ProductServiceParts extends ProductParts {
  readonly words: Int32Array;
  readonly kernel: KernelControl;
  /** Publishes the end of a task behind what is on the stream. */
  end(queue: number, sequence: number, status: number, stream: Address): void;
  /** @throws GPUOS_BAD_OPTION for memory that a product must not be told to use */
  check(address: unknown, bytes: number): void;
}

export class ProductService {
  readonly #parts: ProductServiceParts;
  #library: ProductLibrary | undefined;
  #tasks: OrdinaryTasks | undefined;
  #missing: string | undefined;
  #prepareMs = 0;

  constructor(parts: ProductServiceParts) {
    this.#parts = parts;
  }

  /** Before the kernel starts. Without a library it goes on without. @throws CudaError of a fault */
  prepare(ask: ProductsAsk): void {
    const from = performance.now();
    this.#parts.check(ask.scratch.address, ask.scratch.bytes);
    for (const type of ask.types)
      if (!Object.hasOwn(PRODUCT_BYTES, type)) throw new GpuosError('GPUOS_BAD_OPTION', `There are no products of ${type}.`);
    try {
      const library = new ProductLibrary(this.#parts, ask);
      const { words, guard, kernel, end } = this.#parts;
      const parts: OrdinaryParts = {
        words,
        library,
        guard,
        kernel,
        end: (queue, sequence, status) => end(queue, sequence, status, library.stream),
      };
      this.#library = library;
      this.#tasks = new OrdinaryTasks(parts);
    } catch (error) {
      if (isFatal(error) || !(error instanceof GpuosError)) throw error;
      this.#missing = toFailure(error).message;
    }
    this.#prepareMs = performance.now() - from;
  }

  /** Once the kernel runs, before anybody gives it tasks. @throws CudaError of a fault */
  prove(): ProductsReport | ProductsMissing {
    const library = this.#library;
    if (library === undefined) return { unavailable: this.#missing ?? 'it was not asked for' };
    const from = performance.now();
    try {
      library.prove(this.#parts.kernel);
    } catch (error) {
      if (isFatal(error) || !(error instanceof GpuosError)) throw error;
      library.disable(toFailure(error).message);
    }
    return { ...library.report, prepareMs: Math.round(this.#prepareMs), proveMs: Math.round(performance.now() - from) };
  }

  fits({ product }: Ask<'productFits'>): Answer<'productFits'> {
    return { fits: this.#library?.fits(checkPlain(product)) === true };
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
    return library.measure(dtype, n, rounds, this.#parts.kernel);
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
