/**
 * The resident kernel on a real device, in this very process (`npm run test:gpu`): what only the device's own order,
 * memory and time can show. Uses the built package and nothing else.
 */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { control, workerRecord } from '../../dist/abi/records.js';
import { CONTROL_ADDRESS, MAX_TILES, STATUS } from '../../dist/abi/status.js';
import { CudaDriver } from '../../dist/backends/cuda/driver.js';
import { readInjectable } from '../../dist/backends/cuda/elf/injectable.js';
import { ImageCache } from '../../dist/backends/cuda/image-cache.js';
import { INTERPRETER } from '../../dist/backends/cuda/injection/function-mirror.js';
import { encodeProgram } from '../../dist/backends/cuda/interpreter/index.js';
import { planSegment, writeSegment } from '../../dist/backends/cuda/layout.js';
import { koffi } from '../../dist/backends/cuda/library.js';
import { Nvrtc } from '../../dist/backends/cuda/nvrtc.js';
import { probe } from '../../dist/backends/cuda/probe.js';
import { CodeArena } from '../../dist/backends/cuda/process/code-arena.js';
import { ResidentKernel } from '../../dist/backends/cuda/resident.js';
import { OPERATOR_OPTIONS, RESIDENT_OPTIONS, residentSource } from '../../dist/backends/cuda/source.js';
import { lower } from '../../dist/backends/lowering/index.js';
import { cacheFolder } from '../../dist/flags.js';
import {
  BUILT_IN,
  CONTROL,
  EMULATED,
  generator,
  giveUp,
  giveWay,
  guard,
  limit,
  Producer,
  residentKey,
  rest,
  rounded,
  scaled,
  sorted,
} from './support.mjs';

const found = probe();
const why = found.missing.map(({ what }) => what).join('; ');

const NOP = BUILT_IN.indexOf('nop');
const SLOTS = 4096;
const TIMEOUT = { timeout: limit(20_000) };
/** How long anything may take that is a matter of milliseconds. */
const LIMIT_MS = limit(3000);
const MIB = 2 ** 20;
/** The segment, its last part for copies of device memory. */
const SEGMENT_BYTES = 24 * MIB;
const STAGING = 16 * MIB;
const COUNTER_BYTES = 12 * MIB;
const ARENA_BYTES = MIB;
const CURVES = 12;

const PRELUDE = `
#define WORDS ((const unsigned *)(params + 4))
#define EACH(n) for (unsigned i = tile * blockDim.x + threadIdx.x; i < n; i += tiles * blockDim.x)
#ifdef EMULATION_INJECTED
#include "memory.cuh"
#define COUNT_ONE(counter) atomicAdd(counter, 1u)
#else
static __device__ __forceinline__ unsigned long long now_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
// Not atomicAdd: of that, some architectures' compilers leave a choice to the linker, which there is none for injected code.
#define COUNT_ONE(counter) asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory")
#endif
extern "C" __device__ __noinline__ unsigned gpuos_operator(
  const unsigned long long *params, unsigned tile, unsigned tiles, char *shared, const unsigned *data)`;
const BODIES = {
  // x = 3 x + k modulo 2^32: a step that is lost, doubled or out of order changes the result.
  step: `{
    unsigned *x = (unsigned *)params[0]; const unsigned n = WORDS[0], k = WORDS[1];
    EACH(n) x[i] = x[i] * 3 + k;
    return 0;
  }`,
  // Counts each call for a tile, and takes a while.
  count: `{
    const unsigned ns = WORDS[1];
    unsigned *counter = (unsigned *)params[0] + WORDS[0] + tile;
    if (threadIdx.x != 0) return 0;
    COUNT_ONE(counter);
    for (const unsigned long long from = now_ns(); now_ns() - from < ns;);
    return 0;
  }`,
  one: '{ if (threadIdx.x == 0) ((unsigned *)params[0])[WORDS[0]] = 1; return 0; }',
  two: '{ if (threadIdx.x == 0) ((unsigned *)params[0])[WORDS[0]] = 2; return 0; }',
};
for (let k = 0; k < CURVES; k++) {
  BODIES[`curve_${k}`] = `{
    const float *x = (const float *)params[0]; float *out = (float *)params[1]; const unsigned n = WORDS[0];
    EACH(n) out[i] = x[i] * ${k}.0f + ${k % 2 === 0 ? 'expf(x[i])' : '0.5f'};
    return 0;
  }`;
}
/** Slot and function of each, where a test enters them. */
const NAMES = Object.keys(BODIES);
const SLOT = Object.fromEntries(NAMES.map((name, i) => [name, 100 + i]));
const FUNCTION = Object.fromEntries(NAMES.map((name, i) => [name, BUILT_IN.length + 2 + i]));

describe('the resident kernel', { skip: found.ready ? false : `missing ${why}` }, () => {
  const measured = {};
  let watchdog;
  let driver;
  let device;
  let side;
  let image;
  let segment;
  const cubins = {};
  let arena;
  let sm;
  let counters;
  let values;
  /** Set when the kernel did not leave: nothing can run on the device any more. */
  let stuck;

  before(
    () => {
      // The compiler may take minutes where nothing is cached.
      watchdog = guard(400);
      process.env.CUDA_MODULE_LOADING = 'EAGER';
      driver = new CudaDriver();
      driver.initialize();
      device = driver.device(found.gpus.find(({ unfit }) => unfit.length === 0).ordinal);
      driver.setCurrent(driver.retainPrimaryContext(device));
      const capability = driver.computeCapability(device);
      sm = 10 * capability[0] + capability[1];
      const nvrtc = new Nvrtc(undefined, Math.floor(driver.version() / 1000));
      const cache = new ImageCache(cacheFolder(process.env.GPUOS_HOME));
      const key = residentKey(capability, nvrtc.version);
      const target = `sm_${sm}`;
      const from = performance.now();
      image = cache.read(key);
      measured.cached = image !== undefined;
      if (image === undefined) {
        const compiled = nvrtc.compile({ ...residentSource(), name: 'resident.cu', target, options: RESIDENT_OPTIONS });
        image = driver.link([{ kind: 'cubin', name: 'resident.cu', bytes: compiled.image }]);
        cache.write(key, image);
      }
      measured.imageMs = rounded(performance.now() - from);
      measured.imageBytes = image.length;
      for (const [name, body] of Object.entries(BODIES)) {
        cubins[name] = nvrtc.compile({ source: `${PRELUDE} ${body}`, name: 'operator.cu', target, options: OPERATOR_OPTIONS }).image;
      }
      side = driver.createStream(driver.streamPriorities().greatest);
      const address = driver.allocateHost(SEGMENT_BYTES);
      const view = koffi().view(address, SEGMENT_BYTES);
      segment = { address, deviceAddress: driver.deviceAddress(address), bytes: SEGMENT_BYTES, view };
      arena = new CodeArena(driver.allocate(ARENA_BYTES), ARENA_BYTES, new Int32Array(new SharedArrayBuffer(4)));
      counters = driver.allocate(COUNTER_BYTES);
      values = driver.allocate(MIB);
      watchdog.release();
      watchdog = guard(limit(60));
    },
    { timeout: 400_000 },
  );
  after(async () => {
    console.log(JSON.stringify({ test: 'resident', device: driver?.deviceName(device), ...measured }));
    if (stuck !== undefined) {
      await rest(200);
      giveUp(stuck);
    }
    watchdog?.release();
    if (side !== undefined) driver.releasePrimaryContext(device);
  });

  /** Waits for the side stream. */
  function copied() {
    for (const end = performance.now() + LIMIT_MS; !driver.streamDone(side); )
      if (performance.now() > end) throw new Error(`a copy took more than ${LIMIT_MS} ms`);
  }

  /** Zeroes device memory; while no kernel runs, as that is a kernel of the driver's own. */
  function clear(address, bytes) {
    driver.fillBytes(address, 0, bytes, side);
    copied();
  }

  /** 32-bit words of device memory. */
  function read(address, count, Type = Uint32Array) {
    const result = new Type(count);
    const bytes = SEGMENT_BYTES - STAGING;
    for (let at = 0; at < 4 * count; at += bytes) {
      const part = Math.min(bytes, 4 * count - at);
      driver.copyToHost(segment.address + STAGING, address + at, part, side);
      copied();
      result.set(new Type(segment.view, STAGING, part / 4), at / 4);
    }
    return result;
  }

  function write(address, array) {
    new Uint8Array(segment.view, STAGING, array.byteLength).set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
    driver.copyToDevice(address, segment.address + STAGING, array.byteLength, side);
    copied();
  }

  /** A kernel that runs, with what a test needs of it. */
  class Rig {
    constructor({ queues = 1, firstSequence = 0, workers } = {}) {
      assert.equal(stuck, undefined, stuck);
      const layout = planSegment({ queues, slots: SLOTS, firstSequence });
      assert.ok(layout.end <= STAGING);
      this.layout = layout;
      this.words = new Int32Array(segment.view);
      writeSegment(new Uint32Array(segment.view), layout);
      this.allocated = [];
      const allocate = (bytes) => {
        const address = driver.allocate(bytes);
        this.allocated.push(address);
        return address;
      };
      this.kernel = new ResidentKernel({ driver, device, segment, allocate });
      this.started = this.kernel.start({ layout, workers, controlSlot: 0, interpreterSlot: BUILT_IN.indexOf('interpret') }, image);
      this.queues = layout.queueList.map(
        (_, i) => new Producer(this.words, layout, i, (full) => this.wait(() => !full(), 'room in the ring')),
      );
    }

    beat() {
      Atomics.add(this.words, (CONTROL_ADDRESS + control.offset.heartbeat) >> 2, 1);
    }

    set quit(value) {
      Atomics.store(this.words, (CONTROL_ADDRESS + control.offset.quit) >> 2, value);
    }

    /** Looks until the condition holds, and shows that the host is alive. */
    wait(condition, what, ms = LIMIT_MS) {
      const end = performance.now() + ms;
      while (!condition()) {
        this.beat();
        giveWay();
        if (performance.now() <= end) continue;
        const state = this.queues.map(({ mark, head, tail }) => `mark ${mark}, head ${head}, tail ${tail}`).join('; ');
        throw new Error(`${what}: not within ${ms} ms (${state}; the kernel has ${this.kernel.left ? '' : 'not '}left)`);
      }
    }

    /** Tasks that each worker has ended. It says so when it has been without work for a while. */
    tasksOfWorkers() {
      const { workerRecords } = this.layout;
      const at = (worker) => (workerRecords + (worker + 1) * workerRecord.size + workerRecord.offset.tasks) >> 2;
      return Array.from({ length: this.started.workers }, (_, worker) => Atomics.load(this.words, at(worker)));
    }

    complete() {
      for (const queue of this.queues) this.wait(() => queue.mark === queue.tail, `all tasks of queue ${queue.index}`);
    }

    leave() {
      this.quit = 1;
      this.wait(() => this.kernel.left, 'the kernel leaves');
    }

    /** Places code; the kernel may be running. */
    place(name) {
      const { registers, stackBytes } = this.started;
      const code = readInjectable(cubins[name], 'gpuos_operator', { sm, registers, stackBytes });
      assert.ok(code.ok, `${name}: ${JSON.stringify(code.reasons)}`);
      write(this.started.functions + 16 * FUNCTION[name], BigUint64Array.of(BigInt(arena.place(code.function, driver, side)), 0n));
    }

    /** Enters operators in their slots; tasks of every queue may name them from the return on. */
    enter(...names) {
      for (const name of names) {
        this.place(name);
        this.queues[0].control(CONTROL.publish, SLOT[name], FUNCTION[name], 1);
      }
      this.wait(() => this.queues[0].mark === this.queues[0].tail, 'operators are entered');
    }
  }

  /** Runs `body` with a kernel, which has left when this returns. */
  async function withKernel(options, body) {
    // What the tests before have said gets out first: this one may be the last.
    await rest(1);
    const rig = new Rig(options);
    try {
      await body(rig, rig.queues[0]);
    } finally {
      try {
        if (!rig.kernel.left) rig.leave();
        rig.kernel.stop();
        for (const address of rig.allocated) driver.free(address);
      } catch (error) {
        stuck = `The kernel could not be ended: ${error.message}`;
      }
    }
    assert.equal(stuck, undefined, stuck);
  }

  /** The value of a word after these steps. */
  const stepped = (ks, from = 0) => ks.reduce((x, k) => (Math.imul(x, 3) + k) >>> 0, from);

  /** Everything is complete, nothing failed, and what the kernel says of a queue agrees with itself. */
  function assertAllDone(queue) {
    assert.deepEqual([queue.mark, queue.head, queue.failures], [queue.tail, queue.tail, 0]);
    const from = Math.max(queue.first, queue.tail - SLOTS);
    for (let sequence = from; sequence < queue.tail; sequence++) {
      assert.equal(queue.status(sequence), 0, `task ${sequence}`);
    }
  }

  for (const firstSequence of [0, 2 ** 32 - 1000]) {
    it(`completes a hundred thousand tasks from sequence ${firstSequence} on, in order`, TIMEOUT, async () => {
      clear(values, 256);
      const ks = [];
      await withKernel({ firstSequence }, (rig, queue) => {
        rig.enter('step');
        let step;
        const from = performance.now();
        for (let i = 0; i < scaled(100_000); i++) {
          if (i % 256 === 0) rig.beat();
          if (i % 10 === 0) {
            const dependencies = step === undefined ? [] : [[0, step]];
            step = queue.submit({ operator: SLOT.step, pointers: [values], words: [64, i], dependencies });
            ks.push(i);
          } else {
            queue.submit({ operator: NOP, dependencies: i % 3 === 0 ? [[0, queue.tail - 1]] : [] });
          }
        }
        rig.complete();
        measured[`hundredThousandMs${firstSequence === 0 ? '' : 'Wrapping'}`] = rounded(performance.now() - from);
        assertAllDone(queue);
        const expected = stepped(ks);
        assert.ok(
          read(values, 64).every((value) => value === expected),
          'a step was lost, doubled or out of order',
        );
      });
    });
  }

  it('runs tasks that depend on one another in order, over many workers and with many tiles', TIMEOUT, async () => {
    const n = 10_000;
    clear(values, 4 * n);
    await withKernel({}, (rig, queue) => {
      rig.enter('step');
      const ks = [];
      for (let i = 0; i < scaled(2000); i++) {
        // By the task before, or by all tasks up to it.
        const order = i === 0 ? {} : i % 2 === 0 ? { dependencies: [[0, queue.tail - 1]] } : { after: queue.tail - 1 };
        queue.submit({ operator: SLOT.step, pointers: [values], words: [n, i], tiles: 1 + ((i * 7) % MAX_TILES), ...order });
        ks.push(i);
        if (i % 64 === 0) rig.beat();
      }
      rig.complete();
      assertAllDone(queue);
      const expected = stepped(ks);
      const result = read(values, n);
      assert.equal(
        result.findIndex((value) => value !== expected),
        -1,
      );
    });
  });

  it(
    'fails an unknown operator, an empty slot and a number of tiles out of range, their dependents with them; the next task runs',
    TIMEOUT,
    async () => {
      await withKernel({}, (rig, queue) => {
        const bad = [{ operator: 99_999 }, { operator: 3000 }, { operator: NOP, tiles: 0 }, { operator: NOP, tiles: MAX_TILES + 1 }].map(
          (task) => queue.submit(task),
        );
        const dependent = queue.submit({ operator: NOP, dependencies: bad.map((sequence) => [0, sequence]) });
        const second = queue.submit({ operator: NOP, tiles: 5, dependencies: [[0, dependent]] });
        const next = queue.submit({ operator: NOP, tiles: 3 });
        rig.complete();
        assert.deepEqual(
          [...bad, dependent, second, next].map((sequence) => queue.status(sequence)),
          [STATUS.OUT_OF_RANGE_ID, STATUS.EMPTY_SLOT, STATUS.FAILED, STATUS.FAILED, STATUS.DEPENDENCY_FAILED, STATUS.DEPENDENCY_FAILED, 0],
        );
        assert.equal(queue.failures, 6);
      });
    },
  );

  it('leaves a run of tasks that wait for one another with one worker, and goes on with the next', TIMEOUT, async () => {
    await withKernel({ workers: 4 }, (rig, queue) => {
      let ended = 0;
      for (const [length, by] of [
        [8, 'dependency'],
        [8, 'after'],
        [24, 'dependency'],
        [5, 'after'],
      ]) {
        const before = rig.tasksOfWorkers();
        // Behind a task of several tiles nobody knows who ends it.
        queue.submit({ operator: NOP, tiles: 4 });
        for (let i = 0; i < length; i++) {
          const last = queue.tail - 1;
          queue.submit({ operator: NOP, ...(i === 0 ? {} : by === 'after' ? { after: last } : { dependencies: [[0, last]] }) });
        }
        ended += length + 1;
        rig.wait(() => rig.tasksOfWorkers().reduce((sum, n) => sum + n) === ended, 'the workers tell what they have done');
        const [most, ...others] = rig
          .tasksOfWorkers()
          .map((n, i) => n - before[i])
          .sort((a, b) => b - a);
        assert.ok(most === Math.min(length, 8) || most === Math.min(length, 8) + 1, `${length} tasks, by ${by}: ${[most, ...others]}`);
        assert.equal(others.filter((n) => n > 1).length, Math.ceil(length / 8) - 1, `${length} tasks, by ${by}: ${[most, ...others]}`);
      }
      rig.complete();
      assertAllDone(queue);
    });
  });

  it('has whoever is free pull the tiles of attention, and waits for nobody who is not', TIMEOUT, async () => {
    const [n, d] = [64, 8];
    const [q, k, v, out] = [0, 1, 2, 3].map((i) => values + 4 * n * d * i);
    // Queries of zeros weigh all keys alike: the means of what they see.
    clear(q, 4 * n * d * 2);
    write(
      v,
      Float32Array.from({ length: n * d }, (_, i) => Math.floor(i / d)),
    );
    const view = { shape: [n, d], dtype: 'float32', strides: [d, 1], offset: 0 };
    const { words } = lower('attention', [view, view, view], [view], { causal: true });
    const params = { offset: STAGING - 1024, lines: Math.ceil((5 * 8 + 4 * words.length) / 64) };
    new BigUint64Array(segment.view, params.offset, 5).set([q, k, v, 0, out].map(BigInt));
    new Uint32Array(segment.view, params.offset + 5 * 8, words.length).set(words);
    const operator = BUILT_IN.indexOf('attention');
    const isRight = () => {
      const wrong = read(out, n * d, Float32Array).findIndex((value, i) => Math.abs(value - Math.floor(i / d) / 2) > 1e-4);
      assert.equal(wrong, -1, `element ${wrong}`);
    };
    await withKernel({ workers: 3 }, (rig, queue) => {
      rig.enter('count');
      for (const tiles of [2, 3, 17, 64]) {
        write(out, new Float32Array(n * d));
        // One of the three is busy for long.
        const long = queue.submit({ operator: SLOT.count, pointers: [counters], words: [0, EMULATED ? 7e8 : 3e7] });
        const pulled = queue.submit({ operator, params, tiles });
        rig.wait(() => queue.status(pulled) !== undefined, 'the tiles that are left to two');
        assert.deepEqual([queue.status(long), queue.status(pulled)], [undefined, 0], 'it waited for the one that is busy');
        isRight();
        rig.complete();
      }
      assertAllDone(queue);
      const empty = queue.submit({ operator: 999 });
      const refused = queue.submit({ operator, params, tiles: 64, dependencies: [[0, empty]] });
      rig.complete();
      assert.deepEqual(
        [empty, refused].map((sequence) => queue.status(sequence)),
        [STATUS.EMPTY_SLOT, STATUS.DEPENDENCY_FAILED],
      );
      for (let round = 0; round < scaled(100); round++) {
        const running = queue.submit({ operator, params, tiles: 64 });
        queue.control(CONTROL.kill, operator);
        const behind = queue.submit({ operator, params, tiles: 64 });
        queue.control(CONTROL.revive, operator);
        const last = queue.submit({ operator, params, tiles: 64 });
        rig.complete();
        const [first, ...others] = [running, behind, last].map((sequence) => queue.status(sequence));
        assert.ok(first === 0 || first === STATUS.KILLED, `status ${first}`);
        assert.deepEqual(others, [STATUS.KILLED, 0]);
      }
      isRight();
    });
  });

  it('has workers forget an entry of the table of functions that the host writes anew', TIMEOUT, async () => {
    const program = (op) => ({
      inputs: [{ dtype: 'float32', columnStride: 1 }],
      scalars: 0,
      nodes: [
        { kind: 'input', input: 0, dtype: 'float32' },
        { kind: 'map', op, args: [0], dtype: 'float32' },
      ],
      outputs: [{ node: 1, dtype: 'float32', space: 'full' }],
      outerRank: 0,
    });
    const [slot, fn, n] = [901, BUILT_IN.length + 2 + NAMES.length, 1000];
    const [x, out, code] = [values, values + 4 * n, values + 32 * n];
    const ops = ['neg', 'abs'];
    write(x, new Float32Array(n).fill(3));
    ops.forEach((op, i) => {
      write(code + 4096 * i, encodeProgram(program(op)));
    });
    await withKernel({ workers: 3 }, (rig, queue) => {
      for (let round = 0; round < 6; round++) {
        rig.kernel.enter([[fn, INTERPRETER, code + 4096 * (round % 2)]]);
        if (round === 0) queue.control(CONTROL.publish, slot, fn, 1);
        // On every worker, which then remembers it.
        for (let i = 0; i < 6; i++) queue.submit({ operator: slot, pointers: [x, out + 4 * n * i], words: [n] });
        rig.complete();
        assert.deepEqual(new Set(read(out, 6 * n, Float32Array)), new Set([ops[round % 2] === 'neg' ? -3 : 3]), `round ${round}`);
      }
      assertAllDone(queue);
    });
  });

  it('changes the table in order with the tasks around', TIMEOUT, async () => {
    const rounds = scaled(400);
    clear(values, 4 * 3 * rounds);
    await withKernel({}, (rig, queue) => {
      rig.enter('one', 'two');
      const slot = 900;
      let version = 1;
      for (let round = 0; round < rounds; round++) {
        queue.control(CONTROL.publish, slot, FUNCTION[round % 2 === 0 ? 'one' : 'two'], version++);
        for (let i = 0; i < 3; i++) queue.submit({ operator: slot, pointers: [values], words: [3 * round + i] });
        if (round % 64 === 0) rig.beat();
      }
      rig.complete();
      assertAllDone(queue);
      const wrong = read(values, 3 * rounds).findIndex((value, i) => value !== (Math.floor(i / 3) % 2 === 0 ? 1 : 2));
      assert.equal(wrong, -1, `task ${wrong} ran another version than the one that was published before it`);
    });
  });

  it('removes an operator for the tasks behind it alone, and refuses what makes no sense', TIMEOUT, async () => {
    clear(counters, 4 * MAX_TILES);
    await withKernel({}, (rig, queue) => {
      rig.enter('count', 'one');
      // Holds up what depends on it until the table has changed.
      const gate = queue.submit({ operator: SLOT.count, pointers: [counters], words: [0, 300_000] });
      const before = queue.submit({ operator: SLOT.one, pointers: [values], words: [0], dependencies: [[0, gate]] });
      queue.control(CONTROL.publish, SLOT.one, 0, 2);
      const behind = queue.submit({ operator: SLOT.one, pointers: [values], words: [0] });
      const slot = queue.control(CONTROL.publish, 4096, FUNCTION.one, 1);
      const fn = queue.control(CONTROL.publish, SLOT.one, 8192, 1);
      const kind = queue.control(9, SLOT.one);
      queue.control(CONTROL.publish, SLOT.one, FUNCTION.one, 3);
      const again = queue.submit({ operator: SLOT.one, pointers: [values], words: [0] });
      rig.complete();
      assert.deepEqual(
        [gate, before, behind, slot, fn, kind, again].map((sequence) => queue.status(sequence)),
        [0, 0, STATUS.EMPTY_SLOT, STATUS.OUT_OF_RANGE_ID, STATUS.OUT_OF_RANGE_ID, STATUS.FAILED, 0],
      );
    });
  });

  it('kills and revives an operator in order with its tasks', TIMEOUT, async () => {
    clear(counters, 4 * MAX_TILES);
    await withKernel({}, (rig, queue) => {
      rig.enter('count', 'one');
      const one = (dependencies = []) => queue.submit({ operator: SLOT.one, pointers: [values], words: [0], dependencies });
      const early = one();
      rig.complete();
      queue.control(CONTROL.kill, SLOT.one);
      const killed = one();
      rig.complete();
      const stillKilled = one();
      rig.complete();
      queue.control(CONTROL.revive, SLOT.one);
      const revived = one();
      rig.complete();
      assert.deepEqual(
        [early, killed, stillKilled, revived].map((sequence) => queue.status(sequence)),
        [0, STATUS.KILLED, STATUS.KILLED, 0],
      );
      // All at once, and the task between kill and revive has to wait until both have long been done.
      const gate = queue.submit({ operator: SLOT.count, pointers: [counters], words: [0, 300_000] });
      queue.control(CONTROL.kill, SLOT.one);
      const between = one([[0, gate]]);
      queue.control(CONTROL.revive, SLOT.one);
      const behind = one();
      rig.complete();
      assert.deepEqual(
        [gate, between, behind].map((sequence) => queue.status(sequence)),
        [0, STATUS.KILLED, 0],
      );
    });
  });

  /** Submits tasks that count each of their tiles, and checks that each was run once. */
  class Census {
    #tiles = [];

    constructor(random) {
      this.random = random;
    }

    submit(queue, ns, more = {}) {
      const tiles = this.random(3) > 0 ? 1 : 1 + this.random(MAX_TILES);
      const base = MAX_TILES * this.#tiles.length;
      assert.ok(4 * (base + MAX_TILES) <= COUNTER_BYTES);
      this.#tiles.push(tiles);
      return queue.submit({ operator: SLOT.count, pointers: [counters], words: [base, ns], tiles, ...more });
    }

    get bytes() {
      return 4 * MAX_TILES * this.#tiles.length;
    }

    get tasks() {
      return this.#tiles.length;
    }

    assertEachOnce() {
      const counts = read(counters, this.bytes / 4);
      for (let i = 0; i < counts.length; i++) {
        const task = Math.floor(i / MAX_TILES);
        const expected = i % MAX_TILES < this.#tiles[task] ? 1 : 0;
        if (counts[i] !== expected)
          assert.fail(`tile ${i % MAX_TILES} of task ${task} (${this.#tiles[task]} tiles) ran ${counts[i]} times`);
      }
    }
  }

  it('runs every tile of tasks of up to 64 once, mixed with single ones', TIMEOUT, async () => {
    clear(counters, COUNTER_BYTES);
    await withKernel({}, (rig, queue) => {
      rig.enter('count');
      const random = generator(1);
      const census = new Census(random);
      const from = performance.now();
      for (let i = 0; i < (EMULATED ? 100 : 20_000); i++) {
        census.submit(queue, 0, { dependencies: i > 100 && random(4) === 0 ? [[0, queue.tail - 1 - random(100)]] : [] });
        if (i % 64 === 0) rig.beat();
      }
      rig.complete();
      measured.tiledTasksPerMs = rounded(census.tasks / (performance.now() - from));
      assertAllDone(queue);
      census.assertEachOnce();
    });
  });

  it('keeps the order between eight queues, more than it has warps for', TIMEOUT, async () => {
    clear(counters, COUNTER_BYTES);
    clear(values, 4096);
    await withKernel({ queues: 8, firstSequence: 2 ** 32 - 500 }, (rig) => {
      rig.enter('count', 'step');
      const random = generator(2);
      const census = new Census(random);
      const ks = [];
      let last;
      const pick = (queue) => [queue.index, queue.tail - 1 - random(Math.min(50, queue.tail - queue.first))];
      for (let i = 0; i < scaled(12_000); i++) {
        const queue = rig.queues[random(8)];
        if (i % 3 === 0) {
          const dependencies = last === undefined ? [] : [last];
          last = [
            queue.index,
            queue.submit({ operator: SLOT.step, pointers: [values], words: [1000, i], tiles: 1 + random(4), dependencies }),
          ];
          ks.push(i);
        } else {
          const others = [rig.queues[random(8)], rig.queues[random(8)]].filter(({ first, tail }) => tail > first);
          census.submit(queue, 0, { dependencies: others.map(pick) });
        }
        if (i % 64 === 0) rig.beat();
      }
      rig.complete();
      for (const queue of rig.queues) assertAllDone(queue);
      const expected = stepped(ks);
      assert.equal(
        read(values, 1000).findIndex((value) => value !== expected),
        -1,
      );
      census.assertEachOnce();
    });
  });

  it('has two workers, and neither waits for what the other one holds', TIMEOUT, async () => {
    // Of each queue, which has a shard of its own, one task for each worker: the second needs the first. They are dealt out the
    // other way round for the second queue, so that each worker has one that the other one's needs, and one that needs.
    await withKernel({ queues: 2, workers: 2 }, (rig) => {
      const [a, b] = rig.queues;
      const random = generator(5);
      b.submit({ operator: NOP });
      for (let round = 0; round < scaled(100_000); round++) {
        const pair = (queue) =>
          [{}, {}].map((_, i) => () => queue.submit({ operator: NOP, dependencies: i === 0 ? [] : [[queue.index, queue.tail - 1]] }));
        const [a0, a1] = pair(a);
        const [b0, b1] = pair(b);
        for (const submit of [
          [a0, a1, b0, b1],
          [b0, a0, b1, a1],
          [b0, b1, a0, a1],
          [a0, b0, a1, b1],
        ][random(4)])
          submit();
        if (random(3) === 0) rig.complete();
        rig.beat();
      }
      rig.complete();
      for (const queue of rig.queues) assertAllDone(queue);
    });
  });

  it('leaves on quit once all that it has admitted is complete, and goes on with the rest when launched again', TIMEOUT, async () => {
    clear(counters, COUNTER_BYTES);
    await withKernel({ queues: 2, firstSequence: 2 ** 32 - 2000 }, (rig) => {
      rig.enter('count');
      const random = generator(3);
      const census = new Census(random);
      const leaves = [];
      const launches = [];
      let left = 0;
      const fill = (count) => {
        for (let i = 0; i < count; i++) {
          const queue = rig.queues[random(2)];
          if (queue.full) continue;
          const other = rig.queues[1 - queue.index];
          const dependencies = random(5) === 0 && other.tail > other.first ? [[other.index, other.tail - 1]] : [];
          census.submit(queue, 50_000, { dependencies });
        }
      };
      for (let round = 0; round < 20; round++) {
        fill(scaled(1200));
        let from = performance.now();
        rig.leave();
        leaves.push(performance.now() - from);
        for (const queue of rig.queues) {
          assert.equal(queue.mark, queue.head, 'a task that was admitted is not complete');
          left += queue.tail - queue.head;
        }
        // While nobody is there, more is to come.
        fill(scaled(100));
        const marks = rig.queues.map(({ mark }) => mark);
        from = performance.now();
        rig.kernel.relaunch();
        rig.wait(() => rig.queues.some(({ mark }, i) => mark > marks[i]), 'it goes on');
        launches.push(performance.now() - from);
      }
      rig.complete();
      assert.ok(left > 0, 'there was no load: nothing was left in the rings');
      for (const queue of rig.queues) assertAllDone(queue);
      census.assertEachOnce();
      Object.assign(measured, {
        relaunchTasks: census.tasks,
        leftInRings: left,
        leaveMsMax: rounded(Math.max(...leaves)),
        relaunchMsP50: rounded(sorted(launches)[10]),
        relaunchMsMax: rounded(Math.max(...launches)),
      });
    });
  });

  it('steps aside in the middle of its work, and the next kernel goes on with what waits, nothing lost or doubled', TIMEOUT, async () => {
    const n = 300;
    clear(values, 4 * n);
    clear(counters, 4 * MAX_TILES);
    const random = generator(9);
    const aways = [];
    await withKernel({ queues: 2, workers: 5 }, (rig) => {
      const [queue, other] = rig.queues;
      rig.enter('step', 'count');
      const ks = [];
      let counted = 0;
      const rounds = scaled(200);
      for (let round = 0; round < rounds; round++) {
        for (let i = 0; i < 20; i++) {
          // A chain of steps that wait for one another, in the middle of what does not, with one tile and with many.
          if (random(3) === 0) {
            const order = ks.length === 0 ? {} : random(2) === 0 ? { after: queue.tail - 1 } : { dependencies: [[0, queue.tail - 1]] };
            queue.submit({
              operator: SLOT.step,
              pointers: [values],
              words: [n, ks.length],
              tiles: 1 + random(8),
              ...order,
            });
            ks.push(ks.length);
          } else {
            const tiles = 1 + random(9);
            counted += tiles;
            other.submit({ operator: SLOT.count, pointers: [counters], words: [0, random(3000)], tiles });
          }
        }
        const from = performance.now();
        rig.quit = 3;
        rig.wait(() => rig.kernel.left, 'the kernel steps aside');
        aways.push((performance.now() - from) * 1000);
        rig.kernel.relaunch();
        rig.beat();
      }
      rig.complete();
      for (const one of rig.queues) assertAllDone(one);
      const expected = stepped(ks);
      const wrong = read(values, n).findIndex((value) => value !== expected);
      assert.equal(wrong, -1, `element ${wrong}: a step was lost, doubled or out of order`);
      assert.equal(
        read(counters, MAX_TILES).reduce((sum, value) => sum + value),
        counted,
      );
    });
    measured.stepsAsideUsP50 = rounded(sorted(aways)[aways.length >> 1]);
  });

  it('leaves by itself when its host shows no sign of life, and comes back', TIMEOUT, async () => {
    await withKernel({}, async (rig, queue) => {
      queue.submit({ operator: NOP });
      rig.complete();
      rig.beat();
      const from = performance.now();
      await rest(1000);
      assert.equal(rig.kernel.left, false);
      while (!rig.kernel.left && performance.now() - from < 4000) await rest(5);
      const ms = performance.now() - from;
      assert.ok(rig.kernel.left, 'it is still there');
      assert.ok(ms > 1900 && ms < 3000, `it left after ${ms} ms`);
      measured.leavesAloneAfterMs = Math.round(ms);
      queue.submit({ operator: NOP });
      rig.kernel.relaunch();
      rig.complete();
    });
  });

  it('calls operators that are injected while it runs, and disturbs nothing', TIMEOUT, async () => {
    const n = 4096;
    const [x, out, load] = [values, values + 4 * n, values + 8 * n];
    const xs = Float32Array.from({ length: n }, (_, i) => (i % 100) / 10 - 5);
    clear(values, 12 * n);
    write(x, xs);
    await withKernel({}, (rig, queue) => {
      rig.enter('step');
      const times = [];
      const ks = [];
      let step;
      for (let k = 0; k < CURVES; k++) {
        for (let i = 0; i < 200; i++) {
          const dependencies = step === undefined ? [] : [[0, step]];
          step = queue.submit({ operator: SLOT.step, pointers: [load], words: [n, i], dependencies });
          ks.push(i);
        }
        const from = performance.now();
        rig.place(`curve_${k}`);
        queue.control(CONTROL.publish, SLOT[`curve_${k}`], FUNCTION[`curve_${k}`], 1);
        times.push((performance.now() - from) * 1000);
        queue.submit({ operator: SLOT[`curve_${k}`], pointers: [x, out], words: [n], tiles: 1 + k });
        rig.complete();
        read(out, n, Float32Array).forEach((value, i) => {
          const expected = xs[i] * k + (k % 2 === 0 ? Math.exp(xs[i]) : 0.5);
          assert.ok(
            Math.abs(value - expected) <= 1e-5 * Math.max(1, Math.abs(expected)),
            `curve ${k}, element ${i}: ${value}, not ${expected}`,
          );
        });
      }
      assertAllDone(queue);
      const expected = stepped(ks);
      assert.equal(
        read(load, n).findIndex((value) => value !== expected),
        -1,
      );
      measured.injectUsP50 = rounded(sorted(times)[CURVES / 2]);
      measured.registers = rig.started.registers;
      measured.stackBytes = rig.started.stackBytes;
      measured.workers = rig.started.workers;
    });
  });

  it('takes so long for an empty task, and so many go by in a second', TIMEOUT, async () => {
    await withKernel({}, (rig, queue) => {
      const times = [];
      for (let i = 0; i < scaled(10_000); i++) {
        const from = performance.now();
        const sequence = queue.submit({ operator: NOP });
        rig.wait(() => queue.status(sequence) !== undefined, 'an empty task');
        times.push((performance.now() - from) * 1000);
      }
      const inOrder = sorted(times);
      const count = scaled(1_000_000);
      const from = performance.now();
      for (let i = 0; i < count; i++) {
        queue.submit({ operator: NOP });
        if ((i & 1023) === 0) rig.beat();
      }
      rig.complete();
      const seconds = (performance.now() - from) / 1000;
      assertAllDone(queue);
      Object.assign(measured, {
        roundTripUsP50: rounded(inOrder[inOrder.length >> 1]),
        roundTripUsP99: rounded(inOrder[Math.floor(0.99 * inOrder.length)]),
        millionTasksPerSecond: rounded(count / seconds / 1e6),
      });
    });
  });
});
