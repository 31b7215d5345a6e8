import { init, type System, type SystemOptions } from '../../src/runtime/system.ts';

/** A device that the suites run on. */
export interface Backend {
  readonly name: string;
  /** Why it cannot run here; the suites report themselves skipped with it. */
  readonly skip?: string;
  open(options?: SystemOptions): System;
}

const CUDA: Backend = { name: 'cuda', open: (options) => init({ memoryMib: 1024, ...options, device: 'cuda' }) };

/**
 * Every device that a tensor can live on and that can be had here. What this list names runs every suite in this folder.
 * A GPU is had by `npm run test:gpu` alone, which runs these suites with CONFORMANCE_DEVICE=cuda.
 */
export const BACKENDS: readonly Backend[] =
  process.env['CONFORMANCE_DEVICE'] === 'cuda'
    ? [CUDA]
    : [
        {
          name: 'wasm',
          open: (options) => init({ device: 'wasm', workers: 1, memoryMib: 256, ...options }),
        },
      ];
