/**
 * The real model on a real device (`npm run test:gpu`): the sentence encoder through TensorFlow.js, unchanged, the demo as it is
 * typed, and values larger than the memory that host and device share. Uses the built package and nothing else.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { probe } from '../../dist/backends/cuda/probe.js';
import { compareWith } from '../../dist/cli/demo/compare.js';
import { ENCODER_PACKAGES, loadEncoder } from '../../dist/cli/demo/encoder.js';
import { BASELINE_PACKAGES, resolvePackage } from '../../dist/cli/demo/packages.js';
import { current, engine, init, tensor } from '../../dist/index.js';
import { EMULATED, guard, limit, rounded, within } from './support.mjs';

const found = probe();
const why = found.missing.map(({ what }) => what).join('; ');
const absent = [...ENCODER_PACKAGES, ...Object.keys(BASELINE_PACKAGES)].filter((name) => resolvePackage(name) === undefined);
const noModel = absent.length === 0 ? false : `packages are not installed: ${absent.join(', ')}`;
const TIMEOUT = { timeout: limit(120_000) };
const COMMAND = fileURLToPath(new URL('../../dist/cli/index.js', import.meta.url));
const MIB = 2 ** 20;
/** Those of the issue: embeddings are unit vectors. */
const MOST_DIFFERENCE = 1e-4;

const SENTENCES = [
  'A storm rose over the sea, and the waves broke over the ship.',
  'The baker sold bread in the market.',
  'She planted roses beside the wall.',
  'All night the wind howled and the sails were torn.',
  'Mr. Brown counted the money in his shop, twice, and wrote the sum into a book that nobody else was allowed to read.',
  'The cat slept in the sun.',
].slice(0, EMULATED ? 3 : 6);

describe('the model on the cuda device', { skip: found.ready ? false : `missing ${why}` }, () => {
  const measured = {};
  let watchdog;
  let home;

  before(() => {
    watchdog = guard(EMULATED ? 380 : 400);
    home = mkdtempSync(join(tmpdir(), 'gpuos-model-'));
  });
  after(async () => {
    console.log(JSON.stringify({ test: 'model', ...measured }));
    await within(current()?.shutdown() ?? Promise.resolve(), 5000, 'shutdown');
    rmSync(home, { recursive: true, force: true });
    watchdog.release();
  });

  it('embeds sentences as stock TensorFlow.js on the CPU does', { ...TIMEOUT, skip: noModel }, async () => {
    const encoder = await loadEncoder('gpuos', 'cuda');
    try {
      assert.equal(encoder.device.kind, 'cuda');
      const passages = SENTENCES.map((text) => ({ text, section: '' }));
      encoder.resetStatistics();
      const compared = await compareWith('tfjs-cpu', encoder, passages, { sentences: passages.length, passes: EMULATED ? 1 : 3 });
      const { nativeShare, tasks, frameworkOps } = encoder.statistics();
      measured.encoder = {
        maxAbsDiff: compared.maxAbsDiff,
        oursMsP50: rounded(compared.oursLatencyMsP50),
        cpuMsP50: rounded(compared.latencyMsP50),
        tasksPerOp: rounded(tasks / frameworkOps),
      };
      assert.equal(compared.sentences, passages.length);
      assert.ok(compared.maxAbsDiff > 0 && compared.maxAbsDiff <= MOST_DIFFERENCE, `embeddings differ by ${compared.maxAbsDiff}`);
      assert.ok(nativeShare >= 0.95, `${nativeShare} of the operations ran on the device`);
    } finally {
      await encoder.dispose();
    }
    assert.equal(current(), undefined);
  });

  it('is what `gpuos demo --device cuda --json` searches with', { ...TIMEOUT, skip: noModel }, async () => {
    const input = join(home, 'story.txt');
    writeFileSync(input, SENTENCES.join('\n\n'));
    const args = ['demo', '--device', 'cuda', '--json', '--quiet', '--no-cache', '--input', input, '--query', 'a tempest on the ocean'];
    const child = spawn(process.execPath, [COMMAND, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
    let [stdout, stderr] = ['', ''];
    child.stdout.setEncoding('utf8').on('data', (text) => (stdout += text));
    child.stderr.setEncoding('utf8').on('data', (text) => (stderr += text));
    const code = await within(new Promise((resolve) => child.once('close', resolve)), limit(60_000), 'the demo');
    assert.equal(stderr, '');
    assert.equal(code, 0);
    const report = JSON.parse(stdout);
    assert.equal(report.device, 'cuda');
    assert.equal(report.sentences, SENTENCES.length);
    assert.equal(report.indexedNow, SENTENCES.length);
    assert.equal(report.top[0].text, SENTENCES[0]);
    assert.ok(report.nativeShare >= 0.95 && report.latencyMsP50 > 0 && report.tasksPerSentence > 0);
    measured.demo = {
      latencyMsP50: report.latencyMsP50,
      firstHitSeconds: report.firstHitSeconds,
      tasksPerSentence: report.tasksPerSentence,
    };
  });

  it('has values that are larger than the memory they pass through, both ways, in order with the work on them', TIMEOUT, async () => {
    // Of the shared memory, which has 256 MiB at most, half is for values on their way.
    const n = ((EMULATED ? 40 : 384) * MIB) / 4;
    const system = init({ device: 'cuda', memoryMib: EMULATED ? 256 : 2048 });
    const at = (i) => (i * 7919) % 65_521;
    const values = Float32Array.from({ length: n }, (_, i) => at(i));
    const wrong = (read, expected) => read.findIndex((value, i) => value !== expected(i));
    let from = performance.now();
    const x = tensor(values, [n]);
    await engine().sync();
    measured.uploadGBs = rounded((4 * n) / 1e6 / (performance.now() - from));
    values.fill(-1);
    const sum = x.add(1);
    const early = sum.data();
    const turned = engine().apply('reverse', [x], { axes: [0] })[0];
    assert.equal(
      wrong(turned.dataSync(), (i) => at(n - 1 - i)),
      -1,
    );
    assert.equal(
      wrong(await within(early, limit(20_000), 'a value'), (i) => at(i) + 1),
      -1,
    );
    from = performance.now();
    const again = await within(x.data(), limit(20_000), 'a value');
    measured.downloadGBs = rounded((4 * n) / 1e6 / (performance.now() - from));
    assert.equal(wrong(again, at), -1);
    for (const each of [turned, sum]) each.dispose();
    // What the device itself has no room for is an error with the sizes, and all goes on.
    const most = (EMULATED ? 300 : 2304) * MIB;
    assert.throws(() => tensor(new Uint16Array(most / 2), [most / 2], 'float16'), /asked for; .* MiB are in use.*GPUOS_OUT_OF_MEMORY/);
    assert.equal(
      wrong(await within(x.sub(1).data(), limit(20_000), 'a value'), (i) => at(i) - 1),
      -1,
    );
    await system.shutdown();
  });
});
