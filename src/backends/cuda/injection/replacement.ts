/**
 * Another image in the place of the running kernel's: the documented way to new code. What a kernel has to continue with
 * (rings, heads, marks, mailboxes, tables) is in memory, so what it is told to leave with, the next one starts from.
 */
import { control } from '../../../abi/records.ts';
import { CONTROL_ADDRESS, FUNCTION_SLOTS, OPERATOR_SLOTS } from '../../../abi/status.ts';
import { GpuosError } from '../../../errors.ts';
import type { CudaDriver, LaunchShape } from '../driver.ts';
import type { Address } from '../library.ts';
import type { TableEntry } from '../process/requests.ts';
import { type Addresses, FunctionMirror, INTERPRETER } from './function-mirror.ts';
import { LoadedImage } from './loaded-image.ts';
import { TELL_KERNEL } from './table-source.ts';

/** What the kernel's host may ask of it: to leave, within half a second; or when what runs is complete, however long that takes. */
export const QUIT = { no: 0, now: 1, whenDone: 2 } as const;
export const QUIT_WORD = (CONTROL_ADDRESS + control.offset.quit) >> 2;

const ENTRY_BYTES = 16;
const SLOT_BYTES = 8;
/** Where the table of operators stands among the kernel's arguments. */
const TABLE_ARGUMENT = 8 * 6;
/** A kernel that was about to leave when it was told to go on needs no longer than this. */
const SETTLE_MS = 5;

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
  allocate(bytes: number): Address;
}

/** `pauseUs`: from the word to leave until the next kernel was launched; undefined if the one before goes on. */
export interface Put {
  readonly running: Running;
  readonly pauseUs: number | undefined;
}

export class Replacement {
  readonly #parts: ReplacementParts;
  /** For entries, while the kernel runs. */
  readonly #side: Address;
  /** Where an image tells its addresses, and where it may write the slots that are not to change. */
  readonly #told: Address;
  readonly #spareSlots: Address;
  /** Images that ran before; they can only be unloaded while no kernel runs. */
  #before: LoadedImage[] = [];
  #mirror: FunctionMirror;

  constructor(parts: ReplacementParts) {
    const { driver, own, interpreterWord, allocate } = parts;
    this.#parts = parts;
    this.#side = driver.createStream(driver.streamPriorities().greatest);
    this.#told = allocate(FUNCTION_SLOTS * 8);
    this.#spareSlots = allocate(OPERATOR_SLOTS * SLOT_BYTES);
    this.#mirror = new FunctionMirror(own, new Map([[INTERPRETER, own[interpreterWord]!]]));
  }

  /** Writes entries into the table, complete when this returns. @throws GPUOS_BAD_OPTION */
  enter(entries: readonly TableEntry[]): void {
    const { driver, functions } = this.#parts;
    for (const entry of entries) {
      const words = this.#mirror.enter(entry);
      driver.copyToDevice(functions + entry[0] * ENTRY_BYTES, words, words.byteLength, this.#side);
    }
    driver.synchronizeStream(this.#side);
  }

  /** See `ResidentHost.swap`. */
  put(running: Running, image: Uint8Array, symbols: readonly string[], drainMs: number, meanwhile: () => void): Put {
    const { driver, words, stream } = this.#parts;
    if (symbols.length > FUNCTION_SLOTS) throw new GpuosError('GPUOS_BAD_OPTION', `An image with ${symbols.length} operators.`);
    const from = performance.now();
    // It may have been told to leave for good.
    if (Atomics.compareExchange(words, QUIT_WORD, QUIT.no, QUIT.whenDone) !== QUIT.no) return { running, pauseUs: undefined };
    if (!this.#leaves(drainMs, meanwhile)) {
      Atomics.compareExchange(words, QUIT_WORD, QUIT.whenDone, QUIT.no);
      if (!this.#leaves(SETTLE_MS, meanwhile)) return { running, pauseUs: undefined };
    }
    // From here on no kernel runs: what waits for its end does not wait.
    let loaded: LoadedImage | undefined;
    try {
      for (const old of this.#before.splice(0)) old.unload();
      loaded = new LoadedImage(driver, image, symbols.length > 0 ? TELL_KERNEL : undefined);
      const next = { ...running, image: loaded };
      const mirror = this.#moved(next, symbols);
      this.#launch(next, mirror);
      this.#mirror = mirror;
      this.#before.push(running.image);
      return { running: next, pauseUs: (performance.now() - from) * 1000 };
    } catch (error) {
      if (isLost(error)) throw error;
      try {
        driver.synchronizeStream(stream);
        loaded?.unload();
        this.#launch(running, this.#mirror);
      } catch (cause) {
        const text = `The resident kernel could not be launched again: ${(cause as Error).message}`;
        throw new GpuosError('GPUOS_DEVICE_LOST', text, { cause });
      }
      throw error;
    }
  }

  /** The images before the one that runs, while none does. */
  unload(): void {
    for (const old of this.#before.splice(0)) old.unload();
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

  /** The table of functions for another image. The slots of operators are the tasks': they stay. */
  #moved({ image, argument }: Running, symbols: readonly string[]): FunctionMirror {
    const { driver, stream, functions, own: before, interpreterWord } = this.#parts;
    const aside = new DataView(argument.buffer.slice(0));
    aside.setBigUint64(TABLE_ARGUMENT, BigInt(this.#spareSlots), true);
    image.fillTable(aside, stream);
    image.tellAddresses(this.#told, stream);
    const own = new BigUint64Array(before.length);
    const told = new BigUint64Array(symbols.length);
    driver.copyToHost(own, functions, own.byteLength, stream);
    if (told.length > 0) driver.copyToHost(told, this.#told, told.byteLength, stream);
    driver.synchronizeStream(stream);
    const addresses: Addresses = new Map([
      [INTERPRETER, own[interpreterWord]!] as const,
      ...symbols.map((symbol, i) => [symbol, told[i]!] as const),
    ]);
    return this.#mirror.moved(own, addresses);
  }

  #launch({ image, argument, shape }: Running, { table }: FunctionMirror): void {
    const { driver, words, stream, leave, functions } = this.#parts;
    driver.copyToDevice(functions, table, table.byteLength, stream);
    driver.fillBytes(leave, 0, 4, stream);
    // Not if it is to leave for good by now: then it is launched, sees that, and leaves.
    Atomics.compareExchange(words, QUIT_WORD, QUIT.whenDone, QUIT.no);
    image.launch(shape, argument);
  }
}

const isLost = (error: unknown): boolean => error instanceof GpuosError && error.code === 'GPUOS_DEVICE_LOST';
