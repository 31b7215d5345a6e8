// Products of one to three rows: B is read once, in the order in which it lies in memory, without packing.
// C of these is small, so it is C that is loaded and stored again.

// @ts-ignore: decorator
@inline
function madd(sum: v128, b: v128, a: v128): v128 {
  return f32x4.add(sum, f32x4.mul(b, a));
}

// Columns of C that are swept at a time: 16 KiB a row, so that they stay in the first-level cache.
const SWEEP: i32 = 4096;
// Elements of B that two rows pass before the third does: 32 KiB.
const THIRD: i32 = 8192;

/** c[n] += the sum over k of a[k] B[k, n] for n a multiple of 4. Eight rows of B at a time: eight streams keep the memory busy. */
function sweepOne(a: usize, aColumn: usize, b: usize, bRow: usize, c: usize, n: i32, k: i32): void {
  const bytes = (<usize>n) << 2;
  let i = 0;
  for (; i + 8 <= k; i += 8) {
    const s0 = v128.load_splat<f32>(a);
    const s1 = v128.load_splat<f32>(a + aColumn);
    const s2 = v128.load_splat<f32>(a + 2 * aColumn);
    const s3 = v128.load_splat<f32>(a + 3 * aColumn);
    const s4 = v128.load_splat<f32>(a + 4 * aColumn);
    const s5 = v128.load_splat<f32>(a + 5 * aColumn);
    const s6 = v128.load_splat<f32>(a + 6 * aColumn);
    const s7 = v128.load_splat<f32>(a + 7 * aColumn);
    const b1 = b + bRow;
    const b2 = b1 + bRow;
    const b3 = b2 + bRow;
    const b4 = b3 + bRow;
    const b5 = b4 + bRow;
    const b6 = b5 + bRow;
    const b7 = b6 + bRow;
    for (let at: usize = 0; at < bytes; at += 16) {
      const even = madd(madd(f32x4.mul(v128.load(b + at), s0), v128.load(b2 + at), s2), v128.load(b4 + at), s4);
      const odd = madd(madd(f32x4.mul(v128.load(b1 + at), s1), v128.load(b3 + at), s3), v128.load(b5 + at), s5);
      const rest = madd(f32x4.mul(v128.load(b6 + at), s6), v128.load(b7 + at), s7);
      v128.store(c + at, f32x4.add(v128.load(c + at), f32x4.add(f32x4.add(even, odd), rest)));
    }
    a += 8 * aColumn;
    b += 8 * bRow;
  }
  for (; i < k; i++, a += aColumn, b += bRow) {
    const s = v128.load_splat<f32>(a);
    for (let at: usize = 0; at < bytes; at += 16) v128.store(c + at, madd(v128.load(c + at), v128.load(b + at), s));
  }
}

/** The same for two rows, four rows of B at a time. */
function sweepTwo(a: usize, aRow: usize, aColumn: usize, b: usize, bRow: usize, c: usize, cRow: usize, n: i32, k: i32): void {
  const bytes = (<usize>n) << 2;
  let i = 0;
  for (; i + 4 <= k; i += 4) {
    const p = a + aRow;
    const s0 = v128.load_splat<f32>(a);
    const s1 = v128.load_splat<f32>(a + aColumn);
    const s2 = v128.load_splat<f32>(a + 2 * aColumn);
    const s3 = v128.load_splat<f32>(a + 3 * aColumn);
    const t0 = v128.load_splat<f32>(p);
    const t1 = v128.load_splat<f32>(p + aColumn);
    const t2 = v128.load_splat<f32>(p + 2 * aColumn);
    const t3 = v128.load_splat<f32>(p + 3 * aColumn);
    const b1 = b + bRow;
    const b2 = b1 + bRow;
    const b3 = b2 + bRow;
    const d = c + cRow;
    for (let at: usize = 0; at < bytes; at += 16) {
      let x = v128.load(b + at);
      let y = v128.load(b1 + at);
      let u = madd(f32x4.mul(x, s0), y, s1);
      let v = madd(f32x4.mul(x, t0), y, t1);
      x = v128.load(b2 + at);
      y = v128.load(b3 + at);
      u = madd(madd(u, x, s2), y, s3);
      v = madd(madd(v, x, t2), y, t3);
      v128.store(c + at, f32x4.add(v128.load(c + at), u));
      v128.store(d + at, f32x4.add(v128.load(d + at), v));
    }
    a += 4 * aColumn;
    b += 4 * bRow;
  }
  sweepOne(a, aColumn, b, bRow, c, n, k - i);
  sweepOne(a + aRow, aColumn, b, bRow, c + cRow, n, k - i);
}

/** C[m, n] += A[m, k] B[k, n], m of 1 to 3, columns of B and C consecutive, any strides of A. Strides in bytes. */
export function sweepRows(
  a: usize,
  aRow: usize,
  aColumn: usize,
  b: usize,
  bRow: usize,
  c: usize,
  cRow: usize,
  m: i32,
  n: i32,
  k: i32,
): void {
  const whole = n & ~3;
  for (let j = 0; j < whole; j += SWEEP) {
    const width = min(SWEEP, whole - j);
    const offset = (<usize>j) << 2;
    if (m == 1) {
      sweepOne(a, aColumn, b + offset, bRow, c + offset, width, k);
      continue;
    }
    // Of three rows the third follows while what the other two have read is still in a cache.
    const depth = m == 2 ? k : max(8, (THIRD / width) & ~7);
    for (let i = 0; i < k; i += depth) {
      const count = min(depth, k - i);
      const from = a + <usize>i * aColumn;
      const matrix = b + offset + <usize>i * bRow;
      sweepTwo(from, aRow, aColumn, matrix, bRow, c + offset, cRow, width, count);
      if (m == 3) sweepOne(from + 2 * aRow, aColumn, matrix, bRow, c + offset + 2 * cRow, width, count);
    }
  }
  for (let j = whole; j < n; j++) {
    for (let r = 0; r < m; r++) {
      let sum: f32 = 0;
      let from = a + <usize>r * aRow;
      let matrix = b + ((<usize>j) << 2);
      for (let i = 0; i < k; i++, from += aColumn, matrix += bRow) sum += load<f32>(from) * load<f32>(matrix);
      const at = c + <usize>r * cRow + ((<usize>j) << 2);
      store<f32>(at, load<f32>(at) + sum);
    }
  }
}

/** The four sums over the lanes of four vectors, as one vector. */
// @ts-ignore: decorator
@inline
function sumLanes(p: v128, q: v128, r: v128, s: v128): v128 {
  const pq = f32x4.add(v128.shuffle<i32>(p, q, 0, 4, 1, 5), v128.shuffle<i32>(p, q, 2, 6, 3, 7));
  const rs = f32x4.add(v128.shuffle<i32>(r, s, 0, 4, 1, 5), v128.shuffle<i32>(r, s, 2, 6, 3, 7));
  return f32x4.add(v128.shuffle<i64>(pq, rs, 0, 2), v128.shuffle<i64>(pq, rs, 1, 3));
}

/** One row against four columns of B, each consecutive along k. */
// @ts-ignore: decorator
@inline
function dotFour(a: usize, b: usize, bColumn: usize, c: usize, k: i32, accumulate: bool): void {
  let p = f32x4.splat(0);
  let q = p;
  let r = p;
  let s = p;
  let b1 = b + bColumn;
  let b2 = b1 + bColumn;
  let b3 = b2 + bColumn;
  const bytes = (<usize>k) << 2;
  const vectors = bytes & ~15;
  let at: usize = 0;
  for (; at < vectors; at += 16) {
    const x = v128.load(a + at);
    p = madd(p, v128.load(b + at), x);
    q = madd(q, v128.load(b1 + at), x);
    r = madd(r, v128.load(b2 + at), x);
    s = madd(s, v128.load(b3 + at), x);
  }
  let sum = sumLanes(p, q, r, s);
  for (; at < bytes; at += 4) {
    let column = f32x4.splat(load<f32>(b + at));
    column = f32x4.replace_lane(column, 1, load<f32>(b1 + at));
    column = f32x4.replace_lane(column, 2, load<f32>(b2 + at));
    column = f32x4.replace_lane(column, 3, load<f32>(b3 + at));
    sum = madd(sum, column, v128.load_splat<f32>(a + at));
  }
  v128.store(c, accumulate ? f32x4.add(v128.load(c), sum) : sum);
}

function dotOne(a: usize, b: usize, k: i32): f32 {
  const bytes = (<usize>k) << 2;
  const vectors = bytes & ~15;
  let p = f32x4.splat(0);
  let at: usize = 0;
  for (; at < vectors; at += 16) p = madd(p, v128.load(b + at), v128.load(a + at));
  let sum: f32 = f32x4.extract_lane(p, 0) + f32x4.extract_lane(p, 1) + (f32x4.extract_lane(p, 2) + f32x4.extract_lane(p, 3));
  for (; at < bytes; at += 4) sum += load<f32>(b + at) * load<f32>(a + at);
  return sum;
}

/**
 * C[m, n] (+)= A[m, k] B[k, n] with B consecutive along k, as dot products; A consecutive along k too. Four columns
 * at a time pass all rows while they are in the first-level cache, so B comes from memory once. Strides in bytes.
 */
export function dotColumns(
  a: usize,
  aRow: usize,
  b: usize,
  bColumn: usize,
  c: usize,
  cRow: usize,
  m: i32,
  n: i32,
  k: i32,
  accumulate: bool,
): void {
  let j = 0;
  for (; j + 4 <= n; j += 4, b += 4 * bColumn, c += 16) {
    for (let i = 0; i < m; i++) dotFour(a + <usize>i * aRow, b, bColumn, c + <usize>i * cRow, k, accumulate);
  }
  for (; j < n; j++, b += bColumn, c += 4) {
    for (let i = 0; i < m; i++) {
      const at = c + <usize>i * cRow;
      const sum = dotOne(a + <usize>i * aRow, b, k);
      store<f32>(at, accumulate ? load<f32>(at) + sum : sum);
    }
  }
}
