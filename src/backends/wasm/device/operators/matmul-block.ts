import { copyRun } from './copy';

// Register blocks of the matrix product: up to 5 rows of C by 8 columns.
//
// V8 has 15 vector registers for us: 10 sums of 4 floats, two loads of B, a splat of A and a product fill 14.
// But in a basic block V8 orders all loads before the sums, which nothing in the block waits for. In an unrolled
// loop more vectors are then alive than there are registers, and spilling them halves the speed. So where rows are
// more than 3, each pair of them ends its basic block with an exit that is never taken. An exit leads to where all
// sums are stored, and so they have to be computed before it. It costs a compare. Between two k the exit is a real one:
// it ends a k that is no multiple of 4.
//
// Measured on one core of a Zen 5 (EPYC), which does two products and two sums of 4 floats a cycle, 56 GFLOP/s, with
// A and B in the first-level cache: 5, 4 and 3 rows 50 to 53, 2 rows 45, 1 row 28. Without the exits 4 rows reach 32
// and 6 rows 29; 4 rows with one k a turn, which needs no exits, 45. An exit for each row and two k a turn are as
// fast on a core of its own, but a tenth slower next to another hyperthread, where each instruction counts.

/** The most rows of a block. */
export const BLOCK_ROWS: i32 = 5;
/** Scratch of `multiplyPanel`: one block of C. */
export const BLOCK_BYTES: usize = <usize>BLOCK_ROWS << 5;

// @ts-ignore: decorator
@inline
function madd(sum: v128, b: v128, a: v128): v128 {
  return f32x4.add(sum, f32x4.mul(b, a));
}

/**
 * False, as addresses are multiples of 4, but V8 cannot know. Each place has an `i` of its own: a condition that has been
 * tested before is not tested again.
 */
// @ts-ignore: decorator
@inline
function never(address: usize, i: usize): bool {
  return address == 4 * i + 1;
}

/**
 * C[R, 8] = A[R, k] B[k, 8], or += with `accumulate`; k is at least 1. `aRow`, `bStep`, `cRow`: bytes from row to
 * row; columns are consecutive in all three. `aLast`: address of A[0, k - 1], a parameter because V8 would compute it
 * from k in each turn. `R` is a constant where this is inlined, so what it rules out is not compiled.
 */
// @ts-ignore: decorator
@inline
function block(R: i32, a0: usize, aLast: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, accumulate: bool): void {
  let a1 = a0 + aRow;
  let a2 = a1 + aRow;
  let a3 = a2 + aRow;
  let a4 = a3 + aRow;
  const zero = f32x4.splat(0);
  let x = zero,
    y = zero,
    s = zero;
  let c00 = zero,
    c01 = zero;
  let c10 = zero,
    c11 = zero;
  let c20 = zero,
    c21 = zero;
  let c30 = zero,
    c31 = zero;
  let c40 = zero,
    c41 = zero;
  if (accumulate) {
    let at = c;
    c00 = v128.load(at);
    c01 = v128.load(at, 16);
    if (R > 1) {
      at += cRow;
      c10 = v128.load(at);
      c11 = v128.load(at, 16);
    }
    if (R > 2) {
      at += cRow;
      c20 = v128.load(at);
      c21 = v128.load(at, 16);
    }
    if (R > 3) {
      at += cRow;
      c30 = v128.load(at);
      c31 = v128.load(at, 16);
    }
    if (R > 4) {
      at += cRow;
      c40 = v128.load(at);
      c41 = v128.load(at, 16);
    }
  }
  while (true) {
    x = v128.load(b);
    y = v128.load(b, 16);
    b += bStep;
    s = v128.load_splat<f32>(a0);
    c00 = madd(c00, x, s);
    c01 = madd(c01, y, s);
    if (R > 1) {
      s = v128.load_splat<f32>(a1);
      c10 = madd(c10, x, s);
      c11 = madd(c11, y, s);
    }
    if (R > 2) {
      if (R > 3 && never(b, 0)) break;
      s = v128.load_splat<f32>(a2);
      c20 = madd(c20, x, s);
      c21 = madd(c21, y, s);
    }
    if (R > 3) {
      s = v128.load_splat<f32>(a3);
      c30 = madd(c30, x, s);
      c31 = madd(c31, y, s);
    }
    if (R > 4) {
      if (R > 3 && never(b, 1)) break;
      s = v128.load_splat<f32>(a4);
      c40 = madd(c40, x, s);
      c41 = madd(c41, y, s);
    }
    if (a0 == aLast) break;
    x = v128.load(b);
    y = v128.load(b, 16);
    b += bStep;
    s = v128.load_splat<f32>(a0, 4);
    c00 = madd(c00, x, s);
    c01 = madd(c01, y, s);
    if (R > 1) {
      s = v128.load_splat<f32>(a1, 4);
      c10 = madd(c10, x, s);
      c11 = madd(c11, y, s);
    }
    if (R > 2) {
      if (R > 3 && never(b, 2)) break;
      s = v128.load_splat<f32>(a2, 4);
      c20 = madd(c20, x, s);
      c21 = madd(c21, y, s);
    }
    if (R > 3) {
      s = v128.load_splat<f32>(a3, 4);
      c30 = madd(c30, x, s);
      c31 = madd(c31, y, s);
    }
    if (R > 4) {
      if (R > 3 && never(b, 3)) break;
      s = v128.load_splat<f32>(a4, 4);
      c40 = madd(c40, x, s);
      c41 = madd(c41, y, s);
    }
    if (a0 == aLast - 4) break;
    x = v128.load(b);
    y = v128.load(b, 16);
    b += bStep;
    s = v128.load_splat<f32>(a0, 8);
    c00 = madd(c00, x, s);
    c01 = madd(c01, y, s);
    if (R > 1) {
      s = v128.load_splat<f32>(a1, 8);
      c10 = madd(c10, x, s);
      c11 = madd(c11, y, s);
    }
    if (R > 2) {
      if (R > 3 && never(b, 4)) break;
      s = v128.load_splat<f32>(a2, 8);
      c20 = madd(c20, x, s);
      c21 = madd(c21, y, s);
    }
    if (R > 3) {
      s = v128.load_splat<f32>(a3, 8);
      c30 = madd(c30, x, s);
      c31 = madd(c31, y, s);
    }
    if (R > 4) {
      if (R > 3 && never(b, 5)) break;
      s = v128.load_splat<f32>(a4, 8);
      c40 = madd(c40, x, s);
      c41 = madd(c41, y, s);
    }
    if (a0 == aLast - 8) break;
    x = v128.load(b);
    y = v128.load(b, 16);
    b += bStep;
    s = v128.load_splat<f32>(a0, 12);
    c00 = madd(c00, x, s);
    c01 = madd(c01, y, s);
    if (R > 1) {
      s = v128.load_splat<f32>(a1, 12);
      c10 = madd(c10, x, s);
      c11 = madd(c11, y, s);
    }
    if (R > 2) {
      if (R > 3 && never(b, 6)) break;
      s = v128.load_splat<f32>(a2, 12);
      c20 = madd(c20, x, s);
      c21 = madd(c21, y, s);
    }
    if (R > 3) {
      s = v128.load_splat<f32>(a3, 12);
      c30 = madd(c30, x, s);
      c31 = madd(c31, y, s);
    }
    if (R > 4) {
      if (R > 3 && never(b, 7)) break;
      s = v128.load_splat<f32>(a4, 12);
      c40 = madd(c40, x, s);
      c41 = madd(c41, y, s);
    }
    a0 += 16;
    if (R > 1) a1 += 16;
    if (R > 2) a2 += 16;
    if (R > 3) a3 += 16;
    if (R > 4) a4 += 16;
    if (a0 > aLast) break;
  }
  v128.store(c, c00);
  v128.store(c, c01, 16);
  if (R > 1) {
    c += cRow;
    v128.store(c, c10);
    v128.store(c, c11, 16);
  }
  if (R > 2) {
    c += cRow;
    v128.store(c, c20);
    v128.store(c, c21, 16);
  }
  if (R > 3) {
    c += cRow;
    v128.store(c, c30);
    v128.store(c, c31, 16);
  }
  if (R > 4) {
    c += cRow;
    v128.store(c, c40);
    v128.store(c, c41, 16);
  }
}

function block1(a: usize, aLast: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, accumulate: bool): void {
  block(1, a, aLast, aRow, b, bStep, c, cRow, accumulate);
}

function block2(a: usize, aLast: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, accumulate: bool): void {
  block(2, a, aLast, aRow, b, bStep, c, cRow, accumulate);
}

function block3(a: usize, aLast: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, accumulate: bool): void {
  block(3, a, aLast, aRow, b, bStep, c, cRow, accumulate);
}

function block4(a: usize, aLast: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, accumulate: bool): void {
  block(4, a, aLast, aRow, b, bStep, c, cRow, accumulate);
}

function block5(a: usize, aLast: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, accumulate: bool): void {
  block(5, a, aLast, aRow, b, bStep, c, cRow, accumulate);
}

function blockOf(rows: i32, a: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, k: i32, accumulate: bool): void {
  const aLast = a + ((<usize>(k - 1)) << 2);
  switch (rows) {
    case 1:
      block1(a, aLast, aRow, b, bStep, c, cRow, accumulate);
      break;
    case 2:
      block2(a, aLast, aRow, b, bStep, c, cRow, accumulate);
      break;
    case 3:
      block3(a, aLast, aRow, b, bStep, c, cRow, accumulate);
      break;
    case 4:
      block4(a, aLast, aRow, b, bStep, c, cRow, accumulate);
      break;
    default:
      block5(a, aLast, aRow, b, bStep, c, cRow, accumulate);
  }
}

/**
 * C[m, 8] (+)= A[m, k] B[k, 8] for any m and k of at least 1, in blocks of equal height as nearly as may be (13 rows:
 * 4, 4, 5). Only the first `columns` columns of C are touched; where that is fewer than 8 they pass through `spare`.
 */
export function multiplyPanel(
  a: usize,
  aRow: usize,
  b: usize,
  bStep: usize,
  c: usize,
  cRow: usize,
  m: i32,
  columns: i32,
  k: i32,
  accumulate: bool,
  spare: usize,
): void {
  const blocks = (m + BLOCK_ROWS - 1) / BLOCK_ROWS;
  const bytes = (<usize>columns) << 2;
  let r = 0;
  for (let i = 0; i < blocks; i++) {
    const next = (m * (i + 1)) / blocks;
    const rows = next - r;
    if (columns == 8) {
      blockOf(rows, a, aRow, b, bStep, c, cRow, k, accumulate);
    } else {
      if (accumulate) for (let j = 0; j < rows; j++) copyRun(spare + ((<usize>j) << 5), c + <usize>j * cRow, bytes);
      blockOf(rows, a, aRow, b, bStep, spare, 32, k, accumulate);
      for (let j = 0; j < rows; j++) copyRun(c + <usize>j * cRow, spare + ((<usize>j) << 5), bytes);
    }
    a += <usize>rows * aRow;
    c += <usize>rows * cRow;
    r = next;
  }
}
