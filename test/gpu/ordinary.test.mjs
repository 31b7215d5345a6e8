/**
 * Large products beside the resident kernel on a real device (`npm run test:gpu`): what cuBLAS does there, in which order,
 * and what becomes of it when something goes wrong. Uses the built package and nothing else.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { probe } from '../../dist/backends/cuda/probe.js';
import { cacheFolder, readFlags } from '../../dist/flags.js';
import { current, engine, GpuosError, init, tensor } from '../../dist/index.js';
import { children, generator, guard, rest, rounded, within } from './support.mjs';

const found = probe();
const why = [...found.missing.map(({ what }) => what), found.libraries.cublas.problem].filter((text) => text !== undefined).join('; ');
const TIMEOUT = { timeout: 60_000 };
const LIMIT_MS = 10_000;
/** Large enough for `auto`. */
const N = 2048;
const TYPES = ['float32', 'float16', 'bfloat16'];
const BOTH = [false, true];

const outcome = (promise) =>
  promise.then(
    () => 'done',
    (error) => (error instanceof GpuosError ? error.code : `not a GpuosError: ${error}`),
  );

describe('large products beside the resident kernel', { skip: why === '' ? false : `missing ${why}` }, () => {
  const measured = { startMs: {} };
  const random = generator(11);
  let watchdog;
  const floats = (n) => Float32Array.from({ length: n }, () => random(2001) / 1000 - 1);
  const data = (value) => within(value.data(), LIMIT_MS, 'a value');
  const matmul = (a, b, attributes = {}) => engine().apply('matmul', [a, b], attributes)[0];

  function start(mode, options = {}) {
    process.env.GPUOS_CUDA_CUBLAS = mode;
    const from = performance.now();
    const system = init({ device: 'cuda', memoryMib: 1024, ...options });
    measured.startMs[mode] = [...(measured.startMs[mode] ?? []), Math.round(performance.now() - from)];
    return system;
  }

  /** What earlier processes found out of forms. */
  function forget() {
    const folder = join(cacheFolder(readFlags().home), 'cuda');
    let names = [];
    try {
      names = readdirSync(folder);
    } catch {
      // Nothing was kept so far.
    }
    for (const name of names) if (readFileSync(join(folder, name)).includes('{"proposed":')) rmSync(join(folder, name));
  }

  /** One product of each form, and what is known of the forms then. */
  async function multiplyInEachForm(system) {
    for (const dtype of TYPES) {
      const [a, b] = [tensor(floats(N * N), [N, N], dtype), tensor(floats(N * N), [N, N], dtype)];
      for (const transposeA of BOTH) {
        for (const transposeB of BOTH) assert.equal(await outcome(data(matmul(a, b, { transposeA, transposeB }))), 'done');
      }
      for (const operand of [a, b]) operand.dispose();
    }
    return system.device.ordinary.state.report.ways.map(({ dtype, transposedA, transposedB, us = null, ...way }) => ({
      form: `${dtype} ${transposedA ? 't' : 'n'}${transposedB ? 't' : 'n'}`,
      us,
      ...way,
    }));
  }

  before(() => {
    watchdog = guard(600);
  });
  after(async () => {
    console.log(JSON.stringify({ test: 'ordinary', ...measured }));
    await within(current()?.shutdown() ?? Promise.resolve(), 5000, 'shutdown');
    watchdog.release();
  });

  function assertClose(actual, expected, tolerance, what) {
    assert.equal(actual.length, expected.length, what);
    const wrong = expected.findIndex((value, i) => !(Math.abs(actual[i] - value) <= tolerance * Math.max(1, Math.abs(value))));
    assert.equal(wrong, -1, `${what}: element ${wrong} is ${actual[wrong]}, not ${expected[wrong]}`);
  }

  it('are found to run beside it when the first of a form comes, and say how long that took', { timeout: 180_000 }, async () => {
    forget();
    const off = start('off');
    await off.shutdown();
    const system = start('auto');
    assert.deepEqual(system.device.ordinary.state.report.ways, []);
    measured.ways = await multiplyInEachForm(system);
    const { library, unavailable } = system.device.ordinary.state;
    measured.library = library;
    assert.equal(unavailable, undefined);
    assert.equal(system.device.lost, undefined);
    await system.shutdown();
    assert.equal(measured.ways.length, 12);
    assert.deepEqual(
      measured.ways.filter(({ remembered }) => remembered),
      [],
    );
    assert.deepEqual(
      measured.ways.filter(({ us }) => us === null),
      [],
      'forms without a way',
    );
  });

  it('are remembered by the next process', { timeout: 180_000 }, async () => {
    const system = start('auto');
    measured.again = await multiplyInEachForm(system);
    await system.shutdown();
    assert.deepEqual(
      measured.again.filter(({ remembered }) => !remembered),
      [],
    );
  });

  it('leave what is under way alone while a form is prepared', TIMEOUT, async () => {
    forget();
    const system = start('auto', { queues: 2 });
    const [a, b] = [tensor(floats(N * N), [N, N]), tensor(floats(N * N), [N, N])];
    const first = await data(matmul(a, b));
    const products = Array.from({ length: 20 }, () => matmul(a, b));
    engine().flush();
    const others = Array.from({ length: 2000 }, () => system.submit({ operator: 'nop', words: [1], queue: 1 }));
    assert.equal(await outcome(data(matmul(a, b, { transposeB: true }))), 'done');
    for (const task of others) await within(task.done(), LIMIT_MS, 'a task of the other queue');
    for (const product of products) assert.deepEqual(await data(product), first);
    assert.equal(system.device.ordinary.state.begun, 22);
    await system.shutdown();
  });

  it('equal those of the resident kernel, in each transposition, one or many', TIMEOUT, async () => {
    const cases = [];
    for (const transposeA of [false, true]) for (const transposeB of [false, true]) cases.push({ batch: [], transposeA, transposeB });
    cases.push({ batch: [5], transposeA: false, transposeB: true });
    const [m, n, k] = [196, 320, 264];
    const inputs = cases.map(({ batch, transposeA, transposeB }) => {
      const count = batch[0] ?? 1;
      return [
        [floats(count * m * k), [...batch, ...(transposeA ? [k, m] : [m, k])]],
        [floats(count * k * n), [...batch, ...(transposeB ? [n, k] : [k, n])]],
      ];
    });
    const results = {};
    for (const mode of ['off', 'always']) {
      const system = start(mode);
      results[mode] = [];
      for (const [i, { transposeA, transposeB }] of cases.entries()) {
        const [[a, shapeA], [b, shapeB]] = inputs[i];
        results[mode].push(await data(matmul(tensor(a, shapeA), tensor(b, shapeB), { transposeA, transposeB })));
      }
      if (mode === 'always') assert.equal(system.device.ordinary.state.begun, cases.length);
      await system.shutdown();
    }
    for (const i of cases.keys()) assertClose(results.always[i], results.off[i], 1e-4, JSON.stringify(cases[i]));
  });

  it('stand in order with the tasks before and behind them', TIMEOUT, async () => {
    const system = start('auto');
    const x = floats(N * N);
    const y = floats(N * N);
    const [a, b] = [tensor(x, [N, N]), tensor(y, [N, N])];
    const expected = (row, column) => {
      let sum = 0;
      for (let j = 0; j < N; j++) sum += (x[row * N + j] + 1) * y[j * N + column];
      return 2 * sum - 3;
    };
    const places = Array.from({ length: 50 }, () => [random(N), random(N)]);
    for (let round = 0; round < 20; round++) {
      const result = await data(matmul(a.add(1), b).mul(2).sub(3));
      for (const [row, column] of places) {
        const value = expected(row, column);
        assert.ok(Math.abs(result[row * N + column] - value) <= 1e-3 * Math.max(1, Math.abs(value)), `round ${round}, ${row}, ${column}`);
      }
    }
    assert.equal(system.device.ordinary.state.begun, 20);
    // Other work goes on beside them.
    const from = performance.now();
    const products = Array.from({ length: 8 }, () => matmul(a, b));
    engine().flush();
    const nops = [];
    for (let i = 0; i < 100; i++) nops.push(await outcome(within(system.submit({ operator: 'nop', words: [1] }).done(), LIMIT_MS, 'nop')));
    measured.hundredNopsBesideEightProductsMs = rounded(performance.now() - from);
    assert.ok(nops.every((end) => end === 'done'));
    for (const product of products) await data(product);
    await system.shutdown();
  });

  it('fail with what they depend on, and where the operator is killed; the next one runs', TIMEOUT, async () => {
    const system = start('auto');
    const [a, b] = [tensor(floats(N * N), [N, N]), tensor(floats(N * N), [N, N])];
    await system.kill('matmul');
    assert.equal(await outcome(data(matmul(a, b))), 'GPUOS_OPERATOR_KILLED');
    await system.revive('matmul');
    const failing = engine().apply('gather', [a, tensor([N + 1], [1], 'int32')], { axis: 0 })[0];
    assert.equal(await outcome(data(matmul(failing.add(a), b))), 'GPUOS_DEPENDENCY_FAILED');
    assert.equal(await outcome(data(matmul(a, b))), 'done');
    await system.shutdown();
  });

  it('survive that the device process stands still for so long that the kernel leaves and is launched again', {
    timeout: 120_000,
  }, async () => {
    const system = start('auto');
    const [a, b] = [tensor(floats(N * N), [N, N]), tensor(floats(N * N), [N, N])];
    const first = await data(matmul(a, b));
    const [pid] = children();
    const products = Array.from({ length: 30 }, () => matmul(a, b));
    engine().flush();
    watchdog.stopped(pid);
    process.kill(pid, 'SIGSTOP');
    await rest(3000);
    process.kill(pid, 'SIGCONT');
    watchdog.stopped(0);
    for (const product of products) assert.deepEqual(await data(product), first);
    assert.equal(system.device.lost, undefined);
    await system.shutdown();
  });

  it('take about as long beside it as alone', { timeout: 180_000 }, async () => {
    const system = start('auto');
    measured.measured = {};
    const failed = [];
    for (const dtype of TYPES) {
      try {
        const times = system.device.ordinary.measure(dtype, 4096, 3);
        measured.measured[dtype] = Object.fromEntries(Object.entries(times).map(([name, list]) => [name, list.map(rounded)]));
      } catch (error) {
        measured.measured[dtype] = error.message;
        failed.push(dtype);
      }
    }
    // Each round had the kernel leave and come back.
    assert.equal(await outcome(within(system.submit({ operator: 'nop', words: [1] }).done(), LIMIT_MS, 'nop')), 'done');
    await system.shutdown();
    assert.deepEqual(failed, []);
  });
});
