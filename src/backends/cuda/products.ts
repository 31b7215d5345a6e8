/** Which matrix products are done beside the resident kernel, by cuBLAS, and how their tasks get into a queue. */
import { GpuosError } from '../../errors.ts';
import { isHalf } from '../../ops/dtype.ts';
import type { KernelCall, MatrixProduct, OrdinaryLaunches } from '../backend.ts';
import { isPlain, PRODUCT_ALIGNMENT, type ProductType } from './cublas.ts';
import type { SegmentLayout } from './layout.ts';
import type { Pending } from './process/channel-client.ts';
import type { DeviceProcess } from './process/device-process.ts';
import type { Answer, MeasuredProduct, ProductsMissing, ProductsReport } from './process/requests.ts';

/**
 * Floating-point operations from which on a product goes to the library. Each costs the host a request (some 20 us), and the
 * device two launches and the way through the host (some 20 us more), which the resident kernel's own operator does not. A
 * product of 1,290 cubed, which this is, takes cuBLAS in float32 about 100 us on a large GPU, and that operator several times
 * as long. Estimated, not measured: what is smaller runs well either way.
 */
export const LARGE_FLOPS = 2 ** 32;
/**
 * The same of halves, which cuBLAS multiplies by tensor cores and that operator does not: a product of 810 cubed takes it some
 * 5 us, and that operator more than the way to cuBLAS costs. Estimated too.
 */
export const LARGE_HALF_FLOPS = 2 ** 30;
/** How long it may take to find out how a form is done: the process waits for tasks, loads the library, and tries. */
const PREPARE_LIMIT_MS = 120_000;
/** Requests on their way, of which the channel has few. */
const MOST_PENDING = 3;

export type ProductsMode = 'auto' | 'off' | 'always';

export interface ProductsOptions {
  readonly mode: Exclude<ProductsMode, 'off'>;
  readonly layout: SegmentLayout;
  /** Where the device sees the segment. */
  readonly base: number;
  /** Slots of the operator table: of tasks whose work is done elsewhere, and of the operator that they stand for. */
  readonly externalSlot: number;
  readonly matmulSlot: number;
}

export class Products implements OrdinaryLaunches {
  readonly #process: DeviceProcess;
  readonly #options: ProductsOptions;
  #report: ProductsReport | undefined;
  /** Forms that the library was asked about. */
  readonly #known = new Map<string, boolean>();
  #pending: Pending<Answer<'product'>>[] = [];
  #begun = 0;
  #unavailable: string | undefined;

  /** @throws GPUOS_CUDA_UNAVAILABLE where it has to be there and is not */
  constructor(process: DeviceProcess, report: ProductsReport | ProductsMissing, options: ProductsOptions) {
    this.#process = process;
    this.#options = options;
    if ('library' in report) this.#learn(report);
    else this.#unavailable = report.unavailable;
    if (options.mode === 'always' && report.unavailable !== undefined)
      throw new GpuosError(
        'GPUOS_CUDA_UNAVAILABLE',
        `GPUOS_CUDA_CUBLAS=always, but large products cannot be done beside the kernel: ${report.unavailable}.`,
      );
  }

  get state(): OrdinaryLaunches['state'] & { readonly report: ProductsReport | undefined } {
    this.#collect();
    const library = this.#report && `cuBLAS ${this.#report.library.version} (${this.#report.library.path})`;
    return { begun: this.#begun, library, unavailable: this.#unavailable, report: this.#report };
  }

  /** The call as it is to be planned: with the product if that is what is going to be begun, else without. */
  route(call: KernelCall): KernelCall {
    const { product, aligned, ...rest } = call;
    if (product === undefined) return call;
    // It is a task of its own then: nothing joins it to others tile by tile.
    return this.#takes(product) ? { ...rest, product } : { ...rest, ...(aligned && { aligned }) };
  }

  begin(
    product: MatrixProduct,
    pointers: readonly [a: number, b: number, c: number],
    queue: number,
    sequence: number,
  ): { readonly slot: number; readonly pointers: readonly number[]; readonly words: readonly number[] } | undefined {
    const { layout, base, externalSlot, matmulSlot } = this.#options;
    if (this.#unavailable !== undefined || pointers.some((pointer) => pointer % PRODUCT_ALIGNMENT !== 0)) return undefined;
    // Answers come within microseconds, as they wait for no work.
    this.#collect();
    if (this.#pending.length >= MOST_PENDING) this.#settle(this.#pending.shift() as Pending<Answer<'product'>>);
    if (this.#unavailable !== undefined) return undefined;
    const tag = sequence >>> 0;
    const slot = tag & (layout.slots - 1);
    const gate = layout.gates + (queue * layout.slots + slot) * 4;
    const completion = (layout.queueList[queue] as SegmentLayout['queueList'][number]).completions + slot * 8 + 4;
    this.#pending.push(this.#process.post('product', { product, pointers, queue, sequence: tag, gate, completion }));
    this.#begun++;
    return { slot: externalSlot, pointers: [base + gate], words: [matmulSlot] };
  }

  /** What a large product takes beside the kernel and without it. The kernel leaves for that, again and again. */
  measure(dtype: ProductType, n: number, rounds: number): MeasuredProduct {
    const { report, ...times } = this.#process.call('measureProduct', { dtype, n, rounds }, { limitMs: PREPARE_LIMIT_MS });
    this.#learn(report);
    return times;
  }

  #learn(report: ProductsReport): void {
    this.#report = report;
    this.#unavailable ??= report.unavailable;
  }

  #takes(product: MatrixProduct): boolean {
    const { m, n, k, batch } = product;
    if (this.#unavailable !== undefined || !isPlain(product)) return false;
    const least = isHalf(product.dtype) ? LARGE_HALF_FLOPS : LARGE_FLOPS;
    if (this.#options.mode === 'auto' && 2 * m * n * k * batch < least) return false;
    const key = JSON.stringify(product);
    let fits = this.#known.get(key);
    if (fits === undefined) {
      const answer = this.#process.call('productFits', { product }, { limitMs: PREPARE_LIMIT_MS });
      if (answer.report !== undefined) this.#learn(answer.report);
      fits = answer.fits;
      // Where tasks that run took too long, it is asked again.
      if (answer.busy !== true) this.#known.set(key, fits);
    }
    return fits;
  }

  #collect(): void {
    const done = this.#pending.filter((pending) => pending.done);
    if (done.length === 0) return;
    this.#pending = this.#pending.filter((pending) => !done.includes(pending));
    for (const pending of done) this.#settle(pending);
  }

  #settle(pending: Pending<Answer<'product'>>): void {
    try {
      this.#unavailable ??= pending.wait().unavailable;
    } catch (error) {
      // Its task never ends. That is so only if the process is gone, which all who wait are told, or by a defect of ours.
      if (this.#process.lost === undefined) this.#process.kill(`it refused a product that it had agreed to: ${(error as Error).message}`);
    }
  }
}
