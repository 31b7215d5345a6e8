import { OK, OUT_OF_RANGE } from './status';
import { pointerAt, strideAt, unitBound, wordAt, wordsOf } from './parameters';
import { copyRun, fillRun } from './copy';

// All indices come from a tensor's values: each is compared with its size before it becomes an address.

/**
 * Rows of x at indices along an axis: out[b, o, i, :] = x[b, o, indices[b, i], :].
 * Pointers: x, indices, output, all contiguous. Words: units (batch * outer * count), outer, size of the axis, count
 * of indices (of one batch), inner elements.
 */
export function gather(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  return gatherRows(params, tile, tiles, 2);
}

export function gather_halves(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  return gatherRows(params, tile, tiles, 1);
}

/** Elements have 2^shift bytes. */
function gatherRows(params: usize, tile: i32, tiles: i32, shift: usize): i32 {
  const x = pointerAt(params, 0);
  const indices = pointerAt(params, 1);
  const out = pointerAt(params, 2);
  const words = wordsOf(params);
  const outer = wordAt(words, 1);
  const size = wordAt(words, 2);
  const count = wordAt(words, 3);
  const row = (<usize>wordAt(words, 4)) << shift;
  const last = unitBound(wordAt(words, 0), tile + 1, tiles);
  let unit = unitBound(wordAt(words, 0), tile, tiles);
  while (unit < last) {
    const lead = unit / count;
    const first = unit - lead * count;
    const end = min(count, first + last - unit);
    const source = x + <usize>lead * <usize>size * row;
    const list = indices + ((<usize>(lead / outer) * <usize>count) << 2);
    const target = out + <usize>lead * <usize>count * row;
    for (let i = first; i < end; i++) {
      const index = wordAt(list, i);
      if (<u32>index >= <u32>size) return OUT_OF_RANGE;
      if (row == 4) store<i32>(target + ((<usize>i) << 2), load<i32>(source + ((<usize>index) << 2)));
      else copyRun(target + <usize>i * row, source + <usize>index * row, row);
    }
    unit += end - first;
  }
  return OK;
}

/** Linear row that indices[.., depth] name in dims[depth], or -1 where one is out of range. */
function rowOf(index: usize, depth: i32, dims: usize): i32 {
  let row = 0;
  for (let d = 0; d < depth; d++) {
    const place = wordAt(index, d);
    const size = wordAt(dims, d);
    if (<u32>place >= <u32>size) return -1;
    row = row * size + place;
  }
  return row;
}

/**
 * Blocks of x: out[r, :] = x[indices[r, 0], .., indices[r, depth - 1], :]. Pointers: x, indices, output, all contiguous.
 * Words: units (rows of indices), inner elements, depth, dims[depth].
 */
export function gather_nd(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const row = (<usize>wordAt(words, 1)) << 2;
  const depth = wordAt(words, 2);
  const last = unitBound(wordAt(words, 0), tile + 1, tiles);
  for (let unit = unitBound(wordAt(words, 0), tile, tiles); unit < last; unit++) {
    const place = rowOf(pointerAt(params, 1) + ((<usize>unit * <usize>depth) << 2), depth, words + 12);
    if (place < 0) return OUT_OF_RANGE;
    copyRun(pointerAt(params, 2) + <usize>unit * row, pointerAt(params, 0) + <usize>place * row, row);
  }
  return OK;
}

function addFloats(target: usize, source: usize, count: i32): void {
  let i = 0;
  for (; i + 4 <= count; i += 4, target += 16, source += 16) v128.store(target, f32x4.add(v128.load(target), v128.load(source)));
  for (; i < count; i++, target += 4, source += 4) store<f32>(target, load<f32>(target) + load<f32>(source));
}

function addIntegers(target: usize, source: usize, count: i32): void {
  for (let i = 0; i < count; i++, target += 4, source += 4) store<i32>(target, load<i32>(target) + load<i32>(source));
}

/**
 * Writes rows of updates where indices name them. Units are rows of the output, and a tile applies, in their order,
 * just the updates that fall into its rows: so no two tiles write the same element, and the result does not depend on
 * their number. Every tile passes over all indices, checking them first; none writes when one is out of range.
 * Words: units, inner elements, depth, count of updates, step between updates in elements (0: the same for all),
 * dims[depth].
 * `combine`: 0 replaces, 1 adds floats, 2 adds integers.
 */
function scatterRows(words: usize, indices: usize, updates: usize, out: usize, first: i32, last: i32, combine: i32): void {
  const inner = wordAt(words, 1);
  const depth = wordAt(words, 2);
  const count = wordAt(words, 3);
  const step = strideAt(words, 4);
  const row = (<usize>inner) << 2;
  for (let u = 0; u < count; u++) {
    const place = rowOf(indices + ((<usize>u * <usize>depth) << 2), depth, words + 20);
    if (place < first || place >= last) continue;
    const target = out + <usize>place * row;
    const source = updates + <usize>u * step;
    if (combine == 0) copyRun(target, source, row);
    else if (combine == 1) addFloats(target, source, inner);
    else addIntegers(target, source, inner);
  }
}

function indicesHold(words: usize, indices: usize): bool {
  const depth = wordAt(words, 2);
  const count = wordAt(words, 3);
  for (let u = 0; u < count; u++) if (rowOf(indices + ((<usize>u * <usize>depth) << 2), depth, words + 20) < 0) return false;
  return true;
}

/** Zeros with updates added. Pointers: indices, updates, output. Words: as scatterRows, then whether they are integers. */
export function scatter_nd(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const indices = pointerAt(params, 0);
  const out = pointerAt(params, 2);
  if (!indicesHold(words, indices)) return OUT_OF_RANGE;
  const first = unitBound(wordAt(words, 0), tile, tiles);
  const last = unitBound(wordAt(words, 0), tile + 1, tiles);
  const inner = wordAt(words, 1);
  const integers = wordAt(words, 5 + wordAt(words, 2));
  fillRun(out + ((<usize>first * <usize>inner) << 2), 0, (last - first) * inner);
  scatterRows(words, indices, pointerAt(params, 1), out, first, last, integers ? 2 : 1);
  return OK;
}

/** x with blocks replaced. Pointers: x, indices, updates, output (may be x itself). Words: as scatterRows. */
export function tensor_scatter_update(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const x = pointerAt(params, 0);
  const indices = pointerAt(params, 1);
  const out = pointerAt(params, 3);
  if (!indicesHold(words, indices)) return OUT_OF_RANGE;
  const first = unitBound(wordAt(words, 0), tile, tiles);
  const last = unitBound(wordAt(words, 0), tile + 1, tiles);
  const row = (<usize>wordAt(words, 1)) << 2;
  if (out != x) copyRun(out + <usize>first * row, x + <usize>first * row, <usize>(last - first) * row);
  scatterRows(words, indices, pointerAt(params, 2), out, first, last, 0);
  return OK;
}

/** A scalar everywhere but at indices. Pointers: indices, values, default, output. Words: as scatterRows, inner = 1. */
export function sparse_to_dense(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const indices = pointerAt(params, 0);
  const out = pointerAt(params, 3);
  if (!indicesHold(words, indices)) return OUT_OF_RANGE;
  const first = unitBound(wordAt(words, 0), tile, tiles);
  const last = unitBound(wordAt(words, 0), tile + 1, tiles);
  fillRun(out + ((<usize>first) << 2), load<i32>(pointerAt(params, 2)), last - first);
  scatterRows(words, indices, pointerAt(params, 1), out, first, last, 0);
  return OK;
}
