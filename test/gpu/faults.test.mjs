/**
 * What happens to tasks that go wrong on the cuda device, with the built package (`npm run test:gpu`): past their budget,
 * with a fault of the device, or with an operator that is not there. And what else a worker may be asked: to give way,
 * and what it has done.
 */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { FLAG, MAX_TILES } from '../../dist/abi/status.js';
import { probe } from '../../dist/backends/cuda/probe.js';
import { DeviceProcess } from '../../dist/backends/cuda/process/device-process.js';
import { OPERATOR_OPTIONS, operatorHeaders } from '../../dist/backends/cuda/source.js';
import { GpuosError, init } from '../../dist/index.js';
import { NO_ORDER } from '../../dist/runtime/queue.js';
import { EMULATED, guard, limit, rest, rounded, within } from './support.mjs';

const found = probe();
const why = found.missing.map(({ what }) => what).join('; ');
const BUDGET_MS = EMULATED ? 1500 : 300;
/** A step of the operator that is slow: several of them are past the budget. */
const STEP_MS = BUDGET_MS / 4;
const LIMIT_MS = limit(3000);
const TIMEOUT = { timeout: limit(30_000) };
/** How long a worker gives way, at least: see GPUOS_YIELD_NS, and emulation/driver.ts. */
const YIELD_MS = EMULATED ? 20 : 0.1;
const SYMBOL = 'gpuos_operator';
/** The last of the table: nothing that the tests inject gets there. */
const FUNCTION = 8000;
const PUBLISH = 1;

const PRELUDE = `
#include <stdint.h>
#ifdef EMULATION_INJECTED
#include "memory.cuh"
#else
static __device__ __forceinline__ uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
#endif
extern "C" __device__ __noinline__ uint32_t ${SYMBOL}(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data)`;
const BODIES = {
  // Counts its calls, and takes so many us each time.
  slow: `{
    if (threadIdx.x != 0) return 0;
    const uint32_t *words = (const uint32_t *)(params + 4);
    volatile uint32_t *calls = (volatile uint32_t *)params[0] + tile;
    *calls = *calls + 1;
    for (const uint64_t from = now_ns(); now_ns() - from < words[1] * 1000ull;);
    return 0;
  }`,
  // For as long as a word is 0: for ever.
  endless: '{ while (*(volatile uint32_t *)params[0] == 0); return 0; }',
};

const failure = (promise) =>
  promise.then(
    () => undefined,
    (error) => (error instanceof GpuosError ? error : assert.fail(`not a GpuosError: ${error}`)),
  );

describe('what goes wrong on the cuda device', { skip: found.ready ? false : `missing ${why}` }, () => {
  const measured = {};
  const startProcess = DeviceProcess.start;
  let watchdog;
  let system;
  /** The device process of the system, and what its kernel said when it was started. */
  let device;
  let started;
  let operators;

  before(() => {
    watchdog = guard(limit(120));
    DeviceProcess.start = (options) => {
      device = startProcess.call(DeviceProcess, options);
      const call = device.call.bind(device);
      device.call = (name, ...rest) => {
        const answer = call(name, ...rest);
        if (name === 'start') started = answer.started;
        return answer;
      };
      return device;
    };
  });
  after(async () => {
    console.log(JSON.stringify({ test: 'faults', device: system?.device.name, ...measured }));
    DeviceProcess.start = startProcess;
    await within(system?.shutdown() ?? Promise.resolve(), limit(5000), 'shutdown');
    watchdog.release();
  });

  /** A system that works, with operators that the library does not have: under the names of some that were injected. */
  async function ready() {
    if (system?.device.lost === undefined && system !== undefined) return;
    await system?.shutdown();
    system = init({ device: 'cuda', memoryMib: 64, queues: 2, taskBudgetMs: BUDGET_MS, firstSequence: 2 ** 32 - 20 });
    operators = {};
    for (const [i, [name, body]] of Object.entries(BODIES).entries()) {
      const { registers, stackBytes, functions } = started;
      const ask = {
        source: `${PRELUDE} ${body}`,
        headers: operatorHeaders(),
        name: 'operator.cu',
        options: OPERATOR_OPTIONS,
        symbol: SYMBOL,
      };
      const placed = device.call('inject', { ...ask, budget: { registers, stackBytes } });
      assert.ok('address' in placed, JSON.stringify(placed.refused));
      const payload = new Uint8Array(new BigUint64Array([BigInt(placed.address), 0n]).buffer);
      device.call('write', { address: functions + 16 * (FUNCTION + i), payload });
      const operator = system.inject('map', { inputs: ['x'], expression: `x + ${i}` });
      const control = system.operators.builtIn('controlTable');
      system.queue(0).writeInline(control, 1, [], [PUBLISH, operator.id, FUNCTION + i, 99], NO_ORDER, FLAG.BARRIER);
      operators[name] = operator;
    }
    await done(nop());
  }

  const put = (request) => system.submit({ ...request, wait: false });
  const nop = (more = {}) => put({ operator: 'nop', words: [1], ...more });
  const done = (task, ms = LIMIT_MS) => within(task.done(), ms, `task ${task.sequence}`);
  const failed = (task, ms = LIMIT_MS) => failure(done(task, ms));
  const slow = (tiles, calls, us = 1000 * STEP_MS) =>
    put({ operator: operators.slow, pointers: [calls.address, calls.address], words: [1, us], tiles });
  const words = (buffer) => new Uint32Array(buffer.read().buffer);

  /** A chain of so many stages that are all the same operator: its steps are on one worker, however many there are. */
  function chain(stages, calls) {
    const queue = system.queue(0);
    const { viewBase } = system.device;
    const block = system.hostHeap.allocate(64 * (stages + 4), queue.mark, true);
    const to = system.device.views().u32;
    const at = (block.address - viewBase) / 4;
    to.fill(0, at, at + 16 * (stages + 4));
    const stageAt = block.address + 64 * (stages + 2);
    const stage = (stageAt - viewBase) / 4;
    to[stage] = calls.address;
    to[stage + 1] = Math.floor(calls.address / 2 ** 32);
    to[stage + 9] = 1000 * STEP_MS;
    to[at + 8] = 1;
    to[at + 9] = stages;
    for (let i = 0; i < stages; i++) {
      to[at + 10 + 2 * i] = operators.slow.id | (1 << 16);
      to[at + 11 + 2 * i] = stageAt - viewBase;
    }
    const operator = system.operators.builtIn('chain');
    return system.task(queue, queue.writeDescriptor(operator, 1, block.address, 40 + 8 * stages, NO_ORDER), operator);
  }

  /** From a lost device to a new one that works. */
  async function again(what, from) {
    measured[`${what}NoticedMs`] = rounded(performance.now() - from);
    const lost = performance.now();
    await within(system.shutdown(), limit(5000), 'shutdown');
    system = init({ device: 'cuda', memoryMib: 64, taskBudgetMs: BUDGET_MS });
    await done(nop());
    const ms = performance.now() - lost;
    measured[`${what}ToNextTaskMs`] = rounded(ms);
    assert.ok(ms < limit(5000), `a new device after ${ms} ms`);
    await system.shutdown();
    system = undefined;
  }

  it('ends a task past its budget between two stages, and nothing else', TIMEOUT, async () => {
    await ready();
    const calls = system.buffer(MAX_TILES);
    calls.write(new Float32Array(MAX_TILES));
    const from = performance.now();
    const task = chain(16, calls);
    const [dependent, next] = [nop({ dependencies: [task] }), nop({ queue: 1 })];
    await done(next);
    const error = await failed(task, 10 * BUDGET_MS);
    measured.endedAfterMs = rounded(performance.now() - from);
    assert.equal(error?.code, 'GPUOS_TASK_TIMEOUT');
    assert.match(error.message, new RegExp(`^Task ${task.sequence} of queue 0 \\(operator chain\\) ran past its budget`));
    assert.equal((await failed(dependent))?.code, 'GPUOS_DEPENDENCY_FAILED');
    // Four steps are within it, give and take what the clock and a busy machine do to them.
    assert.ok(words(calls)[0] >= 2 && words(calls)[0] <= 6, `${words(calls)[0]} stages`);
    await done(nop());
    assert.equal(system.device.lost, undefined);
  });

  it('ends a task past its budget between two tiles', TIMEOUT, async (t) => {
    await ready();
    const { workers } = system.device;
    if (2 * workers > MAX_TILES) return t.skip('each worker of this device has one tile at most');
    const calls = system.buffer(MAX_TILES);
    calls.write(new Float32Array(MAX_TILES));
    const error = await failed(slow(MAX_TILES, calls), 10 * BUDGET_MS);
    assert.equal(error?.code, 'GPUOS_TASK_TIMEOUT');
    const ran = words(calls).reduce((sum, count) => sum + count, 0);
    assert.ok(ran >= workers && ran < MAX_TILES, `${ran} tiles`);
    assert.deepEqual(
      [...words(calls)].filter((count) => count > 1),
      [],
    );
    await done(nop());
    assert.equal(system.device.lost, undefined);
  });

  it('lets tasks take as long as they may', TIMEOUT, async () => {
    await ready();
    const calls = system.buffer(MAX_TILES);
    // One after the other, more than the budget together.
    let last;
    for (let i = 0; i < 6; i++) last = slow(1, calls);
    for (let i = 0; i < 4; i++) slow(Math.min(3, system.device.workers), calls);
    await done(last, 20 * BUDGET_MS);
    await done(nop(), 20 * BUDGET_MS);
    await rest(200);
    assert.equal(system.device.lost, undefined);
    assert.equal(system.queue(0).hasFailures && system.workers().some(({ state }) => state !== 'running'), false);
  });

  it('gives up the device for a task that cannot be ended, which is named, and has a new one within five seconds', TIMEOUT, async () => {
    await ready();
    const cell = system.buffer(1);
    cell.write([0]);
    const from = performance.now();
    const task = put({ operator: operators.endless, pointers: [cell.address, cell.address], words: [1] });
    const dependent = nop({ dependencies: [task] });
    await done(nop({ queue: 1 }));
    const [error, lost] = await Promise.all([failed(task, BUDGET_MS + LIMIT_MS), failed(dependent, BUDGET_MS + LIMIT_MS)]);
    const ms = performance.now() - from;
    assert.ok(ms >= BUDGET_MS, `ended after ${ms} ms`);
    assert.ok(ms < BUDGET_MS + limit(1500), `ended after ${ms} ms`);
    assert.equal(error?.code, 'GPUOS_TASK_TIMEOUT');
    assert.ok(
      error.message.startsWith(`Task ${task.sequence} of queue 0 (operator ${operators.endless.name}) ran past its budget`),
      error.message,
    );
    assert.equal(lost?.code, 'GPUOS_DEVICE_LOST');
    assert.match(
      lost.message,
      new RegExp(`^Task ${dependent.sequence} of queue 0 \\(operator nop\\) is lost: .*ran past the budget of ${BUDGET_MS} ms`),
    );
    assert.match(system.device.lost, new RegExp(`task ${task.sequence >>> 0} of queue 0 \\(operator in slot ${operators.endless.id}\\)`));
    assert.equal(system.workerAlive(), false);
    await again('endless', from);
  });

  /** Writes to an address where nothing is: past what submit() would let through. */
  function bad() {
    const fill = system.operators.builtIn('fill');
    const queue = system.queue(0);
    return system.task(queue, queue.writeInline(fill, 1, [16], [1, 1024, 0], NO_ORDER), fill);
  }

  it('puts a fault down to the task that ran alone', TIMEOUT, async () => {
    await ready();
    const from = performance.now();
    const task = bad();
    const dependent = nop({ dependencies: [task] });
    const [error, lost] = await Promise.all([failed(task), failed(dependent)]);
    assert.equal(error?.code, 'GPUOS_TASK_TRAPPED');
    assert.match(error.message, new RegExp(`^Task ${task.sequence} of queue 0 \\(operator fill\\) trapped`));
    assert.equal(lost?.code, 'GPUOS_DEVICE_LOST');
    assert.match(system.device.lost, new RegExp(`task ${task.sequence >>> 0} of queue 0`));
    await again('fault', from);
  });

  it('names all that ran where a fault may be that of several, and blames none', TIMEOUT, async () => {
    await ready();
    const calls = system.buffer(MAX_TILES);
    const other = put({ operator: operators.slow, pointers: [calls.address, calls.address], words: [1, 500 * BUDGET_MS], queue: 1 });
    const task = bad();
    const errors = await Promise.all([failed(task), failed(other)]);
    assert.deepEqual(
      errors.map((error) => error?.code),
      ['GPUOS_DEVICE_LOST', 'GPUOS_DEVICE_LOST'],
    );
    for (const { queue, sequence } of [task, other])
      assert.match(system.device.lost, new RegExp(`task ${sequence >>> 0} of queue ${queue} `));
    await again('severalFaults', performance.now());
  });

  it('refuses what has no operator, or too few pointers for it, before it reaches the device', TIMEOUT, async () => {
    await ready();
    const code = (action) => {
      try {
        action();
      } catch (error) {
        return error.code;
      }
      return 'none';
    };
    assert.equal(
      code(() => put({ operator: 5000, words: [1] })),
      'GPUOS_OPERATOR_OUT_OF_RANGE',
    );
    assert.equal(
      code(() => put({ operator: 'fill', words: [1, 1024, 0] })),
      'GPUOS_BAD_DESCRIPTOR',
    );
    assert.equal(
      code(() => put({ operator: 'chain', words: [1, 1] })),
      'GPUOS_BAD_DESCRIPTOR',
    );
    // And what came there all the same: the device looks too.
    const queue = system.queue(0);
    const task = system.task(queue, queue.writeInline(5000, 1, [], [1], NO_ORDER), 5000);
    assert.equal((await failed(task))?.code, 'GPUOS_OPERATOR_OUT_OF_RANGE');
    await done(nop());
  });

  it('has workers that give way after so many tiles', TIMEOUT, async () => {
    await ready();
    const each = EMULATED ? 8 : 100;
    const time = async (every) => {
      system.setYieldEvery(every);
      // The kernel looks at it now and then.
      await rest(limit(20));
      // Written straight into the ring: submit() would take longer for them than the pauses do.
      const queue = system.queue(0);
      const slot = system.operators.builtIn('nop');
      const from = performance.now();
      for (let i = 0; i < each * system.device.workers; i++) queue.writeInline(slot, 1, [], [1], NO_ORDER);
      queue.waitSync(queue.tail - 1);
      return performance.now() - from;
    };
    await time(0);
    const [never, always, half, after] = [await time(0), await time(1), await time(2), await time(0)];
    Object.assign(measured, { yieldMs: [never, always, half, after].map(rounded) });
    // Tasks go to the workers in turn: each has as many, and pauses behind all but perhaps the last.
    assert.ok(always >= (each - 1) * YIELD_MS, `${always} ms with a pause after each tile`);
    assert.ok(half >= (each / 2 - 1) * YIELD_MS && half < always, `${half} ms with a pause after every second`);
    assert.ok(after < always, `${after} ms without pauses`);
  });

  it('has workers that count what they did', TIMEOUT, async () => {
    await ready();
    const sums = () =>
      system
        .workers()
        .reduce(
          (sum, worker) => ({ tasks: sum.tasks + worker.tasks, tiles: sum.tiles + worker.tiles, failed: sum.failed + worker.failed }),
          {
            tasks: 0,
            tiles: 0,
            failed: 0,
          },
        );
    const settled = async () => {
      // Workers write down what they counted when they have nothing to do.
      for (let seen; JSON.stringify(seen) !== JSON.stringify(sums()); await rest(limit(30))) seen = sums();
      return sums();
    };
    const first = await settled();
    const calls = system.buffer(MAX_TILES);
    let last;
    for (let i = 0; i < 50; i++) last = nop();
    for (let i = 0; i < 5; i++) last = slow(7, calls, 1);
    await done(last, 10 * LIMIT_MS);
    await done(nop());
    const second = await settled();
    assert.deepEqual(
      { tasks: second.tasks - first.tasks, tiles: second.tiles - first.tiles, failed: second.failed - first.failed },
      { tasks: 56, tiles: 86, failed: 0 },
    );
    const queue = system.queue(0);
    await failed(system.task(queue, queue.writeInline(5000, 1, [], [1], NO_ORDER), 5000));
    assert.equal((await settled()).failed - second.failed, 1);
    assert.ok(system.workers().every(({ state, parks }) => state === 'running' && parks >= 0));
  });
});
