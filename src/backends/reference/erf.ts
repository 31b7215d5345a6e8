/**
 * The error function in double precision. No polynomial fitted to float32: the reference has to be better than what
 * it judges.
 */

const TWO_OVER_SQRT_PI = 1.1283791670955126;

/** erf(x) = 2/sqrt(pi) e^(-x^2) sum of 2^n x^(2n+1) / (1 3 5 .. (2n+1)) (Abramowitz and Stegun 7.1.6): all terms have one sign. */
function series(x: number): number {
  let term = x;
  let sum = x;
  for (let n = 1; Math.abs(term) > Math.abs(sum) * 1e-17 && n < 200; n++) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return TWO_OVER_SQRT_PI * Math.exp(-x * x) * sum;
}

/** erfc(x) for x >= 2 by the continued fraction e^(-x^2)/sqrt(pi) 1/(x + (1/2)/(x + 1/(x + (3/2)/(x + ..)))) (7.1.14), from the tail. */
function continuedFraction(x: number): number {
  let tail = x;
  for (let n = 120; n > 0; n--) tail = x + n / 2 / tail;
  return (Math.exp(-x * x) * TWO_OVER_SQRT_PI) / 2 / tail;
}

/** 1 - erf(x) without loss where erf(x) is near 1. */
export function erfc(x: number): number {
  if (Number.isNaN(x)) return x;
  if (x > 28) return 0;
  if (x < -28) return 2;
  if (x >= 2) return continuedFraction(x);
  return x <= -2 ? 2 - continuedFraction(-x) : 1 - series(x);
}

/** 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x. */
export function erf(x: number): number {
  if (Number.isNaN(x) || x === 0) return x;
  if (Math.abs(x) < 2) return series(x);
  return x > 0 ? 1 - erfc(x) : erfc(-x) - 1;
}
