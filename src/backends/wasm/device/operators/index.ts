// The fixed operators of the wasm device, one file a family. Every kernel is
// (params, tile, tiles, scratch) -> status; its parameter block is told where it is defined.
export { nop, copy_strided } from './copy';
export { matmul, pack_panels } from './matmul';
