import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { GpuosError } from '../../errors.ts';
import { Attempts } from './cuda-common.ts';
import { check, randomLengths } from './cuda-elementwise.ts';
import { childrenOf } from './cuda-fault.ts';
import { run } from './cuda.ts';

const BUILT = '../../../dist/cli/bench/cuda.js';

afterEach(() => vi.unstubAllEnvs());

describe('the suite cuda', () => {
  it('says that it needs a GPU where there is none', async () => {
    vi.stubEnv('CUDA_VISIBLE_DEVICES', '-1');
    const emit = vi.fn();
    await expect(run(emit)).rejects.toMatchObject({
      code: 'GPUOS_CUDA_UNAVAILABLE',
      message: expect.stringMatching(/needs a GPU; missing: /),
    });
    expect(emit).not.toHaveBeenCalled();
  });

  it.skipIf(!existsSync(new URL(BUILT, import.meta.url)))(
    'tells how a part ended, and ends one that takes too long (needs the built file)',
    async () => {
      const { runPart } = (await import(new URL(BUILT, import.meta.url).href)) as typeof import('./cuda.ts');
      const emit = vi.fn();
      expect(await runPart('no-such-part', 20_000, emit)).toMatch(/no-such-part/);
      expect(await runPart('submit', 1, emit)).toBe('it was ended after 0.001 s.');
      expect(emit).not.toHaveBeenCalled();
      expect(childrenOf(process.pid)).toEqual([]);
    },
  );

  it('goes on after a measurement that failed, and fails in the end', async () => {
    const stderr = vi.spyOn(process.stderr, 'write').mockReturnValue(true);
    try {
      const attempts = new Attempts();
      expect(await attempts.run('one', () => Promise.reject(new Error('no')))).toBeUndefined();
      expect(await attempts.run('two', () => 2)).toBe(2);
      const third = new GpuosError('GPUOS_DEVICE_LOST', 'It is gone.');
      await attempts.run('three', () => Promise.reject(third));
      expect(() => attempts.finish()).toThrow(/^one: no three: It is gone\. \[GPUOS_BENCH_FAILED\]/);
      expect(() => new Attempts().finish()).not.toThrow();
      expect(stderr.mock.calls.map(([text]) => text)).toContain('bench: cuda: one failed: no\n');
    } finally {
      stderr.mockRestore();
    }
  });

  it('draws lengths that differ, from 1 to 65,536, the same each time', () => {
    const lengths = randomLengths(1100, 3);
    expect(new Set(lengths).size).toBe(1100);
    expect(Math.min(...lengths)).toBeGreaterThanOrEqual(1);
    expect(Math.max(...lengths)).toBeLessThanOrEqual(65_536);
    expect(Math.max(...lengths)).toBeGreaterThan(60_000);
    expect(randomLengths(1100, 3)).toEqual(lengths);
  });

  it.each([
    [[1, 2], [1, 2.0001], undefined],
    [[1, 2], [1, 2.01], /Element 1/],
    [[1, Number.NaN], [1, 2], /Element 1/],
    [[1], [1, 2], /1 results/],
  ])('holds results %j to %j', (ours, theirs, problem) => {
    const compare = (): void => check(Float32Array.from(ours), Float32Array.from(theirs));
    if (problem === undefined) expect(compare).not.toThrow();
    else expect(compare).toThrow(problem);
  });

  it('finds the children of a process, whatever they are called, and not those that have ended', async () => {
    const child = spawn(process.execPath, ['-e', 'process.title = "a) b (c"; setInterval(() => {}, 1000)']);
    const ended = once(child, 'exit');
    try {
      await vi.waitFor(() => expect(childrenOf(process.pid)).toEqual([child.pid]));
      expect(childrenOf(child.pid as number)).toEqual([]);
    } finally {
      child.kill('SIGKILL');
      await ended;
    }
    expect(childrenOf(process.pid)).toEqual([]);
  });
});
