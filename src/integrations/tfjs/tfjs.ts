/**
 * TensorFlow.js itself, loaded from the program that imports us.
 *
 * It is a peer dependency, so that program and backend use one copy; `require` instead of `import`, so that its absence
 * becomes an error of ours with a remedy, and so that the CPU kernels can be loaded synchronously when they are first
 * needed.
 */
import { createRequire } from 'node:module';
import { GpuosError } from '../../errors.ts';

export type Tfjs = typeof import('@tensorflow/tfjs-core');
export type { BackendValues, DataType, KernelConfig, TensorInfo } from '@tensorflow/tfjs-core';

import type { TensorInfo } from '@tensorflow/tfjs-core';

/** A kernel as tfjs calls it. */
export type KernelFunction = (call: {
  readonly inputs: Record<string, TensorInfo>;
  readonly attrs: unknown;
  readonly backend: unknown;
}) => TensorInfo | TensorInfo[];

const require = createRequire(import.meta.url);

/** A package of the program's. Throws GPUOS_PACKAGE_MISSING when it is not installed. */
export function requirePackage(name: string, purpose: string): unknown {
  try {
    return require(name);
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    // A package that is there but lacks one of its own is another matter.
    if (code !== 'MODULE_NOT_FOUND' || !message.includes(`'${name}'`)) throw error;
    throw new GpuosError('GPUOS_PACKAGE_MISSING', `The package ${name} is not installed; ${purpose}.`, { cause: error });
  }
}

export const tf = requirePackage('@tensorflow/tfjs-core', 'gpuos/tfjs is a backend for it') as Tfjs;

/** The name of our backend in TensorFlow.js. */
export const BACKEND = 'gpuos';

/** Where a tensor of tfjs lives; its engine has this in a private field. */
export interface TensorPlace {
  backend: unknown;
}

/** What we use of the engine of tfjs beyond its declared interface; the same in 4.5 and 4.22. */
export interface EngineInternals {
  backendName: string | null;
  backendInstance: unknown;
  pendingBackendInit: Promise<boolean> | null;
  pendingBackendInitId: number;
  registryFactory: Record<string, { factory: () => unknown; priority: number }>;
  setBackend(name: string): Promise<boolean>;
  removeBackend(name: string): void;
  /** By priority: what the engine asks for when it has to choose a backend itself. */
  getSortedBackends(): string[];
  moveData(backend: unknown, dataId: object): void;
  runKernel(name: string, inputs: Record<string, TensorInfo>, attrs?: unknown): unknown;
  makeTensorFromTensorInfo(info: TensorInfo): TensorInfo;
  ENV: { flags: Record<string, unknown> };
  state: {
    tensorInfo: { has(dataId: object): boolean; get(dataId: object): TensorPlace | undefined };
    gradientDepth: number;
    kernelDepth: number;
    profiling: boolean;
  };
}

/** The engine: one global object that every copy of tfjs in the process shares. */
export function tfjsEngine(): EngineInternals {
  return tf.engine() as unknown as EngineInternals;
}
