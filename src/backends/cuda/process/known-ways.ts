/**
 * What was found out of a form of products, in the cache: trying algorithms has the resident kernel leave several times, and
 * the outcome is the same as long as the device, its driver, the library and what the kernel takes are. cuBLAS documents
 * that an algorithm's bytes may be stored, and used again with the same version of the library.
 */
import { statSync } from 'node:fs';
import { type Algorithm, ALGORITHM_BYTES } from '../cublas.ts';
import { ImageCache } from '../image-cache.ts';

/** Of what is kept, and of how it is found out: with another number all is found out anew. */
const VERSION = 1;

/** How many algorithms there were, had room by reckoning, were tried beside the kernel, and did not do there. */
export interface WayCounts {
  readonly proposed: number;
  readonly fitted: number;
  readonly tried: number;
  readonly refused: number;
}

export interface ChosenWay {
  readonly algorithm: Algorithm;
  /** What the product that it was tried with took beside the kernel. */
  readonly us: number;
}

/** `chosen` is undefined where none does. */
export interface KnownWay extends WayCounts {
  readonly chosen: ChosenWay | undefined;
}

/** The size of a file, and when it was written. */
export function fileIdentity(path: string): string {
  try {
    const { size, mtimeMs } = statSync(path);
    return `${size} ${mtimeMs}`;
  } catch {
    // A name that only the loader can resolve.
    return '';
  }
}

const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;

export class KnownWays {
  readonly #cache: ImageCache;

  constructor(cacheFolder: string) {
    this.#cache = new ImageCache(cacheFolder);
  }

  /** @param facts all that the outcome depends on */
  read(facts: readonly unknown[]): KnownWay | undefined {
    const bytes = this.#cache.read(keyOf(facts));
    if (bytes === undefined) return undefined;
    try {
      return parsed(JSON.parse(Buffer.from(bytes).toString('utf8')));
    } catch {
      return undefined;
    }
  }

  write(facts: readonly unknown[], { chosen, proposed, fitted, tried, refused }: KnownWay): void {
    const algorithm = chosen && Buffer.from(chosen.algorithm.bytes).toString('base64');
    const kept = {
      proposed,
      fitted,
      tried,
      refused,
      ...(chosen && { algorithm, workspaceBytes: chosen.algorithm.workspaceBytes, us: chosen.us }),
    };
    this.#cache.write(keyOf(facts), Buffer.from(JSON.stringify(kept)));
  }
}

const keyOf = (facts: readonly unknown[]): string => ImageCache.key(['product', VERSION, ...facts]);

function parsed(value: Readonly<Record<string, unknown>>): KnownWay | undefined {
  const { proposed, fitted, tried, refused, algorithm, workspaceBytes, us } = value;
  if (!isCount(proposed) || !isCount(fitted) || !isCount(tried) || !isCount(refused)) return undefined;
  const counts = { proposed, fitted, tried, refused };
  if (algorithm === undefined) return { ...counts, chosen: undefined };
  const bytes = Uint8Array.from(Buffer.from(String(algorithm), 'base64'));
  if (bytes.length !== ALGORITHM_BYTES || !isCount(workspaceBytes) || typeof us !== 'number') return undefined;
  return { ...counts, chosen: { algorithm: { bytes, workspaceBytes }, us } };
}
