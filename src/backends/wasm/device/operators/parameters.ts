// How an operator reads its parameter block: pointers of 8 bytes (the low word counts), then 32-bit words.

/** Pointer `i` of the block. */
// @ts-ignore: decorator
@inline
export function pointerAt(params: usize, i: i32): usize {
  return <usize>load<u32>(params + ((<usize>i) << 3));
}

/** Address of word 0 for a kernel of at most four pointers. */
// @ts-ignore: decorator
@inline
export function wordsOf(params: usize): usize {
  return params + 32;
}

/** Address of word 0 for a kernel of `pointers` pointers. */
// @ts-ignore: decorator
@inline
export function wordsAfter(params: usize, pointers: i32): usize {
  return params + ((<usize>max(4, pointers)) << 3);
}

// @ts-ignore: decorator
@inline
export function wordAt(words: usize, i: i32): i32 {
  return load<i32>(words + ((<usize>i) << 2));
}

/** A stride word is in elements; addresses want bytes. */
// @ts-ignore: decorator
@inline
export function strideAt(words: usize, i: i32): usize {
  return (<usize>load<i32>(words + ((<usize>i) << 2))) << 2;
}

/** First unit of a tile; `unitBound(tile + 1)` is one past its last. The product needs 64 bits. */
// @ts-ignore: decorator
@inline
export function unitBound(units: i32, tile: i32, tiles: i32): i32 {
  return <i32>((<i64>units * <i64>tile) / <i64>tiles);
}

/**
 * Byte offset of the element that has row-major `index` in the space `dims[rank]`, under `strides[rank]`
 * (words, in elements; may be 0 or negative: the sum wraps, which is what an address needs).
 */
export function offsetOf(index: i32, rank: i32, dims: usize, strides: usize): usize {
  let offset: i32 = 0;
  let rest = <u32>index;
  for (let d = rank - 1; d >= 0; d--) {
    const size = <u32>wordAt(dims, d);
    const quotient = rest / size;
    offset += <i32>(rest - quotient * size) * wordAt(strides, d);
    rest = quotient;
  }
  return (<usize>offset) << 2;
}
