/**
 * `gpuos bench`: runs suites one after another, each in a process of its own, so that none warms or disturbs another.
 * A suite that fails costs only its own remaining rows.
 */
import { fork } from 'node:child_process';
import { appendFileSync, constants } from 'node:fs';
import { cpus } from 'node:os';
import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { GpuosError } from '../../errors.ts';
import { type Interrupt, listenForInterrupt } from '../interrupt.ts';
import { print } from '../output.ts';
import { table } from '../terminal.ts';
import { commitName } from '../version.ts';
import { type BenchRow, type BenchSuite, rowProblem, SUITES, type SuiteName } from './suite.ts';
import type { SuiteMessage } from './suite-process.ts';

export interface BenchOptions {
  readonly suites: readonly SuiteName[];
  /** One JSON object a line and nothing else on stdout. */
  readonly json: boolean;
  /** A file to which the rows are appended, one JSON object a line. */
  readonly out?: string | undefined;
}

/** A row as it is printed: with what is needed to measure it again. */
export type DatedRow = BenchRow & {
  readonly suite: string;
  readonly commit: string;
  readonly date: string;
  readonly node: string;
  readonly cpu: string;
  readonly cores: number;
};

const EXTENSION = extname(fileURLToPath(import.meta.url));
const PROCESS_FILE = fileURLToPath(new URL(`./suite-process${EXTENSION}`, import.meta.url));

/** The suites and what they say of themselves. */
export async function describeSuites(): Promise<[SuiteName, string][]> {
  return await Promise.all(
    SUITES.map(async (name): Promise<[SuiteName, string]> => {
      try {
        const { about } = (await import(new URL(`./${name}${EXTENSION}`, import.meta.url).href)) as BenchSuite;
        return [name, about];
      } catch (error) {
        return [name, `cannot be loaded: ${(error as Error).message.split('\n')[0]}`];
      }
    }),
  );
}

function formatValue(value: number): string {
  return Math.abs(value) >= 1000 || Number.isInteger(value) ? value.toFixed(0) : String(Number(value.toPrecision(4)));
}

/** Runs the suites; the exit code. Throws GPUOS_BENCH_FAILED after the last one if any failed, GPUOS_OUTPUT_UNWRITABLE. */
export async function runBench(options: BenchOptions): Promise<number> {
  const interrupt = listenForInterrupt();
  try {
    return await runSuites(options, interrupt);
  } finally {
    interrupt.release();
  }
}

async function runSuites(options: BenchOptions, interrupt: Interrupt): Promise<number> {
  if (options.out !== undefined) append(options.out, '');
  const rows: DatedRow[] = [];
  const failures: string[] = [];
  const facts = { commit: commitName(), node: process.version, cpu: cpus()[0]?.model.trim() ?? 'unknown', cores: cpus().length };
  for (const suite of options.suites) {
    if (interrupt.signal.aborted) break;
    process.stderr.write(`bench: ${suite}\n`);
    const failure = await runSuite(suite, interrupt.signal, (row) => {
      const dated: DatedRow = { ...row, suite, date: new Date().toISOString(), ...facts };
      const line = `${JSON.stringify(dated)}\n`;
      rows.push(dated);
      if (options.json) print(line);
      if (options.out !== undefined) append(options.out, line);
    });
    if (failure !== undefined && !interrupt.signal.aborted) {
      failures.push(suite);
      process.stderr.write(`error: suite ${suite}: ${failure}\n`);
    }
  }
  if (!options.json && rows.length > 0) {
    const cells = rows.map((row) => [
      row.name,
      formatValue(row.value),
      row.unit,
      row.device,
      row.baseline === undefined ? '' : formatValue(row.baseline),
      row.ours === undefined ? '' : formatValue(row.ours),
    ]);
    print(`${table(['name', 'value', 'unit', 'device', 'baseline', 'ours'], cells, [1, 4, 5])}\n`);
  }
  if (failures.length > 0) {
    throw new GpuosError('GPUOS_BENCH_FAILED', `${failures.length} of ${options.suites.length} suites failed: ${failures.join(', ')}.`);
  }
  return interrupt.exitCode ?? 0;
}

/** As `a`, but a named pipe that nobody reads is an error: to wait for a reader would hold up everything, Ctrl-C included. */
const APPEND = constants.O_APPEND | constants.O_CREAT | constants.O_WRONLY | (constants.O_NONBLOCK ?? 0);

function append(file: string, text: string): void {
  if (file === '') throw new GpuosError('GPUOS_OUTPUT_UNWRITABLE', '--out needs the name of a file.');
  try {
    // Its type has no numbers, its documentation has: they are what the names stand for.
    appendFileSync(file, text, { flag: APPEND as unknown as string });
  } catch (cause) {
    const { code, message } = cause as NodeJS.ErrnoException;
    const why = code === 'ENXIO' ? 'nobody reads from it' : message;
    throw new GpuosError('GPUOS_OUTPUT_UNWRITABLE', `cannot write ${file}: ${why}.`, { cause });
  }
}

/** Runs one suite; what went wrong, if anything. Throws what `onRow` throws, once the suite's process has ended. */
async function runSuite(name: SuiteName, signal: AbortSignal, onRow: (row: BenchRow) => void): Promise<string | undefined> {
  return await new Promise((resolve, reject) => {
    // Collection on demand is for the memory rows. A suite's own output must not get between the rows on stdout.
    const child = fork(PROCESS_FILE, [name], { execArgv: ['--expose-gc'], stdio: ['ignore', 2, 2, 'ipc'] });
    const stop = () => child.kill('SIGKILL');
    signal.addEventListener('abort', stop, { once: true });
    let failure: string | undefined;
    let done = false;
    let thrown: unknown;
    child.on('message', (message: SuiteMessage) => {
      if (message.kind === 'done') done = true;
      else if (message.kind === 'failed') failure ??= message.message;
      else {
        const problem = rowProblem(message.row);
        if (problem !== undefined) failure ??= `the row ${String(message.row.name)} is refused: ${problem}`;
        else if (thrown === undefined) {
          try {
            onRow(message.row);
          } catch (error) {
            // A row that cannot be written: what would still be measured is lost as well.
            thrown = error;
            stop();
          }
        }
      }
    });
    child.on('error', (error) => {
      failure ??= error.message;
    });
    child.on('close', (code, killedBy) => {
      signal.removeEventListener('abort', stop);
      if (!done) failure ??= `its process ended early (${killedBy ?? `exit code ${code}`})`;
      if (thrown !== undefined) reject(thrown);
      else resolve(failure);
    });
  });
}
