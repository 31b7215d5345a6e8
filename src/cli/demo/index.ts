/**
 * `gpuos demo`, the main job: semantic search over a book. A TensorFlow.js program that was not written for us, the
 * sentence encoder, runs on the resident runtime; the passages nearest to each query are shown as they are found.
 */
import { setImmediate } from 'node:timers/promises';
import type { DeviceKind } from '../../backends/backend.ts';
import { chosenDevice } from '../../backends/index.ts';
import { GpuosError } from '../../errors.ts';
import { cacheFolder, readFlags } from '../../flags.ts';
import { listenForInterrupt, type Interrupt } from '../interrupt.ts';
import { print } from '../output.ts';
import { Progress, progressStyle, widthOf } from '../terminal.ts';
import { packageVersion } from '../version.ts';
import type { BaselineName } from './baseline.ts';
import { type Comparison, COMPARED_SENTENCES, compareWith } from './compare.ts';
import { type BackendName, type DeviceName, DIMENSIONS, type Encoder, ENCODER_PACKAGES, loadEncoder, MODEL } from './encoder.ts';
import { IndexCache, indexKey, PassageIndex } from './index-cache.ts';
import { BOOK_PACKAGE, bookSource, fileSource, type Source } from './input.ts';
import { assertPackages, BASELINE_PACKAGES } from './packages.ts';
import { drawEvenly } from './passages.ts';
import { type DemoReport, hitLine, MIN_TIMED, reportJson, reportText } from './report.ts';
import { dot, median, TopHits } from './search.ts';

export interface DemoOptions {
  /** A text file, `-` for standard input; without it, Moby Dick. */
  readonly input?: string | undefined;
  readonly queries: readonly string[];
  /** How many passages to show for each query. */
  readonly top: number;
  /** How many passages to index, drawn evenly over the text; Infinity for all. */
  readonly limit: number;
  readonly compare: boolean;
  /** Results as one JSON object on the last line of stdout; everything else goes to stderr. */
  readonly json: boolean;
  readonly quiet: boolean;
  readonly cache: boolean;
  readonly backend: BackendName;
  /** Of the backend `gpuos`. Default: GPUOS_DEVICE. */
  readonly device?: DeviceName | undefined;
}

const MAX_QUERY_LENGTH = 2000;
/** While it indexes, a crash or a power cut loses no more than this. */
const SAVE_INTERVAL_MS = 5000;
/** Calls before those that are timed, counting those that indexed; on a slow backend this time has to do. */
const WARM_CALLS = 120;
const WARM_MS = 2000;

/** Throws GPUOS_QUERY_EMPTY for a query without a letter or digit, GPUOS_BAD_OPTION for one that is no query. */
export function checkQueries(queries: readonly string[]): void {
  for (const query of queries) {
    if (!/[\p{L}\p{N}]/u.test(query)) throw new GpuosError('GPUOS_QUERY_EMPTY', `the query ${JSON.stringify(query)} has no word.`);
    if (query.length > MAX_QUERY_LENGTH) {
      throw new GpuosError('GPUOS_BAD_OPTION', `the query has ${query.length} characters, at most ${MAX_QUERY_LENGTH} are taken.`);
    }
  }
}

/** Runs the demo; the exit code. Throws GpuosError. */
export async function runDemo(options: DemoOptions): Promise<number> {
  const { home, device: flag } = readFlags();
  checkQueries(options.queries);
  if (options.device !== undefined && options.backend !== 'gpuos') {
    throw new GpuosError('GPUOS_USAGE', `--device is for the backend gpuos; ${options.backend} is a stock backend of tfjs.`);
  }
  // All at once, so that nobody installs one package after the other.
  assertPackages([...ENCODER_PACKAGES, ...(options.input === undefined ? [BOOK_PACKAGE] : [])]);
  if (options.compare) assertPackages(Object.keys(BASELINE_PACKAGES), 'GPUOS_BASELINE_UNAVAILABLE');
  const interrupt = listenForInterrupt();
  try {
    const source = options.input === undefined ? bookSource() : await fileSource(options.input, interrupt.signal);
    return await new DemoRun(options, source, cacheFolder(home), interrupt, chosenDevice(options.device ?? flag)).run();
  } catch (error) {
    // Nothing has been indexed yet where the input was still being read.
    if (error === interrupt.signal.reason && interrupt.exitCode !== undefined) return interrupt.exitCode;
    throw error;
  } finally {
    interrupt.release();
  }
}

class DemoRun {
  readonly #options: DemoOptions;
  readonly #source: Source;
  readonly #interrupt: Interrupt;
  readonly #index: PassageIndex;
  readonly #cache: IndexCache | undefined;
  readonly #tops: { readonly query: string; readonly vector: Float32Array; readonly top: TopHits }[] = [];
  #firstHitSeconds: number | undefined;
  #savedMs = performance.now();
  #unsaved = 0;

  constructor(options: DemoOptions, source: Source, folder: string, interrupt: Interrupt, device: DeviceKind) {
    this.#options = options;
    this.#source = source;
    this.#interrupt = interrupt;
    // Devices round differently; and who asks for one wants the work done there.
    const place = options.backend === 'gpuos' && device !== 'wasm' ? `${options.backend}/${device}` : options.backend;
    const key = indexKey(source.passages, MODEL, place, packageVersion());
    this.#index = new PassageIndex(key, DIMENSIONS, source.passages.length);
    this.#cache = options.cache ? new IndexCache(folder, key) : undefined;
  }

  async run(): Promise<number> {
    const options = this.#options;
    const { passages } = this.#source;
    const chosen = drawEvenly(passages.length, options.limit);
    await this.#loadCache();
    const encoder = await loadEncoder(options.backend, options.device);
    try {
      this.#say(`${this.#source.title} on ${encoder.device.name}: ${chosen.length} of ${passages.length} passages`);
      encoder.resetStatistics();
      let embedded = 0;
      const embed = async (text: string) => {
        embedded++;
        return await encoder.embed(text);
      };
      for (const query of options.queries) {
        this.#tops.push({ query, vector: await embed(query), top: new TopHits(options.top) });
      }
      this.#searchCached();
      const cached = this.#index.vectors.size;
      const indexed = await this.#indexMissing(chosen, embed);
      const latencies = await this.#latencies(embed, indexed.count);
      const statistics = encoder.statistics();
      const compare = options.compare && !this.#interrupt.signal.aborted ? await this.#compare(encoder) : {};
      const report: DemoReport = {
        options,
        source: this.#source,
        device: encoder.device,
        sentences: cached + indexed.count,
        chosen: chosen.length,
        missing: indexed.left,
        embedded,
        statistics,
        latency: { ms: median(latencies), samples: latencies.length },
        indexSeconds: indexed.seconds,
        indexedNow: indexed.count,
        firstHitSeconds: this.#firstHitSeconds,
        compare,
        cacheFile: this.#cache?.file,
        interrupted: this.#interrupt.exitCode !== undefined,
        tops: this.#tops.map(({ query, top }) => ({ query, hits: top.hits })),
      };
      this.#say(`\n${reportText(report, widthOf(process.stdout))}`);
      if (options.json) print(`${reportJson(report)}\n`);
    } finally {
      await this.#save();
      // After an error the device may be gone; what was wrong first is what the user has to see.
      await encoder.dispose().catch((error: Error) => process.stderr.write(`warning: ${error.message}\n`));
    }
    return this.#interrupt.exitCode ?? 0;
  }

  /** For people: stdout, or stderr where stdout is for the JSON object. */
  #say(text: string): void {
    if (!this.#options.json) print(`${text}\n`);
    else if (!this.#options.quiet) process.stderr.write(`${text}\n`);
  }

  async #loadCache(): Promise<void> {
    try {
      await this.#cache?.load(this.#index);
    } catch (error) {
      if (!(error instanceof GpuosError)) throw error;
      process.stderr.write(`warning: ${error.message}\n`);
    }
  }

  async #save(): Promise<void> {
    if (this.#unsaved === 0 || this.#cache === undefined) return;
    this.#unsaved = 0;
    this.#savedMs = performance.now();
    try {
      await this.#cache.save(this.#index);
    } catch (error) {
      // The search is done all the same.
      if (!(error instanceof GpuosError)) throw error;
      process.stderr.write(`warning: ${error.message}\n`);
    }
  }

  #offer(passage: number, vector: Float32Array, show: (line: string) => void): void {
    for (const { query, vector: queryVector, top } of this.#tops) {
      const hit = { passage, score: dot(queryVector, vector) };
      const place = top.offer(hit);
      if (place >= 0) show(hitLine(this.#source, hit, place, this.#tops.length > 1 ? query : undefined, widthOf(process.stdout)));
    }
  }

  #shown(): void {
    this.#firstHitSeconds ??= performance.now() / 1000;
  }

  /** Ranks what the cache holds; its best hits are shown at once. */
  #searchCached(): void {
    if (this.#index.vectors.size === 0) return;
    for (const [number, vector] of this.#index.vectors) this.#offer(number, vector, () => {});
    for (const { query, top } of this.#tops) {
      for (const [place, hit] of top.hits.entries()) {
        this.#say(hitLine(this.#source, hit, place, this.#tops.length > 1 ? query : undefined, widthOf(process.stdout)));
        this.#shown();
      }
    }
  }

  /** Embeds the chosen passages that the index lacks, until done or interrupted. */
  async #indexMissing(
    chosen: readonly number[],
    embed: (text: string) => Promise<Float32Array>,
  ): Promise<{ seconds: number; count: number; left: number }> {
    const missing = chosen.filter((number) => !this.#index.vectors.has(number));
    const progress = new Progress('indexing', missing.length, progressStyle(this.#options.quiet));
    const started = performance.now();
    let count = 0;
    try {
      for (const number of missing) {
        if (this.#interrupt.signal.aborted) break;
        const vector = await embed((this.#source.passages[number] as { text: string }).text);
        this.#index.vectors.set(number, vector);
        count++;
        this.#unsaved++;
        this.#offer(number, vector, (line) => {
          progress.clear();
          this.#say(line);
          this.#shown();
        });
        progress.update(count);
        // Signals arrive when the event loop turns, and the encoder alone need not turn it.
        await setImmediate();
        if (performance.now() - this.#savedMs > SAVE_INTERVAL_MS) await this.#save();
      }
    } finally {
      progress.clear();
    }
    return { seconds: (performance.now() - started) / 1000, count, left: missing.length - count };
  }

  /**
   * What a sentence takes, in ms, one figure for each of MIN_TIMED calls; fewer if interrupted. The same sentences whatever
   * was cached, and warm: each was encoded before, as the first of a form includes planning it, and the process has encoded
   * as many as its code needs to be compiled well, so that a run from the cache does not look slower than the one that filled it.
   */
  async #latencies(embed: (text: string) => Promise<Float32Array>, encoded: number): Promise<number[]> {
    const { passages } = this.#source;
    const drawn = drawEvenly(passages.length, MIN_TIMED).map((number) => (passages[number] as { text: string }).text);
    const latencies: number[] = [];
    let turn = 0;
    const next = async () => {
      const text = drawn[turn++ % drawn.length] as string;
      const started = performance.now();
      await embed(text);
      const ms = performance.now() - started;
      // For signals, as above.
      await setImmediate();
      return ms;
    };
    const started = performance.now();
    const isWarm = () => turn >= drawn.length && (encoded + turn >= WARM_CALLS || performance.now() - started > WARM_MS);
    while (!this.#interrupt.signal.aborted && !isWarm()) await next();
    while (!this.#interrupt.signal.aborted && latencies.length < MIN_TIMED) latencies.push(await next());
    return latencies;
  }

  async #compare(encoder: Encoder): Promise<Partial<Record<BaselineName, Comparison>>> {
    const result: Partial<Record<BaselineName, Comparison>> = {};
    for (const name of ['tfjs-wasm', 'tfjs-cpu'] as const) {
      if (this.#interrupt.signal.aborted) break;
      const total = Math.min(COMPARED_SENTENCES[name], this.#source.passages.length);
      const progress = new Progress(`comparing with ${name}`, total, progressStyle(this.#options.quiet));
      let done = 0;
      try {
        const compared = await compareWith(name, encoder, this.#source.passages, {
          signal: this.#interrupt.signal,
          onSentence: () => progress.update(++done),
        });
        // Interrupted before the first sentence there is nothing to tell.
        if (compared.sentences > 0) result[name] = compared;
      } finally {
        progress.clear();
      }
    }
    return result;
  }
}
