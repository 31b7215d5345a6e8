import { GpuosError } from '../../errors.ts';
import type { Program } from '../../ops/program.ts';
import type { Artifact } from '../backend.ts';
import { emitProgram, programHeaders } from './codegen/index.ts';
import { ImageCache } from './image-cache.ts';
import { type BytecodeBlock, BytecodeMemory, FunctionNumbers, type Functions, ProgramArtifact } from './injection/functions.ts';
import type { Address } from './library.ts';
import type { DeviceProcess } from './process/device-process.ts';
import type { Answer, Budget } from './process/requests.ts';
import { KERNEL_SIZES } from './resident.ts';
import { OPERATOR_OPTIONS, operatorHeaders } from './source.ts';

const ENTRY_BYTES = KERNEL_SIZES.FunctionEntry;
/** The function's name in every emitted source: code is placed one function at a time. */
const SYMBOL = 'gpuos_operator';
/** A function that is installed. */
interface Installed {
  readonly bytecode: BytecodeBlock | undefined;
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
export class FunctionTable implements Functions {
  readonly #process: DeviceProcess;
  readonly #cache: ImageCache;
  readonly #options: FunctionTableOptions;
  readonly #numbers: FunctionNumbers;
  readonly #installed = new Map<number, Installed>();
  readonly #bytecode: BytecodeMemory;
  /** What emitted sources include, and the key of all that is the same for every one of them. */
  readonly #headers = { ...operatorHeaders(), ...programHeaders() };
  readonly #constant: string;
  /** Functions that run interpreted and are to be compiled, by number, oldest first. */
  readonly #waiting = new Map<number, { readonly installed: Installed; readonly request: CompileRequest }>();
  /** Where code was placed, by the key of its source: the same program may be installed again. */
  readonly #placedBefore = new Map<string, Address>();
  #busy = false;
  #failed: string | undefined;

  constructor(process: DeviceProcess, cache: ImageCache, options: FunctionTableOptions) {
    this.#process = process;
    this.#cache = cache;
    this.#options = options;
    this.#numbers = new FunctionNumbers(options.first, options.limit);
    this.#bytecode = new BytecodeMemory(options.bytecode);
    const { computeCapability, nvrtcVersion } = process.info;
    this.#constant = ImageCache.key(['operator', this.#headers, OPERATOR_OPTIONS, computeCapability, nvrtcVersion]);
  }

  /** Programs that are being compiled, and why one last could not be placed (it stays interpreted). */
  get state(): { readonly compiling: number; readonly failed: string | undefined } {
    return { compiling: this.#waiting.size + Number(this.#busy), failed: this.#failed };
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
    const fn = this.#numbers.take();
    try {
      const request = this.#request(program);
      const code = this.#codeOf(request);
      const block = this.#options.tiered && code === undefined && bytes.length > 0 ? this.#bytecode.take(bytes.length) : undefined;
      if (block === undefined) {
        this.#enter(fn, code ?? this.#inject(request), 0);
        this.#installed.set(fn, { bytecode: undefined });
        return fn;
      }
      this.#process.call('write', { address: block.address, payload: bytes });
      this.#enter(fn, this.#options.interpreter, block.address);
      const installed = { bytecode: block };
      this.#installed.set(fn, installed);
      this.#waiting.set(fn, { installed, request });
      void this.#improveAll();
    } catch (error) {
      this.#numbers.giveBack(fn);
      throw error;
    }
    return fn;
  }

  /** No task names it any more. (Its code stays where it is: no address of the arena is used twice.) */
  uninstall(fn: number): void {
    const installed = this.#installed.get(fn);
    if (installed === undefined) return;
    this.#installed.delete(fn);
    this.#numbers.giveBack(fn);
    if (installed.bytecode !== undefined) this.#bytecode.giveBack(installed.bytecode);
  }

  #enter(fn: number, address: Address, data: Address): void {
    const payload = new Uint8Array(new BigUint64Array([BigInt(address), BigInt(data)]).buffer);
    this.#process.call('write', { address: this.#options.table + fn * ENTRY_BYTES, payload });
  }

  /** Compiles in the background what still needs it, one after another, oldest first. */
  async #improveAll(): Promise<void> {
    if (this.#busy) return;
    this.#busy = true;
    for (const [fn, { installed, request }] of this.#waiting) {
      this.#waiting.delete(fn);
      // Nobody needs it any more, or another one has its number.
      if (this.#installed.get(fn) !== installed) continue;
      try {
        const address = this.#placedBefore.get(request.key) ?? (await this.#improve(request));
        this.#placedBefore.set(request.key, address);
        if (this.#installed.get(fn) !== installed) continue;
        const payload = new Uint8Array(new BigUint64Array([BigInt(address)]).buffer);
        // Waited for: another function may be entered under this number as soon as this one is uninstalled.
        this.#process.call('write', { address: this.#options.table + fn * ENTRY_BYTES, payload });
      } catch (error) {
        // It runs as it is; a lost device is told to whoever waits for a task.
        this.#failed = (error as Error).message;
        if (this.#process.lost !== undefined) this.#waiting.clear();
      }
    }
    this.#busy = false;
  }

  async #improve(request: CompileRequest): Promise<Address> {
    const { budget } = this.#options;
    const answer = await this.#process.post('inject', { ...request.ask, symbol: SYMBOL, budget }).promise;
    const address = this.#placed(answer);
    this.#cache.write(request.key, answer.payload);
    return address;
  }

  /** Code that is placed already, or can be from the cache. */
  #codeOf({ key }: CompileRequest): Address | undefined {
    const before = this.#placedBefore.get(key);
    if (before !== undefined) return before;
    const payload = this.#cache.read(key);
    if (payload === undefined) return undefined;
    try {
      const address = this.#placed(this.#process.call('place', { symbol: SYMBOL, budget: this.#options.budget, payload }));
      this.#placedBefore.set(key, address);
      return address;
    } catch (error) {
      // A cache of a kernel that left more to operators, or an arena that is full: it can still be interpreted.
      if (this.#process.lost !== undefined) throw error;
      this.#failed = (error as Error).message;
      return undefined;
    }
  }

  #inject(request: CompileRequest): Address {
    const answer = this.#process.call('inject', { ...request.ask, symbol: SYMBOL, budget: this.#options.budget });
    const address = this.#placed(answer);
    this.#cache.write(request.key, answer.payload);
    this.#placedBefore.set(request.key, address);
    return address;
  }

  /** @throws GPUOS_NOT_INJECTABLE */
  #placed(answer: Answer<'place'>): Address {
    if ('address' in answer) return answer.address;
    const reasons = answer.refused.map(({ message }) => message).join(' ');
    throw new GpuosError('GPUOS_NOT_INJECTABLE', `A fused kernel cannot be put into the running kernel: ${reasons}`);
  }

  #request(program: Program): CompileRequest {
    const source = emitProgram(program, SYMBOL);
    const ask = { source, headers: this.#headers, name: 'operator.cu', options: OPERATOR_OPTIONS };
    return { ask, key: ImageCache.key([this.#constant, source]) };
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
