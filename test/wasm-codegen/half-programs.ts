import type { HalfType } from '../../src/ops/dtype.ts';
import type { Program } from '../../src/ops/program.ts';

/** Programs over one row: halves to float32 and back, and float32 to halves, by a store and by a rounding on the way. */
export function halfPrograms(dtype: HalfType): { readonly load: Program; readonly store: Program } {
  return {
    load: {
      inputs: [{ dtype, columnStride: 1 }],
      scalars: 0,
      nodes: [{ kind: 'input', input: 0, dtype: 'float32' }],
      outputs: [
        { node: 0, dtype: 'float32', space: 'full' },
        { node: 0, dtype, space: 'full' },
      ],
      outerRank: 0,
    },
    store: {
      inputs: [{ dtype: 'float32', columnStride: 1 }],
      scalars: 0,
      nodes: [
        { kind: 'input', input: 0, dtype: 'float32' },
        { kind: 'map', op: `round-${dtype}`, args: [0], dtype: 'float32' },
      ],
      outputs: [
        { node: 0, dtype, space: 'full' },
        { node: 1, dtype: 'float32', space: 'full' },
      ],
      outerRank: 0,
    },
  };
}
