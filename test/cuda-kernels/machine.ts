/** Emulated blocks as a machine that runs lowered calls: operands in memory between guard zones, and every tile in turn. */
import { readFileSync } from 'node:fs';
import { expect } from 'vitest';
import type { KernelCall } from '../../src/backends/backend.ts';
import type { TensorSpec } from '../../src/ops/define.ts';
import { elementBytes, isHalf } from '../../src/ops/dtype.ts';
import { fromHalfBits, toHalfBits } from '../../src/ops/half.ts';
import type { HostTensor } from '../../src/ops/host-tensor.ts';
import { elementCount } from '../../src/ops/shape.ts';
import { compileEmulated, deviceMemory } from '../cuda/emulation/emulation.ts';
import type { Outcome, Placed } from '../wasm-kernels/runner.ts';

const SOURCE = '#include "gpuos_abi.h"\n#include "operators/index.cuh"\n';
const INDEX = new URL('../../src/backends/cuda/device/operators/index.cuh', import.meta.url);

/** The names of GPUOS_FIXED_OPERATORS, in their order. */
export const fixedOperators = (): string[] => [...readFileSync(INDEX, 'utf8').matchAll(/^ {2}X\((\w+)\)/gm)].map(([, name]) => name!);

/** The most that a compiler takes for all of them, on a machine that does much else. */
export const COMPILE_MS = 300_000;

const GUARD = 0x5afe6a2d;
const GUARD_WORDS = 64;
const HEAP_BYTES = 16 << 20;

// Blocks of several sizes, and threads in several orders: a result must not depend on either.
export interface Way {
  readonly threads: number;
  readonly order: number;
}
const WAYS: readonly Way[] = [
  { threads: 256, order: 0 },
  { threads: 64, order: 1 },
  { threads: 32, order: 5 },
  { threads: 256, order: 9 },
  { threads: 256, order: 1 },
];

export interface Machine {
  /**
   * Runs a call in `tiles` tiles. Outputs start as garbage of `outputWords` words each. Checks that inputs and the zones
   * around all operands keep their values.
   */
  execute(call: KernelCall, inputs: readonly Placed[], outputWords: readonly number[], tiles: number, way?: Way): Outcome;
  free(): void;
}

/** A tensor's elements as words: halves two a word, behind the last a 0. */
export function bitsOf({ dtype, data }: HostTensor): Int32Array {
  if (isHalf(dtype)) {
    const halves = new Uint16Array(2 * Math.ceil(data.length / 2));
    data.forEach((value, i) => {
      halves[i] = toHalfBits(value, dtype);
    });
    return new Int32Array(halves.buffer);
  }
  return data instanceof Float32Array ? new Int32Array(data.buffer, data.byteOffset, data.length) : Int32Array.from(data);
}

/** Words that hold the elements of a tensor. */
export const wordsOf = ({ dtype, shape }: TensorSpec): number => Math.ceil((elementCount(shape) * elementBytes(dtype)) / 4);

/** What an output's words are before the operator runs. */
const GARBAGE = 0x7fc0beef;

/** Raw words of an output as values of its dtype. The half behind an odd number of halves has to be as it was. */
export function valuesOf({ dtype, shape }: TensorSpec, bits: Int32Array): ArrayLike<number> {
  if (isHalf(dtype)) {
    const halves = new Uint16Array(bits.buffer, bits.byteOffset, 2 * bits.length);
    const count = elementCount(shape);
    if (count % 2 === 1) expect(halves[count], 'the half behind the last').toBe(GARBAGE >>> 16);
    return Float32Array.from(halves.subarray(0, count), (half) => fromHalfBits(half, dtype));
  }
  return dtype === 'float32' ? new Float32Array(bits.buffer, bits.byteOffset, bits.length) : bits;
}

export function machine(): Machine {
  const device = compileEmulated(SOURCE);
  const memory = deviceMemory(HEAP_BYTES);
  const words = new Int32Array(memory.bytes.buffer, memory.bytes.byteOffset, HEAP_BYTES / 4);

  const execute: Machine['execute'] = (call, inputs, outputWords, tiles, given) => {
    const guards: number[] = [];
    let heap = 0;
    const guard = () => {
      words.fill(GUARD, heap, heap + GUARD_WORDS);
      guards.push(heap);
      heap += GUARD_WORDS;
    };
    const place = (count: number) => {
      const at = heap;
      // As allocations lie: on multiples of 256 bytes.
      heap = Math.ceil((heap + count) / 64) * 64;
      if (heap + GUARD_WORDS > words.length) throw new Error('the operands of this test are too large for its memory');
      words.fill(GUARD, at + count, heap);
      guard();
      return at;
    };
    guard();
    const starts = inputs.map(({ storage }) => {
      const at = place(storage.length);
      words.set(storage, at);
      return at;
    });
    const results = outputWords.map((count) => {
      const at = place(count);
      words.fill(GARBAGE, at, at + count);
      return at;
    });

    const pointers = Math.max(4, call.pointers.length);
    const params = new Int32Array(2 * pointers + call.words.length);
    const addresses = new BigUint64Array(params.buffer, 0, pointers);
    call.pointers.forEach((pointer, i) => {
      if ('none' in pointer) return;
      const offset = ({ view }: Placed) => view.offset * elementBytes(view.dtype);
      const at = 'output' in pointer ? 4 * results[pointer.output]! : 4 * starts[pointer.input]! + offset(inputs[pointer.input]!);
      addresses[i] = memory.address + BigInt(at);
    });
    expect(call.units).toBe(call.words[0]);
    params.set(call.words, 2 * pointers);

    const bytes = new Uint8Array(params.buffer);
    const way = given ?? WAYS[(tiles - 1) % WAYS.length]!;
    let status = 0;
    if (tiles % 2 === 1) status = device.callAll(`operator_${call.kernel}`, bytes, tiles, way);
    else for (let tile = tiles - 1; tile >= 0; tile--) status |= device.call(`operator_${call.kernel}`, bytes, tile, tiles, way);

    for (const at of guards) {
      for (let i = at; i < at + GUARD_WORDS; i++)
        if (words[i] !== GUARD) expect.fail(`the guard word at ${i} was overwritten by ${call.kernel}`);
    }
    for (const [i, { storage }] of inputs.entries()) {
      for (let j = 0; j < storage.length; j++) {
        if (words[starts[i]! + j] !== storage[j]) expect.fail(`word ${j} of input ${i} was overwritten by ${call.kernel}`);
      }
    }
    return { status, outputs: results.map((at, i) => words.slice(at, at + outputWords[i]!)) };
  };

  return {
    execute,
    free() {
      device.free();
      memory.free();
    },
  };
}
