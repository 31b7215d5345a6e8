import { OK } from './status';
import { pointerAt, strideAt, unitBound, wordAt, wordsAfter, wordsOf } from './parameters';
import { copyElements, copyRun, fillRun } from './copy';

/**
 * Inputs one after the other. Where the words of a block start depends on its number of pointers, which a kernel
 * cannot read; so there is one kernel for each of four sizes of block.
 * Pointers: the n inputs, unused ones up to `pointers` - 2, then the output; all contiguous. Words: units (outer * n), n,
 * elements of an output row, then the elements that each input gives to a row [n]. A unit is one input's part of a row.
 */
// @ts-ignore: decorator
@inline
function join(pointers: i32, params: usize, tile: i32, tiles: i32): i32 {
  const words = wordsAfter(params, pointers);
  const out = pointerAt(params, pointers - 1);
  const n = wordAt(words, 1);
  const width = strideAt(words, 2);
  const last = unitBound(wordAt(words, 0), tile + 1, tiles);
  let unit = unitBound(wordAt(words, 0), tile, tiles);
  if (unit >= last) return OK;
  let outer = unit / n;
  let input = unit - outer * n;
  let before: usize = 0;
  for (let i = 0; i < input; i++) before += strideAt(words, 3 + i);
  for (; unit < last; unit++) {
    const bytes = strideAt(words, 3 + input);
    copyRun(out + <usize>outer * width + before, pointerAt(params, input) + <usize>outer * bytes, bytes);
    before += bytes;
    if (++input == n) {
      input = 0;
      outer++;
      before = 0;
    }
  }
  return OK;
}

/** Up to 3 inputs. */
export function concat_4(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  return join(4, params, tile, tiles);
}

/** Up to 15 inputs. */
export function concat_16(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  return join(16, params, tile, tiles);
}

/** Up to 255 inputs. */
export function concat_256(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  return join(256, params, tile, tiles);
}

/** Up to 4095 inputs. */
export function concat_4096(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  return join(4096, params, tile, tiles);
}

/**
 * x with a constant around it. Pointers: x, output. Words: units (rows of the output), value, then of the last axis:
 * before, size, after, stride of x; then rank r of the other axes, their padded sizes[r], before[r], sizes[r], strides
 * of x[r].
 */
export function pad(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const value = wordAt(words, 1);
  const before = wordAt(words, 2);
  const size = wordAt(words, 3);
  const after = wordAt(words, 4);
  const column = strideAt(words, 5);
  const rank = wordAt(words, 6);
  const padded = words + 28;
  const starts = padded + ((<usize>rank) << 2);
  const sizes = starts + ((<usize>rank) << 2);
  const strides = sizes + ((<usize>rank) << 2);
  const width = before + size + after;
  const last = unitBound(wordAt(words, 0), tile + 1, tiles);
  for (let unit = unitBound(wordAt(words, 0), tile, tiles); unit < last; unit++) {
    const out = pointerAt(params, 1) + ((<usize>unit * <usize>width) << 2);
    let offset: usize = 0;
    let rest = unit;
    let inside = true;
    for (let d = rank - 1; d >= 0; d--) {
      const extent = wordAt(padded, d);
      const place = (rest % extent) - wordAt(starts, d);
      rest /= extent;
      if (<u32>place >= <u32>wordAt(sizes, d)) {
        inside = false;
        break;
      }
      offset += <usize>place * strideAt(strides, d);
    }
    if (!inside) {
      fillRun(out, value, width);
      continue;
    }
    fillRun(out, value, before);
    copyElements(out + ((<usize>before) << 2), pointerAt(params, 0) + offset, column, size);
    fillRun(out + ((<usize>(before + size)) << 2), value, after);
  }
  return OK;
}

/**
 * `on` at the index and `off` elsewhere; an index out of range gives `off` only. Pointers: indices, output. Words: units
 * (indices), depth, on, off (bits).
 */
export function one_hot(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const depth = wordAt(words, 1);
  const on = wordAt(words, 2);
  const off = wordAt(words, 3);
  const last = unitBound(wordAt(words, 0), tile + 1, tiles);
  for (let unit = unitBound(wordAt(words, 0), tile, tiles); unit < last; unit++) {
    const out = pointerAt(params, 1) + ((<usize>unit * <usize>depth) << 2);
    fillRun(out, off, depth);
    const index = wordAt(pointerAt(params, 0), unit);
    if (<u32>index < <u32>depth) store<i32>(out + ((<usize>index) << 2), on);
  }
  return OK;
}
