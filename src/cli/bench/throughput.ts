/** How many empty tasks a second one producer gets through, by the ring and by the public call. */
import { GpuosError } from '../../errors.ts';
import { NO_ORDER } from '../../runtime/queue.ts';
import { init, type System } from '../../runtime/system.ts';
import { medianOf } from './statistics.ts';
import type { BenchRow } from './suite.ts';

export const about = 'empty tasks a second through one producer';

const TASKS = 400_000;
const ROUNDS = 9;

export async function run(emit: (row: BenchRow) => void): Promise<void> {
  const system = init();
  const nop = system.operators.builtIn('nop');
  const queue = system.queue(0);
  const pointers: number[] = [];
  const words = [1];
  const ring = rate(system, () => {
    queue.writeInline(nop, 1, pointers, words, NO_ORDER);
  });
  const request = { operator: nop, words };
  const call = rate(system, () => {
    system.submit(request);
  });
  const device = system.device.kind;
  const shares = system.workers().map((worker) => worker.tasks);
  const note = `median of ${ROUNDS} rounds of ${TASKS} tasks, from the first descriptor to the last completion; tasks run by host and workers: ${shares.join(', ')}`;
  emit({ name: 'throughput.one-producer', value: ring, unit: 'Mtasks/s', device, note });
  emit({
    name: 'throughput.submit-call',
    value: call,
    unit: 'Mtasks/s',
    device,
    note: `the same through submit(), whose checks and handle it includes; ${note}`,
  });
  await system.shutdown();
}

function rate(system: System, submit: () => void): number {
  const queue = system.queue(0);
  const rates: number[] = [];
  for (let round = 0; round < ROUNDS + 2; round++) {
    const before = queue.tail;
    const start = performance.now();
    submit();
    system.device.ringDoorbell(1);
    for (let i = 1; i < TASKS; i++) submit();
    queue.waitSync(queue.tail - 1);
    const seconds = (performance.now() - start) / 1000;
    if (queue.tail - before !== TASKS)
      throw new GpuosError('GPUOS_BENCH_FAILED', `${TASKS} tasks were submitted, the queue counts ${queue.tail - before}.`);
    if (round >= 2) rates.push(TASKS / seconds / 1e6);
  }
  return medianOf(rates);
}
