/** A resident worker: enters the executor's loop and stays there. */
import { workerData } from 'node:worker_threads';
import { CONTROL_ADDRESS, STATUS, WORKER_STATE } from '../../abi/status.ts';
import { control, workerRecord } from '../../abi/records.ts';
import { type ExecutorSource, instantiate } from './instance.ts';

export interface WorkerStart extends ExecutorSource {
  readonly worker: number;
  /** For tests: the point at which this thread is to die, and how many passes before. */
  readonly fault?: SharedArrayBuffer;
}

const QUIT = 1;
const start = workerData as WorkerStart;

/** For tests: {point, passes left}. The thread ends inside the call, as a crash would end it. */
function faultPoint(point: number): void {
  if (start.fault === undefined) return;
  const plan = new Int32Array(start.fault);
  if (Atomics.load(plan, 0) !== point) return;
  if (Atomics.sub(plan, 1, 1) !== 1) return;
  Atomics.store(plan, 0, 0);
  process.exit(70);
}

const { executor } = instantiate(start, faultPoint);
const words = new Int32Array(start.memory.buffer);
const record =
  (new Uint32Array(start.memory.buffer)[(CONTROL_ADDRESS + control.offset.workerRecords) >> 2] as number) +
  start.worker * workerRecord.size;
const setState = (state: number): void => {
  Atomics.store(words, (record + workerRecord.offset.state) >> 2, state);
};

for (;;) {
  try {
    if (executor.run(start.worker) === QUIT) break;
    // Yielded: the thread gives its core away once and serves its event loop.
    setState(WORKER_STATE.YIELDED);
    await new Promise((resolve) => setImmediate(resolve));
  } catch (error) {
    // A trap unwinds out of the loop. The tile that was running fails; the worker goes on.
    if (executor.failTile(start.worker, STATUS.TRAPPED) === 0) throw error;
  }
}
setState(WORKER_STATE.LEFT);
