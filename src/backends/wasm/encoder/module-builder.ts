import { ByteWriter, u32Size } from './byte-writer.ts';
import { FunctionBuilder } from './function-builder.ts';
import type { ValueType } from './opcodes.ts';

/** A function of a module: its type, and what writes its body. */
export interface FunctionDefinition {
  readonly params: readonly ValueType[];
  readonly results: readonly ValueType[];
  readonly emit: (f: FunctionBuilder) => void;
}

/** Pages that the imported memory's type allows at most; the memory that is given may allow fewer. */
const MAX_PAGES = 65536;

/**
 * Encodes a module that imports the shared memory `env.memory` and exports one function `f`
 * (WebAssembly core specification 2.0, section 5.5). Functions that are called are added as they are
 * met, so a module holds only what it uses. One builder encodes one module at a time; it keeps its
 * buffers, so encoding allocates little more than the bytes that it returns.
 */
export class ModuleBuilder {
  readonly #function = new FunctionBuilder(this);
  readonly #code = new ByteWriter(32768);
  readonly #out = new ByteWriter(32768);
  readonly #definitions: FunctionDefinition[] = [];
  readonly #indices = new Map<FunctionDefinition, number>();
  readonly #types: FunctionDefinition[] = [];
  readonly #typeOf: number[] = [];

  /** Encodes the module with the given function as export `f`. */
  encode(exported: FunctionDefinition): Uint8Array {
    this.#code.reset();
    this.#definitions.length = 0;
    this.#indices.clear();
    this.#types.length = 0;
    this.#typeOf.length = 0;
    this.functionIndex(exported);
    // Grows while it runs: a body may call functions that have not been met before.
    for (let i = 0; i < this.#definitions.length; i++) {
      const definition = this.#definitions[i] as FunctionDefinition;
      this.#function.begin(definition.params);
      definition.emit(this.#function);
      this.#function.finish(this.#code);
    }
    return this.#assemble();
  }

  functionIndex(definition: FunctionDefinition): number {
    const known = this.#indices.get(definition);
    if (known !== undefined) return known;
    const index = this.#definitions.length;
    this.#definitions.push(definition);
    this.#indices.set(definition, index);
    let type = this.#types.findIndex((other) => sameTypes(other.params, definition.params) && sameTypes(other.results, definition.results));
    if (type < 0) type = this.#types.push(definition) - 1;
    this.#typeOf.push(type);
    return index;
  }

  #assemble(): Uint8Array {
    const out = this.#out;
    out.reset();
    out.word(0x6d736100);
    out.word(1);

    let size = u32Size(this.#types.length);
    for (const type of this.#types) size += 3 + type.params.length + type.results.length;
    section(out, 1, size);
    out.u32(this.#types.length);
    for (const type of this.#types) {
      out.u8(0x60);
      out.u8(type.params.length);
      for (const param of type.params) out.u8(param);
      out.u8(type.results.length);
      for (const result of type.results) out.u8(result);
    }

    section(out, 2, 1 + 4 + 7 + 3 + u32Size(MAX_PAGES));
    out.u8(1);
    out.name('env');
    out.name('memory');
    out.u8(2); // a memory,
    out.u8(3); // shared and with a maximum
    out.u8(1);
    out.u32(MAX_PAGES);

    const count = this.#definitions.length;
    size = u32Size(count);
    for (const type of this.#typeOf) size += u32Size(type);
    section(out, 3, size);
    out.u32(count);
    for (const type of this.#typeOf) out.u32(type);

    section(out, 7, 5);
    out.u8(1);
    out.name('f');
    out.u8(0); // a function,
    out.u8(0); // the first one

    section(out, 10, u32Size(count) + this.#code.length);
    out.u32(count);
    out.append(this.#code);
    return out.bytes.slice(0, out.length);
  }
}

function section(out: ByteWriter, id: number, size: number): void {
  out.u8(id);
  out.u32(size);
}

function sameTypes(a: readonly ValueType[], b: readonly ValueType[]): boolean {
  return a.length === b.length && a.every((type, i) => type === b[i]);
}
