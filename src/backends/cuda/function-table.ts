import { GpuosError } from '../../errors.ts';
import type { Program } from '../../ops/program.ts';
import type { Artifact } from '../backend.ts';
import { emitProgram, programHeaders } from './codegen/index.ts';
import { ImageCache } from './image-cache.ts';
import { encodeProgram } from './interpreter/index.ts';
import type { Address } from './library.ts';
import type { DeviceProcess } from './process/device-process.ts';
import type { Answer, Budget } from './process/requests.ts';
import { OPERATOR_OPTIONS, operatorHeaders } from './source.ts';

const ENTRY_BYTES = 16;
/** The function's name in every emitted source: code is placed one function at a time. */
const SYMBOL = 'gpuos_operator';
/** Device memory for the interpreter's programs, and what one takes at least. */
export const BYTECODE_BYTES = 16 << 20;
const GRAIN_BYTES = 256;

/** A program in both forms: bytecode that runs at once, and the text that is compiled meanwhile. */
class ProgramArtifact implements Artifact {
  readonly program: Program;
  /** Empty if the interpreter cannot run it: then it is compiled first. */
  readonly bytes: Uint8Array;

  constructor(program: Program) {
    this.program = program;
    const words = encodeProgram(program);
    this.bytes = words === undefined ? new Uint8Array(0) : new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
  }
}

/** A function that is installed. */
interface Installed {
  /** Where its bytecode stands, and how much was taken for it; 0 if it has none. */
  readonly bytecode: Address;
  readonly bytes: number;
}

export interface FunctionTableOptions {
  /** The table in device memory: {address, data} of 8 bytes each. */
  readonly table: Address;
  readonly budget: Budget;
  /** The first entry that is not a built-in function's, and how many there are in all. */
  readonly first: number;
  readonly limit: number;
  /** The interpreter's address, and BYTECODE_BYTES of device memory for what it runs. */
  readonly interpreter: Address;
  readonly bytecode: Address;
  /** Whether programs are interpreted until they are compiled; otherwise the caller waits for the compiler. */
  readonly tiered: boolean;
}

/**
 * The functions that slots of the operator table may name, and how their code gets into the running kernel. A new
 * function is an entry of the interpreter with its program's bytecode; once the program is compiled, in the device
 * process's own thread, the entry's address becomes that of its code. The data word stays, so that the change is a
 * single store of 8 bytes: whoever reads the entry calls one of the two, and both compute the same.
 */
export class FunctionTable {
  readonly #process: DeviceProcess;
  readonly #cache: ImageCache;
  readonly #options: FunctionTableOptions;
  readonly #free: number[] = [];
  readonly #installed = new Map<number, Installed>();
  readonly #bytecode: Address;
  readonly #bytecodeFree = new Map<number, Address[]>();
  #bytecodeUsed = 0;
  #next: number;
  #compiling = 0;
  #failed: string | undefined;

  constructor(process: DeviceProcess, cache: ImageCache, options: FunctionTableOptions) {
    this.#process = process;
    this.#cache = cache;
    this.#options = options;
    this.#next = options.first;
    this.#bytecode = options.bytecode;
  }

  /** Programs that are being compiled, and why one last could not be placed (it stays interpreted). */
  get state(): { readonly compiling: number; readonly failed: string | undefined } {
    return { compiling: this.#compiling, failed: this.#failed };
  }

  compile(program: Program): Artifact {
    return new ProgramArtifact(program);
  }

  /**
   * Enters a function under a number that no task names yet.
   * @throws GPUOS_OPERATOR_TABLE_FULL; of a program that has to be compiled first GPUOS_COMPILE_FAILED, GPUOS_NOT_INJECTABLE, GPUOS_OUT_OF_MEMORY
   */
  install(artifact: Artifact): number {
    const { program, bytes } = artifact as ProgramArtifact;
    const fn = this.#free.pop() ?? this.#next++;
    if (fn >= this.#options.limit) {
      this.#next--;
      throw new GpuosError('GPUOS_OPERATOR_TABLE_FULL', `All ${this.#options.limit} functions of the device are in use.`);
    }
    try {
      const request = this.#request(program);
      const cached = this.#cache.read(request.key);
      const block = this.#options.tiered && cached === undefined && bytes.length > 0 ? this.#reserve(bytes.length) : undefined;
      if (block === undefined) {
        this.#enter(fn, cached === undefined ? this.#inject(request) : this.#placed(this.#place(cached)), 0);
        this.#installed.set(fn, { bytecode: 0, bytes: 0 });
        return fn;
      }
      this.#process.call('write', { address: block.bytecode, payload: bytes });
      this.#enter(fn, this.#options.interpreter, block.bytecode);
      this.#installed.set(fn, block);
      void this.#improve(fn, block, request);
    } catch (error) {
      this.#free.push(fn);
      throw error;
    }
    return fn;
  }

  /** No task names it any more. (Its code stays where it is: no address of the arena is used twice.) */
  uninstall(fn: number): void {
    const installed = this.#installed.get(fn);
    if (installed === undefined) return;
    this.#installed.delete(fn);
    this.#free.push(fn);
    if (installed.bytes > 0) {
      const list = this.#bytecodeFree.get(installed.bytes) ?? [];
      list.push(installed.bytecode);
      this.#bytecodeFree.set(installed.bytes, list);
    }
  }

  /** Memory for bytecode; undefined if there is no more. */
  #reserve(length: number): Installed | undefined {
    const bytes = GRAIN_BYTES << Math.max(0, Math.ceil(Math.log2(length / GRAIN_BYTES)));
    const known = this.#bytecodeFree.get(bytes)?.pop();
    if (known !== undefined) return { bytecode: known, bytes };
    if (this.#bytecodeUsed + bytes > BYTECODE_BYTES) return undefined;
    const bytecode = this.#bytecode + this.#bytecodeUsed;
    this.#bytecodeUsed += bytes;
    return { bytecode, bytes };
  }

  #enter(fn: number, address: Address, data: Address): void {
    const payload = new Uint8Array(new BigUint64Array([BigInt(address), BigInt(data)]).buffer);
    this.#process.call('write', { address: this.#options.table + fn * ENTRY_BYTES, payload });
  }

  /** Compiles the program in the background, and lets the entry point to its code if that is still the same function. */
  async #improve(fn: number, installed: Installed, request: CompileRequest): Promise<void> {
    this.#compiling++;
    try {
      const { budget } = this.#options;
      const answer = await this.#process.post('inject', { ...request.ask, symbol: SYMBOL, budget }).promise;
      this.#cache.write(request.key, answer.payload);
      const address = this.#placed(answer);
      if (this.#installed.get(fn) !== installed) return;
      const payload = new Uint8Array(new BigUint64Array([BigInt(address)]).buffer);
      // Waited for: another function may be entered under this number as soon as this one is uninstalled.
      this.#process.call('write', { address: this.#options.table + fn * ENTRY_BYTES, payload });
    } catch (error) {
      // It runs as it is; a lost device is told to whoever waits for a task.
      this.#failed = (error as Error).message;
    } finally {
      this.#compiling--;
    }
  }

  #inject(request: CompileRequest): Address {
    const answer = this.#process.call('inject', { ...request.ask, symbol: SYMBOL, budget: this.#options.budget });
    this.#cache.write(request.key, answer.payload);
    return this.#placed(answer);
  }

  #place(payload: Uint8Array): Answer<'place'> {
    return this.#process.call('place', { symbol: SYMBOL, budget: this.#options.budget, payload });
  }

  /** @throws GPUOS_NOT_INJECTABLE */
  #placed(answer: Answer<'place'>): Address {
    if ('address' in answer) return answer.address;
    const reasons = answer.refused.map(({ message }) => message).join(' ');
    throw new GpuosError('GPUOS_NOT_INJECTABLE', `A fused kernel cannot be put into the running kernel: ${reasons}`);
  }

  #request(program: Program): CompileRequest {
    const { computeCapability, nvrtcVersion } = this.#process.info;
    const source = emitProgram(program, SYMBOL);
    const ask = { source, headers: HEADERS(), name: 'operator.cu', options: OPERATOR_OPTIONS };
    return { ask, key: ImageCache.key(['operator', ask, computeCapability, nvrtcVersion]) };
  }
}

interface CompileRequest {
  readonly ask: {
    readonly source: string;
    readonly headers: Readonly<Record<string, string>>;
    readonly name: string;
    readonly options: readonly string[];
  };
  readonly key: string;
}

let headers: Readonly<Record<string, string>> | undefined;
/** What emitted sources include; read once. */
const HEADERS = (): Readonly<Record<string, string>> => {
  headers ??= { ...operatorHeaders(), ...programHeaders() };
  return headers;
};
