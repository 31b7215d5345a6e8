/** How long it takes to compute again after the device was lost: its process killed, and a fault of the GPU itself. */
import { readdirSync, readFileSync } from 'node:fs';
import { GpuosError } from '../../errors.ts';
import { NO_ORDER } from '../../runtime/queue.ts';
import { init, type System } from '../../runtime/system.ts';
import { engineOf } from '../../tensor/engine.ts';
import { Attempts, say } from './cuda-common.ts';
import { medianOf } from './statistics.ts';
import type { BenchRow } from './suite.ts';

export const about = 'recovery after the loss of the device, by a killed process and by a fault of the GPU';

const TIMES = 2;
/** Not noticed, or not to be started again, in this time: given up. */
const LIMIT_MS = 20_000;
const BURST = 20_000;
const TASKS_A_TURN = 500;
/** Below every allocation of a device. */
const BAD_POINTER = 4096;

export async function run(emit: (row: BenchRow) => void): Promise<void> {
  const attempts = new Attempts();
  const found: Record<string, number> = {};
  for (const [what, prepare] of [
    ['a killed device process', kill],
    ['a GPU fault', fault],
  ] as const) {
    const worst = await attempts.run(`fault.recovery after ${what}`, async () => {
      const times: number[] = [];
      for (let i = 0; i < TIMES; i++) times.push(await recover(prepare));
      return Math.max(...times);
    });
    if (worst !== undefined) found[what] = worst;
  }
  // One of the two alone is not the worse of the two.
  const all = Object.entries(found);
  if (all.length === 2) {
    const each = all.map(([what, seconds]) => `${what} ${seconds.toFixed(2)} s`).join(', ');
    const note = `worst of ${TIMES} times each: ${each}; under load, from the event until a new init() has given a right result`;
    emit({ name: 'fault.recovery', value: Math.max(...all.map(([, seconds]) => seconds)), unit: 's', device: 'cuda', note });
  }
  attempts.finish();
}

/** Time from the event to the first right result of a new system, in seconds. */
async function recover(prepare: (system: System) => () => void): Promise<number> {
  const system = init({ device: 'cuda' });
  let noticed: number;
  let start: number;
  try {
    checkWorks(system);
    const event = prepare(system);
    const queue = system.queue(0);
    const nop = system.operators.builtIn('nop');
    for (let i = 0; i < BURST; i++) queue.writeInline(nop, 1, [], [1], NO_ORDER);
    start = performance.now();
    event();
    await untilLost(system, start + LIMIT_MS);
    noticed = performance.now();
  } finally {
    await system.shutdown();
  }
  const down = performance.now();
  const next = await restarted(start + LIMIT_MS);
  try {
    const up = performance.now();
    checkWorks(next);
    const end = performance.now();
    const phases = [noticed - start, down - noticed, up - down, end - up].map((ms) => ms.toFixed(0));
    say(`noticed in ${phases[0]} ms, shut down in ${phases[1]} ms, started in ${phases[2]} ms, first result in ${phases[3]} ms`);
    return (end - start) / 1000;
  } finally {
    await next.shutdown();
  }
}

/** Submits as before, until the system says that its device is lost. */
async function untilLost(system: System, until: number): Promise<void> {
  try {
    while (performance.now() < until) {
      let last = system.submit({ operator: 'nop', words: [1] });
      for (let i = 1; i < TASKS_A_TURN; i++) last = system.submit({ operator: 'nop', words: [1] });
      await last.done();
    }
  } catch (error) {
    if (error instanceof GpuosError && error.code === 'GPUOS_DEVICE_LOST') return;
    throw error;
  }
  throw new GpuosError('GPUOS_BENCH_FAILED', `The loss of the device was not noticed within ${LIMIT_MS / 1000} s.`);
}

/** A new system; the GPU may need a moment to get rid of what was there. */
async function restarted(until: number): Promise<System> {
  for (;;) {
    try {
      return init({ device: 'cuda' });
    } catch (error) {
      if (performance.now() > until) throw error;
      say(`cannot start yet: ${(error as Error).message}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

function checkWorks(system: System): void {
  const engine = engineOf(system);
  const [a, b] = [engine.fromHost([1, 2, 3, 4], [4]), engine.fromHost([10, 20, 30, 40], [4])];
  const values = a.add(b).mul(2).dataSync();
  if (medianOf([...values]) !== 66 || values[0] !== 22 || values[3] !== 88)
    throw new GpuosError('GPUOS_BENCH_FAILED', `2 (a + b) is ${[...values].join(', ')}.`);
}

function kill(): () => void {
  const pid = deviceProcess();
  return () => void process.kill(pid, 'SIGKILL');
}

/** A task whose operator reads and writes where there is nothing. `submit()` would refuse it. */
function fault(system: System): () => void {
  const operator = system.inject('map', { inputs: ['x'], expression: 'x + 1' });
  return () => void system.queue(0).writeInline(operator.id, 1, [BAD_POINTER, BAD_POINTER], [1024], NO_ORDER);
}

/** The device's process: the only child that this one has. */
function deviceProcess(): number {
  const children = childrenOf(process.pid);
  if (children.length !== 1) throw new GpuosError('GPUOS_BENCH_FAILED', `There are ${children.length} child processes instead of one.`);
  return children[0] as number;
}

/** Processes that have `parent` as theirs, as /proc tells; those that are dead and not waited for are left out. */
export function childrenOf(parent: number): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        // `pid (name) state parent ...`; the name may hold anything.
        const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
        const [state, above] = text.slice(text.lastIndexOf(')') + 2).split(' ');
        return state !== 'Z' && Number(above) === parent;
      } catch {
        return false;
      }
    });
}
