/** That memory which was freed stays with the process: counted in page faults, by processes of their own. */
import { spawnSync } from 'node:child_process';
import { expect, it } from 'vitest';

const LIBC = new URL('../../dist/backends/cuda/process/libc.js', import.meta.url).href;
const glibc = (process.report?.getReport() as { header?: { glibcVersionRuntime?: string } } | undefined)?.header?.glibcVersionRuntime;

/** Page faults of 900 values of 256 KiB, each written and let go of, after 300 that came before. */
function faults(environment: Record<string, string>, keep: boolean): number {
  const script = `
    import { keepFreedMemory } from ${JSON.stringify(LIBC)};
    if (${keep}) keepFreedMemory();
    const round = async () => {
      const before = process.resourceUsage().minorPageFault;
      for (let i = 0; i < 300; i++) new Float32Array(Buffer.allocUnsafeSlow(1 << 18).buffer).fill(1);
      const faults = process.resourceUsage().minorPageFault - before;
      gc();
      await new Promise((resolve) => setTimeout(resolve, 50));
      return faults;
    };
    await round();
    let sum = 0;
    for (let i = 0; i < 3; i++) sum += await round();
    console.log(sum);`;
  const { stdout, stderr } = spawnSync(process.execPath, ['--expose-gc', '--input-type=module', '-e', script], {
    encoding: 'utf8',
    env: { ...process.env, ...environment },
  });
  expect(stderr).toBe('');
  return Number(stdout);
}

it.skipIf(glibc === undefined)('values that are read again and again are no new pages of the system each time', () => {
  const [kept, left] = [faults({}, true), faults({}, false)];
  // 64 pages each: 57,600 in all.
  expect(left).toBeGreaterThan(5000);
  expect(kept).toBeLessThan(left / 4);
});

it.skipIf(glibc === undefined)('leaves the allocator as the user has set it up', () => {
  expect(faults({ MALLOC_MMAP_THRESHOLD_: '131072' }, true)).toBeGreaterThan(5000);
});
