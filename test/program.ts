/** Programs in processes of their own, in which `gpuos` is this package as it was built. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('..', import.meta.url));

export interface ProgramResult {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
  /** The last line of stdout, if it is a JSON object. */
  // biome-ignore lint/suspicious/noExplicitAny: whatever the program reports
  readonly json: any;
}

/** Runs a module with one worker and no flags of gpuos but those given. The package must have been built. */
export function program(source: string, env: Readonly<Record<string, string>> = {}): ProgramResult {
  if (!existsSync(join(ROOT, 'dist/index.js'))) throw new Error('run `node scripts/build.mjs` first');
  // Inside the package, so that its own name and its dependencies are found.
  mkdirSync(join(ROOT, '.gpuos'), { recursive: true });
  const folder = mkdtempSync(join(ROOT, '.gpuos/program-'));
  try {
    const file = join(folder, 'program.mjs');
    writeFileSync(file, source);
    const clean = Object.fromEntries(
      Object.entries(process.env).filter(([name]) => !name.startsWith('GPUOS_') && !name.startsWith('VITEST') && name !== 'NODE_OPTIONS'),
    );
    const { status, stdout, stderr } = spawnSync(process.execPath, [file], {
      cwd: ROOT,
      env: { ...clean, GPUOS_WORKERS: '1', ...env },
      encoding: 'utf8',
      timeout: 50_000,
      maxBuffer: 2 ** 26,
    });
    const last = stdout.trim().split('\n').pop() ?? '';
    return { status, stdout, stderr, json: last.startsWith('{') ? JSON.parse(last) : undefined };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
