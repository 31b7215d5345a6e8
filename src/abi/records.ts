import { struct } from './struct.ts';

/** The root of all shared state; stands at CONTROL_ADDRESS. */
export const control = struct('control', 256, 64, {
  abiVersion: { type: 'u32', about: 'ABI_VERSION' },
  queues: { type: 'u32', about: 'number of queues' },
  workers: { type: 'u32', about: 'number of worker records, the host (0) included' },
  queueRecords: { type: 'u32', about: 'address of the queue records' },
  workerRecords: { type: 'u32', about: 'address of the worker records' },
  operatorTable: { type: 'u32', about: 'address of the operator table' },
  scratch: { type: 'u32', about: 'address of the scratch areas' },
  spinLimit: { type: 'u32', about: 'empty polls of a worker before it parks' },
  yieldEvery: { type: 'u32', about: 'tiles after which a worker leaves its loop once; 0: never' },
  epoch: { type: 'u32', about: 'table epoch: raised before a function is published' },
  quit: { type: 'u32', at: 64, about: '1: leave the loop' },
  heartbeat: { type: 'u32', about: 'grows while the host is alive: a resident kernel leaves when it has stood still for two seconds' },
  doorbell: { type: 'u32', at: 128, about: 'what a parked worker waits on' },
  parked: { type: 'u32', about: 'workers that are parked or about to be' },
  hostWaiting: { type: 'u32', at: 192, about: 'hosts that sleep on a mark: a worker that moves one notifies' },
});

/** A queue: constants in the first line, then one line for each value that several threads write. */
export const queueRecord = struct('queueRecord', 256, 64, {
  ring: { type: 'u32', about: 'address of the descriptor slots' },
  completions: { type: 'u32', about: 'address of the completion words: {sequence, status}' },
  tileWords: { type: 'u32', about: 'address of the tile words: MAX_TILES rows of one word a slot' },
  resolutions: { type: 'u32', about: 'address of the resolution words: {sequence, function}' },
  mask: { type: 'u32', about: 'slots - 1' },
  cursor: { type: 'u64', at: 64, about: '{sequence, tile}: the first tile that may be unclaimed' },
  mark: { type: 'u32', at: 128, about: 'first sequence that is not complete' },
  failures: { type: 'u32', about: 'changes before a task ends with a status other than OK' },
  tail: { type: 'u32', at: 192, about: 'next sequence that the host writes (its own copy counts; this one is for onlookers)' },
});

/** A worker's record; 0 is the host. Only the worker writes its counters. */
export const workerRecord = struct('workerRecord', 128, 64, {
  state: { type: 'u32', about: 'WORKER_STATE' },
  epoch: { type: 'u32', about: 'table epoch that the worker has installed' },
  busy: { type: 'u32', about: '1 while a tile runs' },
  queue: { type: 'u32', about: 'queue of the tile that it runs or ran last' },
  sequence: { type: 'u32', about: 'task of that tile' },
  tile: { type: 'u32', about: 'the tile' },
  operator: { type: 'u32', about: 'its operator slot' },
  beats: { type: 'u32', about: 'grows at every tile begun and ended: the watchdog looks for a value that stands still while busy' },
  tiles: { type: 'u64', about: 'counter: tiles run' },
  tasks: { type: 'u64', about: 'counter: tasks completed (the last tile was its own)' },
  failed: { type: 'u64', about: 'counter: tiles that ended with a failure' },
  parks: { type: 'u64', about: 'counter: times parked' },
  installs: { type: 'u64', about: 'counter: times it brought its function table up to date' },
  polls: { type: 'u64', about: 'counter: polls that found nothing' },
});

/** A slot of the operator table. {fn, version} is read and written as one 64-bit word. */
export const operatorSlot = struct('operatorSlot', 16, 16, {
  fn: { type: 'u32', about: 'function index; 0: empty' },
  version: { type: 'u32', about: 'version of the operator' },
  state: { type: 'u32', about: 'SLOT_STATE' },
});

/** One record of the trace buffer (issue of its own: the layout is fixed here so that devices agree). */
export const traceRecord = struct('traceRecord', 64, 64, {
  sequence: { type: 'u32', about: 'task' },
  trace: { type: 'u32', about: "the descriptor's trace id" },
  operator: { type: 'u32', about: 'operator slot' },
  version: { type: 'u32', about: 'version that ran' },
  queue: { type: 'u16', about: 'queue' },
  worker: { type: 'u16', about: 'worker or SM' },
  tile: { type: 'u16', about: 'tile' },
  status: { type: 'u16', about: 'STATUS' },
  enqueueNs: { type: 'u64', about: 'written into the ring' },
  dequeueNs: { type: 'u64', about: 'claimed' },
  startNs: { type: 'u64', about: 'function entered' },
  endNs: { type: 'u64', about: 'function left' },
});
