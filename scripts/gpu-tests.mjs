/**
 * Runs the tests that need a GPU: those of `test/gpu/`, and the conformance suites of `test/conformance/` on the cuda
 * device. The suites are bundled into plain modules beside the built package first, so that a machine which only has
 * `dist/`, `.gpuos/gpu/` and the package's dependencies can run them too.
 *
 * usage: node scripts/gpu-tests.mjs [--bundle-only]
 */
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = resolve(dirname(fileURLToPath(import.meta.url)), '..');
const suites = join(root, 'test/conformance');
const target = join(root, '.gpuos/gpu');
/** Long enough for a suite on a device where nothing has been compiled before. */
const LIMIT_MS = 600_000;

async function bundle() {
  const { build } = await import('esbuild');
  mkdirSync(target, { recursive: true });
  // The package under test is the built one, not a copy of its sources: files beside its modules are looked up there.
  const built = {
    name: 'built',
    setup: ({ onResolve }) => {
      onResolve({ filter: /\/src\/.*\.ts$/ }, ({ path, resolveDir }) => {
        const module = relative(join(root, 'src'), resolve(resolveDir, path)).replace(/\.ts$/, '.js');
        return { path: `../../dist/${module}`, external: true };
      });
      onResolve({ filter: /^vitest$/ }, () => ({ path: join(root, 'test/gpu/vitest-shim.mjs') }));
    },
  };
  await build({
    entryPoints: readdirSync(suites)
      .filter((name) => name.endsWith('.test.ts'))
      .map((name) => join(suites, name)),
    outdir: target,
    outExtension: { '.js': '.mjs' },
    bundle: true,
    platform: 'node',
    format: 'esm',
    target: 'node20',
    banner: { js: "process.env.CONFORMANCE_DEVICE = 'cuda';" },
    plugins: [built],
    logLevel: 'warning',
  });
}

const bundleOnly = process.argv.includes('--bundle-only');
await bundle();
if (!bundleOnly) {
  const files = [
    ...readdirSync(join(root, 'test/gpu'))
      .filter((name) => name.endsWith('.test.mjs'))
      .map((name) => `test/gpu/${name}`),
    ...readdirSync(target)
      .filter((name) => name.endsWith('.test.mjs'))
      .map((name) => `.gpuos/gpu/${name}`),
  ];
  const { status } = spawnSync(process.execPath, ['--test', '--test-concurrency=1', `--test-timeout=${LIMIT_MS}`, ...files], {
    cwd: root,
    stdio: 'inherit',
  });
  process.exitCode = status ?? 1;
}
