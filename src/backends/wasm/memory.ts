import type { MemoryViews } from '../backend.ts';
import { GpuosError } from '../../errors.ts';
import { adviseHugePages } from './huge-pages.ts';

const PAGE_BYTES = 65536;
const MIB = 1 << 20;
/** Grown by this much at a time, so that views are replaced seldom. */
const STEP_BYTES = 16 * MIB;

/**
 * Shared WebAssembly memory. It declares the most it may grow to; where the system refuses to reserve
 * that much address space, smaller maxima are tried.
 */
export class WasmMemory {
  readonly memory: WebAssembly.Memory;
  readonly limit: number;
  #views: MemoryViews;

  /** @param limitMib most MiB that it may grow to @throws GPUOS_NO_SHARED_MEMORY */
  constructor(limitMib: number, initialBytes: number) {
    if (typeof SharedArrayBuffer === 'undefined' || typeof WebAssembly === 'undefined') {
      throw new GpuosError('GPUOS_NO_SHARED_MEMORY', 'This process has no SharedArrayBuffer or no WebAssembly.');
    }
    const initial = Math.ceil(initialBytes / PAGE_BYTES);
    const refusals: string[] = [];
    let memory: WebAssembly.Memory | undefined;
    let pages = Math.min(65536, Math.max(initial, Math.floor((limitMib * MIB) / PAGE_BYTES)));
    for (; memory === undefined; pages = Math.max(initial, pages >> 1)) {
      try {
        memory = new WebAssembly.Memory({ initial, maximum: pages, shared: true });
      } catch (error) {
        refusals.push(`${(pages * PAGE_BYTES) / MIB} MiB: ${(error as Error).message}`);
        if (pages === initial) {
          throw new GpuosError('GPUOS_NO_SHARED_MEMORY', `No shared memory could be reserved (${refusals.join('; ')}).`, { cause: error });
        }
        continue;
      }
      break;
    }
    this.memory = memory as WebAssembly.Memory;
    // The last page stays out of reach, so that the end of any range is still a 32-bit number.
    this.limit = Math.min(pages, 65535) * PAGE_BYTES;
    adviseHugePages(this.memory, Math.min(pages, 65536) * PAGE_BYTES);
    this.#views = this.#makeViews();
  }

  #makeViews(): MemoryViews {
    const buffer = this.memory.buffer;
    return { u32: new Uint32Array(buffer), i32: new Int32Array(buffer), f32: new Float32Array(buffer), bytes: buffer.byteLength };
  }

  get views(): MemoryViews {
    return this.#views;
  }

  /** Grows so that `bytes` are there. @throws GPUOS_OUT_OF_MEMORY */
  ensure(bytes: number): void {
    const have = this.#views.bytes;
    if (bytes <= have) return;
    const want = Math.min(this.limit, Math.max(bytes, have + STEP_BYTES));
    try {
      if (bytes > this.limit) throw new RangeError('past the maximum');
      this.memory.grow(Math.ceil((want - have) / PAGE_BYTES));
    } catch (cause) {
      const mib = (value: number): string => `${(value / MIB).toFixed(1)} MiB`;
      throw new GpuosError(
        'GPUOS_OUT_OF_MEMORY',
        `Device memory would need ${mib(bytes)}; it has ${mib(have)} and may grow to ${mib(this.limit)}.`,
        {
          cause,
        },
      );
    }
    this.#views = this.#makeViews();
  }
}
