import { OK } from './status';
import { offsetOf, pointerAt, strideAt, unitBound, wordAt, wordsAfter } from './parameters';
import { MULTIPLY_SCRATCH, multiply } from './matmul';
import { exponential } from './exponential';
import { fillRun } from './copy';

// Query rows that share one pass over the keys, and keys of one pass: their scores fill 256 KiB of scratch.
const ROWS: i32 = 32;
const KEYS: i32 = 2048;

/** Largest of `count` scores after scaling and adding the mask (address 0: none), which are stored. NaN wins. */
function maskedMaximum(scores: usize, count: i32, scale: f32, mask: usize, maskStep: usize): f32 {
  const bytes = (<usize>count) << 2;
  const factor = f32x4.splat(scale);
  let at: usize = 0;
  let most = f32x4.splat(-Infinity);
  const whole = mask == 0 || maskStep == 4 || maskStep == 0 ? bytes & ~15 : 0;
  if (mask == 0) {
    for (; at < whole; at += 16) {
      const s = f32x4.mul(v128.load(scores + at), factor);
      v128.store(scores + at, s);
      most = f32x4.max(most, s);
    }
  } else if (maskStep == 4) {
    for (; at < whole; at += 16) {
      const s = f32x4.add(f32x4.mul(v128.load(scores + at), factor), v128.load(mask + at));
      v128.store(scores + at, s);
      most = f32x4.max(most, s);
    }
  } else if (maskStep == 0) {
    const bias = v128.load_splat<f32>(mask);
    for (; at < whole; at += 16) {
      const s = f32x4.add(f32x4.mul(v128.load(scores + at), factor), bias);
      v128.store(scores + at, s);
      most = f32x4.max(most, s);
    }
  }
  let maximum: f32 = max(
    max(f32x4.extract_lane(most, 0), f32x4.extract_lane(most, 1)),
    max(f32x4.extract_lane(most, 2), f32x4.extract_lane(most, 3)),
  );
  for (; at < bytes; at += 4) {
    let s = load<f32>(scores + at) * scale;
    if (mask != 0) s += load<f32>(mask + (at >> 2) * maskStep);
    store<f32>(scores + at, s);
    maximum = max(maximum, s);
  }
  return maximum;
}

/** Replaces scores by e^(score - maximum) and returns their sum. */
function exponentials(scores: usize, count: i32, maximum: f32): f32 {
  const bytes = (<usize>count) << 2;
  const whole = bytes & ~15;
  const shift = f32x4.splat(maximum);
  let sums = f32x4.splat(0);
  let at: usize = 0;
  for (; at < whole; at += 16) {
    const e = exponential(f32x4.sub(v128.load(scores + at), shift));
    v128.store(scores + at, e);
    sums = f32x4.add(sums, e);
  }
  let sum: f32 = f32x4.extract_lane(sums, 0) + f32x4.extract_lane(sums, 1) + (f32x4.extract_lane(sums, 2) + f32x4.extract_lane(sums, 3));
  for (; at < bytes; at += 4) {
    const e = f32x4.extract_lane(exponential(f32x4.splat(load<f32>(scores + at) - maximum)), 0);
    store<f32>(scores + at, e);
    sum += e;
  }
  return sum;
}

function scaleRow(row: usize, count: i32, factor: f32): void {
  const bytes = (<usize>count) << 2;
  const whole = bytes & ~15;
  const vector = f32x4.splat(factor);
  let at: usize = 0;
  for (; at < whole; at += 16) v128.store(row + at, f32x4.mul(v128.load(row + at), vector));
  for (; at < bytes; at += 4) store<f32>(row + at, load<f32>(row + at) * factor);
}

/**
 * Scaled dot-product attention: softmax(scale q k^T + mask) v, with the softmax taken online over blocks of keys
 * (Milakov and Gimelshein, 2018: keep the running maximum and sum, rescale what was added up before).
 * Pointers: q, k, v, mask (0: none), output. Words: units (leading * query rows), Sq, Sk, D, Dv, scale (float32
 * bits), causal (0 or 1), q row, q column, k row, k column, v row, v column, mask row, mask column, output row
 * stride, leading rank r, dims[r], then strides[r] of q, k, v, mask, output. A group of query heads that shares one
 * head of k and v is a leading dimension in which k and v have stride 0.
 * With causal, query i sees the keys up to i + Sk - Sq; what it does not see does not count, even if it is NaN.
 * A row that sees no key, or only scores of -Infinity, is zeros.
 */
export function attention(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsAfter(params, 5);
  const units = wordAt(words, 0);
  const Sq = wordAt(words, 1);
  const Sk = wordAt(words, 2);
  const D = wordAt(words, 3);
  const Dv = wordAt(words, 4);
  const scale = load<f32>(words, 20);
  const causal = wordAt(words, 6) != 0;
  const qRow = strideAt(words, 7);
  const qColumn = strideAt(words, 8);
  const kRow = strideAt(words, 9);
  const kColumn = strideAt(words, 10);
  const vRow = strideAt(words, 11);
  const vColumn = strideAt(words, 12);
  const maskRow = strideAt(words, 13);
  const maskColumn = strideAt(words, 14);
  const outRow = strideAt(words, 15);
  const rank = wordAt(words, 16);
  const dims = words + 68;
  const step = (<usize>rank) << 2;

  // Scratch: that of the products, then a maximum and a sum for each row, then the scores.
  const maxima = scratch + ((MULTIPLY_SCRATCH + 63) & ~63);
  const sums = maxima + ROWS * 4;
  const scores = sums + ROWS * 4;

  const last = unitBound(units, tile + 1, tiles);
  let unit = unitBound(units, tile, tiles);
  while (unit < last) {
    const lead = unit / Sq;
    const i0 = unit - lead * Sq;
    const rows = min(ROWS, min(Sq - i0, last - unit));
    unit += rows;
    const q = pointerAt(params, 0) + offsetOf(lead, rank, dims, dims + step) + <usize>i0 * qRow;
    const k = pointerAt(params, 1) + offsetOf(lead, rank, dims, dims + 2 * step);
    const v = pointerAt(params, 2) + offsetOf(lead, rank, dims, dims + 3 * step);
    let mask = pointerAt(params, 3);
    const masked = mask != 0;
    if (masked) mask += offsetOf(lead, rank, dims, dims + 4 * step) + <usize>i0 * maskRow;
    const out = pointerAt(params, 4) + offsetOf(lead, rank, dims, dims + 5 * step) + <usize>i0 * outRow;

    const past = Sk - Sq + i0 + 1; // keys that row 0 of this block sees, with causal
    const limit = causal ? max(0, min(Sk, past + rows - 1)) : Sk;
    for (let r = 0; r < rows; r++) {
      store<f32>(maxima + ((<usize>r) << 2), -Infinity);
      store<f32>(sums + ((<usize>r) << 2), 0);
    }
    for (let j0 = 0; j0 < limit; j0 += KEYS) {
      const keys = min(KEYS, limit - j0);
      const scoreRow = (<usize>((keys + 3) & ~3)) << 2;
      multiply(q, qRow, qColumn, k + <usize>j0 * kRow, kColumn, kRow, scores, scoreRow, rows, keys, D, false, scratch);
      for (let r = 0; r < rows; r++) {
        const visible = causal ? max(0, min(keys, past + r - j0)) : keys;
        const row = scores + <usize>r * scoreRow;
        const at = (<usize>r) << 2;
        const before = load<f32>(maxima + at);
        const found = maskedMaximum(row, visible, scale, masked ? mask + <usize>r * maskRow + <usize>j0 * maskColumn : 0, maskColumn);
        const maximum = max(before, found);
        if (maximum == -Infinity) {
          fillRun(row, 0, visible);
          continue;
        }
        let sum = exponentials(row, visible, maximum);
        if (j0 > 0 && maximum != before) {
          const factor = f32x4.extract_lane(exponential(f32x4.splat(before - maximum)), 0);
          sum += load<f32>(sums + at) * factor;
          scaleRow(out + <usize>r * outRow, Dv, factor);
        } else {
          sum += load<f32>(sums + at);
        }
        store<f32>(maxima + at, maximum);
        store<f32>(sums + at, sum);
      }
      const values = v + <usize>j0 * vRow;
      if (!causal || past - j0 >= keys) {
        multiply(scores, scoreRow, 4, values, vRow, vColumn, out, outRow, rows, Dv, keys, j0 > 0, scratch);
        continue;
      }
      // Across the diagonal: what all of six rows see in one product, the rest of each row in its own.
      for (let r = 0; r < rows; r += 6) {
        const count = min(6, rows - r);
        const shared = max(0, min(keys, past + r - j0));
        const from = scores + <usize>r * scoreRow;
        const to = out + <usize>r * outRow;
        multiply(from, scoreRow, 4, values, vRow, vColumn, to, outRow, count, Dv, shared, j0 > 0, scratch);
        for (let i = 1; i < count; i++) {
          const more = max(0, min(keys, past + r + i - j0)) - shared;
          if (more == 0) continue;
          const part = from + <usize>i * scoreRow + ((<usize>shared) << 2);
          multiply(
            part,
            scoreRow,
            4,
            values + <usize>shared * vRow,
            vRow,
            vColumn,
            to + <usize>i * outRow,
            outRow,
            1,
            Dv,
            more,
            true,
            scratch,
          );
        }
      }
    }
    for (let r = 0; r < rows; r++) {
      const sum = load<f32>(sums + ((<usize>r) << 2));
      if (sum == 0) fillRun(out + <usize>r * outRow, 0, Dv);
      else scaleRow(out + <usize>r * outRow, Dv, 1 / sum);
    }
  }
  return OK;
}
