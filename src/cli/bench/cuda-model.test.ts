import { existsSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { whatBounds } from './cuda-model.ts';
import { type BenchRow, rowProblem } from './suite.ts';

const BUILT = '../../../dist/cli/bench/cuda-model.js';

describe('the encoder on a device', () => {
  it.skipIf(!existsSync(new URL(BUILT, import.meta.url)))('is a row that says what bounds it (needs the built file)', async () => {
    const { measureEncoder } = (await import(new URL(BUILT, import.meta.url).href)) as typeof import('./cuda-model.ts');
    const rows: BenchRow[] = [];
    const passages = ['A storm rose over the sea.', 'She planted roses beside the wall.'].map((text) => ({ text, section: '' }));
    await measureEncoder('wasm', passages, (row) => rows.push(row), { sentences: 2, passes: 1, checked: 1 });
    expect(rows.map(rowProblem)).toEqual([undefined]);
    expect(rows[0]).toMatchObject({ name: 'model.encoder.p50', unit: 'ms', device: 'wasm' });
    expect(rows[0]?.note).toMatch(
      /^p50 of 2 sentences, pass 1 .*; 2\d\d framework operations in \d+\.\d tasks a sentence; .* computes along: bound by/,
    );
  });

  it('is bound by whichever takes longer', () => {
    const sentence = { device: 'cuda', tasks: 25, operations: 256, totalMs: 4 };
    expect(whatBounds({ ...sentence, waitedMs: 1 })).toMatch(/3\.00 ms \(75%\) and waits for 1\.00 ms, 40 us a task: bound by the host$/);
    expect(whatBounds({ ...sentence, waitedMs: 3 })).toMatch(/1\.00 ms \(25%\) and waits for 3\.00 ms, 120 us a task: bound by the tasks$/);
  });
});
