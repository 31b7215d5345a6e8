import type { DType, Shape } from '../../src/ops/define.ts';
import { type HostTensor, hostTensor } from '../../src/ops/host-tensor.ts';
import { elementCount } from '../../src/ops/shape.ts';

/** A repeatable source of choices (mulberry32). */
export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** In [0, 1). */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }

  /** An integer from 0 to n - 1. */
  below(n: number): number {
    return Math.floor(this.next() * n);
  }

  /** An integer from `low` to `high`, both possible. */
  between(low: number, high: number): number {
    return low + this.below(high - low + 1);
  }

  chance(probability: number): boolean {
    return this.next() < probability;
  }

  pick<T>(list: readonly T[]): T {
    return list[this.below(list.length)] as T;
  }

  shuffled<T>(list: readonly T[]): T[] {
    const result = [...list];
    for (let i = result.length - 1; i > 0; i--) {
      const j = this.below(i + 1);
      [result[i], result[j]] = [result[j] as T, result[i] as T];
    }
    return result;
  }
}

/** Sizes that meet the edges of vectors (4, 16) and of tiles. */
const SIZES = [1, 1, 2, 3, 3, 4, 5, 7, 8, 16, 17, 33];
/** Sizes of which a few make enough work for several tiles. */
const LARGE_SIZES = [1, 3, 8, 16, 17, 33, 64, 130];

/** Sizes of `rank` dimensions with at most `limit` elements; now and then one of 0. */
export function randomShape(random: Random, rank: number, limit = 2000, empty = 0.04): number[] {
  const shape: number[] = [];
  let room = limit;
  for (let i = 0; i < rank; i++) {
    const size = random.chance(empty) ? 0 : Math.min(random.pick(limit > 5000 ? LARGE_SIZES : SIZES), Math.max(1, room));
    shape.push(size);
    if (size > 0) room = Math.floor(room / size);
  }
  return random.shuffled(shape);
}

/** float32 at its edges: signed zeros, denormals, the greatest, halves that round, NaN and infinities. */
export const SPECIAL_FLOATS: readonly number[] = [
  0,
  -0,
  1,
  -1,
  0.5,
  -0.5,
  1.5,
  2.5,
  -2.5,
  3,
  1e-45,
  -1e-45,
  1e-40,
  1.1754943508222875e-38,
  1e-20,
  -1e-20,
  1e10,
  -1e10,
  8388609,
  16777216,
  2147483648,
  -2147483648,
  3.4028234663852886e38,
  -3.4028234663852886e38,
  88.5,
  -88.5,
  104,
  -104,
  Number.NaN,
  Number.POSITIVE_INFINITY,
  Number.NEGATIVE_INFINITY,
];
export const SPECIAL_INTEGERS: readonly number[] = [0, 1, -1, 2, -2, 3, -5, 7, 31, 32, 65536, -65536, 123456789, 2147483647, -2147483648];

/**
 * How wild values are.
 *  - `any`: with everything that the dtype can hold;
 *  - `open`: moderate ones with now and then NaN or an infinity, for what adds up many values (where
 *    huge ones overflow or not by the order of addition, which no operator promises);
 *  - `tame`: moderate and finite.
 */
export type Wildness = 'any' | 'open' | 'tame';

export function randomValue(random: Random, dtype: DType, wildness: Wildness): number {
  if (dtype === 'bool') return random.below(2);
  if (dtype === 'int32') return wildness !== 'tame' && random.chance(0.3) ? random.pick(SPECIAL_INTEGERS) : random.between(-20, 20);
  if (wildness === 'any' && random.chance(0.3)) return Math.fround(random.pick(SPECIAL_FLOATS));
  if (wildness === 'open' && random.chance(0.01)) return random.pick([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]);
  return Math.fround((random.next() * 2 - 1) * (wildness === 'tame' ? 2 : 2 ** random.below(5)));
}

export function randomTensor(random: Random, shape: Shape, dtype: DType = 'float32', wildness: Wildness = 'any'): HostTensor {
  return hostTensor(
    shape,
    Array.from({ length: elementCount(shape) }, () => randomValue(random, dtype, wildness)),
    dtype,
  );
}

/** int32 from 0 to `size` - 1. */
export function randomIndices(random: Random, shape: Shape, size: number): HostTensor {
  return hostTensor(
    shape,
    Array.from({ length: elementCount(shape) }, () => random.below(size)),
    'int32',
  );
}

/** A shape that broadcasts to `shape`: leading dimensions left out, others 1. */
export function broadcastable(random: Random, shape: Shape): number[] {
  const kept = random.chance(0.4) ? shape.slice(random.below(shape.length + 1)) : [...shape];
  return kept.map((size) => (random.chance(0.25) ? 1 : size));
}

/** Runs of a property: RUNS multiplies them for a longer search; SEED replaces the fixed seed. */
export function search(runs: number, seed: number): { numRuns: number; seed: number; endOnFailure: boolean } {
  return {
    numRuns: Math.ceil(runs * Number(process.env['RUNS'] ?? 1)),
    seed: Number(process.env['SEED'] ?? seed),
    endOnFailure: false,
  };
}
