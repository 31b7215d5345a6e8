/** What is done while the kernel is away, and what is not, with a driver that has memory and images but runs nothing else. */
import { beforeEach, describe, expect, it } from 'vitest';
import { FUNCTION_SLOTS } from '../../../abi/status.ts';
import { GpuosError } from '../../../errors.ts';
import type { CudaDriver } from '../driver.ts';
import type { PauseParts } from '../process/requests.ts';
import { LoadedImage } from './loaded-image.ts';
import { QUIT, QUIT_WORD, Replacement, type Running } from './replacement.ts';
import { TELL_KERNEL } from './table-source.ts';

const [STREAM, SIDE, LEAVE, CHANGES, FUNCTIONS] = [1, 2, 0x100, 0x200, 0x1_0000];
/** Functions of the kernel itself are 1 to 3, the interpreter is 2. */
const OWN = 4;
const INTERPRETER_WORD = 4;
const FIRST = 10;

/** Images have a number, and their functions are at addresses of their own. */
class Driver {
  readonly log: string[] = [];
  readonly words: Int32Array;
  readonly memory = new Map<number, bigint>();
  running = 0;
  /** Looks at the stream until a kernel that was told to leave has; and calls that fail. */
  looks = 2;
  fails = '';
  symbols: readonly string[] = [];
  #next = 0x10_0000;
  #images = 0;

  constructor(words: Int32Array) {
    this.words = words;
  }

  note(what: string): void {
    this.log.push(what);
    if (what === this.fails) throw new GpuosError('GPUOS_CUDA_CALL_FAILED', `${what} failed`);
  }

  allocate = (bytes: number): number => (this.#next += bytes);
  streamPriorities = () => ({ least: 0, greatest: -1 });
  createStream = () => SIDE;
  createEvent = () => 3;

  loadModule(): number {
    if (this.running !== 0) throw new Error('loaded while a kernel runs');
    this.note('load');
    return 100 * ++this.#images;
  }

  unloadModule(module: number): void {
    if (this.running !== 0) throw new Error('unloaded while a kernel runs');
    this.note(`unload ${module / 100}`);
  }

  moduleFunction = (module: number, name: string): number =>
    module + ['gpuos_resident', 'gpuos_fill_table', 'gpuos_external_end', TELL_KERNEL].indexOf(name);

  launch(fn: number, _: unknown, parameters: readonly (DataView | number)[]): void {
    const image = Math.floor(fn / 100);
    const kernel = ['resident', 'fill', 'end', 'tell'][fn % 100]!;
    this.note(`${kernel} ${image}`);
    const { memory } = this;
    if (kernel === 'resident') this.running = image;
    if (kernel === 'fill') for (let i = 1; i < OWN; i++) memory.set(FUNCTIONS + 16 * i, BigInt(1000 * image + i));
    if (kernel !== 'tell') return;
    const [told, moves, count] = parameters as readonly [number, number, number];
    for (const [i, symbol] of this.symbols.entries()) memory.set(told + 8 * i, addressOf(image, symbol));
    const at = (address: number): bigint => memory.get(address) ?? 0n;
    for (let i = 0; i < count; i++) memory.set(Number(at(moves + 16 * i)), at(Number(at(moves + 16 * i + 8))));
  }

  streamDone(): boolean {
    if (Atomics.load(this.words, QUIT_WORD) !== QUIT.no && this.looks-- <= 0) this.running = 0;
    return this.running === 0;
  }

  copyToDevice(to: number, from: BigUint64Array | Uint32Array, _: number, stream: number): void {
    if (stream === STREAM && this.running !== 0) throw new Error('waits for the kernel');
    this.note('copy in');
    [...from].forEach((word, i) => void this.memory.set(to + from.BYTES_PER_ELEMENT * i, BigInt(word)));
  }

  copyToHost(to: BigUint64Array, from: number, _: number, stream: number): void {
    if (stream === STREAM && this.running !== 0) throw new Error('waits for the kernel');
    this.note('copy out');
    for (const i of to.keys()) to[i] = this.memory.get(from + 8 * i) ?? 0n;
  }

  fillBytes(to: number, _value: number, bytes: number): void {
    this.note(to === LEAVE ? 'clear leave' : 'fill');
    for (let i = 0; i < bytes; i += 8) this.memory.delete(to + i);
  }

  recordEvent(): void {}
  synchronizeEvent = (): void => this.note('wait');
  synchronizeStream = (stream: number): void => this.note(stream === SIDE ? 'wait' : 'wait for all');
}

const addressOf = (image: number, symbol: string): bigint => BigInt(1000 * image + 100 + symbol.charCodeAt(0));

describe('Replacement', () => {
  let words: Int32Array;
  let driver: Driver;
  let replacement: Replacement;
  let running: Running;

  beforeEach(() => {
    words = new Int32Array(new SharedArrayBuffer(4096));
    driver = new Driver(words);
    const own = BigUint64Array.from({ length: 2 * OWN }, (_, i) => (i < 2 || i % 2 === 1 ? 0n : BigInt(1000 + i / 2)));
    const image = new LoadedImage(driver as unknown as CudaDriver, new Uint8Array(8));
    running = { image, argument: new DataView(new ArrayBuffer(144)), shape: { grid: [2], block: [32], stream: STREAM } };
    replacement = new Replacement({
      driver: driver as unknown as CudaDriver,
      words,
      stream: STREAM,
      leave: LEAVE,
      functions: FUNCTIONS,
      own,
      interpreterWord: INTERPRETER_WORD,
      changes: CHANGES,
      allocate: driver.allocate,
    });
    driver.running = 1;
    driver.log.length = 0;
  });

  function put(symbols: readonly string[], bytes = 8): PauseParts | undefined {
    driver.symbols = symbols;
    const { running: now, pause } = replacement.put(running, new Uint8Array(bytes), symbols, 50, () => {});
    running = now;
    return pause?.parts;
  }
  /** Address and data of an entry, as the device has them. */
  const entry = (fn: number): readonly number[] => [0, 8].map((at) => Number(driver.memory.get(FUNCTIONS + 16 * fn + at) ?? 0n));

  it('tells the workers each time that it has written entries, behind them', () => {
    const entered = (): number => Number(driver.memory.get(CHANGES + 4) ?? 0n);
    replacement.enter([[FIRST, '', 77]]);
    expect([entry(FIRST)[1], entered()]).toEqual([77, 1]);
    expect(driver.log).toEqual(['copy in', 'copy in', 'wait']);
    replacement.enter([
      [FIRST, '', 78],
      [FIRST + 1, '', 79],
    ]);
    expect(entered()).toBe(2);
  });

  it('does nothing between the kernel and the next one but load, look up and launch', () => {
    replacement.enter([[FIRST, '', 77]]);
    driver.log.length = 0;
    const parts = put(['a'])!;
    expect(Object.keys(parts)).toEqual(['leaveUs', 'unloadUs', 'loadUs', 'lookupUs', 'tableUs', 'launchUs']);
    expect(Object.values(parts).every((us) => us >= 0)).toBe(true);
    const pause = ['load', 'fill 2', 'tell 2', 'clear leave', 'resident 2'];
    expect(driver.log).toEqual(['copy in', 'wait', ...pause, 'wait', 'copy out', 'copy out', 'wait']);
    expect([driver.running, Atomics.load(words, QUIT_WORD)]).toEqual([2, QUIT.no]);
  });

  it('brings entries to the addresses of the image that runs; one whose function that lacks is empty', () => {
    put(['a', 'b']);
    replacement.enter([
      [FIRST, 'a'],
      [FIRST + 1, 'b', 5],
      [FIRST + 2, '', 77],
    ]);
    put(['b', 'c']);
    expect(entry(FIRST)[0]).toBe(0);
    expect(entry(FIRST + 1)).toEqual([Number(addressOf(3, 'b')), 5]);
    expect(entry(FIRST + 2)).toEqual([3002, 77]);
    expect(entry(1)).toEqual([3001, 0]);
    // And what is entered from now on has that image's.
    replacement.enter([
      [FIRST, 'c'],
      [FIRST + 3, ''],
    ]);
    expect([entry(FIRST)[0], entry(FIRST + 3)[0]]).toEqual([Number(addressOf(3, 'c')), 3002]);
    expect(() => replacement.enter([[FIRST, 'a']])).toThrow(/no function "a"/);
  });

  it.each(['load', 'tell 3', 'resident 3'])('goes back to the kernel as it was where there is trouble with "%s"', (fails) => {
    put(['a']);
    replacement.enter([[FIRST, 'a', 6]]);
    driver.fails = fails;
    expect(() => put(['a', 'b'])).toThrow(`${fails} failed`);
    expect(driver.running).toBe(2);
    expect([entry(FIRST), entry(1)]).toEqual([
      [Number(addressOf(2, 'a')), 6],
      [2001, 0],
    ]);
    expect(driver.log.filter((line) => line === 'unload 3')).toHaveLength(fails === 'load' ? 0 : 1);
  });

  it('is lost where neither kernel can be launched, or the addresses of the one that runs are not known', () => {
    driver.fails = 'resident 1';
    const { loadModule } = driver;
    driver.loadModule = () => {
      throw new GpuosError('GPUOS_CUDA_CALL_FAILED', 'no');
    };
    expect(() => put(['a'])).toThrow(/GPUOS_DEVICE_LOST/);
    driver.loadModule = loadModule;
    driver.running = 1;
    driver.fails = 'copy out';
    expect(() => put(['a'])).toThrow(/GPUOS_DEVICE_LOST/);
  });

  it('leaves a kernel alone whose tasks take too long, or that is to leave for good', () => {
    driver.looks = Number.POSITIVE_INFINITY;
    expect(put(['a'])).toBeUndefined();
    expect([driver.running, Atomics.load(words, QUIT_WORD)]).toEqual([1, QUIT.no]);
    Atomics.store(words, QUIT_WORD, QUIT.now);
    expect(put(['a'])).toBeUndefined();
    expect(Atomics.load(words, QUIT_WORD)).toBe(QUIT.now);
    expect(() => put([])).toThrow(/GPUOS_BAD_OPTION/);
    expect(() => put(Array.from({ length: FUNCTION_SLOTS + 1 }, String))).toThrow(/GPUOS_BAD_OPTION/);
  });

  it('unloads what ran before when nobody needs the kernel, all at once, and launches it again', () => {
    expect(replacement.holds).toBe(false);
    for (const symbol of ['a', 'b', 'c']) put([symbol]);
    expect(driver.log.filter((line) => line.startsWith('unload'))).toEqual([]);
    expect(replacement.holds).toBe(true);
    driver.log.length = 0;
    replacement.tidy(running, () => {});
    expect(driver.log).toEqual(['unload 1', 'unload 2', 'unload 3', 'clear leave', 'resident 4']);
    expect([driver.running, Atomics.load(words, QUIT_WORD), replacement.holds]).toEqual([4, QUIT.no, false]);
    replacement.enter([[FIRST, 'c']]);
    expect(entry(FIRST)[0]).toBe(Number(addressOf(4, 'c')));
  });

  it('unloads the oldest before that where they are too much memory', () => {
    for (let i = 0; i < 5; i++) put(['a'], 60 << 20);
    // 8 bytes, then 60 MiB each: 128 MiB are kept.
    expect(driver.log.filter((line) => /^(unload|resident)/.test(line))).toEqual([
      ...['resident 2', 'resident 3', 'resident 4', 'resident 5'],
      ...['unload 1', 'unload 2', 'resident 6'],
    ]);
  });
});
