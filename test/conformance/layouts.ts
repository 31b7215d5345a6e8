import { type HostTensor, hostTensor } from '../../src/ops/host-tensor.ts';
import { elementCount, strides } from '../../src/ops/shape.ts';
import type { Engine } from '../../src/tensor/engine.ts';
import type { Tensor } from '../../src/tensor/tensor.ts';
import type { Random } from './random.ts';

/** What lies between the elements of a view and must not be read. */
const GARBAGE = { float32: Number.NaN, float16: Number.NaN, bfloat16: Number.NaN, int32: 0x7fc00bad, bool: 1 } as const;

/**
 * The tensor on a device: contiguous, or as a view (transposed, sliced, stepped through, reversed) of
 * larger memory; of memory that is there, or of a value that is only recorded yet. Made inside a tidy().
 */
export function placed(engine: Engine, random: Random, host: HostTensor): Tensor {
  const { shape, dtype, data } = host;
  const recorded = random.chance(0.3);
  if (random.chance(0.4)) return later(engine.fromHost(data, shape, dtype), recorded);
  const order = random.chance(0.5) ? random.shuffled(shape.map((_, i) => i)) : shape.map((_, i) => i);
  const sizes = order.map((axis) => shape[axis] as number);
  const steps = sizes.map(() => (random.chance(0.2) ? 2 : 1));
  const before = sizes.map(() => (random.chance(0.3) ? random.between(1, 2) : 0));
  const storage = sizes.map((size, i) => (before[i] as number) + size * (steps[i] as number) + (random.chance(0.3) ? 1 : 0));
  const reversed = sizes.map(() => random.chance(0.2));
  const values = new Array<number>(elementCount(storage)).fill(GARBAGE[dtype]);
  const own = strides(shape);
  const outer = strides(storage);
  for (let flat = 0; flat < data.length; flat++) {
    let at = 0;
    order.forEach((axis, i) => {
      const size = shape[axis] as number;
      const index = Math.floor(flat / (own[axis] as number)) % size;
      at += ((before[i] as number) + (reversed[i] ? size - 1 - index : index) * (steps[i] as number)) * (outer[i] as number);
    });
    values[at] = data[flat] as number;
  }
  let tensor = later(engine.fromHost(hostTensor(storage, values, dtype).data, storage, dtype), recorded);
  const end = sizes.map((size, i) => (before[i] as number) + size * (steps[i] as number));
  tensor = tensor.apply('strided-slice', [], { begin: before, end, strides: steps });
  const axes = reversed.flatMap((is, i) => (is ? [i] : []));
  if (axes.length > 0) tensor = tensor.apply('reverse', [], { axes });
  return tensor.transpose(shape.map((_, axis) => order.indexOf(axis)));
}

/** The same values, as the result of an operation that has not run. */
function later(tensor: Tensor, recorded: boolean): Tensor {
  if (!recorded) return tensor;
  const flip = tensor.dtype === 'bool' ? 'logical-not' : 'neg';
  return tensor.apply(flip).apply(flip);
}
