import { OK } from './status';
import { pointerAt, unitBound, wordAt, wordsOf } from './parameters';

/** An unsigned number in the order of the elements: NaN above all, -0 equal to 0. */
// @ts-ignore: decorator
@inline
function keyOf(bits: i32, integers: bool): u32 {
  if (integers) return <u32>bits ^ 0x80000000;
  if ((bits & 0x7fffffff) > 0x7f800000) return 0xffffffff;
  if ((bits & 0x7fffffff) == 0) return 0x80000000;
  return bits < 0 ? ~(<u32>bits) : <u32>bits | 0x80000000;
}

/** Whether entry i of the heap comes after entry j in the result: smaller, or equal with a higher index. */
// @ts-ignore: decorator
@inline
function after(values: usize, places: usize, i: i32, j: i32, integers: bool): bool {
  const a = keyOf(wordAt(values, i), integers);
  const b = keyOf(wordAt(values, j), integers);
  return a < b || (a == b && wordAt(places, i) > wordAt(places, j));
}

// @ts-ignore: decorator
@inline
function exchange(list: usize, i: i32, j: i32): void {
  const a = list + ((<usize>i) << 2);
  const b = list + ((<usize>j) << 2);
  const word = load<i32>(a);
  store<i32>(a, load<i32>(b));
  store<i32>(b, word);
}

/** Restores the heap below entry i: its root is the entry that comes last in the result. */
function sift(values: usize, places: usize, i: i32, count: i32, integers: bool): void {
  for (;;) {
    let child = 2 * i + 1;
    if (child >= count) return;
    if (child + 1 < count && after(values, places, child + 1, child, integers)) child++;
    if (!after(values, places, child, i, integers)) return;
    exchange(values, i, child);
    exchange(places, i, child);
    i = child;
  }
}

/**
 * The k greatest of each row, greatest first, equal ones by their indices, with a heap of k in the output itself.
 * Pointers: x (contiguous), values, indices. Words: units (rows), length of a row, k, whether they are integers.
 */
export function top_k(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const length = wordAt(words, 1);
  const k = wordAt(words, 2);
  const integers = wordAt(words, 3) != 0;
  const last = unitBound(wordAt(words, 0), tile + 1, tiles);
  for (let unit = unitBound(wordAt(words, 0), tile, tiles); unit < last && k > 0; unit++) {
    const x = pointerAt(params, 0) + ((<usize>unit * <usize>length) << 2);
    const values = pointerAt(params, 1) + ((<usize>unit * <usize>k) << 2);
    const places = pointerAt(params, 2) + ((<usize>unit * <usize>k) << 2);
    for (let i = 0; i < k; i++) {
      store<i32>(values + ((<usize>i) << 2), wordAt(x, i));
      store<i32>(places + ((<usize>i) << 2), i);
    }
    for (let i = k / 2 - 1; i >= 0; i--) sift(values, places, i, k, integers);
    let least = keyOf(load<i32>(values), integers);
    for (let i = k; i < length; i++) {
      const bits = wordAt(x, i);
      if (keyOf(bits, integers) <= least) continue;
      store<i32>(values, bits);
      store<i32>(places, i);
      sift(values, places, 0, k, integers);
      least = keyOf(load<i32>(values), integers);
    }
    for (let end = k - 1; end > 0; end--) {
      exchange(values, 0, end);
      exchange(places, 0, end);
      sift(values, places, 0, end, integers);
    }
  }
  return OK;
}

/** One lane of consecutive floats: its sum stays in a register. */
function sumLane(x: usize, out: usize, size: i32, exclusive: bool, reverse: bool): void {
  const step = reverse ? -4 : 4;
  let at = reverse ? (size - 1) << 2 : 0;
  let sum: f64 = 0;
  for (let i = 0; i < size; i++, at += step) {
    const before = sum;
    sum += <f64>load<f32>(x + <usize>at);
    store<f32>(out + <usize>at, <f32>(exclusive ? before : sum));
  }
}

// Lanes whose running sums are kept in scratch at a time, as doubles.
const LANES: i32 = 16384;

/**
 * Running sums along an axis, in double precision for floats. Pointers: x (contiguous), output. Words: units (lanes:
 * outer * inner), size of the axis, inner, exclusive, reverse, whether they are integers.
 */
export function cumsum(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const size = wordAt(words, 1);
  const inner = wordAt(words, 2);
  const exclusive = wordAt(words, 3) != 0;
  const reverse = wordAt(words, 4) != 0;
  const integers = wordAt(words, 5) != 0;
  const last = unitBound(wordAt(words, 0), tile + 1, tiles);
  let unit = unitBound(wordAt(words, 0), tile, tiles);
  while (unit < last) {
    const outer = unit / inner;
    const first = unit - outer * inner;
    const lanes = min(LANES, min(inner - first, last - unit));
    const base = (<usize>outer * <usize>size * <usize>inner + <usize>first) << 2;
    if (inner == 1 && !integers) {
      sumLane(pointerAt(params, 0) + base, pointerAt(params, 1) + base, size, exclusive, reverse);
      unit++;
      continue;
    }
    memory.fill(scratch, 0, (<usize>lanes) << 3);
    for (let i = 0; i < size; i++) {
      const row = base + ((<usize>(reverse ? size - 1 - i : i) * <usize>inner) << 2);
      let x = pointerAt(params, 0) + row;
      let out = pointerAt(params, 1) + row;
      const end = scratch + ((<usize>lanes) << 3);
      if (integers) {
        for (let sum = scratch; sum < end; sum += 8, x += 4, out += 4) {
          const before = load<i32>(sum);
          const now = before + load<i32>(x);
          store<i32>(sum, now);
          store<i32>(out, exclusive ? before : now);
        }
      } else {
        for (let sum = scratch; sum < end; sum += 8, x += 4, out += 4) {
          const before = load<f64>(sum);
          const now = before + <f64>load<f32>(x);
          store<f64>(sum, now);
          store<f32>(out, <f32>(exclusive ? before : now));
        }
      }
    }
    unit += lanes;
  }
  return OK;
}
