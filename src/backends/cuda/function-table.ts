import { GpuosError } from '../../errors.ts';
import type { Program } from '../../ops/program.ts';
import type { Artifact } from '../backend.ts';
import { emitProgram, programHeaders } from './codegen/index.ts';
import { ImageCache } from './image-cache.ts';
import type { Address } from './library.ts';
import type { DeviceProcess } from './process/device-process.ts';
import type { Budget } from './process/requests.ts';
import { OPERATOR_OPTIONS, operatorHeaders } from './source.ts';

const ENTRY_BYTES = 16;
/** The function's name in every emitted source: code is placed one function at a time. */
const SYMBOL = 'gpuos_operator';

class ProgramArtifact implements Artifact {
  readonly program: Program;
  readonly bytes: Uint8Array;

  constructor(program: Program) {
    this.program = program;
    this.bytes = new TextEncoder().encode(emitProgram(program, SYMBOL));
  }
}

export interface FunctionTableOptions {
  /** The table in device memory: {address, data} of 8 bytes each. */
  readonly table: Address;
  readonly budget: Budget;
  /** The first entry that is not a built-in function's, and how many there are in all. */
  readonly first: number;
  readonly limit: number;
}

/** The functions that slots of the operator table may name: their code gets into the running kernel here. */
export class FunctionTable {
  readonly #process: DeviceProcess;
  readonly #cache: ImageCache;
  readonly #options: FunctionTableOptions;
  readonly #free: number[] = [];
  #next: number;

  constructor(process: DeviceProcess, cache: ImageCache, options: FunctionTableOptions) {
    this.#process = process;
    this.#cache = cache;
    this.#options = options;
    this.#next = options.first;
  }

  compile(program: Program): Artifact {
    return new ProgramArtifact(program);
  }

  /** Places the code and enters it under a number that no task names yet. @throws GPUOS_OPERATOR_TABLE_FULL, GPUOS_OUT_OF_MEMORY */
  install(artifact: Artifact): number {
    const fn = this.#free.pop() ?? this.#next++;
    if (fn >= this.#options.limit) {
      this.#next--;
      throw new GpuosError('GPUOS_OPERATOR_TABLE_FULL', `All ${this.#options.limit} functions of the device are in use.`);
    }
    try {
      this.#enter(fn, this.#place(artifact as ProgramArtifact), 0);
    } catch (error) {
      this.#free.push(fn);
      throw error;
    }
    return fn;
  }

  /** No task names it any more. (Its code stays where it is: no address of the arena is used twice.) */
  uninstall(fn: number): void {
    this.#free.push(fn);
  }

  #enter(fn: number, address: Address, data: Address): void {
    const payload = new Uint8Array(new BigUint64Array([BigInt(address), BigInt(data)]).buffer);
    this.#process.call('write', { address: this.#options.table + fn * ENTRY_BYTES, payload });
  }

  #place(artifact: ProgramArtifact): Address {
    const { budget } = this.#options;
    const { computeCapability, nvrtcVersion } = this.#process.info;
    const source = new TextDecoder().decode(artifact.bytes);
    const headers = { ...operatorHeaders(), ...programHeaders() };
    const key = ImageCache.key(['operator', source, headers, OPERATOR_OPTIONS, computeCapability, nvrtcVersion]);
    const known = this.#cache.read(key);
    let answer = known === undefined ? undefined : this.#process.call('place', { symbol: SYMBOL, budget, payload: known });
    if (answer === undefined) {
      const ask = { source, headers, name: 'operator.cu', options: OPERATOR_OPTIONS, symbol: SYMBOL, budget };
      const injected = this.#process.call('inject', ask);
      this.#cache.write(key, injected.payload);
      answer = injected;
    }
    if ('address' in answer) return answer.address;
    const reasons = answer.refused.map(({ message }) => message).join(' ');
    throw new GpuosError('GPUOS_NOT_INJECTABLE', `A fused kernel cannot be put into the running kernel: ${reasons}`);
  }
}
