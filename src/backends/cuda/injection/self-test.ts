/**
 * Whether code that is copied into the running kernel runs as it should: nothing that NVIDIA documents says so, so it is
 * tried at every start, by the way that operators take. A kernel that then hangs or faults costs the device process and
 * nothing else, as no task of the program is in it yet.
 */
import { readFileSync } from 'node:fs';
import { descriptor } from '../../../abi/descriptor.ts';
import { queueRecord } from '../../../abi/records.ts';
import { CHANGE, FUNCTION_SLOTS, MAX_TILES, NO_QUEUE, OPERATOR_SLOTS, STATUS } from '../../../abi/status.ts';
import { GpuosError } from '../../../errors.ts';
import { ImageCache } from '../image-cache.ts';
import type { SegmentLayout } from '../layout.ts';
import type { Address } from '../library.ts';
import type { DeviceProcess } from '../process/device-process.ts';
import { KERNEL_LIMITS, type ResidentStarted } from '../resident.ts';
import { OPERATOR_OPTIONS, operatorHeaders } from '../source.ts';

const SYMBOL = 'gpuos_operator';
const SOURCE = readFileSync(new URL('../device/self-test.cu', import.meta.url), 'utf8');
/** The operator, as an operator of each version. */
export const selfTestSource = (version: number): string => `#define VERSION ${version}\n${SOURCE}`;

/** What is placed, in this order, each at an address of its own; the slot is given to each in turn. */
const VERSIONS = [1, 1, 2] as const;
/** Tasks in every queue: the kernel's sequences begin so many before the program's. A function is entered, a slot set, its operator run; and all emptied. */
export const SELF_TEST_TASKS = 3 * VERSIONS.length + VERSIONS.length + 1;
/** The last ones, which programs reach last. */
const SLOT = OPERATOR_SLOTS - 1;
const FUNCTION = FUNCTION_SLOTS - VERSIONS.length;
/** It is a matter of microseconds; a device that other programs use takes turns. Longer, and it is taken for a hang. */
const LIMIT_MS = 10_000;

export interface SelfTestParts {
  readonly process: DeviceProcess;
  readonly cache: ImageCache;
  /** The segment, and its layout as the kernel was told. */
  readonly words: Int32Array;
  readonly layout: SegmentLayout;
  readonly started: ResidentStarted;
  readonly controlSlot: number;
  readonly nopSlot: number;
}

/** Why it must not be used; `remember`: the device said so, not the circumstances. */
export interface SelfTestFailure {
  readonly why: string;
  readonly remember: boolean;
}

/** Takes SELF_TEST_TASKS sequences of every queue, whatever comes of it. Undefined: it works. */
export function selfTest(parts: SelfTestParts): SelfTestFailure | undefined {
  try {
    const why = new SelfTest(parts).run();
    return why === undefined ? undefined : { why, remember: true };
  } catch (error) {
    const lost = parts.process.lost;
    if (lost !== undefined) return { why: lost, remember: true };
    return { why: (error as Error).message, remember: error instanceof GpuosError && error.code === 'GPUOS_BAD_CUBIN' };
  }
}

class SelfTest {
  readonly #parts: SelfTestParts;
  /** Where results come: the beginning of the memory that host and device share, before anybody else has it. */
  readonly #results: { readonly word: number; readonly address: Address };
  readonly #until = performance.now() + LIMIT_MS;

  constructor(parts: SelfTestParts) {
    this.#parts = parts;
    this.#results = { word: parts.layout.end >> 2, address: parts.process.info.segmentAddress + parts.layout.end };
  }

  run(): string | undefined {
    const { layout, words, nopSlot, controlSlot, started, process } = this.#parts;
    const tiles = Math.min(MAX_TILES, started.workers);
    try {
      for (const [i, version] of VERSIONS.entries()) {
        const placed = this.#place(version);
        if (typeof placed === 'string') return placed;
        this.#enter(3 * i, FUNCTION + i, placed);
        this.#submit(3 * i + 1, { operator: controlSlot, words: [CHANGE.PUBLISH, SLOT, FUNCTION + i, i] });
        const seed = 0x9e37_79b9 * (i + 1);
        words.fill(-1, this.#results.word, this.#results.word + tiles);
        this.#submit(3 * i + 2, { operator: SLOT, pointer: this.#results.address, words: [seed], tiles });
        const wrong =
          this.#completes(3 * i) ?? this.#completes(3 * i + 1) ?? this.#completes(3 * i + 2) ?? this.#check(version, seed, tiles);
        if (wrong !== undefined) return wrong;
      }
      const last = SELF_TEST_TASKS - 1;
      for (const i of VERSIONS.keys()) this.#enter(last - VERSIONS.length + i, FUNCTION + i, 0);
      this.#submit(last, { operator: controlSlot, words: [CHANGE.PUBLISH, SLOT, 0, 0] });
      for (let queue = 1; queue < layout.queues; queue++) {
        for (let task = 0; task < SELF_TEST_TASKS; task++) this.#submit(task, { operator: nopSlot, words: [0] }, queue);
      }
      return this.#settles();
    } finally {
      if (process.lost === undefined) words.fill(0, this.#results.word, this.#results.word + tiles);
    }
  }

  /** Its address, always another one; or why it cannot be placed. */
  #place(version: number): Address | string {
    const { process, cache, started } = this.#parts;
    const ask = { source: selfTestSource(version), headers: operatorHeaders(), name: 'self-test.cu', options: OPERATOR_OPTIONS };
    const { computeCapability, nvrtcVersion } = process.info;
    const key = ImageCache.key(['self-test', ask, computeCapability, nvrtcVersion]);
    let payload = cache.read(key);
    if (payload === undefined) {
      payload = process.call('compile', ask).payload;
      cache.write(key, payload);
    }
    const budget = { registers: started.registers, stackBytes: started.stackBytes };
    const answer = process.call('place', { symbol: SYMBOL, budget, payload });
    if ('address' in answer) return answer.address;
    return `its operator cannot be placed: ${answer.refused.map(({ message }) => message).join(' ')}`;
  }

  #enter(task: number, fn: number, address: Address): void {
    const words = [CHANGE.ENTER, fn, address >>> 0, Math.floor(address / 2 ** 32), 0, 0, 0];
    this.#submit(task, { operator: this.#parts.controlSlot, words });
  }

  #submit(task: number, { operator, pointer = 0, words, tiles = 1 }: Task, queue = 0): void {
    const { words: to, layout } = this.#parts;
    const tag = (layout.firstSequence + task) | 0;
    const o = descriptor.offset;
    const at = (layout.queueList[queue]!.ring + (tag & (layout.slots - 1)) * descriptor.size) >> 2;
    to.fill(0, at, at + (o.tag0 >> 2));
    to.fill(0, at + (o.pointers >> 2), at + (o.tag1 >> 2));
    to[at + (o.operator >> 2)] = operator;
    to[at + (o.flags >> 2)] = queue << 16;
    to[at + (o.tiles >> 2)] = tiles;
    to[at + (o.dependencyQueues >> 2)] = NO_QUEUE * 0x01010101;
    to[at + (o.pointers >> 2)] = pointer;
    to[at + (o.pointers >> 2) + 1] = Math.floor(pointer / 2 ** 32);
    for (const [i, word] of words.entries()) to[at + (o.words >> 2) + i] = word;
    Atomics.store(to, at + (o.tag0 >> 2), tag);
    Atomics.store(to, at + (o.tag1 >> 2), tag);
  }

  #completes(task: number): string | undefined {
    const { words, layout } = this.#parts;
    const tag = (layout.firstSequence + task) | 0;
    const at = (layout.queueList[0]!.completions >> 2) + 2 * (tag & (layout.slots - 1));
    const wrong = this.#wait(() => Atomics.load(words, at + 1) === tag);
    const status = Atomics.load(words, at);
    return wrong ?? (status === STATUS.OK ? undefined : `its task ${task} ended with status ${status}`);
  }

  /** All queues stand where the program begins. */
  #settles(): string | undefined {
    const { words, layout } = this.#parts;
    const first = (layout.firstSequence + SELF_TEST_TASKS) | 0;
    const at = ({ record }: { readonly record: number }, offset: number): number => (record + offset) >> 2;
    const { cursor, mark, tail } = queueRecord.offset;
    for (const queue of layout.queueList) Atomics.store(words, at(queue, tail), first);
    return this.#wait(() =>
      layout.queueList.every(
        (queue) => Atomics.load(words, at(queue, mark)) === first && Atomics.load(words, at(queue, cursor + 4)) === first,
      ),
    );
  }

  #wait(condition: () => boolean): string | undefined {
    while (!condition()) {
      const { lost } = this.#parts.process;
      if (lost !== undefined) return lost;
      if (performance.now() > this.#until) return `its task was not complete after ${LIMIT_MS / 1000} s`;
    }
    return undefined;
  }

  #check(version: number, seed: number, tiles: number): string | undefined {
    const threads = KERNEL_LIMITS.BLOCK_THREADS;
    for (let tile = 0; tile < tiles; tile++) {
      const expected = (Math.imul(threads, Math.imul(seed, tile + 1)) + (threads * (threads - 1)) / 2 + version) | 0;
      const found = Atomics.load(this.#parts.words, this.#results.word + tile);
      if (found !== expected) return `tile ${tile} of version ${version} is ${found >>> 0}, not ${expected >>> 0}`;
    }
    return undefined;
  }
}

interface Task {
  readonly operator: number;
  readonly pointer?: Address;
  readonly words: readonly number[];
  readonly tiles?: number;
}
