/** What a resident kernel without work costs: power, and the time of others on the same GPU. */
import type { CudaDevice } from '../../backends/cuda/device.ts';
import { DeviceProcess } from '../../backends/cuda/process/device-process.ts';
import type { MeasuredProduct } from '../../backends/cuda/process/requests.ts';
import { SharedSegment } from '../../backends/cuda/process/segment.ts';
import { Nvml } from '../../backends/cuda/nvml.ts';
import { probe } from '../../backends/cuda/probe.ts';
import { GpuosError } from '../../errors.ts';
import { readFlags } from '../../flags.ts';
import type { DType } from '../../ops/dtype.ts';
import type { System } from '../../runtime/system.ts';
import { type Engine, engineOf } from '../../tensor/engine.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { Attempts, drain, randomFrom, say, sleep, withCuda } from './cuda-common.ts';
import { medianOf } from './statistics.ts';
import type { BenchRow } from './suite.ts';

export const about = 'power of a kernel that waits, and what it takes from a matrix product beside it';

const POWER_ROUNDS = 3;
const POWER_S = 3;
const SETTLE_MS = 1500;
const LOOK_MS = 2;
const SEGMENT_BYTES = 1 << 20;

const MATMUL_N = 4096;
const MATMUL_ROUNDS = 5;
const MATMUL_CHAIN = 10;

const device = 'cuda';

export async function run(emit: (row: BenchRow) => void): Promise<void> {
  const attempts = new Attempts();
  await attempts.run('energy.idle', () => energy(emit));
  await attempts.run('coexist.matmul', () => coexist(emit));
  attempts.finish();
}

/** Has had work, and has none now. */
async function settle(system: System): Promise<void> {
  for (let i = 0; i < 1000; i++) system.submit({ operator: 'nop', words: [1] });
  drain(system);
  await sleep(SETTLE_MS);
}

/** Mean power of the GPU over some seconds, in W. */
async function meanWatts(read: () => number): Promise<number> {
  // The counter moves in steps: from one step to another.
  const step = async (): Promise<[joules: number, ms: number]> => {
    const first = read();
    for (let now = read(); ; now = read()) {
      if (now !== first) return [now / 1000, performance.now()];
      await sleep(LOOK_MS);
    }
  };
  const [before, from] = await step();
  await sleep(POWER_S * 1000);
  const [after, to] = await step();
  return ((after - before) * 1000) / (to - from);
}

async function energy(emit: (row: BenchRow) => void): Promise<void> {
  const { cudaHome } = readFlags();
  const nvml = new Nvml();
  try {
    const gpu = probe({ cudaHome }).gpus[0];
    if (gpu === undefined) throw new GpuosError('GPUOS_CUDA_UNAVAILABLE', 'There is no GPU.');
    const handle = nvml.deviceCount() === 1 ? nvml.device(0) : nvml.device(gpu.pciBusId);
    const read = (): number => {
      const { energyMillijoules } = nvml.state(handle);
      if (energyMillijoules === undefined)
        throw new GpuosError('GPUOS_BENCH_FAILED', 'The GPU does not tell the energy that it has taken.');
      return energyMillijoules;
    };
    const [idle, resident]: [number[], number[]] = [[], []];
    for (let round = 0; round < POWER_ROUNDS; round++) {
      // The same process with the same context, but no kernel.
      const segment = SharedSegment.create(SEGMENT_BYTES);
      try {
        const alone = DeviceProcess.start({ segment, cudaHome });
        try {
          await sleep(SETTLE_MS);
          idle.push(await meanWatts(read));
        } finally {
          await alone.stop();
        }
      } finally {
        segment.close();
      }
      await withCuda({}, async (system) => {
        await settle(system);
        resident.push(await meanWatts(read));
      });
      say(`energy: context ${idle.at(-1)?.toFixed(1)} W, with the kernel ${resident.at(-1)?.toFixed(1)} W`);
    }
    const [without, beside] = [medianOf(idle), medianOf(resident)];
    const note = `${beside.toFixed(1)} W with a resident kernel that has no work, ${without.toFixed(1)} W with a context alone; medians of ${POWER_ROUNDS} times ${POWER_S} s in turn, by NVML's energy counter`;
    emit({ name: 'energy.idle.extra', value: beside - without, unit: 'W', device, note });
  } finally {
    nvml.close();
  }
}

/**
 * What a large product takes as a task of ours, one upon another as in a model, by the host's clock; and what it takes of
 * cuBLAS on the device alone, in the device process (launches of another process are given slices of time).
 */
async function coexist(emit: (row: BenchRow) => void): Promise<void> {
  await withCuda({ memoryMib: 1024 }, async (system) => {
    await settle(system);
    const { ordinary } = system.device as CudaDevice;
    const { library = 'cuBLAS', unavailable } = ordinary?.state ?? { unavailable: 'GPUOS_CUDA_CUBLAS is off' };
    if (ordinary === undefined || unavailable !== undefined)
      throw new GpuosError('GPUOS_BENCH_FAILED', `No products are done beside the kernel: ${unavailable}.`);
    const dtypes = ['float16', 'float32'] as const;
    const measured: readonly Slowdown[] = dtypes.map((dtype) => slowdown(dtype, ordinary.measure(dtype, MATMUL_N, MATMUL_ROUNDS)));
    const chains = new Map<DType, number>();
    for (const dtype of dtypes) chains.set(dtype, await chainOfProducts(engineOf(system), dtype));
    const told = dtypes.map((dtype, i) => {
      const { alone } = measured[i] as Slowdown;
      const ours = chains.get(dtype) as number;
      return `${dtype}: ${ours.toFixed(1)} us a product of ours, ${alone.toFixed(1)} us alone`;
    });
    // Of float32, which takes longer, so that what is fixed shows less, in the note.
    const { alone, beside, value } = measured[0] as Slowdown;
    const ours = chains.get('float16') as number;
    const about = `${MATMUL_N}-square products by ${library}`;
    const baseline =
      "alone (baseline: the faster of the library's first choice and the way that is used beside the kernel, on the device's clock)";
    emit({
      ...{ name: 'coexist.matmul.slowdown', value: ours / alone - 1, unit: 'fraction', device, baseline: alone, ours },
      note: `${about}: ${baseline}, and as tasks, ${MATMUL_CHAIN} that each multiply the result of the one before, until the last is complete, by the host's clock (ours), us, medians of ${MATMUL_ROUNDS} rounds. ${told.join('; ')}`,
    });
    emit({
      ...{ name: 'coexist.matmul.beside', value, unit: 'fraction', device, baseline: alone, ours: beside },
      note: `${about} on a side stream beside our resident kernel without work (ours), and ${baseline}, us, medians of ${MATMUL_ROUNDS} rounds in turn. ${dtypes.map((dtype, i) => `${dtype}: ${measured[i]?.text}`).join('; ')}`,
    });
  });
}

/** us a product. Values stay between 1 and 2, as other numbers cost the device other times. */
async function chainOfProducts(engine: Engine, dtype: DType): Promise<number> {
  const random = randomFrom(7);
  const values = (scale: number): Float32Array => Float32Array.from({ length: MATMUL_N * MATMUL_N }, () => (1 + random()) * scale);
  const x = engine.fromHost(values(1), [MATMUL_N, MATMUL_N], dtype);
  // Columns that sum to one keep the mean.
  const w = engine.fromHost(values(1 / (1.5 * MATMUL_N)), [MATMUL_N, MATMUL_N], dtype);
  await engine.sync();
  const times: number[] = [];
  for (let round = -1; round < MATMUL_ROUNDS; round++) {
    await sleep(50);
    const from = performance.now();
    let last = x;
    for (let i = 0; i < MATMUL_CHAIN; i++) {
      const [next] = engine.apply('matmul', [last, w]) as [Tensor];
      if (last !== x) last.dispose();
      last = next;
    }
    engine.flush(last);
    await engine.sync();
    const us = ((performance.now() - from) * 1000) / MATMUL_CHAIN;
    const [value] = await last.slice([0, 0], [1, 1]).data();
    last.dispose();
    if (!(Number(value) > 0.5 && Number(value) < 3))
      throw new GpuosError('GPUOS_BENCH_FAILED', `A product of ${dtype} is wrong: ${value}.`);
    if (round >= 0) times.push(us);
  }
  x.dispose();
  w.dispose();
  return medianOf(times);
}

interface Slowdown {
  readonly value: number;
  readonly alone: number;
  readonly beside: number;
  readonly text: string;
}

/** Against the fastest that the library does with the whole device, whether or not that runs beside the kernel. */
export function slowdown(dtype: string, { beside, without, fastest }: MeasuredProduct): Slowdown {
  const [ours, same, best] = [beside, without, fastest].map(medianOf) as [number, number, number];
  const alone = Math.min(same, best);
  const text = `${ours.toFixed(1)} us beside, ${same.toFixed(1)} us alone in the same way, ${best.toFixed(1)} us alone in the library's`;
  say(`matmul ${dtype}: ${text}`);
  return { value: ours / alone - 1, alone, beside: ours, text };
}
