// Register blocks of the matrix product: R rows of C by 8 columns.
//
// V8 has 15 vector registers for us: 12 sums of 4 floats, two loads of B and one splat of A fill them, so 6 rows
// is the most. Four values of k a turn, row pointers with constant offsets: of the variants that were measured
// (1, 2, 4, 8 a turn; A interleaved or by rows) this one is the fastest, 45 GFLOP/s on one core where A
// interleaved gives 38.

// @ts-ignore: decorator
@inline
function madd(sum: v128, b: v128, a: v128): v128 {
  return f32x4.add(sum, f32x4.mul(b, a));
}

/**
 * C[R, 8] = A[R, k] B[k, 8], or += with `accumulate`. `aRow`, `bStep`, `cRow`: bytes from row to row; columns are
 * consecutive in all three. `R` is a constant where this is inlined, so what it rules out is not compiled. `k` is a
 * multiple of 4: a loop for the rest in the same function takes registers from this one and a quarter of its speed.
 */
// @ts-ignore: decorator
@inline
function block(R: i32, a0: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, k: i32, accumulate: bool): void {
  let a1 = a0 + aRow;
  let a2 = a1 + aRow;
  let a3 = a2 + aRow;
  let a4 = a3 + aRow;
  let a5 = a4 + aRow;
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
  let c50 = zero,
    c51 = zero;
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
    if (R > 5) {
      at += cRow;
      c50 = v128.load(at);
      c51 = v128.load(at, 16);
    }
  }
  const end = a0 + ((<usize>k) << 2);
  while (a0 < end) {
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
      s = v128.load_splat<f32>(a4);
      c40 = madd(c40, x, s);
      c41 = madd(c41, y, s);
    }
    if (R > 5) {
      s = v128.load_splat<f32>(a5);
      c50 = madd(c50, x, s);
      c51 = madd(c51, y, s);
    }
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
      s = v128.load_splat<f32>(a4, 4);
      c40 = madd(c40, x, s);
      c41 = madd(c41, y, s);
    }
    if (R > 5) {
      s = v128.load_splat<f32>(a5, 4);
      c50 = madd(c50, x, s);
      c51 = madd(c51, y, s);
    }
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
      s = v128.load_splat<f32>(a4, 8);
      c40 = madd(c40, x, s);
      c41 = madd(c41, y, s);
    }
    if (R > 5) {
      s = v128.load_splat<f32>(a5, 8);
      c50 = madd(c50, x, s);
      c51 = madd(c51, y, s);
    }
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
      s = v128.load_splat<f32>(a4, 12);
      c40 = madd(c40, x, s);
      c41 = madd(c41, y, s);
    }
    if (R > 5) {
      s = v128.load_splat<f32>(a5, 12);
      c50 = madd(c50, x, s);
      c51 = madd(c51, y, s);
    }
    a0 += 16;
    if (R > 1) a1 += 16;
    if (R > 2) a2 += 16;
    if (R > 3) a3 += 16;
    if (R > 4) a4 += 16;
    if (R > 5) a5 += 16;
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
  if (R > 5) {
    c += cRow;
    v128.store(c, c50);
    v128.store(c, c51, 16);
  }
}

function block1(a: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, k: i32, accumulate: bool): void {
  block(1, a, aRow, b, bStep, c, cRow, k, accumulate);
}

function block2(a: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, k: i32, accumulate: bool): void {
  block(2, a, aRow, b, bStep, c, cRow, k, accumulate);
}

function block3(a: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, k: i32, accumulate: bool): void {
  block(3, a, aRow, b, bStep, c, cRow, k, accumulate);
}

function block4(a: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, k: i32, accumulate: bool): void {
  block(4, a, aRow, b, bStep, c, cRow, k, accumulate);
}

function block5(a: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, k: i32, accumulate: bool): void {
  block(5, a, aRow, b, bStep, c, cRow, k, accumulate);
}

function block6(a: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, k: i32, accumulate: bool): void {
  block(6, a, aRow, b, bStep, c, cRow, k, accumulate);
}

/** C[rows, 8] += A[rows, k] B[k, 8] for the last k of 1 to 3. */
function blockRest(rows: i32, a: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, k: i32): void {
  for (let i = 0; i < k; i++, a += 4, b += bStep) {
    const x = v128.load(b);
    const y = v128.load(b, 16);
    let from = a;
    let to = c;
    for (let r = 0; r < rows; r++, from += aRow, to += cRow) {
      const s = v128.load_splat<f32>(from);
      v128.store(to, madd(v128.load(to), x, s));
      v128.store(to, madd(v128.load(to, 16), y, s), 16);
    }
  }
}

function blockOf(rows: i32, a: usize, aRow: usize, b: usize, bStep: usize, c: usize, cRow: usize, depth: i32, accumulate: bool): void {
  const k = depth & ~3;
  switch (rows) {
    case 1:
      block1(a, aRow, b, bStep, c, cRow, k, accumulate);
      break;
    case 2:
      block2(a, aRow, b, bStep, c, cRow, k, accumulate);
      break;
    case 3:
      block3(a, aRow, b, bStep, c, cRow, k, accumulate);
      break;
    case 4:
      block4(a, aRow, b, bStep, c, cRow, k, accumulate);
      break;
    case 5:
      block5(a, aRow, b, bStep, c, cRow, k, accumulate);
      break;
    default:
      block6(a, aRow, b, bStep, c, cRow, k, accumulate);
  }
  if (k < depth) blockRest(rows, a + ((<usize>k) << 2), aRow, b + <usize>k * bStep, bStep, c, cRow, depth - k);
}

/**
 * C[m, 8] (+)= A[m, k] B[k, 8] for any m, in blocks of equal height as nearly as may be (13 rows: 5, 4, 4).
 * Only the first `columns` columns of C are touched; where that is fewer than 8 they pass through `spare`, 192 bytes.
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
  const blocks = (m + 5) / 6;
  let r = 0;
  for (let i = 0; i < blocks; i++) {
    const next = (m * (i + 1)) / blocks;
    const rows = next - r;
    if (columns == 8) {
      blockOf(rows, a, aRow, b, bStep, c, cRow, k, accumulate);
    } else {
      for (let j = 0; j < rows && accumulate; j++) {
        for (let x = 0; x < columns; x++)
          store<f32>(spare + ((<usize>(j * 8 + x)) << 2), load<f32>(c + <usize>j * cRow + ((<usize>x) << 2)));
      }
      blockOf(rows, a, aRow, b, bStep, spare, 32, k, accumulate);
      for (let j = 0; j < rows; j++) {
        for (let x = 0; x < columns; x++)
          store<f32>(c + <usize>j * cRow + ((<usize>x) << 2), load<f32>(spare + ((<usize>(j * 8 + x)) << 2)));
      }
    }
    a += <usize>rows * aRow;
    c += <usize>rows * cRow;
    r = next;
  }
}
