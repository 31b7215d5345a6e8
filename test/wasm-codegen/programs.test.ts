/** Random programs over random shapes and layouts, bit for bit against the evaluator. */
import fc from 'fast-check';
import { describe, test } from 'vitest';
import { manyOperands, randomCase } from './generator.ts';
import { check, identical } from './machine.ts';

/** So wide that rows are cut into several blocks of columns. */
const WIDTHS = [5, 64, 100, 1000, 2048, 4096, 4100, 9001];

describe('compiled programs', () => {
  test('random programs, shapes, strides and tiles equal the evaluator, and write nothing else', () => {
    fc.assert(
      fc.property(fc.integer(), (seed) => check(randomCase(seed), identical)),
      { numRuns: Number(process.env['RUNS'] ?? 400) },
    );
  });

  test('programs of many operands, which run in segments, equal the evaluator', () => {
    fc.assert(
      fc.property(fc.integer(), (seed) => check(manyOperands(seed, 1, WIDTHS), identical)),
      { numRuns: Number(process.env['RUNS'] ?? 400) / 10 },
    );
  });
});
