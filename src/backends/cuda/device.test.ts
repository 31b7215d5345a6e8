/** The kernels' sources, compiled for every architecture that they are for. What they do is tested on a device: `npm run test:gpu`. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { RESIDENT_OPTIONS, residentSource } from './source.ts';

const nvcc = spawnSync('nvcc', ['--version'], { encoding: 'utf8' });
const missing = nvcc.status === 0 ? '' : ' (skipped: no nvcc)';

describe.skipIf(nvcc.status !== 0)(`the resident kernel${missing}`, () => {
  it.each([75, 80, 90, 100])(
    'compiles for sm_%i, without a warning, within the registers that injected operators leave room for',
    (sm) => {
      const folder = mkdtempSync(join(tmpdir(), 'gpuos-kernel-'));
      try {
        const { source, headers } = residentSource();
        writeFileSync(join(folder, 'resident.cu'), source);
        for (const [name, text] of Object.entries(headers)) if (!name.startsWith('std')) writeFileSync(join(folder, name), text);
        const [object, linked] = [join(folder, 'resident.cubin'), join(folder, 'linked.cubin')];
        const run = (command: string, ...options: string[]): string => {
          const { status, stdout, stderr } = spawnSync(command, options, { encoding: 'utf8' });
          expect(stderr, stderr).not.toMatch(/error|warning/i);
          expect(status).toBe(0);
          return stdout + stderr;
        };
        run('nvcc', '-cubin', ...RESIDENT_OPTIONS, `-arch=sm_${sm}`, '-o', object, join(folder, 'resident.cu'));
        const report = run('nvlink', '-v', `-arch=sm_${sm}`, '-o', linked, object);
        const used = /Function properties for 'gpuos_resident':[\s\S]*?used (\d+) registers/.exec(report);
        expect(Number(used?.[1])).toBeGreaterThan(16);
        expect(Number(used?.[1])).toBeLessThanOrEqual(128);
      } finally {
        rmSync(folder, { recursive: true, force: true });
      }
    },
    120_000,
  );
});
