/** What the CUDA libraries' results mean, and the error that a failed call becomes. */
import { type ErrorCode, GpuosError } from '../../errors.ts';

export const SUCCESS = 0;
export const OUT_OF_MEMORY = 2;
export const NOT_READY = 600;

/**
 * Results after which every call of the process fails with the same one: illegal address, timeout, destroyed context,
 * assertion, hardware stack error, illegal instruction, misaligned address, invalid address space, invalid program
 * counter, launch failure; uncorrectable ECC and NVLink errors, containment, a lost MPS server, an unknown error.
 */
export const FATAL: ReadonlySet<number> = new Set([214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 806, 810, 999]);

/** Results that say that there is no driver or device to work with, and what to do about each. */
export const UNAVAILABLE: Readonly<Record<number, string>> = {
  34: 'this libcuda.so.1 is a stand-in for linking; take its folder (stubs) off LD_LIBRARY_PATH',
  46: 'another process holds the device exclusively, or its compute mode prohibits use',
  100: 'the driver sees no GPU; check `nvidia-smi` and CUDA_VISIBLE_DEVICES',
  101: 'there is no such device; check CUDA_VISIBLE_DEVICES',
  102: 'the device has no licence',
  802: 'the system is not ready; on machines with NVSwitch start the fabric manager',
  803: 'libcuda.so.1 and the kernel module are of different versions; restart the machine, or install matching ones',
  804: 'the compatibility package of the driver does not support this device; take it off LD_LIBRARY_PATH',
};

/** A call of a CUDA library that failed. */
export class CudaError extends GpuosError {
  /** The function: `cuMemAlloc_v2`. */
  readonly call: string;
  readonly result: number;
  /** The library's name for the result: `CUDA_ERROR_OUT_OF_MEMORY`. */
  readonly resultName: string;
  constructor(code: ErrorCode, message: string, failure: { call: string; result: number; resultName: string }) {
    super(code, message);
    this.call = failure.call;
    this.result = failure.result;
    this.resultName = failure.resultName;
  }
}
