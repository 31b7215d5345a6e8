/**
 * Large products beside the resident kernel on a real device (`npm run test:gpu`): what cuBLAS does there, in which order,
 * and what becomes of it when something goes wrong. Uses the built package and nothing else.
 */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { probe } from '../../dist/backends/cuda/probe.js';
import { current, engine, GpuosError, init, tensor } from '../../dist/index.js';
import { children, generator, guard, rest, rounded, within } from './support.mjs';

const found = probe();
const why = [...found.missing.map(({ what }) => what), found.libraries.cublas.problem].filter((text) => text !== undefined).join('; ');
const TIMEOUT = { timeout: 60_000 };
const LIMIT_MS = 10_000;
/** Large enough for `auto`. */
const N = 2048;

const outcome = (promise) =>
  promise.then(
    () => 'done',
    (error) => (error instanceof GpuosError ? error.code : `not a GpuosError: ${error}`),
  );

describe('large products beside the resident kernel', { skip: why === '' ? false : `missing ${why}` }, () => {
  const measured = {};
  const random = generator(11);
  let watchdog;
  const floats = (n) => Float32Array.from({ length: n }, () => random(2001) / 1000 - 1);
  const data = (value) => within(value.data(), LIMIT_MS, 'a value');
  const matmul = (a, b, attributes = {}) => engine().apply('matmul', [a, b], attributes)[0];

  function start(mode, options = {}) {
    process.env.GPUOS_CUDA_CUBLAS = mode;
    const from = performance.now();
    const system = init({ device: 'cuda', memoryMib: 1024, ...options });
    measured[`${mode}StartMs`] ??= Math.round(performance.now() - from);
    return system;
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

  it('are found to run beside it, and say how long that took to find out', TIMEOUT, async () => {
    const system = start('always');
    const { state } = system.device.ordinary;
    measured.library = state.library;
    measured.ways = state.report.ways.map(({ dtype, transposedA, transposedB, proposed, refused, us }) =>
      [dtype, transposedA ? 't' : 'n', transposedB ? 't' : 'n', proposed, refused, us].join(' '),
    );
    measured.prepareMs = state.report.prepareMs;
    measured.proveMs = state.report.proveMs;
    assert.equal(state.unavailable, undefined);
    assert.ok(state.report.ways.filter(({ dtype, us }) => dtype === 'float32' && us !== undefined).length === 4);
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

  it('take about as long beside it as alone', { timeout: 120_000 }, async () => {
    const system = start('auto');
    for (const dtype of ['float32', 'float16']) {
      const { beside, without, fastest } = system.device.ordinary.measure(dtype, 4096, 3);
      measured[`${dtype}Us`] = [beside, without, fastest].map((list) => list.map(rounded));
    }
    // Each round had the kernel leave and come back.
    assert.equal(await outcome(within(system.submit({ operator: 'nop', words: [1] }).done(), LIMIT_MS, 'nop')), 'done');
    await system.shutdown();
  });
});
