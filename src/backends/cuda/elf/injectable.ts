import { GpuosError } from '../../../errors.ts';
import { Cubin, type CubinFunction, SHT_CUDA, STO_CUDA_SHARED, STO_CUDA_SPACE, STT_FUNC } from './cubin.ts';
import { printable, type Relocation, type Section, SHF, SHT } from './elf.ts';
import { INSTRUCTION_BYTES, scanCode } from './instructions.ts';

/**
 * Decides whether a device function can be injected directly: its bytes copied to a code arena while the resident
 * kernel runs, with no driver to load, link or relocate them. That works for code that needs nothing but itself, the
 * registers, stack and barriers that the kernel was launched with, and the convention of calls by pointer.
 *
 * Two outcomes that are no success, kept apart:
 *  - a file that is damaged, or no cubin, throws GPUOS_BAD_CUBIN. Nothing can be done with it;
 *  - a sound file that asks for more than direct injection gives is refused: `{ ok: false, reasons }`, all reasons
 *    at once. The operator can still be linked by the documented way (`relaunch`).
 *
 * It judges what a compiler wrote. It does not judge what a function does: code that is accepted here can still write
 * to any address. Whom the code comes from is for `security/` to know.
 */

/** What the resident kernel offers to the functions that it calls. */
export interface InjectionBudget {
  /** The device's architecture, as 90 for sm_90. A cubin of another one is refused, older ones of the same family too. */
  readonly sm: number;
  /** Registers a thread that the resident kernel was linked with; 128 unless said otherwise. */
  readonly registers?: number;
  /** Stack bytes a thread that it reserves for a called operator; none unless said otherwise. */
  readonly stackBytes?: number;
  /** Barriers of the block that it was linked with; 1 unless said otherwise. */
  readonly barriers?: number;
  /** The largest image that is accepted; 1 MiB unless said otherwise. */
  readonly codeBytes?: number;
  /**
   * Whether functions of the same cubin that the operator calls (nvcc's own helpers for `/` and `sqrtf` among them) are
   * placed with it, by relocations that `placeCode` applies. Off unless asked for: direct injection was measured only
   * for code without any relocation.
   */
  readonly calls?: boolean;
}

/** What can be the matter. A test demands that each is provoked. */
export const REFUSAL_CHECKS = [
  'abi',
  'architecture',
  'file-type',
  'section',
  'missing-function',
  'kernel',
  'code-shape',
  'registers',
  'stack',
  'barriers',
  'attribute',
  'global-data',
  'shared-memory',
  'local-memory',
  'constant-bank',
  'relocation',
  'external-call',
  'call',
  'recursion',
  'indirect-branch',
  'exit',
  'return',
  'branch',
  'instruction',
] as const;
export type RefusalCheck = (typeof REFUSAL_CHECKS)[number];

export interface Refusal {
  readonly check: RefusalCheck;
  /** A sentence for people. */
  readonly message: string;
}

/** Where the address of code has to be written into the image: `image + target` in the way of `kind`. */
export interface Patch {
  /** The instruction's byte offset in the image. */
  readonly at: number;
  readonly kind: 'low-32' | 'high-32' | 'call-47' | 'call-55';
  /** Byte offset in the image. */
  readonly target: number;
}

/** A device function that can be placed: see `placeCode`. */
export interface InjectableFunction {
  readonly name: string;
  readonly sm: number;
  readonly abi: 7 | 8;
  /** The code: a copy of its own. The function begins at 0; functions that it calls follow. */
  readonly code: Uint8Array;
  /** The image has to begin at a multiple of this (sh_addralign, at least 128). */
  readonly alignmentBytes: number;
  /** The largest register count of the functions in the image. */
  readonly registers: number;
  /** Stack bytes a thread along the deepest chain of calls. */
  readonly stackBytes: number;
  /** Barriers of the block that it uses. */
  readonly barriers: number;
  /** Empty for code that is position-independent as it stands. */
  readonly patches: readonly Patch[];
  /** The names of the functions in the image, the function itself first. */
  readonly functions: readonly string[];
}

export type InjectionResult =
  | { readonly ok: true; readonly function: InjectableFunction }
  | { readonly ok: false; readonly reasons: readonly Refusal[] };

const DEFAULT_REGISTERS = 128;
const DEFAULT_BARRIERS = 1;
const DEFAULT_CODE_BYTES = 1024 * 1024;
const CODE_ALIGNMENT_BYTES = 128;
const MAX_FUNCTIONS = 64;
const MAX_REASONS = 32;
/** As many instructions as the largest code that is accepted unless said otherwise. */
const MAX_RELOCATIONS = DEFAULT_CODE_BYTES / INSTRUCTION_BYTES;

/** e_type of an object that is still to be linked (ELF specification: ET_REL). nvcc -rdc=true and NVRTC's relocatable cubins are of it. */
const ET_REL = 1;

/**
 * Relocations that can be applied without a driver, by their numbers in the toolkit's own list of names: both halves of
 * an address in the immediate of an instruction, and the target of a CALL.ABS before and from sm_90 on.
 */
const R_CUDA_ABS32_LO_32 = 56;
const R_CUDA_ABS32_HI_32 = 57;
const R_CUDA_ABS47_34 = 58;
const R_CUDA_ABS55_16_34 = 75;
const PATCHES: ReadonlyMap<number, Patch['kind']> = new Map([
  [R_CUDA_ABS32_LO_32, 'low-32'],
  [R_CUDA_ABS32_HI_32, 'high-32'],
  [R_CUDA_ABS47_34, 'call-47'],
  [R_CUDA_ABS55_16_34, 'call-55'],
] as const);

/**
 * Attributes of `.nv.info` that change nothing for a function that is called (observed in the cubins of functions that
 * do): counts that are read elsewhere, notes for the debugger and for tools, versions, and workarounds of the compiler.
 * Names as the toolkit prints them.
 */
const KNOWN_ATTRIBUTES: ReadonlySet<number> = new Set([
  0x01, // PAD
  0x04, // CTAIDZ_USED
  0x11, // FRAME_SIZE
  0x12, // MIN_STACK_SIZE
  0x1b, // MAXREG_COUNT
  0x1d, // S2RCTAID_INSTR_OFFSETS
  0x1e, // CRS_STACK_SIZE
  0x23, // MAX_STACK_SIZE
  0x25, // LD_CACHEMOD_INSTR_OFFSETS
  0x27, // ATOM_SYS_INSTR_OFFSETS
  0x28, // COOP_GROUP_INSTR_OFFSETS
  0x29, // COOP_GROUP_MASK_REGIDS
  0x2a, // SW1850030_WAR
  0x2b, // WMMA_USED
  0x2f, // REGCOUNT
  0x30, // SW2393858_WAR
  0x31, // INT_WARP_WIDE_INSTR_OFFSETS
  0x35, // SW2861232_WAR
  0x36, // SW_WAR
  0x37, // CUDA_API_VERSION
  0x39, // MBARRIER_INSTR_OFFSETS
  0x4a, // VRC_CTA_INIT_COUNT
  0x4c, // NUM_BARRIERS
  0x50, // SPARSE_MMA_MASK
  0x5f, // MERCURY_ISA_VERSION
]);

/** Attributes that by themselves say why not. */
const REFUSED_ATTRIBUTES: ReadonlyMap<number, readonly [RefusalCheck, string]> = new Map([
  [0x03, ['indirect-branch', 'it has a jump table (EIATTR_JUMPTABLE_RELOCS)']],
  [0x0f, ['external-call', 'it calls a function of the driver or of another file (EIATTR_EXTERNS)']],
  [0x1c, ['exit', "it ends the resident kernel's threads (EIATTR_EXIT_INSTR_OFFSETS)"]],
  [0x32, ['shared-memory', 'it has scratch space in shared memory (EIATTR_SHARED_SCRATCH)']],
  [0x34, ['indirect-branch', 'it branches by a table (EIATTR_INDIRECT_BRANCH_TARGETS)']],
  [0x41, ['shared-memory', 'it uses reserved shared memory (EIATTR_RESERVED_SMEM_USED)']],
  [0x42, ['shared-memory', 'it uses reserved shared memory (EIATTR_RESERVED_SMEM_0_SIZE)']],
  [0x46, ['external-call', 'it calls the driver (EIATTR_SYSCALL_OFFSETS)']],
] as const);

/** Decides about the function `name` of a cubin. Throws GPUOS_BAD_CUBIN for a file that is damaged or no cubin. */
export function readInjectable(bytes: Uint8Array, name: string, budget: InjectionBudget): InjectionResult {
  const cubin = new Cubin(bytes);
  const reasons = new Reasons();
  checkFile(cubin, budget, reasons);
  if (cubin.abi === undefined || cubin.sm === undefined || cubin.elf.type !== ET_REL) return reasons.result();

  const symbols = cubin.functions(name);
  if (symbols.length !== 1) {
    reasons.add(
      'missing-function',
      `The cubin has ${symbols.length === 0 ? 'no function' : 'several functions'} named ${printable(name)}.`,
    );
    return reasons.result();
  }
  const image = new CodeImage(cubin, cubin.function(symbols[0]!), budget, reasons);
  if (reasons.any()) return reasons.result();
  return { ok: true, function: image.build(name, cubin.sm, cubin.abi) };
}

/**
 * The bytes of a function for the address at which they will lie, relocations applied. Throws GPUOS_INTERNAL for an
 * address that is not aligned.
 */
export function placeCode(fn: InjectableFunction, address: bigint): Uint8Array {
  if (address < 0n || address % BigInt(fn.alignmentBytes) !== 0n) {
    throw new GpuosError('GPUOS_INTERNAL', `The address ${address} is not a multiple of ${fn.alignmentBytes}.`);
  }
  const code = fn.code.slice();
  const view = new DataView(code.buffer);
  for (const { at, kind, target } of fn.patches) {
    const value = address + BigInt(target);
    if (kind === 'low-32') view.setUint32(at + 4, Number(value & 0xffffffffn), true);
    else if (kind === 'high-32') view.setUint32(at + 4, Number((value >> 32n) & 0xffffffffn), true);
    else {
      // Units of 4 bytes in 47 bits from bit 34 on; from sm_90 on, 8 bits more below them, in byte 2.
      const units = value >> 2n;
      if (kind === 'call-55') view.setUint8(at + 2, Number(units & 0xffn));
      const field = kind === 'call-55' ? units >> 8n : units;
      const low = view.getUint32(at + 4, true) & 3;
      const high = view.getUint32(at + 8, true) & ~0x1ffff;
      view.setUint32(at + 4, Number((field & 0x3fffffffn) << 2n) | low, true);
      view.setUint32(at + 8, Number((field >> 30n) & 0x1ffffn) | high, true);
    }
  }
  return code;
}

/** The reasons found so far: each once, and no more than a person would read. */
class Reasons {
  readonly #list: Refusal[] = [];

  add(check: RefusalCheck, message: string): void {
    if (this.#list.length < MAX_REASONS && !this.#list.some((r) => r.check === check && r.message === message))
      this.#list.push({ check, message });
  }

  any(): boolean {
    return this.#list.length > 0;
  }

  result(): InjectionResult {
    return { ok: false, reasons: this.#list };
  }
}

/** What is judged of the file as a whole. */
function checkFile(cubin: Cubin, budget: InjectionBudget, reasons: Reasons): void {
  const { elf } = cubin;
  if (cubin.abi === undefined) {
    reasons.add(
      'abi',
      `The cubin follows version ${elf.abiVersion} of the CUDA ELF ABI (system ${elf.osAbi}); versions 7 and 8 are known.`,
    );
  } else if (cubin.sm !== budget.sm) {
    reasons.add('architecture', `The cubin is for sm_${cubin.sm}, the device is sm_${budget.sm}.`);
  }
  if (elf.type !== ET_REL) {
    reasons.add(
      'file-type',
      'The cubin has been linked; functions to be injected are compiled with --relocatable-device-code=true and not linked.',
    );
    return;
  }
  for (const section of elf.sections) checkSection(section, reasons);
}

/** A cubin to be injected holds code and nothing else that has to be in the device's memory. */
function checkSection(section: Section, reasons: Reasons): void {
  const { type, size } = section;
  const name = printable(section.name);
  if (size === 0 || type === SHT.null) return;
  if (type === SHT_CUDA.global || type === SHT_CUDA.globalInit) {
    reasons.add('global-data', `The cubin has device globals: ${size} bytes in ${name}.`);
  } else if (type === SHT_CUDA.shared || type === SHT_CUDA.sharedReserved) {
    reasons.add('shared-memory', `The cubin has static shared memory: ${size} bytes in ${name}.`);
  } else if (type === SHT_CUDA.local) {
    reasons.add('local-memory', `The cubin has local memory outside of the stack: ${size} bytes in ${name}.`);
  } else if (type > SHT_CUDA.constant0 && type <= SHT_CUDA.constant17) {
    reasons.add('constant-bank', `The cubin has constants of its own: ${size} bytes in ${name}.`);
  } else if (type === SHT_CUDA.constant0) {
    // The parameters of a kernel beside the function; a function that is called has none.
  } else if (type === SHT.progbits && (section.flags & SHF.execinstr) !== 0) {
    if (!section.name.startsWith('.text.')) reasons.add('section', `The cubin has code in the section ${name}, which is of no known kind.`);
  } else if ((section.flags & SHF.alloc) !== 0) {
    reasons.add('section', `The cubin has the section ${name} of type 0x${type.toString(16)}, which needs memory and is of no known kind.`);
  }
  // What is left needs no memory on the device: symbols, relocations, notes, debugging, the call graph, descriptions.
}

interface Piece {
  readonly fn: CubinFunction;
  /** Byte offset in the image. */
  readonly offset: number;
  readonly callees: Set<Piece>;
}

/** The function and all that it calls, in one run of bytes. */
class CodeImage {
  readonly #cubin: Cubin;
  readonly #budget: InjectionBudget;
  readonly #reasons: Reasons;
  /** By the index of their section. */
  readonly #pieces = new Map<number, Piece>();
  readonly #patches: Patch[] = [];
  readonly #relocationsOf = new Map<number, Section[]>();
  #bytes = 0;
  #alignment = CODE_ALIGNMENT_BYTES;
  #stackBytes = 0;

  constructor(cubin: Cubin, root: CubinFunction, budget: InjectionBudget, reasons: Reasons) {
    this.#cubin = cubin;
    this.#budget = budget;
    this.#reasons = reasons;
    for (const section of cubin.elf.sections) {
      if (section.type !== SHT.rela && section.type !== SHT.rel) continue;
      const list = this.#relocationsOf.get(section.info);
      if (list) list.push(section);
      else this.#relocationsOf.set(section.info, [section]);
    }
    const first = this.#add(root);
    // The map grows while it is walked: each function is looked at once.
    for (const piece of this.#pieces.values()) this.#check(piece);
    const limit = budget.codeBytes ?? DEFAULT_CODE_BYTES;
    if (this.#bytes > limit) reasons.add('code-shape', `The code has ${this.#bytes} bytes; ${limit} are allowed.`);
    this.#measureStack(first);
  }

  build(name: string, sm: number, abi: 7 | 8): InjectableFunction {
    const pieces = [...this.#pieces.values()];
    const code = new Uint8Array(this.#bytes);
    for (const { fn, offset } of pieces) code.set(fn.code, offset);
    return {
      name,
      sm,
      abi,
      code,
      alignmentBytes: this.#alignment,
      registers: Math.max(...pieces.map(({ fn }) => fn.registers ?? 0)),
      stackBytes: this.#stackBytes,
      barriers: Math.max(...pieces.map(({ fn }) => fn.barriers)),
      patches: this.#patches,
      functions: pieces.map(({ fn }) => fn.name),
    };
  }

  #add(fn: CubinFunction): Piece {
    const known = this.#pieces.get(fn.section.index);
    if (known) return known;
    const alignment = Math.max(CODE_ALIGNMENT_BYTES, fn.section.alignment);
    if (!Number.isInteger(Math.log2(alignment)) || alignment > 4096) {
      this.#reasons.add('code-shape', `${printable(fn.name)} asks to be aligned to ${alignment} bytes.`);
    }
    this.#alignment = Math.max(this.#alignment, alignment);
    const offset = Math.ceil(this.#bytes / alignment) * alignment;
    this.#bytes = offset + fn.code.length;
    const piece = { fn, offset, callees: new Set<Piece>() };
    this.#pieces.set(fn.section.index, piece);
    return piece;
  }

  #check(piece: Piece): void {
    const { fn } = piece;
    const { symbol, section, code } = fn;
    const refuse = (check: RefusalCheck, what: string) => this.#reasons.add(check, `${printable(fn.name)}: ${what}.`);
    if (fn.kernel) {
      refuse('kernel', 'it is a kernel, which is launched, not called');
      return;
    }
    if ((section.flags & (SHF.alloc | SHF.execinstr)) !== (SHF.alloc | SHF.execinstr))
      refuse('code-shape', 'its section is not one of code');
    if (symbol.value !== 0 || symbol.size !== section.size) refuse('code-shape', 'it does not fill its section alone');
    if (code.length === 0 || code.length % INSTRUCTION_BYTES !== 0) {
      refuse('code-shape', `its ${code.length} bytes are not whole instructions`);
      return;
    }
    this.#checkResources(fn, refuse);
    const scan = scanCode(code, this.#cubin.sm as number);
    for (const { kind, message, at } of scan.findings)
      refuse(kind === 'dynamic-stack' ? 'stack' : kind, `${message}, at 0x${at.toString(16)}`);
    const absoluteCalls = new Set(scan.absoluteCalls);
    const relocated = new Set<number>();
    let count = 0;
    for (const list of this.#relocationsOf.get(section.index) ?? []) {
      for (const relocation of this.#cubin.elf.relocations(list)) {
        this.#relocate(piece, relocation, absoluteCalls, relocated, refuse);
        if (++count <= code.length / INSTRUCTION_BYTES && count <= MAX_RELOCATIONS) continue;
        refuse('relocation', 'it has more relocations than instructions');
        return;
      }
    }
    if (scan.absoluteCalls.some((at) => !relocated.has(at))) refuse('call', 'it calls an absolute address');
  }

  #checkResources(fn: CubinFunction, refuse: (check: RefusalCheck, what: string) => void): void {
    const registers = this.#budget.registers ?? DEFAULT_REGISTERS;
    if (fn.registers === undefined) refuse('registers', 'the file does not say how many registers it needs');
    else if (fn.registers > registers) refuse('registers', `it needs ${fn.registers} registers; the resident kernel has ${registers}`);
    if (fn.frameBytes === undefined) refuse('stack', 'the file does not say how much stack it needs');
    const barriers = this.#budget.barriers ?? DEFAULT_BARRIERS;
    if (fn.barriers > barriers) refuse('barriers', `it uses ${fn.barriers} barriers; the resident kernel has ${barriers}`);
    for (const { id, words } of fn.attributes) {
      const known = REFUSED_ATTRIBUTES.get(id);
      if (known) refuse(known[0], known[1]);
      else if (!KNOWN_ATTRIBUTES.has(id)) refuse('attribute', `it has the attribute 0x${id.toString(16)}, of which nothing is known`);
      else if (id === 0x1e && words.some((word) => word !== 0))
        refuse('stack', 'it needs a stack for its control flow (EIATTR_CRS_STACK_SIZE)');
    }
  }

  /** A relocation of a function's code: applied later, or refused. */
  #relocate(
    piece: Piece,
    relocation: Relocation,
    absoluteCalls: ReadonlySet<number>,
    relocated: Set<number>,
    refuse: (check: RefusalCheck, what: string) => void,
  ): void {
    const { elf } = this.#cubin;
    const { offset, type } = relocation;
    const again = relocated.has(offset);
    relocated.add(offset);
    const symbol = elf.symbol(relocation.symbol);
    const self = symbol.section === piece.fn.section.index;
    const name = self ? 'itself' : printable(elf.symbolName(symbol));
    const kind = PATCHES.get(type);
    const calls = kind === 'call-47' || kind === 'call-55';
    if (symbol.index === 0) {
      // Observed on sm_75: the linker decides whether a YIELD stays (types 68 and 69).
      refuse('relocation', `it has a choice for the linker to make (relocation ${type})`);
      return;
    }
    if ((symbol.other & STO_CUDA_SPACE) === STO_CUDA_SHARED) {
      refuse('shared-memory', `it addresses ${name} in shared memory by name`);
      return;
    }
    if (symbol.section === 0) {
      refuse(symbol.type === STT_FUNC ? 'external-call' : 'relocation', `it needs ${name}, which the cubin does not contain`);
      return;
    }
    if (symbol.type !== STT_FUNC || !kind) {
      refuse('relocation', `it needs the driver to write the address of ${name} (relocation ${type})`);
      return;
    }
    if (this.#budget.calls !== true) {
      refuse('call', calls ? `it calls ${name}` : `it needs the address of ${name}`);
      return;
    }
    // Observed: return addresses come with an addend, calls of older architectures without a place for one.
    const addend = relocation.addend ?? 0;
    const outside = offset % INSTRUCTION_BYTES !== 0 || offset >= piece.fn.code.length;
    const fits = kind === ((this.#cubin.sm as number) >= 90 ? 'call-55' : 'call-47') && absoluteCalls.has(offset);
    const known = calls
      ? fits && addend === 0 && !self
      : self && addend >= 0 && addend < piece.fn.code.length && addend % INSTRUCTION_BYTES === 0;
    if (outside || !known || again || symbol.value !== 0) {
      refuse('relocation', `it has a relocation of type ${type} to ${name} in an unknown form`);
      return;
    }
    if (calls && !this.#pieces.has(symbol.section) && this.#pieces.size >= MAX_FUNCTIONS) {
      refuse('call', `it calls more than ${MAX_FUNCTIONS} functions`);
      return;
    }
    const target = calls ? this.#add(this.#cubin.function(symbol)) : piece;
    if (calls) piece.callees.add(target);
    this.#patches.push({ at: piece.offset + offset, kind, target: target.offset + addend });
  }

  /** The deepest chain of calls; a function that reaches itself has no bound. */
  #measureStack(first: Piece): void {
    const done = new Map<Piece, number>();
    const open = new Set<Piece>();
    const depth = (piece: Piece): number => {
      const known = done.get(piece);
      if (known !== undefined) return known;
      if (open.has(piece)) {
        this.#reasons.add('recursion', `${printable(piece.fn.name)} calls itself by way of others.`);
        return 0;
      }
      open.add(piece);
      const own = (piece.fn.frameBytes ?? 0) + Math.max(0, ...[...piece.callees].map(depth));
      open.delete(piece);
      done.set(piece, own);
      return own;
    };
    this.#stackBytes = depth(first);
    const allowed = this.#budget.stackBytes ?? 0;
    if (this.#stackBytes > allowed) {
      this.#reasons.add(
        'stack',
        `${printable(first.fn.name)}: it needs ${this.#stackBytes} bytes of stack; the resident kernel reserves ${allowed}.`,
      );
    }
  }
}
