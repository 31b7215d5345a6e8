/**
 * Lowering: how each fixed operator becomes a call of a kernel of the device module, with the words of its parameter
 * block. The blocks are told in `device/operators/`, each where its kernel is. Offsets are not in them: the caller adds
 * a view's offset to its pointer.
 */
import { GpuosError } from '../../errors.ts';
import type { Attributes } from '../../ops/define.ts';
import { type HalfType, isFloat, isHalf } from '../../ops/dtype.ts';
import type { KernelCall, OperandView } from '../backend.ts';
import { lowerAttention, lowerRotary } from './attention.ts';
import { lowerCacheWrite, lowerCompress, lowerDecompress, lowerEvict, lowerPrefixMatch } from './cache.ts';
import { lowerTile } from './copy.ts';
import { acceptsHalvesOnGpu, halfKernel } from './halves.ts';
import {
  lowerConcat,
  lowerCumsum,
  lowerGather,
  lowerGatherNd,
  lowerOneHot,
  lowerPad,
  lowerScatterNd,
  lowerScatterUpdate,
  lowerSparseToDense,
  lowerTopK,
} from './indexing.ts';
import { lowerMatmul, type MatmulOptions } from './matmul.ts';
import { call, doubleBits, elementBits, product } from './words.ts';

export { lowerCopy } from './copy.ts';
export { acceptsHalves, acceptsHalvesOnGpu, GPU_KERNELS } from './halves.ts';
export { lowerPack, type MatmulOptions, packedSize } from './matmul.ts';

/** The kernels of every device module, by their exported names: the order of the function table. */
export const KERNELS = [
  'nop',
  'copy_strided',
  'matmul',
  'pack_panels',
  'attention',
  'rotary',
  'cache_append',
  'cache_update',
  'prefix_match',
  'cache_compress',
  'cache_decompress',
  'cache_evict',
  'gather',
  'gather_nd',
  'scatter_nd',
  'tensor_scatter_update',
  'sparse_to_dense',
  'concat_4',
  'concat_16',
  'concat_256',
  'concat_4096',
  'pad',
  'one_hot',
  'top_k',
  'cumsum',
  'fill',
  'range',
  'copy_halves',
  'gather_halves',
  'cache_append_halves',
] as const;

/** Elements of a unit of fill and range, as their kernels have it. */
const FILL_BLOCK = 1024;

type Lowering = (
  inputs: readonly OperandView[],
  outputs: readonly OperandView[],
  attributes: Attributes,
  options: MatmulOptions,
) => KernelCall;

const LOWERINGS: ReadonlyMap<string, Lowering> = new Map<string, Lowering>([
  ['nop', () => call('nop', [], [], [1], 0)],
  ['matmul', (inputs, outputs, attributes, options) => lowerMatmul(inputs, outputs[0] as OperandView, attributes, options)],
  ['attention', (inputs, outputs, attributes) => lowerAttention(inputs, outputs[0] as OperandView, attributes)],
  ['rotary', lowerRotary],
  ['cache-append', (inputs, outputs) => lowerCacheWrite('cache_append', inputs, outputs)],
  ['cache-update', (inputs, outputs) => lowerCacheWrite('cache_update', inputs, outputs)],
  ['prefix-match', lowerPrefixMatch],
  ['cache-compress', lowerCompress],
  ['cache-decompress', lowerDecompress],
  ['cache-evict', lowerEvict],
  ['gather', lowerGather],
  ['gather-nd', lowerGatherNd],
  ['scatter-nd', lowerScatterNd],
  ['tensor-scatter-update', lowerScatterUpdate],
  ['sparse-to-dense', lowerSparseToDense],
  ['concat', lowerConcat],
  ['pad', lowerPad],
  ['one-hot', lowerOneHot],
  ['top-k', lowerTopK],
  ['cumsum', lowerCumsum],
  [
    'tile',
    (inputs, outputs, attributes) =>
      lowerTile(inputs[0] as OperandView, outputs[0] as OperandView, attributes['reps'] as readonly number[]),
  ],
  [
    'fill',
    (_, outputs, attributes) => {
      const { shape, dtype } = outputs[0] as OperandView;
      const count = product(shape);
      const words = [Math.ceil(count / FILL_BLOCK), count, elementBits(attributes['value'] as number, dtype)];
      return call('fill', [], outputs, words, count * 0.1);
    },
  ],
  [
    'range',
    (_, outputs, attributes) => {
      const { shape, dtype } = outputs[0] as OperandView;
      const count = product(shape);
      const [start, step] = [attributes['start'] as number, attributes['step'] as number];
      const words = [Math.ceil(count / FILL_BLOCK), count, Number(!isFloat(dtype)), ...doubleBits(start), ...doubleBits(step)];
      return call('range', [], outputs, words, count);
    },
  ],
]);

/** Inputs whose strides may be anything, by operator; all others must be contiguous. */
const STRIDED: Readonly<Record<string, readonly number[]>> = {
  matmul: [0, 1],
  attention: [0, 1, 2, 3],
  rotary: [0, 1, 2],
  'cache-append': [1],
  'cache-update': [1],
  'cache-compress': [0],
  pad: [0],
  tile: [0],
};

/** Whether the kernel reads this input by its strides; where not, the planner materialises a contiguous copy first. */
export function acceptsStrides(name: string, input: number): boolean {
  return STRIDED[name]?.includes(input) ?? false;
}

/**
 * The kernel call of a fixed operator. `attributes` have passed the operator's checks (defaults filled in), and shapes
 * its `infer`; outputs are contiguous. Of matmul only a and b are read: bias and activation are a stage after it.
 * Throws GPUOS_UNKNOWN_OPERATOR for an operator that is not fixed, and GPUOS_DTYPE_MISMATCH for float16 and bfloat16
 * where it does not accept them: who records it casts before and after it.
 */
export function lower(
  name: string,
  inputs: readonly OperandView[],
  outputs: readonly OperandView[],
  attributes: Attributes,
  options: MatmulOptions = {},
): KernelCall {
  const lowering = LOWERINGS.get(name);
  if (!lowering) throw new GpuosError('GPUOS_UNKNOWN_OPERATOR', `${name} has no kernel: it is not a fixed operator.`);
  const half = [...inputs, ...outputs].find(({ dtype }) => isHalf(dtype))?.dtype as HalfType | undefined;
  if (half === undefined) return lowering(inputs, outputs, attributes, options);
  if (!acceptsHalvesOnGpu(name)) throw new GpuosError('GPUOS_DTYPE_MISMATCH', `${name} has no kernel for ${half}: cast to float32 first.`);
  const call = lowering(inputs, outputs, attributes, options);
  return { ...call, kernel: halfKernel(call.kernel, half) };
}
