/**
 * The tests that are for a device (`test/gpu/`, and the conformance suites) with the resident kernel on the CPU: its own
 * source, in the device process, with operators that are injected while it runs. What only a device has is its time, its
 * memory's order, and its machine code.
 */
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { compileEmulatedDriver, EMULATED_DEVICE, NO_EMULATION, reason } from './emulation/driver.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const LIMIT_MS = 400_000;

describe.skipIf(NO_EMULATION)(reason('with the resident kernel on the CPU'), () => {
  let driver: ReturnType<typeof compileEmulatedDriver>;
  let home: string;
  beforeAll(() => {
    driver = compileEmulatedDriver();
    home = mkdtempSync(join(tmpdir(), 'emulated-home-'));
    const { status, stderr } = spawnSync(process.execPath, ['scripts/gpu-tests.mjs', '--bundle-only'], { cwd: ROOT, encoding: 'utf8' });
    if (status !== 0) throw new Error(stderr);
  }, LIMIT_MS);
  afterAll(() => {
    driver?.remove();
    if (home !== undefined) rmSync(home, { recursive: true, force: true });
  });

  async function play(file: string, more: Readonly<Record<string, string>> = {}): Promise<string> {
    const env = { ...process.env, ...EMULATED_DEVICE, CUDA_HOME: driver.folder, GPUOS_HOME: home, EMULATED: '1', SOAK_S: '2', ...more };
    const child = spawn(process.execPath, ['--test', '--test-reporter=tap', file], {
      cwd: ROOT,
      env,
      timeout: LIMIT_MS,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let output = '';
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text: string) => (output += text));
    const code = await new Promise((resolve) => child.once('close', resolve));
    // What failed, with its reasons; the whole is long.
    const failed = output.split(/^(?=\s*(?:not )?ok )/m).filter((part) => /^\s*not ok/.test(part));
    expect(
      failed.map((part) => part.slice(0, 1500)),
      output.slice(-2000),
    ).toEqual([]);
    expect(code, output.slice(-2000)).toBe(0);
    return output;
  }

  const passed = (output: string): number => Number(/^# pass (\d+)$/m.exec(output)?.[1]);

  for (const name of ['resident', 'device']) {
    it(
      `plays test/gpu/${name}.test.mjs`,
      async () => {
        expect(passed(await play(`test/gpu/${name}.test.mjs`))).toBeGreaterThan(10);
      },
      LIMIT_MS,
    );
  }

  it(
    'computes what the definitions compute',
    async () => {
      const files = readdirSync(join(ROOT, '.gpuos/gpu')).filter((name) => name.endsWith('.test.mjs'));
      expect(files).toContain('operators.test.mjs');
      let count = 0;
      for (const file of files) count += passed(await play(join('.gpuos/gpu', file), { RUNS: '0.02' }));
      expect(count).toBeGreaterThan(100);
      expect(existsSync(join(home, 'cuda'))).toBe(true);
    },
    LIMIT_MS,
  );
});
