import { type ShapeInfo, shapeOf } from './shape-info.ts';

/**
 * Sizes as prime numbers.
 *
 * What the planner decides by sizes, it decides by products of them: whether two are equal, and whether one divides the
 * other. If each size that a computation has is taken for a prime of its own, then such an answer is the same as for all
 * sizes there are, by unique factorization: what is equal or divides for the primes does so whatever the sizes are, and
 * what only happens to be equal (6 x 4 and 3 x 8) is not used. So a decision made for the primes serves every sizes that
 * give the same primes, and a number that was worked out from primes becomes the one for given sizes when each prime in it
 * is replaced (`actual`).
 *
 * 0 and 1 stay as they are, since they decide much. Equal sizes get the same prime. A size that a reshape splits is the
 * product of its parts (768 as 12 x 64).
 */
export class Sizes {
  // Sizes above 1 and the numbers that stand for them, of which the primes come in the order of PRIMES. They are few, and the
  // lists keep their room.
  readonly #sizes: number[] = [];
  readonly #numbers: number[] = [];
  #count = 0;
  #primes = 0;
  /** Sizes that are products, and of what. */
  #parts: Map<number, readonly number[]> | undefined;
  /** See ShapeInfo.round. */
  #round = ++rounds;
  #possible = true;

  /** Forgets everything. */
  restart(): void {
    this.#count = this.#primes = 0;
    this.#parts = undefined;
    this.#round = ++rounds;
    this.#possible = true;
  }

  /** Whether primes can stand for all that was asked of them. */
  get possible(): boolean {
    return this.#possible;
  }

  /** There is no telling by primes. */
  giveUp(): void {
    this.#possible = false;
  }

  /** Elements of one shape are given another; to be told before any number is asked for. */
  relate(from: ShapeInfo, to: ShapeInfo): void {
    const [a, b] = [large(from), large(to)];
    if (a.includes(0) || b.includes(0)) {
      this.#possible &&= from === to;
      return;
    }
    let [i, j] = [0, 0];
    while (i < a.length && j < b.length) {
      // The shortest runs of dimensions that hold equally many elements.
      const [firstA, firstB] = [i, j];
      let have = a[i++] as number;
      let want = b[j++] as number;
      while (have !== want) {
        if (have < want) have *= a[i++] as number;
        else want *= b[j++] as number;
      }
      if (i - firstA === 1 && j - firstB === 1) continue;
      if (i - firstA === 1) this.divide(have, b.slice(firstB, j));
      else if (j - firstB === 1) this.divide(have, a.slice(firstA, i));
      else this.#possible = false;
    }
  }

  /** `size` is the product of these, each at least 2. */
  divide(size: number, parts: readonly number[]): void {
    const sorted = [...parts].sort((a, b) => a - b);
    this.#parts ??= new Map();
    const known = this.#parts.get(size);
    if (known === undefined) this.#parts.set(size, sorted);
    else if (known.join() !== sorted.join()) this.#possible = false;
  }

  /** The number that stands for a size. */
  number(size: number): number {
    if (size <= 1) return size;
    for (let i = 0; i < this.#count; i++) if (this.#sizes[i] === size) return this.#numbers[i] as number;
    // What is given up asks no more, however many sizes it has.
    if (!this.#possible) return 1;
    const parts = this.#parts?.get(size);
    let number = 1;
    if (parts !== undefined) for (const part of parts) number *= this.number(part);
    else if (this.#primes < PRIMES.length) number = PRIMES[this.#primes++] as number;
    else this.#possible = false;
    this.#sizes[this.#count] = size;
    this.#numbers[this.#count++] = number;
    return number;
  }

  /** The shape of these numbers. Asked for every operation, so what is rare is apart. */
  shape(info: ShapeInfo): ShapeInfo {
    return info.round === this.#round ? (info.numbered as ShapeInfo) : this.#newShape(info);
  }

  #newShape(info: ShapeInfo): ShapeInfo {
    const { dims } = info;
    const numbers = this.#dims;
    if (numbers.length !== dims.length) numbers.length = dims.length;
    let product = 1;
    for (let i = 0; i < dims.length; i++) {
      const number = this.number(dims[i] as number);
      numbers[i] = number;
      product *= Math.max(1, number);
    }
    if (product > MOST) this.#possible = false;
    const shape = this.#possible ? shapeOf(numbers) : info;
    info.round = this.#round;
    info.numbered = shape;
    return shape;
  }

  readonly #dims: number[] = [];

  /** The number that stands for a stride over this many elements. */
  stride(stride: number, size: number): number {
    const number = this.number(stride);
    if (number * this.number(size) > MOST) this.#possible = false;
    return number;
  }

  /** What a product of the numbers is for the actual sizes. */
  actual(number: number): number {
    let rest = number;
    let result = 1;
    for (let i = 0, primes = 0; rest > 1 && i < this.#count; i++) {
      const prime = this.#numbers[i] as number;
      // Products of others are no primes.
      if (prime !== PRIMES[primes]) continue;
      primes++;
      while (rest % prime === 0) {
        rest /= prime;
        result *= this.#sizes[i] as number;
      }
    }
    // What is left is 1, or 0.
    return result * rest;
  }
}

let rounds = 0;

/** Products of numbers beyond this might not be exact. */
const MOST = 2 ** 50;
/** Small, so that shapes of many dimensions have exact products. */
const PRIMES: readonly number[] = [
  ...[2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127],
  ...[131, 137, 139, 149, 151, 157, 163, 167, 173, 179, 181, 191, 193, 197, 199, 211, 223, 227, 229, 233, 239, 241, 251, 257, 263],
];

const large = (info: ShapeInfo): readonly number[] => info.dims.filter((size) => size !== 1);
