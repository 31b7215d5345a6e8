/** Stand-ins for the CUDA libraries, compiled from C: what koffi calls in the tests is a library, not a mock. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type * as Koffi from 'koffi';
import type { SearchResult } from '../../src/backends/cuda/discovery.ts';

export type FakeName = 'driver' | 'nvrtc' | 'nvml' | 'cublas';

const FILES: Readonly<Record<FakeName, string>> = {
  driver: 'libcuda.so.1',
  nvrtc: 'libnvrtc.so.13',
  nvml: 'libnvidia-ml.so.1',
  cublas: 'libcublasLt.so.13',
};

/** The C compiler of this machine. */
export const COMPILER = ['cc', 'gcc', 'clang'].find((name) => spawnSync(name, ['--version']).status === 0);
/** For `describe.skipIf`: the reason stands in the test's name. */
export const NO_COMPILER = COMPILER === undefined;
export const reason = (name: string): string => (NO_COMPILER ? `${name} (skipped: no C compiler for the stand-in)` : name);

const sourceOf = (name: FakeName) => fileURLToPath(new URL(`fake-${name}.c`, import.meta.url));

/** A folder with the stand-ins in it, under the names of the real libraries. */
export function compileFakes(names: readonly FakeName[], defines: readonly string[] = []): { folder: string; remove(): void } {
  const folder = mkdtempSync(join(tmpdir(), 'gpuos-fakes-'));
  for (const name of names) {
    const { status, stderr } = spawnSync(
      COMPILER!,
      ['-shared', '-fPIC', '-O1', '-Wall', '-Wextra', '-Werror', ...defines, '-o', join(folder, FILES[name]), sourceOf(name)],
      { encoding: 'utf8' },
    );
    if (status !== 0) throw new Error(stderr);
  }
  return { folder, remove: () => rmSync(folder, { recursive: true, force: true }) };
}

/** What the compiler says of a stand-in when the prototypes are those of NVIDIA's headers in `include`. */
export function checkAgainstHeader(name: 'driver' | 'nvrtc', include: string): string {
  const define = name === 'driver' ? '-DWITH_CUDA_H' : '-DWITH_NVRTC_H';
  const { stderr } = spawnSync(COMPILER!, ['-fsyntax-only', '-Wall', '-Wextra', '-Werror', define, '-isystem', include, sourceOf(name)], {
    encoding: 'utf8',
  });
  return stderr;
}

/** A folder that has `cuda.h`, if this machine has one. */
export function cudaHeaders(): string | undefined {
  return [process.env['CUDA_HOME'], process.env['CUDA_PATH'], '/usr/local/cuda', '/opt/cuda']
    .filter((root) => root !== undefined)
    .map((root) => join(root, 'include'))
    .find((folder) => existsSync(join(folder, 'cuda.h')));
}

/** The folder that has `nvrtc.h`, beside that of the library. */
export function nvrtcHeaders(library: string): string | undefined {
  return [join(library, '../../include'), join(library, '../../../../include')].find((folder) => existsSync(join(folder, 'nvrtc.h')));
}

export interface Fake {
  readonly search: SearchResult;
  /** The calls since the last time, as the library saw them. */
  calls(): string[];
  /** What a call answers from here on; 0 is success. */
  result(call: string, result: number): void;
  /** What a quantity is from here on. */
  value(name: string, value: number): void;
}

export function fake(folder: string, name: FakeName): Fake {
  const path = join(folder, FILES[name]);
  const library = (createRequire(import.meta.url)('koffi') as typeof Koffi).load(path);
  const calls = library.func('fake_calls', 'str', []);
  return {
    search: { candidates: [{ path, from: 'test', version: '1' }], unsupported: [], tried: [folder] },
    calls: () => (calls() as string).split('\n').slice(0, -1),
    result: library.func('fake_result', 'void', ['str', 'int']),
    value: library.func('fake_value', 'void', ['str', 'int64_t']),
  };
}
