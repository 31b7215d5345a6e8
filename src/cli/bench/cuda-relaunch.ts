/**
 * New operators by the documented way, `relaunch`, beside a load of another queue: how long no task of the load ends while
 * the kernel is replaced, as a thread sees that watches the queue, and whether a task is lost.
 */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { queueRecord } from '../../abi/records.ts';
import type { CudaDevice } from '../../backends/cuda/device.ts';
import { PAUSE_PARTS, type PauseParts } from '../../backends/cuda/process/requests.ts';
import { GpuosError } from '../../errors.ts';
import type { System } from '../../runtime/system.ts';
import { drain, sleep, withCuda } from './cuda-common.ts';
import { GAPS, type GapsStart } from './cuda-gaps.ts';
import { type ProducerEnd, Producers, ringMemory } from './cuda-ring.ts';
import { medianOf } from './statistics.ts';
import type { BenchRow } from './suite.ts';

const OPERATORS = 15;
const COUNTING = 256;
const LOAD_QUEUE = 1;
const PAUSE_MS = 50;
/** A pause is over when its request is answered; what it did to the queue is seen by then and a little. */
const SEEN_MS = 5;
const LIMIT_MS = 10_000;
const LEAST_RATE = 1e6;
const N = 256;
const device = 'cuda';

export async function relaunchRows(): Promise<BenchRow[]> {
  const before = process.env['GPUOS_CUDA_INJECT'];
  process.env['GPUOS_CUDA_INJECT'] = 'relaunch';
  try {
    return await withCuda({ queues: LOAD_QUEUE + 1 }, measure);
  } finally {
    if (before === undefined) delete process.env['GPUOS_CUDA_INJECT'];
    else process.env['GPUOS_CUDA_INJECT'] = before;
  }
}

async function measure(system: System): Promise<BenchRow[]> {
  const count = system.inject('map', { inputs: ['x'], expression: 'x + 1' });
  const total = system.buffer([0]);
  drain(system);
  const counting = { operator: count.id, pointer: total.address, every: COUNTING };
  const memory = ringMemory(system);
  const producers = new Producers(memory, [LOAD_QUEUE], { nop: system.operators.builtIn('nop'), tasks: 0, counting });
  const mark = (memory.queues[LOAD_QUEUE]!.record + queueRecord.offset.mark) >> 2;
  const { words, watcher } = watch({ address: memory.address, bytes: memory.bytes, mark });
  try {
    producers.begin();
    for (const until = performance.now() + LIMIT_MS; Atomics.load(words, GAPS.watching) === 0; await sleep(1)) {
      if (performance.now() > until) throw new GpuosError('GPUOS_BENCH_FAILED', 'The load did not begin.');
    }
    const from = completed(system);
    const start = performance.now();
    const { seen, own, parts } = await replace(system, words);
    const rate = (completed(system) - from) / ((performance.now() - start) / 1000);
    const [end] = (await producers.finish(LIMIT_MS)) as [ProducerEnd];
    if (rate < LEAST_RATE) throw new GpuosError('GPUOS_BENCH_FAILED', `Only ${(rate / 1e6).toFixed(2)} M tasks/s beside the relaunches.`);
    const longest = Math.max(...seen).toFixed(2);
    const note = `${OPERATORS} relaunches beside ${(rate / 1e6).toFixed(2)} M tasks/s of another queue: how long no task of it ended, longest ${longest} ms; the device process counts ${medianOf(own).toFixed(2)} ms (median) until the next launch, in us ${partsText(parts)}`;
    return [
      { name: 'inject.relaunch.pause.p50', value: medianOf(seen), unit: 'ms', device, note },
      lost(system, end, total.read()[0] as number),
    ];
  } finally {
    Atomics.store(words, GAPS.stop, 1);
    await watcher.terminate();
    await producers.close();
  }
}

interface Pauses {
  /** For each operator the longest time without an end in the load's queue, and how long the kernel was away; in ms. */
  readonly seen: number[];
  readonly own: number[];
  readonly parts: PauseParts[];
}

/** `leave 90, unload 0, load 1500, ...`: the median of each. */
const partsText = (parts: readonly PauseParts[]): string =>
  PAUSE_PARTS.map((part) => `${part.replace(/Us$/, '')} ${medianOf(parts.map((one) => one[part]))}`).join(', ');

async function replace(system: System, words: Int32Array): Promise<Pauses> {
  const input = system.buffer(Float32Array.from({ length: N }, (_, i) => i));
  const output = system.buffer(N);
  const [seen, own, parts]: [number[], number[], PauseParts[]] = [[], [], []];
  for (let k = 0; k < OPERATORS; k++) {
    const operator = await between(words, () => {
      const before = injection(system).relaunches;
      const made = system.inject('map', { inputs: ['x'], expression: `x * ${k + 2} - ${k}.5` });
      if (injection(system).relaunches !== before + 1) throw new GpuosError('GPUOS_BENCH_FAILED', 'The kernel was not replaced.');
      return made;
    });
    seen.push(Atomics.load(words, GAPS.longest) / 1000);
    own.push(injection(system).pauseUs / 1000);
    parts.push(injection(system).parts);
    system.submit({ operator, pointers: [input.address, output.address], words: [N] }).doneSync();
    const wrong = output.read().findIndex((value, i) => value !== i * (k + 2) - k - 0.5);
    if (wrong >= 0) throw new GpuosError('GPUOS_BENCH_FAILED', `Operator ${k}, element ${wrong} is wrong.`);
  }
  return { seen, own, parts };
}

/** What the watcher sees from just before an action until a little after it. */
async function between<T>(words: Int32Array, action: () => T): Promise<T> {
  await sleep(PAUSE_MS);
  Atomics.store(words, GAPS.longest, 0);
  const result = action();
  await sleep(SEEN_MS);
  return result;
}

const injection = (system: System) => (system.device as CudaDevice).injection;

const word = (system: System, offset: number): number =>
  Atomics.load(system.device.views().u32, (system.device.queues[LOAD_QUEUE]!.record + offset) >> 2);
const completed = (system: System): number => word(system, queueRecord.offset.mark);

function lost(system: System, end: ProducerEnd, sum: number): BenchRow {
  const missing = (end.tasks - completed(system)) | 0;
  const failures = word(system, queueRecord.offset.failures);
  const uncounted = Math.abs(end.counted - sum);
  const note = `${end.tasks} tasks: ${missing} not complete, ${failures} failed; of ${end.counted} additions each on the one before, ${uncounted} are missing or too many`;
  return { name: 'inject.relaunch.tasks-lost', value: missing + failures + uncounted, unit: 'tasks', device, note };
}

function watch(start: Omit<GapsStart, 'shared'>): { words: Int32Array; watcher: Worker } {
  const beside = new URL('cuda-gaps.js', import.meta.url);
  const file = existsSync(beside) ? beside : new URL('../../../dist/cli/bench/cuda-gaps.js', import.meta.url);
  const words = new Int32Array(new SharedArrayBuffer(4 * Object.keys(GAPS).length));
  return { words, watcher: new Worker(fileURLToPath(file), { workerData: { ...start, shared: words } satisfies GapsStart }) };
}
