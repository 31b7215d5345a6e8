/** Functions of shared libraries, by koffi: the one way from here to anything that Node.js does not offer. */
import { createRequire } from 'node:module';
import type * as Koffi from 'koffi';
import { GpuosError } from '../errors.ts';

let loaded: typeof Koffi | undefined;

/**
 * koffi, loaded at the first use: a program that never needs it does not load its binary.
 * @throws GPUOS_PACKAGE_MISSING where there is no koffi for this platform
 */
export function koffi(): typeof Koffi {
  if (loaded !== undefined) return loaded;
  try {
    loaded = createRequire(import.meta.url)('koffi') as typeof Koffi;
  } catch (cause) {
    throw new GpuosError('GPUOS_PACKAGE_MISSING', `koffi cannot be loaded: ${firstLine(cause)}.`, { cause });
  }
  return loaded;
}

export function firstLine(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).split('\n')[0]!.replace(/\.$/, '');
}
