/**
 * Shared libraries through koffi: loading, binding, and the conversions that the CUDA libraries have in common.
 *
 * Addresses and handles are numbers: user space ends at 2^47 (2^48 on Arm, 2^49 for device memory), far below 2^53, and
 * numbers pass between threads and through typed arrays without allocation.
 */
import type * as Koffi from 'koffi';
import { GpuosError } from '../../errors.ts';
import { firstLine, koffi } from '../native.ts';
import { type Candidate, LIBRARIES, type LibraryName, type SearchResult } from './discovery.ts';

export { firstLine, koffi };

/** An address of the host or the device, or a handle of a library. */
export type Address = number;

/** Memory of the host that a call reads or writes: a view, or an address whose memory the caller keeps alive. */
export type HostMemory = Address | NodeJS.ArrayBufferView;

/** A function of a library: numbers, strings, views and arrays in, an integer or a string out. */
export type NativeFunction = (...values: unknown[]) => number;

export type Bound<S> = { readonly [K in keyof S]: NativeFunction };

export interface Library<S> {
  readonly path: string;
  readonly from: string;
  readonly functions: Bound<S>;
}

const LABELS: Readonly<Record<LibraryName, { what: string; remedy: string; tooOld: string }>> = {
  driver: {
    what: 'NVIDIA driver',
    remedy: 'Install the driver for your GPU; in a container, start it with the GPU passed through.',
    tooOld: 'A driver for CUDA 12 or newer is needed',
  },
  nvml: { what: 'library NVML', remedy: 'It comes with the NVIDIA driver.', tooOld: 'NVML of a driver for CUDA 12 or newer is needed' },
  nvrtc: {
    what: 'compiler NVRTC',
    remedy:
      'Install the CUDA toolkit 12 or 13, or run `pip install nvidia-cuda-nvrtc-cu12` (`nvidia-cuda-nvrtc` for CUDA 13); if it lies elsewhere, set GPUOS_CUDA_HOME.',
    tooOld: 'NVRTC 12 or 13 is needed',
  },
  nvjitlink: { what: 'linker nvJitLink', remedy: 'It comes with the CUDA toolkit 12 or 13.', tooOld: 'nvJitLink 12 or 13 is needed' },
  cublas: { what: 'library cuBLAS', remedy: 'It comes with the CUDA toolkit 12 or 13.', tooOld: 'cuBLAS 12 or 13 is needed' },
};

/** What a library is called, and how to get it. */
export function label(name: LibraryName): { readonly what: string; readonly remedy: string } {
  const { stem, majors } = LIBRARIES[name];
  const { what, remedy } = LABELS[name];
  return { what: `the ${what} (${stem}.${majors.join(' or .')})`, remedy };
}

/**
 * Loads the first candidate that has every function of the table.
 *
 * @param signatures each function's name in the library, and its C prototype's `result(arguments)` in koffi's types
 * @param accept names what is wrong with a library that loaded; the next candidate is tried then
 * @throws GPUOS_CUDA_UNAVAILABLE if none can be loaded, GPUOS_CUDA_TOO_OLD if the ones that load lack a function or are
 *   not accepted; either says what was tried
 */
export function loadLibrary<S extends Readonly<Record<string, readonly [result: string, ...arguments: string[]]>>>(
  name: LibraryName,
  search: SearchResult,
  signatures: S,
  accept: (functions: Bound<S>, candidate: Candidate) => string | undefined = () => undefined,
): Library<S> {
  const ffi = koffi();
  const refused: string[] = [];
  const failed: string[] = [];
  for (const candidate of search.candidates) {
    let handle: Koffi.LibraryHandle;
    try {
      handle = ffi.load(candidate.path);
    } catch (error) {
      failed.push(`${candidate.path}: ${firstLine(error).replace('Failed to load shared library: ', '')}`);
      continue;
    }
    let problem: string | undefined;
    try {
      const functions = Object.fromEntries(
        Object.entries(signatures).map(([symbol, [result, ...types]]) => [symbol, handle.func(symbol, result, types) as NativeFunction]),
      ) as Bound<S>;
      problem = accept(functions, candidate);
      if (problem === undefined) return { path: candidate.path, from: candidate.from, functions };
    } catch (error) {
      if (error instanceof GpuosError) throw error;
      problem = firstLine(error);
    }
    refused.push(`${candidate.path}: ${problem}`);
  }
  const { what, remedy } = label(name);
  const { tooOld } = LABELS[name];
  const bad = refused.length > 0 ? refused.join('; ') : search.unsupported.map(({ path }) => path).join(', ');
  if (bad !== '') throw new GpuosError('GPUOS_CUDA_TOO_OLD', `${tooOld}: ${bad}.`);
  throw new GpuosError('GPUOS_CUDA_UNAVAILABLE', `Cannot load ${what}: ${failed.join('; ')}. ${remedy}`);
}

/** A value that a library returned as 64 bits. */
export function toAddress(value: bigint): Address {
  const address = Number(value);
  if (!Number.isSafeInteger(address)) throw new GpuosError('GPUOS_INTERNAL', `0x${value.toString(16)} does not fit an address.`);
  return address;
}

/** One 64-bit result: passed where a C function takes `T *`. */
export function out64(): BigUint64Array {
  return new BigUint64Array(1);
}

/** The text in a buffer that a C function filled, up to its NUL. */
export function textOf(bytes: Uint8Array): string {
  const end = bytes.indexOf(0);
  return Buffer.from(bytes.buffer, bytes.byteOffset, end < 0 ? bytes.byteLength : end).toString('utf8');
}

/** The address of a view's first byte. The caller keeps the view alive for as long as the address is used. */
export function addressOf(view: NodeJS.ArrayBufferView): Address {
  return toAddress(koffi().address(view));
}
