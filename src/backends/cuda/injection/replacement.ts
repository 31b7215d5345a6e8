/**
 * Another image in the place of the running kernel's: the documented way to new code. What a kernel has to continue with
 * (rings, heads, marks, mailboxes, tables) is in memory, so what it is told to leave with, the next one starts from.
 */
import { control } from '../../../abi/records.ts';
import { CONTROL_ADDRESS, FUNCTION_SLOTS, OPERATOR_SLOTS } from '../../../abi/status.ts';
import { GpuosError } from '../../../errors.ts';
import type { CudaDriver, LaunchShape } from '../driver.ts';
import type { Address } from '../library.ts';
import { PAUSE_PARTS, type Pause, type TableEntry } from '../process/requests.ts';
import { type Addresses, FunctionMirror, INTERPRETER } from './function-mirror.ts';
import { LoadedImage } from './loaded-image.ts';
import { TELL_KERNEL } from './table-source.ts';

/**
 * What the kernel's host may ask of it: to leave, within half a second; or when what was admitted is complete, however long
 * that takes; or when nothing runs, whatever waits.
 */
export const QUIT = { no: 0, now: 1, whenDone: 2, aside: 3 } as const;
export const QUIT_WORD = (CONTROL_ADDRESS + control.offset.quit) >> 2;

const ENTRY_BYTES = 16;
const SLOT_BYTES = 8;
/** `Changes::entered`. */
const ENTERED_AT = 4;
/** An address to write to, and one to read from. */
const MOVE_BYTES = 16;
/** Where the table of operators stands among the kernel's arguments. */
const TABLE_ARGUMENT = 8 * 6;
/** A kernel that was about to leave when it was told to go on needs no longer than this. */
const SETTLE_MS = 5;
/** How long the kernel may take to leave where nobody has needed it for a while: whoever comes now does not wait for longer. */
const TIDY_MS = 2;
/**
 * How much of images that ran before is kept until nobody needs the kernel, so that no pause is longer for their being
 * unloaded: dozens of them. Beyond that the oldest goes when the next one comes.
 */
const KEPT_BYTES = 128 << 20;

/** What runs. */
export interface Running {
  readonly image: LoadedImage;
  readonly argument: DataView<ArrayBuffer>;
  readonly shape: LaunchShape;
}

export interface ReplacementParts {
  readonly driver: CudaDriver;
  /** The segment. */
  readonly words: Int32Array;
  /** The kernel's own stream, and the word that its blocks leave by. */
  readonly stream: Address;
  readonly leave: Address;
  /** The table of functions, and of it the entries of the kernel's own and the word with the interpreter's address. */
  readonly functions: Address;
  readonly own: BigUint64Array;
  readonly interpreterWord: number;
  /** `Changes` of `device/resident.cuh`. */
  readonly changes: Address;
  allocate(bytes: number): Address;
}

/** `pause` is undefined if the one before goes on. */
export interface Put {
  readonly running: Running;
  readonly pause: Pause | undefined;
}

/** What follows upon what, from its beginning on. */
class Stopwatch {
  readonly #times = [performance.now()];

  next(): void {
    this.#times.push(performance.now());
  }

  get pause(): Pause {
    const times = this.#times;
    const us = (from: number, to: number): number => (times[to]! - times[from]!) * 1000;
    const parts = Object.fromEntries(PAUSE_PARTS.map((part, i) => [part, us(i, i + 1)])) as Pause['parts'];
    return { pauseUs: us(0, times.length - 1), parts };
  }
}

export class Replacement {
  readonly #parts: ReplacementParts;
  /** For copies while the kernel runs. */
  readonly #side: Address;
  /** Where an image tells its addresses, with a word that is 0 behind them, and which of them it is to move where. */
  readonly #told: Address;
  readonly #moves: Address;
  /** Where it may write the slots that are not to change. */
  readonly #spareSlots: Address;
  /** When the table is up to date. */
  readonly #moved: Address;
  /** Images that ran before; they can only be unloaded while no kernel runs. */
  #before: LoadedImage[] = [];
  #mirror: FunctionMirror;
  #entered = 0;

  constructor(parts: ReplacementParts) {
    const { driver, own, interpreterWord, stream, allocate } = parts;
    this.#parts = parts;
    this.#side = driver.createStream(driver.streamPriorities().greatest);
    this.#told = allocate((FUNCTION_SLOTS + 1) * 8);
    driver.fillBytes(this.#told, 0, (FUNCTION_SLOTS + 1) * 8, stream);
    this.#moves = allocate(FUNCTION_SLOTS * MOVE_BYTES);
    this.#spareSlots = allocate(OPERATOR_SLOTS * SLOT_BYTES);
    this.#moved = driver.createEvent();
    this.#mirror = new FunctionMirror(own, new Map([[INTERPRETER, own[interpreterWord]!]]));
  }

  /** Writes entries into the table, complete when this returns. @throws GPUOS_BAD_OPTION */
  enter(entries: readonly TableEntry[]): void {
    const { driver, functions, changes } = this.#parts;
    for (const entry of entries) {
      const words = this.#mirror.enter(entry);
      driver.copyToDevice(functions + entry[0] * ENTRY_BYTES, words, words.byteLength, this.#side);
    }
    // Behind them, for the workers, which remember entries.
    const entered = Uint32Array.of(++this.#entered);
    driver.copyToDevice(changes + ENTERED_AT, entered, entered.byteLength, this.#side);
    driver.synchronizeStream(this.#side);
  }

  /** Whether there are images that ran before. */
  get holds(): boolean {
    return this.#before.length > 0;
  }

  /** See `ResidentHost.swap`. */
  put(running: Running, image: Uint8Array, symbols: readonly string[], drainMs: number, meanwhile: () => void): Put {
    const { driver } = this.#parts;
    if (symbols.length === 0 || symbols.length > FUNCTION_SLOTS)
      throw new GpuosError('GPUOS_BAD_OPTION', `An image with ${symbols.length} operators.`);
    const moves = this.#writeMoves(symbols);
    const watch = new Stopwatch();
    if (!this.#sendAway(drainMs, meanwhile)) return { running, pause: undefined };
    watch.next();
    // From here on no kernel runs: what waits for its end does not wait.
    let loaded: LoadedImage | undefined;
    try {
      this.#unloadBeyond(KEPT_BYTES);
      watch.next();
      loaded = new LoadedImage(driver, image, TELL_KERNEL, () => watch.next());
      watch.next();
      const next = { ...running, image: loaded };
      this.#fillTable(next, moves);
      watch.next();
      this.#launch(next);
      watch.next();
      this.#before.push(running.image);
      this.#mirror = this.#readMirror(symbols);
      return { running: next, pause: watch.pause };
    } catch (error) {
      if (isLost(error)) throw error;
      this.#goBack(running, loaded);
      throw error;
    }
  }

  /** Gives back what ran before, while nobody needs the kernel. See `ResidentHost.tidy`. */
  tidy(running: Running, meanwhile: () => void): void {
    if (!this.#sendAway(TIDY_MS, meanwhile)) return;
    try {
      this.unload();
    } finally {
      this.#launch(running);
    }
  }

  /** The images before the one that runs, while none does. */
  unload(): void {
    this.#unloadBeyond(0);
  }

  #unloadBeyond(bytes: number): void {
    let kept = this.#before.reduce((sum, image) => sum + image.bytes, 0);
    while (kept > bytes) {
      const oldest = this.#before.shift();
      if (oldest === undefined) return;
      kept -= oldest.bytes;
      oldest.unload();
    }
  }

  /** Has the kernel leave when what runs is complete. If that takes longer, or it is to leave for good, it is as it was. */
  #sendAway(drainMs: number, meanwhile: () => void): boolean {
    const { words } = this.#parts;
    if (Atomics.compareExchange(words, QUIT_WORD, QUIT.no, QUIT.whenDone) !== QUIT.no) return false;
    if (this.#leaves(drainMs, meanwhile)) return true;
    Atomics.compareExchange(words, QUIT_WORD, QUIT.whenDone, QUIT.no);
    return this.#leaves(SETTLE_MS, meanwhile);
  }

  /** Whether the kernel leaves within so long. The wait is short, and waking up from a sleep would take its time. */
  #leaves(ms: number, meanwhile: () => void): boolean {
    const until = performance.now() + ms;
    do {
      if (this.#parts.driver.streamDone(this.#parts.stream)) return true;
      meanwhile();
    } while (performance.now() < until);
    return false;
  }

  /** Where each entry of ours gets its address from when another image has told its own; how many there are. Before the pause. */
  #writeMoves(symbols: readonly string[]): number {
    const { driver, functions, interpreterWord } = this.#parts;
    const from = new Map(symbols.map((symbol, i) => [symbol, this.#told + 8 * i]));
    from.set(INTERPRETER, functions + 8 * interpreterWord);
    const nothing = this.#told + 8 * FUNCTION_SLOTS;
    const entries = [...this.#mirror.symbols];
    const words = new BigUint64Array(
      entries.flatMap(([fn, symbol]) => [functions + ENTRY_BYTES * fn, from.get(symbol) ?? nothing]).map(BigInt),
    );
    if (words.length > 0) driver.copyToDevice(this.#moves, words, words.byteLength, this.#side);
    driver.synchronizeStream(this.#side);
    return entries.length;
  }

  /** Has the table of functions brought up to date for another image. The slots of operators are the tasks': they stay. */
  #fillTable({ image, argument }: Running, moves: number): void {
    const { driver, stream } = this.#parts;
    const aside = new DataView(argument.buffer.slice(0));
    aside.setBigUint64(TABLE_ARGUMENT, BigInt(this.#spareSlots), true);
    image.fillTable(aside, stream);
    image.tellAddresses(this.#told, this.#moves, moves, stream);
    driver.recordEvent(this.#moved, stream);
  }

  /** What stands in the table then. The kernel runs by now, and changes nothing there. @throws GPUOS_DEVICE_LOST */
  #readMirror(symbols: readonly string[]): FunctionMirror {
    const { driver, functions, own: before, interpreterWord } = this.#parts;
    const own = new BigUint64Array(before.length);
    const told = new BigUint64Array(symbols.length);
    try {
      driver.synchronizeEvent(this.#moved);
      driver.copyToHost(own, functions, own.byteLength, this.#side);
      driver.copyToHost(told, this.#told, told.byteLength, this.#side);
      driver.synchronizeStream(this.#side);
    } catch (cause) {
      const text = `The addresses of a new image could not be read: ${(cause as Error).message}`;
      throw new GpuosError('GPUOS_DEVICE_LOST', text, { cause });
    }
    const addresses: Addresses = new Map([
      [INTERPRETER, own[interpreterWord]!] as const,
      ...symbols.map((symbol, i) => [symbol, told[i]!] as const),
    ]);
    return this.#mirror.moved(own, addresses);
  }

  #launch({ image, argument, shape }: Running): void {
    const { driver, words, stream, leave } = this.#parts;
    driver.fillBytes(leave, 0, 4, stream);
    // Not if it is to leave for good by now: then it is launched, sees that, and leaves.
    Atomics.compareExchange(words, QUIT_WORD, QUIT.whenDone, QUIT.no);
    image.launch(shape, argument);
  }

  /** To the kernel as it was, without an image that did not take its place. @throws GPUOS_DEVICE_LOST */
  #goBack(running: Running, loaded: LoadedImage | undefined): void {
    const { driver, stream, functions } = this.#parts;
    const { table } = this.#mirror;
    try {
      driver.synchronizeStream(stream);
      loaded?.unload();
      driver.copyToDevice(functions, table, table.byteLength, stream);
      this.#launch(running);
    } catch (cause) {
      const text = `The resident kernel could not be launched again: ${(cause as Error).message}`;
      throw new GpuosError('GPUOS_DEVICE_LOST', text, { cause });
    }
  }
}

const isLost = (error: unknown): boolean => error instanceof GpuosError && error.code === 'GPUOS_DEVICE_LOST';
