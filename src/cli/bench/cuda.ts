/**
 * What the cuda device reaches on a GPU. Each part runs in a process of its own, since a GPU that hangs can only be waited
 * for by somebody else: a part that takes too long is ended, and its device process leaves when it sees that it is alone.
 */
import { fork } from 'node:child_process';
import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { probe } from '../../backends/cuda/probe.ts';
import { GpuosError } from '../../errors.ts';
import { readFlags } from '../../flags.ts';
import { say } from './cuda-common.ts';
import type { BenchRow } from './suite.ts';
import type { SuiteMessage } from './suite-process.ts';

export const about =
  'the cuda device on a GPU: submission, throughput, fused work against PyTorch, injection, the encoder, recovery, idle costs';

/** The parts, modules beside this one, and how long each may take. The first may have to compile the resident kernel. */
const PARTS = [
  ['cuda-submit', 360_000],
  ['cuda-throughput', 60_000],
  ['cuda-elementwise', 240_000],
  ['cuda-inject', 120_000],
  ['cuda-model', 240_000],
  ['cuda-model-wasm', 180_000],
  ['cuda-fault', 120_000],
  ['cuda-idle', 150_000],
] as const;

const EXTENSION = extname(fileURLToPath(import.meta.url));
const PROCESS_FILE = fileURLToPath(new URL(`./suite-process${EXTENSION}`, import.meta.url));

/** @throws GPUOS_CUDA_UNAVAILABLE without a GPU; GPUOS_BENCH_FAILED after the last part if any failed */
export async function run(emit: (row: BenchRow) => void): Promise<void> {
  const { ready, missing, gpus, libraries, cuda } = probe({ cudaHome: readFlags().cudaHome });
  if (!ready) {
    const list = missing.map(({ what, remedy }) => `${what} (${remedy.replace(/\.$/, '')})`).join('; ');
    throw new GpuosError('GPUOS_CUDA_UNAVAILABLE', `The suite cuda needs a GPU; missing: ${list}.`);
  }
  const facts = { gpu: gpus[0]?.name ?? 'unknown', driver: `${libraries.driver.version ?? 'unknown'}, CUDA ${cuda ?? 'unknown'}` };
  const failures: string[] = [];
  for (const [part, limitMs] of PARTS) {
    const start = performance.now();
    const failure = await runPart(part, limitMs, (row) => emit(row.device === 'cuda' ? { ...row, ...facts } : row));
    say(`${part} took ${((performance.now() - start) / 1000).toFixed(1)} s`);
    if (failure === undefined) continue;
    say(`${part} failed: ${failure}`);
    failures.push(`${part}: ${failure}`);
  }
  if (failures.length > 0) throw new GpuosError('GPUOS_BENCH_FAILED', failures.join(' '));
}

/** Runs one part; what went wrong, if anything. */
export async function runPart(part: string, limitMs: number, emit: (row: BenchRow) => void): Promise<string | undefined> {
  return await new Promise((resolve) => {
    // Kernels are warm in what is measured, but where that is how they become so: else one might run interpreted.
    const env = { ...process.env, GPUOS_CUDA_COMPILE: part === 'cuda-inject' ? 'background' : 'first' };
    const child = fork(PROCESS_FILE, [part], { stdio: ['ignore', 2, 2, 'ipc'], env });
    const stop = (): void => void child.kill('SIGKILL');
    process.once('exit', stop);
    let failure: string | undefined;
    let done = false;
    const timer = setTimeout(() => {
      failure ??= `it was ended after ${limitMs / 1000} s.`;
      stop();
    }, limitMs);
    child.on('message', (message: SuiteMessage) => {
      if (message.kind === 'done') done = true;
      else if (message.kind === 'failed') failure ??= message.message;
      else emit(message.row);
    });
    child.on('error', (error) => {
      failure ??= error.message;
    });
    child.on('close', (code, killedBy) => {
      clearTimeout(timer);
      process.off('exit', stop);
      if (!done) failure ??= `its process ended early (${killedBy ?? `exit code ${code}`}).`;
      resolve(failure);
    });
  });
}
