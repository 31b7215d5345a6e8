/**
 * A hundred element-wise operations (34 add, 33 mul, 33 relu, distinct operands) on small vectors: our
 * tensors fused and one task an operation, and TensorFlow.js on our backend, against TensorFlow.js on
 * its own WebAssembly backend. Recording and the final read are part of every time.
 */
import { GpuosError } from '../../errors.ts';
import { init } from '../../runtime/system.ts';
import { engineOf } from '../../tensor/engine.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { interleave, medianOf } from './statistics.ts';
import type { BenchRow } from './suite.ts';

export const about = '100 element-wise operations on 1K and 16K floats: fused, unfused and through tfjs, against tfjs-wasm';

const OPERATIONS = 100;
const ROUNDS = 25;
const CALLS = 20;
const WARM_UP_CALLS = 400;

type Tf = typeof import('@tensorflow/tfjs-core');

/** The hundred operations, for any library of tensors: add, mul and relu in turn, each on the result of the one before. */
function chain<T>(first: T, others: readonly T[], add: (a: T, b: T) => T, mul: (a: T, b: T) => T, relu: (a: T) => T): T {
  let value = first;
  let next = 0;
  for (let i = 0; i < OPERATIONS; i++) {
    if (i % 3 === 0) value = add(value, others[next++] as T);
    else if (i % 3 === 1) value = mul(value, others[next++] as T);
    else value = relu(value);
  }
  return value;
}

const operands = (n: number): Float32Array[] => {
  let seed = 1;
  // Values around 1, so that a product of 33 factors stays in range.
  const random = (): number => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return seed / 2 ** 32;
  };
  return Array.from({ length: 68 }, () => Float32Array.from({ length: n }, () => random() * 2 - 0.9));
};

export async function run(emit: (row: BenchRow) => void): Promise<void> {
  const tf = (await import('@tensorflow/tfjs-core')) as Tf;
  await import('@tensorflow/tfjs-backend-wasm');
  const select = async (name: string): Promise<void> => {
    await tf.setBackend(name);
    await tf.ready();
    if (tf.getBackend() !== name)
      throw new GpuosError('GPUOS_BASELINE_UNAVAILABLE', `Backend ${name} was asked for, ${tf.getBackend()} is active.`);
  };
  // One system for all: tfjs on our backend takes the one that is running.
  const system = init();
  const device = system.device.kind;
  const engine = engineOf(system);
  for (const [label, n] of [
    ['1k', 1024],
    ['16k', 16_384],
  ] as const) {
    const data = operands(n);
    const ours = data.map((values) => engine.fromHost(values, [n]));
    const runOurs = (): Float32Array => {
      const result = engine.tidy(() =>
        chain<Tensor>(
          ours[0] as Tensor,
          ours.slice(1),
          (a, b) => a.add(b),
          (a, b) => a.mul(b),
          (a) => a.relu(),
        ),
      );
      const values = result.dataSync() as Float32Array;
      result.dispose();
      return values;
    };
    const fused = (): void => {
      system.fused = true;
      runOurs();
    };
    const unfused = (): void => {
      system.fused = false;
      runOurs();
    };

    await select('wasm');
    const theirs = data.map((values) => tf.tensor1d(values));
    const runTf = (tensors: readonly import('@tensorflow/tfjs-core').Tensor[]): Float32Array => {
      const result = tf.tidy(() =>
        chain(
          tensors[0] as import('@tensorflow/tfjs-core').Tensor,
          tensors.slice(1),
          (a, b) => tf.add(a, b),
          (a, b) => tf.mul(a, b),
          (a) => tf.relu(a),
        ),
      );
      const values = result.dataSync() as Float32Array;
      result.dispose();
      return values;
    };
    const wasm = (): void => {
      runTf(theirs);
    };

    const expected = runTf(theirs);
    for (const mode of [true, false]) {
      system.fused = mode;
      check(expected, runOurs(), mode ? 'fused' : 'unfused');
    }
    const before = { ...engine.counters };
    fused();
    const fusedTasks = engine.counters.tasks - before.tasks;
    unfused();
    const unfusedTasks = engine.counters.tasks - before.tasks - fusedTasks;
    for (let i = 0; i < WARM_UP_CALLS; i++) for (const warm of [wasm, fused, unfused]) warm();
    const times = interleave({ wasm, fused, unfused }, ROUNDS, CALLS);
    const baseline = medianOf(times['wasm'] as number[]);
    for (const mode of ['fused', 'unfused'] as const) {
      const value = medianOf(times[mode] as number[]);
      emit({
        name: `elementwise.100ops.${label}.${mode}.vs.tfjs-wasm`,
        value: baseline / value,
        unit: 'ratio',
        device,
        baseline,
        ours: value,
        note: `us a chain, medians of ${ROUNDS * CALLS} interleaved; ${mode === 'fused' ? fusedTasks : unfusedTasks} tasks a chain; dataSync() with the host helping`,
      });
    }
    for (const tensor of ours) tensor.dispose();
    for (const tensor of theirs) tensor.dispose();
    system.fused = true;
    await throughTfjs(tf, label, data, expected, select, runTf, emit);
  }
  await system.shutdown();
}

async function throughTfjs(
  tf: Tf,
  label: string,
  data: readonly Float32Array[],
  expected: Float32Array,
  select: (name: string) => Promise<void>,
  runTf: (tensors: readonly import('@tensorflow/tfjs-core').Tensor[]) => Float32Array,
  emit: (row: BenchRow) => void,
): Promise<void> {
  const gpuos = await import('../../integrations/tfjs/index.ts');
  const times = { wasm: [] as number[], gpuos: [] as number[] };
  const tensors: Record<string, import('@tensorflow/tfjs-core').Tensor[]> = {};
  for (const name of ['wasm', 'gpuos'] as const) {
    await select(name);
    tensors[name] = data.map((values) => tf.tensor1d(values));
    check(expected, runTf(tensors[name]), name);
    for (let i = 0; i < WARM_UP_CALLS; i++) runTf(tensors[name]);
  }
  // tfjs has one active backend at a time, so whole rounds take turns.
  for (let round = 0; round < ROUNDS; round++) {
    for (const name of ['wasm', 'gpuos'] as const) {
      await select(name);
      const own = tensors[name] as import('@tensorflow/tfjs-core').Tensor[];
      times[name].push(...(interleave({ own: () => void runTf(own) }, 1, CALLS)['own'] as number[]));
    }
  }
  const baseline = medianOf(times.wasm);
  const ours = medianOf(times.gpuos);
  emit({
    name: `elementwise.100ops.${label}.via-tfjs.vs.tfjs-wasm`,
    value: baseline / ours,
    unit: 'ratio',
    device: gpuos.device().kind,
    baseline,
    ours,
    note: `us a chain through tfjs-core, medians of ${ROUNDS * CALLS}, backends in turn by rounds of ${CALLS}`,
  });
  for (const list of Object.values(tensors)) for (const tensor of list) tensor.dispose();
}

function check(expected: Float32Array, actual: Float32Array, what: string): void {
  for (let i = 0; i < expected.length; i++) {
    const [a, b] = [expected[i] as number, actual[i] as number];
    if (!(Math.abs(a - b) <= 1e-5 * Math.max(1, Math.abs(a))))
      throw new GpuosError('GPUOS_BENCH_FAILED', `${what}: element ${i} is ${b}, not ${a}.`);
  }
}
