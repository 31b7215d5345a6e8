/**
 * The library for large products, beside a resident kernel. Which of its algorithms can be used there is found out: all that
 * it proposes run once before the kernel starts, so that nothing has to be loaded later, and again while it runs. One that
 * does not come to an end then, since the kernel leaves too few registers or too little shared memory to its blocks, or
 * that waits for the kernel after all, is left out; of the others the fastest is taken.
 */
import { GpuosError } from '../../../errors.ts';
import type { MatrixProduct } from '../../backend.ts';
import { type Algorithm, CublasLt, PRODUCT_BYTES, type ProductType, type Workspace } from '../cublas.ts';
import { CudaError } from '../cuda-error.ts';
import { findLibrary } from '../discovery.ts';
import type { CudaDriver } from '../driver.ts';
import type { Address } from '../library.ts';
import type { CallGuard } from './call-guard.ts';
import { isFatal } from './ending.ts';
import type { MeasuredProduct, ProductsAsk, ProductsReport, ProductWay } from './requests.ts';

/** Algorithms that are tried of each form, in the order of the library's own estimates, which it makes for products of this size. */
const MOST_ALGORITHMS = 6;
const ESTIMATED_N = 4096;
/** The product that they are tried with: large enough for blocks on every multiprocessor. */
const TRIED_N = 2048;
/** How long it may take beside the kernel; tens of times what slow devices need. Runs that are timed, and how long all may take together. */
const TRY_MS = 100;
const TIMED_RUNS = 3;
const PROVE_MS = 4000;
/** cuBLAS recommends so much, from Hopper on and before. */
const WORKSPACE_BYTES = { large: 32 << 20, small: 4 << 20 } as const;
/** Places of the result that are looked at, of so many bytes, and what stands there before: NaN in every type. */
const SAMPLE_BYTES = 16;
const POISON = 0xff;

/** Products between two looks at the time where they are measured, and how long the kernel then is left alone before. */
const MEASURED_BATCH = 10;
const SETTLE_MS = 500;

export interface ProductParts {
  readonly driver: CudaDriver;
  readonly guard: CallGuard;
  readonly cudaHome: string | undefined;
  readonly major: number;
  allocate(bytes: number): Address;
}

/** The resident kernel, as far as it has to make room. */
export interface KernelControl {
  /** Has it leave, runs `meanwhile`, and launches it again. */
  without<T>(meanwhile: () => T): T;
}

/** Products of one type and transposition. */
interface Form {
  readonly dtype: ProductType;
  readonly transposedA: boolean;
  readonly transposedB: boolean;
  readonly algorithms: Algorithm[];
  refused: number;
  chosen: { readonly algorithm: Algorithm; readonly us: number } | undefined;
}

export class ProductLibrary {
  /** Where products run. */
  readonly stream: Address;
  readonly #parts: ProductParts;
  readonly #library: CublasLt;
  readonly #workspace: Workspace;
  readonly #forms = new Map<string, Form>();
  readonly #scratch: ProductsAsk['scratch'];
  readonly #n: number;
  #unavailable: string | undefined;

  /**
   * Before the kernel starts: loads what there is for products of these types, and tries it. `scratch` is written to.
   * @throws GPUOS_CUDA_UNAVAILABLE, GPUOS_CUDA_TOO_OLD, GPUOS_OUT_OF_MEMORY, CudaError
   */
  constructor(parts: ProductParts, { types, scratch }: ProductsAsk) {
    const { driver, cudaHome, major, allocate } = parts;
    this.#parts = parts;
    this.#library = new CublasLt(findLibrary('cublas', { cudaHome }), Math.floor(driver.version() / 1000));
    this.#library.open();
    this.stream = driver.createStream();
    const bytes = major >= 9 ? WORKSPACE_BYTES.large : WORKSPACE_BYTES.small;
    this.#workspace = { address: allocate(bytes), bytes };
    this.#scratch = scratch;
    this.#n = triedSize(scratch.bytes);
    for (const dtype of types) {
      this.#fillOperands(dtype, this.#n, 1);
      for (const transposedA of [false, true]) for (const transposedB of [false, true]) this.#prepare(dtype, transposedA, transposedB);
    }
  }

  /** Why no products are taken any more. */
  get unavailable(): string | undefined {
    return this.#unavailable;
  }

  /** From here on none is. */
  disable(why: string): void {
    this.#unavailable ??= why;
  }

  get report(): Omit<ProductsReport, 'prepareMs' | 'proveMs'> {
    const { path, from, version } = this.#library;
    const ways: ProductWay[] = [...this.#forms.values()].map(({ dtype, transposedA, transposedB, algorithms, refused, chosen }) => {
      const us = chosen === undefined ? undefined : Math.round(chosen.us * 10) / 10;
      return { dtype, transposedA, transposedB, proposed: algorithms.length, refused, ...(us === undefined ? {} : { us }) };
    });
    return {
      library: { path, from, version },
      ways,
      n: this.#n,
      ...(this.#unavailable !== undefined && { unavailable: this.#unavailable }),
    };
  }

  /** While the kernel runs and has no tasks yet: finds out what runs beside it. */
  prove(kernel: KernelControl): void {
    const until = performance.now() + PROVE_MS;
    let filled: ProductType | undefined;
    for (const form of this.#forms.values()) {
      if (form.dtype !== filled && form.algorithms.length > 0) this.#fillOperands(form.dtype, this.#n, 1);
      filled = form.dtype;
      for (const algorithm of form.algorithms) {
        if (form.chosen !== undefined && performance.now() > until) break;
        const us = this.#tried(form, algorithm, kernel);
        if (us === undefined) form.refused++;
        else if (form.chosen === undefined || us < form.chosen.us) form.chosen = { algorithm, us };
        // Without any after all this time there is nothing to hope for.
        if (us === undefined && performance.now() > until) break;
      }
    }
    if (![...this.#forms.values()].some(({ chosen }) => chosen !== undefined))
      this.disable('no algorithm of cuBLAS runs beside the resident kernel');
  }

  /** Whether `multiply` takes it. */
  fits(product: MatrixProduct): boolean {
    const chosen = this.#forms.get(keyOf(product))?.chosen;
    return (
      this.#unavailable === undefined && chosen !== undefined && this.#library.accepts(product, chosen.algorithm, this.#workspace.bytes)
    );
  }

  /** Launches it on the stream. @throws CudaError */
  multiply(product: MatrixProduct, pointers: readonly [a: Address, b: Address, c: Address]): void {
    const chosen = this.#forms.get(keyOf(product))?.chosen;
    if (chosen === undefined)
      throw new GpuosError('GPUOS_INTERNAL', `A product of ${keyOf(product)} was begun, and there is no way for it.`);
    this.#launch(product, chosen.algorithm, pointers);
  }

  /**
   * What a square product takes on the device, in us, in turn: beside the kernel; without it in the same way; and without
   * it in the way that the library takes for the fastest, which need not run beside it. `scratch` is written to.
   * @throws GPUOS_BAD_OPTION, CudaError
   */
  measure(dtype: ProductType, n: number, rounds: number, kernel: KernelControl): MeasuredProduct {
    const product = square(dtype, n, false, false);
    const chosen = this.#forms.get(keyOf(product))?.chosen;
    if (chosen === undefined || !this.fits(product))
      throw new GpuosError('GPUOS_BAD_OPTION', `No way is known for products of ${n} x ${n} ${dtype}.`);
    if (3 * n * n * PRODUCT_BYTES[dtype] > this.#scratch.bytes)
      throw new GpuosError('GPUOS_BAD_OPTION', `Matrices of ${n} x ${n} do not fit ${this.#scratch.bytes} bytes.`);
    const [fastest = chosen.algorithm] = this.#library.algorithms(product, this.#workspace.bytes, 1);
    const { driver } = this.#parts;
    const events = [driver.createEvent(true), driver.createEvent(true)] as const;
    const time = (algorithm: Algorithm): number => this.#timed(product, algorithm, events);
    const measured: { beside: number[]; without: number[]; fastest: number[] } = { beside: [], without: [], fastest: [] };
    this.#fillOperands(dtype, n, undefined);
    for (let round = -1; round < rounds; round++) {
      pause(SETTLE_MS);
      const beside = time(chosen.algorithm);
      const [without, alone] = kernel.without(() => [time(chosen.algorithm), time(fastest)] as const);
      // The first one warms up.
      if (round < 0) continue;
      measured.beside.push(beside);
      measured.without.push(without);
      measured.fastest.push(alone);
    }
    for (const event of events) driver.destroyEvent(event);
    return measured;
  }

  #prepare(dtype: ProductType, transposedA: boolean, transposedB: boolean): void {
    const tried = square(dtype, this.#n, transposedA, transposedB);
    const proposed = this.#library.algorithms(square(dtype, ESTIMATED_N, transposedA, transposedB), this.#workspace.bytes, MOST_ALGORITHMS);
    const form: Form = { dtype, transposedA, transposedB, algorithms: [], refused: 0, chosen: undefined };
    for (const algorithm of proposed) {
      if (!this.#library.accepts(tried, algorithm, this.#workspace.bytes)) continue;
      try {
        this.#poison(dtype);
        this.#launch(tried, algorithm, this.#pointers(dtype, this.#n));
        this.#parts.driver.synchronizeStream(this.stream);
        if (this.#isRight(dtype)) form.algorithms.push(algorithm);
      } catch (error) {
        if (isFatal(error) || !(error instanceof CudaError)) throw error;
      }
    }
    this.#forms.set(keyOf(tried), form);
  }

  /** The time in us beside the kernel; undefined if it does not run there, or the result is wrong. */
  #tried(form: Form, algorithm: Algorithm, kernel: KernelControl): number | undefined {
    const { dtype, transposedA, transposedB } = form;
    const product = square(dtype, this.#n, transposedA, transposedB);
    let best: number | undefined;
    this.#poison(dtype);
    for (let run = 0; run < TIMED_RUNS; run++) {
      const from = performance.now();
      const { late, error } = this.#parts.guard.run(() => this.#launch(product, algorithm, this.#pointers(dtype, this.#n)));
      if (error !== undefined && (isFatal(error) || !(error instanceof CudaError))) throw error;
      const done = error === undefined && !late && this.#isDone(from + TRY_MS);
      const us = (performance.now() - from) * 1000;
      if (!done) {
        // With the kernel gone it comes to its end.
        kernel.without(() => this.#parts.driver.synchronizeStream(this.stream));
        return undefined;
      }
      best = Math.min(best ?? us, us);
    }
    return this.#isRight(dtype) ? best : undefined;
  }

  #isDone(until: number): boolean {
    do if (this.#parts.driver.streamDone(this.stream)) return true;
    while (performance.now() < until);
    return false;
  }

  #launch(product: MatrixProduct, algorithm: Algorithm, pointers: readonly [a: Address, b: Address, c: Address]): void {
    this.#library.multiply(product, algorithm, pointers, this.#workspace, this.stream);
  }

  /** Of one product, in us, from a batch of them that follow one another on the device. */
  #timed(product: MatrixProduct, algorithm: Algorithm, [start, end]: readonly [Address, Address]): number {
    const { driver } = this.#parts;
    const pointers = this.#pointers(product.dtype as ProductType, product.n);
    driver.recordEvent(start, this.stream);
    for (let i = 0; i < MEASURED_BATCH; i++) this.#launch(product, algorithm, pointers);
    driver.recordEvent(end, this.stream);
    driver.synchronizeStream(this.stream);
    return (driver.elapsedMs(start, end) * 1000) / MEASURED_BATCH;
  }

  #pointers(dtype: ProductType, n: number): readonly [Address, Address, Address] {
    const bytes = n * n * PRODUCT_BYTES[dtype];
    const { address } = this.#scratch;
    return [address, address + bytes, address + 2 * bytes];
  }

  /** Both operands: every element this value, or, where it is not given, numbers of any kind between 1 and 2. */
  #fillOperands(dtype: ProductType, n: number, value: number | undefined): void {
    const { driver } = this.#parts;
    const words = PRODUCT_BYTES[dtype] === 4 ? new Uint32Array(n * n) : new Uint16Array(n * n);
    words.fill(bitsOf(dtype, 1));
    if (value === undefined) {
      const mantissa = { float32: 0x7f_ffff, float16: 0x3ff, bfloat16: 0x7f }[dtype];
      for (let i = 0, state = 1; i < words.length; i++) {
        state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
        words[i] = words[i]! | ((state >>> 8) & mantissa);
      }
    }
    const [a, b] = this.#pointers(dtype, n);
    for (const operand of [a, b]) driver.copyToDevice(operand, words, words.byteLength, this.stream);
    driver.synchronizeStream(this.stream);
  }

  /** Where the result is looked at: at its beginning, in the middle, at its end. */
  #samples(dtype: ProductType): Address[] {
    const [, , c] = this.#pointers(dtype, this.#n);
    const bytes = this.#n * this.#n * PRODUCT_BYTES[dtype];
    return [c, c + bytes / 2, c + bytes - SAMPLE_BYTES];
  }

  #poison(dtype: ProductType): void {
    const bytes = new Uint8Array(SAMPLE_BYTES).fill(POISON);
    for (const sample of this.#samples(dtype)) this.#parts.driver.copyToDevice(sample, bytes, SAMPLE_BYTES, this.stream);
  }

  /** With operands of ones every sum is their length. */
  #isRight(dtype: ProductType): boolean {
    const { driver } = this.#parts;
    const read = this.#samples(dtype).map((sample) => {
      const bytes = new Uint8Array(SAMPLE_BYTES);
      driver.copyToHost(bytes, sample, SAMPLE_BYTES, this.stream);
      return bytes;
    });
    driver.synchronizeStream(this.stream);
    const expected = bitsOf(dtype, this.#n);
    return read.every(({ buffer }) =>
      (PRODUCT_BYTES[dtype] === 4 ? new Uint32Array(buffer) : new Uint16Array(buffer)).every((bits) => bits === expected),
    );
  }
}

function square(dtype: ProductType, n: number, transposedA: boolean, transposedB: boolean): MatrixProduct {
  const matrix = (transposed: boolean) => ({ transposed, stride: n, batchStride: 0 });
  return { dtype, m: n, n, k: n, a: matrix(transposedA), b: matrix(transposedB), c: matrix(false), batch: 1 };
}

const keyOf = ({ dtype, a, b }: MatrixProduct): string => `${dtype} ${a.transposed ? 't' : 'n'}${b.transposed ? 't' : 'n'}`;

/** The largest power of two whose three matrices fit, up to TRIED_N. */
function triedSize(bytes: number): number {
  let n = TRIED_N;
  while (n > 64 && 3 * n * n * 4 > bytes) n /= 2;
  return n;
}

/** A power of two as bits of the type. */
function bitsOf(dtype: ProductType, value: number): number {
  const exponent = Math.log2(value);
  return { float32: (exponent + 127) << 23, float16: (exponent + 15) << 10, bfloat16: (exponent + 127) << 7 }[dtype];
}

const never = new Int32Array(new SharedArrayBuffer(4));
const pause = (ms: number): void => void Atomics.wait(never, 0, 0, ms);
