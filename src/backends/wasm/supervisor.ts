/**
 * The supervisor thread: starts the workers, and sees their deaths without the host's event loop. A
 * dead worker's tile fails, what it owed is published, and a replacement with the same number starts.
 * It also ends a worker whose tile runs past the task budget.
 */
import { parentPort, Worker, workerData } from 'node:worker_threads';
import { CONTROL_ADDRESS, STATUS, WORKER_STATE } from '../../abi/status.ts';
import { control, workerRecord } from '../../abi/records.ts';
import { builtFile, type ExecutorSource, instantiate } from './instance.ts';
import type { WorkerStart } from './worker.ts';

export interface SupervisorStart extends ExecutorSource {
  readonly workers: number;
  readonly taskBudgetMs: number;
  readonly fault?: SharedArrayBuffer;
  /** Words shared with the host: SUPERVISION below. */
  readonly supervision: SharedArrayBuffer;
}

/** Indices into the supervision words. */
export const SUPERVISION = { LOSSES: 0, LOST: 1, RUNNING: 2 } as const;
/** Requests from the host. */
export type SupervisorRequest = { readonly end: number };

const WATCH_MS = 50;
/** More losses than this within LOSS_WINDOW_MS mean that the device cannot be kept up. */
const LOSS_LIMIT = 100;
const LOSS_WINDOW_MS = 10_000;
/** More than this in a row that died before they entered their loop mean the same, however long a slow machine took over them. */
const START_LIMIT = 10;

if (parentPort !== null && (workerData as SupervisorStart | null)?.supervision !== undefined)
  supervise(parentPort, workerData as SupervisorStart);

function supervise(port: NonNullable<typeof parentPort>, start: SupervisorStart): void {
  const { executor } = instantiate(start);
  const words = new Int32Array(start.memory.buffer);
  const supervision = new Int32Array(start.supervision);
  const records = words[(CONTROL_ADDRESS + control.offset.workerRecords) >> 2] as number;
  const at = (worker: number, field: number): number => (records + worker * workerRecord.size + field) >> 2;
  const quitting = (): boolean => Atomics.load(words, (CONTROL_ADDRESS + control.offset.quit) >> 2) !== 0;
  const threads = new Map<number, Worker>();
  const endings = new Map<number, number>();
  const losses: number[] = [];
  let failedStarts = 0;

  const lose = (reason: string): void => {
    if (Atomics.exchange(supervision, SUPERVISION.LOST, 1) === 0) port.postMessage({ lost: reason });
  };

  const launch = (worker: number): void => {
    const data: WorkerStart = {
      memory: start.memory,
      module: start.module,
      code: start.code,
      kernels: start.kernels,
      worker,
      ...(start.fault === undefined ? {} : { fault: start.fault }),
    };
    const thread = new Worker(builtFile('worker.js'), { workerData: data, execArgv: [] });
    threads.set(worker, thread);
    let failure: unknown;
    thread.on('error', (error) => {
      failure = error;
    });
    thread.on('exit', (code) => {
      threads.delete(worker);
      Atomics.store(supervision, SUPERVISION.RUNNING, threads.size);
      if (quitting()) {
        if (threads.size === 0) finish();
        return;
      }
      const record = at(worker, workerRecord.offset.state);
      // It may have died asleep; then it is still counted among those that the doorbell is for.
      const state = Atomics.exchange(words, record, WORKER_STATE.DEAD);
      if (state === WORKER_STATE.PARKED) Atomics.sub(words, (CONTROL_ADDRESS + control.offset.parked) >> 2, 1);
      failedStarts = state === WORKER_STATE.STARTING ? failedStarts + 1 : 0;
      const status = endings.get(worker) ?? STATUS.WORKER_LOST;
      endings.delete(worker);
      const tiles = executor.recover(worker, status);
      Atomics.store(words, at(worker, workerRecord.offset.busy), 0);
      Atomics.add(supervision, SUPERVISION.LOSSES, 1);
      const now = Date.now();
      losses.push(now);
      while (losses.length > 0 && (losses[0] as number) < now - LOSS_WINDOW_MS) losses.shift();
      port.postMessage({ workerLost: worker, code, tiles, reason: failure instanceof Error ? failure.message : undefined });
      if (losses.length > LOSS_LIMIT || failedStarts > START_LIMIT) {
        const what =
          failedStarts > START_LIMIT
            ? `${failedStarts} workers in a row could not start`
            : `${losses.length} workers died within ${LOSS_WINDOW_MS / 1000} s`;
        lose(`${what}${failure instanceof Error ? `; the last died with: ${failure.message}` : ''}`);
        return;
      }
      Atomics.store(words, record, WORKER_STATE.STARTING);
      launch(worker);
    });
    Atomics.store(supervision, SUPERVISION.RUNNING, threads.size);
  };

  // A tile that stands still: the same number of beats while busy, for longer than the budget.
  const seen = new Map<number, { beats: number; since: number }>();
  const watch = setInterval(() => {
    if (quitting() && threads.size === 0) return finish();
    for (const [worker, thread] of threads) {
      const beats = Atomics.load(words, at(worker, workerRecord.offset.beats));
      const busy = Atomics.load(words, at(worker, workerRecord.offset.busy)) !== 0;
      const before = seen.get(worker);
      if (!busy || before === undefined || before.beats !== beats) {
        seen.set(worker, { beats, since: Date.now() });
      } else if (Date.now() - before.since > start.taskBudgetMs && !endings.has(worker)) {
        endings.set(worker, STATUS.TIMEOUT);
        seen.delete(worker);
        void thread.terminate();
      }
    }
  }, WATCH_MS);

  const finish = (): void => {
    clearInterval(watch);
    port.removeAllListeners('message');
    port.close();
  };

  port.on('message', (request: SupervisorRequest) => {
    void threads.get(request.end)?.terminate();
  });

  for (let worker = 1; worker <= start.workers; worker++) launch(worker);
}
