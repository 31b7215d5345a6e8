export const HASH_START = 0x811c9dc5;
export const HASH_FACTOR = 0x01000193;

/** Copies lie many in one piece of memory, which is asked for once. They are let go in the order in which they were made. */
const SLAB = 16_384;
let slab = new Int32Array(0);
let used = SLAB;

/** A list of integers with a hash of them, to look things up by. It keeps its room when it is begun anew. */
export class Tape {
  words = new Int32Array(4096);
  length = 0;
  hash = HASH_START;

  /** Begins anew behind the first `length` integers, whose hash is `hash`. */
  restart(length = 0, hash = HASH_START): void {
    this.length = length;
    this.hash = hash;
  }

  put(value: number): void {
    if (this.length === this.words.length) this.grow();
    this.words[this.length++] = value;
    this.hash = Math.imul(this.hash ^ value, HASH_FACTOR);
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

  equals(words: Int32Array): boolean {
    const { length } = this;
    if (words.length !== length) return false;
    for (let i = 0; i < length; i++) if (words[i] !== this.words[i]) return false;
    return true;
  }
}
