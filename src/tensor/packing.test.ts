import { afterEach, expect, it } from 'vitest';
import { init, type System } from '../runtime/system.ts';
import { engineOf } from './engine.ts';
import type { Tensor } from './tensor.ts';

let system: System | undefined;
afterEach(() => system?.shutdown());

/** One matrix used as it is and transposed in one computation has two packings, and both must stay while it runs. */
it('packs a matrix that is used again, as it is and transposed, without letting go of either', () => {
  system = init({ workers: 1, memoryMib: 64 });
  const engine = engineOf(system);
  const n = 24;
  const values = (seed: number): Float32Array => Float32Array.from({ length: n * n }, (_, i) => Math.sin(i * seed));
  const [a, w] = [values(1.1), values(0.7)];
  const product = (x: Float32Array, at: (k: number, j: number) => number): Float32Array =>
    Float32Array.from({ length: n * n }, (_, i) => {
      let sum = 0;
      for (let k = 0; k < n; k++) sum += (x[Math.floor(i / n) * n + k] as number) * at(k, i % n);
      return sum;
    });
  const once = product(a, (k, j) => w[k * n + j] as number);
  const expected = product(once, (k, j) => w[j * n + k] as number);
  const left = engine.fromHost(a, [n, n]);
  const right = engine.fromHost(w, [n, n]);
  for (let round = 0; round < 6; round++) {
    const result = engine.tidy(() => {
      const y = engine.apply('matmul', [left, right])[0] as Tensor;
      return engine.apply('matmul', [y, right], { transposeB: true })[0] as Tensor;
    });
    const got = result.dataSync();
    for (let i = 0; i < n * n; i++) expect(Math.abs((got[i] as number) - (expected[i] as number))).toBeLessThan(1e-3);
    result.dispose();
  }
  expect(right.storage?.packed?.size).toBe(2);
  const used = system.heap.usedBytes;
  left.dispose();
  right.dispose();
  // Its packings go with it.
  expect(system.heap.usedBytes).toBeLessThan(used - 3 * n * n * 4);
});
