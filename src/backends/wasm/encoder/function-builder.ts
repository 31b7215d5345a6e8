import { ByteWriter, f32Bits, u32Size } from './byte-writer.ts';
import type { FunctionDefinition, ModuleBuilder } from './module-builder.ts';
import { EMPTY, I32, SIMD, V128, type ValueType } from './opcodes.ts';

/**
 * Writes the body of one function. Methods that write an instruction return the builder, so that a sequence
 * reads in the order in which the stack machine runs it: `f.get(x).get(y).simd(SIMD.f32x4Add).set(z)`.
 *
 * Constants of 128 bits are set once, in a prologue before the body, and read as locals from then on: in a
 * loop the engine then keeps them in registers or reads them from the stack, where an inline `v128.const`
 * is built anew at each use.
 */
export class FunctionBuilder {
  readonly module: ModuleBuilder;
  readonly #body = new ByteWriter(16384);
  readonly #prologue = new ByteWriter(512);
  #params = 0;
  #types = new Uint8Array(256);
  #locals = 0;
  readonly #freeVectors: number[] = [];
  readonly #splats = new Map<number, number>();
  readonly #doubleSplats = new Map<number, number>();
  #lanes = -1;

  constructor(module: ModuleBuilder) {
    this.module = module;
  }

  /** Starts a function; locals 0 to params-1 are its parameters. */
  begin(params: readonly ValueType[]): void {
    this.#body.reset();
    this.#prologue.reset();
    this.#params = params.length;
    this.#locals = 0;
    this.#freeVectors.length = 0;
    this.#splats.clear();
    this.#doubleSplats.clear();
    this.#lanes = -1;
  }

  /** Ends the function and appends its entry (size, locals, code) to the code section. */
  finish(section: ByteWriter): void {
    this.#body.u8(0x0b);
    let runs = 0;
    let size = 0;
    for (let i = 0, start = 0; i < this.#locals; i++) {
      if (i + 1 < this.#locals && this.#types[i + 1] === this.#types[i]) continue;
      runs++;
      size += u32Size(i + 1 - start) + 1;
      start = i + 1;
    }
    section.u32(u32Size(runs) + size + this.#prologue.length + this.#body.length);
    section.u32(runs);
    for (let i = 0, start = 0; i < this.#locals; i++) {
      if (i + 1 < this.#locals && this.#types[i + 1] === this.#types[i]) continue;
      section.u32(i + 1 - start);
      section.u8(this.#types[i] as number);
      start = i + 1;
    }
    section.append(this.#prologue);
    section.append(this.#body);
  }

  /** A new local. */
  local(type: ValueType): number {
    if (this.#locals === this.#types.length) {
      const grown = new Uint8Array(this.#types.length * 2);
      grown.set(this.#types);
      this.#types = grown;
    }
    this.#types[this.#locals] = type;
    return this.#params + this.#locals++;
  }

  i32Local(): number {
    return this.local(I32);
  }

  /** A vector local that may have been used before and released; few locals keep the engine's compiler fast. */
  vector(): number {
    return this.#freeVectors.pop() ?? this.local(V128);
  }

  release(vector: number): void {
    this.#freeVectors.push(vector);
  }

  get(local: number): this {
    this.#body.u8(0x20);
    this.#body.u32(local);
    return this;
  }

  set(local: number): this {
    this.#body.u8(0x21);
    this.#body.u32(local);
    return this;
  }

  tee(local: number): this {
    this.#body.u8(0x22);
    this.#body.u32(local);
    return this;
  }

  /** An instruction of OP. */
  op(opcode: number): this {
    this.#body.u8(opcode);
    return this;
  }

  /** An instruction of SIMD without an immediate. */
  simd(opcode: number): this {
    this.#body.u8(0xfd);
    this.#body.u32(opcode);
    return this;
  }

  /** A lane instruction (extract, replace). */
  lane(opcode: number, lane: number): this {
    this.simd(opcode);
    this.#body.u8(lane);
    return this;
  }

  i32(value: number): this {
    this.#body.u8(0x41);
    this.#body.i32(value);
    return this;
  }

  i64(value: bigint): this {
    this.#body.u8(0x42);
    this.#body.i64(value);
    return this;
  }

  f64(value: number): this {
    this.#body.u8(0x44);
    this.#body.f64(value);
    return this;
  }

  /** Four lanes of a float32. */
  splat(value: number): this {
    return this.splatBits(f32Bits(value));
  }

  /** Four lanes of 32 bits. */
  splatBits(bits: number): this {
    return this.get(this.splatLocal(bits));
  }

  /** The local that holds four lanes of 32 bits. */
  splatLocal(bits: number): number {
    const key = bits | 0;
    let local = this.#splats.get(key);
    if (local === undefined) {
      local = this.local(V128);
      this.#splats.set(key, local);
      this.#prologue.u8(0x41);
      this.#prologue.i32(key);
      this.#prologue.u8(0xfd);
      this.#prologue.u32(SIMD.i32x4Splat);
      this.#setInPrologue(local);
    }
    return local;
  }

  /** Two lanes of a float64. */
  splat64(value: number): this {
    // A Map takes -0 for 0; no code has a constant NaN, so that key stands for -0.
    const key = Object.is(value, -0) ? Number.NaN : value;
    let local = this.#doubleSplats.get(key);
    if (local === undefined) {
      local = this.local(V128);
      this.#doubleSplats.set(key, local);
      this.#prologue.u8(0x44);
      this.#prologue.f64(value);
      this.#prologue.u8(0xfd);
      this.#prologue.u32(SIMD.f64x2Splat);
      this.#setInPrologue(local);
    }
    return this.get(local);
  }

  /** The vector (0, 1, 2, 3) of int32. */
  laneNumbers(): this {
    if (this.#lanes < 0) {
      this.#lanes = this.local(V128);
      this.#prologue.u8(0xfd);
      this.#prologue.u32(SIMD.const);
      for (let lane = 0; lane < 4; lane++) this.#prologue.word(lane);
      this.#setInPrologue(this.#lanes);
    }
    return this.get(this.#lanes);
  }

  /** Takes four of the eight 32-bit lanes of the two vectors on the stack. */
  shuffle(a: number, b: number, c: number, d: number): this {
    this.simd(SIMD.shuffle);
    for (const lane of [a, b, c, d]) for (let byte = 0; byte < 4; byte++) this.#body.u8(lane * 4 + byte);
    return this;
  }

  /** i32.load of the word at the address on the stack plus `offset`. */
  i32Load(offset: number): this {
    return this.#memory(0x28, offset);
  }

  /** i32.load16_u */
  i32Load16(offset: number): this {
    this.#body.u8(0x2f);
    this.#body.u8(1);
    this.#body.u32(offset);
    return this;
  }

  i32Store(offset: number): this {
    return this.#memory(0x36, offset);
  }

  /** A SIMD load or store (of a whole vector, of one splat or zero-extended element), aligned to 2^alignment bytes. */
  simdMemory(opcode: number, offset: number, alignment = 2): this {
    this.simd(opcode);
    this.#body.u8(alignment);
    this.#body.u32(offset);
    return this;
  }

  laneMemory(opcode: number, offset: number, lane: number, alignment = 2): this {
    this.simdMemory(opcode, offset, alignment);
    this.#body.u8(lane);
    return this;
  }

  block(): this {
    return this.#structured(0x02, EMPTY);
  }

  loop(): this {
    return this.#structured(0x03, EMPTY);
  }

  if(result: ValueType | typeof EMPTY = EMPTY): this {
    return this.#structured(0x04, result);
  }

  br(depth: number): this {
    this.#body.u8(0x0c);
    this.#body.u32(depth);
    return this;
  }

  brIf(depth: number): this {
    this.#body.u8(0x0d);
    this.#body.u32(depth);
    return this;
  }

  /** Calls a function of the module; it is added to the module when it is first called. */
  call(definition: FunctionDefinition): this {
    this.#body.u8(0x10);
    this.#body.u32(this.module.functionIndex(definition));
    return this;
  }

  #structured(opcode: number, type: number): this {
    this.#body.u8(opcode);
    this.#body.u8(type);
    return this;
  }

  /** Words of 4 bytes: the alignment hint is 2^2. */
  #memory(opcode: number, offset: number): this {
    this.#body.u8(opcode);
    this.#body.u8(2);
    this.#body.u32(offset);
    return this;
  }

  #setInPrologue(local: number): void {
    this.#prologue.u8(0x21);
    this.#prologue.u32(local);
  }
}
