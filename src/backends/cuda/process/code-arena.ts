import { GpuosError } from '../../../errors.ts';
import type { CudaDriver } from '../driver.ts';
import { type InjectableFunction, placeCode } from '../elf/injectable.ts';
import type { Address } from '../library.ts';

/** What stays free behind each function: the device fetches instructions ahead. */
export const GUARD_BYTES = 4096;

/**
 * Device memory for injected code. Instruction caches are not coherent, so an address is handed out once in the life of
 * the arena, also when copying to it failed. Threads can share one: they count in the same word.
 */
export class CodeArena {
  readonly #address: Address;
  readonly #bytes: number;
  readonly #used: Int32Array;

  /** @param used one word, 0 at first: the bytes handed out */
  constructor(address: Address, bytes: number, used: Int32Array) {
    this.#address = address;
    this.#bytes = bytes;
    this.#used = used;
  }

  get usedBytes(): number {
    return Atomics.load(this.#used, 0);
  }

  /** @throws GPUOS_OUT_OF_MEMORY when it is full */
  reserve(bytes: number, alignmentBytes: number): Address {
    for (;;) {
      const used = this.usedBytes;
      const address = Math.ceil((this.#address + used) / alignmentBytes) * alignmentBytes;
      const end = address + bytes + GUARD_BYTES - this.#address;
      if (end > this.#bytes) {
        throw new GpuosError(
          'GPUOS_OUT_OF_MEMORY',
          `The arena for injected code is full: ${bytes} bytes asked for, ${used} of ${this.#bytes} used.`,
        );
      }
      if (Atomics.compareExchange(this.#used, 0, used, end) === used) return address;
    }
  }

  /** Copies a function's code to a new address and returns it; the code is there when this returns. */
  place(code: InjectableFunction, driver: CudaDriver, stream: Address): Address {
    const address = this.reserve(code.code.length, code.alignmentBytes);
    const bytes = placeCode(code, BigInt(address));
    driver.copyToDevice(address, bytes, bytes.length, stream);
    driver.synchronizeStream(stream);
    return address;
  }
}
