/** A thread that watches a queue's mark: the longest time that it stood still, in us, since the word was last set to 0. */
import { workerData } from 'node:worker_threads';
import { type Address, koffi } from '../../backends/cuda/library.ts';

export interface GapsStart {
  readonly address: Address;
  readonly bytes: number;
  /** Where the mark is, in words. */
  readonly mark: number;
  readonly shared: Int32Array<SharedArrayBuffer>;
}

/** Words that it shares with who started it. */
export const GAPS = { longest: 0, stop: 1, watching: 2 } as const;

const { address, bytes, mark, shared } = (workerData ?? {}) as GapsStart;
if (shared !== undefined) {
  const words = new Int32Array(koffi().view(address, bytes) as ArrayBuffer);
  let last = Atomics.load(words, mark);
  let since = performance.now();
  while (Atomics.load(shared, GAPS.stop) === 0) {
    const seen = Atomics.load(words, mark);
    if (seen === last) continue;
    const now = performance.now();
    const us = Math.round((now - since) * 1000);
    if (us > Atomics.load(shared, GAPS.longest)) Atomics.store(shared, GAPS.longest, us);
    last = seen;
    since = now;
    Atomics.store(shared, GAPS.watching, 1);
  }
}
