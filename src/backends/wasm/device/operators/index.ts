// The fixed operators of the wasm device, one file a family. Every kernel is
// (params, tile, tiles, scratch) -> status; its parameter block is told where it is defined.
export { nop, copy_strided } from './copy';
export { matmul, pack_panels } from './matmul';
export { attention } from './attention';
export { rotary } from './rotary';
export { cache_append, cache_append_halves, cache_update, prefix_match, cache_compress, cache_decompress, cache_evict } from './cache';
export { gather, gather_halves, gather_nd, scatter_nd, tensor_scatter_update, sparse_to_dense } from './indexing';
export { concat_4, concat_16, concat_256, concat_4096, pad, one_hot } from './joining';
export { top_k, cumsum } from './ordering';
export { fill, range } from './fill';
export { copy_halves } from './halves';
