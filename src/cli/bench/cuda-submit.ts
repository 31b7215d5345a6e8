/** What it costs to hand a task to a GPU: writing its descriptor, the way there and back, and that way after a pause. */
import { NO_ORDER } from '../../runtime/queue.ts';
import type { System } from '../../runtime/system.ts';
import { Attempts, say, withCuda } from './cuda-common.ts';
import { medianOf, quantile } from './statistics.ts';
import type { BenchRow } from './suite.ts';

export const about = 'writing a descriptor; round trip of an empty task, at once and after a pause';

const WRITES = 2048;
const BATCHES = 400;
const TRIPS = 60_000;
const WARM_UP = 20_000;
const PAUSE_MS = 20;
const PAUSES = 250;

const device = 'cuda';
const pointers: number[] = [];
const words = [1];

export async function run(emit: (row: BenchRow) => void): Promise<void> {
  const attempts = new Attempts();
  await withCuda({ ring: 4096 }, async (system) => {
    say(system.device.name);
    await attempts.run('submit.descriptor', () => descriptor(system, emit));
    await attempts.run('submit.roundtrip', () => roundTrip(system, emit));
    await attempts.run('submit.wake-up', () => wakeUp(system, emit));
  });
  attempts.finish();
}

function descriptor(system: System, emit: (row: BenchRow) => void): void {
  const queue = system.queue(0);
  const nop = system.operators.builtIn('nop');
  const times: number[] = [];
  for (let batch = 0; batch < BATCHES; batch++) {
    const start = performance.now();
    for (let i = 0; i < WRITES; i++) queue.writeInline(nop, 1, pointers, words, NO_ORDER);
    const ns = ((performance.now() - start) * 1e6) / WRITES;
    if (batch >= BATCHES / 4) times.push(ns);
    queue.waitSync(queue.tail - 1);
  }
  const note = `median of ${times.length} batches of ${WRITES} descriptors of an empty task, tags included; the ring is emptied between batches`;
  emit({ name: 'submit.descriptor', value: medianOf(times), unit: 'ns', device, note });
}

/** Time of one empty task, from before its descriptor is written until its completion is seen, in us. */
function trip(system: System, nop: number, wake = false): number {
  const queue = system.queue(0);
  const start = performance.now();
  const sequence = queue.writeInline(nop, 1, pointers, words, NO_ORDER);
  if (wake) system.device.ringDoorbell(1);
  while (!queue.isComplete(sequence));
  return (performance.now() - start) * 1000;
}

function roundTrip(system: System, emit: (row: BenchRow) => void): void {
  const nop = system.operators.builtIn('nop');
  const times: number[] = [];
  for (let i = 0; i < TRIPS + WARM_UP; i++) {
    const us = trip(system, nop);
    if (i >= WARM_UP) times.push(us);
  }
  const note = `${times.length} round trips one after another, two reads of the clock included`;
  emit({ name: 'submit.roundtrip.p50', value: medianOf(times), unit: 'us', device, note });
  emit({ name: 'submit.roundtrip.p99', value: quantile(times, 0.99), unit: 'us', device, note });
}

function wakeUp(system: System, emit: (row: BenchRow) => void): void {
  const nop = system.operators.builtIn('nop');
  const sleeper = new Int32Array(new SharedArrayBuffer(4));
  const times: number[] = [];
  for (let i = 0; i < PAUSES; i++) {
    Atomics.wait(sleeper, 0, 0, PAUSE_MS);
    times.push(trip(system, nop, true));
  }
  const note = `${PAUSES} round trips, each after ${PAUSE_MS} ms in which nothing was submitted and the host slept too`;
  emit({ name: 'submit.wake-up.p50', value: medianOf(times), unit: 'us', device, note });
  emit({ name: 'submit.wake-up.p99', value: quantile(times, 0.99), unit: 'us', device, note });
}
