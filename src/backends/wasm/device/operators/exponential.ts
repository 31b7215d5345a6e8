// e^x for four floats of softmax: x is at most 0, or NaN. Reduction x = n ln 2 + r with |r| <= ln 2 / 2 in two parts,
// then the minimax polynomial of the Cephes library (expf): relative error below 2e-7. Below the smallest normal
// number the result is 0.

/** e^x, x <= 0 or NaN (-Infinity gives 0, NaN gives NaN). */
// @ts-ignore: decorator
@inline
export function exponential(x: v128): v128 {
  const n = f32x4.nearest(f32x4.mul(x, f32x4.splat(1.44269504088896341)));
  let r = f32x4.sub(x, f32x4.mul(n, f32x4.splat(0.693359375)));
  r = f32x4.add(r, f32x4.mul(n, f32x4.splat(2.1219444e-4)));
  let p = f32x4.add(f32x4.mul(f32x4.splat(1.98756915e-4), r), f32x4.splat(1.3981999507e-3));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(8.3334519073e-3));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(4.1665795894e-2));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(1.6666665459e-1));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(5.0000001201e-1));
  p = f32x4.add(f32x4.add(f32x4.mul(p, f32x4.mul(r, r)), r), f32x4.splat(1));
  const power = i32x4.shl(i32x4.add(i32x4.trunc_sat_f32x4_s(n), i32x4.splat(127)), 23);
  return v128.andnot(f32x4.mul(p, power), f32x4.lt(x, f32x4.splat(-87.33)));
}
