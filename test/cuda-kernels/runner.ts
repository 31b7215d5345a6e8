/**
 * The kernels' tests of the WebAssembly device, with emulated CUDA blocks as the machine: the same lowered words, operands
 * between guard zones, and the same reference. What runs a call, and what builds on that, is replaced; layouts, random
 * tensors and comparisons are theirs.
 */
import { describe, expect } from 'vitest';
import type { OperandView } from '../../src/backends/backend.ts';
import { referenceRun } from '../../src/backends/reference/index.ts';
import { acceptsStrides, GPU_KERNELS, lower } from '../../src/backends/lowering/index.ts';
import { checkAttributes } from '../../src/ops/attributes.ts';
import type { Attributes, TensorSpec } from '../../src/ops/define.ts';
import type { HostTensor } from '../../src/ops/host-tensor.ts';
import { operatorByName } from '../../src/ops/index.ts';
import { elementCount, strides as contiguousStrides } from '../../src/ops/shape.ts';
import { NO_GXX, reason } from '../cuda/emulation/emulation.ts';
import type * as Original from '../wasm-kernels/runner.ts';
import { fixedOperators, machine } from './machine.ts';

type Runner = typeof Original;

/** The module `test/wasm-kernels/runner.ts` with another machine in it. */
export function onEmulation(original: Runner): Runner {
  const { execute } = machine();
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
    // Fewer numbers of tiles than there: an emulated block is slow, and conformance.test.ts has them all.
    for (let tiles = 1; tiles <= 3; tiles++) {
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

  // Those that are of this device alone are in a list of their own.
  const own: readonly string[] = GPU_KERNELS;
  const kernels = Object.fromEntries(fixedOperators().flatMap((name) => (own.includes(name) ? [] : [[name, () => 0]])));
  return { ...original, kernels, execute, conform, statuses };
}

/** Registers the tests that `load` imports, where there is a compiler for the emulation. */
export function emulated(load: () => Promise<unknown>): void {
  describe.skipIf(NO_GXX)(reason('on emulated CUDA blocks'), async () => {
    if (!NO_GXX) await load();
  });
}
