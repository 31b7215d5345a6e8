import { damaged, ElfFile, printable, type ElfSymbol, type Section, SHT } from './elf.ts';

/**
 * What a cubin adds to ELF. NVIDIA publishes no specification: each meaning below says where it is known from.
 * "LLVM" is llvm/BinaryFormat/ELF.h; "observed" is what nvcc 13.0 wrote for sources whose properties we chose
 * (the cubins of test/fixtures/cubin/ and of the tests); attribute names are those that the toolkit's own tools print.
 */

/** e_machine of NVIDIA CUDA (LLVM: EM_CUDA). */
const EM_CUDA = 190;

/** Types of the sections that belong to CUDA (observed, by their names). */
export const SHT_CUDA = {
  info: 0x70000000,
  callgraph: 0x70000001,
  prototype: 0x70000002,
  global: 0x70000007,
  globalInit: 0x70000008,
  local: 0x70000009,
  shared: 0x7000000a,
  sharedReserved: 0x70000015,
  /** `.nv.constant0`; bank n is this plus n. */
  constant0: 0x70000064,
  constant17: 0x70000075,
  compat: 0x70000086,
} as const;

/** st_other of a symbol: a kernel, which is launched and never called (LLVM: STO_CUDA_ENTRY). */
export const STO_CUDA_ENTRY = 0x10;

/** Bits of st_other that say which memory a variable lies in, and their value for shared memory (observed: 0x20 global, 0x40 shared, 0x80 constant). */
export const STO_CUDA_SPACE = 0xe0;
export const STO_CUDA_SHARED = 0x40;

/** st_info type of a function (ELF specification). */
export const STT_FUNC = 2;

/** Attributes of the `.nv.info` sections that this reader takes a value from. */
export const EIATTR = {
  frameSize: 0x11,
  minStackSize: 0x12,
  crsStackSize: 0x1e,
  maxStackSize: 0x23,
  registerCount: 0x2f,
  numBarriers: 0x4c,
} as const;

/** One attribute, as it stands in the file. */
export interface Attribute {
  readonly id: number;
  /** The symbol it is about; undefined for attributes in a function's own section. */
  readonly symbol: number | undefined;
  /** The 32-bit words of its value, or its one value of up to 16 bits. */
  readonly words: readonly number[];
}

/** A function of the cubin that has code in a section of its own. */
export interface CubinFunction {
  readonly name: string;
  readonly symbol: ElfSymbol;
  readonly section: Section;
  readonly code: Uint8Array;
  /** Kernels are launched, device functions are called. */
  readonly kernel: boolean;
  /** EIATTR_REGCOUNT; undefined if the file does not say. */
  readonly registers: number | undefined;
  /** EIATTR_FRAME_SIZE: bytes of stack a thread that this function itself takes, its callees not counted. Undefined if the file does not say. */
  readonly frameBytes: number | undefined;
  /** EIATTR_NUM_BARRIERS, or the count in the section's flags (ABI 7); 0 if neither is there. */
  readonly barriers: number;
  readonly attributes: readonly Attribute[];
}

/** Attributes that name a symbol in their first word (observed). They stand in `.nv.info`, for all functions. */
const BY_SYMBOL: ReadonlySet<number> = new Set([EIATTR.registerCount, EIATTR.frameSize, EIATTR.minStackSize, EIATTR.maxStackSize]);

/** Formats of an attribute: none, 8 bits and 16 bits in the place of the length; or a length and as many bytes (observed, EIFMT_NVAL to EIFMT_SVAL). */
const EIFMT = { none: 1, byte: 2, half: 3, sized: 4 } as const;

/** Of all functions that are looked at; nvcc writes about ten for each. */
const MAX_ATTRIBUTES = 65_536;

export class Cubin {
  readonly elf: ElfFile;
  /** 7 as CUDA 12 and earlier write it, 8 as CUDA 13 does (LLVM: ELFABIVERSION_CUDA_V1, _V2). Undefined for any other: then `sm` is unknown too. */
  readonly abi: 7 | 8 | undefined;
  /**
   * The architecture, as 90 for sm_90. ABI 7 has it in the lowest byte of e_flags (LLVM: EF_CUDA_SM), ABI 8 in the
   * second (LLVM: EF_CUDA_SM_MASK; observed for sm_75 to sm_121). Suffixes (sm_90a) are not in e_flags.
   */
  readonly sm: number | undefined;
  readonly #info: readonly Attribute[];
  #attributesRead = 0;

  /** Throws GPUOS_BAD_CUBIN for a file that is damaged or no cubin. */
  constructor(bytes: Uint8Array) {
    this.elf = new ElfFile(bytes);
    if (this.elf.machine !== EM_CUDA) damaged(`it is for the machine ${this.elf.machine}, not for CUDA`);
    const { osAbi, abiVersion, flags } = this.elf;
    // The operating system's field changed together with the version (LLVM: ELFOSABI_CUDA 51, ELFOSABI_CUDA_V2 65).
    if (osAbi === 51 && abiVersion === 7) [this.abi, this.sm] = [7, flags & 0xff];
    else if (osAbi === 65 && abiVersion === 8) [this.abi, this.sm] = [8, (flags >>> 8) & 0xff];
    this.#info = this.elf.sections.filter((s) => s.type === SHT_CUDA.info && s.info === 0).flatMap((s) => this.#attributes(s));
  }

  /** The symbols of functions of that name with code in this file, at most two of them: a sound file has one, or none. */
  functions(name: string): ElfSymbol[] {
    const found: ElfSymbol[] = [];
    for (const symbol of this.elf.symbolsNamed(name, STT_FUNC)) {
      if (symbol.section !== 0) found.push(symbol);
      if (found.length === 2) break;
    }
    return found;
  }

  /** The function that a symbol stands for. */
  function(symbol: ElfSymbol): CubinFunction {
    const section = this.elf.sections[symbol.section];
    const name = this.elf.symbolName(symbol);
    if (section?.type !== SHT.progbits) damaged(`the function ${printable(name)} lies in no section of code`);
    const own = this.elf.sections.filter((s) => s.type === SHT_CUDA.info && s.info === section.index).flatMap((s) => this.#attributes(s));
    const attributes = [...this.#info.filter((a) => a.symbol === symbol.index || a.symbol === undefined), ...own];
    // The largest, should an attribute stand there twice.
    const value = (id: number) =>
      attributes.filter((a) => a.id === id).reduce<number | undefined>((most, a) => max(most, a.words.at(-1)), undefined);
    // ABI 7 kept the count of barriers in bits 20 to 26 of sh_flags, and of registers in the top byte of sh_info (public notes on the format; not observed by us).
    const old = this.abi === 7;
    return {
      name,
      symbol,
      section,
      code: this.elf.contents(section),
      kernel: (symbol.other & STO_CUDA_ENTRY) !== 0,
      registers: max(value(EIATTR.registerCount), old && section.info >>> 24 > 0 ? section.info >>> 24 : undefined),
      frameBytes: value(EIATTR.frameSize),
      barriers: Math.max(value(EIATTR.numBarriers) ?? 0, old ? (section.flags >>> 20) & 0x7f : 0),
      attributes,
    };
  }

  /** The attributes of one `.nv.info` section: a format byte, an id byte, 16 bits of value or length, the value (observed). */
  #attributes(section: Section): Attribute[] {
    const bytes = this.elf.contents(section);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    const found: Attribute[] = [];
    let at = 0;
    while (at < bytes.length) {
      if (bytes.length - at < 4) damaged(`${printable(section.name)} ends within an attribute`);
      const [format, id, half] = [bytes[at] as number, bytes[at + 1] as number, view.getUint16(at + 2, true)];
      at += 4;
      const words: number[] = [];
      if (format === EIFMT.byte) words.push(half & 0xff);
      else if (format === EIFMT.half) words.push(half);
      else if (format === EIFMT.sized) {
        if (half > bytes.length - at) damaged(`${printable(section.name)} ends within an attribute`);
        for (let word = 0; word + 4 <= half; word += 4) words.push(view.getUint32(at + word, true));
        at += half;
      } else if (format !== EIFMT.none) damaged(`${printable(section.name)} has an attribute of the unknown format ${format}`);
      const bySymbol = section.info === 0 && BY_SYMBOL.has(id);
      if (bySymbol && (format !== EIFMT.sized || words.length !== 2))
        damaged(`${printable(section.name)} has attribute ${id} in another form`);
      if (++this.#attributesRead > MAX_ATTRIBUTES) damaged(`it has more than ${MAX_ATTRIBUTES} attributes`);
      found.push({ id, symbol: bySymbol ? words[0] : undefined, words });
    }
    return found;
  }
}

function max(a: number | undefined, b: number | undefined): number | undefined {
  return a === undefined || b === undefined ? (a ?? b) : Math.max(a, b);
}
