/** Which tasks a fault of the device is put down to. The device tells no more than that there was one. */
import { STATUS } from '../../../abi/status.ts';
import { CudaError } from '../cuda-error.ts';
import type { SegmentLayout } from '../layout.ts';
import { toFailure } from './failure.ts';
import { SegmentTasks, taskText } from './segment-tasks.ts';

/** As many are named. */
const NAMED = 4;

/**
 * The fault with the tasks that may have caused it: those that ran, as far as the segment tells. One that ran alone
 * ends with TRAPPED.
 */
export function blame(words: Int32Array, layout: SegmentLayout, fault: CudaError): CudaError {
  const tasks = new SegmentTasks(words, layout);
  const open = tasks.open();
  const [first] = open;
  if (first === undefined) return fault;
  if (open.length === 1) tasks.end(first, STATUS.TRAPPED);
  const more = open.length > NAMED ? ` and ${open.length - NAMED} more` : '';
  const { message } = toFailure(fault);
  const { code, call, result, resultName } = fault;
  const names = open.slice(0, NAMED).map(taskText).join(', ');
  return new CudaError(code, `${message} When that happened, there ran, or could: ${names}${more}.`, { call, result, resultName });
}
