/**
 * NVRTC, the compiler as a library: CUDA C++ text in, a cubin or PTX out. Needs neither a GPU nor a driver.
 *
 * A compilation takes 20 to 110 ms on the calling thread. A cubin loads on drivers of the compiler's own major version
 * or a newer one, so the caller says which is the newest that it can use.
 */
import { dirname, join } from 'node:path';
import { GpuosError } from '../../errors.ts';
import { CudaError, SUCCESS } from './cuda-error.ts';
import { findLibrary, type SearchResult } from './discovery.ts';
import { type Bound, koffi, type Library, loadLibrary, out64, textOf, toAddress } from './library.ts';

const RESULT = 'int';
const SIGNATURES = {
  nvrtcVersion: [RESULT, 'int *', 'int *'],
  nvrtcGetErrorString: ['str', 'int'],
  nvrtcGetNumSupportedArchs: [RESULT, 'int *'],
  nvrtcGetSupportedArchs: [RESULT, 'int *'],
  nvrtcCreateProgram: [RESULT, 'uint64_t *', 'str', 'str', 'int', 'const char **', 'const char **'],
  nvrtcDestroyProgram: [RESULT, 'uint64_t *'],
  nvrtcCompileProgram: [RESULT, 'uint64_t', 'int', 'const char **'],
  nvrtcGetProgramLogSize: [RESULT, 'uint64_t', 'size_t *'],
  nvrtcGetProgramLog: [RESULT, 'uint64_t', 'void *'],
  nvrtcGetCUBINSize: [RESULT, 'uint64_t', 'size_t *'],
  nvrtcGetCUBIN: [RESULT, 'uint64_t', 'void *'],
  nvrtcGetPTXSize: [RESULT, 'uint64_t', 'size_t *'],
  nvrtcGetPTX: [RESULT, 'uint64_t', 'void *'],
} as const;

/** `NVRTC_ERROR_INVALID_OPTION` and `NVRTC_ERROR_COMPILATION`: the text's fault, not the library's. */
const REFUSED = new Set([5, 6]);
const MAJORS = [12, 13];

export interface CompileRequest {
  readonly source: string;
  /** What the log calls the source: `operator.cu`. */
  readonly name: string;
  /** What `#include` finds, by name. */
  readonly headers?: Readonly<Record<string, string>>;
  /** `sm_90` gives a cubin, `compute_90` PTX (that ends in a NUL, as the driver wants it). */
  readonly target: `sm_${string}` | `compute_${string}`;
  /** Further options, as nvcc spells them: `--relocatable-device-code=true`. */
  readonly options?: readonly string[];
}

export interface Compiled {
  readonly image: Uint8Array;
  /** Warnings; empty if there are none. */
  readonly log: string;
}

export class Nvrtc {
  readonly path: string;
  readonly from: string;
  readonly version: readonly [major: number, minor: number];
  /** Architectures that it compiles for: 75, 80, 90, ... */
  readonly architectures: readonly number[];
  readonly #functions: Library<typeof SIGNATURES>['functions'];

  /**
   * @param newestMajor the driver's CUDA version: what a newer compiler makes it cannot load
   * @throws GPUOS_CUDA_UNAVAILABLE, GPUOS_CUDA_TOO_OLD, GPUOS_PACKAGE_MISSING; see `loadLibrary`
   */
  constructor(search: SearchResult = findLibrary('nvrtc'), newestMajor: number = Number.POSITIVE_INFINITY) {
    const { path, from, functions } = loadLibrary('nvrtc', search, SIGNATURES, (bound) => {
      const [major, minor] = versionOf(bound);
      if (!MAJORS.includes(major)) return `it is version ${major}.${minor}`;
      return major > newestMajor ? `it is version ${major}.${minor}, and the driver supports CUDA ${newestMajor} at most` : undefined;
    });
    this.path = path;
    this.from = from;
    this.#functions = functions;
    this.version = versionOf(functions);
    keepBuiltins(path, this.version);
    const count = new Int32Array(1);
    this.#check('nvrtcGetNumSupportedArchs', functions.nvrtcGetNumSupportedArchs(count));
    const architectures = new Int32Array(Math.max(1, count[0]!));
    this.#check('nvrtcGetSupportedArchs', functions.nvrtcGetSupportedArchs(architectures));
    this.architectures = [...architectures.subarray(0, count[0]!)];
  }

  /**
   * @throws CudaError GPUOS_COMPILE_FAILED with the compiler's log
   * @throws GPUOS_CUDA_TOO_OLD if this version does not know the target
   */
  compile(request: CompileRequest): Compiled {
    const { source, name, headers = {}, target, options = [] } = request;
    const architecture = /^(?:sm|compute)_(\d+)[af]?$/.exec(target)?.[1];
    if (architecture === undefined || !this.architectures.includes(Number(architecture))) {
      const known = this.architectures.join(', ');
      throw new GpuosError(
        'GPUOS_CUDA_TOO_OLD',
        `NVRTC ${this.version.join('.')} (${this.path}) does not compile for ${target}, but for ${known}.`,
      );
    }
    const functions = this.#functions;
    const names = Object.keys(headers);
    const texts = Object.values(headers);
    const all = [`--gpu-architecture=${target}`, ...options];
    const program = out64();
    this.#check('nvrtcCreateProgram', functions.nvrtcCreateProgram(program, source, name, names.length, texts, names));
    const handle = toAddress(program[0]!);
    try {
      const result = functions.nvrtcCompileProgram(handle, all.length, all);
      const log = textOf(this.#bytes(handle, 'nvrtcGetProgramLogSize', 'nvrtcGetProgramLog')).trim();
      if (REFUSED.has(result)) {
        const failure = { call: 'nvrtcCompileProgram', result, resultName: this.#resultName(result) };
        throw new CudaError('GPUOS_COMPILE_FAILED', `${name} was not compiled (${failure.resultName}):\n${log}\n`, failure);
      }
      this.#check('nvrtcCompileProgram', result, log);
      const image = target.startsWith('sm_')
        ? this.#bytes(handle, 'nvrtcGetCUBINSize', 'nvrtcGetCUBIN')
        : this.#bytes(handle, 'nvrtcGetPTXSize', 'nvrtcGetPTX');
      return { image, log };
    } finally {
      functions.nvrtcDestroyProgram(program);
    }
  }

  #bytes(
    program: number,
    sizeCall: 'nvrtcGetProgramLogSize' | 'nvrtcGetCUBINSize' | 'nvrtcGetPTXSize',
    call: 'nvrtcGetProgramLog' | 'nvrtcGetCUBIN' | 'nvrtcGetPTX',
  ): Uint8Array {
    const size = out64();
    this.#check(sizeCall, this.#functions[sizeCall](program, size));
    const bytes = new Uint8Array(toAddress(size[0]!));
    // An empty view has no address to write to.
    if (bytes.length > 0) this.#check(call, this.#functions[call](program, bytes));
    return bytes;
  }

  #resultName(result: number): string {
    return String(this.#functions.nvrtcGetErrorString(result));
  }

  #check(call: string, result: number, detail = ''): void {
    if (result === SUCCESS) return;
    const failure = { call, result, resultName: this.#resultName(result) };
    const about = `${call} answered ${failure.resultName} (${result})${detail === '' ? '' : `:\n${detail}\n`}`;
    throw new CudaError('GPUOS_CUDA_CALL_FAILED', `${about}${about.endsWith('\n') ? '' : '.'}`, failure);
  }
}

/**
 * NVRTC opens a second library by its bare name when it compiles, and in pip's folders does not find it beside itself.
 * One that is loaded already is found by name; where it lies elsewhere, the loader may know it.
 */
function keepBuiltins(path: string, [major, minor]: readonly [major: number, minor: number]): void {
  const beside = join(dirname(path), `libnvrtc-builtins.so.${major}.${minor}`);
  if (builtins.has(beside)) return;
  try {
    builtins.set(beside, koffi().load(beside));
  } catch {
    // If it is nowhere, the first compilation says so.
  }
}
const builtins = new Map<string, unknown>();

function versionOf(functions: Bound<typeof SIGNATURES>): readonly [major: number, minor: number] {
  const [major, minor] = [new Int32Array(1), new Int32Array(1)];
  functions.nvrtcVersion(major, minor);
  return [major[0]!, minor[0]!];
}
