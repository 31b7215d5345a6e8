import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { checkLayers, LAYERS, violation } from '../scripts/layers.mjs';

const anyFile = () => true;

describe('violation', () => {
  it.each([
    ['tensor/graph.ts', '../runtime/system.ts'],
    ['tensor/graph.ts', '../ops/index.ts'],
    ['tensor/graph.ts', './fusion.ts'],
    ['tensor/graph.ts', '../errors.ts'],
    ['flags.ts', './errors.ts'],
    ['flags.ts', './spelling.ts'],
    ['abi/struct.ts', 'node:fs'],
    ['backends/index.ts', './wasm/device.ts'],
    ['backends/wasm/device.ts', '../backend.ts'],
    ['backends/wasm/device/index.ts', './executor'],
    ['cli/index.ts', 'commander'],
    ['index.ts', './tensor/index.ts'],
    ['backends/wasm/device.test.ts', '../reference/index.ts'],
    ['integrations/tfjs/backend.ts', '@tensorflow/tfjs-core'],
    ['tensor/graph.test.ts', '../abi/struct.ts'],
    ['tensor/graph.test.ts', '../../test/random.ts'],
    ['tensor/graph.test.ts', 'fast-check'],
  ])('%s may import %s', (from, specifier) => {
    expect(violation(from, specifier, anyFile)).toBeUndefined();
  });

  it.each([
    ['tensor/graph.ts', '../abi/struct.ts', 'tensor may not import abi'],
    ['abi/struct.ts', '../ops/index.ts', 'abi may not import ops'],
    ['runtime/system.ts', '../tensor/index.ts', 'runtime may not import tensor'],
    ['runtime/system.test.ts', '../tensor/index.ts', 'runtime may not import tensor'],
    ['ops/map.ts', '../cli/index.ts', 'ops may not import cli'],
    ['errors.ts', './flags.ts', 'errors.ts is a leaf'],
    ['errors.ts', './ops/index.ts', 'errors.ts is a leaf'],
    ['index.ts', './cli/index.ts', 'index.ts may not import cli'],
    ['backends/wasm/device.ts', '../cuda/device.ts', 'may not import the device cuda'],
    ['runtime/system.ts', 'commander', 'may not import the package commander'],
    ['runtime/system.ts', '@tensorflow/tfjs-core/dist/engine.js', 'may not import the package @tensorflow/tfjs-core'],
    ['runtime/system.ts', '../../scripts/build.mjs', 'leaves src/'],
    ['runtime/system.test.ts', '../../node_modules/x/index.ts', 'leaves src/'],
    ['runtime/system.ts', './heap', 'has to end in .ts'],
    ['runtime/system.ts', './heap.test.ts', 'is a test'],
    ['stray/file.ts', 'node:fs', 'is in no layer'],
    ['stray.ts', 'node:fs', 'is in no layer'],
  ])('%s may not import %s', (from, specifier, message) => {
    expect(violation(from, specifier, anyFile)).toContain(message);
  });

  it('notices a file that does not exist', () => {
    expect(violation('tensor/graph.ts', './nothing.ts', () => false)).toContain('does not exist');
    expect(violation('backends/wasm/device/index.ts', './nothing', () => false)).toContain('does not exist');
  });
});

describe('the layers', () => {
  it('are ordered: no layer can reach itself', () => {
    const reach = (from: string, seen = new Set<string>()): Set<string> => {
      for (const next of (LAYERS as Record<string, string[]>)[from] ?? []) if (!seen.has(next)) reach(next, seen.add(next));
      return seen;
    };
    for (const layer of Object.keys(LAYERS)) expect(reach(layer).has(layer)).toBe(false);
  });
});

describe('checkLayers', () => {
  let folder: string;
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'gpuos-layers-'));
  });
  afterEach(() => rmSync(folder, { recursive: true }));
  const write = (file: string, text: string) => {
    mkdirSync(dirname(join(folder, file)), { recursive: true });
    writeFileSync(join(folder, file), text);
  };

  it('finds static, type-only, dynamic and re-exporting imports, and names the line', () => {
    write('tensor/index.ts', 'export const x = 1;\n');
    write(
      'abi/struct.ts',
      [
        "import { x } from '../tensor/index.ts';",
        "import type { y } from '../tensor/index.ts';",
        "export * from '../tensor/index.ts';",
        "const z = await import('../tensor/index.ts');",
        "type T = import('../tensor/index.ts').T;",
        "// import '../tensor/index.ts';",
      ].join('\n'),
    );
    expect(checkLayers(folder).map(({ file, line }) => `${file}:${line}`)).toEqual([1, 2, 3, 4, 5].map((line) => `abi/struct.ts:${line}`));
  });

  it('makes the command fail with file and line', () => {
    write('abi/struct.ts', "\nimport '../ops/index.ts';\n");
    write('ops/index.ts', '');
    const script = fileURLToPath(new URL('../scripts/layers.mjs', import.meta.url));
    const result = spawnSync(process.execPath, [script, folder], { encoding: 'utf8' });
    expect(result.status).toBe(1);
    expect(result.stderr).toBe('src/abi/struct.ts:2: abi may not import ops\n');
  });
});
