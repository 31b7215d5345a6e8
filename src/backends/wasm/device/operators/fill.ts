import { OK } from './status';
import { pointerAt, unitBound, wordAt, wordsOf } from './parameters';
import { fillRun } from './copy';

// A unit is this many elements.
const BLOCK: i32 = 1024;

/** Elements that are all the same. Pointers: output. Words: units (blocks of 1024 elements), elements, value (bits). */
export function fill(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const count = wordAt(words, 1);
  const first = unitBound(wordAt(words, 0), tile, tiles) * BLOCK;
  const last = min(count, unitBound(wordAt(words, 0), tile + 1, tiles) * BLOCK);
  if (last > first) fillRun(pointerAt(params, 0) + ((<usize>first) << 2), wordAt(words, 2), last - first);
  return OK;
}

/**
 * start + i step, in double precision. Pointers: output. Words: units (blocks of 1024 elements), elements, whether they
 * are integers, start (two words, a double), step (two words).
 */
export function range(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = wordsOf(params);
  const count = wordAt(words, 1);
  const integers = wordAt(words, 2) != 0;
  const start = load<f64>(words, 12);
  const step = load<f64>(words, 20);
  const last = min(count, unitBound(wordAt(words, 0), tile + 1, tiles) * BLOCK);
  for (let i = unitBound(wordAt(words, 0), tile, tiles) * BLOCK; i < last; i++) {
    const at = pointerAt(params, 0) + ((<usize>i) << 2);
    const value = start + <f64>i * step;
    if (integers) store<i32>(at, <i32>(<i64>value));
    else store<f32>(at, <f32>value);
  }
  return OK;
}
