/** The process of a baseline, as `--compare` uses it. From `dist/`: a forked process cannot load TypeScript. */
import { afterEach, describe, expect, it } from 'vitest';
import type { Baseline as BaselineType, BaselineName } from '../src/cli/demo/baseline.ts';

const { Baseline } = (await import(new URL('../dist/cli/demo/baseline.js', import.meta.url).href)) as { Baseline: typeof BaselineType };

describe('Baseline', () => {
  afterEach(() => {
    delete process.env['NODE_OPTIONS'];
  });

  it('embeds on stock tfjs, and answers with an error once it has been stopped', async () => {
    const baseline = await Baseline.start('tfjs-wasm');
    try {
      expect(baseline.version).toBe('4.22.0');
      const { ms, vector } = await baseline.embed('Call me Ishmael.');
      expect(ms).toBeGreaterThan(0);
      expect(vector).toHaveLength(512);
      expect(Math.hypot(...vector)).toBeCloseTo(1, 4);
      const pending = baseline.embed('Some years ago.');
      baseline.stop();
      await expect(pending).rejects.toMatchObject({ code: 'GPUOS_BASELINE_UNAVAILABLE', message: expect.stringContaining('SIGKILL') });
      await expect(baseline.embed('Never mind how long.')).rejects.toMatchObject({ code: 'GPUOS_BASELINE_UNAVAILABLE' });
    } finally {
      baseline.stop();
    }
  });

  it('is refused when its active backend is not the one that it is named after', async () => {
    // Without a compiler there is no WebAssembly, and tfjs goes on without its backend.
    process.env['NODE_OPTIONS'] = '--jitless';
    await expect(Baseline.start('tfjs-wasm')).rejects.toMatchObject({ code: 'GPUOS_BASELINE_UNAVAILABLE' });
  });

  it('is refused when there is no such backend', async () => {
    await expect(Baseline.start('tfjs-nothing' as BaselineName)).rejects.toMatchObject({ code: 'GPUOS_BASELINE_UNAVAILABLE' });
  });
});
