/** What the tests on a GPU share: limits that hold where the event loop is blocked, a plain producer for a ring, and what is left of processes. */
import { readdirSync, readFileSync, readlinkSync, writeSync } from 'node:fs';
import { Worker } from 'node:worker_threads';
import { descriptor } from '../../dist/abi/descriptor.js';
import { queueRecord } from '../../dist/abi/records.js';
import { FLAG } from '../../dist/abi/status.js';
import { ImageCache } from '../../dist/backends/cuda/image-cache.js';
import { GPU_KERNELS, KERNELS } from '../../dist/backends/lowering/index.js';
import { RESIDENT_OPTIONS, residentSource } from '../../dist/backends/cuda/source.js';

/** The built-in operators by slot: as `device.ts` has them. */
export const BUILT_IN = ['controlTable', 'chain', 'external', ...KERNELS, ...GPU_KERNELS, 'interpret'];
/**
 * EMULATED=1: the device is the stand-in that runs the kernel on the CPU (test/cuda/emulation). All is slower there, by how much
 * depends on what else the machine does: limits are longer, and where a test is about many tasks, it has fewer.
 */
export const EMULATED = process.env.EMULATED === '1';
export const limit = (ms) => (EMULATED ? 10 : 1) * ms;
export const scaled = (count) => (EMULATED ? Math.ceil(count / 50) : count);
const never = new Int32Array(new SharedArrayBuffer(4));
/** Between two looks of a loop that waits: nothing on a device, which is quick; a core for the blocks on the CPU. */
export const giveWay = EMULATED ? () => void Atomics.wait(never, 0, 0, 0.1) : () => {};
export const notEmulated = (why) => (EMULATED ? `not on the emulated device: ${why}` : false);

export const CONTROL = { publish: 1, kill: 2, revive: 3 };

/** A thread of its own, since what hangs may be a call of the driver, in which no timer runs. */
const GUARD = `
const { workerData: { words, ms } } = require('node:worker_threads');
const shared = new Int32Array(words);
if (Atomics.wait(shared, 0, 0, ms) === 'timed-out') {
  if (shared[1] > 0) try { process.kill(shared[1], 'SIGCONT'); } catch {}
  require('node:fs').writeSync(2, 'given up after ' + ms / 1000 + ' s\\n');
  process.kill(process.pid, 'SIGKILL');
}`;

/** Ends this process after so long, whatever it is doing. `stopped` names a process that has to be continued then; 0: none. */
export function guard(seconds) {
  const words = new Int32Array(new SharedArrayBuffer(8));
  new Worker(GUARD, { eval: true, workerData: { words: words.buffer, ms: 1000 * seconds } }).unref();
  return {
    stopped: (pid) => Atomics.store(words, 1, pid),
    release() {
      Atomics.store(words, 0, 1);
      Atomics.notify(words, 0);
    },
  };
}

/** Ends this process at once: a kernel that does not leave would keep its exit waiting. */
export function giveUp(why) {
  writeSync(2, `${why}\n`);
  process.kill(process.pid, 'SIGKILL');
}

export const rest = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The promise, or an error after so long. */
export async function within(promise, ms, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: nothing within ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Looks until the condition holds, with the event loop turning. */
export async function until(condition, ms, what) {
  for (const end = performance.now() + ms; !condition(); await rest(1))
    if (performance.now() > end) throw new Error(`${what}: not within ${ms} ms`);
}

export const sorted = (values) => [...values].sort((a, b) => a - b);
export const rounded = (value) => Number(value.toPrecision(3));

/** A generator whose numbers are the same in every run. */
export function generator(seed) {
  let state = seed;
  return (n) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state >>> 8) % n;
  };
}

/** The keys that the resident kernel has in the cache of images: linked, and what it is linked from. */
export function residentKey(computeCapability, nvrtcVersion, what = 'resident') {
  const { source, headers } = residentSource();
  return ImageCache.key([what, source, headers, RESIDENT_OPTIONS, computeCapability, nvrtcVersion]);
}
export const residentObjectKey = (computeCapability, nvrtcVersion) => residentKey(computeCapability, nvrtcVersion, 'resident object');

/** Child processes of this one that are not dead. */
export function children() {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((name) => {
      try {
        const [state, parent] = readFileSync(`/proc/${name}/stat`, 'latin1').split(') ').at(-1).split(' ');
        return Number(parent) === process.pid && state !== 'Z' && state !== 'X';
      } catch {
        return false;
      }
    })
    .map(Number);
}

/** Shared memory of gpuos: names in /dev/shm, files that this process has open, and mappings that it has. */
export function sharedMemory() {
  const open = readdirSync('/proc/self/fd').filter((name) => {
    try {
      return readlinkSync(`/proc/self/fd/${name}`).includes('gpuos-');
    } catch {
      return false;
    }
  });
  return {
    names: readdirSync('/dev/shm').filter((name) => name.startsWith('gpuos-')).length,
    open: open.length,
    mapped: readFileSync('/proc/self/maps', 'latin1')
      .split('\n')
      .filter((line) => line.includes('gpuos-')).length,
  };
}

/**
 * A producer for one queue, in the plainest form: what the runtime's own does, without it. Sequences are not wrapped.
 * `pause` is called while the ring is full, with a function that tells whether it still is.
 */
export class Producer {
  #free;

  constructor(words, layout, index, pause) {
    this.words = words;
    this.at = layout.queueList[index];
    this.slots = layout.slots;
    this.index = index;
    this.pause = pause;
    this.first = this.tail = this.#free = layout.firstSequence;
  }

  /** A word of the queue's record, as the sequence that it is the low half of. */
  #sequence(offset) {
    const low = Atomics.load(this.words, (this.at.record + offset) >> 2);
    return this.tail + ((low - (this.tail >>> 0)) | 0);
  }

  /** First sequence that is not complete. */
  get mark() {
    return this.#sequence(queueRecord.offset.mark);
  }

  /** First sequence that is not admitted. */
  get head() {
    return this.#sequence(queueRecord.offset.cursor + 4);
  }

  get failures() {
    return Atomics.load(this.words, (this.at.record + queueRecord.offset.failures) >> 2);
  }

  get full() {
    if (this.tail - this.#free < this.slots) return false;
    this.#free = Math.min(this.mark, this.head);
    return this.tail - this.#free >= this.slots;
  }

  /**
   * @param dependencies [queue, sequence] each; `after`: until the whole queue is complete up to there; `params`: a parameter
   *   block in the segment instead of pointers and words, {offset, lines of 64 bytes}
   */
  submit({ operator, pointers = [], words = [], params, dependencies = [], after, tiles = 1 }) {
    if (this.full) this.pause(() => this.full);
    const tag = this.tail >>> 0;
    const to = this.words;
    const base = (this.at.ring + (tag & (this.slots - 1)) * descriptor.size) >> 2;
    const o = descriptor.offset;
    to[base + (o.operator >> 2)] = operator;
    const flags = (after === undefined ? 0 : FLAG.AFTER) | (params === undefined ? 0 : FLAG.PARAMS);
    to[base + (o.flags >> 2)] = ((params?.lines ?? 0) << 24) | (this.index << 16) | flags;
    to[base + (o.params >> 2)] = params?.offset ?? 0;
    to[base + (o.after >> 2)] = (after ?? 0) >>> 0;
    to[base + (o.tiles >> 2)] = tiles;
    let queues = 0xffffffff;
    for (let i = 0; i < dependencies.length; i++) {
      const [queue, sequence] = dependencies[i];
      to[base + (o.dependencies >> 2) + i] = sequence >>> 0;
      queues = (queues & ~(0xff << (8 * i))) | (queue << (8 * i));
    }
    to[base + (o.dependencyQueues >> 2)] = queues;
    for (let i = 0; i < pointers.length; i++) {
      to[base + (o.pointers >> 2) + 2 * i] = pointers[i] >>> 0;
      to[base + (o.pointers >> 2) + 2 * i + 1] = Math.floor(pointers[i] / 2 ** 32);
    }
    for (let i = 0; i < words.length; i++) to[base + (o.words >> 2) + i] = words[i];
    Atomics.store(to, base + (o.tag0 >> 2), tag | 0);
    Atomics.store(to, base + (o.tag1 >> 2), tag | 0);
    return this.tail++;
  }

  /** Publish, kill or revive, for the tasks behind it. */
  control(kind, slot, fn = 0, version = 0) {
    return this.submit({ operator: BUILT_IN.indexOf('controlTable'), words: [kind, slot, fn, version] });
  }

  /** How a task ended; undefined if it has not, or its slot is another's. */
  status(sequence) {
    const at = (this.at.completions >> 2) + 2 * ((sequence >>> 0) & (this.slots - 1));
    return Atomics.load(this.words, at + 1) >>> 0 === sequence >>> 0 ? Atomics.load(this.words, at) : undefined;
  }
}
