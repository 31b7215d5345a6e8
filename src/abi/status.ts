/** How a task ended: the low word of its completion. */
export const STATUS = {
  OK: 0,
  /** The operator reported a failure. */
  FAILED: 1,
  /** The operator trapped (wasm) or faulted. */
  TRAPPED: 2,
  /** A task that this one depends on failed; it did not run. */
  DEPENDENCY_FAILED: 3,
  /** The operator's kill bit was set. */
  KILLED: 4,
  /** The operator's slot is empty. */
  EMPTY_SLOT: 5,
  /** The operator id is past the table. */
  OUT_OF_RANGE_ID: 6,
  /** The worker that ran the task died. */
  WORKER_LOST: 7,
  /** Cancelled by shutdown or the loss of the device. */
  CANCELLED: 8,
  /** Ended by the watchdog. */
  TIMEOUT: 9,
  /** An index in the task's data is out of range. */
  OUT_OF_RANGE: 10,
} as const;

/** Bits of the descriptor's `flags`. */
export const FLAG = {
  /** A control task: later tasks of its queue are not begun before it has completed. */
  BARRIER: 1,
  /** Wait until every task of the queue up to and including `after` has completed. */
  AFTER: 2,
  /** `params` points to the parameter block; without it the block starts at the descriptor's `pointers`. */
  PARAMS: 4,
  /**
   * Shifted left by i: a tile of this task needs only the same tile of dependency i, which has as many
   * tiles. It may run when that tile is done, before the whole of that task is.
   */
  TILEWISE: 256,
} as const;

/** What a worker is doing: the `state` of its record. */
export const WORKER_STATE = {
  STARTING: 0,
  RUNNING: 1,
  PARKED: 2,
  YIELDED: 3,
  DEAD: 4,
  LEFT: 5,
} as const;

/** Low byte of a tile word: who has the tile is in bits 8..23, its status in bits 24..31, its task's sequence in the high word. */
export const TILE = {
  CLAIMED: 1,
  DONE: 2,
} as const;

/** Operator slots' `state`. */
export const SLOT_STATE = {
  LIVE: 0,
  KILLED: 1,
} as const;

/** What a control task does: the first word of its parameters. Words of each: see `runtime/operators.ts`, and for ENTER the cuda device. */
export const CHANGE = {
  /** A slot holds another function, or none. */
  PUBLISH: 1,
  KILL: 2,
  REVIVE: 3,
  /** A function's number stands for other code. Devices whose functions are installed by their host have no such change. */
  ENTER: 4,
} as const;

/** No queue: the value of an unused entry of `dependencyQueues`. */
export const NO_QUEUE = 255;

/** Most tiles that one task may have. */
export const MAX_TILES = 64;

/** Slots of the operator table. */
export const OPERATOR_SLOTS = 4096;

/** Function indices: the same in every worker's table. More than slots, since an old version lives on while tasks use it. */
export const FUNCTION_SLOTS = 8192;

/** Scratch memory of each worker, in bytes. */
export const SCRATCH_BYTES = 1 << 20;

/** Where the control block stands in device memory. */
export const CONTROL_ADDRESS = 1024;

/** Raised whenever a layout or the meaning of a field changes. */
export const ABI_VERSION = 1;
