/** The conformance cases of the fixed operators, values at the edges of their types included, on emulated blocks. */
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { OperandView } from '../../src/backends/backend.ts';
import { referenceRun } from '../../src/backends/reference/index.ts';
import { acceptsHalvesOnGpu, GPU_KERNELS, KERNELS, lower } from '../../src/backends/lowering/index.ts';
import { checkAttributes } from '../../src/ops/attributes.ts';
import { OPERATORS } from '../../src/ops/index.ts';
import type { DType, OperatorDefinition } from '../../src/ops/define.ts';
import { computeType } from '../../src/ops/dtype.ts';
import { formatShape, strides } from '../../src/ops/shape.ts';
import { type Case, caseOf } from '../conformance/cases.ts';
import { Random, search } from '../conformance/random.ts';
import { difference, toleranceOf } from '../conformance/tolerances.ts';
import { NO_GXX, reason } from '../cuda/emulation/emulation.ts';
import { bitsOf, COMPILE_MS, fixedOperators, type Machine, machine, valuesOf, wordsOf } from './machine.ts';

const view = ({ shape, dtype }: Pick<OperandView, 'shape' | 'dtype'>): OperandView => ({
  shape,
  dtype,
  strides: strides(shape),
  offset: 0,
});

/** The same with float32 in the place of halves, which other fixed operators get and give by way of casts. */
function inFloat32({ inputs, attributes }: Case): Case {
  const wide = inputs.map((input) => ({ ...input, dtype: computeType(input.dtype) }));
  const { dtype } = attributes;
  return { inputs: wide, attributes: dtype === undefined ? attributes : { ...attributes, dtype: computeType(dtype as DType) } };
}

it('the list of fixed operators is that of the lowering', () => {
  expect(fixedOperators()).toEqual([...KERNELS, ...GPU_KERNELS]);
});

describe.skipIf(NO_GXX)(reason('fixed operators on emulated CUDA blocks'), () => {
  let device: Machine;
  beforeAll(() => {
    device = machine();
  }, COMPILE_MS);
  afterAll(() => device.free());

  const isFixed = ({ kind, name }: OperatorDefinition) => kind === 'fixed' && name !== 'nop';
  it.each(OPERATORS.filter(isFixed).map((definition) => [definition.name, definition] as const))('%s', (name, definition) => {
    const make = caseOf(definition)!;
    fc.assert(
      fc.property(fc.integer(), fc.integer({ min: 1, max: 9 }), (seed, tiles) => {
        const example = make(new Random(seed));
        const { inputs, attributes: given } = acceptsHalvesOnGpu(name) ? example : inFloat32(example);
        // Bias and activation of a product are a stage after it.
        const attributes = name === 'matmul' ? { ...given, activation: 'none' } : given;
        const operands = name === 'matmul' ? inputs.slice(0, 2) : inputs;
        const filled = checkAttributes(definition, attributes);
        const specs = definition.infer(operands, filled);
        const expected = referenceRun(name, operands, attributes);
        const call = lower(name, operands.map(view), specs.map(view), filled);
        const placed = operands.map((tensor) => ({ view: view(tensor), storage: bitsOf(tensor) }));
        const counts = specs.map(wordsOf);
        const told = `${name}(${operands.map(({ shape, dtype }) => dtype + formatShape(shape)).join(', ')}) ${JSON.stringify(attributes)}`;
        const { status, outputs } = device.execute(call, placed, counts, tiles);
        expect(status, told).toBe(0);
        for (const [i, spec] of specs.entries()) {
          const want = expected[i]!;
          const tolerance = toleranceOf(definition, { inputs: operands, attributes: filled }, want);
          const wrong = difference(valuesOf(spec, outputs[i]!), want.data, tolerance);
          if (wrong !== undefined) expect.fail(`output ${i} of ${told} in ${tiles} tiles: ${wrong}`);
        }
      }),
      search(120, 31),
    );
  });
});
