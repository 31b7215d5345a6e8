import { OK } from './status';
import { offsetOf, pointerAt, strideAt, unitBound, wordAt, wordsOf } from './parameters';

/**
 * Rotary embedding. Pointers: x, cos, sin, output (contiguous). Words: units (rows of x), S, D, interleaved (0 or 1),
 * row and column stride of cos, of sin, column stride of x, rank r of the rows (leading dims and S), dims[r], strides
 * of x[r].
 */
export function rotary(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const units = wordAt(words, 0);
  const S = wordAt(words, 1);
  const D = wordAt(words, 2);
  const interleaved = wordAt(words, 3) != 0;
  const cosRow = strideAt(words, 4);
  const cosColumn = strideAt(words, 5);
  const sinRow = strideAt(words, 6);
  const sinColumn = strideAt(words, 7);
  const xColumn = strideAt(words, 8);
  const rank = wordAt(words, 9);
  const dims = words + 40;
  const half = D / 2;
  // From one element of a pair to the other, and from pair to pair, in the input and in the output.
  const apart: usize = interleaved ? xColumn : <usize>half * xColumn;
  const next: usize = interleaved ? 2 * xColumn : xColumn;
  const outApart: usize = interleaved ? 4 : (<usize>half) << 2;
  const outNext: usize = interleaved ? 8 : 4;
  const vectors = !interleaved && xColumn == 4 && cosColumn == 4 && sinColumn == 4 ? half & ~3 : 0;
  const last = unitBound(units, tile + 1, tiles);
  for (let unit = unitBound(units, tile, tiles); unit < last; unit++) {
    const position = unit % S;
    let x = pointerAt(params, 0) + offsetOf(unit, rank, dims, dims + ((<usize>rank) << 2));
    let cos = pointerAt(params, 1) + <usize>position * cosRow;
    let sin = pointerAt(params, 2) + <usize>position * sinRow;
    let out = pointerAt(params, 3) + ((<usize>unit * <usize>D) << 2);
    let pair = 0;
    for (; pair < vectors; pair += 4, x += 16, cos += 16, sin += 16, out += 16) {
      const a = v128.load(x);
      const b = v128.load(x + apart);
      const c = v128.load(cos);
      const s = v128.load(sin);
      v128.store(out, f32x4.sub(f32x4.mul(a, c), f32x4.mul(b, s)));
      v128.store(out + outApart, f32x4.add(f32x4.mul(b, c), f32x4.mul(a, s)));
    }
    for (; pair < half; pair++, x += next, cos += cosColumn, sin += sinColumn, out += outNext) {
      const a = load<f32>(x);
      const b = load<f32>(x + apart);
      const c = load<f32>(cos);
      const s = load<f32>(sin);
      store<f32>(out, a * c - b * s);
      store<f32>(out + outApart, b * c + a * s);
    }
  }
  return OK;
}
