/**
 * The cuda device through the public calls, with the built package (`npm run test:gpu`): values, the two forms of new
 * kernels, changes of the operator table under load, and whatever can happen to the device process.
 *
 * SOAK_S: how many seconds the soak takes (default 5). DRY_RUN=1 plays what needs no device process on the wasm device.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { CudaDriver } from '../../dist/backends/cuda/driver.js';
import { DirectFunctions } from '../../dist/backends/cuda/injection/direct.js';
import { BYTECODE_BYTES } from '../../dist/backends/cuda/injection/functions.js';
import { ImageCache } from '../../dist/backends/cuda/image-cache.js';
import { planSegment, writeSegment } from '../../dist/backends/cuda/layout.js';
import { Nvrtc } from '../../dist/backends/cuda/nvrtc.js';
import { probe } from '../../dist/backends/cuda/probe.js';
import { DeviceProcess } from '../../dist/backends/cuda/process/device-process.js';
import { SharedSegment } from '../../dist/backends/cuda/process/segment.js';
import { cacheFolder } from '../../dist/flags.js';
import { current, engine, GpuosError, init, tensor } from '../../dist/index.js';
import { programFromTemplate } from '../../dist/ops/template.js';
import { NO_ORDER } from '../../dist/runtime/queue.js';
import {
  BUILT_IN,
  children,
  CONTROL,
  generator,
  guard,
  limit,
  notEmulated,
  Producer,
  residentKey,
  rest,
  rounded,
  scaled,
  sharedMemory,
  until,
  within,
} from './support.mjs';

const DRY = process.env.DRY_RUN === '1';
const SOAK_S = Number(process.env.SOAK_S ?? 5);
const found = DRY ? { ready: true, missing: [] } : probe();
const why = found.missing.map(({ what }) => what).join('; ');
const TIMEOUT = { timeout: limit(20_000) };
const onGpu = { skip: DRY ? 'a dry run has no device process' : false, ...TIMEOUT };
/** What is a matter of milliseconds may take so long. */
const LIMIT_MS = limit(3000);
/** The compiler's thread, where nothing is cached. */
const COMPILE_MS = limit(15_000);
const MIB = 2 ** 20;
/** What operators of the tests add: so many constants, from 1 on. */
const CONSTANTS = 12;
const adding = (constant) => ({ inputs: ['x'], expression: `x + ${constant}` });
/** Placed code is not taken back; most that a test places. */
const MOST_REPLACED = 800;
const MOST_INJECTED = 40;

const outcome = (promise) =>
  promise.then(
    () => 'done',
    (error) => (error instanceof GpuosError ? error.code : `not a GpuosError: ${error}`),
  );
const tally = (list) => Object.fromEntries([...new Set(list)].map((key) => [key, list.filter((other) => other === key).length]));
const float = Math.fround;

function assertClose(actual, expected, tolerance, what) {
  assert.equal(actual.length, expected.length, what);
  const wrong = expected.findIndex((value, i) => !(Math.abs(actual[i] - value) <= tolerance * Math.max(1, Math.abs(value))));
  assert.equal(wrong, -1, `${what}: element ${wrong} is ${actual[wrong]}, not ${expected[wrong]}`);
}

describe('the cuda device', { skip: found.ready ? false : `missing ${why}` }, () => {
  const measured = {};
  const clean = sharedMemory();
  let watchdog;
  let home;
  let system;
  /** Operators that a test has not removed, since it failed: they would be found again by the next one. */
  let open;

  before(() => {
    watchdog = guard(400);
    // Caches of this test alone: what it injects was never compiled. But for the kernel itself, which takes long.
    const shared = cacheFolder(process.env.GPUOS_HOME);
    home = mkdtempSync(join(tmpdir(), 'gpuos-test-'));
    process.env.GPUOS_HOME = home;
    const from = performance.now();
    if (!DRY) {
      mkdirSync(join(home, 'cuda'));
      const capability = found.gpus[0].computeCapability.split('.').map(Number);
      const nvrtc = new Nvrtc(undefined, Math.floor(new CudaDriver().version() / 1000));
      const key = residentKey(capability, nvrtc.version);
      const [there, here] = [join(shared, 'cuda', key), join(home, 'cuda', key)];
      measured.cached = existsSync(there);
      if (measured.cached) copyFileSync(there, here);
      start();
      assert.ok(existsSync(here), 'the kernel is not in the cache under the key that this test knows');
      if (!measured.cached) {
        mkdirSync(join(shared, 'cuda'), { recursive: true });
        copyFileSync(here, there);
      }
    } else {
      start();
    }
    measured.firstInitMs = Math.round(performance.now() - from);
    watchdog.release();
    watchdog = guard(limit(90) + SOAK_S);
  });
  after(async () => {
    console.log(JSON.stringify({ test: 'device', device: system?.device.name, ...measured }));
    try {
      await within(current()?.shutdown() ?? Promise.resolve(), 5000, 'shutdown');
    } finally {
      rmSync(home, { recursive: true, force: true });
      watchdog.release();
    }
  });

  /** Kernels that have been compiled. */
  const images = () => readdirSync(join(home, 'cuda')).filter((name) => !name.endsWith('.tmp')).length;

  function start() {
    system = init({ device: DRY ? 'wasm' : 'cuda', memoryMib: 256, queues: 2, firstSequence: 2 ** 32 - 5000 });
  }

  /** A system that works: the one that is there, or a new one if a test before has left none. */
  async function ready() {
    const works = async () => {
      const task = system.submit({ operator: 'nop', words: [1], wait: false });
      return (await outcome(within(task.done(), LIMIT_MS, 'an empty task'))) === 'done';
    };
    if (open === undefined && (await works().catch(() => false))) return system;
    open = undefined;
    await within(system.shutdown(), 5000, 'shutdown');
    start();
    return system;
  }

  /** Submits once there is room in the ring; a call that waits for it could hang. */
  async function put(request) {
    const queue = system.queue(request.queue ?? 0);
    if (!queue.hasSpace) await until(() => queue.hasSpace, LIMIT_MS, 'room in the ring');
    return system.submit({ ...request, wait: false });
  }

  const nop = (more = {}) => put({ operator: 'nop', words: [1], ...more });
  const done = (task, ms = LIMIT_MS) => within(task.done(), ms, `task ${task.sequence}`);
  const data = (result) => within(result.data(), LIMIT_MS, 'a value');
  const random = generator(7);
  const floats = (n, scale = 1) => Float32Array.from({ length: n }, () => (random(20_001) / 10_000 - 1) * scale);

  const expression = 'select(x > 0.1, gelu(x) * 1.25 + tanh(y), exp(0.5 * x) - x / (2 + abs(y)))';
  const parameters = (c) => ({ inputs: ['x', 'y'], expression: `${expression} + ${c}` });

  // The first of all: nothing else is being compiled.
  it('gives the same values by a new kernel interpreted, compiled meanwhile, and from the cache', onGpu, async () => {
    await ready();
    const n = 8191;
    const [x, y, out] = [system.buffer(floats(n, 3)), system.buffer(floats(n, 3)), system.buffer(n)];
    const run = async (operator) => {
      out.write(new Float32Array(n));
      const from = performance.now();
      await done(await put({ operator, pointers: [x.address, y.address, out.address], words: [n], tiles: 8 }));
      return { ms: performance.now() - from, bits: new Int32Array(out.read().buffer) };
    };
    const before = images();
    let from = performance.now();
    let operator = system.inject('map', parameters(0.5));
    measured.injectInterpretedMs = rounded(performance.now() - from);
    const interpreted = await run(operator);
    assert.equal(images(), before, 'it was compiled already: nothing was interpreted');
    // The image is put into the cache and the function's address changed in one turn of the event loop.
    await until(() => images() > before, COMPILE_MS, 'the compiled kernel');
    measured.compiledAfterMs = Math.round(performance.now() - from);
    const compiled = await run(operator);
    assert.deepEqual(compiled.bits, interpreted.bits);
    // An image that could not be injected would be refused here.
    system.remove(operator);
    from = performance.now();
    operator = system.inject('map', parameters(0.5));
    measured.injectCachedMs = rounded(performance.now() - from);
    assert.deepEqual((await run(operator)).bits, interpreted.bits);
    assert.ok(interpreted.bits.some((bits) => bits !== 0));
    for (const buffer of [x, y, out]) buffer.free();
    system.remove(operator);
    // The operators of the tests to come, so that the compiler is not busy with hundreds of them.
    const known = images();
    const adders = Array.from({ length: CONSTANTS }, (_, i) => system.inject('map', adding(i + 1)));
    await until(() => images() === known + CONSTANTS, COMPILE_MS, 'the adders');
    for (const adder of adders) system.remove(adder);
  });

  describe('computes', () => {
    it('a chain of a hundred operations on odd lengths', TIMEOUT, async () => {
      await ready();
      for (const n of [1, 3, 255, 1025, 4099]) {
        const x = floats(n, 2);
        const chain = () =>
          engine().tidy(() => {
            let y = tensor(x, [n]);
            for (let i = 0; i < 25; i++)
              y = y
                .mul(1.01)
                .add(0.01 * i - 0.1)
                .tanh()
                .maximum(-0.5);
            return y;
          });
        const expected = [...x].map((value) => {
          let y = value;
          for (let i = 0; i < 25; i++) y = Math.max(Math.tanh(float(float(y * float(1.01)) + float(0.01 * i - 0.1))), -0.5);
          return y;
        });
        const result = chain();
        assertClose(await data(result), expected, 1e-4, `${n} elements`);
        result.dispose();
      }
    });

    it('softmax, a product of matrices, layer norm and concat', TIMEOUT, async () => {
      await ready();
      const [rows, columns] = [37, 129];
      const x = floats(rows * columns, 4);
      const line = (i) => [...x.subarray(i * columns, (i + 1) * columns)];
      const t = tensor(x, [rows, columns]);

      const soft = Array.from({ length: rows }, (_, i) => {
        const most = Math.max(...line(i));
        const exps = line(i).map((value) => Math.exp(value - most));
        const sum = exps.reduce((a, b) => a + b);
        return exps.map((value) => value / sum);
      }).flat();
      assertClose(await data(t.apply('softmax')), soft, 1e-5, 'softmax');

      const [gamma, beta] = [floats(columns), floats(columns)];
      const norm = Array.from({ length: rows }, (_, i) => {
        const mean = line(i).reduce((a, b) => a + b) / columns;
        const variance = line(i).reduce((sum, value) => sum + (value - mean) ** 2, 0) / columns;
        return line(i).map((value, j) => ((value - mean) / Math.sqrt(variance + 1e-5)) * gamma[j] + beta[j]);
      }).flat();
      assertClose(await data(t.apply('layer-norm', [tensor(gamma), tensor(beta)])), norm, 1e-4, 'layer norm');

      const [m, k, n] = [65, 130, 67];
      const [a, b] = [floats(m * k), floats(k * n)];
      const product = Array.from({ length: m * n }, (_, at) => {
        const [i, j] = [Math.floor(at / n), at % n];
        let sum = 0;
        for (let l = 0; l < k; l++) sum += a[i * k + l] * b[l * n + j];
        return sum;
      });
      assertClose(await data(tensor(a, [m, k]).apply('matmul', [tensor(b, [k, n])])), product, 1e-4, 'matmul');

      const [left, right] = [floats(15), floats(6)];
      const joined = [0, 1, 2].flatMap((i) => [...left.subarray(5 * i, 5 * i + 5), ...right.subarray(2 * i, 2 * i + 2)]);
      assertClose(await data(tensor(left, [3, 5]).apply('concat', [tensor(right, [3, 2])], { axis: 1 })), joined, 0, 'concat');
    });

    it('nothing for an index out of range, which rejects with its code, and the next task', TIMEOUT, async () => {
      await ready();
      const x = tensor(Float32Array.of(1, 2, 3, 4), [4]);
      const gather = (...indices) => x.apply('gather', [tensor(Int32Array.from(indices), [indices.length], 'int32')]);
      assert.deepEqual([...(await data(gather(3, 0, 2)))], [4, 1, 3]);
      assert.equal(await outcome(data(gather(0, 4, 1))), 'GPUOS_INDEX_OUT_OF_RANGE');
      assert.equal(await outcome(data(gather(0, -5, 1))), 'GPUOS_INDEX_OUT_OF_RANGE');
      assert.deepEqual([...(await data(gather(1, 1, 2)))], [2, 2, 3]);
    });
  });

  /**
   * Operators that add a constant in place to cells of memory: a task that is lost leaves a sum short, one that is
   * doubled adds twice, and another version adds another constant.
   */
  class Adders {
    constructor(cells = 8, elements = 512, operators = 6) {
      open = this;
      this.elements = elements;
      this.constants = 0;
      this.adders = Array.from({ length: operators }, (_, i) => {
        const constant = this.#fresh();
        // Tasks of one that may be killed have one tile, so that each happens wholly or not at all.
        return { operator: system.inject('map', adding(constant)), constant, killed: false, mayBeKilled: i % 2 === 0 };
      });
      this.cells = Array.from({ length: cells }, () => ({ buffer: system.buffer(new Float32Array(elements)), last: undefined, sum: 0 }));
      this.counts = { submitted: 0, done: 0, replaced: 0, kills: 0, injected: 0 };
      this.others = [];
    }

    #fresh() {
      return (this.constants++ % CONSTANTS) + 1;
    }

    async #room() {
      const queue = system.queue(0);
      await until(() => queue.depth < queue.slots / 2, LIMIT_MS, 'room in the ring');
    }

    async replace(adder) {
      await this.#room();
      adder.constant = this.#fresh();
      system.replace(adder.operator, 'map', adding(adder.constant));
      this.counts.replaced++;
    }

    /** Kills it, or revives it. It is in the ring when this returns; `ended` tells when it was done. */
    async toggle(adder) {
      await this.#room();
      const changed = adder.killed ? system.revive(adder.operator) : system.kill(adder.operator);
      adder.killed = !adder.killed;
      this.counts.kills++;
      return { ended: outcome(within(changed, LIMIT_MS, 'kill or revive')) };
    }

    async another() {
      await this.#room();
      this.others.push(system.inject('map', { inputs: ['x'], expression: `x * ${1000 + this.counts.injected++}` }));
      if (this.others.length > 10) system.remove(this.others.shift());
    }

    /** A task for one cell, after the one before it. */
    async submit(adder, cell) {
      const { buffer } = cell;
      const request = {
        operator: adder.operator,
        pointers: [buffer.address, buffer.address],
        words: [this.elements],
        tiles: adder.mayBeKilled ? 1 : 1 + random(6),
      };
      let task;
      try {
        task = await put({ ...request, dependencies: cell.last === undefined ? [] : [cell.last] });
      } catch (error) {
        // The one before is known to have failed, so it is over: there is nothing to wait for.
        if (error?.code !== 'GPUOS_DEPENDENCY_FAILED') throw error;
        task = await put(request);
      }
      cell.last = task;
      this.counts.submitted++;
      return { task, cell, adds: adder.constant, killed: adder.killed, mayFail: adder.mayBeKilled };
    }

    any() {
      return this.adders[random(this.adders.length)];
    }

    anyCell() {
      return this.cells[random(this.cells.length)];
    }

    /** Every task ended as it should, and the cells hold the sums of those that ran. */
    async settle(submitted, controls = []) {
      for (const { ended } of controls) assert.equal(await ended, 'done');
      if (submitted.length > 0) await within(outcome(submitted.at(-1).task.done()), 10_000, 'the last task');
      for (const { task, cell, adds, killed, mayFail } of submitted) {
        const ended = await outcome(done(task));
        if (ended === 'done') {
          assert.equal(killed, false, `task ${task.sequence} ran, though it was submitted behind a kill`);
          cell.sum += adds;
          this.counts.done++;
        } else if (ended !== 'GPUOS_DEPENDENCY_FAILED') {
          assert.equal(ended, 'GPUOS_OPERATOR_KILLED', `task ${task.sequence}`);
          assert.ok(mayFail, `task ${task.sequence} was killed with an operator that was not`);
        }
      }
      for (const [i, cell] of this.cells.entries()) {
        const wrong = cell.buffer.read().find((value) => value !== cell.sum);
        assert.equal(wrong, undefined, `cell ${i} holds ${wrong}, not ${cell.sum}`);
        cell.buffer.write(new Float32Array(this.elements));
        cell.sum = 0;
        cell.last = undefined;
      }
      for (const adder of this.adders) if (adder.killed) assert.equal(await (await this.toggle(adder)).ended, 'done');
    }

    close() {
      for (const operator of [...this.adders.map(({ operator }) => operator), ...this.others]) system.remove(operator);
      for (const { buffer } of this.cells) buffer.free();
      open = undefined;
    }
  }

  it('kills and revives in order with the tasks around', TIMEOUT, async () => {
    await ready();
    const load = new Adders(2, 512, 2);
    const [adder, slow] = load.adders;
    const [first, second] = load.cells;
    const before = await load.submit(adder, first);
    await done(before.task);
    // The task behind the kill has to wait for the other cell, until the operator has long been revived.
    const chain = [];
    for (let i = 0; i < 100; i++) chain.push(await load.submit(slow, second));
    const killed = await load.toggle(adder);
    const request = { operator: adder.operator, pointers: [first.buffer.address, first.buffer.address], words: [512] };
    const during = await put({ ...request, dependencies: [chain.at(-1).task] });
    const revived = await load.toggle(adder);
    const behind = await put(request);
    assert.equal(await outcome(done(during)), 'GPUOS_OPERATOR_KILLED');
    await done(behind);
    first.sum += adder.constant;
    await load.settle([before, ...chain], [killed, revived]);
    load.close();
  });

  it('injects, replaces, kills, revives and removes under load without a lost, doubled or wrong task', TIMEOUT, async () => {
    await ready();
    const load = new Adders();
    const end = performance.now() + 3000;
    let rounds = 0;
    for (; performance.now() < end; rounds++) {
      const submitted = [];
      const controls = [];
      for (let i = 0; i < 400; i++) {
        const adder = load.any();
        const event = random(100);
        if (event < 3 && load.counts.replaced < MOST_REPLACED) await load.replace(adder);
        else if (event < 5 && adder.mayBeKilled) controls.push(await load.toggle(adder));
        else if (event === 5 && load.counts.injected < MOST_INJECTED) await load.another();
        submitted.push(await load.submit(adder, load.anyCell()));
      }
      await load.settle(submitted, controls);
    }
    measured.mutation = { rounds, ...load.counts };
    assert.ok(load.counts.replaced > 0 && load.counts.kills > 0 && load.counts.injected > 0 && load.counts.done > 0);
    load.close();
  });

  it('says how much memory is missing, and goes on', TIMEOUT, async () => {
    await ready();
    const n = 4 * MIB;
    const big = tensor(new Float32Array(n).fill(1), [n]);
    const results = Array.from({ length: 20 }, (_, i) => big.add(i));
    const failure = await within(engine().sync(), 10_000, 'sync').catch((error) => error);
    assert.equal(failure?.code, 'GPUOS_OUT_OF_MEMORY', String(failure));
    assert.match(failure.message, /16\.0 MiB asked for; \d+\.\d MiB are in use/);
    // What does not need that much works, also what was recorded with it.
    assert.equal((await within(results[3].data(), 10_000, 'a value'))[n - 1], 4);
    for (const result of results) result.dispose();
    big.dispose();
    await within(engine().settled(), 10_000, 'settled');
    let sizes;
    assert.throws(
      () => system.buffer(2 ** 29),
      (error) => {
        sizes = error.message;
        return error.code === 'GPUOS_OUT_OF_MEMORY';
      },
    );
    assert.match(sizes, /2048\.0 MiB asked for; \d+\.\d MiB are in use/);
    assert.deepEqual([...(await data(tensor(Float32Array.of(1, 2)).add(1)))], [2, 3]);
  });

  const stopped = { ...onGpu, skip: onGpu.skip || notEmulated('its kernel is part of the process that is stopped') };
  it('loses nothing when its process is stopped for three seconds: the kernel leaves and is launched again', stopped, async () => {
    await ready();
    const load = new Adders(4, 512, 2);
    const submitted = [];
    const [pid, ...more] = children();
    assert.deepEqual(more, [], 'there is one device process');
    for (let i = 0; i < 200; i++) submitted.push(await load.submit(load.any(), load.anyCell()));
    let during;
    // The compiler is done: a call of this process that needs the other one would block here.
    for (let count = -1; count !== images(); await rest(500)) count = images();
    // However blocked this one is, the other one goes on.
    const waker = spawn('sh', ['-c', `sleep 4; kill -CONT ${pid}`], { stdio: 'ignore' });
    process.kill(pid, 'SIGSTOP');
    watchdog.stopped(pid);
    const from = performance.now();
    try {
      while (performance.now() - from < 1500) {
        submitted.push(await load.submit(load.any(), load.anyCell()));
        await rest(2);
      }
      // The kernel does not need its process as long as it thinks that this one lives.
      await done(submitted.at(-1).task);
      await rest(2700 - (performance.now() - from));
      for (let i = 0; i < 100; i++) submitted.push(await load.submit(load.any(), load.anyCell()));
      during = submitted.at(-1).task;
      await rest(3000 - (performance.now() - from));
      assert.equal(system.queue(0).isComplete(during.sequence), false, 'the kernel has not left');
      assert.equal(system.device.lost, undefined);
    } finally {
      process.kill(pid, 'SIGCONT');
      watchdog.stopped(0);
      waker.kill();
    }
    const continued = performance.now();
    await done(during);
    measured.backAfterStopMs = rounded(performance.now() - continued);
    await load.settle(submitted);
    assert.equal(load.counts.done, load.counts.submitted);
    assert.ok(children().includes(pid));
    load.close();
  });

  it(`completes for ${SOAK_S} s as many tasks as are submitted`, { timeout: limit(20_000) + 1000 * SOAK_S }, async () => {
    await ready();
    const load = new Adders();
    const processed = () => system.queues.reduce((sum, { index }) => sum + system.peekQueue(index).processed, 0);
    const tails = () => system.queues.reduce((sum, { tail }) => sum + tail, 0);
    await until(() => system.queues.every(({ depth }) => depth === 0), LIMIT_MS, 'an idle device');
    const [atFirst, tailsAtFirst] = [processed(), tails()];
    const counts = { nops: 0, tensors: 0, rounds: 0 };
    const from = performance.now();
    while (performance.now() - from < 1000 * SOAK_S) {
      const submitted = [];
      const x = floats(257, 3);
      const values = [];
      for (let i = 0; i < scaled(5000) && i < 500; i++) {
        submitted.push(await load.submit(load.any(), load.anyCell()));
        counts.nops += 2;
        const own = await nop({ queue: 1, dependencies: [submitted.at(-1).task], tiles: 1 + random(64) });
        await nop({ queue: 1 - (i % 2), dependencies: [own] });
        if (i % 100 === 0) {
          const result = engine().tidy(() => tensor(x, [257]).mul(2).add(i).sum());
          values.push({ result, expected: x.reduce((sum, value) => sum + 2 * value + i, 0) });
        }
      }
      for (const { result, expected } of values) {
        assertClose(await data(result), [expected], 1e-3, 'a sum');
        result.dispose();
        counts.tensors++;
      }
      await load.settle(submitted);
      counts.rounds++;
    }
    await until(() => system.queues.every(({ depth }) => depth === 0), LIMIT_MS, 'an idle device');
    assert.equal(processed() - atFirst, tails() - tailsAtFirst);
    assert.ok(tails() - tailsAtFirst >= load.counts.submitted + counts.nops);
    assert.equal(load.counts.done, load.counts.submitted);
    measured.soak = { seconds: SOAK_S, tasks: tails() - tailsAtFirst, ...counts };
    load.close();
  });

  /** Ends the system after a loss and starts a new one, with the time from the loss to its first task. */
  async function recover(name, lostAt) {
    const lost = performance.now();
    await within(system.shutdown(), 5000, 'shutdown');
    const stopped = performance.now();
    assert.deepEqual(children(), []);
    start();
    const started = performance.now();
    await done(await nop());
    const seconds = (performance.now() - lost) / 1000;
    measured[name] = {
      noticedS: rounded((lost - lostAt) / 1000),
      shutdownS: rounded((stopped - lost) / 1000),
      initS: rounded((started - stopped) / 1000),
      lossToFirstTaskS: rounded(seconds),
    };
    assert.ok(seconds < limit(5), `a new device after ${seconds} s`);
    assert.equal((await data(tensor(Float32Array.of(1, 2)).add(1)))[1], 3);
  }

  it('a task with a bad pointer: what is pending is lost with the device, and a new one is there within five seconds', onGpu, async () => {
    await ready();
    const load = new Adders(4, 512, 2);
    const tasks = [];
    for (let i = 0; i < 100; i++) tasks.push((await load.submit(load.any(), load.anyCell())).task);
    // Past what submit() would let through. Nothing is there.
    const fill = system.operators.builtIn('fill');
    const queue = system.queue(0);
    await until(() => queue.hasSpace, LIMIT_MS, 'room in the ring');
    const bad = system.task(queue, queue.writeInline(fill, 1, [16], [1, 1024, 0], NO_ORDER), fill);
    const from = performance.now();
    for (let i = 0; i < 50; i++) tasks.push(await nop({ dependencies: [bad] }));
    const outcomes = await Promise.all([bad, ...tasks].map((task) => outcome(within(task.done(), 5000, 'the loss'))));
    // It is blamed if nothing else ran by then.
    assert.ok(['GPUOS_DEVICE_LOST', 'GPUOS_TASK_TRAPPED'].includes(outcomes[0]), outcomes[0]);
    assert.deepEqual([...new Set(outcomes.slice(101))], ['GPUOS_DEVICE_LOST']);
    assert.deepEqual(
      outcomes.slice(1).filter((one) => one !== 'done' && one !== 'GPUOS_DEVICE_LOST'),
      [],
    );
    measured.faultOutcomes = tally(outcomes);
    measured.faultReason = system.device.lost;
    assert.equal(await outcome(nop()), 'GPUOS_DEVICE_LOST');
    assert.equal(system.workerAlive(), false);
    await recover('fault', from);
  });

  it('a device process that is killed under load: the same', onGpu, async () => {
    await ready();
    const load = new Adders(4, 512, 2);
    const tasks = [];
    for (let i = 0; i < 100; i++) tasks.push((await load.submit(load.any(), load.anyCell())).task);
    // One that cannot complete, since what it waits for is not to come: the kernel may be done with all else before it is gone.
    const queue = system.queue(0);
    await until(() => queue.hasSpace, LIMIT_MS, 'room in the ring');
    const operator = system.operators.builtIn('nop');
    const stuck = system.task(queue, queue.writeInline(operator, 1, [], [1], { after: queue.tail + 1000, dependencies: [] }), operator);
    const dependent = await nop({ dependencies: [stuck] });
    const [pid] = children();
    const from = performance.now();
    process.kill(pid, 'SIGKILL');
    const outcomes = await Promise.all([stuck, dependent, ...tasks].map((task) => outcome(within(task.done(), 5000, 'the loss'))));
    assert.deepEqual(outcomes.slice(0, 2), ['GPUOS_DEVICE_LOST', 'GPUOS_DEVICE_LOST']);
    assert.deepEqual(
      outcomes.filter((one) => one !== 'done' && one !== 'GPUOS_DEVICE_LOST'),
      [],
    );
    measured.killOutcomes = tally(outcomes);
    assert.match(system.device.lost, /SIGKILL/);
    await recover('killed', from);
  });

  it('leaves no process and no shared memory behind', onGpu, async () => {
    await ready();
    const load = new Adders(4, 512, 2);
    for (let i = 0; i < 100; i++) await load.submit(load.any(), load.anyCell());
    assert.equal(children().length, 1);
    assert.ok(sharedMemory().mapped > clean.mapped);
    const from = performance.now();
    await within(system.shutdown(), 5000, 'shutdown');
    measured.shutdownMs = Math.round(performance.now() - from);
    assert.deepEqual(children(), []);
    assert.equal(current(), undefined);
    measured.leftBehind = sharedMemory();
    assert.deepEqual(measured.leftBehind, clean);
  });

  it('has another function in its table once a new kernel is compiled', onGpu, async () => {
    // Below the public calls, where the table's entry can be read; with a device process of its own.
    const layout = planSegment({ queues: 1, slots: 64, firstSequence: 0 });
    const n = 1001;
    const [xAt, yAt, outAt, entryAt] = [0, 1, 2, 3].map((i) => layout.end + 8192 * i);
    const staging = layout.end + MIB;
    const segment = SharedSegment.create(staging + BYTECODE_BYTES);
    let device;
    try {
      writeSegment(new Uint32Array(segment.view), layout);
      const hostModule = new URL('../../dist/backends/cuda/resident.js', import.meta.url).href;
      device = DeviceProcess.start({ segment, hostModule });
      const { computeCapability, nvrtcVersion, segmentAddress } = device.info;
      const payload = new ImageCache(home).read(residentKey(computeCapability, nvrtcVersion));
      const bytecode = device.call('allocate', { bytes: BYTECODE_BYTES }).address;
      const options = { layout, controlSlot: 0, interpreterSlot: BUILT_IN.indexOf('interpret') };
      const { started } = device.call('start', { options, payload });
      const { functions: table, registers, stackBytes, interpreter } = started;
      const functions = new DirectFunctions(device, new ImageCache(join(home, 'other')), {
        staging: { view: segment.view, offset: staging, address: segmentAddress + staging },
        budget: { registers, stackBytes },
        first: BUILT_IN.length + 2,
        limit: 8192,
        interpreter,
        bytecode,
        tiered: true,
      });
      new Float32Array(segment.view, xAt, n).set(floats(n, 3));
      new Float32Array(segment.view, yAt, n).set(floats(n, 3));
      const queue = new Producer(new Int32Array(segment.view), layout, 0, () => assert.fail('the ring is full'));
      functions.setChanges((pointers, words) => queue.submit({ operator: options.controlSlot, pointers, words }));
      const entry = async (fn) => {
        await until(() => queue.mark === queue.tail, LIMIT_MS, 'the change');
        device.call('copyOut', { address: table + 16 * fn, segmentOffset: entryAt, bytes: 16 }, { limitMs: LIMIT_MS });
        return new BigUint64Array(segment.view, entryAt, 2).slice();
      };
      const slot = 500;
      const run = async () => {
        new Float32Array(segment.view, outAt, n).fill(Number.NaN);
        const pointers = [xAt, yAt, outAt].map((at) => segmentAddress + at);
        const task = queue.submit({ operator: slot, pointers, words: [n], tiles: 3 });
        await until(() => queue.status(task) !== undefined, LIMIT_MS, 'the task');
        assert.equal(queue.status(task), 0);
        return new Int32Array(segment.view, outAt, n).slice();
      };
      const fn = functions.install(functions.compile(programFromTemplate('map', parameters(0.75)).program));
      const first = await entry(fn);
      assert.equal(first[0], BigInt(interpreter));
      queue.control(CONTROL.publish, slot, fn, 1);
      const interpreted = await run();
      await until(() => functions.state.compiling === 0, COMPILE_MS, 'the compiler');
      assert.equal(functions.state.failed, undefined);
      const second = await entry(fn);
      assert.notEqual(second[0], first[0]);
      assert.equal(second[1], first[1]);
      assert.deepEqual(await run(), interpreted);
      assert.equal(device.lost, undefined);
    } finally {
      await device?.stop();
      segment.close();
    }
  });
});
