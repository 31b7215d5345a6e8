import { OK } from './status';
import { offsetOf, pointerAt, strideAt, unitBound, wordAt, wordsOf } from './parameters';

/** Copies `count` halves that lie `step` bytes apart to consecutive ones. */
export function copyElements(target: usize, source: usize, step: usize, count: i32): void {
  if (step == 2) {
    memory.copy(target, source, (<usize>count) << 1);
    return;
  }
  const end = target + ((<usize>count) << 1);
  for (; target < end; target += 2, source += step) store<u16>(target, load<u16>(source));
}

/** copy_strided for elements of 2 bytes: the same parameter block, strides in elements. */
export function copy_halves(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const source = pointerAt(params, 0);
  const target = pointerAt(params, 1);
  const words = wordsOf(params);
  const units = wordAt(words, 0);
  const rows = wordAt(words, 1);
  const columns = wordAt(words, 2);
  const rowBlock = wordAt(words, 3);
  const columnBlock = wordAt(words, 4);
  // Those of the block are in bytes of words; a half has half of them.
  const sourceRow = <usize>((<i32>strideAt(words, 5)) >> 1);
  const sourceColumn = <usize>((<i32>strideAt(words, 6)) >> 1);
  const targetRow = <usize>((<i32>strideAt(words, 7)) >> 1);
  const rank = wordAt(words, 8);
  const dims = words + 36;
  const sourceStrides = dims + ((<usize>rank) << 2);
  const targetStrides = sourceStrides + ((<usize>rank) << 2);
  const rowBlocks = (rows + rowBlock - 1) / rowBlock;
  const columnBlocks = (columns + columnBlock - 1) / columnBlock;
  const last = unitBound(units, tile + 1, tiles);
  for (let unit = unitBound(units, tile, tiles); unit < last; unit++) {
    const blockRow = unit / columnBlocks;
    const c = (unit - blockRow * columnBlocks) * columnBlock;
    const outer = blockRow / rowBlocks;
    const r = (blockRow - outer * rowBlocks) * rowBlock;
    const width = min(columnBlock, columns - c);
    const end = r + min(rowBlock, rows - r);
    let from = source + <usize>((<i32>offsetOf(outer, rank, dims, sourceStrides)) >> 1);
    let to = target + <usize>((<i32>offsetOf(outer, rank, dims, targetStrides)) >> 1);
    from += <usize>r * sourceRow + <usize>c * sourceColumn;
    to += <usize>r * targetRow + ((<usize>c) << 1);
    for (let row = r; row < end; row++, from += sourceRow, to += targetRow) copyElements(to, from, sourceColumn, width);
  }
  return OK;
}
