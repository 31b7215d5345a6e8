import { struct } from './struct.ts';

/**
 * The task descriptor: 128 bytes, two 64-byte lines, each ending in the task's sequence as a tag. A
 * reader takes a task only when both tags are its sequence, since a 128-byte read can see one line new
 * and the other old.
 *
 * A parameter block is an array of 8-byte pointers (at least four) followed by 32-bit words. Small
 * blocks stand in the descriptor itself, from `pointers` on: four pointers and seven words.
 */
export const descriptor = struct('descriptor', 128, 64, {
  operator: { type: 'u32', about: 'slot of the operator table' },
  flags: { type: 'u16', about: 'FLAG bits' },
  queue: { type: 'u8', about: 'queue that the task is in' },
  paramLines: { type: 'u8', about: 'with FLAG PARAMS: length of the parameter block in lines of 64 bytes; 0: unknown' },
  tiles: { type: 'u32', about: 'tile count, 1 to MAX_TILES' },
  epoch: { type: 'u32', about: 'table epoch when it was written, for traces' },
  after: { type: 'u32', about: 'with FLAG AFTER: wait until the queue has completed up to this sequence' },
  dependencies: { type: 'u32', count: 4, about: 'sequences of true producers: waited for, and their failure fails this task' },
  dependencyQueues: { type: 'u8', count: 4, about: 'queue of each dependency, NO_QUEUE where unused' },
  trace: { type: 'u32', about: 'trace id' },
  params: { type: 'u64', at: 48, about: 'with FLAG PARAMS: where the parameter block stands in what host and device both see' },
  tag0: { type: 'u32', at: 60, about: 'the sequence, written last' },
  pointers: { type: 'u64', count: 4, at: 64, about: 'inline parameter block: pointers' },
  words: { type: 'u32', count: 7, about: 'inline parameter block: words' },
  tag1: { type: 'u32', at: 124, about: 'the sequence, written last' },
});

export const INLINE_POINTERS = 4;
export const INLINE_WORDS = 7;
export const DEPENDENCIES = 4;
