/** The command line itself: help, wrong words, errors and exit codes. What the commands do is tested beside them. */
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { COMMAND, gpuos, lastLine } from './command.ts';
import { compileFakes, NO_COMPILER, reason } from './cuda/fakes.ts';

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
    ).toEqual(['submit', 'throughput', 'elementwise', 'model', 'inject', 'cuda']);
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
    [['help', 'dmo'], 'Did you mean "demo"?'],
    [['help', 'zebra'], "unknown command 'zebra'"],
    [['help', 'demo', 'info'], 'too many arguments'],
    [['hlep', 'demo'], 'Did you mean "help"?'],
    [['demo', '--limit', '500', '--all'], "'-a, --all' cannot be used with option '-n, --limit <n>'"],
    [['bench', '--out', 'rows.jsonl'], '--out needs a suite'],
    [['demo', '--qurey', 'x'], 'Did you mean "--query"?'],
    [['info', '--jsno'], 'Did you mean "--json"?'],
    [['--versoin'], 'Did you mean "--version"?'],
    [['bench', 'sumbit'], 'Did you mean "submit"?'],
    [['bench', 'submit', 'zebra'], 'there are submit, throughput, elementwise, model, inject'],
    [['bench', ''], "unknown suite ''"],
    [['bench', '__proto__'], "unknown suite '__proto__'"],
    [['bench', '../index'], "unknown suite '../index'"],
    [['bench', 'submit', '--out'], 'argument missing'],
    [['demo', '--backend', 'wsam'], 'Did you mean "wasm"?'],
    [['demo', '--top', '0'], 'from 1 to 1000'],
    [['demo', '--top', 'NaN'], 'from 1 to 1000'],
    [['demo', '--top', '-1'], 'from 1 to 1000'],
    [['demo', '--limit', '1.5'], 'from 1 to'],
    [['demo', '--limit', '9'.repeat(30)], 'from 1 to'],
    [['demo', '--input'], 'argument missing'],
    [['demo', '--workers', 'NaN'], "unknown option '--workers'"],
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
    ['GPUOS_QUERY_EMPTY', () => ['--query', '']],
    ['GPUOS_QUERY_EMPTY', () => ['--query', 'whales', '--query', '']],
    ['GPUOS_BAD_OPTION', () => ['--query', 'a'.repeat(5000)]],
    ['GPUOS_INPUT_UNREADABLE', () => ['--input', join(folder, 'missing')]],
    ['GPUOS_INPUT_UNREADABLE', () => ['--input', folder]],
    ['GPUOS_INPUT_UNREADABLE', () => ['--input', '']],
    ['GPUOS_INPUT_EMPTY', () => ['--input', file('empty', '')]],
    ['GPUOS_INPUT_EMPTY', () => ['--input', '/dev/null']],
    ['GPUOS_INPUT_BINARY', () => ['--input', '/dev/zero']],
    ['GPUOS_INPUT_BINARY', () => ['--input', '/dev/urandom']],
    ['GPUOS_INPUT_EMPTY', () => ['--input', '-']],
    ['GPUOS_INPUT_BINARY', () => ['--input', fileURLToPath(new URL('../dist/backends/wasm/device.wasm', import.meta.url))]],
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

  it('a file of one line of 200 MB is refused at once, whole or through a pipe', async () => {
    const line = file('huge', Buffer.alloc(200e6, 'a '));
    const pipe = join(folder, 'pipe');
    execFileSync('mkfifo', [pipe]);
    const feeder = spawn('dd', [`if=${line}`, `of=${pipe}`, 'bs=65536'], { stdio: 'ignore' });
    try {
      for (const input of [line, pipe]) {
        const started = performance.now();
        const { code, stdout, stderr } = await gpuos(['demo', '--quiet', '--input', input]);
        expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
        expect(stderr).toMatch(/^error: [^\n]*(190\.7 MiB|a line of more than 8\.0 MiB)[^\n]*\[GPUOS_INPUT_TOO_LARGE\] [^\n]+\n$/);
        expect(performance.now() - started).toBeLessThan(10_000);
      }
    } finally {
      feeder.kill();
      rmSync(line);
    }
  });

  it.each(['NaN', '-1', '9'.repeat(30)])('GPUOS_WORKERS=%s is refused by each command', async (workers) => {
    const env = { GPUOS_WORKERS: workers };
    const all = await Promise.all([gpuos(['info'], { env }), gpuos(['demo', '--quiet'], { env }), gpuos(['bench', 'submit'], { env })]);
    for (const { code, stdout, stderr } of all) {
      expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
      expect(stderr).toContain(`GPUOS_WORKERS=${workers}: expected an integer from 0 to 255. [GPUOS_BAD_FLAG] Give the flag`);
    }
  });

  it('names a misspelt flag, and a bad value', async () => {
    const misspelt = await gpuos(['info'], { env: { GPUOS_WORKER: '1' } });
    expect(misspelt).toMatchObject({ code: 1, stdout: '' });
    expect(misspelt.stderr).toMatch(/GPUOS_WORKER is not a flag.*Did you mean "GPUOS_WORKERS"\?.*\[GPUOS_UNKNOWN_FLAG\]/);
    const bad = await gpuos(['demo', '--quiet'], { env: { GPUOS_RING: 'many' } });
    expect(bad).toMatchObject({ code: 1, stdout: '' });
    expect(bad.stderr).toContain('GPUOS_RING=many: expected a power of two from 16 to 65536.');
  });

  it('says what is wrong with an empty name', async () => {
    expect((await gpuos(['demo', '--input', ''])).stderr).toMatch(/^error: --input needs the name of a file, or - for standard input\. /);
    expect((await gpuos(['bench', 'submit', '--out', ''])).stderr).toMatch(/^error: --out needs the name of a file\. /);
  });

  it('refuses a named pipe without a reader as output, rather than to wait for one', async () => {
    const pipe = join(folder, 'unread');
    execFileSync('mkfifo', [pipe]);
    const { code, stderr } = await gpuos(['bench', 'submit', '--out', pipe]);
    expect(code).toBe(1);
    expect(stderr).toMatch(/^error: cannot write [^\n]*: nobody reads from it\. \[GPUOS_OUTPUT_UNWRITABLE\] [^\n]+\n$/);
  });

  it('refuses an output file before it measures anything', async () => {
    const { code, stderr } = await gpuos(['bench', 'submit', '--out', join(folder, 'no', 'such', 'folder')]);
    expect(code).toBe(1);
    expect(stderr).toContain('[GPUOS_OUTPUT_UNWRITABLE]');
    expect(stderr).not.toContain('bench: submit');
  });
});

/** Runs before the command, and in each process that it starts. */
function preload(name: string, source: string): Record<string, string> {
  const path = join(folder, `${name}.mjs`);
  writeFileSync(path, source);
  return { NODE_OPTIONS: `--import ${pathToFileURL(path).href}` };
}

/** In place of its suite, each process sends one row. */
const ONE_ROW = `const [, file] = process.argv;
  if (file?.endsWith('suite-process.js')) {
    process.send({ kind: 'row', row: { name: 'made.up', value: 1, unit: 'ns', device: 'wasm' } }, () =>
      process.send({ kind: 'done' }, () => process.exit()),
    );
    await new Promise(() => {});
  }`;

describe.skipIf(!existsSync('/dev/full'))('output that cannot be written', () => {
  const UNWRITABLE = /^(bench: submit\n)?error: stdout cannot be written: ENOSPC[^\n]* \[GPUOS_OUTPUT_UNWRITABLE\] [^\n]+\n$/;

  it.each([
    [[]],
    [['--help']],
    [['--version']],
    [['help', 'demo']],
    [['info']],
    [['info', '--json']],
    [['bench']],
    [['bench', '--json']],
    [['bench', 'submit']],
    [['bench', 'submit', '--json']],
    [['demo', '--quiet', '--no-cache', '--limit', '1']],
    [['demo', '--quiet', '--no-cache', '--limit', '1', '--json']],
  ])('of gpuos %j is one line and exit code 1', async (args) => {
    const { code, stderr } = await gpuos(args, { env: preload('one-row', ONE_ROW), stdout: '/dev/full' });
    expect(stderr).toMatch(UNWRITABLE);
    expect(code).toBe(1);
  });

  it('does not hide what was wrong before', async () => {
    const { code, stderr } = await gpuos(['demo', '--json', '--input', ''], { stdout: '/dev/full' });
    expect(code).toBe(1);
    expect(stderr).toMatch(/^error: --input needs [^\n]+\n$/);
  });

  it('is noticed in a pipe as well, whose errors come later', async () => {
    const env = preload(
      'late',
      `process.stdout._write = (chunk, encoding, done) => setTimeout(done, 20, Object.assign(new Error('EIO: i/o error'), { code: 'EIO' }));
      process.stdout._writev = undefined;`,
    );
    const { code, stderr } = await gpuos(['info'], { env });
    expect(code).toBe(1);
    expect(stderr).toMatch(/^error: stdout cannot be written: EIO: i\/o error\. \[GPUOS_OUTPUT_UNWRITABLE\] [^\n]+\n$/);
  });

  it('ends a bench whose file is full, with the row that it has', async () => {
    const { code, stdout, stderr } = await gpuos(['bench', 'submit', 'inject', '--json', '--out', '/dev/full'], {
      env: preload('one-row', ONE_ROW),
    });
    expect(code).toBe(1);
    expect(stderr).toMatch(/^bench: submit\nerror: cannot write \/dev\/full: ENOSPC[^\n]* \[GPUOS_OUTPUT_UNWRITABLE\] [^\n]+\n$/);
    expect(stdout).toContain('made.up');
  });

  it('is no error where the reader has gone', async () => {
    for (const args of [['info'], ['--help'], ['bench']]) {
      const child = spawn(process.execPath, [COMMAND, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
      child.stdout.destroy();
      let stderr = '';
      child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
        stderr += chunk;
      });
      const code = await new Promise((resolve) => child.on('close', resolve));
      expect({ args, code, stderr }).toEqual({ args, code: 0, stderr: '' });
    }
  });
});

describe('a defect of ours', () => {
  const env = () =>
    preload(
      'defect',
      `import os from 'node:os';
      import { syncBuiltinESMExports } from 'node:module';
      os.totalmem = function defect() { throw new TypeError('one line\\n  and another'); };
      syncBuiltinESMExports();`,
    );

  it('is GPUOS_INTERNAL in one line, and no stack', async () => {
    const { code, stdout, stderr } = await gpuos(['info', '--json'], { env: env() });
    expect(code).toBe(1);
    expect(stderr).toMatch(/^error: one line and another \[GPUOS_INTERNAL\] [^\n]*report it[^\n]*\n$/);
    expect(JSON.parse(stdout)).toMatchObject({ error: { code: 'GPUOS_INTERNAL', message: 'one line and another' } });
  });

  it('shows its stack with GPUOS_LOG=debug', async () => {
    const { code, stderr } = await gpuos(['info'], { env: { ...env(), GPUOS_LOG: 'debug' } });
    expect(code).toBe(1);
    expect(stderr).toMatch(/\[GPUOS_INTERNAL\][^\n]*\nTypeError: one line\n {2}and another\n {4}at .*defect/);
  });
});

describe('gpuos bench', () => {
  it('without a suite tells what there is, as JSON where that is asked for', async () => {
    const { code, stdout } = await gpuos(['bench', '--json']);
    expect(code).toBe(0);
    const suites = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as { suite: string; about: string });
    expect(suites.map(({ suite }) => suite)).toEqual(['submit', 'throughput', 'elementwise', 'model', 'inject', 'cuda']);
    for (const { about } of suites) expect(about.length).toBeGreaterThan(20);
  });

  it('goes on after a suite that dies, and is GPUOS_BENCH_FAILED in the end', async () => {
    // One suite is killed as it starts, the other ends by itself with a row.
    const out = join(folder, 'rows.jsonl');
    const env = preload(
      'suites',
      `const [, file, suite] = process.argv;
      if (file?.endsWith('suite-process.js')) {
        if (suite === 'submit') process.kill(process.pid, 'SIGKILL');
        process.send({ kind: 'row', row: { name: 'made.up', value: 1, unit: 'ns', device: 'wasm' } }, () =>
          process.send({ kind: 'done' }, () => process.exit()),
        );
        await new Promise(() => {});
      }`,
    );
    const { code, stdout, stderr } = await gpuos(['bench', 'submit', 'inject', '--json', '--out', out], { env });
    expect(code).toBe(1);
    expect(stderr.split('\n')).toEqual([
      'bench: submit',
      'error: suite submit: its process ended early (SIGKILL)',
      'bench: inject',
      expect.stringMatching(/^error: 1 of 2 suites failed: submit\. \[GPUOS_BENCH_FAILED\] See/),
      '',
    ]);
    const [row, error] = stdout.trim().split('\n');
    expect(JSON.parse(row as string)).toMatchObject({ suite: 'inject', name: 'made.up', value: 1 });
    expect(JSON.parse(error as string)).toMatchObject({ error: { code: 'GPUOS_BENCH_FAILED' } });
    expect(readFileSync(out, 'utf8')).toBe(`${row}\n`);
  });

  it('says why a suite failed, and refuses rows that are none', async () => {
    const env = preload(
      'rows',
      `const [, file, suite] = process.argv;
      if (file?.endsWith('suite-process.js')) {
        const message =
          suite === 'submit'
            ? { kind: 'failed', message: 'embeddings differ' }
            : { kind: 'row', row: { name: 'made.up', value: null, unit: 'ns', device: 'wasm' } };
        process.send(message, () => process.send({ kind: 'done' }, () => process.exit()));
        await new Promise(() => {});
      }`,
    );
    const { code, stdout, stderr } = await gpuos(['bench', 'submit', 'inject'], { env });
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
    expect(stderr).toContain('error: suite submit: embeddings differ\n');
    expect(stderr).toContain('error: suite inject: the row made.up is refused: its value is null\n');
    expect(stderr).toContain('2 of 2 suites failed: submit, inject. [GPUOS_BENCH_FAILED]');
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

  it.skipIf(NO_COMPILER)(reason('describes a GPU, and what keeps it from being used'), async () => {
    const fakes = compileFakes(['driver', 'nvrtc', 'nvml']);
    try {
      const env = { GPUOS_CUDA_HOME: fakes.folder, FAKE_devices: '2' };
      const { code, stdout, stderr } = await gpuos(['info'], { env });
      expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
      expect(stdout).toContain(`driver: 580.1.2, CUDA 13.0 (${fakes.folder}/libcuda.so.1)\n`);
      expect(stdout).toContain(`compiler: NVRTC 13.0 (${fakes.folder}/libnvrtc.so.13, found by GPUOS_CUDA_HOME)\n`);
      expect(stdout).toContain('gpu1: Fake GPU 1, compute capability 9.0, 116 SMs, 143051 MiB, 720 MiB used, 37% busy, 123 W\n');
      const old = await gpuos(['info', '--json'], { env: { ...env, FAKE_cuda: '11040' } });
      const { devices } = JSON.parse(old.stdout) as { devices: { kind: string; missing: { what: string }[]; probe?: { cuda: string } }[] };
      const cuda = devices.find(({ kind }) => kind === 'cuda')!;
      expect(cuda.probe!.cuda).toBe('11.4');
      expect(cuda.missing.map(({ what }) => what).join('\n')).toContain('supports CUDA 11.4; CUDA 12.0 is needed');
    } finally {
      fakes.remove();
    }
  });

  it('shows the same to people', async () => {
    const { code, stdout } = await gpuos(['info']);
    expect(code).toBe(0);
    for (const heading of ['devices', 'packages', 'machine', 'flags', 'cache']) expect(stdout).toMatch(new RegExp(`^${heading}$`, 'm'));
    expect(stdout).toMatch(/^ {2}wasm +embedded/m);
  });
});
