/**
 * The sentence encoder as it is published, against stock tfjs on WebAssembly: speed, tasks for each framework
 * operation, memory over ten thousand inferences, and how soon the demo's first hit shows.
 */
import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { GpuosError } from '../../errors.ts';
import { compareWith } from '../demo/compare.ts';
import { type Encoder, loadEncoder } from '../demo/encoder.ts';
import { bookSource } from '../demo/input.ts';
import { drawEvenly } from '../demo/passages.ts';
import { median } from '../demo/search.ts';
import type { BenchRow } from './suite.ts';

export const about = 'the sentence encoder: against tfjs-wasm, tasks for each operation, memory, first hit of the demo';

const INFERENCES = 10_000;
const WARM_UP_INFERENCES = 2000;
const SAMPLE_EVERY = 250;
const FIRST_HIT_RUNS = 3;

/** The slope of the least-squares line through the points, in units of y for each unit of x. */
export function slope(points: readonly (readonly [x: number, y: number])[]): number {
  const n = points.length;
  const meanX = points.reduce((sum, [x]) => sum + x, 0) / n;
  const meanY = points.reduce((sum, [, y]) => sum + y, 0) / n;
  const covariance = points.reduce((sum, [x, y]) => sum + (x - meanX) * (y - meanY), 0);
  const variance = points.reduce((sum, [x]) => sum + (x - meanX) ** 2, 0);
  return covariance / variance;
}

export async function run(emit: (row: BenchRow) => void): Promise<void> {
  const { passages } = bookSource();
  const encoder = await loadEncoder('gpuos');
  const device = encoder.device.kind;
  try {
    const compared = await compareWith('tfjs-wasm', encoder, passages, { passes: 2 });
    if (!(compared.maxAbsDiff <= 1e-4)) {
      throw new GpuosError('GPUOS_BENCH_FAILED', `embeddings differ from tfjs-wasm by ${compared.maxAbsDiff}, more than 1e-4.`);
    }
    emit({
      name: 'model.encoder.vs.tfjs-wasm',
      value: compared.latencyMsP50 / compared.oursLatencyMsP50,
      unit: 'ratio',
      device,
      baseline: compared.latencyMsP50,
      ours: compared.oursLatencyMsP50,
      note: `ms a sentence, p50 of ${compared.sentences} interleaved sentences, second pass (every length has been met before), tfjs ${compared.version}; largest difference ${compared.maxAbsDiff}`,
    });

    emit({
      name: 'model.encoder.first-pass.vs.tfjs-wasm',
      value: compared.first.latencyMsP50 / compared.first.oursLatencyMsP50,
      unit: 'ratio',
      device,
      baseline: compared.first.latencyMsP50,
      ours: compared.first.oursLatencyMsP50,
      note: 'the same sentences met for the first time: each new length is planned, on cold code',
    });

    const drawn = drawEvenly(passages.length, 200).map((number) => (passages[number] as { text: string }).text);
    encoder.resetStatistics();
    for (const text of drawn) await encoder.embed(text);
    const { tasks, frameworkOps, nativeShare } = encoder.statistics();
    emit({
      name: 'model.encoder.tasks-per-op',
      value: tasks / frameworkOps,
      unit: 'ratio',
      device,
      note: `${tasks} tasks for ${frameworkOps} framework operations of ${drawn.length} sentences`,
    });
    emit({ name: 'model.encoder.native-share', value: nativeShare, unit: 'fraction', device });
    emit({
      name: 'model.encoder.memory-slope',
      value: await memorySlope(
        encoder,
        passages.map(({ text }) => text),
      ),
      unit: 'KiB/1000 inferences',
      device,
      note: `heap + external + arena bytes after a forced collection, least squares over inferences ${WARM_UP_INFERENCES} to ${INFERENCES}`,
    });
  } finally {
    await encoder.dispose();
  }
  emit({
    name: 'demo.first-hit',
    value: median(await firstHits()),
    unit: 's',
    device,
    note: `from the start of the process, empty cache, median of ${FIRST_HIT_RUNS}`,
  });
}

/** In KiB for each thousand inferences. Needs `node --expose-gc`. */
async function memorySlope(encoder: Encoder, texts: readonly string[]): Promise<number> {
  const { gc } = globalThis;
  if (gc === undefined) throw new GpuosError('GPUOS_BENCH_FAILED', 'collection on demand is off: run node with --expose-gc.');
  // Short sentences: what is measured is what stays, and that does not depend on the length.
  const short = texts.filter(({ length }) => length <= 60);
  const points: [number, number][] = [];
  for (let done = 1; done <= INFERENCES; done++) {
    await encoder.embed(short[done % short.length] as string);
    if (done < WARM_UP_INFERENCES || done % SAMPLE_EVERY !== 0) continue;
    // Twice, with a turn of the event loop between: finalizers release what the first one found dead.
    gc();
    await new Promise((resolve) => setImmediate(resolve));
    gc();
    const { heapUsed, external } = process.memoryUsage();
    points.push([done, heapUsed + external + encoder.arenaBytes()]);
  }
  return (slope(points) * 1000) / 1024;
}

/** Seconds from the start of `gpuos demo` to its first hit, each run with an empty cache. */
async function firstHits(): Promise<number[]> {
  const own = fileURLToPath(import.meta.url);
  const command = fileURLToPath(new URL(`../index${extname(own)}`, import.meta.url));
  const seconds: number[] = [];
  for (let run = 0; run < FIRST_HIT_RUNS; run++) {
    const home = await mkdtemp(join(tmpdir(), 'gpuos-bench-'));
    try {
      const output = await new Promise<string>((resolve, reject) => {
        const child = spawn(process.execPath, [command, 'demo', '--json', '--quiet', '--limit', '25'], {
          env: { ...process.env, GPUOS_HOME: home },
          stdio: ['ignore', 'pipe', 'inherit'],
        });
        let text = '';
        child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
          text += chunk;
        });
        child.on('error', reject);
        child.on('close', (code) => (code === 0 ? resolve(text) : reject(new Error(`gpuos demo ended with exit code ${code}`))));
      });
      const { firstHitSeconds } = JSON.parse(output.trim().split('\n').at(-1) ?? '') as { firstHitSeconds: number };
      seconds.push(firstHitSeconds);
    } finally {
      await rm(home, { recursive: true, force: true });
    }
  }
  return seconds;
}
