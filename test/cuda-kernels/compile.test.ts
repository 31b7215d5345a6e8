/** The fixed operators, compiled for every architecture that they are for. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { cudaHeader } from '../../src/abi/headers.ts';
import { RESIDENT_OPTIONS } from '../../src/backends/cuda/source.ts';

const nvcc = spawnSync('nvcc', ['--version'], { encoding: 'utf8' });
const missing = nvcc.status === 0 ? '' : ' (skipped: no nvcc)';
const DEVICE = fileURLToPath(new URL('../../src/backends/cuda/device/', import.meta.url));

// A kernel that calls one of them by its address has the registers and the stack of the hungriest.
const SOURCE = `#include "gpuos_abi.h"
#include "operators/index.cuh"
typedef uint32_t (*Operator)(const uint64_t *, uint32_t, uint32_t, char *, const uint32_t *);
extern "C" __global__ void __launch_bounds__(256) caller(volatile uint64_t *slots, uint64_t *params, uint32_t which) {
  extern __shared__ __align__(16) char shared[];
  uint32_t i = 0;
#define X(name) slots[i++] = reinterpret_cast<uint64_t>(&operator_##name);
  GPUOS_FIXED_OPERATORS(X)
  params[0] = reinterpret_cast<Operator>(slots[which])(params, 0, 1, shared, nullptr);
}
`;

describe.skipIf(nvcc.status !== 0)(`the fixed operators${missing}`, () => {
  it.each([75, 80, 90, 100])(
    'compile for sm_%i, without a warning, within 128 registers and a kilobyte of stack',
    (sm) => {
      const folder = mkdtempSync(join(tmpdir(), 'gpuos-operators-'));
      try {
        writeFileSync(join(folder, 'operators.cu'), SOURCE);
        writeFileSync(join(folder, 'gpuos_abi.h'), cudaHeader());
        const run = (command: string, ...options: string[]): string => {
          const { status, stdout, stderr } = spawnSync(command, options, { encoding: 'utf8', cwd: folder });
          expect(stderr, stderr).not.toMatch(/error|warning/i);
          expect(status).toBe(0);
          return stdout + stderr;
        };
        run('nvcc', '-cubin', ...RESIDENT_OPTIONS, `-arch=sm_${sm}`, '-I', folder, '-I', DEVICE, '-o', 'made.cubin', 'operators.cu');
        const report = run('nvlink', '-v', `-arch=sm_${sm}`, '-o', 'linked.cubin', 'made.cubin');
        const properties = /Function properties for 'caller':[\s\S]*?used (\d+) registers, (?:used \d+ barriers, )?(\d+) stack/.exec(
          report,
        );
        expect(Number(properties?.[1]), report).toBeGreaterThan(64);
        expect(Number(properties?.[1])).toBeLessThanOrEqual(128);
        expect(Number(properties?.[2])).toBeLessThanOrEqual(1024);
      } finally {
        rmSync(folder, { recursive: true, force: true });
      }
    },
    180_000,
  );
});
