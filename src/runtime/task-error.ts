import { STATUS } from '../abi/status.ts';
import { type ErrorCode, GpuosError } from '../errors.ts';

const CODES: Readonly<Record<number, readonly [ErrorCode, string]>> = {
  [STATUS.FAILED]: ['GPUOS_TASK_FAILED', 'failed'],
  [STATUS.TRAPPED]: ['GPUOS_TASK_TRAPPED', 'trapped'],
  [STATUS.DEPENDENCY_FAILED]: ['GPUOS_DEPENDENCY_FAILED', 'was not run, since a task that it depends on failed'],
  [STATUS.KILLED]: ['GPUOS_OPERATOR_KILLED', 'was refused: its operator is killed'],
  [STATUS.EMPTY_SLOT]: ['GPUOS_OPERATOR_EMPTY', 'was refused: its operator slot is empty'],
  [STATUS.OUT_OF_RANGE_ID]: ['GPUOS_OPERATOR_OUT_OF_RANGE', 'was refused: its operator id is past the table'],
  [STATUS.WORKER_LOST]: ['GPUOS_WORKER_LOST', 'was lost with its worker'],
  [STATUS.CANCELLED]: ['GPUOS_SHUT_DOWN', 'was cancelled by shutdown'],
  [STATUS.TIMEOUT]: ['GPUOS_TASK_TIMEOUT', 'ran past its budget'],
  [STATUS.OUT_OF_RANGE]: ['GPUOS_INDEX_OUT_OF_RANGE', 'met an index that is out of range'],
};

/** How a task that did not end with OK is told to the caller. */
export function taskError(status: number, queue: number, sequence: number, operator: string, cause?: unknown): GpuosError {
  const [code, what] = CODES[status] ?? (['GPUOS_TASK_FAILED', `ended with status ${status}`] as const);
  return new GpuosError(
    code,
    `Task ${sequence} of queue ${queue} (operator ${operator}) ${what}.`,
    cause === undefined ? undefined : { cause },
  );
}
