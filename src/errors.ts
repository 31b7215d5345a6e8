/**
 * Every error that gpuos raises, in one table: a stable code, and the remedy that is printed with it.
 * `docs/errors.md` has the same list, held equal by a test.
 */
export const ERRORS = {
  GPUOS_ALREADY_INITIALIZED: 'Call shutdown() on the running system before init(), or use the one that current() returns.',
  GPUOS_NOT_INITIALIZED: 'Call init() first.',
  GPUOS_SHUT_DOWN: 'The system has been shut down; call init() for a new one and create the tensors again.',
  GPUOS_UNKNOWN_FLAG: 'Check the spelling against docs/flags.md.',
  GPUOS_BAD_FLAG: 'Give the flag a value of the kind that docs/flags.md states.',
  GPUOS_BAD_OPTION: 'Check the options against the documentation of the call.',
  GPUOS_UNKNOWN_DEVICE: 'Choose one of the devices that `gpuos info` lists.',
  GPUOS_NO_SHARED_MEMORY: 'Run Node.js 20.3 or newer without flags that disable SharedArrayBuffer or WebAssembly.',
  GPUOS_OUT_OF_MEMORY: 'Dispose of tensors that are no longer needed, or raise GPUOS_MEMORY_MIB.',
  GPUOS_SHAPE_MISMATCH: 'Make the shapes agree as the message states.',
  GPUOS_DTYPE_MISMATCH: 'Cast the tensor to the dtype that the message states.',
  GPUOS_BAD_SHAPE: 'Give dimensions that are integers of at least 0.',
  GPUOS_BAD_AXIS: 'Give an axis that the tensor has; negative axes count from the end.',
  GPUOS_BAD_ATTRIBUTE: 'Give the attribute a value in the range that the message states.',
  GPUOS_INDEX_OUT_OF_RANGE: 'Give indices and positions that lie within the tensor that they address.',
  GPUOS_TENSOR_DISPOSED: 'Keep the tensor alive (do not dispose of it, return it from tidy) until its last use.',
  GPUOS_UNKNOWN_OPERATOR: 'Use an operator of the library or one that inject() returned.',
  GPUOS_OPERATOR_OUT_OF_RANGE: 'Use an operator id that inject() returned or that the operator table lists.',
  GPUOS_OPERATOR_EMPTY: 'The slot holds no operator; inject one first.',
  GPUOS_OPERATOR_KILLED: 'The operator was killed; revive() it, or use another.',
  GPUOS_OPERATOR_TABLE_FULL: 'Release injected operators that are no longer needed.',
  GPUOS_BAD_TEMPLATE: 'Use one of the curated templates, with parameters of the types and ranges that it declares.',
  GPUOS_TASK_FAILED: 'The operator reported a failure; check its inputs.',
  GPUOS_TASK_TRAPPED: 'The operator trapped; check that its pointers and sizes are right.',
  GPUOS_DEPENDENCY_FAILED: 'A task that this one depends on failed; see the cause.',
  GPUOS_WORKER_LOST: 'The worker that ran the task died and has been replaced; submit the task again.',
  GPUOS_TASK_TIMEOUT: 'The task ran past its budget and was ended; check the operator, or raise GPUOS_TASK_BUDGET_MS.',
  GPUOS_DEVICE_LOST: 'The device is gone; call shutdown() and init() again.',
  GPUOS_DEVICE_BUSY: 'Wait for the tasks that run, then try again.',
  GPUOS_QUEUE_FULL: 'Wait for tasks to complete, or submit with wait: true.',
  GPUOS_BAD_DESCRIPTOR: 'Give the task fields that the message states.',
  GPUOS_BAD_DEPENDENCY: 'Depend only on tasks that have been submitted.',
  GPUOS_ABI_MISMATCH: 'Build the package again: host and device disagree on the layout of shared memory.',
  GPUOS_BAD_CUBIN: 'Compile the operator again; if it comes from a cache, delete its entry there.',
  GPUOS_CUDA_UNAVAILABLE:
    'Install or repair what the message names; `gpuos info` lists what was found, and the wasm device works without it.',
  GPUOS_CUDA_TOO_OLD: 'Update what the message names to the version that it states; the wasm device works without it.',
  GPUOS_CUDA_CALL_FAILED:
    'See the call and the name of its error in the message; if it persists, report it with the output of `gpuos info`.',
  GPUOS_COMPILE_FAILED: "Correct the source or the options as the compiler's log in the message states.",
  GPUOS_NOT_INJECTABLE: 'This is a defect of gpuos, which emitted the code; please report it with the message.',
  GPUOS_BACKEND_TAKEN_OVER: 'Another module selected its own tfjs backend; set GPUOS_TFJS=force, or call tf.setBackend("gpuos") after it.',
  GPUOS_BASELINE_UNAVAILABLE: 'Install the baseline package that the message names.',
  GPUOS_PACKAGE_MISSING: 'Install the package that the message names.',
  GPUOS_INPUT_UNREADABLE: 'Name a file that exists and that you may read.',
  GPUOS_INPUT_EMPTY: 'Give a text with at least one sentence.',
  GPUOS_INPUT_BINARY: 'Give a plain text file in UTF-8.',
  GPUOS_INPUT_TOO_LARGE: 'Give a smaller file, or one with line breaks.',
  GPUOS_INDEX_DAMAGED: 'The index is built again by itself; pass --no-cache to leave the cache alone.',
  GPUOS_QUERY_EMPTY: 'Give a query of at least one word.',
  GPUOS_OUTPUT_UNWRITABLE: 'Name a file or folder that you may write.',
  GPUOS_BENCH_FAILED: 'See the message of each suite that failed; the rows of the others stand.',
  GPUOS_USAGE: 'Run the command with --help.',
  GPUOS_INTERNAL: 'This is a defect of gpuos; please report it with the message.',
} as const;

export type ErrorCode = keyof typeof ERRORS;

/** An error with a stable `code` and a `remedy`: what the user can do about it. */
export class GpuosError extends Error {
  readonly code: ErrorCode;
  readonly remedy: string;
  constructor(code: ErrorCode, message: string, options?: { cause?: unknown }) {
    super(`${message} [${code}] ${ERRORS[code]}`, options);
    this.name = 'GpuosError';
    this.code = code;
    this.remedy = ERRORS[code];
  }
}
