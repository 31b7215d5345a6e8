export const HASH_START = 0x811c9dc5;
export const HASH_FACTOR = 0x01000193;

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

  copy(): Int32Array {
    return this.words.slice(0, this.length);
  }

  equals(words: Int32Array): boolean {
    const { length } = this;
    if (words.length !== length) return false;
    for (let i = 0; i < length; i++) if (words[i] !== this.words[i]) return false;
    return true;
  }
}
