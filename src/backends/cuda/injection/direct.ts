import { CHANGE } from '../../../abi/status.ts';
import { GpuosError } from '../../../errors.ts';
import type { Program } from '../../../ops/program.ts';
import type { Artifact, SubmitChange } from '../../backend.ts';
import { emitProgram, programHeaders } from '../codegen/index.ts';
import { ImageCache } from '../image-cache.ts';
import type { Address } from '../library.ts';
import type { Pending } from '../process/channel-client.ts';
import type { DeviceProcess } from '../process/device-process.ts';
import type { Answer, Budget } from '../process/requests.ts';
import { OPERATOR_OPTIONS, operatorHeaders } from '../source.ts';
import {
  BYTECODE_BYTES,
  type BytecodeBlock,
  BytecodeMemory,
  FunctionNumbers,
  type Functions,
  ProgramArtifact,
  signatureOf,
} from './functions.ts';

/** The function's name in every emitted source: code is placed one function at a time. */
const SYMBOL = 'gpuos_operator';
/** A wait takes over work for the compiler that nobody has begun for so long: a shorter one is not to become longer by it. */
const IDLE_MS = 2;
/** Turns of the event loop in which answers are looked for, before it is done once a millisecond. */
const EAGER_TURNS = 50;
/** A wait looks for answers once in so many turns; a power of two. */
const LOOKS = 64;

/** A function that is installed. */
interface Installed {
  readonly bytecode: BytecodeBlock | undefined;
}

/** A function that runs interpreted. */
interface Waiting {
  readonly installed: Installed;
  readonly program: Program;
  readonly since: number;
}

/** A question to the device process for a program's code, and the key that the code has in the cache. */
interface Asked {
  readonly key: string;
  readonly pending: Pending<Answer<'inject' | 'place'>>;
}

interface Improving extends Asked {
  readonly fn: number;
  readonly of: Waiting;
}

/** Bytecode on its way: memory that host and device see, as large as the device memory that it is copied to. */
export interface Staging {
  readonly view: ArrayBuffer;
  readonly offset: number;
  readonly address: Address;
}

export interface DirectOptions {
  readonly budget: Budget;
  /** The first entry that is not a built-in function's, and how many there are in all. */
  readonly first: number;
  readonly limit: number;
  /** The interpreter's address, and BYTECODE_BYTES of device memory for what it runs. */
  readonly interpreter: Address;
  readonly bytecode: Address;
  readonly staging: Staging;
  /** Whether programs are interpreted until they are compiled; otherwise the caller waits for the compiler. */
  readonly tiered: boolean;
}

/**
 * Functions whose code is copied into the running kernel. A new function is an entry of the interpreter with its program's
 * bytecode; both get there by a task of the ring that the kernel itself carries out, so that nobody waits for the driver or
 * for the device process. Once the program's code is there, from the cache or from the compiler, copied by the device
 * process, another such task has the entry's address become that of the code. The data word stays: whoever reads the entry
 * calls one of the two, and both compute the same.
 *
 * What goes on in the background does so in turns of the event loop, and where the program waits for the device.
 */
export class DirectFunctions implements Functions {
  readonly #process: DeviceProcess;
  readonly #cache: ImageCache;
  readonly #options: DirectOptions;
  readonly #numbers: FunctionNumbers;
  readonly #installed = new Map<number, Installed>();
  readonly #bytecode: BytecodeMemory;
  readonly #staged: Uint8Array;
  /** What emitted sources include, and the key of all that is the same for every one of them. */
  readonly #headers = { ...operatorHeaders(), ...programHeaders() };
  readonly #constant: string;
  /** Functions that run interpreted and are to be compiled, by number, oldest first. */
  readonly #waiting = new Map<number, Waiting>();
  /** Where code was placed, by its program: the same one may be installed again. */
  readonly #placedBefore = new Map<string, Address>();
  /** What the device process has been asked for. */
  #improving: Improving | undefined;
  #submit: SubmitChange | undefined;
  #pumping = false;
  #turning = false;
  #looks = 0;
  #failed: string | undefined;

  constructor(process: DeviceProcess, cache: ImageCache, options: DirectOptions) {
    this.#process = process;
    this.#cache = cache;
    this.#options = options;
    this.#numbers = new FunctionNumbers(options.first, options.limit);
    this.#bytecode = new BytecodeMemory(options.bytecode);
    this.#staged = new Uint8Array(options.staging.view, options.staging.offset, BYTECODE_BYTES);
    const { computeCapability, nvrtcVersion } = process.info;
    this.#constant = ImageCache.key(['operator', this.#headers, OPERATOR_OPTIONS, computeCapability, nvrtcVersion]);
  }

  get state(): { readonly compiling: number; readonly failed: string | undefined } {
    return { compiling: this.#waiting.size + Number(this.#improving !== undefined), failed: this.#failed };
  }

  setChanges(submit: SubmitChange): void {
    this.#submit = submit;
  }

  compile(program: Program): Artifact {
    return new ProgramArtifact(program);
  }

  install(artifact: Artifact): number {
    const { program, bytes } = artifact as ProgramArtifact;
    const fn = this.#numbers.take();
    let block: BytecodeBlock | undefined;
    try {
      const code = this.#placedBefore.get(signatureOf(program));
      if (this.#options.tiered && code === undefined && bytes.length > 0) block = this.#bytecode.take(bytes.length);
      if (block === undefined) this.#enter(fn, code ?? this.#placeNow(program), 0);
      else this.#enterInterpreted(fn, block, bytes);
    } catch (error) {
      if (block !== undefined) this.#bytecode.giveBack(block);
      this.#numbers.giveBack(fn);
      throw error;
    }
    const installed = { bytecode: block };
    this.#installed.set(fn, installed);
    if (block !== undefined) {
      this.#waiting.set(fn, { installed, program, since: performance.now() });
      this.#pump();
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

  whileWaiting(): void {
    // What it submits may itself wait for room in the ring.
    if (!this.#pumping || this.#turning || (++this.#looks & (LOOKS - 1)) !== 0) return;
    const [oldest] = this.#waiting.values();
    if (this.#improving !== undefined || (oldest !== undefined && performance.now() - oldest.since > IDLE_MS)) this.#turn();
  }

  /** Submits the change of an entry: the code's address, and its data, of which so many bytes are copied there from `from` first. */
  #enter(fn: number, address: Address, data: Address, from: Address = 0, bytes = 0): void {
    if (this.#submit === undefined) throw new GpuosError('GPUOS_INTERNAL', 'Functions cannot be entered before there is a ring.');
    this.#submit([from], [CHANGE.ENTER, fn, address >>> 0, high(address), data >>> 0, high(data), bytes]);
  }

  #enterInterpreted(fn: number, block: BytecodeBlock, bytes: Uint8Array): void {
    const { interpreter, bytecode, staging } = this.#options;
    const at = block.address - bytecode;
    // The kernel copies 16 bytes at a time. What it copied from here before is over: the block was free.
    this.#staged.set(bytes, at);
    this.#enter(fn, interpreter, block.address, staging.address + at, Math.ceil(bytes.length / 16) * 16);
  }

  /** Has turns of the event loop until nothing waits. */
  #pump(): void {
    if (this.#pumping) return;
    this.#pumping = true;
    let turns = 0;
    const turn = (): void => {
      this.#turn();
      this.#pumping = this.#improving !== undefined || this.#waiting.size > 0;
      if (!this.#pumping) return;
      if (turns++ < EAGER_TURNS) setImmediate(turn);
      else setTimeout(turn, 1);
    };
    setImmediate(turn);
  }

  /** Takes the answer if there is one, and asks for the next: one after another, oldest first. */
  #turn(): void {
    this.#turning = true;
    try {
      if (this.#improving !== undefined && !this.#settle(this.#improving)) return;
      for (const [fn, of] of this.#waiting) {
        this.#waiting.delete(fn);
        // Nobody needs it any more, or another one has its number.
        if (this.#installed.get(fn) !== of.installed) continue;
        const address = this.#placedBefore.get(signatureOf(of.program));
        if (address !== undefined) this.#enter(fn, address, of.installed.bytecode!.address);
        else this.#improving = { fn, of, ...this.#ask(of.program) };
        return;
      }
    } catch (error) {
      // It runs as it is; a lost device is told to whoever waits for a task.
      this.#improving = undefined;
      this.#failed = (error as Error).message;
      if (this.#process.lost !== undefined) this.#waiting.clear();
    } finally {
      this.#turning = false;
    }
  }

  /** Asks for a program's code to be placed: what was compiled before, else by way of the compiler. */
  #ask(program: Program): Asked {
    const { budget } = this.#options;
    const { ask, key } = this.#request(program);
    const payload = this.#cache.read(key);
    if (payload !== undefined) return { key, pending: this.#process.post('place', { symbol: SYMBOL, budget, payload }) };
    return { key, pending: this.#process.post('inject', { ...ask, symbol: SYMBOL, budget }) };
  }

  /** False: the answer is not there yet. @throws what it was instead */
  #settle({ fn, of, key, pending }: Improving): boolean {
    if (!pending.done) return false;
    const address = this.#accept(of.program, { key, pending });
    this.#improving = undefined;
    if (this.#installed.get(fn) === of.installed) this.#enter(fn, address, of.installed.bytecode!.address);
    return true;
  }

  /** The caller waits. */
  #placeNow(program: Program): Address {
    return this.#accept(program, this.#ask(program));
  }

  /** Where the code is, which is known from here on. What could not be placed is not kept. @throws what the answer was instead */
  #accept(program: Program, { key, pending }: Asked): Address {
    const answer = pending.wait();
    const address = this.#placed(answer);
    if ('payload' in answer) this.#cache.write(key, answer.payload);
    this.#placedBefore.set(signatureOf(program), address);
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

const high = (address: Address): number => Math.floor(address / 2 ** 32);

interface CompileRequest {
  readonly ask: {
    readonly source: string;
    readonly headers: Readonly<Record<string, string>>;
    readonly name: string;
    readonly options: readonly string[];
  };
  readonly key: string;
}
