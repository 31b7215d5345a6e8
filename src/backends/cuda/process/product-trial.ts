/** A square product to try algorithms with, in memory of its own: never in that of tensors, which have values by then. */
import type { MatrixProduct } from '../../backend.ts';
import { PRODUCT_BYTES, type ProductType } from '../cublas.ts';
import type { CudaDriver } from '../driver.ts';
import type { Address } from '../library.ts';

/** Places of the result that are looked at, of so many bytes, and what stands there before: NaN in every type. */
const SAMPLE_BYTES = 16;
const POISON = 0xff;

/** Products of one type and transposition. */
export interface ProductForm {
  readonly dtype: ProductType;
  readonly transposedA: boolean;
  readonly transposedB: boolean;
}

export function formOf({ dtype, a, b }: MatrixProduct): ProductForm {
  return { dtype: dtype as ProductType, transposedA: a.transposed, transposedB: b.transposed };
}

export const formText = ({ dtype, transposedA, transposedB }: ProductForm): string =>
  `${dtype} ${transposedA ? 't' : 'n'}${transposedB ? 't' : 'n'}`;

export function square({ dtype, transposedA, transposedB }: ProductForm, n: number): MatrixProduct {
  const matrix = (transposed: boolean) => ({ transposed, stride: n, batchStride: 0 });
  return { dtype, m: n, n, k: n, a: matrix(transposedA), b: matrix(transposedB), c: matrix(false), batch: 1 };
}

export class ProductTrial {
  readonly product: MatrixProduct;
  readonly pointers: readonly [a: Address, b: Address, c: Address];
  readonly #driver: CudaDriver;
  readonly #stream: Address;
  readonly #dtype: ProductType;
  readonly #n: number;

  /**
   * @param operands with ones every sum is their number, which `isRight` looks for; other numbers cost the device what
   *   numbers do
   * @throws CudaError GPUOS_OUT_OF_MEMORY
   */
  constructor(driver: CudaDriver, stream: Address, form: ProductForm, n: number, operands: 'ones' | 'random') {
    const bytes = n * n * PRODUCT_BYTES[form.dtype];
    this.product = square(form, n);
    this.#driver = driver;
    this.#stream = stream;
    this.#dtype = form.dtype;
    this.#n = n;
    const address = driver.allocate(3 * bytes);
    this.pointers = [address, address + bytes, address + 2 * bytes];
    const words = numbers(form.dtype, n * n, operands);
    driver.copyToDevice(address, words, bytes, stream);
    driver.copyOnDevice(address + bytes, address, bytes, stream);
    driver.synchronizeStream(stream);
  }

  /** While no resident kernel runs: the driver would wait for its end. */
  free(): void {
    this.#driver.free(this.pointers[0]);
  }

  poison(): void {
    const bytes = new Uint8Array(SAMPLE_BYTES).fill(POISON);
    for (const sample of this.#samples()) this.#driver.copyToDevice(sample, bytes, SAMPLE_BYTES, this.#stream);
  }

  /** Waits for what is on the stream. */
  isRight(): boolean {
    const read = this.#samples().map((sample) => {
      const bytes = new Uint8Array(SAMPLE_BYTES);
      this.#driver.copyToHost(bytes, sample, SAMPLE_BYTES, this.#stream);
      return bytes;
    });
    this.#driver.synchronizeStream(this.#stream);
    const expected = bitsOf(this.#dtype, this.#n);
    return read.every(({ buffer }) =>
      (PRODUCT_BYTES[this.#dtype] === 4 ? new Uint32Array(buffer) : new Uint16Array(buffer)).every((bits) => bits === expected),
    );
  }

  /** The result at its beginning, in the middle, at its end. */
  #samples(): Address[] {
    const [, , c] = this.pointers;
    const bytes = this.#n * this.#n * PRODUCT_BYTES[this.#dtype];
    return [c, c + bytes / 2, c + bytes - SAMPLE_BYTES];
  }
}

/** Ones, or numbers of any kind between 1 and 2. */
function numbers(dtype: ProductType, count: number, kind: 'ones' | 'random'): Uint32Array | Uint16Array {
  const words = PRODUCT_BYTES[dtype] === 4 ? new Uint32Array(count) : new Uint16Array(count);
  words.fill(bitsOf(dtype, 1));
  if (kind === 'ones') return words;
  const mantissa = { float32: 0x7f_ffff, float16: 0x3ff, bfloat16: 0x7f }[dtype];
  for (let i = 0, state = 1; i < words.length; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    words[i] = words[i]! | ((state >>> 8) & mantissa);
  }
  return words;
}

/** A power of two as bits of the type. */
function bitsOf(dtype: ProductType, value: number): number {
  const exponent = Math.log2(value);
  return { float32: (exponent + 127) << 23, float16: (exponent + 15) << 10, bfloat16: (exponent + 127) << 7 }[dtype];
}
