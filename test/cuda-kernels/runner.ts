/**
 * The kernels' tests of the WebAssembly device, with emulated CUDA blocks as the machine: the same lowered words, operands
 * between guard zones, and the same reference. What runs a call, and what builds on that, is replaced; layouts, random
 * tensors and comparisons are theirs.
 */
import { readFileSync } from 'node:fs';
import { describe, expect } from 'vitest';
import type { KernelCall, OperandView } from '../../src/backends/backend.ts';
import { referenceRun } from '../../src/backends/reference/index.ts';
import { acceptsStrides, lower } from '../../src/backends/wasm/lowering/index.ts';
import { checkAttributes } from '../../src/ops/attributes.ts';
import type { Attributes, TensorSpec } from '../../src/ops/define.ts';
import type { HostTensor } from '../../src/ops/host-tensor.ts';
import { operatorByName } from '../../src/ops/index.ts';
import { elementCount, strides as contiguousStrides } from '../../src/ops/shape.ts';
import { compileEmulated, deviceMemory, NO_GXX, reason } from '../cuda/emulation/emulation.ts';
import type * as Original from '../wasm-kernels/runner.ts';

type Runner = typeof Original;

export const OPERATORS = '#include "gpuos_abi.h"\n#include "operators/index.cuh"\n';
const INDEX = new URL('../../src/backends/cuda/device/operators/index.cuh', import.meta.url);

/** The names of GPUOS_FIXED_OPERATORS, in their order. */
export const fixedOperators = (): string[] => [...readFileSync(INDEX, 'utf8').matchAll(/^ {2}X\((\w+)\)/gm)].map(([, name]) => name!);

const GUARD = 0x5afe6a2d;
const GUARD_WORDS = 64;
const HEAP_BYTES = 16 << 20;

// Blocks of several sizes, and threads in several orders: a result must not depend on either.
const WAYS = [
  { threads: 256, order: 0 },
  { threads: 64, order: 1 },
  { threads: 32, order: 5 },
  { threads: 256, order: 9 },
  { threads: 256, order: 1 },
];

/** The module `test/wasm-kernels/runner.ts` with another machine in it. */
export function onEmulation(original: Runner): Runner {
  const device = compileEmulated(OPERATORS);
  const memory = deviceMemory(HEAP_BYTES);
  const words = new Int32Array(memory.bytes.buffer, memory.bytes.byteOffset, HEAP_BYTES / 4);

  const execute: Runner['execute'] = (call: KernelCall, inputs, outputWords, tiles) => {
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
      words.fill(0x7fc0beef, at, at + count);
      return at;
    });

    const pointers = Math.max(4, call.pointers.length);
    const params = new Int32Array(2 * pointers + call.words.length);
    const addresses = new BigUint64Array(params.buffer, 0, pointers);
    call.pointers.forEach((pointer, i) => {
      if ('none' in pointer) return;
      const word = 'output' in pointer ? results[pointer.output]! : starts[pointer.input]! + inputs[pointer.input]!.view.offset;
      addresses[i] = memory.address + BigInt(word * 4);
    });
    expect(call.units).toBe(call.words[0]);
    params.set(call.words, 2 * pointers);

    const bytes = new Uint8Array(params.buffer);
    const way = WAYS[(tiles - 1) % WAYS.length]!;
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

  const view = (spec: TensorSpec): OperandView => ({ ...spec, strides: contiguousStrides(spec.shape), offset: 0 });

  const conform: Runner['conform'] = (name, inputs, attributes = {}, options = {}) => {
    const definition = operatorByName(name);
    const filled = checkAttributes(definition, attributes);
    const specs = definition.infer(inputs, filled);
    const expected = referenceRun(name, inputs, attributes);
    const layout = options.layout ?? original.dense;
    const placed = inputs.map((input, i) => (acceptsStrides(name, i) ? layout(input, i) : original.dense(input)));
    const views = placed.map((operand) => operand.view);
    const call = lower(name, views, specs.map(view), filled, options.matmul);
    let first: Int32Array[] | undefined;
    for (let tiles = 1; tiles <= 5; tiles++) {
      const counts = specs.map(({ shape }) => elementCount(shape));
      const { status, outputs } = execute(call, placed, counts, tiles);
      expect(status, `status of ${name}`).toBe(0);
      for (const [i, spec] of specs.entries()) {
        const actual = original.asTensor(spec, outputs[i]!).data;
        const what = `${name}, output ${i}, ${tiles} tiles:`;
        original.expectClose(actual, expected[i]!.data, options.tolerance ?? original.EXACT, what);
      }
      first ??= outputs;
      if (options.reorders) continue;
      for (const [i, bits] of outputs.entries()) {
        const wrong = bits.findIndex((word, j) => word !== first?.[i]?.[j]);
        expect(wrong, `element of output ${i} of ${name} that differs in ${tiles} tiles`).toBe(-1);
      }
    }
  };

  const statuses: Runner['statuses'] = (name: string, inputs: readonly HostTensor[], attributes: Attributes = {}) => {
    const definition = operatorByName(name);
    const filled = checkAttributes(definition, attributes);
    const specs = definition.infer(inputs, filled);
    const placed = inputs.map(original.dense);
    const views = placed.map((operand) => operand.view);
    const call = lower(name, views, specs.map(view), filled);
    const counts = specs.map(({ shape }) => elementCount(shape));
    return [1, 2, 3, 4, 5].map((tiles) => execute(call, placed, counts, tiles).status);
  };

  const kernels = Object.fromEntries(fixedOperators().map((name) => [name, () => 0]));
  return { ...original, kernels, execute, conform, statuses };
}

/** Registers the tests that `load` imports, where there is a compiler for the emulation. */
export function emulated(load: () => Promise<unknown>): void {
  describe.skipIf(NO_GXX)(reason('on emulated CUDA blocks'), async () => {
    if (!NO_GXX) await load();
  });
}
