import { OK, OUT_OF_RANGE } from './status';
import { offsetOf, pointerAt, strideAt, unitBound, wordAt, wordsOf } from './parameters';
import { copyElements, copyRun } from './copy';
import { copyElements as copyHalves } from './halves';

/**
 * cache [.., S, D] with rows position .. position + T - 1 replaced. The output may be the cache itself: then only
 * those rows are written. Pointers: cache, update, position, output. Words: units (leading * S), S, T, D, column
 * stride of update, rank r of update's rows (leading dims and T), dims[r], strides of update[r].
 */
export function cache_append(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  return appendRows(params, tile, tiles, 2);
}

export function cache_append_halves(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  return appendRows(params, tile, tiles, 1);
}

/** Elements have 2^shift bytes. */
function appendRows(params: usize, tile: i32, tiles: i32, shift: usize): i32 {
  const cache = pointerAt(params, 0);
  const out = pointerAt(params, 3);
  const position = load<i32>(pointerAt(params, 2));
  const words = wordsOf(params);
  const units = wordAt(words, 0);
  const S = wordAt(words, 1);
  const T = wordAt(words, 2);
  const D = wordAt(words, 3);
  const column = strideAt(words, 4);
  const rank = wordAt(words, 5);
  const dims = words + 24;
  if (position < 0 || position > S - T) return OUT_OF_RANGE;
  const row = (<usize>D) << shift;
  const last = unitBound(units, tile + 1, tiles);
  let unit = unitBound(units, tile, tiles);
  while (unit < last) {
    const lead = unit / S;
    const first = unit - lead * S;
    const end = min(S, first + last - unit);
    const base = <usize>lead * <usize>S * row;
    // Three runs: before the new rows, the new rows, after them.
    const from = max(first, min(end, position));
    const to = max(from, min(end, position + T));
    if (out != cache) {
      if (from > first) copyRun(out + base + <usize>first * row, cache + base + <usize>first * row, <usize>(from - first) * row);
      if (end > to) copyRun(out + base + <usize>to * row, cache + base + <usize>to * row, <usize>(end - to) * row);
    }
    for (let r = from; r < to; r++) {
      const offset = offsetOf(lead * T + r - position, rank, dims, dims + ((<usize>rank) << 2));
      const target = out + base + <usize>r * row;
      // Strides and offsets are in bytes of words; of halves they are half of that.
      if (shift == 2) copyElements(target, pointerAt(params, 1) + offset, column, D);
      else copyHalves(target, pointerAt(params, 1) + <usize>((<i32>offset) >> 1), <usize>((<i32>column) >> 1), D);
    }
    unit += end - first;
  }
  return OK;
}

/**
 * cache [.., S, D] with row positions[t] replaced by row t of update; the last write to a row stays. The output may be
 * the cache itself. Pointers: cache, update, positions, output. Words: as cache_append.
 * No tile writes anything when a position is out of range.
 */
export function cache_update(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const cache = pointerAt(params, 0);
  const positions = pointerAt(params, 2);
  const out = pointerAt(params, 3);
  const words = wordsOf(params);
  const units = wordAt(words, 0);
  const S = wordAt(words, 1);
  const T = wordAt(words, 2);
  const D = wordAt(words, 3);
  const column = strideAt(words, 4);
  const rank = wordAt(words, 5);
  const dims = words + 24;
  for (let t = 0; t < T; t++) if (<u32>wordAt(positions, t) >= <u32>S) return OUT_OF_RANGE;
  const row = (<usize>D) << 2;
  const last = unitBound(units, tile + 1, tiles);
  let unit = unitBound(units, tile, tiles);
  while (unit < last) {
    const lead = unit / S;
    const first = unit - lead * S;
    const end = min(S, first + last - unit);
    const base = <usize>lead * <usize>S * row;
    if (out != cache) copyRun(out + base + <usize>first * row, cache + base + <usize>first * row, <usize>(end - first) * row);
    for (let t = 0; t < T; t++) {
      const r = wordAt(positions, t);
      if (r < first || r >= end) continue;
      const source = pointerAt(params, 1) + offsetOf(lead * T + t, rank, dims, dims + ((<usize>rank) << 2));
      copyElements(out + base + <usize>r * row, source, column, D);
    }
    unit += end - first;
  }
  return OK;
}

/** Length of the common prefix. Pointers: a, b, output (one int32). Words: units (1), N, M. */
export function prefix_match(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  if (unitBound(wordAt(words, 0), tile + 1, tiles) == unitBound(wordAt(words, 0), tile, tiles)) return OK;
  const a = pointerAt(params, 0);
  const b = pointerAt(params, 1);
  const most = min(wordAt(words, 1), wordAt(words, 2));
  let length = 0;
  while (length + 4 <= most) {
    const at = (<usize>length) << 2;
    if (v128.any_true(v128.xor(v128.load(a + at), v128.load(b + at)))) break;
    length += 4;
  }
  while (length < most && wordAt(a, length) == wordAt(b, length)) length++;
  store<i32>(pointerAt(params, 2), length);
  return OK;
}

/**
 * Rows of floats to int8 with one scale a row. Pointers: x, packed, scales. Words: units (rows), D, column stride of x,
 * rank r of the rows, dims[r], strides[r].
 */
export function cache_compress(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const units = wordAt(words, 0);
  const D = wordAt(words, 1);
  const column = strideAt(words, 2);
  const rank = wordAt(words, 3);
  const dims = words + 16;
  const packedWords = (D + 3) / 4;
  const last = unitBound(units, tile + 1, tiles);
  for (let unit = unitBound(units, tile, tiles); unit < last; unit++) {
    const x = pointerAt(params, 0) + offsetOf(unit, rank, dims, dims + ((<usize>rank) << 2));
    const packed = pointerAt(params, 1) + ((<usize>unit * <usize>packedWords) << 2);
    let greatest: f32 = 0;
    let i = 0;
    if (column == 4) {
      let most = f32x4.splat(0);
      for (; i + 4 <= D; i += 4) most = f32x4.max(most, f32x4.abs(v128.load(x + ((<usize>i) << 2))));
      greatest = max(
        max(f32x4.extract_lane(most, 0), f32x4.extract_lane(most, 1)),
        max(f32x4.extract_lane(most, 2), f32x4.extract_lane(most, 3)),
      );
    }
    for (; i < D; i++) greatest = max(greatest, abs(load<f32>(x + <usize>i * column)));
    const scale: f32 = greatest / 127;
    store<f32>(pointerAt(params, 2) + ((<usize>unit) << 2), scale);
    let w = 0;
    if (column == 4 && scale > 0) {
      // The conversion gives 0 for NaN and saturates, and so do the narrowings.
      const divisor = f32x4.splat(scale);
      const most = f32x4.splat(127);
      const least = f32x4.splat(-127);
      for (; 4 * w + 4 <= D; w++) {
        const quotient = f32x4.nearest(f32x4.div(v128.load(x + ((<usize>w) << 4)), divisor));
        const integers = i32x4.trunc_sat_f32x4_s(f32x4.min(most, f32x4.max(least, quotient)));
        const halves = i16x8.narrow_i32x4_s(integers, integers);
        v128.store32_lane(packed + ((<usize>w) << 2), i8x16.narrow_i16x8_s(halves, halves), 0);
      }
    }
    for (; w < packedWords; w++) {
      let word = 0;
      const count = min(4, D - 4 * w);
      for (let j = 0; j < count && scale > 0; j++) {
        const quotient = nearest(load<f32>(x + <usize>(4 * w + j) * column) / scale);
        const byte = min(127, max(-127, i32x4.extract_lane(i32x4.trunc_sat_f32x4_s(f32x4.splat(quotient)), 0)));
        word |= (byte & 0xff) << (8 * j);
      }
      store<i32>(packed + ((<usize>w) << 2), word);
    }
  }
  return OK;
}

/** The reverse. Pointers: packed, scales, output. Words: units (rows), D. */
export function cache_decompress(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const D = wordAt(words, 1);
  const packedWords = (D + 3) / 4;
  const whole = D & ~3;
  const last = unitBound(wordAt(words, 0), tile + 1, tiles);
  for (let unit = unitBound(wordAt(words, 0), tile, tiles); unit < last; unit++) {
    const packed = pointerAt(params, 0) + ((<usize>unit * <usize>packedWords) << 2);
    const scale = load<f32>(pointerAt(params, 1) + ((<usize>unit) << 2));
    const out = pointerAt(params, 2) + ((<usize>unit * <usize>D) << 2);
    const factor = f32x4.splat(scale);
    for (let i = 0; i < whole; i += 4) {
      const bytes = v128.load32_zero(packed + <usize>i);
      const values = i32x4.extend_low_i16x8_s(i16x8.extend_low_i8x16_s(bytes));
      v128.store(out + ((<usize>i) << 2), f32x4.mul(f32x4.convert_i32x4_s(values), factor));
    }
    for (let i = whole; i < D; i++) store<f32>(out + ((<usize>i) << 2), <f32>load<i8>(packed + <usize>i) * scale);
  }
  return OK;
}

/**
 * The first `sinks` and the last `window` rows. Pointers: cache (contiguous), output. Words: units (leading * kept
 * rows), S, D, sinks, window.
 */
export function cache_evict(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const S = wordAt(words, 1);
  const row = (<usize>wordAt(words, 2)) << 2;
  const sinks = wordAt(words, 3);
  const kept = sinks + wordAt(words, 4);
  const last = unitBound(wordAt(words, 0), tile + 1, tiles);
  let unit = unitBound(wordAt(words, 0), tile, tiles);
  while (unit < last) {
    const lead = unit / kept;
    const r = unit - lead * kept;
    const count = min(last - unit, r < sinks ? sinks - r : kept - r);
    const from = r < sinks ? r : S - kept + r;
    copyRun(
      pointerAt(params, 1) + <usize>unit * row,
      pointerAt(params, 0) + (<usize>lead * <usize>S + <usize>from) * row,
      <usize>count * row,
    );
    unit += count;
  }
  return OK;
}
