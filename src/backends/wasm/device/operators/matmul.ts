import { OK } from './status';
import { offsetOf, pointerAt, strideAt, unitBound, wordAt, wordsOf } from './parameters';
import { copyMatrix, fillRun } from './copy';
import { BLOCK_BYTES, BLOCK_ROWS, multiplyPanel } from './matmul-block';
import { dotColumns, sweepRows } from './matmul-narrow';

// Scratch of a product: a block of C of fewer than 8 columns, one panel of B, then rows of A.
const SPARE_BYTES: usize = (BLOCK_BYTES + 63) & ~63;
/** Largest k of one pass: its panel is 64 KiB. Longer products add up over passes. */
const PASS: i32 = 2048;
const PANEL_BYTES: usize = 65536;
const ROWS_BYTES: usize = 262144;
/** Scratch that `multiply` may use. */
export const MULTIPLY_SCRATCH: usize = SPARE_BYTES + PANEL_BYTES + ROWS_BYTES;

// B can be used where it lies if its rows are consecutive. That pays if few blocks of rows read a panel, or if the
// second-level cache keeps it. Rows that lie a multiple of 4 KiB apart share too few of a cache's sets for that.
const DIRECT_ROWS: i32 = 20;
const DIRECT_DEPTH: i32 = 256;

/** Rows of A that are swept for one panel: together they stay in the second-level cache. */
function rowsAtOnce(k: i32): i32 {
  return max(BLOCK_ROWS, (<i32>(ROWS_BYTES >> 2) / k / BLOCK_ROWS) * BLOCK_ROWS);
}

/**
 * C[m, n] = A[m, k] B[k, n], or += with `accumulate`. Strides are in bytes and may be anything for A and B; the
 * columns of C are consecutive. No two of them overlap.
 */
export function multiply(
  a: usize,
  aRow: usize,
  aColumn: usize,
  b: usize,
  bRow: usize,
  bColumn: usize,
  c: usize,
  cRow: usize,
  m: i32,
  n: i32,
  k: i32,
  accumulate: bool,
  scratch: usize,
): void {
  if (k == 0 && !accumulate) for (let r = 0; r < m; r++) fillRun(c + <usize>r * cRow, 0, n);
  if (m <= 3 && bColumn == 4) {
    if (!accumulate && k > 0) for (let r = 0; r < m; r++) fillRun(c + <usize>r * cRow, 0, n);
    sweepRows(a, aRow, aColumn, b, bRow, c, cRow, m, n, k);
    return;
  }
  const panel = scratch + SPARE_BYTES;
  const rows = panel + PANEL_BYTES;
  let add = accumulate;
  for (let k0 = 0; k0 < k; k0 += PASS) {
    const depth = min(PASS, k - k0);
    const height = rowsAtOnce(depth);
    for (let m0 = 0; m0 < m; m0 += height) {
      const count = min(height, m - m0);
      let from = a + <usize>m0 * aRow + <usize>k0 * aColumn;
      let fromRow = aRow;
      if (aColumn != 4) {
        fromRow = (<usize>depth) << 2;
        copyMatrix(from, aRow, aColumn, rows, fromRow, count, depth);
        from = rows;
      }
      const to = c + <usize>m0 * cRow;
      const top = b + <usize>k0 * bRow;
      if (count <= 3 && bRow == 4) {
        dotColumns(from, fromRow, top, bColumn, to, cRow, count, n, depth, add);
        continue;
      }
      const direct = bColumn == 4 && (count <= DIRECT_ROWS || (depth <= DIRECT_DEPTH && (bRow & 4095) != 0));
      for (let j = 0; j < n; j += 8) {
        const width = min(8, n - j);
        let step: usize = 32;
        let source = top + <usize>j * bColumn;
        if (direct && width == 8) {
          step = bRow;
        } else {
          copyMatrix(source, bRow, bColumn, panel, 32, depth, width);
          source = panel;
        }
        multiplyPanel(from, fromRow, source, step, to + ((<usize>j) << 2), cRow, count, width, depth, add, scratch);
      }
    }
    add = true;
  }
}

/** The same with B as panels of `pack_panels`; `panels` points to the first that is wanted, `stride` bytes apart. */
function multiplyPacked(
  a: usize,
  aRow: usize,
  aColumn: usize,
  panels: usize,
  c: usize,
  cRow: usize,
  m: i32,
  n: i32,
  k: i32,
  scratch: usize,
): void {
  if (k == 0) for (let r = 0; r < m; r++) fillRun(c + <usize>r * cRow, 0, n);
  const stride = (<usize>k) << 5;
  const rows = scratch + SPARE_BYTES + PANEL_BYTES;
  for (let k0 = 0; k0 < k; k0 += PASS) {
    const depth = min(PASS, k - k0);
    const height = rowsAtOnce(depth);
    for (let m0 = 0; m0 < m; m0 += height) {
      const count = min(height, m - m0);
      let from = a + <usize>m0 * aRow + <usize>k0 * aColumn;
      let fromRow = aRow;
      if (aColumn != 4) {
        fromRow = (<usize>depth) << 2;
        copyMatrix(from, aRow, aColumn, rows, fromRow, count, depth);
        from = rows;
      }
      let to = c + <usize>m0 * cRow;
      let source = panels + ((<usize>k0) << 5);
      for (let j = 0; j < n; j += 8, source += stride, to += 32) {
        multiplyPanel(from, fromRow, source, 32, to, cRow, count, min(8, n - j), depth, k0 > 0, scratch);
      }
    }
  }
}

/**
 * Batched matrix product, float32.
 * Pointers: A, B (or its panels), C. Words: units, packed (0 or 1), partition (0: a unit is a row, 1: a panel of 8
 * columns), M, N, K, row and column stride of A, of B (ignored where packed), row stride of C, batch rank k, dims[k],
 * strides of A[k], of B[k] (packed: in elements of the panels), of C[k]. Units count through the batch: batch * M or
 * batch * ceil(N/8).
 */
export function matmul(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const units = wordAt(words, 0);
  const packed = wordAt(words, 1);
  const partition = wordAt(words, 2);
  const M = wordAt(words, 3);
  const N = wordAt(words, 4);
  const K = wordAt(words, 5);
  const aRow = strideAt(words, 6);
  const aColumn = strideAt(words, 7);
  const bRow = strideAt(words, 8);
  const bColumn = strideAt(words, 9);
  const cRow = strideAt(words, 10);
  const rank = wordAt(words, 11);
  const dims = words + 48;
  const step = (<usize>rank) << 2;
  const perMatrix = partition == 0 ? M : (N + 7) / 8;
  const last = unitBound(units, tile + 1, tiles);
  let unit = unitBound(units, tile, tiles);
  while (unit < last) {
    const batch = unit / perMatrix;
    const first = unit - batch * perMatrix;
    const count = min(perMatrix - first, last - unit);
    let m0 = 0;
    let m1 = M;
    let n0 = 0;
    let n1 = N;
    if (partition == 0) {
      m0 = first;
      m1 = first + count;
    } else {
      n0 = first * 8;
      n1 = min(N, (first + count) * 8);
    }
    const a = pointerAt(params, 0) + offsetOf(batch, rank, dims, dims + step) + <usize>m0 * aRow;
    const b = pointerAt(params, 1) + offsetOf(batch, rank, dims, dims + 2 * step);
    const c = pointerAt(params, 2) + offsetOf(batch, rank, dims, dims + 3 * step) + <usize>m0 * cRow + ((<usize>n0) << 2);
    if (packed) multiplyPacked(a, aRow, aColumn, b + ((<usize>n0 * <usize>K) << 2), c, cRow, m1 - m0, n1 - n0, K, scratch);
    else multiply(a, aRow, aColumn, b + <usize>n0 * bColumn, bRow, bColumn, c, cRow, m1 - m0, n1 - n0, K, false, scratch);
    unit += count;
  }
  return OK;
}

/**
 * Packs B[K, N] of any strides into panels [ceil(N/8)][K][8], columns past N zero.
 * Pointers: B, panels. Words: units (panels, through the batch), N, K, row stride, column stride, batch rank k,
 * dims[k], strides of B[k]. The panels of one matrix follow those of the one before.
 */
export function pack_panels(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const units = wordAt(words, 0);
  const N = wordAt(words, 1);
  const K = wordAt(words, 2);
  const bRow = strideAt(words, 3);
  const bColumn = strideAt(words, 4);
  const rank = wordAt(words, 5);
  const dims = words + 24;
  const perMatrix = (N + 7) / 8;
  const last = unitBound(units, tile + 1, tiles);
  for (let unit = unitBound(units, tile, tiles); unit < last; unit++) {
    const batch = unit / perMatrix;
    const n0 = (unit - batch * perMatrix) * 8;
    const width = min(8, N - n0);
    const source = pointerAt(params, 0) + offsetOf(batch, rank, dims, dims + ((<usize>rank) << 2)) + <usize>n0 * bColumn;
    const target = pointerAt(params, 1) + ((<usize>unit * <usize>K) << 5);
    copyMatrix(source, bRow, bColumn, target, 32, K, width);
    for (let r = 0; r < K && width < 8; r++) fillRun(target + ((<usize>r) << 5) + ((<usize>width) << 2), 0, 8 - width);
  }
  return OK;
}
