/**
 * Both ways of new code into the running kernel on a real device, through the public calls, with the built package
 * (`npm run test:gpu`): the self-test that chooses, relaunches under load, and what does not fit the one but the other.
 */
import assert from 'node:assert/strict';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, describe, it } from 'node:test';
import { CudaDriver } from '../../dist/backends/cuda/driver.js';
import { ImageCache } from '../../dist/backends/cuda/image-cache.js';
import { injectionText, Verdicts } from '../../dist/backends/cuda/injection/verdict.js';
import { Nvrtc } from '../../dist/backends/cuda/nvrtc.js';
import { probe } from '../../dist/backends/cuda/probe.js';
import { cacheFolder } from '../../dist/flags.js';
import { engine, init, tensor } from '../../dist/index.js';
import { guard, residentKey, residentObjectKey, rounded, sorted, until } from './support.mjs';

const found = probe();
const why = found.missing.map(({ what }) => what).join('; ');
const TIMEOUT = { timeout: 60_000 };
const N = 4096;
const OPERATORS = 12;
/** NVRTC, the linker, and a relaunch. */
const READY_MS = 20_000;
const MOST_PAUSE_MS = 20;

describe('injection', { skip: found.ready ? false : `missing ${why}` }, () => {
  const measured = {};
  let watchdog;
  let home;
  let system;

  before(() => {
    watchdog = guard(500);
    const shared = cacheFolder(process.env.GPUOS_HOME);
    home = mkdtempSync(join(tmpdir(), 'gpuos-injection-'));
    process.env.GPUOS_HOME = home;
    mkdirSync(join(home, 'cuda'));
    // What takes long to compile; all else is new.
    const capability = found.gpus[0].computeCapability.split('.').map(Number);
    const { version } = new Nvrtc(undefined, Math.floor(new CudaDriver().version() / 1000));
    for (const key of [residentKey(capability, version), residentObjectKey(capability, version)]) {
      const there = join(shared, 'cuda', key);
      if (existsSync(there)) copyFileSync(there, join(home, 'cuda', key));
    }
  });
  afterEach(async () => {
    await system?.shutdown();
    system = undefined;
    delete process.env.GPUOS_CUDA_INJECT;
    delete process.env.GPUOS_CUDA_COMPILE;
  });
  after(() => {
    console.log(JSON.stringify({ test: 'injection', ...measured }));
    rmSync(home, { recursive: true, force: true });
    watchdog?.release();
  });

  function start(flags = {}) {
    Object.assign(process.env, flags);
    system = init({ device: 'cuda' });
    return system;
  }

  const inject = (k) => system.inject('map', { inputs: ['x'], expression: `x * ${k + 2} + ${k}` });

  /** Tasks of all operators in turn until the condition holds, each of them checked. */
  async function load(operators, condition, ms) {
    const input = system.buffer(Float32Array.from({ length: N }, (_, i) => i));
    const output = system.buffer(N);
    let [tasks, longest] = [0, 0];
    for (const end = performance.now() + ms; !condition(); tasks++) {
      assert.ok(performance.now() < end, `not within ${ms} ms: ${JSON.stringify(system.device.compilation)}`);
      const k = tasks % operators.length;
      const from = performance.now();
      system.submit({ operator: operators[k], pointers: [input.address, output.address], words: [N] }).doneSync();
      longest = Math.max(longest, performance.now() - from);
      const values = output.read();
      const wrong = values.findIndex((value, i) => value !== Math.fround(Math.fround(i * (k + 2)) + k));
      assert.equal(wrong, -1, `operator ${k}, element ${wrong}: ${values[wrong]}`);
      if (tasks % 8 === 7) await new Promise(setImmediate);
    }
    return { tasks, longest };
  }

  it('direct passes its self-test, which is remembered', TIMEOUT, () => {
    const from = performance.now();
    start();
    measured.firstInitMs = Math.round(performance.now() - from);
    assert.deepEqual([system.device.injection.mode, system.device.injection.why], ['direct', 'its self-test passed']);
    assert.equal(injectionText('auto', found, home), 'direct, which passed its self-test here');
  });

  it('a verdict that says no is heeded', TIMEOUT, () => {
    const pair = (text) => text.split('.').map(Number);
    const facts = {
      driverPath: found.libraries.driver.path,
      cudaVersion: found.cudaVersion,
      computeCapability: pair(found.gpus[0].computeCapability),
      nvrtcVersion: pair(found.libraries.nvrtc.version),
    };
    const verdicts = new Verdicts(new ImageCache(home), facts);
    assert.equal(verdicts.read()?.works, true);
    verdicts.write({ works: false, why: 'said by a test' });
    start();
    assert.equal(system.device.injection.mode, 'relaunch');
    assert.match(system.device.injection.why, /said by a test/);
    verdicts.write({ works: true, why: '' });
  });

  it('links while the kernel runs: tasks go on meanwhile, and all that is ready comes with few relaunches', TIMEOUT, async () => {
    start({ GPUOS_CUDA_INJECT: 'relaunch' });
    const operators = Array.from({ length: OPERATORS }, (_, k) => inject(k));
    const { tasks, longest } = await load(operators, () => system.device.compilation.compiling === 0, READY_MS);
    const { relaunches, pauseUs, parts } = system.device.injection;
    assert.equal(system.device.compilation.failed, undefined);
    assert.ok(relaunches > 0 && relaunches <= OPERATORS / 2, `${relaunches} relaunches`);
    assert.ok(longest < 1000, `a task took ${longest} ms: the link may have waited for the kernel`);
    await load(
      operators,
      (() => {
        let left = 200;
        return () => left-- === 0;
      })(),
      READY_MS,
    );
    Object.assign(measured, {
      linkedTasks: tasks,
      relaunches,
      relaunchPauseUs: pauseUs,
      relaunchParts: parts,
      longestTaskMs: rounded(longest),
    });
  });

  it('replaces the kernel again and again under load, each time for a moment', TIMEOUT, async () => {
    start({ GPUOS_CUDA_INJECT: 'relaunch', GPUOS_CUDA_COMPILE: 'first' });
    const operators = [];
    const pauses = [];
    const parts = [];
    for (let k = 0; k < OPERATORS; k++) {
      operators.push(inject(k));
      pauses.push(system.device.injection.pauseUs / 1000);
      parts.push(system.device.injection.parts);
      let left = 20;
      await load(operators, () => left-- === 0, READY_MS);
    }
    assert.equal(system.device.injection.relaunches, OPERATORS);
    assert.ok(Math.max(...pauses) < MOST_PAUSE_MS, `pauses of ${pauses.map(rounded)} ms`);
    assert.equal(system.device.injection.mode, 'relaunch');
    measured.pauseMsP50 = rounded(sorted(pauses)[OPERATORS / 2]);
    measured.pauseMsMax = rounded(Math.max(...pauses));
    const median = (part) => sorted(parts.map((one) => one[part]))[OPERATORS / 2];
    measured.pausePartsP50 = Object.fromEntries(Object.keys(parts[0]).map((part) => [part, median(part)]));
  });

  it('computes what direct computes', TIMEOUT, async () => {
    const results = [];
    for (const mode of ['direct', 'relaunch']) {
      start({ GPUOS_CUDA_INJECT: mode });
      const values = engine().tidy(() => {
        let value = tensor(Float32Array.from({ length: 1000 }, (_, i) => Math.sin(i)));
        for (let i = 0; i < 10; i++) value = value.mul(1.5).add(0.25).tanh().exp();
        return value;
      });
      const first = Array.from(values.dataSync());
      await until(() => system.device.compilation.compiling === 0, READY_MS, 'compiled');
      results.push(first);
      await system.shutdown();
    }
    assert.deepEqual(results[1], results[0]);
  });
});
