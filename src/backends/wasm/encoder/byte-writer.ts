/** A growing run of bytes with the number formats of WebAssembly. It is kept between modules, so that encoding allocates nothing once warm. */
export class ByteWriter {
  bytes: Uint8Array;
  length = 0;

  constructor(capacity = 4096) {
    this.bytes = new Uint8Array(capacity);
  }

  reset(): void {
    this.length = 0;
  }

  /** Makes room for `count` more bytes. */
  reserve(count: number): void {
    const needed = this.length + count;
    if (needed <= this.bytes.length) return;
    const grown = new Uint8Array(Math.max(needed, this.bytes.length * 2));
    grown.set(this.bytes.subarray(0, this.length));
    this.bytes = grown;
  }

  u8(value: number): void {
    if (this.length === this.bytes.length) this.reserve(1);
    this.bytes[this.length++] = value;
  }

  /** Unsigned LEB128 of a 32-bit value. */
  u32(value: number): void {
    if (this.length + 5 > this.bytes.length) this.reserve(5);
    let rest = value >>> 0;
    while (rest >= 0x80) {
      this.bytes[this.length++] = (rest & 0x7f) | 0x80;
      rest >>>= 7;
    }
    this.bytes[this.length++] = rest;
  }

  /** Signed LEB128 of a 32-bit value. */
  i32(value: number): void {
    if (this.length + 5 > this.bytes.length) this.reserve(5);
    let rest = value | 0;
    while (rest < -64 || rest > 63) {
      this.bytes[this.length++] = (rest & 0x7f) | 0x80;
      rest >>= 7;
    }
    this.bytes[this.length++] = rest & 0x7f;
  }

  /** Signed LEB128 of a 64-bit value. */
  i64(value: bigint): void {
    this.reserve(10);
    let rest = BigInt.asIntN(64, value);
    while (rest < -64n || rest > 63n) {
      this.bytes[this.length++] = Number(rest & 0x7fn) | 0x80;
      rest >>= 7n;
    }
    this.bytes[this.length++] = Number(rest & 0x7fn);
  }

  /** Four bytes, little endian. */
  word(bits: number): void {
    if (this.length + 4 > this.bytes.length) this.reserve(4);
    this.bytes[this.length++] = bits & 0xff;
    this.bytes[this.length++] = (bits >>> 8) & 0xff;
    this.bytes[this.length++] = (bits >>> 16) & 0xff;
    this.bytes[this.length++] = bits >>> 24;
  }

  f32(value: number): void {
    this.word(f32Bits(value));
  }

  f64(value: number): void {
    scratchF64[0] = value;
    this.word(scratchU32[0] as number);
    this.word(scratchU32[1] as number);
  }

  /** A name: its length, then its characters (ASCII). */
  name(text: string): void {
    this.u32(text.length);
    for (let i = 0; i < text.length; i++) this.u8(text.charCodeAt(i));
  }

  append(other: ByteWriter): void {
    this.reserve(other.length);
    // A loop beats set(subarray()) for the short runs that most functions are.
    if (other.length < 64) {
      for (let i = 0; i < other.length; i++) this.bytes[this.length + i] = other.bytes[i] as number;
    } else {
      this.bytes.set(other.bytes.subarray(0, other.length), this.length);
    }
    this.length += other.length;
  }
}

const scratchF64 = new Float64Array(1);
const scratchF32 = new Float32Array(scratchF64.buffer);
const scratchU32 = new Uint32Array(scratchF64.buffer);

/** The bits of a number rounded to float32. */
export function f32Bits(value: number): number {
  scratchF32[0] = value;
  return scratchU32[0] as number;
}

/** Bytes that the unsigned LEB128 form of a value takes. */
export function u32Size(value: number): number {
  return value < 0x80 ? 1 : value < 0x4000 ? 2 : value < 0x200000 ? 3 : value < 0x10000000 ? 4 : 5;
}
