/**
 * The sentence encoder through TensorFlow.js, as it is published: how long a sentence takes on a GPU, and what bounds that. The
 * wasm device's figure comes from `cuda-model-wasm.ts`, in a process of its own: tfjs has one engine a process.
 */
import { GpuosError } from '../../errors.ts';
import { current, type System } from '../../runtime/system.ts';
import { compareWith } from '../demo/compare.ts';
import { loadEncoder } from '../demo/encoder.ts';
import { bookSource } from '../demo/input.ts';
import { drawEvenly, type Passage } from '../demo/passages.ts';
import { say } from './cuda-common.ts';
import { medianOf } from './statistics.ts';
import type { BenchRow } from './suite.ts';

export const about = 'the sentence encoder through TensorFlow.js on the GPU, and what bounds it';

const SENTENCES = 200;
/** The last one counts: every form has been met, and its kernels are compiled. */
const PASSES = 3;
/** Sentences that are held to stock tfjs. */
const CHECKED = 5;
const MOST_DIFFERENCE = 1e-4;

export async function run(emit: (row: BenchRow) => void): Promise<void> {
  await measureEncoder('cuda', bookSource().passages, emit);
}

/** Counts the time in which the host waits for tasks from here on, in ms. */
function watchWaits(system: System): () => number {
  const queue = system.queue(0);
  const wait = queue.wait.bind(queue);
  const waitSync = queue.waitSync.bind(queue);
  let waited = 0;
  Object.assign(queue, {
    wait: async (sequence: number) => {
      const from = performance.now();
      try {
        await wait(sequence);
      } finally {
        waited += performance.now() - from;
      }
    },
    waitSync: (sequence: number) => {
      const from = performance.now();
      try {
        waitSync(sequence);
      } finally {
        waited += performance.now() - from;
      }
    },
  });
  return () => waited;
}

export interface Measured {
  readonly device: string;
  readonly tasks: number;
  readonly operations: number;
  readonly totalMs: number;
  /** Of these, those in which the host did nothing but wait (or, on the wasm device, computed along). */
  readonly waitedMs: number;
}

/** What a sentence consists of, and what it would have to have less of to be faster; all a sentence. */
export function whatBounds({ device, tasks, operations, totalMs, waitedMs }: Measured): string {
  const hostMs = totalMs - waitedMs;
  const share = hostMs / totalMs;
  const facts =
    `${operations.toFixed(0)} framework operations in ${tasks.toFixed(1)} tasks a sentence; ` +
    `the host records, plans and submits for ${hostMs.toFixed(2)} ms (${(100 * share).toFixed(0)}%) and waits for ${waitedMs.toFixed(2)} ms` +
    (device === 'wasm' ? ', in which it computes along' : `, ${((1000 * waitedMs) / Math.max(1, tasks)).toFixed(0)} us a task`);
  return `${facts}: ${share >= 0.5 ? 'bound by the host' : 'bound by the tasks'}`;
}

/** Measures the encoder on a device of ours. @throws GPUOS_BENCH_FAILED if its embeddings are not those of stock tfjs */
export async function measureEncoder(
  device: 'cuda' | 'wasm',
  passages: readonly Passage[],
  emit: (row: BenchRow) => void,
  { sentences = SENTENCES, passes = PASSES, checked = CHECKED } = {},
): Promise<void> {
  const drawn = drawEvenly(passages.length, sentences).map((number) => (passages[number] as Passage).text);
  const encoder = await loadEncoder('gpuos', device);
  try {
    const { maxAbsDiff } = await compareWith('tfjs-cpu', encoder, passages, { sentences: checked });
    if (!(maxAbsDiff <= MOST_DIFFERENCE)) {
      throw new GpuosError(
        'GPUOS_BENCH_FAILED',
        `Embeddings on ${device} differ from tfjs-cpu by ${maxAbsDiff}, more than ${MOST_DIFFERENCE}.`,
      );
    }
    const waited = watchWaits(current() as System);
    let times: number[] = [];
    let before = 0;
    for (let pass = 0; pass < passes; pass++) {
      times = [];
      encoder.resetStatistics();
      before = waited();
      for (const text of drawn) {
        const from = performance.now();
        await encoder.embed(text);
        times.push(performance.now() - from);
      }
      say(`model.encoder: pass ${pass + 1} on ${device}: ${medianOf(times).toFixed(2)} ms`);
    }
    const { tasks, frameworkOps } = encoder.statistics();
    const each = (total: number): number => total / drawn.length;
    const bounds = whatBounds({
      device,
      tasks: each(tasks),
      operations: each(frameworkOps),
      totalMs: each(times.reduce((sum, ms) => sum + ms, 0)),
      waitedMs: each(waited() - before),
    });
    const note = `p50 of ${drawn.length} sentences, pass ${passes} over them; ${bounds}; largest difference from tfjs-cpu ${maxAbsDiff.toExponential(1)}`;
    emit({ name: 'model.encoder.p50', value: medianOf(times), unit: 'ms', device, note });
  } finally {
    await encoder.dispose();
  }
}
