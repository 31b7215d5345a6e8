import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { System } from '../../src/runtime/system.ts';
import { type Engine, engineOf } from '../../src/tensor/engine.ts';
import { BACKENDS } from './backends.ts';
import { randomScript } from './graph.ts';
import { HeapWatch } from './memory.ts';
import { compare, compareBits, play, type Readings, tell } from './playing.ts';
import { search } from './random.ts';

describe.each(BACKENDS)('fusion on $name', ({ open, skip }) => {
  let system: System;
  let engine: Engine;
  let watch: HeapWatch;
  beforeAll(() => {
    if (skip !== undefined) return;
    system = open();
    watch = new HeapWatch(system);
    engine = engineOf(system);
  });
  afterAll(() => system?.shutdown());

  const hold = async (seed: number, steps: number, elements: number): Promise<void> => {
    const script = randomScript(seed, steps, elements);
    const before = system.heap.usedBytes;
    const results: Readings[] = [];
    try {
      for (const fused of [true, false]) {
        system.fused = fused;
        const readings = await play(engine, script);
        await engine.sync();
        compare(script, readings, fused ? 'fused' : 'not fused');
        expect(system.heap.usedBytes, `bytes in use after all is disposed of (${fused ? 'fused' : 'not fused'})`).toBe(before);
        results.push(readings);
      }
      compareBits(script, results[0]!, results[1]!);
      watch.check();
    } catch (error) {
      if (process.env['TELL']) console.log(tell(script));
      throw error;
    } finally {
      system.fused = true;
    }
  };

  it.skipIf(skip !== undefined)(
    `random programs: fused, not fused and the reference agree, and all memory comes back${skip ? `: ${skip}` : ''}`,
    async () => {
      await fc.assert(
        fc.asyncProperty(fc.integer(), fc.integer({ min: 5, max: 60 }), (seed, steps) => hold(seed, steps, 600)),
        search(300, 20261),
      );
    },
  );

  it.skipIf(skip !== undefined)(`the same with tensors that take several tiles${skip ? `: ${skip}` : ''}`, async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer(), fc.integer({ min: 4, max: 14 }), (seed, steps) => hold(seed, steps, 12_000)),
      search(40, 20262),
    );
  });
});
