/** `test/gpu/faults.test.mjs` with the resident kernel on the CPU: faults of its blocks are faults of the stand-in's device. */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { compileEmulatedDriver, EMULATED_DEVICE, NO_EMULATION, reason } from './emulation/driver.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const LIMIT_MS = 400_000;

describe.skipIf(NO_EMULATION)(reason('what goes wrong, with the resident kernel on the CPU'), () => {
  let driver: ReturnType<typeof compileEmulatedDriver>;
  let home: string;
  beforeAll(() => {
    driver = compileEmulatedDriver();
    home = mkdtempSync(join(tmpdir(), 'emulated-faults-'));
  }, LIMIT_MS);
  afterAll(() => {
    driver?.remove();
    if (home !== undefined) rmSync(home, { recursive: true, force: true });
  });

  it(
    'plays test/gpu/faults.test.mjs',
    async () => {
      const flags = { CUDA_HOME: driver.folder, GPUOS_HOME: home, EMULATED: '1', GPUOS_CUDA_INJECT: 'direct' };
      const child = spawn(process.execPath, ['--test', '--test-reporter=tap', 'test/gpu/faults.test.mjs'], {
        cwd: ROOT,
        env: { ...process.env, ...EMULATED_DEVICE, ...flags },
        timeout: LIMIT_MS,
        stdio: ['ignore', 'pipe', 'pipe'],
      });
      let output = '';
      for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text: string) => (output += text));
      const code = await new Promise((resolve) => child.once('close', resolve));
      expect(code, output.slice(-4000)).toBe(0);
      expect(Number(/^# pass (\d+)$/m.exec(output)?.[1])).toBeGreaterThan(8);
    },
    LIMIT_MS,
  );
});
