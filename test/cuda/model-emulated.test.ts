/** The real model, the demo and large transfers (`test/gpu/model.test.mjs`) with the resident kernel on the CPU. */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { gpuos, lastLine } from '../command.ts';
import { compileEmulatedDriver, EMULATED_DEVICE, NO_EMULATION, reason } from './emulation/driver.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const LIMIT_MS = 400_000;

describe.skipIf(NO_EMULATION)(reason('the model on the CPU, by the cuda device'), () => {
  let driver: ReturnType<typeof compileEmulatedDriver>;
  let home: string;
  const variables = () => ({ ...EMULATED_DEVICE, CUDA_HOME: driver.folder, GPUOS_HOME: home });

  beforeAll(() => {
    driver = compileEmulatedDriver();
    home = mkdtempSync(join(tmpdir(), 'model-home-'));
  }, LIMIT_MS);
  afterAll(() => {
    driver?.remove();
    if (home !== undefined) rmSync(home, { recursive: true, force: true });
  });

  it(
    'plays test/gpu/model.test.mjs',
    async () => {
      const child = spawn(process.execPath, ['--test', '--test-reporter=tap', 'test/gpu/model.test.mjs'], {
        cwd: ROOT,
        env: { ...process.env, ...variables(), EMULATED: '1' },
        timeout: LIMIT_MS,
        stdio: ['ignore', 'pipe', 'pipe'],
      });
      let output = '';
      for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text: string) => (output += text));
      const code = await new Promise((resolve) => child.once('close', resolve));
      expect(output).toMatch(/^# pass 3$/m);
      expect(code, output).toBe(0);
    },
    LIMIT_MS,
  );

  it('is described by gpuos info: what runs there, and which device is taken', async () => {
    const { code, stdout } = await gpuos(['info', '--json'], { env: variables() });
    expect(code).toBe(0);
    const info = JSON.parse(lastLine(stdout)) as { device: string; devices: { kind: string; usable: boolean; details: object }[] };
    expect(info.device).toBe('wasm');
    const cuda = info.devices.find(({ kind }) => kind === 'cuda');
    expect(cuda).toMatchObject({ usable: true });
    expect(cuda?.details).toMatchObject({
      driverFound: true,
      driver: expect.stringContaining('CUDA 13.0'),
      compiler: expect.stringMatching(/^NVRTC 13/),
      injection: expect.stringMatching(/^direct/),
      gpu0: expect.stringMatching(/compute capability 9\.0, 4 SMs, \d+ MiB/),
      memory: expect.stringMatching(/^1024 MiB.*shared with the host, of \d+ MiB/),
    });
    const asked = await gpuos(['info', '--json'], { env: { ...variables(), GPUOS_DEVICE: 'cuda' } });
    expect(JSON.parse(lastLine(asked.stdout))).toMatchObject({ device: 'cuda' });
  });
});
