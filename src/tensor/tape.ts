const HASH_START = 0x811c9dc5;
const HASH_FACTOR = 0x01000193;

const SLAB = 16_384;

/** Memory for many copies. They are let go about in the order in which they were made, and then it is used again. */
class Slab {
  readonly words: Int32Array;
  used = 0;
  /** Copies in it. */
  count = 0;

  constructor(words: number) {
    this.words = new Int32Array(words);
  }
}

/** Slabs without copies; no more than a few, as what is kept is limited. */
const free: Slab[] = [];
const MOST_FREE = 8;
let current = new Slab(SLAB);

/** Integers of a tape that are kept. */
export class Copy {
  readonly #slab: Slab;
  readonly at: number;
  readonly length: number;

  constructor(slab: Slab, length: number) {
    this.#slab = slab;
    this.at = slab.used;
    this.length = length;
    slab.used += length;
    slab.count++;
  }

  get words(): Int32Array {
    return this.#slab.words;
  }

  /** Lets go of them, once: they are not looked at again. */
  release(): void {
    const slab = this.#slab;
    if (--slab.count > 0 || slab.words.length !== SLAB) return;
    slab.used = 0;
    if (slab !== current && free.length < MOST_FREE) free.push(slab);
  }
}

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
  copy(): Copy {
    const { length } = this;
    if (length > SLAB / 4) return this.#copyInto(new Slab(length));
    if (current.used + length > SLAB) current = free.pop() ?? new Slab(SLAB);
    return this.#copyInto(current);
  }

  #copyInto(slab: Slab): Copy {
    const { words } = this;
    const copy = new Copy(slab, this.length);
    const target = slab.words;
    const { at, length } = copy;
    for (let i = 0; i < length; i++) target[at + i] = words[i] as number;
    return copy;
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

  equals(copy: Copy): boolean {
    const { words, length } = this;
    if (copy.length !== length) return false;
    const { words: others, at } = copy;
    // Four at a time, as it is most often equal to its end.
    let i = 0;
    for (; i + 4 <= length; i += 4) {
      const k = at + i;
      const a = ((words[i] as number) ^ (others[k] as number)) | ((words[i + 1] as number) ^ (others[k + 1] as number));
      const b = ((words[i + 2] as number) ^ (others[k + 2] as number)) | ((words[i + 3] as number) ^ (others[k + 3] as number));
      if ((a | b) !== 0) return false;
    }
    for (; i < length; i++) if (others[at + i] !== words[i]) return false;
    return true;
  }
}
