/** Checks of what a caller gives: whatever it is, it is taken, or refused with an error that says why. */
import { INLINE_POINTERS, INLINE_WORDS } from '../abi/descriptor.ts';
import { MAX_TILES } from '../abi/status.ts';
import { type BlockNeeds, fitsDescriptor } from '../backends/lowering/needs.ts';
import { type ErrorCode, GpuosError } from '../errors.ts';
import { formatValue } from '../ops/shape.ts';
import { nearMatchHint } from '../spelling.ts';
import { Extents } from './extents.ts';
import type { LiveBuffers } from './live-buffers.ts';

export const badDescriptor = (message: string): GpuosError => new GpuosError('GPUOS_BAD_DESCRIPTOR', message);

/** An integer of a range, as an option. @throws GPUOS_BAD_OPTION */
export function integer(name: string, value: unknown, min: number, max: number): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < min || value > max) {
    throw new GpuosError('GPUOS_BAD_OPTION', `${name} is ${formatValue(value)}; it has to be an integer from ${min} to ${max}.`);
  }
  return value;
}

/** An object with no other fields than these. */
export function checkFields(call: string, what: string, value: unknown, names: readonly string[], code: ErrorCode): void {
  if (typeof value !== 'object' || value === null)
    throw new GpuosError(code, `${call} takes an object of ${what}s, not ${formatValue(value)}.`);
  for (const name of Object.keys(value)) {
    if (names.includes(name)) continue;
    throw new GpuosError(code, `${call} has no ${what} "${name.slice(0, 64)}".${nearMatchHint(name, names)}`);
  }
}

const FIELDS = ['operator', 'pointers', 'words', 'tiles', 'queue', 'dependencies', 'wait'];

/** For each task, so without a list of its keys. @throws GPUOS_BAD_DESCRIPTOR */
export function checkRequest(request: object): void {
  if (typeof request !== 'object' || request === null) throw badDescriptor(`submit() takes a task, not ${formatValue(request)}.`);
  for (const name in request) {
    switch (name) {
      case 'operator':
      case 'pointers':
      case 'words':
      case 'tiles':
      case 'queue':
      case 'dependencies':
      case 'wait':
        continue;
      default:
        throw badDescriptor(`A task has no field "${name.slice(0, 64)}".${nearMatchHint(name, FIELDS)}`);
    }
  }
}

/** @throws GPUOS_BAD_DESCRIPTOR */
export function checkTiles(tiles: unknown): number {
  if (typeof tiles !== 'number' || !Number.isInteger(tiles) || tiles < 1 || tiles > MAX_TILES)
    throw badDescriptor(`tiles is ${formatValue(tiles)}; it has to be an integer from 1 to ${MAX_TILES}.`);
  return tiles;
}

/** A list, or one of JavaScript's arrays of numbers. @throws an error of this code */
export function checkList(name: string, list: unknown, code: ErrorCode): void {
  if (Array.isArray(list) || (ArrayBuffer.isView(list) && !(list instanceof DataView))) return;
  throw new GpuosError(code, `${name} is ${formatValue(list)}; it has to be a list.`);
}

/** @throws GPUOS_BAD_DESCRIPTOR */
export function checkWords(words: ArrayLike<unknown>): void {
  for (let i = 0; i < words.length; i++) {
    const word = words[i];
    if (typeof word !== 'number' || !Number.isInteger(word) || word < -(2 ** 31) || word >= 2 ** 32)
      throw badDescriptor(`word ${i} is ${formatValue(word)}, not a 32-bit integer.`);
  }
}

/** Each lies in a buffer that is in use, or is its end. @throws GPUOS_BAD_DESCRIPTOR */
export function checkPointers(pointers: ArrayLike<unknown>, buffers: LiveBuffers): void {
  for (let i = 0; i < pointers.length; i++) {
    const pointer = pointers[i];
    if (typeof pointer !== 'number' || !Number.isInteger(pointer) || pointer % 4 !== 0)
      throw badDescriptor(`pointer ${i} is ${formatValue(pointer)}, not an address that is a multiple of 4.`);
    if (buffers.find(pointer) < 0)
      throw badDescriptor(`pointer ${i} is ${pointer}, which lies in no buffer that is in use; buffer() gives addresses.`);
  }
}

/**
 * All that the task touches through a pointer lies in the one buffer that the pointer lies in. The pointers are checked.
 * @throws GPUOS_BAD_DESCRIPTOR
 */
export function checkExtents(
  name: string,
  extents: Extents,
  pointers: ArrayLike<number>,
  words: ArrayLike<number>,
  tiles: number,
  buffers: LiveBuffers,
): void {
  const refusal = extents.refusal(words, tiles);
  if (refusal !== undefined) throw badDescriptor(`${name}: ${refusal}.`);
  for (let i = 0; i < pointers.length; i++) {
    extents.measure(i, words);
    const { first, last } = extents;
    if (last < first) continue;
    const bytes = extents.elementBytes(i);
    const pointer = pointers[i] as number;
    const buffer = buffers.find(pointer);
    const end = buffers.end(buffer);
    if (pointer + first * bytes >= buffers.start(buffer) && pointer + (last + 1) * bytes <= end) continue;
    const role = i < extents.inputs ? `input ${i}` : `output ${i - extents.inputs}`;
    const before = first < 0 ? ` from ${-first} before it on` : '';
    throw badDescriptor(
      `${name}: pointer ${i} (${role}) is used for ${last - first + 1} elements${before}; ${Math.floor((end - pointer) / bytes)} lie from there to the end of its buffer.`,
    );
  }
}

/**
 * As many pointers and words as the operator needs, at least; of a program as many pointers as it has, since the last is what
 * it writes to. @throws GPUOS_BAD_DESCRIPTOR
 */
export function checkCounts(name: string, needs: BlockNeeds | Extents, pointers: number, words: number): void {
  const program = needs instanceof Extents;
  if (!program && !fitsDescriptor(needs)) throw badDescriptor(`${name} has a longer parameter block than a descriptor holds; use tensors.`);
  if (pointers < needs.pointers || words < needs.words) {
    throw badDescriptor(
      `${name} needs ${needs.pointers} pointers (inputs, then outputs) and ${needs.words} words (elements first); ${pointers} and ${words} were given.`,
    );
  }
  const mostPointers = program ? needs.pointers : INLINE_POINTERS;
  if (pointers > mostPointers) throw badDescriptor(`${pointers} pointers given; ${name} takes ${mostPointers}.`);
  const mostWords = Math.max(INLINE_WORDS, needs.words);
  if (words > mostWords) throw badDescriptor(`${words} words given; ${name} takes ${mostWords} at most.`);
}

/** Values for a buffer. @throws GPUOS_DTYPE_MISMATCH */
export function checkValues(values: ArrayLike<number>): void {
  const list = typeof values === 'object' && values !== null && Number.isInteger(values.length) && values.length >= 0;
  if (!list || values instanceof BigInt64Array || values instanceof BigUint64Array)
    throw new GpuosError('GPUOS_DTYPE_MISMATCH', `A buffer holds a list of numbers, not ${formatValue(values)}.`);
  if (ArrayBuffer.isView(values)) return;
  for (let i = 0; i < values.length; i++) {
    const value: unknown = values[i];
    if (typeof value !== 'number' && typeof value !== 'boolean')
      throw new GpuosError('GPUOS_DTYPE_MISMATCH', `Value ${i} of a buffer is ${formatValue(value)}, not a number.`);
  }
}
