/**
 * Which fixed operators have kernels for float16 and bfloat16, and how those are named. They have the parameter blocks of the
 * kernels for float32. What only moves elements has one for both; what computes with them, one for each.
 */
import type { HalfType } from '../../ops/dtype.ts';

/** Kernels that compute. */
const COMPUTING: ReadonlySet<string> = new Set(['matmul', 'attention', 'rotary', 'cache_compress', 'range', 'top_k', 'cumsum']);

/** Kernels that only a GPU has, for halves: the order of the function table, behind KERNELS. */
export const GPU_KERNELS = [
  'matmul_float16',
  'matmul_bfloat16',
  'attention_float16',
  'attention_bfloat16',
  'rotary_float16',
  'rotary_bfloat16',
  'cache_update_halves',
  'cache_evict_halves',
  'cache_compress_float16',
  'cache_compress_bfloat16',
  'gather_nd_halves',
  'tensor_scatter_update_halves',
  'sparse_to_dense_halves',
  'concat_4_halves',
  'concat_16_halves',
  'concat_256_halves',
  'concat_4096_halves',
  'pad_halves',
  'one_hot_halves',
  'fill_halves',
  'range_float16',
  'range_bfloat16',
  'top_k_float16',
  'top_k_bfloat16',
  'cumsum_float16',
  'cumsum_bfloat16',
] as const;

const EVERYWHERE: ReadonlySet<string> = new Set(['gather', 'cache-append', 'tile']);
const ON_GPU: ReadonlySet<string> = new Set([
  ...EVERYWHERE,
  ...['matmul', 'attention', 'rotary', 'cache-update', 'cache-evict', 'cache-compress', 'gather-nd', 'tensor-scatter-update'],
  ...['sparse-to-dense', 'concat', 'pad', 'one-hot', 'fill', 'range', 'top-k', 'cumsum'],
]);

/** Whether the operator has a kernel for float16 and bfloat16 on every device; others run in float32, between casts. */
export const acceptsHalves = (operator: string): boolean => EVERYWHERE.has(operator);

/** The same of a GPU. */
export const acceptsHalvesOnGpu = (operator: string): boolean => ON_GPU.has(operator);

/** The kernel for halves that goes with one for float32; that of copies is chosen where they are lowered. */
export function halfKernel(kernel: string, dtype: HalfType): string {
  if (kernel === 'copy_halves') return kernel;
  return COMPUTING.has(kernel) ? `${kernel}_${dtype}` : `${kernel}_halves`;
}
