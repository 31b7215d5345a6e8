import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { benchRows, brokenLinks, checkDocs, checkFigures, replaceRows } from '../scripts/docs.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
let folder: string;

function write(file: string, text: string): void {
  mkdirSync(dirname(join(folder, file)), { recursive: true });
  writeFileSync(join(folder, file), text);
}

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'gpuos-docs-'));
  mkdirSync(join(folder, 'src'));
  for (const file of ['errors.ts', 'flags.ts', 'spelling.ts']) cpSync(join(root, 'src', file), join(folder, 'src', file));
  for (const file of ['errors.md', 'flags.md']) {
    write(`docs/${file}`, readFileSync(join(root, 'docs', file), 'utf8').replace(/\]\([^)]*\)/g, ']'));
  }
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'));
  write('README.md', '# Title\n');
});
afterAll(() => rmSync(folder, { recursive: true }));

describe('checkDocs', () => {
  it('passes for tables that agree, and notices a changed remedy, a missing flag and a row too many', async () => {
    expect(await checkDocs(folder)).toEqual([]);
    const errors = readFileSync(join(folder, 'docs/errors.md'), 'utf8');
    for (const damaged of [
      errors.replace('Call init() first.', 'Call init() last.'),
      errors.replace(/\| `GPUOS_NOT_INITIALIZED`.*\n/, ''),
      `${errors.trimEnd()}\n| \`GPUOS_INVENTED\` | Nothing. |\n`,
    ]) {
      expect(damaged).not.toBe(errors);
      write('docs/errors.md', damaged);
      expect(await checkDocs(folder)).toEqual([{ file: 'docs/errors.md', line: 1, message: expect.stringContaining('--write') }]);
    }
    await checkDocs(folder, { write: true });
    expect(readFileSync(join(folder, 'docs/errors.md'), 'utf8')).toBe(errors);
  });
});

describe('replaceRows', () => {
  it('fills an empty table and replaces a full one', () => {
    const empty = 'before\n\n| a | b |\n| --- | --- |\n\nafter';
    const full = replaceRows(empty, ['| `GPUOS_A` | 1 |', '| `GPUOS_B` | 2 |']);
    expect(full).toBe('before\n\n| a | b |\n| --- | --- |\n| `GPUOS_A` | 1 |\n| `GPUOS_B` | 2 |\n\nafter');
    expect(replaceRows(full, ['| `GPUOS_C` | 3 |'])).toBe('before\n\n| a | b |\n| --- | --- |\n| `GPUOS_C` | 3 |\n\nafter');
  });
});

describe('brokenLinks', () => {
  it('follows files and headings, leaves code and the web alone', () => {
    write('docs/there.md', '# A heading, with `code`\n\n```\n# not one\n```\n');
    write(
      'docs/links.md',
      [
        '[ok](there.md) [ok](../README.md#title) [ok](there.md#a-heading-with-code) [web](scheme:somewhere)',
        '[gone](nowhere.md)',
        '[gone](there.md#no-such) [gone](there.md#not-one)',
        '`[code](nowhere.md)`',
        '<img src="nowhere.svg">',
        '[out](../../outside.md)',
      ].join('\n'),
    );
    expect(brokenLinks(folder, 'docs/links.md').map(({ line, message }: { line: number; message: string }) => [line, message])).toEqual([
      [2, 'nowhere.md does not exist'],
      [3, 'there.md#no-such: no such heading'],
      [3, 'there.md#not-one: no such heading'],
      [5, 'nowhere.svg does not exist'],
      [6, '../../outside.md leaves the project'],
    ]);
    rmSync(join(folder, 'docs/links.md'));
  });
});

describe('checkFigures', () => {
  const row = { name: 'submit.descriptor', device: 'wasm', value: 21.26, unit: 'ns', commit: 'abc', date: '2026-01-02' };
  const rows = new Map<string, Record<string, unknown>>([
    ['submit.descriptor|wasm', row],
    ['model.vs|wasm', { ...row, value: 2, baseline: 10.04, ours: 5.02 }],
    ['undated|wasm', { ...row, date: undefined }],
  ]);
  const messages = (text: string) => checkFigures('README.md', text, rows, false).found.map(({ message }: { message: string }) => message);

  it('takes figures to the digits shown', () => {
    expect(messages('<!-- figure: submit.descriptor|wasm -->21 ns')).toEqual([]);
    expect(messages('<!-- figure: submit.descriptor|wasm --> 21.3 ns')).toEqual([]);
    expect(messages('a <!-- figure: model.vs|wasm|baseline -->10.0 b')).toEqual([]);
  });

  it('refuses figures that differ, that no row has, or that nobody can measure again', () => {
    expect(messages('<!-- figure: submit.descriptor|wasm -->20 ns')).toEqual(['submit.descriptor|wasm is 21, not 20']);
    expect(messages('<!-- figure: submit.descriptor|wasm --> ns')).toEqual(['submit.descriptor|wasm is 21, not given']);
    expect(messages('<!-- figure: submit.other|wasm -->20 ns')).toEqual(['no row submit.other|wasm in bench/results/']);
    expect(messages('<!-- figure: undated|wasm -->21 ns')).toEqual(['the row undated|wasm has no date']);
    expect(messages('<!-- figure: submit.descriptor|wasm|ours -->21 ns')).toEqual(['the row submit.descriptor|wasm has no ours']);
  });

  it('puts them in', () => {
    const { updated } = checkFigures('README.md', 'x <!-- figure: submit.descriptor|wasm -->20.0 ns', rows, true);
    expect(updated).toBe('x <!-- figure: submit.descriptor|wasm -->21.3 ns');
  });

  it('reads the newest row of each name and device', () => {
    write('bench/results/a.jsonl', `${JSON.stringify({ ...row, value: 2, date: '2026-02-01' })}\n\n`);
    write('bench/results/b.jsonl', `${JSON.stringify({ ...row, value: 1, date: '2026-01-01' })}\n`);
    expect(benchRows(folder).get('submit.descriptor|wasm')).toMatchObject({ value: 2 });
    rmSync(join(folder, 'bench'), { recursive: true });
  });
});

describe('the documents of the project', () => {
  it('agree with its sources', async () => {
    expect(await checkDocs(root)).toEqual([]);
  });
});
