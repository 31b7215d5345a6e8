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

/** (address, n) -> the first n (1 to 3) elements of 2 bytes, one a lane of 32 bits, then zeros. */
export const LOAD_HALF_PART: FunctionDefinition = {
  params: [I32, I32],
  results: [V128],
  emit(f) {
    f.get(0).i32(2).get(1).call(LOAD_STRIDED_HALF_PART);
  },
};

/** (address, value, n): stores the first n (1 to 3) lanes' lower 2 bytes. */
export const STORE_HALF_PART: FunctionDefinition = {
  params: [I32, V128, I32],
  results: [],
  emit(f) {
    f.get(0).get(1).laneMemory(SIMD.store16Lane, 0, 0, 1);
    for (let lane = 1; lane < 3; lane++) {
      f.get(2).i32(lane).op(OP.i32GtS).if();
      f.get(0)
        .get(1)
        .laneMemory(SIMD.store16Lane, 2 * lane, 2 * lane, 1)
        .op(OP.end);
    }
  },
};

/** (address, stride in bytes, n) -> n (1 to 4, or more, taken as 4) elements of 2 bytes that lie `stride` apart, one a lane of 32 bits. */
export const LOAD_STRIDED_HALF_PART: FunctionDefinition = {
  params: [I32, I32, I32],
  results: [V128],
  emit(f) {
    const value = f.vector();
    f.get(0).splatBits(0).laneMemory(SIMD.load16Lane, 0, 0, 1).set(value);
    for (let lane = 1; lane < 4; lane++) {
      f.get(2).i32(lane).op(OP.i32GtS).if();
      f.get(0)
        .get(1)
        .op(OP.i32Add)
        .tee(0)
        .get(value)
        .laneMemory(SIMD.load16Lane, 0, 2 * lane, 1)
        .set(value)
        .op(OP.end);
    }
    f.get(value);
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
