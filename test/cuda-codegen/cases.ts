/** The random programs that both devices are tried with, in the sizes that matter to a block of threads. */
import * as generator from '../wasm-codegen/generator.ts';
import type { Case } from '../wasm-codegen/machine.ts';

export { manyUniforms, rowInPlace } from '../wasm-codegen/generator.ts';

/** Rows shared by a warp's lanes and by the whole block, with several values a thread. */
export const randomCase = (seed: number): Case => generator.randomCase(seed, [600, 1029, 4500]);
export const manyOperands = (seed: number): Case => generator.manyOperands(seed, 2, [5, 64, 100, 1000, 2048, 4096]);
