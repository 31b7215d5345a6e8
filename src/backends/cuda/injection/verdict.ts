/** What the self-test of direct injection said, in the cache: a test that costs a device process is made once. */
import { driverIdentity } from '../driver-identity.ts';
import { ImageCache } from '../image-cache.ts';
import type { CudaProbe } from '../probe.ts';
import { residentSource } from '../source.ts';
import type { InjectionMode } from './functions.ts';
import { selfTestSource } from './self-test.ts';

export interface Verdict {
  readonly works: boolean;
  /** Why not. */
  readonly why: string;
}

/** What decides whether it works, besides the sources. */
export interface VerdictFacts {
  readonly driverPath: string;
  readonly cudaVersion: number;
  readonly computeCapability: readonly [major: number, minor: number];
  readonly nvrtcVersion: readonly [major: number, minor: number];
}

/** What `gpuos info` says of injection, by what was found and what is remembered; it starts nothing. */
export function injectionText(asked: 'auto' | InjectionMode, { cudaVersion, gpus, libraries }: CudaProbe, cacheFolder: string): string {
  if (asked !== 'auto') return `${asked}, asked for by GPUOS_CUDA_INJECT`;
  const gpu = gpus.find(({ unfit }) => unfit.length === 0);
  const { driver, nvrtc } = libraries;
  if (gpu === undefined || cudaVersion === undefined || driver.path === undefined || nvrtc.version === undefined) return 'not known';
  const pair = (text: string): readonly [number, number] => {
    const [major = 0, minor = 0] = text.split('.').map(Number);
    return [major, minor];
  };
  const facts = {
    driverPath: driver.path,
    cudaVersion,
    computeCapability: pair(gpu.computeCapability),
    nvrtcVersion: pair(nvrtc.version),
  };
  const known = new Verdicts(new ImageCache(cacheFolder), facts).read();
  if (known === undefined) return 'direct, if its self-test passes at the first start';
  return known.works ? 'direct, which passed its self-test here' : `relaunch, since the self-test of direct failed here: ${known.why}`;
}

export class Verdicts {
  readonly #cache: ImageCache;
  readonly #key: string;

  constructor(cache: ImageCache, { driverPath, cudaVersion, computeCapability, nvrtcVersion }: VerdictFacts) {
    this.#cache = cache;
    const sources = [residentSource(), selfTestSource(1)];
    this.#key = ImageCache.key(['direct', sources, driverIdentity(driverPath), cudaVersion, computeCapability, nvrtcVersion]);
  }

  read(): Verdict | undefined {
    const bytes = this.#cache.read(this.#key);
    return bytes === undefined ? undefined : (JSON.parse(Buffer.from(bytes).toString('utf8')) as Verdict);
  }

  write(verdict: Verdict): void {
    this.#cache.write(this.#key, Buffer.from(JSON.stringify(verdict)));
  }
}
