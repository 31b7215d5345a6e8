/** The main job, run as a user runs it, on our backend and on the stock one that it can be tried with. */
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { COMMAND, gpuos, lastLine } from './command.ts';

interface Report {
  readonly device: string;
  readonly backend: string;
  readonly sentences: number;
  readonly indexedNow: number;
  readonly firstHitSeconds: number;
  readonly nativeShare: number;
  readonly frameworkOpsPerSentence: number;
  readonly tasksPerSentence: number;
  readonly latencyMsP50: number;
  readonly latencySamples: number;
  readonly indexedEarlier: number;
  readonly drawnEvenly: boolean;
  readonly interrupted: boolean;
  readonly compare: Record<string, { latencyMsP50: number; maxAbsDiff: number; sentences: number }>;
  readonly top: { score: number; text: string; query: string; section: string }[];
}

const TEXT = `CHAPTER 1. The weather

A storm rose over the sea, and the waves broke over the ship. The baker sold bread in the market.
Mr. Brown counted the money in his shop. All night the wind howled and the sails were torn.

CHAPTER 2. The garden

She planted roses beside the wall. The cat slept in the sun.`;

let home: string;
let input: string;
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'gpuos-demo-'));
  input = join(home, 'story.txt');
  writeFileSync(input, TEXT);
});
afterAll(() => rmSync(home, { recursive: true }));

/**
 * Until the command listens for signals, and a little longer: then it opens and reads its input. SIGHUP is the last that it
 * listens for, and none that Node.js catches by itself.
 */
async function listens(pid: number): Promise<void> {
  const caught = () => BigInt(`0x${/^SigCgt:\s*([0-9a-f]+)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]}`);
  while ((caught() & 1n) === 0n) await setTimeout(20);
  await setTimeout(300);
}

const env = () => ({ GPUOS_HOME: home });
const cached = () => {
  const folder = join(home, 'index');
  return readdirSync(folder).map((name) => join(folder, name));
};

async function report(...args: string[]): Promise<Report & { stderr: string; keys: string[] }> {
  const { code, stdout, stderr } = await gpuos(['demo', '--json', ...args], { env: env() });
  expect(stderr).not.toContain('error:');
  expect(code).toBe(0);
  const parsed = JSON.parse(lastLine(stdout)) as Report;
  // Only the object: a program that reads stdout gets nothing else.
  expect(stdout.trim().split('\n')).toHaveLength(1);
  return { ...parsed, stderr, keys: Object.keys(parsed) };
}

describe.each(['gpuos', 'wasm'])('gpuos demo on backend %s', (backend) => {
  it('finds the passages that are meant, in both queries, and gives the promised object', async () => {
    const result = await report(
      '--backend',
      backend,
      '--input',
      input,
      '--query',
      'a tempest on the ocean',
      '--query',
      'flowers',
      '--top',
      '2',
    );
    expect(result.keys.slice(0, 10)).toEqual([
      'job',
      'device',
      'sentences',
      'frameworkOpsPerSentence',
      'nativeShare',
      'tasksPerSentence',
      'latencyMsP50',
      'indexSeconds',
      'compare',
      'top',
    ]);
    expect(result).toMatchObject({ job: 'semantic-search', backend, sentences: 6, indexedNow: 6, interrupted: false, compare: {} });
    expect(result.latencySamples).toBe(20);
    expect(result.device).toBe(backend === 'gpuos' ? 'wasm' : 'tfjs-wasm');
    expect(result.frameworkOpsPerSentence).toBeGreaterThan(200);
    expect(result.latencyMsP50).toBeGreaterThan(0);
    expect(result.top.map(({ query }) => query)).toEqual(['a tempest on the ocean', 'a tempest on the ocean', 'flowers', 'flowers']);
    expect(result.top[0]?.text).toMatch(/^A storm rose/);
    expect(result.top[0]?.section).toBe('CHAPTER 1. The weather');
    expect(result.top[2]?.text).toMatch(/^She planted roses/);
    for (const { score } of result.top) expect(Math.abs(score)).toBeLessThanOrEqual(1.000001);
    expect(result.firstHitSeconds).toBeGreaterThan(0);
  });

  it('starts from its cache, and builds a damaged one again', async () => {
    const again = await report('--backend', backend, '--input', input, '--quiet');
    expect(again).toMatchObject({ sentences: 6, indexedNow: 0, indexedEarlier: 6, latencySamples: 20 });
    expect(again.stderr).toBe('');
    // What is done about damage is the same for each backend.
    if (backend !== 'gpuos') return;
    for (const file of cached()) truncateSync(file, 1000);
    const rebuilt = await report('--backend', backend, '--input', input, '--quiet');
    expect(rebuilt.stderr).toMatch(/^warning: the cached index is damaged: .*\[GPUOS_INDEX_DAMAGED\]/);
    expect(rebuilt).toMatchObject({ sentences: 6, indexedNow: 6 });
    expect(rebuilt.top).toEqual(again.top);
    expect(await report('--backend', backend, '--input', input, '--quiet', '--no-cache')).toMatchObject({ indexedNow: 6 });
  });
});

describe('gpuos demo', () => {
  it('runs the encoder on the ring', async () => {
    const result = await report('--limit', '30', '--quiet', '--device', 'wasm');
    expect(result).toMatchObject({ sentences: 30, device: 'wasm' });
    expect(result.nativeShare).toBeGreaterThanOrEqual(0.95);
    expect(result.tasksPerSentence).toBeGreaterThan(0);
    expect(result.tasksPerSentence).toBeLessThan(result.frameworkOpsPerSentence);
  });

  it('runs where it is told to, and says why it cannot', async () => {
    expect(await report('--input', input, '--quiet', '--device', 'auto', '--limit', '1')).toMatchObject({ device: 'wasm' });
    // With a driver there is no GPU to be seen, and without one there is none.
    const none = await gpuos(['demo', '--json', '--quiet', '--device', 'cuda', '--input', input], {
      env: { ...env(), CUDA_VISIBLE_DEVICES: '' },
    });
    expect(none.code).toBe(1);
    expect(none.stderr).toMatch(/^error: .* \[GPUOS_CUDA_UNAVAILABLE\] .*gpuos info/);
    expect(JSON.parse(lastLine(none.stdout))).toMatchObject({ error: { code: 'GPUOS_CUDA_UNAVAILABLE' } });
    const stock = await gpuos(['demo', '--device', 'wasm', '--backend', 'cpu'], { env: env() });
    expect(stock).toMatchObject({ code: 2, stdout: '' });
    expect(stock.stderr).toMatch(/--device is for the backend gpuos.*\[GPUOS_USAGE\]/);
  });

  it('agrees with stock tfjs, which really is the backend that it is named after', async () => {
    const result = await report('--input', input, '--quiet', '--compare');
    for (const name of ['tfjs-wasm', 'tfjs-cpu']) {
      expect(result.compare[name]?.maxAbsDiff).toBeLessThanOrEqual(1e-4);
      // Two different programs do not round alike everywhere: a difference of nothing would mean one ran twice.
      expect(result.compare[name]?.maxAbsDiff).toBeGreaterThan(0);
      expect(result.compare[name]?.sentences).toBe(6);
      expect(result.compare[name]?.latencyMsP50).toBeGreaterThan(0);
    }
  });

  it('keeps what it has indexed when it is interrupted, and goes on from there', async () => {
    let sent = false; // a second signal would end the process at once
    const interruptedAt = await gpuos(['demo', '--json', '--all', '--query', 'whales'], {
      env: env(),
      onStderr: (text, child) => {
        if (sent || !/#\d/.test(text)) return;
        sent = true;
        child.kill('SIGINT');
      },
    });
    expect(interruptedAt.code).toBe(130);
    const first = JSON.parse(lastLine(interruptedAt.stdout)) as Report;
    expect(first.interrupted).toBe(true);
    expect(first.indexedNow).toBeGreaterThan(0);
    expect(interruptedAt.stderr).toContain('what was indexed is kept');
    const second = await report('--limit', '1', '--quiet');
    expect(second.sentences).toBeGreaterThanOrEqual(first.sentences);
  });

  it.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
  ] as const)('ends on %s with %i while its input gives nothing', async (signal, code) => {
    const pipe = join(home, `pipe-${signal}`);
    execFileSync('mkfifo', [pipe]);
    // A named pipe that nobody writes to; standard input that says nothing; both are being read when the signal comes.
    for (const [path, stdin] of [
      [pipe, 'ignore'],
      ['-', 'pipe'],
      ['/dev/stdin', 'pipe'],
    ] as const) {
      const child = spawn(process.execPath, [COMMAND, 'demo', '--quiet', '--input', path], {
        env: { ...process.env, ...env() },
        stdio: [stdin, 'pipe', 'pipe'],
        timeout: 30_000,
        killSignal: 'SIGKILL',
      });
      await listens(child.pid as number);
      child.kill(signal);
      expect([path, await new Promise((resolve) => child.on('close', resolve))]).toEqual([path, code]);
    }
  });

  /** What the command says of an input whose last byte is 0, which it finds when it has read all before. */
  const REFUSED = { error: { code: 'GPUOS_INPUT_BINARY' } };

  it.each([
    ['-', 'standard input'],
    ['/dev/stdin', 'stdin'],
  ])('reads %s from a socket, a pipe and a file', async (path, title) => {
    const args = ['demo', '--json', '--quiet', '--no-cache', '--input', path];
    const binary = join(home, 'binary.txt');
    writeFileSync(binary, `${TEXT}\0`);
    const command = `"${process.execPath}" "${COMMAND}" ${args.join(' ')}`;
    const run = (line: string) => {
      const { stdout } = spawnSync('bash', ['-c', line], { env: { ...process.env, ...env() }, encoding: 'utf8' });
      return JSON.parse(lastLine(stdout)) as unknown;
    };
    // One of each in full, by the way that the other path is not read by; a search takes seconds.
    const fromSocket = async (stdin: string) => JSON.parse(lastLine((await gpuos(args, { env: env(), stdin })).stdout)) as unknown;
    const found = { sentences: 6, title };
    if (path === '-') expect(await fromSocket(TEXT)).toMatchObject(found);
    else expect(run(`cat "${input}" | ${command}`)).toMatchObject(found);
    expect(await fromSocket(`${TEXT}\0`)).toMatchObject(REFUSED);
    expect(run(`cat "${binary}" | ${command}`)).toMatchObject(REFUSED);
    expect(run(`${command} < "${binary}"`)).toMatchObject(REFUSED);
  });

  it('searches a file that is its standard input', () => {
    const line = `"${process.execPath}" "${COMMAND}" demo --json --quiet --no-cache --input - < "${input}"`;
    const stdout = execFileSync('bash', ['-c', line], { env: { ...process.env, ...env() }, encoding: 'utf8' });
    expect(JSON.parse(lastLine(stdout))).toMatchObject({ sentences: 6 });
  });

  it('reads the output of a process', () => {
    const line = `"${process.execPath}" "${COMMAND}" demo --json --quiet --no-cache --input <(sleep 0.2; cat "${input}")`;
    const stdout = execFileSync('bash', ['-c', line], { env: { ...process.env, ...env() }, encoding: 'utf8' });
    expect(JSON.parse(lastLine(stdout))).toMatchObject({ sentences: 6 });
  });

  it('tells what it drew from what earlier runs have indexed', async () => {
    const text = join(home, 'limits.txt');
    writeFileSync(text, TEXT.replaceAll('.', ' again.'));
    const args = ['--input', text, '--quiet', '--limit'];
    expect(await report(...args, '1')).toMatchObject({ sentences: 1, indexedNow: 1, indexedEarlier: 0, drawnEvenly: true });
    // Beside the object, what people read is on stderr.
    const second = await report('--input', text, '--limit', '2');
    expect(second).toMatchObject({ sentences: 3, indexedNow: 2, indexedEarlier: 1, drawnEvenly: false });
    expect(second.stderr).toMatch(
      /^searched +3 of \d+ passages \(--all takes every one\): 2 drawn evenly, 1 more that earlier runs have indexed$/m,
    );
    expect(second.stderr).toMatch(/^indexed now +2 in \d+\.\d s; 1 by earlier runs$/m);
    expect(second.stderr).toMatch(/^latency .*\(p50 of 20\)$/m);
  });

  it('shows hits, a table and the device to people, and no escape codes in a pipe', async () => {
    const { code, stdout, stderr } = await gpuos(['demo', '--input', input, '--query', 'rain'], { env: env() });
    expect(code).toBe(0);
    expect(stdout).toMatch(/^ {2}-?\d\.\d{3} {2}#1/m);
    expect(stdout).toMatch(/^score {2}where +passage$/m);
    for (const fact of ['device', 'latency', 'a sentence is', 'first hit']) expect(stdout).toMatch(new RegExp(`^${fact} `, 'm'));
    expect(stdout + stderr).not.toContain('\x1b');
  });

  it('ends without an error when its reader goes away', async () => {
    const child = spawn(process.execPath, [COMMAND, 'demo', '--quiet', '--all', '--input', input], {
      env: { ...process.env, ...env() },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let stderr = '';
    child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
      stderr += chunk;
    });
    child.stdout.destroy();
    const code = await new Promise((resolve) => child.on('close', resolve));
    expect(stderr).toBe('');
    expect([0, 141]).toContain(code);
  });
});

it('the package of the model is used as it is published', () => {
  const root = new URL('../node_modules/@energetic-ai/embeddings/', import.meta.url);
  const { version } = JSON.parse(readFileSync(new URL('package.json', root), 'utf8')) as { version: string };
  expect(version).toBe('0.2.0');
});
