import { FUNCTION_SLOTS } from '../../../abi/status.ts';
import { GpuosError } from '../../../errors.ts';
import type { TableEntry } from '../process/requests.ts';

/** Words of 8 bytes of an entry: address and data. */
const WORDS = 2;

/** Addresses of functions by their symbols, in one image. */
export type Addresses = ReadonlyMap<string, bigint>;

/** The symbol under which entries name the interpreter. */
export const INTERPRETER = '';

/**
 * The table of functions as the host wrote it: by symbols, so that it can be written again where another image has them
 * at other addresses. Functions of the kernel itself come first, in the same places in every image.
 */
export class FunctionMirror {
  #table: BigUint64Array<ArrayBuffer>;
  #addresses: Addresses;
  readonly #symbols = new Map<number, string>();
  #end: number;

  /** @param own entries of the functions of the kernel itself, from 0 on */
  constructor(own: BigUint64Array, addresses: Addresses) {
    this.#table = new BigUint64Array(WORDS * FUNCTION_SLOTS);
    this.#table.set(own);
    this.#addresses = addresses;
    this.#end = own.length / WORDS;
  }

  /** The whole of what is to stand in the table. */
  get table(): BigUint64Array<ArrayBuffer> {
    return this.#table.subarray(0, WORDS * this.#end);
  }

  /** The symbols of the entries that were noted, by their numbers. */
  get symbols(): ReadonlyMap<number, string> {
    return this.#symbols;
  }

  /** Notes an entry; the words that it consists of, without data only the first. @throws GPUOS_BAD_OPTION */
  enter([fn, symbol, data]: TableEntry): BigUint64Array<ArrayBuffer> {
    if (!Number.isInteger(fn) || fn < 0 || fn >= FUNCTION_SLOTS) throw new GpuosError('GPUOS_BAD_OPTION', `There is no function ${fn}.`);
    const address = this.#addresses.get(symbol);
    if (address === undefined) throw new GpuosError('GPUOS_BAD_OPTION', `The kernel has no function ${JSON.stringify(symbol)}.`);
    const at = WORDS * fn;
    this.#table[at] = address;
    if (data !== undefined) this.#table[at + 1] = BigInt(data);
    this.#symbols.set(fn, symbol);
    this.#end = Math.max(this.#end, fn + 1);
    return this.#table.subarray(at, at + (data === undefined ? 1 : WORDS));
  }

  /** The same entries with the addresses of another image. One whose function that image lacks is empty: no task names it any more. */
  moved(own: BigUint64Array, addresses: Addresses): FunctionMirror {
    const other = new FunctionMirror(own, addresses);
    for (const [fn, symbol] of this.#symbols) {
      if (addresses.has(symbol)) other.enter([fn, symbol, Number(this.#table[WORDS * fn + 1])]);
      else other.#end = Math.max(other.#end, fn + 1);
    }
    return other;
  }
}
