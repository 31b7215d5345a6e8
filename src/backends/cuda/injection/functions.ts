import { GpuosError } from '../../../errors.ts';
import type { Program } from '../../../ops/program.ts';
import type { Artifact, SubmitChange } from '../../backend.ts';
import { encodeProgram } from '../interpreter/index.ts';
import type { Address } from '../library.ts';

/** Device memory for the interpreter's programs, and what one takes at least. */
export const BYTECODE_BYTES = 16 << 20;
const GRAIN_BYTES = 256;

/** Both ways to get new code into the running kernel: `direct` copies it there, `relaunch` has the driver load it. */
export type InjectionMode = 'direct' | 'relaunch';

/** The functions that slots of the operator table may name, in either way. */
export interface Functions {
  /** Programs that are being compiled, and why one last could not be placed (it stays interpreted). */
  readonly state: { readonly compiling: number; readonly failed: string | undefined };
  compile(program: Program): Artifact;
  /**
   * Enters a function under a number that no task names yet.
   * @throws GPUOS_OPERATOR_TABLE_FULL; of a program that has to be compiled first GPUOS_COMPILE_FAILED, GPUOS_NOT_INJECTABLE,
   *   GPUOS_OUT_OF_MEMORY, GPUOS_DEVICE_BUSY
   */
  install(artifact: Artifact): number;
  /** No task names it any more. */
  uninstall(fn: number): void;
  /** The way to change entries by tasks of the ring; before anything is installed. */
  setChanges?(submit: SubmitChange): void;
  /** Called in every turn of a wait for the device: a program that only waits gives the event loop no turns. */
  whileWaiting?(): void;
}

const signatures = new WeakMap<Program, string>();

/** Equal programs have equal ones. Asked for more than once in a program's life. */
export function signatureOf(program: Program): string {
  const known = signatures.get(program);
  if (known !== undefined) return known;
  const signature = textOf(program);
  signatures.set(program, signature);
  return signature;
}

/** All that a program says. (As JSON, which has no infinities, two programs could be one.) */
function textOf({ inputs, scalars, nodes, outputs, outerRank }: Program): string {
  let text = `${outerRank} ${scalars}`;
  for (let i = 0; i < inputs.length; i++) text += `,${inputs[i]!.dtype} ${inputs[i]!.columnStride}`;
  for (let i = 0; i < nodes.length; i++) {
    const node = nodes[i]!;
    text += `;${node.kind} ${node.dtype}`;
    if (node.kind === 'map') {
      text += ` ${node.op}`;
      for (let k = 0; k < node.args.length; k++) text += ` ${node.args[k]}`;
    } else if (node.kind === 'constant') text += Object.is(node.value, -0) ? ' -0' : ` ${node.value}`;
    else if (node.kind === 'reduce') text += ` ${node.op} ${node.arg}`;
    else text += ` ${node.kind === 'input' ? node.input : node.scalar}`;
  }
  for (let o = 0; o < outputs.length; o++) text += `,${outputs[o]!.node} ${outputs[o]!.dtype} ${outputs[o]!.space}`;
  return text;
}

/** A program in both forms: bytecode that runs at once, and the text that is compiled meanwhile. */
export class ProgramArtifact implements Artifact {
  readonly program: Program;
  /** Empty if the interpreter cannot run it: then it is compiled first. */
  readonly bytes: Uint8Array;

  constructor(program: Program) {
    this.program = program;
    const words = encodeProgram(program);
    this.bytes = words === undefined ? new Uint8Array(0) : new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
  }
}

/** Numbers of functions, from `first` to `limit`; what is given back is handed out again. */
export class FunctionNumbers {
  readonly #free: number[] = [];
  readonly #limit: number;
  #next: number;

  constructor(first: number, limit: number) {
    this.#next = first;
    this.#limit = limit;
  }

  /** @throws GPUOS_OPERATOR_TABLE_FULL */
  take(): number {
    const known = this.#free.pop();
    if (known !== undefined) return known;
    if (this.#next >= this.#limit)
      throw new GpuosError('GPUOS_OPERATOR_TABLE_FULL', `All ${this.#limit} functions of the device are in use.`);
    return this.#next++;
  }

  giveBack(fn: number): void {
    this.#free.push(fn);
  }
}

/** Bytecode in device memory. */
export interface BytecodeBlock {
  readonly address: Address;
  readonly bytes: number;
}

/** Where the interpreter's programs stand: blocks of powers of two, used again for as much. */
export class BytecodeMemory {
  readonly #address: Address;
  readonly #free = new Map<number, Address[]>();
  #used = 0;

  /** @param address BYTECODE_BYTES of device memory */
  constructor(address: Address) {
    this.#address = address;
  }

  /** Undefined if there is no more. */
  take(length: number): BytecodeBlock | undefined {
    let bytes = GRAIN_BYTES;
    while (bytes < length) bytes *= 2;
    const known = this.#free.get(bytes)?.pop();
    if (known !== undefined) return { address: known, bytes };
    if (this.#used + bytes > BYTECODE_BYTES) return undefined;
    const address = this.#address + this.#used;
    this.#used += bytes;
    return { address, bytes };
  }

  giveBack({ address, bytes }: BytecodeBlock): void {
    const list = this.#free.get(bytes) ?? [];
    list.push(address);
    this.#free.set(bytes, list);
  }
}
