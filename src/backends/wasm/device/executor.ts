// The resident executor. Every worker, and the host as worker 0, runs this code over the same shared
// memory; no thread is special. A task moves through these words, all of them atomic:
//
//   descriptor tags   written by the host: the task is there
//   cursor            {sequence, tile}: the first tile of the queue that may be unclaimed
//   tile word         {sequence, owner, CLAIMED or DONE, status}: the claim itself names the owner,
//                     so there is no moment at which a claimed tile is nobody's
//   completion        {sequence, status}: written once, by whoever sees the last tile done
//   mark              first sequence of the queue that is not complete
//
// Every step after a claim can be repeated by anyone with the same effect. That is what makes a
// worker's death harmless: others help the cursor and the mark forward, and recover() ends its tile.
//
// The loop is `run`; what it calls is kept in functions of its own, since V8 replaces code that its
// baseline compiler made only at calls: a loop that never returns would stay slow for ever.

import {
  CONTROL_ADDRESS,
  CONTROL_DOORBELL,
  CONTROL_EPOCH,
  CONTROL_HOST_WAITING,
  CONTROL_OPERATOR_TABLE,
  CONTROL_PARKED,
  CONTROL_QUEUE_RECORDS,
  CONTROL_QUEUES,
  CONTROL_QUIT,
  CONTROL_SCRATCH,
  CONTROL_SPIN_LIMIT,
  CONTROL_WORKER_RECORDS,
  CONTROL_YIELD_EVERY,
  DESCRIPTOR_AFTER,
  DESCRIPTOR_DEPENDENCIES,
  DESCRIPTOR_DEPENDENCY_QUEUES,
  DESCRIPTOR_FLAGS,
  DESCRIPTOR_OPERATOR,
  DESCRIPTOR_PARAMS,
  DESCRIPTOR_POINTERS,
  DESCRIPTOR_TAG0,
  DESCRIPTOR_TAG1,
  DESCRIPTOR_TILES,
  FLAG_AFTER,
  FLAG_BARRIER,
  FLAG_PARAMS,
  FLAG_TILEWISE,
  MAX_TILES,
  NO_QUEUE,
  OPERATOR_SLOT_BYTES,
  OPERATOR_SLOT_STATE,
  OPERATOR_SLOTS,
  QUEUE_RECORD_BYTES,
  QUEUE_RECORD_COMPLETIONS,
  QUEUE_RECORD_CURSOR,
  QUEUE_RECORD_FAILURES,
  QUEUE_RECORD_MARK,
  QUEUE_RECORD_MASK,
  QUEUE_RECORD_RESOLUTIONS,
  QUEUE_RECORD_RING,
  QUEUE_RECORD_TAIL,
  QUEUE_RECORD_TILE_WORDS,
  SCRATCH_BYTES,
  SLOT_STATE_KILLED,
  STATUS_DEPENDENCY_FAILED,
  STATUS_EMPTY_SLOT,
  STATUS_KILLED,
  STATUS_OK,
  STATUS_OUT_OF_RANGE_ID,
  STATUS_WORKER_LOST,
  TILE_CLAIMED,
  TILE_DONE,
  WORKER_RECORD_BEATS,
  WORKER_RECORD_BUSY,
  WORKER_RECORD_BYTES,
  WORKER_RECORD_EPOCH,
  WORKER_RECORD_FAILED,
  WORKER_RECORD_INSTALLS,
  WORKER_RECORD_OPERATOR,
  WORKER_RECORD_PARKS,
  WORKER_RECORD_POLLS,
  WORKER_RECORD_QUEUE,
  WORKER_RECORD_SEQUENCE,
  WORKER_RECORD_STATE,
  WORKER_RECORD_TASKS,
  WORKER_RECORD_TILE,
  WORKER_RECORD_TILES,
  WORKER_STATE_PARKED,
  WORKER_STATE_RUNNING,
} from './abi.generated';

/** Brings this thread's function table up to `epoch`; returns the epoch that it has then. */
// @ts-ignore: decorator
@external('env', 'install')
declare function install(epoch: u32): u32;

/** In the build for tests (FAULT_POINTS is 1, else 0): may end this thread, to show that any step can be the last. */
// @ts-ignore: decorator
@external('env', 'fault')
declare function fault(point: u32, worker: u32): void;

// What a look at a queue found, in rising order of interest.
const NOTHING: i32 = 0;
/** There is a task, but something that it depends on is not complete. */
const WAITING: i32 = 1;
/** There is a task that could run, but it was left to the workers. */
const LEFT: i32 = 2;
const RAN: i32 = 3;

// Why `run` returned.
const QUIT: i32 = 1;
const YIELD: i32 = 2;

// Fault points, in the order in which a tile passes them.
const AFTER_CLAIM: u32 = 1;
const AFTER_CURSOR: u32 = 2;
const AFTER_RUN: u32 = 3;
const AFTER_DONE: u32 = 4;
const AFTER_COMPLETION: u32 = 5;

/** The queue that control tasks go through. */
const CONTROL_QUEUE: u32 = 0;
const NO_DEPENDENCIES: u32 = 0xffffffff;
/** Tasks that a thread follows with one tile before it looks at the other queues. */
const MOST_FOLLOWS: u32 = 128;
/**
 * Tasks whose completion a thread may owe while it follows a tile. To see whether a task is complete it
 * reads the words of the other tiles, which their threads are writing: a line that goes to and fro between
 * cores for each task costs more than a small tile.
 */
const MOST_OWED: u32 = 16;
/** Longest pause, in ns, between two looks of a worker that finds nothing. */
const LONGEST_RELAX: u32 = 80;
/** A parked worker looks up this often without being woken: a bound on any mistake, not a way to notice work. */
const PARK_NS: i64 = 100_000_000;
/** While a dependency runs elsewhere no doorbell will ring, so the wait is short. */
const WAITING_PARK_NS: i64 = 100_000;

// Each thread has its own instance of this module, hence its own copy of these.
let rotor: u32 = 0;
let installedEpoch: u32 = 0;
/** The tile that this thread ran last, of a task of several tiles that may go on in the next task: see followTile(). */
let followQueue: u32 = NO_QUEUE;
let followSequence: u32 = 0;
let followTileIndex: u32 = 0;
let followTiles: u32 = 0;
/** Tiles that it may still run in that way before the other queues have their turn. */
let followsLeft: u32 = 0;
/** Tasks [owedFirst, owedEnd) of `owedQueue`: this thread has ended a tile of each and not looked whether that was the last. */
let owedQueue: u32 = 0;
let owedFirst: u32 = 0;
let owedEnd: u32 = 0;
/** Tiles that the last step() ran. */
let tilesRun: u32 = 0;
/** So that relax() is not nothing. */
let relaxed: u32 = 0;
/** This thread is counted in `parked`. */
let announced: bool = false;

// @ts-ignore: decorator
@inline
function queueAddress(queue: u32): u32 {
  return load<u32>(CONTROL_ADDRESS + CONTROL_QUEUE_RECORDS) + queue * QUEUE_RECORD_BYTES;
}

// @ts-ignore: decorator
@inline
function workerAddress(worker: u32): u32 {
  return load<u32>(CONTROL_ADDRESS + CONTROL_WORKER_RECORDS) + worker * WORKER_RECORD_BYTES;
}

// @ts-ignore: decorator
@inline
function descriptorAddress(q: u32, sequence: u32): u32 {
  return load<u32>(q + QUEUE_RECORD_RING) + ((sequence & load<u32>(q + QUEUE_RECORD_MASK)) << 7);
}

// @ts-ignore: decorator
@inline
function completionAddress(q: u32, sequence: u32): u32 {
  return load<u32>(q + QUEUE_RECORD_COMPLETIONS) + ((sequence & load<u32>(q + QUEUE_RECORD_MASK)) << 3);
}

// @ts-ignore: decorator
@inline
function tileWordAddress(q: u32, sequence: u32, tile: u32): u32 {
  // The words of one tile of successive tasks lie together: a thread that follows a tile keeps their line to itself.
  const mask = load<u32>(q + QUEUE_RECORD_MASK);
  return load<u32>(q + QUEUE_RECORD_TILE_WORDS) + ((tile * (mask + 1) + (sequence & mask)) << 3);
}

// @ts-ignore: decorator
@inline
function pack(sequence: u32, low: u32): u64 {
  return ((<u64>sequence) << 32) | (<u64>low);
}

// @ts-ignore: decorator
@inline
function sequenceOf(word: u64): u32 {
  return <u32>(word >> 32);
}

/** Modulo 2^32: whether `a` comes before `b`. */
// @ts-ignore: decorator
@inline
function isBefore(a: u32, b: u32): bool {
  return <i32>(a - b) < 0;
}

// @ts-ignore: decorator
@inline
function count(record: u32, field: u32): void {
  store<u64>(record + field, load<u64>(record + field) + 1);
}

/** Both lines of the descriptor are of task `sequence`. */
function tagsMatch(d: u32, sequence: u32): bool {
  return atomic.load<u32>(d + DESCRIPTOR_TAG0) == sequence && atomic.load<u32>(d + DESCRIPTOR_TAG1) == sequence;
}

/** Tile counts come from memory that others can write; an impossible one must not lead past the tile words. */
// @ts-ignore: decorator
@inline
function tileCount(d: u32): u32 {
  const tiles = atomic.load<u32>(d + DESCRIPTOR_TILES);
  return tiles == 0 ? 1 : tiles > MAX_TILES ? MAX_TILES : tiles;
}

/** Tile `tile` of a task that is not complete as a whole is done, and well. */
function tileDone(q: u32, sequence: u32, tile: u32): bool {
  const word = atomic.load<u64>(tileWordAddress(q, sequence, tile));
  return sequenceOf(word) == sequence && (<u32>word & 0xff) == TILE_DONE && <u32>word >> 24 == STATUS_OK;
}

/** Of tile `tile`: STATUS_OK: may run; STATUS_DEPENDENCY_FAILED: must fail; -1: not yet. */
function dependenciesDone(q: u32, d: u32, flags: u32, queues: u32, tile: u32): i32 {
  if (flags & FLAG_AFTER) {
    const after = atomic.load<u32>(d + DESCRIPTOR_AFTER);
    if (!isBefore(after, atomic.load<u32>(q + QUEUE_RECORD_MARK))) return -1;
  }
  let status: i32 = STATUS_OK;
  if (queues == NO_DEPENDENCIES) return status;
  for (let i: u32 = 0; i < 4; i++) {
    const queue = (queues >> (i << 3)) & 0xff;
    if (queue == NO_QUEUE) continue;
    if (queue >= load<u32>(CONTROL_ADDRESS + CONTROL_QUEUES)) return STATUS_DEPENDENCY_FAILED;
    const dependency = atomic.load<u32>(d + DESCRIPTOR_DEPENDENCIES + (i << 2));
    const other = queueAddress(queue);
    // This tile needs only the same tile of that task. Looked at first: its word is in this core's cache if this thread ran it.
    if ((flags & (FLAG_TILEWISE << i)) != 0 && tileDone(other, dependency, tile)) continue;
    const word = atomic.load<u64>(completionAddress(other, dependency));
    if (isBefore(sequenceOf(word), dependency)) return -1;
    // A word of a later task means that this one was retired long ago; the host knows how it ended.
    if (sequenceOf(word) == dependency && <u32>word != STATUS_OK) status = STATUS_DEPENDENCY_FAILED;
  }
  return status;
}

/** The function that stands for the task's operator; all tiles of a task get the same. 0: the slot is empty. */
function resolveFunction(q: u32, queue: u32, sequence: u32, tiles: u32, operator: u32): u32 {
  const entry = load<u32>(CONTROL_ADDRESS + CONTROL_OPERATOR_TABLE) + operator * OPERATOR_SLOT_BYTES;
  const fn = <u32>atomic.load<u64>(entry);
  // The claim that follows shows that no later control task of this queue had begun, and control tasks go through this one alone.
  if (tiles == 1 || queue == CONTROL_QUEUE) return fn;
  const address = load<u32>(q + QUEUE_RECORD_RESOLUTIONS) + ((sequence & load<u32>(q + QUEUE_RECORD_MASK)) << 3);
  const word = atomic.load<u64>(address);
  // A word of a later task means that this look is an old one; its claim will fail, and the word must stay.
  if (!isBefore(sequenceOf(word), sequence)) return <u32>word;
  const seen = atomic.cmpxchg<u64>(address, word, pack(sequence, fn));
  return seen == word ? fn : <u32>seen;
}

/**
 * Installs what was published since this thread last looked. Called after the function was read: the host
 * raises the epoch before it publishes. (The descriptor's own epoch would not do: a flip through another
 * queue may have come after it was written.)
 */
function catchUp(worker: u32): void {
  const epoch = atomic.load<u32>(CONTROL_ADDRESS + CONTROL_EPOCH);
  if (!isBefore(installedEpoch, epoch)) return;
  installedEpoch = install(epoch);
  const record = workerAddress(worker);
  atomic.store<u32>(record + WORKER_RECORD_EPOCH, installedEpoch);
  count(record, WORKER_RECORD_INSTALLS);
}

/** Moves the cursor past tile `tile` of task `sequence`; nothing happens when someone did it before. */
function advanceCursor(q: u32, sequence: u32, tile: u32, tiles: u32): void {
  const next = tile + 1 < tiles ? pack(sequence, tile + 1) : pack(sequence + 1, 0);
  atomic.cmpxchg<u64>(q + QUEUE_RECORD_CURSOR, pack(sequence, tile), next);
}

/** Ends the task when all of its tiles are done. The status is that of the first tile that failed. */
function publishCompletion(q: u32, sequence: u32, tiles: u32): bool {
  const address = completionAddress(q, sequence);
  // Read before the tiles: should the slot be used anew meanwhile, the exchange below must fail.
  const word = atomic.load<u64>(address);
  if (!isBefore(sequenceOf(word), sequence)) return false;
  let status: u32 = STATUS_OK;
  for (let tile: u32 = 0; tile < tiles; tile++) {
    const t = atomic.load<u64>(tileWordAddress(q, sequence, tile));
    if (sequenceOf(t) != sequence || (<u32>t & 0xff) != TILE_DONE) return false;
    if (status == STATUS_OK) status = (<u32>t >> 24) & 0xff;
  }
  // Before the exchange: a host that sees the completion must also see that something failed.
  if (status != STATUS_OK) atomic.add<u32>(q + QUEUE_RECORD_FAILURES, 1);
  return atomic.cmpxchg<u64>(address, word, pack(sequence, status)) == word;
}

/** Moves the mark over every task that is complete, and wakes a host that sleeps on it. */
function advanceMark(q: u32): void {
  let moved = false;
  for (;;) {
    const mark = atomic.load<u32>(q + QUEUE_RECORD_MARK);
    if (sequenceOf(atomic.load<u64>(completionAddress(q, mark))) != mark) break;
    if (atomic.cmpxchg<u32>(q + QUEUE_RECORD_MARK, mark, mark + 1) == mark) moved = true;
  }
  if (moved && atomic.load<u32>(CONTROL_ADDRESS + CONTROL_HOST_WAITING) != 0) atomic.notify(q + QUEUE_RECORD_MARK, -1);
}

/** Records the end of a tile. Whoever does owes a look at whether it was the last: see settle(). */
function finishTile(worker: u32, q: u32, queue: u32, sequence: u32, tile: u32, status: u32): void {
  const address = tileWordAddress(q, sequence, tile);
  const claimed = pack(sequence, TILE_CLAIMED | (worker << 8));
  if (atomic.cmpxchg<u64>(address, claimed, pack(sequence, TILE_DONE | (worker << 8) | (status << 24))) != claimed) return;
  if (owedQueue != queue || owedEnd != sequence) {
    settle(worker); // nothing, unless an error unwound out of following
    owedQueue = queue;
    owedFirst = sequence;
  }
  owedEnd = sequence + 1;
  if (FAULT_POINTS) fault(AFTER_DONE, worker);
  const record = workerAddress(worker);
  count(record, WORKER_RECORD_TILES);
  if (status != STATUS_OK) count(record, WORKER_RECORD_FAILED);
}

/** Ends the tasks of which this thread ended a tile that proved to be the last. */
function settle(worker: u32): void {
  if (owedFirst == owedEnd) return;
  const q = queueAddress(owedQueue);
  let published = false;
  for (let sequence = owedFirst; sequence != owedEnd; sequence++) {
    const d = descriptorAddress(q, sequence);
    // Its slot may be a later task's by now: then somebody else has ended it.
    const tiles = tileCount(d);
    if (!tagsMatch(d, sequence) || !publishCompletion(q, sequence, tiles)) continue;
    published = true;
    count(workerAddress(worker), WORKER_RECORD_TASKS);
    if (FAULT_POINTS) fault(AFTER_COMPLETION, worker);
  }
  owedFirst = owedEnd;
  if (published) advanceMark(q);
}

/** Runs a tile that this thread has claimed. */
function runTile(worker: u32, q: u32, queue: u32, d: u32, sequence: u32, tile: u32, tiles: u32, operator: u32, fn: u32, gate: u32): void {
  const record = workerAddress(worker);
  store<u32>(record + WORKER_RECORD_QUEUE, queue);
  store<u32>(record + WORKER_RECORD_SEQUENCE, sequence);
  store<u32>(record + WORKER_RECORD_TILE, tile);
  store<u32>(record + WORKER_RECORD_OPERATOR, operator);
  store<u32>(record + WORKER_RECORD_BEATS, load<u32>(record + WORKER_RECORD_BEATS) + 1);
  atomic.store<u32>(record + WORKER_RECORD_BUSY, 1);
  let status = gate;
  if (status == STATUS_OK) {
    // Read again before each tile: a kill reaches a task of many tiles in its middle.
    const slot = load<u32>(CONTROL_ADDRESS + CONTROL_OPERATOR_TABLE) + operator * OPERATOR_SLOT_BYTES;
    if (atomic.load<u32>(slot + OPERATOR_SLOT_STATE) == SLOT_STATE_KILLED) {
      status = STATUS_KILLED;
    } else {
      const inline = (<u32>load<u16>(d + DESCRIPTOR_FLAGS) & FLAG_PARAMS) == 0;
      const params = inline ? d + DESCRIPTOR_POINTERS : load<u32>(d + DESCRIPTOR_PARAMS);
      const scratch = load<u32>(CONTROL_ADDRESS + CONTROL_SCRATCH) + worker * SCRATCH_BYTES;
      status = call_indirect<u32>(fn, params, tile, tiles, scratch);
    }
  }
  if (FAULT_POINTS) fault(AFTER_RUN, worker);
  atomic.store<u32>(record + WORKER_RECORD_BUSY, 0);
  finishTile(worker, q, queue, sequence, tile, status);
  tilesRun++;
  store<u32>(record + WORKER_RECORD_BEATS, load<u32>(record + WORKER_RECORD_BEATS) + 1);
  followQueue = tiles > 1 && status == STATUS_OK ? queue : NO_QUEUE;
  followSequence = sequence;
  followTileIndex = tile;
  followTiles = tiles;
}

/** Follows a tile as far as it goes, at most `MOST_OWED` tasks, and ends what that completed. */
function follow(worker: u32): void {
  const most = load<u32>(CONTROL_ADDRESS + CONTROL_YIELD_EVERY) == 0 ? MOST_OWED : 1;
  for (let i: u32 = 1; i < most && followQueue != NO_QUEUE && followsLeft > 0; i++) {
    if (!followTile(worker)) break;
    followsLeft--;
  }
  settle(worker);
}

/**
 * Goes on with the tile that this thread ran last, in the next task of the queue: what it reads is in
 * this core's cache. That task may lie ahead of the cursor; the claim is the exchange of the tile word,
 * as always. Its success shows that the task was incomplete ever since the word was read, first of all,
 * so that its slot was not used anew and all that was read is its own. A control task has one tile, so
 * nobody gets past one in this way.
 */
function followTile(worker: u32): bool {
  const queue = followQueue;
  followQueue = NO_QUEUE;
  const q = queueAddress(queue);
  const sequence = followSequence + 1;
  const tile = followTileIndex;
  const address = tileWordAddress(q, sequence, tile);
  const word = atomic.load<u64>(address);
  if (!isBefore(sequenceOf(word), sequence)) return false;
  const d = descriptorAddress(q, sequence);
  if (!tagsMatch(d, sequence)) return false;
  const tiles = tileCount(d);
  if (tiles != followTiles) return false;
  const operator = atomic.load<u32>(d + DESCRIPTOR_OPERATOR);
  const flags = <u32>atomic.load<u16>(d + DESCRIPTOR_FLAGS);
  const gate = dependenciesDone(q, d, flags, atomic.load<u32>(d + DESCRIPTOR_DEPENDENCY_QUEUES), tile);
  // What has to fail, fails on the ordinary way.
  if (gate != STATUS_OK || operator >= OPERATOR_SLOTS) return false;
  const fn = resolveFunction(q, queue, sequence, tiles, operator);
  if (fn == 0) return false;
  catchUp(worker);
  if (atomic.cmpxchg<u64>(address, word, pack(sequence, TILE_CLAIMED | (worker << 8))) != word) return false;
  if (FAULT_POINTS) fault(AFTER_CLAIM, worker);
  runTile(worker, q, queue, d, sequence, tile, tiles, operator, fn, gate);
  return true;
}

/** Takes the first tile of the queue that can be taken, and runs it. With `shared` only tasks of several tiles are taken. */
function claimTile(worker: u32, q: u32, queue: u32, shared: bool): i32 {
  for (;;) {
    const cursor = atomic.load<u64>(q + QUEUE_RECORD_CURSOR);
    const sequence = sequenceOf(cursor);
    const tile = <u32>cursor;
    const d = descriptorAddress(q, sequence);
    if (!tagsMatch(d, sequence)) return NOTHING;

    const operator = atomic.load<u32>(d + DESCRIPTOR_OPERATOR);
    const flags = <u32>atomic.load<u16>(d + DESCRIPTOR_FLAGS);
    const tiles = tileCount(d);
    const queues = atomic.load<u32>(d + DESCRIPTOR_DEPENDENCY_QUEUES);
    let gate = dependenciesDone(q, d, flags, queues, tile);
    // The host writes a slot anew only when both the mark and the cursor are past its task: while the
    // cursor still stands at this task, what was read belongs to it.
    if (sequenceOf(atomic.load<u64>(q + QUEUE_RECORD_CURSOR)) != sequence) continue;

    const address = tileWordAddress(q, sequence, tile);
    const word = atomic.load<u64>(address);
    if (!isBefore(sequenceOf(word), sequence)) {
      if (sequenceOf(word) != sequence) continue; // the cursor was old
      if ((flags & FLAG_BARRIER) != 0 && sequenceOf(atomic.load<u64>(completionAddress(q, sequence))) != sequence) return WAITING;
      advanceCursor(q, sequence, tile, tiles); // whoever claimed it has not moved the cursor yet
      continue;
    }
    if (gate < 0) return WAITING;
    if (shared && tiles == 1) return LEFT;

    let fn: u32 = 0;
    if (operator < OPERATOR_SLOTS) {
      fn = resolveFunction(q, queue, sequence, tiles, operator);
      if (fn == 0 && gate == STATUS_OK) gate = STATUS_EMPTY_SLOT;
      catchUp(worker);
    } else {
      gate = STATUS_OUT_OF_RANGE_ID;
    }

    if (atomic.cmpxchg<u64>(address, word, pack(sequence, TILE_CLAIMED | (worker << 8))) != word) continue;
    if (FAULT_POINTS) fault(AFTER_CLAIM, worker);
    if ((flags & FLAG_BARRIER) == 0) advanceCursor(q, sequence, tile, tiles);
    if (FAULT_POINTS) fault(AFTER_CURSOR, worker);
    runTile(worker, q, queue, d, sequence, tile, tiles, operator, fn, gate);
    followsLeft = MOST_FOLLOWS;
    if ((flags & FLAG_BARRIER) == 0) follow(worker);
    else {
      settle(worker);
      advanceCursor(q, sequence, tile, tiles);
    }
    return RAN;
  }
}

/** One look at the queues in turn; runs a tile, and perhaps the same tile of tasks that follow. */
export function step(worker: u32, shared: bool): i32 {
  tilesRun = 0;
  if (followQueue != NO_QUEUE && followsLeft > 0) {
    follow(worker);
    if (tilesRun > 0) return RAN;
  }
  followQueue = NO_QUEUE;
  const queues = load<u32>(CONTROL_ADDRESS + CONTROL_QUEUES);
  let found = NOTHING;
  let queue = rotor;
  for (let i: u32 = 0; i < queues; i++) {
    const result = claimTile(worker, queueAddress(queue), queue, shared);
    queue = queue + 1 == queues ? 0 : queue + 1;
    if (result == RAN) {
      rotor = queue; // the next queue comes first next time, so that none is starved
      return RAN;
    }
    if (result > found) found = result;
  }
  return found;
}

/** Sleeps until the doorbell rings. The order counts: announce, look again, then sleep on the value read before. */
function park(worker: u32, ns: i64): void {
  const record = workerAddress(worker);
  const bell = atomic.load<u32>(CONTROL_ADDRESS + CONTROL_DOORBELL);
  atomic.add<u32>(CONTROL_ADDRESS + CONTROL_PARKED, 1);
  announced = true;
  if (step(worker, false) < WAITING + (ns < PARK_NS ? 1 : 0) && atomic.load<u32>(CONTROL_ADDRESS + CONTROL_QUIT) == 0) {
    atomic.store<u32>(record + WORKER_RECORD_STATE, WORKER_STATE_PARKED);
    count(record, WORKER_RECORD_PARKS);
    atomic.wait<i32>(CONTROL_ADDRESS + CONTROL_DOORBELL, bell, ns);
    atomic.store<u32>(record + WORKER_RECORD_STATE, WORKER_STATE_RUNNING);
  }
  leave();
}

/** Takes back the announcement of park(); also when a trap in its second look unwound out of it. */
function leave(): void {
  if (!announced) return;
  announced = false;
  atomic.sub<u32>(CONTROL_ADDRESS + CONTROL_PARKED, 1);
}

/**
 * Takes about `n` ns and touches no memory. Every look at a queue takes lines away from the cores that
 * write them, and makes what is waited for come later: who finds nothing looks less and less often.
 */
function relax(n: u32): void {
  let x = relaxed;
  for (let i: u32 = 0; i < n; i++) x = x * 5 + 1;
  relaxed = x;
}

/** The resident loop of a worker. Returns QUIT (1) or, after `yieldEvery` tiles, YIELD (2). */
export function run(worker: u32): i32 {
  const record = workerAddress(worker);
  atomic.store<u32>(record + WORKER_RECORD_STATE, WORKER_STATE_RUNNING);
  let idle: u32 = 0;
  let ran: u32 = 0;
  for (;;) {
    if (atomic.load<u32>(CONTROL_ADDRESS + CONTROL_QUIT) != 0) return QUIT;
    const found = step(worker, false);
    if (found == RAN) {
      idle = 0;
      const yieldEvery = atomic.load<u32>(CONTROL_ADDRESS + CONTROL_YIELD_EVERY);
      ran += tilesRun;
      if (yieldEvery != 0 && ran >= yieldEvery) return YIELD;
      continue;
    }
    if (++idle < load<u32>(CONTROL_ADDRESS + CONTROL_SPIN_LIMIT)) {
      relax(min<u32>(idle >> 2, LONGEST_RELAX));
      continue;
    }
    store<u64>(record + WORKER_RECORD_POLLS, load<u64>(record + WORKER_RECORD_POLLS) + idle);
    idle = 0;
    park(worker, found == WAITING ? WAITING_PARK_NS : PARK_NS);
  }
  return QUIT; // not reached
}

/**
 * The host's share while it waits: up to `limit` tiles. Returns how many it ran in the high half and
 * what the last look found in the low half (0 nothing, 1 waiting, 2 left to the workers).
 */
export function help(worker: u32, limit: u32, shared: bool): u32 {
  let ran: u32 = 0;
  let found = NOTHING;
  while (ran < limit) {
    found = step(worker, shared);
    if (found != RAN) break;
    ran += tilesRun;
  }
  return (ran << 16) | <u32>found;
}

/** After a trap unwound out of `run` or `help`: ends the tile that was running. False: none was. */
export function failTile(worker: u32, status: u32): bool {
  leave();
  followQueue = NO_QUEUE;
  const record = workerAddress(worker);
  if (atomic.load<u32>(record + WORKER_RECORD_BUSY) == 0) {
    settle(worker);
    return false;
  }
  atomic.store<u32>(record + WORKER_RECORD_BUSY, 0);
  const q = queueAddress(load<u32>(record + WORKER_RECORD_QUEUE));
  const sequence = load<u32>(record + WORKER_RECORD_SEQUENCE);
  const tile = load<u32>(record + WORKER_RECORD_TILE);
  const d = descriptorAddress(q, sequence);
  const tiles = tileCount(d);
  const barrier = (<u32>load<u16>(d + DESCRIPTOR_FLAGS) & FLAG_BARRIER) != 0;
  finishTile(worker, q, load<u32>(record + WORKER_RECORD_QUEUE), sequence, tile, status);
  settle(worker);
  if (barrier) advanceCursor(q, sequence, tile, tiles);
  return true;
}

/**
 * Ends what a dead worker left: its claimed tiles fail with `status` (control tasks are carried out), and every completion and mark
 * that it may have owed is published. Returns the number of tiles that it had. Must end before a
 * worker with the same number starts.
 */
export function recover(dead: u32, status: u32): u32 {
  let tiles: u32 = 0;
  const queues = load<u32>(CONTROL_ADDRESS + CONTROL_QUEUES);
  for (let queue: u32 = 0; queue < queues; queue++) {
    const q = queueAddress(queue);
    // Not only up to the cursor: followTile() claims ahead of it. And the tail's own task as well: the host
    // writes the tail after the tags, so that a task may be claimed that the tail does not count yet.
    const tail = atomic.load<u32>(q + QUEUE_RECORD_TAIL);
    for (let sequence = atomic.load<u32>(q + QUEUE_RECORD_MARK); !isBefore(tail, sequence); sequence++) {
      const d = descriptorAddress(q, sequence);
      // Its slot may be a later task's by now; those behind it still have to be looked at.
      if (!tagsMatch(d, sequence)) continue;
      const n = tileCount(d);
      const claimed = pack(sequence, TILE_CLAIMED | (dead << 8));
      for (let tile: u32 = 0; tile < n; tile++) {
        const address = tileWordAddress(q, sequence, tile);
        if (atomic.load<u64>(address) != claimed) continue;
        // A control task is carried out instead: its stores can be repeated, and a publication that never
        // happened would leave the table with a function that the host takes for replaced.
        const barrier = (<u32>atomic.load<u16>(d + DESCRIPTOR_FLAGS) & FLAG_BARRIER) != 0;
        const outcome = barrier ? <u32>controlTable(d + DESCRIPTOR_POINTERS, 0, 1, 0) : status;
        const lost = pack(sequence, TILE_DONE | (dead << 8) | (outcome << 24));
        if (atomic.cmpxchg<u64>(address, claimed, lost) == claimed) tiles++;
      }
      publishCompletion(q, sequence, n);
      advanceMark(q);
    }
  }
  return tiles;
}

// Operators of the executor itself.

/** Publishes, kills or revives: words are {kind, slot, function, version}; kinds 1, 2 and 3. A barrier task of one tile. */
export function controlTable(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = params + 32;
  const kind = load<u32>(words);
  const slot = load<u32>(CONTROL_ADDRESS + CONTROL_OPERATOR_TABLE) + load<u32>(words, 4) * OPERATOR_SLOT_BYTES;
  if (load<u32>(words, 4) >= OPERATOR_SLOTS) return STATUS_OUT_OF_RANGE_ID;
  if (kind == 1) atomic.store<u64>(slot, pack(load<u32>(words, 12), load<u32>(words, 8)));
  else atomic.store<u32>(slot + OPERATOR_SLOT_STATE, kind == 2 ? 1 : 0);
  return STATUS_OK;
}

/**
 * Runs several operators one after another on the same share of units: words are {units, stages, then
 * for each stage its operator slot and the address of its parameter block}. What makes this right is
 * the planner: a stage reads of the stage before only what the same units wrote.
 */
export function chain(params: usize, tile: i32, tiles: i32, scratch: usize): i32 {
  const words = params + 32;
  const stages = load<u32>(words, 4);
  const table = load<u32>(CONTROL_ADDRESS + CONTROL_OPERATOR_TABLE);
  for (let stage: u32 = 0; stage < stages; stage++) {
    const at = words + 8 + (stage << 3);
    const slot = table + (load<u32>(at) & 0xffff) * OPERATOR_SLOT_BYTES;
    if (atomic.load<u32>(slot + OPERATOR_SLOT_STATE) == SLOT_STATE_KILLED) return STATUS_KILLED;
    const fn = <u32>atomic.load<u64>(slot);
    if (fn == 0) return STATUS_EMPTY_SLOT;
    const status = call_indirect<i32>(fn, load<u32>(at, 4), tile, tiles, scratch);
    if (status != STATUS_OK) return status;
  }
  return STATUS_OK;
}
