import { init, type System, type SystemOptions } from '../../src/runtime/system.ts';

/** A device that the suites run on. */
export interface Backend {
  readonly name: string;
  /** Why it cannot run here; the suites report themselves skipped with it. */
  readonly skip?: string;
  open(options?: SystemOptions): System;
}

/** Every device that a tensor can live on. What this list names runs every suite in this folder. */
export const BACKENDS: readonly Backend[] = [
  {
    name: 'wasm',
    open: (options) => init({ device: 'wasm', workers: 1, memoryMib: 256, ...options }),
  },
];
