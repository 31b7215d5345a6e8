/**
 * Sequence numbers of tasks are 32-bit and wrap. Two of them compare by the sign of their difference
 * modulo 2^32, which is right while they lie less than 2^31 apart; a ring is far shorter than that.
 */

/** `a - b` as a signed distance. */
export const distance = (a: number, b: number): number => (a - b) | 0;

/** Whether `a` comes before `b`. */
export const isBefore = (a: number, b: number): boolean => ((a - b) | 0) < 0;

/** Whether `a` is `b` or comes after it. */
export const isAtLeast = (a: number, b: number): boolean => ((a - b) | 0) >= 0;

/** `sequence + steps`, wrapped. */
export const advance = (sequence: number, steps: number): number => (sequence + steps) >>> 0;
