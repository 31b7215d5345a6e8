import type { ShapeInfo } from './shape-info.ts';
import { shapeInfo } from './shape-info.ts';

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
  readonly #primes: number[] = [];
  readonly #sizes: number[] = [];
  readonly #numbers = new Map<number, number>([
    [0, 0],
    [1, 1],
  ]);
  /** Sizes that are products, and of what. */
  readonly #parts = new Map<number, readonly number[]>();
  readonly #shapes = new Map<ShapeInfo, ShapeInfo>();
  #possible = true;

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
    const known = this.#parts.get(size);
    if (known === undefined)
      this.#parts.set(
        size,
        [...parts].sort((a, b) => a - b),
      );
    else if (known.join() !== [...parts].sort((a, b) => a - b).join()) this.#possible = false;
  }

  /** The number that stands for a size. */
  number(size: number): number {
    const known = this.#numbers.get(size);
    if (known !== undefined) return known;
    const parts = this.#parts.get(size);
    let number = 1;
    if (parts !== undefined) for (const part of parts) number *= this.number(part);
    else if (this.#primes.length < PRIMES.length) {
      number = PRIMES[this.#primes.length] as number;
      this.#primes.push(number);
      this.#sizes.push(size);
    } else this.#possible = false;
    this.#numbers.set(size, number);
    return number;
  }

  /** The shape of these numbers. */
  shape(info: ShapeInfo): ShapeInfo {
    const known = this.#shapes.get(info);
    if (known !== undefined) return known;
    const dims = info.dims.map((size) => this.number(size));
    if (!isExact(dims)) this.#possible = false;
    const shape = this.#possible ? shapeInfo(dims) : info;
    this.#shapes.set(info, shape);
    return shape;
  }

  /** What a number made of primes, a product of them and of what is smaller, is for the actual sizes. */
  actual(number: number): number {
    let rest = number;
    let result = 1;
    for (let i = 0; rest > 1 && i < this.#primes.length; i++) {
      const prime = this.#primes[i] as number;
      while (rest % prime === 0) {
        rest /= prime;
        result *= this.#sizes[i] as number;
      }
    }
    return result * rest;
  }
}

/** Factors that attributes name are below all primes, so that they are not taken for sizes. */
export const LEAST_PRIME = 101;
const MOST_PRIMES = 48;
const PRIMES: readonly number[] = primesFrom(LEAST_PRIME, MOST_PRIMES);

function primesFrom(first: number, count: number): number[] {
  const primes: number[] = [];
  for (let candidate = first; primes.length < count; candidate += 2) {
    let prime = true;
    for (let divisor = 3; divisor * divisor <= candidate; divisor += 2) prime &&= candidate % divisor !== 0;
    if (prime) primes.push(candidate);
  }
  return primes;
}

const large = (info: ShapeInfo): readonly number[] => info.dims.filter((size) => size !== 1);

/** Whether products of these, and of a stride with them, are exact. */
function isExact(dims: readonly number[]): boolean {
  let product = 1;
  for (const size of dims) product *= Math.max(1, size);
  return product < Number.MAX_SAFE_INTEGER;
}
