/** What a resident kernel without work costs: power, and the time of others on the same GPU. */
import { DeviceProcess } from '../../backends/cuda/process/device-process.ts';
import { SharedSegment } from '../../backends/cuda/process/segment.ts';
import { Nvml } from '../../backends/cuda/nvml.ts';
import { probe } from '../../backends/cuda/probe.ts';
import { GpuosError } from '../../errors.ts';
import { readFlags } from '../../flags.ts';
import type { System } from '../../runtime/system.ts';
import { Attempts, drain, say, sleep, withCuda } from './cuda-common.ts';
import { Baseline } from './cuda-python.ts';
import { medianOf } from './statistics.ts';
import type { BenchRow } from './suite.ts';

export const about = 'power of a kernel that waits, and what it takes from a matrix product beside it';

const POWER_ROUNDS = 3;
const POWER_S = 3;
const SETTLE_MS = 1500;
const LOOK_MS = 2;
const SEGMENT_BYTES = 1 << 20;

const MATMUL_N = 4096;
const MATMUL_ROUNDS = 3;
const MATMUL_S = 0.5;
const LIMIT_MS = 30_000;

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

async function coexist(emit: (row: BenchRow) => void): Promise<void> {
  const torch = await Baseline.start();
  try {
    const product = async (): Promise<number> =>
      Number((await torch.ask({ do: 'matmul', n: MATMUL_N, seconds: MATMUL_S }, LIMIT_MS))['us']);
    await product();
    const [alone, beside]: [number[], number[]] = [[], []];
    for (let round = 0; round < MATMUL_ROUNDS; round++) {
      alone.push(await product());
      await withCuda({}, async (system) => {
        await settle(system);
        beside.push(await product());
      });
      say(`matmul: alone ${alone.at(-1)?.toFixed(1)} us, beside ${beside.at(-1)?.toFixed(1)} us`);
    }
    const [baseline, ours] = [medianOf(alone), medianOf(beside)];
    const note = `${MATMUL_N}-square float16 product by PyTorch ${torch.version} in a process of its own: alone (baseline) and beside our resident kernel without work (ours), us, medians of ${MATMUL_ROUNDS} rounds in turn`;
    emit({ name: 'coexist.matmul.slowdown', value: ours / baseline - 1, unit: 'fraction', device, baseline, ours, note });
  } finally {
    await torch.stop();
  }
}
