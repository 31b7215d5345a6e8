/** How many empty tasks a second a GPU gets through: from one producer, and from eight threads with a queue each. */
import { GpuosError } from '../../errors.ts';
import { NO_ORDER } from '../../runtime/queue.ts';
import { Attempts, withCuda } from './cuda-common.ts';
import { Producers, ringMemory } from './cuda-ring.ts';
import { medianOf } from './statistics.ts';
import type { BenchRow } from './suite.ts';

export const about = 'empty tasks a second, from one producer and from eight';

const TASKS = 1_000_000;
const ROUNDS = 9;
const WARM_UP_ROUNDS = 2;
const PRODUCERS = 8;
const TASKS_EACH = 500_000;
const ROUND_LIMIT_MS = 10_000;

export async function run(emit: (row: BenchRow) => void): Promise<void> {
  const attempts = new Attempts();
  await attempts.run('throughput.one-producer', () => oneProducer(emit));
  await attempts.run('throughput.eight-producers', () => eightProducers(emit));
  attempts.finish();
}

async function oneProducer(emit: (row: BenchRow) => void): Promise<void> {
  const rates = await withCuda({}, (system) => {
    const queue = system.queue(0);
    const nop = system.operators.builtIn('nop');
    const pointers: number[] = [];
    const words = [1];
    return Array.from({ length: ROUNDS + WARM_UP_ROUNDS }, () => {
      const before = queue.tail;
      const start = performance.now();
      for (let i = 0; i < TASKS; i++) queue.writeInline(nop, 1, pointers, words, NO_ORDER);
      queue.waitSync(queue.tail - 1);
      const seconds = (performance.now() - start) / 1000;
      if (queue.tail - before !== TASKS || queue.hasFailures)
        throw new GpuosError('GPUOS_BENCH_FAILED', `Of ${TASKS} tasks not all were counted as complete and well.`);
      return TASKS / seconds / 1e6;
    }).slice(WARM_UP_ROUNDS);
  });
  const note = `median of ${ROUNDS} rounds of ${TASKS} tasks, from the first descriptor to the last completion`;
  emit({ name: 'throughput.one-producer', value: medianOf(rates), unit: 'Mtasks/s', device: 'cuda', note });
}

async function eightProducers(emit: (row: BenchRow) => void): Promise<void> {
  const rates = await withCuda({ queues: PRODUCERS }, async (system) => {
    const nop = system.operators.builtIn('nop');
    const queues = Array.from({ length: PRODUCERS }, (_, i) => i);
    const producers = new Producers(ringMemory(system), queues, { nop, tasks: TASKS_EACH });
    try {
      const found: number[] = [];
      for (let round = 0; round < ROUNDS + WARM_UP_ROUNDS; round++) {
        const seconds = await producers.round(ROUND_LIMIT_MS);
        if (round >= WARM_UP_ROUNDS) found.push((PRODUCERS * TASKS_EACH) / seconds / 1e6);
      }
      await producers.finish(ROUND_LIMIT_MS);
      return found;
    } finally {
      await producers.close();
    }
  });
  const note = `median of ${ROUNDS} rounds; ${PRODUCERS} threads, each with the runtime's queue over a ring of its own and ${TASKS_EACH} tasks, from the first descriptor to the last completion of all`;
  emit({ name: 'throughput.eight-producers', value: medianOf(rates), unit: 'Mtasks/s', device: 'cuda', note });
}
