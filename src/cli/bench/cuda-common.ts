/** What the parts of the suite cuda share. */
import { GpuosError } from '../../errors.ts';
import { init, type System, type SystemOptions } from '../../runtime/system.ts';

/** Progress, for whoever watches. */
export function say(text: string): void {
  process.stderr.write(`bench: cuda: ${text}\n`);
}

export const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** What an error says, without the code and the remedy that the end of the suite will add once. */
export function told(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error instanceof GpuosError ? error.message.slice(0, error.message.lastIndexOf(` [${error.code}]`)) : error.message;
}

/** Measurements of which each may fail without taking the next with it. */
export class Attempts {
  readonly #failures: string[] = [];

  /** What `action` gives; undefined if it failed. */
  async run<T>(what: string, action: () => T | Promise<T>): Promise<T | undefined> {
    say(what);
    try {
      return await action();
    } catch (error) {
      const message = told(error);
      say(`${what} failed: ${message}`);
      this.#failures.push(`${what}: ${message}`);
      return undefined;
    }
  }

  /** @throws GPUOS_BENCH_FAILED if any failed */
  finish(): void {
    if (this.#failures.length > 0) throw new GpuosError('GPUOS_BENCH_FAILED', this.#failures.join(' '));
  }
}

/** Runs `body` on a GPU; the device process is gone afterwards, whatever happens. */
export async function withCuda<T>(options: SystemOptions, body: (system: System) => T | Promise<T>): Promise<T> {
  const system = init({ ...options, device: 'cuda' });
  try {
    return await body(system);
  } finally {
    await system.shutdown();
  }
}

/** Waits until all that was submitted to queue 0 is complete. @throws GPUOS_DEVICE_LOST */
export function drain(system: System): void {
  const queue = system.queue(0);
  queue.waitSync(queue.tail - 1);
}

/** Numbers from 0 to 1, the same in every run. */
export function randomFrom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}
