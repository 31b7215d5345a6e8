import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GpuosError } from './errors.ts';
import { type FlagDefinition, type FlagName, FLAGS, flagRange, parseFlag, readFlags } from './flags.ts';

function codeOf(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    if (error instanceof GpuosError) return error.code;
    throw error;
  }
  return 'none';
}

const names = Object.keys(FLAGS) as FlagName[];

describe('readFlags', () => {
  it('gives the defaults for an empty environment', () => {
    expect(readFlags({})).toEqual({
      device: 'auto',
      workers: undefined,
      memoryMib: 1024,
      spinUs: 20,
      ring: 4096,
      tfjs: 'warn',
      fuse: true,
      taskBudgetMs: 10_000,
      home: undefined,
      cudaHome: undefined,
      cudaCompile: 'background',
      cudaInject: 'auto',
      cudaCublas: 'auto',
      cudaAside: 'auto',
      log: 'warn',
    });
  });

  it('reads each flag', () => {
    const flags = readFlags({
      GPUOS_DEVICE: 'wasm',
      GPUOS_WORKERS: '3',
      GPUOS_MEMORY_MIB: '64',
      GPUOS_SPIN_US: '2.5',
      GPUOS_RING: '64',
      GPUOS_TFJS: 'force',
      GPUOS_FUSE: 'off',
      GPUOS_TASK_BUDGET_MS: '250',
      GPUOS_HOME: '/somewhere',
      GPUOS_CUDA_HOME: '/opt/cuda',
      GPUOS_CUDA_COMPILE: 'first',
      GPUOS_CUDA_INJECT: 'relaunch',
      GPUOS_CUDA_CUBLAS: 'off',
      GPUOS_CUDA_ASIDE: 'never',
      GPUOS_LOG: 'debug',
    });
    expect(flags).toEqual({
      device: 'wasm',
      workers: 3,
      memoryMib: 64,
      spinUs: 2.5,
      ring: 64,
      tfjs: 'force',
      fuse: false,
      taskBudgetMs: 250,
      home: '/somewhere',
      cudaHome: '/opt/cuda',
      cudaCompile: 'first',
      cudaInject: 'relaunch',
      cudaCublas: 'off',
      cudaAside: 'never',
      log: 'debug',
    });
    expect(Object.keys(flags)).toHaveLength(names.length);
  });

  it('refuses a name that is not in the table, with the nearest that is', () => {
    expect(() => readFlags({ GPUOS_WORKER: '2' })).toThrow(
      /GPUOS_WORKER is not a flag.*Did you mean "GPUOS_WORKERS"\?.*GPUOS_UNKNOWN_FLAG/,
    );
    expect(codeOf(() => readFlags({ GPUOS_: '' }))).toBe('GPUOS_UNKNOWN_FLAG');
    expect(codeOf(() => readFlags({ GPUOS___proto__: '1' }))).toBe('GPUOS_UNKNOWN_FLAG');
    expect(readFlags({ GPU_OS_WORKERS: 'x', gpuos_workers: 'x' }).workers).toBeUndefined();
  });

  it.each([
    ['GPUOS_WORKERS', '-1'],
    ['GPUOS_WORKERS', '256'],
    ['GPUOS_WORKERS', '1.5'],
    ['GPUOS_WORKERS', 'NaN'],
    ['GPUOS_WORKERS', '0x2'],
    ['GPUOS_WORKERS', '1e1'],
    ['GPUOS_WORKERS', 'Infinity'],
    ['GPUOS_RING', '1000'],
    ['GPUOS_RING', '8'],
    ['GPUOS_SPIN_US', '-1'],
    ['GPUOS_FUSE', 'maybe'],
    ['GPUOS_FUSE', 'constructor'],
    ['GPUOS_DEVICE', 'WASM'],
    ['GPUOS_HOME', 'a\0b'],
  ])('refuses %s=%s', (name, value) => {
    expect(codeOf(() => readFlags({ [name]: value }))).toBe('GPUOS_BAD_FLAG');
  });

  it('takes an empty value for one that is not set', () => {
    for (const name of names) expect(parseFlag(name, ' ')).toEqual(parseFlag(name, undefined));
  });
});

describe('any value of any flag', () => {
  it('is either in the range that the table states, or GPUOS_BAD_FLAG', () => {
    const value = fc.oneof(
      fc.string(),
      fc.integer().map(String),
      fc.double().map(String),
      fc.constantFrom('true', 'auto', 'force', '1', '-0', '+4', ' 64 ', '.5', '5.'),
      fc.nat({ max: 16 }).map((bits) => String(2 ** bits)),
    );
    fc.assert(
      fc.property(fc.constantFrom(...names), value, (name, text) => {
        const definition: FlagDefinition = FLAGS[name];
        let parsed: ReturnType<typeof parseFlag>;
        try {
          parsed = parseFlag(name, text);
        } catch (error) {
          expect(error).toBeInstanceOf(GpuosError);
          expect((error as GpuosError).code).toBe('GPUOS_BAD_FLAG');
          expect((error as GpuosError).message).toContain(name);
          return;
        }
        if (parsed === undefined) {
          expect(text.trim()).toBe('');
          return;
        }
        if (definition.kind === 'choice') expect(definition.values).toContain(parsed);
        if (definition.kind === 'boolean') expect(parsed).toBeTypeOf('boolean');
        if (definition.kind === 'integer' || definition.kind === 'number') {
          expect(parsed).toBeGreaterThanOrEqual(definition.min as number);
          expect(parsed).toBeLessThanOrEqual(definition.max as number);
          if (definition.kind === 'integer') expect(Number.isInteger(parsed)).toBe(true);
          if (definition.powerOfTwo) expect((parsed as number) & ((parsed as number) - 1)).toBe(0);
        }
      }),
      { numRuns: 500 },
    );
  });
});

describe('docs/flags.md', () => {
  it('has exactly the rows of the table', () => {
    const rows = readFileSync(new URL('../docs/flags.md', import.meta.url), 'utf8')
      .split('\n')
      .filter((line) => line.startsWith('| `GPUOS_'));
    const expected = names.map((name) => {
      const flag: FlagDefinition = FLAGS[name];
      return `| \`${name}\` | ${flagRange(flag)} | ${flag.default === undefined ? '' : `\`${flag.default}\``} | ${flag.about} |`;
    });
    expect(rows).toEqual(expected);
  });
});
