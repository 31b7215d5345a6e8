/** Runs the built `gpuos` command as a user would: a process of its own, with a cache of its own. */
import { spawn, type ChildProcess } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

export const COMMAND = fileURLToPath(new URL('../dist/cli/index.js', import.meta.url));

export interface Finished {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface Options {
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  /** What the command reads; without it, nothing. */
  readonly stdin?: string;
  /** A file that stdout goes to, rather than a pipe. */
  readonly stdout?: string;
  /** Called with everything that stderr has had so far, each time there is more. */
  readonly onStderr?: (text: string, child: ChildProcess) => void;
}

/** The environment without any flag of ours, so that the caller's do not reach the test. */
function cleanEnvironment(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('GPUOS_') && name !== 'NODE_OPTIONS'));
}

export async function gpuos(args: readonly string[], options: Options = {}): Promise<Finished> {
  return await new Promise((resolve, reject) => {
    const file = options.stdout === undefined ? undefined : openSync(options.stdout, 'w');
    const child = spawn(process.execPath, [COMMAND, ...args], {
      env: { ...cleanEnvironment(), ...options.env },
      ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
      stdio: [options.stdin === undefined ? 'ignore' : 'pipe', file ?? 'pipe', 'pipe'],
      // A command that hangs must not outlive its test.
      timeout: 58_000,
      killSignal: 'SIGKILL',
    });
    let stdout = '';
    let stderr = '';
    if (file !== undefined) closeSync(file);
    child.stdin?.on('error', () => {}).end(options.stdin);
    child.stdout?.setEncoding('utf8').on('data', (chunk: string) => {
      stdout += chunk;
    });
    child.stderr?.setEncoding('utf8').on('data', (chunk: string) => {
      stderr += chunk;
      options.onStderr?.(stderr, child);
    });
    child.on('error', reject);
    child.on('close', (code, signal) => resolve({ code, signal, stdout, stderr }));
  });
}

export function lastLine(text: string): string {
  return text.trimEnd().split('\n').at(-1) ?? '';
}
