/** Errors on their way between processes. */
import { ERRORS, type ErrorCode, GpuosError } from '../../../errors.ts';
import { CudaError } from '../cuda-error.ts';

export interface Failure {
  readonly code: ErrorCode;
  /** Without the code and the remedy, which the error puts there itself. */
  readonly message: string;
  /** Of a call of a CUDA library that failed. */
  readonly call?: string;
  readonly result?: number;
  readonly resultName?: string;
}

export function toFailure(error: unknown): Failure {
  if (!(error instanceof GpuosError)) {
    const message = error instanceof Error ? (error.stack ?? error.message) : String(error);
    return { code: 'GPUOS_INTERNAL', message };
  }
  const suffix = ` [${error.code}] ${error.remedy}`;
  const message = error.message.endsWith(suffix) ? error.message.slice(0, -suffix.length) : error.message;
  if (!(error instanceof CudaError)) return { code: error.code, message };
  const { call, result, resultName } = error;
  return { code: error.code, message, call, result, resultName };
}

/** An error like the one that the other process had; of a failure that makes no sense, GPUOS_INTERNAL. */
export function toError(value: unknown): GpuosError {
  const { code, message, call, result, resultName } = (typeof value === 'object' && value !== null ? value : {}) as Partial<Failure>;
  if (typeof code !== 'string' || !Object.hasOwn(ERRORS, code) || typeof message !== 'string') {
    return new GpuosError('GPUOS_INTERNAL', `The device process reported a failure that cannot be read: ${JSON.stringify(value)}.`);
  }
  if (typeof call !== 'string' || typeof result !== 'number' || typeof resultName !== 'string') return new GpuosError(code, message);
  return new CudaError(code, message, { call, result, resultName });
}
