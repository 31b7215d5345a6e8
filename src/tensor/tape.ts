const HASH_START = 0x811c9dc5;
const HASH_FACTOR = 0x01000193;

/** Copies lie many in one piece of memory, which is asked for once. They are let go in the order in which they were made. */
const SLAB = 16_384;
let slab = new Int32Array(0);
let used = SLAB;

/** A list of integers, to look things up by. It keeps its room when it is begun anew. */
export class Tape {
  words = new Int32Array(4096);
  length = 0;

  /** Begins anew behind the first `length` integers. */
  restart(length = 0): void {
    this.length = length;
  }

  put(value: number): void {
    if (this.length === this.words.length) this.grow();
    this.words[this.length++] = value;
  }

  grow(): void {
    const larger = new Int32Array(this.words.length * 2);
    larger.set(this.words);
    this.words = larger;
  }

  /** The integers, to be kept. */
  copy(): Int32Array {
    const { length } = this;
    if (length > SLAB / 4) return this.words.slice(0, length);
    if (used + length > SLAB) {
      slab = new Int32Array(SLAB);
      used = 0;
    }
    const kept = slab.subarray(used, used + length);
    kept.set(this.words.subarray(0, length));
    used += length;
    return kept;
  }

  /** The same for lists that are equal. Of every fourth integer by itself: a product has not to wait for the one before. */
  hash(): number {
    const { words, length } = this;
    let [a, b, c, d] = [HASH_START, HASH_START, HASH_START, HASH_START];
    let i = 0;
    for (; i + 4 <= length; i += 4) {
      a = Math.imul(a ^ (words[i] as number), HASH_FACTOR);
      b = Math.imul(b ^ (words[i + 1] as number), HASH_FACTOR);
      c = Math.imul(c ^ (words[i + 2] as number), HASH_FACTOR);
      d = Math.imul(d ^ (words[i + 3] as number), HASH_FACTOR);
    }
    for (; i < length; i++) a = Math.imul(a ^ (words[i] as number), HASH_FACTOR);
    for (const part of [b, c, d, length]) a = Math.imul(a ^ part, HASH_FACTOR);
    return a;
  }

  equals(others: Int32Array): boolean {
    const { words, length } = this;
    if (others.length !== length) return false;
    // Four at a time, as it is most often equal to its end.
    let i = 0;
    for (; i + 4 <= length; i += 4) {
      const a = ((words[i] as number) ^ (others[i] as number)) | ((words[i + 1] as number) ^ (others[i + 1] as number));
      const b = ((words[i + 2] as number) ^ (others[i + 2] as number)) | ((words[i + 3] as number) ^ (others[i + 3] as number));
      if ((a | b) !== 0) return false;
    }
    for (; i < length; i++) if (others[i] !== words[i]) return false;
    return true;
  }
}
