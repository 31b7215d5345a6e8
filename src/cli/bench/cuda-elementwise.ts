/**
 * A hundred element-wise operations (25 times add, mul, relu, gelu) on small vectors, fused, against PyTorch: eager, as a
 * CUDA graph and compiled. Two processes that both have work for a GPU take turns on it by slices of time, so each side is
 * measured while the other has none: in rounds, ours with a system that is started for the round and shut down after it.
 */
import { GpuosError } from '../../errors.ts';
import { type Engine, engineOf } from '../../tensor/engine.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { Attempts, drain, randomFrom, say, withCuda } from './cuda-common.ts';
import { Baseline, decodeFloats, encodeFloats } from './cuda-python.ts';
import { medianOf, quantile } from './statistics.ts';
import type { BenchRow } from './suite.ts';

export const about = '100 element-wise operations on 1K to 16K floats against PyTorch, and on vectors of a thousand random lengths';

const STEPS = 25;
const SIZES = [
  ['1k', 1024],
  ['4k', 4096],
  ['16k', 16_384],
] as const;
const MODES = ['eager', 'graph', 'compile'] as const;
type Mode = (typeof MODES)[number];
const ROUNDS = 3;
const CALLS = 400;
const WARM_UP_CALLS = 300;
const THEIR_CALLS = 60;
/** Start and first use of PyTorch; torch.compile has been seen to hang. */
const FIRST_LIMIT_MS = 60_000;
const COMPILE_LIMIT_MS = 90_000;
const LIMIT_MS = 30_000;

const LENGTHS = 1000;
const THEIR_LENGTHS = 250;
const WARM_UP_LENGTHS = 100;
const LONGEST = 65_536;

const device = 'cuda';

/** The hundred operations. */
function chain(x: Tensor, b: Tensor): Tensor {
  let value = x;
  for (let i = 0; i < STEPS; i++) value = value.add(b).mul(0.99).relu().gelu();
  return value;
}

/** Recorded, run, and read by the host. */
function evaluate(engine: Engine, x: Tensor, b: Tensor): Float32Array {
  const result = engine.tidy(() => chain(x, b));
  const values = result.dataSync() as Float32Array;
  result.dispose();
  return values;
}

function operands(n: number, seed: number): { x: Float32Array; b: Float32Array } {
  const random = randomFrom(seed);
  const list = (): Float32Array => Float32Array.from({ length: n }, () => random() * 2 - 1);
  return { x: list(), b: list() };
}

/** Distinct lengths from 1 to LONGEST; the same in every run. */
export function randomLengths(count: number, seed: number): number[] {
  const random = randomFrom(seed);
  const lengths = new Set<number>();
  while (lengths.size < count) lengths.add(1 + Math.floor(random() * LONGEST));
  return [...lengths];
}

export async function run(emit: (row: BenchRow) => void): Promise<void> {
  const attempts = new Attempts();
  const data = new Map(SIZES.map(([, n]) => [n as number, operands(n, n)]));
  // One process for what is sure to work, one for the compiler.
  const [torch, compiled] = await Promise.all([
    attempts.run('PyTorch', () => prepared(data, ['eager', 'graph'], FIRST_LIMIT_MS)),
    attempts.run('PyTorch for torch.compile', () => prepared(data, ['compile'], COMPILE_LIMIT_MS)),
  ]);
  try {
    await attempts.run('elementwise.100ops', () => compare(data, { eager: torch, graph: torch, compile: compiled }, attempts, emit));
    await compiled?.stop();
    await attempts.run('elementwise.random-lengths', () => lengths(torch, attempts, emit));
  } finally {
    await Promise.all([torch?.stop(), compiled?.stop()]);
  }
  attempts.finish();
}

type Data = ReadonlyMap<number, { readonly x: Float32Array; readonly b: Float32Array }>;

/** PyTorch with our operands; what it has to compile or to record is done. */
async function prepared(data: Data, modes: readonly Mode[], limitMs: number): Promise<Baseline> {
  const baseline = await Baseline.start();
  try {
    for (const [n, { x, b }] of data) await baseline.ask({ do: 'load', n, x: encodeFloats(x), b: encodeFloats(b) }, LIMIT_MS);
    for (const mode of modes) for (const n of sizesOf(mode)) await baseline.ask({ do: 'result', n, mode }, limitMs);
    return baseline;
  } catch (error) {
    await baseline.stop();
    throw error;
  }
}

/** Only eager is compared at every size. */
const sizesOf = (mode: Mode): readonly number[] => (mode === 'eager' ? SIZES.map(([, n]) => n) : [16_384]);

async function compare(
  data: Data,
  baselines: Readonly<Record<Mode, Baseline | undefined>>,
  attempts: Attempts,
  emit: (row: BenchRow) => void,
): Promise<void> {
  const ours = new Map<number, number[]>(SIZES.map(([, n]) => [n, []]));
  const results = new Map<number, Float32Array>();
  const theirs = new Map<string, { us: number[]; read: number[] }>();
  const failed = new Set<Mode>();
  let tasks = 0;
  for (let round = 0; round < ROUNDS; round++) {
    await withCuda({}, (system) => {
      const engine = engineOf(system);
      for (const [n, values] of data) {
        const [x, b] = [values.x, values.b].map((list) => engine.fromHost(list, [n])) as [Tensor, Tensor];
        const before = engine.counters.tasks;
        results.set(n, evaluate(engine, x, b));
        tasks = engine.counters.tasks - before;
        for (let i = 0; i < WARM_UP_CALLS; i++) evaluate(engine, x, b);
        for (let i = 0; i < CALLS; i++) {
          const start = performance.now();
          evaluate(engine, x, b);
          (ours.get(n) as number[]).push((performance.now() - start) * 1000);
        }
        for (const tensor of [x, b]) tensor.dispose();
      }
    });
    for (const mode of MODES) {
      const baseline = baselines[mode];
      if (baseline === undefined || failed.has(mode)) continue;
      const done = await attempts.run(`round ${round + 1} of ${ROUNDS}, ${mode}`, async () => {
        for (const n of sizesOf(mode)) {
          if (round === 0)
            check(results.get(n) as Float32Array, decodeFloats((await baseline.ask({ do: 'result', n, mode }, LIMIT_MS))['values']));
          const { us, read_us: read } = await baseline.ask({ do: 'chain', n, mode, calls: THEIR_CALLS }, LIMIT_MS);
          const key = `${mode} ${n}`;
          const sums = theirs.get(key) ?? { us: [], read: [] };
          theirs.set(key, sums);
          sums.us.push(...(us as number[]));
          sums.read.push(...(read as number[]));
        }
        return true;
      });
      if (done === undefined) failed.add(mode);
    }
  }
  for (const mode of MODES) {
    if (baselines[mode] === undefined || failed.has(mode)) continue;
    for (const [label, n] of SIZES) {
      if (!sizesOf(mode).includes(n)) continue;
      const { us, read } = theirs.get(`${mode} ${n}`) as { us: number[]; read: number[] };
      const [baseline, own] = [medianOf(us), medianOf(ours.get(n) as number[])];
      emit({
        name: `elementwise.100ops.${label}.fused.vs.${mode}`,
        value: baseline / own,
        unit: 'ratio',
        device,
        baseline,
        ours: own,
        note: `us a chain, medians of ${ROUNDS} rounds in turn; ours recorded, run (${tasks} tasks) and read by the host; PyTorch ${baselines[mode]?.version} until synchronize() (${medianOf(read).toFixed(1)} us with the result copied to the host)`,
      });
    }
  }
}

async function lengths(torch: Baseline | undefined, attempts: Attempts, emit: (row: BenchRow) => void): Promise<void> {
  const all = randomLengths(LENGTHS + WARM_UP_LENGTHS, 3);
  const timed = all.slice(WARM_UP_LENGTHS);
  const times = await withCuda({}, (system) => {
    const engine = engineOf(system);
    const values = operands(LONGEST, 5);
    const found: number[] = [];
    for (const [i, n] of all.entries()) {
      const [x, b] = [values.x, values.b].map((list) => engine.fromHost(list.subarray(0, n), [n])) as [Tensor, Tensor];
      // The operands are on the device.
      drain(system);
      const start = performance.now();
      evaluate(engine, x, b);
      const us = (performance.now() - start) * 1000;
      if (i >= WARM_UP_LENGTHS) found.push(us);
      for (const tensor of [x, b]) tensor.dispose();
    }
    return found;
  });
  const [p50, p99] = [medianOf(times), quantile(times, 0.99)];
  const note = `${times.length} random lengths from 1 to ${LONGEST}, each once, kernels warm; 100 operations recorded, planned, run and read`;
  const detail = `${note}; p50 ${p50.toFixed(1)} us, p99 ${p99.toFixed(1)} us, longest ${Math.max(...times).toFixed(1)} us`;
  emit({ name: 'elementwise.random-lengths.p99-over-p50', value: p99 / p50, unit: 'ratio', device, note: detail });
  if (torch === undefined) return;
  await attempts.run('elementwise.random-lengths, CUDA graphs', async () => {
    const { us } = await torch.ask({ do: 'lengths', lengths: timed.slice(0, THEIR_LENGTHS) }, LIMIT_MS);
    const baseline = medianOf(us as number[]);
    emit({
      name: 'elementwise.random-lengths.fused.vs.recorded-graph',
      value: baseline / p50,
      unit: 'ratio',
      device,
      baseline,
      ours: p50,
      note: `us at the median length; ${note}; PyTorch records a CUDA graph for each of the first ${THEIR_LENGTHS} lengths and replays it once (its p99 ${quantile(us as number[], 0.99).toFixed(0)} us)`,
    });
  });
  say('elementwise: done');
}

/** Both sides computed the same. @throws GPUOS_BENCH_FAILED */
export function check(ours: Float32Array, theirs: Float32Array): void {
  if (ours.length !== theirs.length)
    throw new GpuosError('GPUOS_BENCH_FAILED', `${ours.length} results are ours, ${theirs.length} theirs.`);
  for (let i = 0; i < ours.length; i++) {
    const [a, b] = [ours[i] as number, theirs[i] as number];
    // A hundred operations on either side, of which each may round differently.
    if (!(Math.abs(a - b) <= 1e-3 * Math.max(1, Math.abs(b))))
      throw new GpuosError('GPUOS_BENCH_FAILED', `Element ${i} is ${a}, PyTorch's is ${b}.`);
  }
}
