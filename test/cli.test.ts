/** The command line itself: help, wrong words, errors and exit codes. What the commands do is tested beside them. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { gpuos, lastLine } from './command.ts';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'gpuos-cli-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

describe('help', () => {
  it.each([[[]], [['--help']], [['help']], [['help', 'demo']], [['info', '--help']], [['demo', '--help']], [['bench', '-h']]])(
    'of gpuos %j has examples',
    async (args) => {
      const { code, stdout, stderr } = await gpuos(args);
      expect(code).toBe(0);
      expect(stdout).toMatch(/Usage: gpuos/);
      expect(stdout).toMatch(/Examples:\n {2}gpuos/);
      expect(stderr).toBe('');
    },
  );

  it('lists the suites', async () => {
    const { code, stdout } = await gpuos(['bench']);
    expect(code).toBe(0);
    expect(
      stdout
        .trim()
        .split('\n')
        .map((line) => line.split(' ')[0]),
    ).toEqual(['submit', 'throughput', 'elementwise', 'model', 'inject']);
    expect(stdout).not.toContain('cannot be loaded');
  });

  it('prints the version', async () => {
    expect(await gpuos(['--version'])).toMatchObject({ code: 0, stdout: expect.stringMatching(/^\d+\.\d+\.\d+\n$/) });
  });
});

describe('wrong words', () => {
  it.each([
    [['dmeo'], 'Did you mean "demo"?'],
    [['benhc', 'submit'], 'Did you mean "bench"?'],
    [['zebra'], "unknown command 'zebra'"],
    [['demo', '--qurey', 'x'], 'Did you mean "--query"?'],
    [['info', '--jsno'], 'Did you mean "--json"?'],
    [['--versoin'], 'Did you mean "--version"?'],
    [['bench', 'sumbit'], 'Did you mean "submit"?'],
    [['bench', 'submit', 'zebra'], 'there are submit, throughput, elementwise, model, inject'],
    [['demo', '--backend', 'wsam'], 'Did you mean "wasm"?'],
    [['demo', '--top', '0'], 'from 1 to 1000'],
    [['demo', '--limit', '1.5'], 'from 1 to'],
    [['demo', '--query'], 'argument missing'],
    [['demo', 'a storm at sea'], 'too many arguments'],
  ])('gpuos %j exits with 2 and a hint', async (args, hint) => {
    const { code, stdout, stderr } = await gpuos(args);
    expect(code).toBe(2);
    expect(stdout).toBe('');
    expect(stderr).toMatch(/^error: .* \[GPUOS_USAGE\] Run the command with --help\.\n$/);
    expect(stderr).toContain(hint);
  });
});

describe('errors', () => {
  const file = (name: string, contents: string | Uint8Array) => {
    writeFileSync(join(folder, name), contents);
    return join(folder, name);
  };

  it.each([
    ['GPUOS_QUERY_EMPTY', () => ['--query', ' … ']],
    ['GPUOS_BAD_OPTION', () => ['--query', 'a'.repeat(5000)]],
    ['GPUOS_INPUT_UNREADABLE', () => ['--input', join(folder, 'missing')]],
    ['GPUOS_INPUT_UNREADABLE', () => ['--input', folder]],
    ['GPUOS_INPUT_EMPTY', () => ['--input', file('empty', '')]],
    ['GPUOS_INPUT_BINARY', () => ['--input', file('binary', Uint8Array.of(1, 0, 2))]],
    ['GPUOS_INPUT_TOO_LARGE', () => ['--input', file('line', 'a'.repeat(9 * 2 ** 20))]],
  ])('%s is one line with a remedy, exit code 1, and an object with --json', async (errorCode, args) => {
    const { code, stdout, stderr } = await gpuos(['demo', '--json', ...args()]);
    expect(code).toBe(1);
    expect(stderr).toMatch(/^error: [^\n]+\n$/);
    expect(stderr).toMatch(new RegExp(` \\[${errorCode}\\] [A-Z][^\\n]+\\.\\n$`));
    const { error } = JSON.parse(lastLine(stdout)) as { error: { code: string; message: string; remedy: string } };
    expect(error.code).toBe(errorCode);
    expect(stderr).toBe(`error: ${error.message} [${errorCode}] ${error.remedy}\n`);
  });

  it('names a misspelt flag, and a bad value', async () => {
    const misspelt = await gpuos(['info'], { env: { GPUOS_WORKER: '1' } });
    expect(misspelt).toMatchObject({ code: 1, stdout: '' });
    expect(misspelt.stderr).toMatch(/GPUOS_WORKER is not a flag.*Did you mean "GPUOS_WORKERS"\?.*\[GPUOS_UNKNOWN_FLAG\]/);
    const bad = await gpuos(['demo', '--quiet'], { env: { GPUOS_RING: 'many' } });
    expect(bad).toMatchObject({ code: 1, stdout: '' });
    expect(bad.stderr).toContain('GPUOS_RING=many: expected a power of two from 16 to 65536.');
  });

  it('refuses an output file before it measures anything', async () => {
    const { code, stderr } = await gpuos(['bench', 'submit', '--out', join(folder, 'no', 'such', 'folder')]);
    expect(code).toBe(1);
    expect(stderr).toContain('[GPUOS_OUTPUT_UNWRITABLE]');
    expect(stderr).not.toContain('bench: submit');
  });
});

describe('gpuos info', () => {
  it('lists devices, what is missing, packages and flags', async () => {
    const { code, stdout, stderr } = await gpuos(['info', '--json'], { env: { GPUOS_WORKERS: '2', GPUOS_HOME: folder } });
    expect(stderr).toBe('');
    expect(code).toBe(0);
    const info = JSON.parse(stdout) as { devices: { kind: string; usable: boolean; missing: unknown[] }[]; flags: object; cache: string };
    const wasm = info.devices.find(({ kind }) => kind === 'wasm');
    expect(wasm).toMatchObject({ usable: true, missing: [] });
    for (const device of info.devices) if (!device.usable) expect(device.missing.length).toBeGreaterThan(0);
    expect(info.flags).toEqual({ GPUOS_WORKERS: '2', GPUOS_HOME: folder });
    expect(info.cache).toBe(folder);
  });

  it('shows the same to people', async () => {
    const { code, stdout } = await gpuos(['info']);
    expect(code).toBe(0);
    for (const heading of ['devices', 'packages', 'machine', 'flags', 'cache']) expect(stdout).toMatch(new RegExp(`^${heading}$`, 'm'));
    expect(stdout).toMatch(/^ {2}wasm +embedded/m);
  });
});
