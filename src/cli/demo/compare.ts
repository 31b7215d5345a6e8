/**
 * `--compare`: the same sentences on our backend and on stock tfjs, turn by turn, so that whatever else the machine
 * does meets both alike. Each side times the same call, tokens to values, in its own process.
 */
import { Baseline, type BaselineName } from './baseline.ts';
import type { Encoder } from './encoder.ts';
import { drawEvenly, type Passage } from './passages.ts';
import { median } from './search.ts';

export interface Comparison {
  readonly latencyMsP50: number;
  /** The largest difference between two elements of the embeddings of one sentence, over all sentences. */
  readonly maxAbsDiff: number;
  readonly sentences: number;
  /** Ours on the same sentences, between the baseline's. */
  readonly oursLatencyMsP50: number;
  /** The baseline's median over ours: how many times as fast we are. */
  readonly ratio: number;
  readonly version: string;
  /** The medians of the first pass. */
  readonly first: { readonly latencyMsP50: number; readonly oursLatencyMsP50: number };
}

export const COMPARED_SENTENCES: Readonly<Record<BaselineName, number>> = { 'tfjs-wasm': 200, 'tfjs-cpu': 20 };

/** Sentences that both sides run first, untimed. */
const WARM_UP = 5;

export interface CompareOptions {
  readonly signal?: AbortSignal;
  /** Called after each sentence. */
  readonly onSentence?: () => void;
  readonly sentences?: number;
  /** How often all sentences are run on both sides; the last pass counts. A form that was met before has its plan. Default 1. */
  readonly passes?: number;
}

/** Runs one baseline against the encoder. Stops early, with what it has, when the signal comes. */
export async function compareWith(
  name: BaselineName,
  encoder: Encoder,
  passages: readonly Passage[],
  options: CompareOptions = {},
): Promise<Comparison> {
  const drawn = drawEvenly(passages.length, options.sentences ?? COMPARED_SENTENCES[name]).map(
    (index) => (passages[index] as Passage).text,
  );
  const baseline = await Baseline.start(name);
  try {
    let ours: number[] = [];
    let theirs: number[] = [];
    let first: Comparison['first'] | undefined;
    let maxAbsDiff = 0;
    const timed = async (text: string) => {
      const started = performance.now();
      const vector = await encoder.embed(text);
      return { ms: performance.now() - started, vector };
    };
    for (const text of drawn.slice(0, WARM_UP)) {
      await encoder.embed(text);
      await baseline.embed(text);
    }
    for (let pass = 0; pass < (options.passes ?? 1); pass++) {
      ours = [];
      theirs = [];
      for (const [turn, text] of drawn.entries()) {
        if (options.signal?.aborted) break;
        // Who goes first alternates, so that neither always meets the caches as the other left them.
        const early = turn % 2 === 0 ? await timed(text) : undefined;
        const their = await baseline.embed(text);
        const our = early ?? (await timed(text));
        ours.push(our.ms);
        theirs.push(their.ms);
        maxAbsDiff = Math.max(maxAbsDiff, maxDifference(our.vector, their.vector));
        options.onSentence?.();
      }
      first ??= { latencyMsP50: median(theirs), oursLatencyMsP50: median(ours) };
    }
    return {
      latencyMsP50: median(theirs),
      maxAbsDiff,
      sentences: theirs.length,
      oursLatencyMsP50: median(ours),
      ratio: median(theirs) / median(ours),
      version: baseline.version,
      first: first ?? { latencyMsP50: median(theirs), oursLatencyMsP50: median(ours) },
    };
  } finally {
    baseline.stop();
  }
}

/** Infinity where a value is missing or not a number: such a difference must not pass for none. */
export function maxDifference(a: Float32Array, b: Float32Array): number {
  if (a.length !== b.length) return Infinity;
  let most = 0;
  for (let i = 0; i < a.length; i++) {
    const difference = Math.abs((a[i] as number) - (b[i] as number));
    if (!(difference <= most)) most = Number.isNaN(difference) ? Infinity : difference;
  }
  return most;
}
