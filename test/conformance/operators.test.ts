import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { referenceRun } from '../../src/backends/reference/index.ts';
import { OPERATORS } from '../../src/ops/index.ts';
import { formatShape } from '../../src/ops/shape.ts';
import type { System } from '../../src/runtime/system.ts';
import { type Engine, engineOf } from '../../src/tensor/engine.ts';
import { BACKENDS } from './backends.ts';
import { caseOf } from './cases.ts';
import { placed } from './layouts.ts';
import { HeapWatch } from './memory.ts';
import { Random, search } from './random.ts';
import { difference, toleranceOf } from './tolerances.ts';

describe.each(BACKENDS)('operators on $name', ({ open, skip }) => {
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

  for (const definition of OPERATORS) {
    const make = caseOf(definition);
    // nop is the executor's: it has neither inputs nor outputs, and src/runtime/system.test.ts runs it.
    if (make === undefined && definition.name === 'nop') continue;

    it.skipIf(skip !== undefined)(`${definition.name}${skip ? `: ${skip}` : ''}`, () => {
      if (make === undefined) throw new Error('this operator has no case');
      fc.assert(
        fc.property(fc.integer(), (seed) => {
          const random = new Random(seed);
          const example = make(random);
          const expected = referenceRun(definition.name, example.inputs, example.attributes);
          engine.tidy(() => {
            const inputs = example.inputs.map((host) => placed(engine, random, host));
            const outputs = engine.apply(definition.name, inputs, example.attributes);
            expect(outputs.length).toBe(expected.length);
            for (const [i, want] of expected.entries()) {
              const output = outputs[i]!;
              const told = `${definition.name}(${example.inputs.map(({ shape, dtype }) => dtype + formatShape(shape)).join(', ')}) ${JSON.stringify(example.attributes)}`;
              expect(output.shape, told).toEqual(want.shape);
              expect(output.dtype, told).toBe(want.dtype);
              const wrong = difference(output.dataSync(), want.data, toleranceOf(definition, example, want));
              if (wrong !== undefined) expect.fail(`output ${i} of ${told}: ${wrong}`);
            }
          });
        }),
        search(40, 31),
      );
    });
  }
});
