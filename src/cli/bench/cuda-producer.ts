/** A thread that writes descriptors into a queue of its own: see `cuda-ring.ts`. */
import { parentPort, workerData } from 'node:worker_threads';
import { type Order, NO_ORDER, type Queue } from '../../runtime/queue.ts';
import { type ProducerEnd, type ProducerStart, queueAt, SIGNAL } from './cuda-ring.ts';

const { memory, queue: index, signals, times, nop, tasks, counting } = workerData as ProducerStart;
const queue = queueAt(memory, index, 0, () => false);
const stopped = (): boolean => Atomics.load(signals, SIGNAL.stop) !== 0;
let counted = 0;

/** Tasks until told to stop, those that count among them. */
function load(into: Queue, { operator, pointer, every }: NonNullable<ProducerStart['counting']>): void {
  const pointers: number[] = [];
  const words = [1];
  const both = [pointer, pointer];
  let order: Order = NO_ORDER;
  for (let i = 0; ; i++) {
    if (i % every !== 0) {
      into.writeInline(nop, 1, pointers, words, NO_ORDER);
      continue;
    }
    if (stopped()) return;
    const sequence = into.writeInline(operator, 1, both, words, order);
    order = { after: -1, dependencies: [{ queue: index, sequence }] };
    counted++;
  }
}

function fixed(into: Queue): void {
  const pointers: number[] = [];
  const words = [1];
  for (let i = 0; i < tasks; i++) into.writeInline(nop, 1, pointers, words, NO_ORDER);
}

for (let round = 0; ; round++) {
  while (Atomics.load(signals, SIGNAL.go) === round) Atomics.wait(signals, SIGNAL.go, round);
  if (stopped()) break;
  times[0] = process.hrtime.bigint();
  if (counting !== undefined) load(queue, counting);
  else fixed(queue);
  queue.waitSync(queue.tail - 1);
  times[1] = process.hrtime.bigint();
  Atomics.add(signals, SIGNAL.done, 1);
  if (stopped()) break;
}
parentPort?.postMessage({ tasks: queue.tail, counted } satisfies ProducerEnd);
