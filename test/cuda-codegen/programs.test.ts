/** Random programs, compiled, on the emulation of a block: bit for bit against the evaluator, and they write nothing else. */
import fc from 'fast-check';
import { describe, test } from 'vitest';
import { NO_GXX, reason } from '../cuda/emulation/emulation.ts';
import { type Case, identical } from '../wasm-codegen/machine.ts';
import { manyOperands, manyUniforms, randomCase, rowInPlace } from './cases.ts';
import { check, compileAll } from './machine.ts';

/** Programs that are compiled together: the compiler's start costs more than a program. */
const BATCH = 40;
const THREADS = [32, 64, 256];

function checkBatch(cases: readonly Case[], options: readonly string[] = []): void {
  const emulated = compileAll(
    cases.map(({ program }) => program),
    options,
  );
  try {
    cases.forEach((one, i) => {
      const threads = THREADS[i % THREADS.length]!;
      check(one, (params, tiles) => emulated.callAll(`p${i}`, params, tiles, { threads, order: i % 5 }), identical);
    });
  } finally {
    emulated.free();
  }
}

const seeds = (count: number) => fc.array(fc.integer(), { minLength: count, maxLength: count });
const runs = Number(process.env['RUNS'] ?? 3);

describe.skipIf(NO_GXX)(reason('compiled programs on the CUDA device'), () => {
  test('random programs, shapes, strides, tiles and blocks equal the evaluator', { timeout: 300_000 }, () => {
    fc.assert(
      fc.property(seeds(BATCH), (list) => checkBatch(list.map(randomCase))),
      { numRuns: runs, endOnFailure: true },
    );
  });

  test('so do they without shuffles, as before sm_90', { timeout: 300_000 }, () => {
    fc.assert(
      fc.property(seeds(BATCH), (list) => checkBatch(list.map(randomCase), ['-DGPUOS_SHUFFLES=0'])),
      { numRuns: Math.ceil(runs / 2), endOnFailure: true },
    );
  });

  test('programs of many operands, whose addresses are read again, equal the evaluator', { timeout: 300_000 }, () => {
    fc.assert(
      fc.property(seeds(12), (list) => checkBatch(list.map(manyOperands))),
      { numRuns: 1, endOnFailure: true },
    );
  });

  test('so do programs with many values a row, and with row outputs in the place of inputs', { timeout: 300_000 }, () => {
    const cases = (list: number[]) => list.map((seed, i) => (i % 2 === 0 ? manyUniforms(seed) : rowInPlace(seed)));
    fc.assert(
      fc.property(seeds(24), (list) => {
        checkBatch(cases(list));
        checkBatch(cases(list), ['-DGPUOS_SHUFFLES=0']);
      }),
      { numRuns: 1, endOnFailure: true },
    );
  });
});
