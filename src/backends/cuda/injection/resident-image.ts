import { ImageCache } from '../image-cache.ts';
import type { DeviceProcess } from '../process/device-process.ts';
import { RESIDENT_OPTIONS, residentSource } from '../source.ts';

/** The name under which the device process keeps the relocatable kernel, for links with operators. */
export const RESIDENT_OBJECT = 'resident.cu';
/** The compiler takes a while over it. */
const COMPILE_LIMIT_MS = 300_000;

/**
 * The linked kernel, compiled once for a device's architecture and a compiler.
 * @param keep whether the process is to keep what it is linked from
 * @throws GPUOS_COMPILE_FAILED
 */
export function residentImage(process: DeviceProcess, cache: ImageCache, keep: boolean): Uint8Array {
  const { source, headers } = residentSource();
  const { computeCapability, nvrtcVersion } = process.info;
  const keyOf = (what: string): string => ImageCache.key([what, source, headers, RESIDENT_OPTIONS, computeCapability, nvrtcVersion]);
  const [image, object] = [keyOf('resident'), keyOf('resident object')];
  const known = cache.read(image);
  if (known !== undefined && !keep) return known;
  const compiled = cache.read(object);
  if (compiled !== undefined) {
    process.call('keep', { name: RESIDENT_OBJECT, payload: compiled });
  } else {
    const ask = { source, headers, name: 'resident.cu', options: RESIDENT_OPTIONS, keep: RESIDENT_OBJECT };
    cache.write(object, process.call('compile', ask, { limitMs: COMPILE_LIMIT_MS }).payload);
  }
  if (known !== undefined) return known;
  const { payload } = process.call('link', { names: [RESIDENT_OBJECT], forget: keep ? [] : [RESIDENT_OBJECT], fetch: true });
  cache.write(image, payload as Uint8Array);
  return payload as Uint8Array;
}
