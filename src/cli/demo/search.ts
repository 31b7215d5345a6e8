/** Ranks passages by the cosine of the angle between their embedding and a query's. */

export interface Hit {
  /** Number of the passage. */
  readonly passage: number;
  /** Dot product of two unit vectors: -1 to 1. */
  readonly score: number;
}

export function dot(a: Float32Array, b: Float32Array): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += (a[i] as number) * (b[i] as number);
  return sum;
}

/** The best `size` hits offered so far, best first; of equal scores the earlier passage. */
export class TopHits {
  readonly size: number;
  readonly hits: Hit[] = [];

  constructor(size: number) {
    this.size = size;
  }

  /** Returns the place (from 0) at which the hit entered, or -1 if it did not. */
  offer(hit: Hit): number {
    let place = this.hits.length;
    while (place > 0 && before(hit, this.hits[place - 1] as Hit)) place--;
    if (place >= this.size) return -1;
    this.hits.splice(place, 0, hit);
    this.hits.length = Math.min(this.hits.length, this.size);
    return place;
  }
}

function before(a: Hit, b: Hit): boolean {
  return a.score > b.score || (a.score === b.score && a.passage < b.passage);
}

/** The middle value, or the mean of the two; NaN for none. */
export function median(values: readonly number[]): number {
  if (values.length === 0) return Number.NaN;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? (sorted[middle] as number) : ((sorted[middle - 1] as number) + (sorted[middle] as number)) / 2;
}
