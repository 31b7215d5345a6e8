/**
 * Queues of a running system that other threads write: each thread maps nothing, it reaches the rings by their address,
 * since it is in the same process. Who does so is the queue's only producer; the system's own object for that queue must
 * stay unused. The public API has no such thing yet: `submit()` belongs to the thread that called `init()`.
 */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import type { Device, MemoryViews, QueueAddresses } from '../../backends/backend.ts';
import { type Address, addressOf, koffi } from '../../backends/cuda/library.ts';
import { GpuosError } from '../../errors.ts';
import { Queue } from '../../runtime/queue.ts';
import type { System } from '../../runtime/system.ts';

/** Where another thread finds the rings. */
export interface RingMemory {
  readonly address: Address;
  readonly bytes: number;
  readonly viewBase: number;
  readonly queues: readonly QueueAddresses[];
}

export function ringMemory(system: System): RingMemory {
  const { u32, bytes } = system.device.views();
  const { viewBase, queues } = system.device;
  return { address: addressOf(u32), bytes, viewBase, queues };
}

/** The producer's end of a queue, as in the thread that has the system. `stopped`: whether waiting is of no use any more. */
export function queueAt(memory: RingMemory, index: number, first: number, stopped: () => boolean): Queue {
  const buffer = koffi().view(memory.address, memory.bytes) as ArrayBuffer;
  const views: MemoryViews = {
    u32: new Uint32Array(buffer),
    i32: new Int32Array(buffer),
    f32: new Float32Array(buffer),
    bytes: memory.bytes,
  };
  const sleeper = new Int32Array(new SharedArrayBuffer(4));
  // What a queue asks of its device; the rest is the business of the thread that has it.
  const device = {
    kind: 'cuda',
    queues: memory.queues,
    viewBase: memory.viewBase,
    workers: 1,
    epoch: 0,
    views: () => views,
    ringDoorbell: () => {},
    parked: () => 0,
    help: () => ({ ran: 0, found: 'nothing' }) as const,
    sleep: () => void Atomics.wait(sleeper, 0, 0, 0.05),
    sleepAsync: async () => {},
    get lost() {
      return stopped() ? 'its producers were stopped' : undefined;
    },
  } as unknown as Device;
  const queue: Queue = new Queue(
    { device, spinUs: 0, closed: false, operatorName: (slot) => `#${slot}`, queue: () => queue },
    index,
    first,
  );
  return queue;
}

/** Words of the memory by which a thread and its producers agree. */
export const SIGNAL = { go: 0, done: 1, stop: 2 } as const;

export interface ProducerStart {
  readonly memory: RingMemory;
  readonly queue: number;
  readonly signals: Int32Array<SharedArrayBuffer>;
  /** When each round began and ended, in ns of one clock for all threads. */
  readonly times: BigInt64Array<SharedArrayBuffer>;
  readonly nop: number;
  /** Tasks a round; 0: as many as go by until it is told to stop, in one round. */
  readonly tasks: number;
  /** A task among every so many that adds 1 to the one before: what they add up to shows that all have run, once. */
  readonly counting?: { readonly operator: number; readonly pointer: number; readonly every: number };
}

/** What a producer says in the end. */
export interface ProducerEnd {
  readonly tasks: number;
  readonly counted: number;
}

function producerFile(): string {
  const beside = new URL('cuda-producer.js', import.meta.url);
  // In tests, where this module is not the built one.
  return fileURLToPath(existsSync(beside) ? beside : new URL('../../../dist/cli/bench/cuda-producer.js', import.meta.url));
}

/** Threads that write descriptors at the same time, each into a queue of its own. */
export class Producers {
  readonly signals = new Int32Array(new SharedArrayBuffer(12));
  readonly times: BigInt64Array<SharedArrayBuffer>;
  readonly #workers: Worker[];
  readonly #ends: Promise<ProducerEnd>[];
  #round = 0;

  constructor(memory: RingMemory, queues: readonly number[], options: Pick<ProducerStart, 'nop' | 'tasks' | 'counting'>) {
    this.times = new BigInt64Array(new SharedArrayBuffer(16 * queues.length));
    this.#workers = queues.map((queue, i) => {
      const times = this.times.subarray(2 * i, 2 * i + 2);
      const start: ProducerStart = { ...options, memory, queue, times, signals: this.signals };
      return new Worker(producerFile(), { workerData: start });
    });
    this.#ends = this.#workers.map(
      (worker) =>
        new Promise<ProducerEnd>((resolve, reject) => {
          worker.once('message', resolve);
          worker.once('error', reject);
          worker.once('exit', () => reject(new GpuosError('GPUOS_BENCH_FAILED', 'A producer ended early.')));
        }),
    );
    for (const end of this.#ends) end.catch(() => {});
  }

  /** Lets all begin a round at once. */
  begin(): void {
    Atomics.store(this.signals, SIGNAL.done, 0);
    Atomics.store(this.signals, SIGNAL.go, ++this.#round);
    Atomics.notify(this.signals, SIGNAL.go);
  }

  /** One round of all; from the first descriptor to the last completion, in seconds. @throws GPUOS_BENCH_FAILED after `limitMs` */
  async round(limitMs: number): Promise<number> {
    this.begin();
    const until = performance.now() + limitMs;
    while (Atomics.load(this.signals, SIGNAL.done) < this.#workers.length) {
      if (performance.now() > until) throw new GpuosError('GPUOS_BENCH_FAILED', `A round took longer than ${limitMs / 1000} s.`);
      // A producer that failed says why.
      await Promise.race([new Promise((resolve) => setTimeout(resolve, 1)), ...this.#ends]);
    }
    let [first, last] = [this.times[0] as bigint, 0n];
    for (let i = 0; i < this.times.length; i += 2) {
      const [from, to] = [this.times[i] as bigint, this.times[i + 1] as bigint];
      if (from < first) first = from;
      if (to > last) last = to;
    }
    return Number(last - first) / 1e9;
  }

  /** No more rounds; an endless one ends. What each has submitted. */
  async finish(limitMs: number): Promise<ProducerEnd[]> {
    Atomics.store(this.signals, SIGNAL.stop, 1);
    this.begin();
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      const text = `Producers did not end within ${limitMs / 1000} s: tasks are not complete.`;
      timer = setTimeout(() => reject(new GpuosError('GPUOS_BENCH_FAILED', text)), limitMs);
    });
    try {
      return await Promise.race([Promise.all(this.#ends), late]);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Ends the threads at once. Before the memory goes. */
  async close(): Promise<void> {
    await Promise.all(this.#workers.map((worker) => worker.terminate()));
  }
}
