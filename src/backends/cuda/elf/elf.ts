import { GpuosError } from '../../../errors.ts';

/**
 * A reader of ELF64 files (System V Application Binary Interface, "Object Files"): header, sections, symbols and
 * relocations, little-endian. It knows nothing of GPUs but the section types that hold no bytes.
 *
 * The file may be damaged or hostile. Three rules keep that harmless:
 *  - every offset is checked against the file before it is read, and every size before anything is allocated by it;
 *  - sections do not overlap each other or the headers, so reading each of them once is linear in the file's size;
 *  - links are followed for one step and have to lead to a section of the right type, so nothing can go in circles.
 *
 * What breaks a rule throws GPUOS_BAD_CUBIN.
 */

/** Larger files are refused unread. An operator's cubin has a few KiB. */
export const MAX_FILE_BYTES = 16 * 1024 * 1024;
const MAX_SECTIONS = 8192;
const MAX_NAME_BYTES = 1024;

export const EHDR_BYTES = 64;
export const SHDR_BYTES = 64;
export const PHDR_BYTES = 56;
export const SYMBOL_BYTES = 24;

/** Section types of the ELF specification (sh_type). */
export const SHT = { null: 0, progbits: 1, symtab: 2, strtab: 3, rela: 4, note: 7, nobits: 8, rel: 9 } as const;

/**
 * Section types that occupy no bytes of the file: SHT_NOBITS, and `.nv.global`, `.nv.local`, `.nv.shared` (observed: their offset plus size
 * may lie past the end); and 0x70000008, which linked files for sm_100 have for a second `.nv.global.init` (observed: at the first one's place).
 */
const WITHOUT_BYTES: ReadonlySet<number> = new Set([SHT.nobits, 0x70000007, 0x70000008, 0x70000009, 0x7000000a, 0x70000015]);

/** Section flags of the ELF specification (sh_flags): it has memory at run time; it holds instructions. */
export const SHF = { alloc: 2, execinstr: 4 } as const;

export interface Section {
  readonly index: number;
  readonly name: string;
  readonly type: number;
  /** The low 32 bits of sh_flags. */
  readonly flags: number;
  readonly offset: number;
  readonly size: number;
  readonly link: number;
  readonly info: number;
  readonly alignment: number;
  readonly entrySize: number;
}

export interface ElfSymbol {
  readonly index: number;
  /** Where its name begins in the string table. */
  readonly nameAt: number;
  /** STT_*: 2 is a function, 3 a section. */
  readonly type: number;
  readonly other: number;
  /** The section it lies in; 0 if it is defined elsewhere. */
  readonly section: number;
  readonly value: number;
  readonly size: number;
}

export interface Relocation {
  /** Where in its section. */
  readonly offset: number;
  readonly type: number;
  readonly symbol: number;
  /** Undefined for SHT_REL, where the addend lies in the place that is relocated. */
  readonly addend: number | undefined;
}

/** Throws GPUOS_BAD_CUBIN: the file is not what it says it is. */
export function damaged(what: string): never {
  throw new GpuosError('GPUOS_BAD_CUBIN', `The file is damaged or not a cubin: ${what}.`);
}

/** A name from a file, fit to be printed: quoted, without control characters, cut to 80 characters. */
export function printable(name: string): string {
  const plain = name.replace(/[^\x20-\x7e]/g, '?');
  return `"${plain.length > 80 ? `${plain.slice(0, 77)}...` : plain}"`;
}

export class ElfFile {
  readonly type: number;
  readonly machine: number;
  readonly flags: number;
  readonly osAbi: number;
  readonly abiVersion: number;
  readonly sections: readonly Section[];
  readonly symbolCount: number;
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  readonly #symbols: Section;
  readonly #strings: Section;

  constructor(bytes: Uint8Array) {
    if (bytes.length < EHDR_BYTES) damaged(`it has ${bytes.length} bytes, fewer than an ELF header`);
    if (bytes.length > MAX_FILE_BYTES) damaged(`it has ${bytes.length} bytes, more than ${MAX_FILE_BYTES}`);
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    const view = this.#view;
    if (view.getUint32(0) !== 0x7f454c46) damaged('it does not begin with the ELF magic');
    if (bytes[4] !== 2) damaged('it is not a 64-bit ELF file');
    if (bytes[5] !== 1) damaged('it is not little-endian');
    if (bytes[6] !== 1) damaged(`its ELF version is ${bytes[6]}`);
    this.osAbi = bytes[7] as number;
    this.abiVersion = bytes[8] as number;
    this.type = view.getUint16(16, true);
    this.machine = view.getUint16(18, true);
    this.flags = view.getUint32(48, true);
    this.sections = this.#readSections();
    const tables = this.sections.filter((section) => section.type === SHT.symtab);
    if (tables.length !== 1) damaged(`it has ${tables.length} symbol tables`);
    this.#symbols = tables[0] as Section;
    if (this.#symbols.entrySize !== SYMBOL_BYTES || this.#symbols.size % SYMBOL_BYTES !== 0)
      damaged('its symbol table has entries of another size');
    this.#strings = this.#stringTable(this.#symbols.link);
    this.symbolCount = this.#symbols.size / SYMBOL_BYTES;
  }

  /** The bytes of a section: a view, not a copy. */
  contents(section: Section): Uint8Array {
    return WITHOUT_BYTES.has(section.type) ? new Uint8Array(0) : this.#bytes.subarray(section.offset, section.offset + section.size);
  }

  symbol(index: number): ElfSymbol {
    if (index >= this.symbolCount) damaged(`symbol ${index} of ${this.symbolCount} is used`);
    const at = this.#symbols.offset + index * SYMBOL_BYTES;
    return {
      index,
      nameAt: this.#view.getUint32(at, true),
      type: this.#view.getUint8(at + 4) & 15,
      other: this.#view.getUint8(at + 5),
      section: this.#view.getUint16(at + 6, true),
      value: this.#u64(at + 8, 'a symbol value'),
      size: this.#u64(at + 16, 'a symbol size'),
    };
  }

  symbolName(symbol: ElfSymbol): string {
    return this.#text(this.#strings, symbol.nameAt);
  }

  /** The symbols of type `type` with this name. Compares in place: names of other symbols are not decoded. */
  *symbolsNamed(name: string, type: number): Generator<ElfSymbol> {
    const wanted = new TextEncoder().encode(`${name}\0`);
    const end = this.#strings.offset + this.#strings.size;
    for (let i = 0; i < this.symbolCount; i++) {
      const at = this.#symbols.offset + i * SYMBOL_BYTES;
      if ((this.#view.getUint8(at + 4) & 15) !== type) continue;
      const start = this.#strings.offset + this.#view.getUint32(at, true);
      if (start + wanted.length > end) continue;
      let same = 0;
      while (same < wanted.length && this.#bytes[start + same] === wanted[same]) same++;
      if (same === wanted.length) yield this.symbol(i);
    }
  }

  /** The relocations of a section of type SHT_REL or SHT_RELA. */
  *relocations(section: Section): Generator<Relocation> {
    const bytes = section.type === SHT.rela ? 24 : 16;
    if (section.entrySize !== bytes || section.size % bytes !== 0) damaged(`${printable(section.name)} has entries of another size`);
    for (let at = section.offset; at < section.offset + section.size; at += bytes) {
      let addend: number | undefined;
      if (section.type === SHT.rela) {
        const exact = this.#view.getBigInt64(at + 16, true);
        addend = Number(exact);
        if (!Number.isSafeInteger(addend)) damaged(`${printable(section.name)} has an addend of ${exact}`);
      }
      yield {
        offset: this.#u64(at, 'the place of a relocation'),
        type: this.#view.getUint32(at + 8, true),
        symbol: this.#view.getUint32(at + 12, true),
        addend,
      };
    }
  }

  #u64(at: number, what: string): number {
    const value = this.#view.getBigUint64(at, true);
    if (value > Number.MAX_SAFE_INTEGER) damaged(`${what} is ${value}`);
    return Number(value);
  }

  #text(table: Section, start: number): string {
    if (start >= table.size) damaged('a name lies outside of its string table');
    const from = table.offset + start;
    const limit = Math.min(table.offset + table.size, from + MAX_NAME_BYTES);
    let end = from;
    while (end < limit && this.#bytes[end] !== 0) end++;
    if (end === limit) damaged(`a name does not end within its string table, or is longer than ${MAX_NAME_BYTES} bytes`);
    return String.fromCharCode(...this.#bytes.subarray(from, end));
  }

  #stringTable(index: number, sections: readonly Section[] = this.sections): Section {
    const table = sections[index];
    if (table?.type !== SHT.strtab) damaged(`section ${index} is used as a string table and is none`);
    return table;
  }

  #readSections(): Section[] {
    const view = this.#view;
    const length = this.#bytes.length;
    const programs = {
      at: this.#u64(32, 'the place of the program headers'),
      entry: view.getUint16(54, true),
      count: view.getUint16(56, true),
    };
    const table = {
      at: this.#u64(40, 'the place of the section headers'),
      entry: view.getUint16(58, true),
      count: view.getUint16(60, true),
    };
    if (view.getUint16(52, true) !== EHDR_BYTES) damaged('its header has another size');
    if (programs.count > 0 && programs.entry !== PHDR_BYTES) damaged('its program headers have another size');
    if (table.entry !== SHDR_BYTES) damaged('its section headers have another size');
    if (table.count === 0 || table.count > MAX_SECTIONS) damaged(`it has ${table.count} sections`);
    const ranges = [{ name: 'the header', from: 0, to: EHDR_BYTES }];
    const claim = (name: string, from: number, size: number) => {
      if (from > length || size > length - from) damaged(`${name} reaches past its end`);
      if (size > 0) ranges.push({ name, from, to: from + size });
    };
    claim('the table of sections', table.at, table.count * SHDR_BYTES);
    if (programs.count > 0) claim('the table of program headers', programs.at, programs.count * PHDR_BYTES);

    const unnamed: (Omit<Section, 'name'> & { nameAt: number })[] = [];
    for (let index = 0; index < table.count; index++) {
      const at = table.at + index * SHDR_BYTES;
      const section = {
        index,
        nameAt: view.getUint32(at, true),
        type: view.getUint32(at + 4, true),
        flags: view.getUint32(at + 8, true),
        offset: this.#u64(at + 24, 'the place of a section'),
        size: this.#u64(at + 32, 'the size of a section'),
        link: view.getUint32(at + 40, true),
        info: view.getUint32(at + 44, true),
        alignment: this.#u64(at + 48, 'the alignment of a section'),
        entrySize: this.#u64(at + 56, 'the size of an entry'),
      };
      if (section.type !== SHT.null && !WITHOUT_BYTES.has(section.type)) claim(`section ${index}`, section.offset, section.size);
      unnamed.push(section);
    }
    ranges.sort((a, b) => a.from - b.from);
    for (let i = 1; i < ranges.length; i++) {
      const [before, after] = [ranges[i - 1]!, ranges[i]!];
      if (after.from < before.to) damaged(`${before.name} and ${after.name} overlap`);
    }
    const names = this.#stringTable(view.getUint16(62, true), unnamed as unknown as Section[]);
    return unnamed.map(({ nameAt, ...section }) => ({ ...section, name: this.#text(names, nameAt) }));
  }
}
