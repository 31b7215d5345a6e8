/** The sentence encoder on the wasm device, to stand beside the GPU's figure of the same run. */
import { bookSource } from '../demo/input.ts';
import { measureEncoder } from './cuda-model.ts';
import type { BenchRow } from './suite.ts';

export const about = 'the sentence encoder on the wasm device of the same machine';

export async function run(emit: (row: BenchRow) => void): Promise<void> {
  await measureEncoder('wasm', bookSource().passages, emit);
}
