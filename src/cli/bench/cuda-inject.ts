/**
 * New operators in the running kernel, while another thread keeps it under load: how long until tasks may use them, and
 * whether a task of the load is lost. All machine code is in the cache by then, as it is for whoever runs a program again:
 * the first system compiles, the second, with nothing in its table, is measured.
 */
import { GpuosError } from '../../errors.ts';
import { queueRecord } from '../../abi/records.ts';
import type { InjectedOperator } from '../../runtime/operators.ts';
import type { System } from '../../runtime/system.ts';
import { type Engine, engineOf } from '../../tensor/engine.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import type { CudaDevice } from '../../backends/cuda/device.ts';
import { Attempts, drain, randomFrom, say, sleep, withCuda } from './cuda-common.ts';
import { relaunchRows } from './cuda-relaunch.ts';
import { type ProducerEnd, Producers, ringMemory } from './cuda-ring.ts';
import { medianOf, quantile } from './statistics.ts';
import type { BenchRow } from './suite.ts';

export const about = 'injection under load: publication of new operators, known expressions, relaunches of the kernel, tasks lost';

const OPERATORS = 60;
const EXPRESSIONS = 40;
const STEPS = 12;
const N = 1024;
const AGAIN = 5;
/** Between two injections: the load goes on for some seconds in all. */
const PAUSE_MS = 20;
const LEAST_RATE = 1e6;
/** A task in so many is one that counts. */
const COUNTING = 256;
const LOAD_QUEUE = 1;
const LIMIT_MS = 10_000;

const BINARY = ['add', 'mul', 'sub', 'maximum', 'minimum'] as const;
const UNARY = ['relu', 'exp', 'tanh', 'sigmoid', 'square', 'neg'] as const;

const device = 'cuda';

/** Expression k, and what it gives. */
const expression = (k: number): string => `x * ${k + 2} + ${k}.5`;
const expected = (k: number, x: number): number => x * (k + 2) + k + 0.5;

/** The kernel of a plan: as many operations as the wasm suite's. */
interface Recorded {
  readonly inputs: readonly Tensor[];
  readonly steps: readonly (readonly [binary: number, unary: number, input: number])[];
}

function expressions(engine: Engine): Recorded[] {
  const random = randomFrom(11);
  const pick = (n: number): number => Math.floor(random() * n);
  const inputs = Array.from({ length: 4 }, (_, i) =>
    engine.fromHost(
      Float32Array.from({ length: N }, (_, j) => Math.sin(i + j)),
      [N],
    ),
  );
  return Array.from({ length: EXPRESSIONS }, () => ({
    inputs,
    steps: Array.from({ length: STEPS }, () => [pick(BINARY.length), pick(UNARY.length), pick(inputs.length)] as const),
  }));
}

/** Recorded, planned if it is new, run and read; in us. */
function evaluate(engine: Engine, { inputs, steps }: Recorded): number {
  const start = performance.now();
  const result = engine.tidy(() => {
    let value = inputs[0] as Tensor;
    for (const [binary, unary, input] of steps)
      value = value.apply(BINARY[binary] as string, [inputs[input] as Tensor]).apply(UNARY[unary] as string);
    return value;
  });
  result.dataSync();
  result.dispose();
  return (performance.now() - start) * 1000;
}

const inject = (system: System, k: number): InjectedOperator => system.inject('map', { inputs: ['x'], expression: expression(k) });

export async function run(emit: (row: BenchRow) => void): Promise<void> {
  const attempts = new Attempts();
  say('inject: compiling what is not in the cache');
  await withCuda({}, async (system) => {
    for (let k = 0; k < OPERATORS; k++) inject(system, k);
    const engine = engineOf(system);
    for (const one of expressions(engine)) evaluate(engine, one);
    while (compilation(system).compiling > 0) await turn();
  });
  await withCuda({ queues: LOAD_QUEUE + 1 }, async (system) => {
    const count = system.inject('map', { inputs: ['x'], expression: 'x + 1' });
    const total = system.buffer([0]);
    const nop = system.operators.builtIn('nop');
    // The counting operator is in the table before the other queue's tasks name it.
    drain(system);
    const counting = { operator: count.id, pointer: total.address, every: COUNTING };
    const producers = new Producers(ringMemory(system), [LOAD_QUEUE], { nop, tasks: 0, counting });
    try {
      const from = completed(system);
      const start = performance.now();
      producers.begin();
      await sleep(200);
      const engine = engineOf(system);
      const rows = [
        ...((await attempts.run('inject.publish', () => publish(system))) ?? []),
        ...((await attempts.run('inject.cached', () => known(engine))) ?? []),
      ];
      const seconds = (performance.now() - start) / 1000;
      const rate = (completed(system) - from) / seconds;
      const [end] = (await producers.finish(LIMIT_MS)) as [ProducerEnd];
      const load = `beside ${(rate / 1e6).toFixed(2)} M tasks/s of another queue`;
      // Without its load, a figure is not what its name says.
      if (rate < LEAST_RATE) throw new GpuosError('GPUOS_BENCH_FAILED', `Only ${load}; ${LEAST_RATE / 1e6} M are needed.`);
      for (const row of rows) emit({ ...row, note: `${row.note}; ${load}` });
      await attempts.run('inject.tasks-lost', () => emit(lost(system, end, total.read()[0] as number)));
    } finally {
      await producers.close();
    }
  });
  // A relaunch is what an operator's caller waits for, if he waits for the compiler.
  process.env['GPUOS_CUDA_COMPILE'] = 'first';
  for (const row of (await attempts.run('inject.relaunch', relaunchRows)) ?? []) emit(row);
  attempts.finish();
}

const word = (system: System, offset: number): number =>
  Atomics.load(system.device.views().u32, (system.device.queues[LOAD_QUEUE]!.record + offset) >> 2);

/** Tasks of the load that the device has completed: by its own mark, since the queue's other end is in another thread. */
const completed = (system: System): number => word(system, queueRecord.offset.mark);

/**
 * `inject()` of operators that this system does not know, from the call to its return: the expression is parsed, and the tasks
 * that enter it in the table of functions and put it into its slot are in the ring. From the return on a task that names it
 * may be submitted; that it then computes the right thing is checked, and timed by itself. It runs interpreted until its
 * machine code has been read from the cache, checked and copied into the device, which is timed too, and checked again.
 */
async function publish(system: System): Promise<BenchRow[]> {
  const input = system.buffer(Float32Array.from({ length: N }, (_, i) => (i % 100) / 8));
  const output = system.buffer(N);
  const [times, first, compiled]: [number[], number[], number[]] = [[], [], []];
  let interpreted = 0;
  const check = (k: number): void => {
    const values = output.read();
    for (let i = 0; i < N; i++) {
      const right = expected(k, (i % 100) / 8);
      if (!(Math.abs((values[i] as number) - right) <= 1e-5 * Math.max(1, Math.abs(right))))
        throw new GpuosError('GPUOS_BENCH_FAILED', `Operator ${k}, element ${i}: ${values[i]}, not ${right}.`);
    }
  };
  for (let k = 0; k < OPERATORS; k++) {
    await sleep(PAUSE_MS);
    const start = performance.now();
    const operator = inject(system, k);
    const end = performance.now();
    if (compilation(system).compiling > 0) interpreted++;
    const run = (): void => system.submit({ operator, pointers: [input.address, output.address], words: [N] }).doneSync();
    run();
    first.push((performance.now() - start) * 1000);
    times.push((end - start) * 1000);
    while (compilation(system).compiling > 0) await turn();
    compiled.push((performance.now() - start) * 1000);
    check(k);
    const { failed } = compilation(system);
    if (failed !== undefined) throw new GpuosError('GPUOS_BENCH_FAILED', `Operator ${k} stays interpreted: ${failed}`);
    run();
    check(k);
  }
  // A caller who waited for the compiler, or for the cache, would be timed instead.
  if (interpreted < OPERATORS)
    throw new GpuosError('GPUOS_BENCH_FAILED', `Only ${interpreted} of ${OPERATORS} new operators ran interpreted at first.`);
  const note = `${OPERATORS} new operators, their machine code in the cache`;
  return [
    { name: 'inject.publish.p50', value: medianOf(times), unit: 'us', device, note: `inject() until a task may name it; ${note}` },
    { name: 'inject.publish.p99', value: quantile(times, 0.99), unit: 'us', device, note },
    {
      name: 'inject.first-result.p50',
      value: medianOf(first),
      unit: 'us',
      device,
      note: `inject() until its first task, interpreted, is complete; ${note}`,
    },
    {
      name: 'inject.compiled.p50',
      value: medianOf(compiled),
      unit: 'us',
      device,
      note: `inject() until its machine code is in the interpreter's place; ${note}`,
    },
  ];
}

const compilation = (system: System) => (system.device as unknown as CudaDevice).compilation;
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Tensor expressions: the first use in this system, with the machine code in the cache on disk; and the same again. */
async function known(engine: Engine): Promise<BenchRow[]> {
  const [first, again]: [number[], number[]] = [[], []];
  for (const one of expressions(engine)) {
    await sleep(PAUSE_MS);
    first.push(evaluate(engine, one));
    again.push(medianOf(Array.from({ length: AGAIN }, () => evaluate(engine, one))));
  }
  const note = `${EXPRESSIONS} expressions of ${2 * STEPS} operations on ${N} floats, recorded, run and read`;
  return [
    { name: 'inject.cached.p50', value: medianOf(again), unit: 'us', device, note: `${note}; known: used before` },
    {
      name: 'inject.from-disk.p50',
      value: medianOf(first),
      unit: 'us',
      device,
      note: `${note}; their first use, planning included, machine code in the cache on disk`,
    },
  ];
}

/** All that was submitted is complete, has not failed, and has run once, as far as the tasks that count can tell. */
function lost(system: System, end: ProducerEnd, sum: number): BenchRow {
  const missing = (end.tasks - completed(system)) | 0;
  const failures = word(system, queueRecord.offset.failures);
  const uncounted = Math.abs(end.counted - sum);
  const note = `${end.tasks} tasks: ${missing} not complete, ${failures} failed; of ${end.counted} additions each on the one before, ${uncounted} are missing or too many`;
  return { name: 'inject.tasks-lost', value: missing + failures + uncounted, unit: 'tasks', device, note };
}
