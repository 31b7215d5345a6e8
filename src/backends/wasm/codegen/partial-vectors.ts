import type { FunctionDefinition } from '../encoder/module-builder.ts';
import { I32, OP, SIMD, V128 } from '../encoder/opcodes.ts';

/** Vectors at the end of a row that have fewer than four elements; memory behind the row is neither read nor written. */

/** (address, n) -> the first n (1 to 3) elements, then zeros. */
export const LOAD_PART: FunctionDefinition = {
  params: [I32, I32],
  results: [V128],
  emit(f) {
    const value = f.vector();
    f.get(0).simdMemory(SIMD.load32Zero, 0).set(value);
    for (let lane = 1; lane < 3; lane++) {
      f.get(1).i32(lane).op(OP.i32GtS).if();
      f.get(0)
        .get(value)
        .laneMemory(SIMD.load32Lane, 4 * lane, lane)
        .set(value)
        .op(OP.end);
    }
    f.get(value);
  },
};

/** (address, value, n): stores the first n (1 to 3) elements. */
export const STORE_PART: FunctionDefinition = {
  params: [I32, V128, I32],
  results: [],
  emit(f) {
    f.get(0).get(1).laneMemory(SIMD.store32Lane, 0, 0);
    for (let lane = 1; lane < 3; lane++) {
      f.get(2).i32(lane).op(OP.i32GtS).if();
      f.get(0)
        .get(1)
        .laneMemory(SIMD.store32Lane, 4 * lane, lane)
        .op(OP.end);
    }
  },
};

/** (address, stride in bytes, n) -> n (1 to 4, or more, taken as 4) elements that lie `stride` apart, then zeros. */
export const LOAD_STRIDED_PART: FunctionDefinition = {
  params: [I32, I32, I32],
  results: [V128],
  emit(f) {
    const value = f.vector();
    f.get(0).simdMemory(SIMD.load32Zero, 0).set(value);
    for (let lane = 1; lane < 4; lane++) {
      f.get(2).i32(lane).op(OP.i32GtS).if();
      f.get(0).get(1).op(OP.i32Add).tee(0).get(value).laneMemory(SIMD.load32Lane, 0, lane).set(value).op(OP.end);
    }
    f.get(value);
  },
};
