import { OK } from './status';
import { offsetOf, pointerAt, strideAt, unitBound, wordAt, wordsOf } from './parameters';

/** Does nothing: opcode 0 of the function table, also the round trip that the benches time. */
export function nop(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  return OK;
}

// Up to this many bytes a loop beats memory.copy, which V8 makes a call.
const LOOP_BYTES: usize = 1024;

/** Copies `bytes` (a multiple of 2) that do not overlap. */
export function copyRun(target: usize, source: usize, bytes: usize): void {
  if (bytes > LOOP_BYTES) {
    memory.copy(target, source, bytes);
    return;
  }
  const vectors = bytes & ~15;
  let at: usize = 0;
  for (; at < vectors; at += 16) v128.store(target + at, v128.load(source + at));
  for (; at + 4 <= bytes; at += 4) store<i32>(target + at, load<i32>(source + at));
  if (at < bytes) store<u16>(target + at, load<u16>(source + at));
}

/** Copies `count` elements that lie `step` bytes apart to consecutive ones. */
export function copyElements(target: usize, source: usize, step: usize, count: i32): void {
  if (step == 4) {
    copyRun(target, source, (<usize>count) << 2);
    return;
  }
  const end = target + ((<usize>count) << 2);
  for (; target < end; target += 4, source += step) store<i32>(target, load<i32>(source));
}

/** Sets `count` consecutive elements to the word `value`. */
export function fillRun(target: usize, value: i32, count: i32): void {
  const bytes = (<usize>count) << 2;
  if (value == 0 && bytes > LOOP_BYTES) {
    memory.fill(target, 0, bytes);
    return;
  }
  const vector = i32x4.splat(value);
  const vectors = bytes & ~15;
  let at: usize = 0;
  for (; at < vectors; at += 16) v128.store(target + at, vector);
  for (; at < bytes; at += 4) store<i32>(target + at, value);
}

/** Four source columns of four consecutive rows each become four rows of four columns. */
// @ts-ignore: decorator
@inline
function transposeBlock(source: usize, column: usize, target: usize, row: usize): void {
  const a = v128.load(source);
  const b = v128.load(source + column);
  const c = v128.load(source + 2 * column);
  const d = v128.load(source + 3 * column);
  const ab0 = v128.shuffle<i32>(a, b, 0, 4, 1, 5);
  const ab1 = v128.shuffle<i32>(a, b, 2, 6, 3, 7);
  const cd0 = v128.shuffle<i32>(c, d, 0, 4, 1, 5);
  const cd1 = v128.shuffle<i32>(c, d, 2, 6, 3, 7);
  v128.store(target, v128.shuffle<i64>(ab0, cd0, 0, 2));
  v128.store(target + row, v128.shuffle<i64>(ab0, cd0, 1, 3));
  v128.store(target + 2 * row, v128.shuffle<i64>(ab1, cd1, 0, 2));
  v128.store(target + 3 * row, v128.shuffle<i64>(ab1, cd1, 1, 3));
}

/**
 * Copies a `rows` x `columns` matrix of any strides to rows of consecutive elements. Strides are in bytes.
 * Rows that are consecutive in the source are copied as runs, columns that are (a transpose) in blocks of
 * 16 x 4, so that each cache line of the source is used whole while it is there.
 */
export function copyMatrix(
  source: usize,
  sourceRow: usize,
  sourceColumn: usize,
  target: usize,
  targetRow: usize,
  rows: i32,
  columns: i32,
): void {
  if (sourceColumn == 4) {
    if (columns == 8) {
      for (let r = 0; r < rows; r++, source += sourceRow, target += targetRow) {
        v128.store(target, v128.load(source));
        v128.store(target, v128.load(source, 16), 16);
      }
      return;
    }
    const bytes = (<usize>columns) << 2;
    if (sourceRow == bytes && targetRow == bytes) {
      copyRun(target, source, bytes * <usize>rows);
      return;
    }
    for (let r = 0; r < rows; r++, source += sourceRow, target += targetRow) copyRun(target, source, bytes);
    return;
  }
  if (sourceColumn == 0) {
    for (let r = 0; r < rows; r++, source += sourceRow, target += targetRow) fillRun(target, load<i32>(source), columns);
    return;
  }
  let r = 0;
  if (sourceRow == 4) {
    const whole = columns & ~3;
    while (r + 4 <= rows) {
      const height = min(16, (rows - r) & ~3);
      for (let c = 0; c < whole; c += 4) {
        let from = source + <usize>c * sourceColumn;
        let to = target + ((<usize>c) << 2);
        for (let h = 0; h < height; h += 4) {
          transposeBlock(from, sourceColumn, to, targetRow);
          from += 16;
          to += 4 * targetRow;
        }
      }
      for (let c = whole; c < columns; c++) {
        const from = source + <usize>c * sourceColumn;
        let to = target + ((<usize>c) << 2);
        for (let h = 0; h < height; h++, to += targetRow) store<i32>(to, load<i32>(from + ((<usize>h) << 2)));
      }
      r += height;
      source += (<usize>height) << 2;
      target += <usize>height * targetRow;
    }
  }
  for (; r < rows; r++, source += sourceRow, target += targetRow) copyElements(target, source, sourceColumn, columns);
}

/**
 * Materialises a strided view. The space is outer dims x rows x columns; the host chooses as rows a
 * dimension in which the source is consecutive if its columns are not.
 * Pointers: source, target. Words: units, rows, columns, row block, column block, source row stride, source
 * column stride, target row stride, outer rank k, dims[k], source strides[k], target strides[k].
 * A unit is one block of one matrix, columns innermost.
 */
export function copy_strided(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const source = pointerAt(params, 0);
  const target = pointerAt(params, 1);
  const words = wordsOf(params);
  const units = wordAt(words, 0);
  const rows = wordAt(words, 1);
  const columns = wordAt(words, 2);
  const rowBlock = wordAt(words, 3);
  const columnBlock = wordAt(words, 4);
  const sourceRow = strideAt(words, 5);
  const sourceColumn = strideAt(words, 6);
  const targetRow = strideAt(words, 7);
  const rank = wordAt(words, 8);
  const dims = words + 36;
  const sourceStrides = dims + ((<usize>rank) << 2);
  const targetStrides = sourceStrides + ((<usize>rank) << 2);
  const last = unitBound(units, tile + 1, tiles);
  let unit = unitBound(units, tile, tiles);
  if (unit >= last) return OK;
  const rowBlocks = (rows + rowBlock - 1) / rowBlock;
  const columnBlocks = (columns + columnBlock - 1) / columnBlock;
  for (; unit < last; unit++) {
    const blockRow = unit / columnBlocks;
    const c = (unit - blockRow * columnBlocks) * columnBlock;
    const outer = blockRow / rowBlocks;
    const r = (blockRow - outer * rowBlocks) * rowBlock;
    copyMatrix(
      source + offsetOf(outer, rank, dims, sourceStrides) + <usize>r * sourceRow + <usize>c * sourceColumn,
      sourceRow,
      sourceColumn,
      target + offsetOf(outer, rank, dims, targetStrides) + <usize>r * targetRow + ((<usize>c) << 2),
      targetRow,
      min(rowBlock, rows - r),
      min(columnBlock, columns - c),
    );
  }
  return OK;
}
