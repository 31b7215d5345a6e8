import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { type ErrorCode, ERRORS, GpuosError } from './errors.ts';

const codes = Object.keys(ERRORS) as ErrorCode[];

describe('GpuosError', () => {
  it('carries code, remedy and cause, and says all of it in its message', () => {
    const cause = new Error('underneath');
    const error = new GpuosError('GPUOS_SHAPE_MISMATCH', 'add: [2] and [3].', { cause });
    expect(error).toBeInstanceOf(Error);
    expect(error.name).toBe('GpuosError');
    expect(error.code).toBe('GPUOS_SHAPE_MISMATCH');
    expect(error.remedy).toBe(ERRORS.GPUOS_SHAPE_MISMATCH);
    expect(error.cause).toBe(cause);
    expect(error.message).toBe(`add: [2] and [3]. [GPUOS_SHAPE_MISMATCH] ${ERRORS.GPUOS_SHAPE_MISMATCH}`);
  });
});

describe('the table', () => {
  it('names every code GPUOS_SOMETHING and gives each a remedy that is a sentence', () => {
    for (const code of codes) {
      expect(code).toMatch(/^GPUOS(_[A-Z0-9]+)+$/);
      expect(ERRORS[code]).toMatch(/^[A-Z].*\.$/);
      expect(ERRORS[code]).not.toMatch(/[\n|]/);
    }
  });

  it('is the table of docs/errors.md, in the same order', () => {
    const rows = readFileSync(new URL('../docs/errors.md', import.meta.url), 'utf8')
      .split('\n')
      .filter((line) => line.startsWith('| `GPUOS_'));
    expect(rows).toEqual(codes.map((code) => `| \`${code}\` | ${ERRORS[code]} |`));
  });

  it('has no code that no test names', () => {
    const tests = ['.', '../test'].flatMap((folder) => {
      const url = new URL(`${folder}/`, import.meta.url);
      return readdirSync(url, { recursive: true, encoding: 'utf8' })
        .filter((name) => name.endsWith('.test.ts') && name !== 'errors.test.ts')
        .map((name) => readFileSync(new URL(name, url), 'utf8'));
    });
    expect(codes.filter((code) => !tests.some((text) => new RegExp(`\\b${code}\\b`).test(text)))).toEqual([]);
  });
});
