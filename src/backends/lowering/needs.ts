/**
 * What the parameter block of each built-in kernel holds at least: for tasks that a caller writes by hand. A pointer that is
 * not there would be read all the same, and on a GPU that is the end of the device.
 */
import { INLINE_POINTERS, INLINE_WORDS } from '../../abi/descriptor.ts';

export interface BlockNeeds {
  readonly pointers: number;
  readonly words: number;
}

const block = (pointers: number, words: number): BlockNeeds => ({ pointers, words });

/** By kernel, those of 2-byte elements under the name of the others. Words that follow from the ranks of views are not counted. */
const NEEDS: Readonly<Record<string, BlockNeeds>> = {
  nop: block(0, 0),
  copy: block(2, 9), // copy_halves
  copy_strided: block(2, 9),
  matmul: block(3, 12),
  pack_panels: block(2, 6),
  attention: block(5, 18),
  rotary: block(4, 10),
  cache_append: block(4, 6),
  cache_update: block(4, 6),
  prefix_match: block(3, 3),
  cache_compress: block(3, 4),
  cache_decompress: block(3, 2),
  cache_evict: block(2, 5),
  gather: block(3, 5),
  gather_nd: block(3, 3),
  scatter_nd: block(3, 6),
  tensor_scatter_update: block(4, 5),
  sparse_to_dense: block(4, 5),
  concat_4: block(4, 4),
  concat_16: block(16, 4),
  concat_256: block(256, 4),
  concat_4096: block(4096, 4),
  pad: block(2, 7),
  one_hot: block(2, 4),
  top_k: block(3, 4),
  cumsum: block(2, 6),
  fill: block(1, 3),
  range: block(1, 7),
};

/** Undefined: it is the executor's own, which nobody else may call. */
export function blockNeeds(kernel: string): BlockNeeds | undefined {
  const name = kernel.replace(/_(halves|float16|bfloat16)$/, '');
  return Object.hasOwn(NEEDS, name) ? NEEDS[name] : undefined;
}

/** Whether such a block can stand in a descriptor. */
export const fitsDescriptor = ({ pointers, words }: BlockNeeds): boolean => pointers <= INLINE_POINTERS && words <= INLINE_WORDS;
