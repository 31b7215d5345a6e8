/** What it costs to hand over a task: writing its descriptor, and the way there and back. */
import { init } from '../../runtime/system.ts';
import { NO_ORDER } from '../../runtime/queue.ts';
import { medianOf, quantile } from './statistics.ts';
import type { BenchRow } from './suite.ts';

export const about = 'writing a descriptor; round trip of an empty task through a worker';

const WRITES = 2048;
const BATCHES = 400;
const TRIPS = 60_000;
const WARM_UP = 20_000;

export async function run(emit: (row: BenchRow) => void): Promise<void> {
  await descriptor(emit);
  await roundTrip(emit);
}

async function descriptor(emit: (row: BenchRow) => void): Promise<void> {
  const system = init({ ring: 4096 });
  const queue = system.queue(0);
  const nop = system.operators.builtIn('nop');
  const pointers: number[] = [];
  const words = [1];
  const times: number[] = [];
  for (let batch = 0; batch < BATCHES; batch++) {
    const start = performance.now();
    for (let i = 0; i < WRITES; i++) queue.writeInline(nop, 1, pointers, words, NO_ORDER);
    const ns = ((performance.now() - start) * 1e6) / WRITES;
    if (batch >= BATCHES / 4) times.push(ns);
    queue.waitSync(queue.tail - 1);
  }
  emit({
    name: 'submit.descriptor',
    value: medianOf(times),
    unit: 'ns',
    device: system.device.kind,
    note: `median of ${times.length} batches of ${WRITES} descriptors of an empty task, tags included; the ring is emptied between batches`,
  });
  await system.shutdown();
}

async function roundTrip(emit: (row: BenchRow) => void): Promise<void> {
  // The worker does not go to sleep here, and the host does not help: what is timed is the way through another core.
  const system = init({ workers: 1, workerSpinUs: 1_000_000 });
  const queue = system.queue(0);
  const nop = system.operators.builtIn('nop');
  const pointers: number[] = [];
  const words = [1];
  await system.submit({ operator: 'nop', words: [1] }).done();
  system.device.ringDoorbell(1);
  const times: number[] = [];
  for (let i = 0; i < TRIPS + WARM_UP; i++) {
    const start = performance.now();
    const sequence = queue.writeInline(nop, 1, pointers, words, NO_ORDER);
    if (i === 0) system.device.ringDoorbell(1);
    while (!queue.isComplete(sequence));
    if (i >= WARM_UP) times.push((performance.now() - start) * 1000);
  }
  const device = system.device.kind;
  const byWorker = system.workers()[1]?.tasks ?? 0;
  const note = `${times.length} round trips, two reads of the clock included; ${byWorker} tasks of ${TRIPS + WARM_UP} were run by the worker, none by a helping host`;
  emit({ name: 'submit.roundtrip.p50', value: medianOf(times), unit: 'us', device, note });
  emit({ name: 'submit.roundtrip.p99', value: quantile(times, 0.99), unit: 'us', device, note });
  await system.shutdown();
}
