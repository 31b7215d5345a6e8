import { koffi } from '../native.ts';

/** MADV_HUGEPAGE of Linux. */
const ADVICE = 14;

let madvise: ((address: Uint8Array, bytes: number, advice: number) => number) | undefined;

/**
 * Asks Linux to back the memory, up to where it may grow, by pages of 2 MiB: where they are given on request only, which
 * is the default of most distributions. A kernel of seventy operands reads from as many pages at once, and a model's weights
 * lie in thousands; both are more than a core's translation buffer holds. Elsewhere, and where it is refused, nothing changes.
 * @returns whether the system took the advice
 */
export function adviseHugePages(memory: WebAssembly.Memory, bytes: number): boolean {
  if (process.platform !== 'linux') return false;
  try {
    madvise ??= koffi().load('libc.so.6').func('int madvise(void *address, size_t bytes, int advice)') as unknown as typeof madvise;
    return madvise?.(new Uint8Array(memory.buffer), bytes, ADVICE) === 0;
  } catch {
    // No glibc of that name, or no koffi for this platform.
    return false;
  }
}
