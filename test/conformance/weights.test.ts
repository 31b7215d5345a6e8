import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { referenceRun } from '../../src/backends/reference/index.ts';
import { operatorByName } from '../../src/ops/index.ts';
import type { System } from '../../src/runtime/system.ts';
import { type Engine, engineOf } from '../../src/tensor/engine.ts';
import { BACKENDS } from './backends.ts';
import { placed } from './layouts.ts';
import { HeapWatch } from './memory.ts';
import { Random, randomTensor, search } from './random.ts';
import { difference, toleranceOf } from './tolerances.ts';

/** A matrix that is used again and again may be kept in an order of the device's own; that must never show. */
describe.each(BACKENDS)('weights on $name', ({ open, skip }) => {
  let system: System;
  let engine: Engine;
  let watch: HeapWatch;
  beforeAll(() => {
    if (skip !== undefined) return;
    system = open();
    watch = new HeapWatch(system);
    engine = engineOf(system);
  });
  afterAll(async () => {
    if (skip !== undefined) return;
    watch.check();
    expect(system.heap.usedBytes, 'bytes in use at the end').toBe(0);
    await system.shutdown();
  });

  it.skipIf(skip !== undefined)(`matrix products with the same matrix, any layout, and views of it${skip ? `: ${skip}` : ''}`, () => {
    fc.assert(
      fc.property(fc.integer(), (seed) => {
        const random = new Random(seed);
        const [k, n] = [random.between(1, 40), random.between(1, 70)];
        const transposeB = random.chance(0.4);
        const host = randomTensor(random, transposeB ? [n, k] : [k, n], 'float32', 'open');
        engine.tidy(() => {
          const weights = placed(engine, random, host);
          // Two views of one memory, so that what is kept for one must not serve the other.
          const half = transposeB ? weights.slice([0, 0], [Math.ceil(n / 2), k]) : weights.slice([0, 0], [k, Math.ceil(n / 2)]);
          const hostHalf = referenceRun('slice', [host], { begin: [0, 0], size: half.shape })[0]!;
          for (let use = 0; use < 5; use++) {
            const [matrix, values] = random.chance(0.3) ? [half, hostHalf] : [weights, host];
            const a = randomTensor(random, [...(random.chance(0.3) ? [2] : []), random.between(1, 12), k], 'float32', 'tame');
            const attributes = { transposeB };
            const want = referenceRun('matmul', [a, values], attributes)[0]!;
            const got = engine.apply('matmul', [placed(engine, random, a), matrix], attributes)[0]!.dataSync();
            const example = { inputs: [a, values], attributes };
            const wrong = difference(got, want.data, toleranceOf(operatorByName('matmul'), example, want));
            if (wrong !== undefined) expect.fail(`use ${use} of [${values.shape}] with [${a.shape}]: ${wrong}`);
          }
        });
      }),
      search(120, 5),
    );
  });
});
