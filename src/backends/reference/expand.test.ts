import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Attributes, DType, ExpressionBuilder, OperatorDefinition } from '../../ops/define.ts';
import { type HostTensor, hostTensor } from '../../ops/host-tensor.ts';
import { OPERATORS, operatorByName } from '../../ops/index.ts';
import { elementCount } from '../../ops/shape.ts';
import { referenceRun } from './index.ts';

/** Evaluates an expansion at once, each step by the reference of a map, reduction or view. */
const evaluator: ExpressionBuilder<HostTensor> = {
  apply(name, inputs, attributes = {}) {
    const { kind, expand } = operatorByName(name);
    if (kind === 'composite') return (expand as NonNullable<typeof expand>)(evaluator, inputs, attributes);
    if (kind === 'fixed') throw new Error(`${name} cannot be fused, so no expansion may use it.`);
    return referenceRun(name, inputs, attributes)[0] as HostTensor;
  },
  constant: (value, dtype = 'float32') => hostTensor([], [value], dtype),
  spec: ({ shape, dtype }) => ({ shape, dtype }),
};

const COMPOSITES = OPERATORS.filter((operator) => operator.kind === 'composite');

const SPECIAL = [0, -0, Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 2 ** -149, -(2 ** -140), 2 ** -126, 88, -104, 1e4];

interface Trial {
  readonly operator: OperatorDefinition;
  readonly inputs: readonly HostTensor[];
  readonly attributes: Attributes;
}

function values(count: number, dtype: DType, special: boolean): fc.Arbitrary<number[]> {
  const float = fc.float({ min: -20, max: 20, noNaN: true });
  const element = {
    float32: special ? fc.oneof({ weight: 2, arbitrary: float }, { weight: 1, arbitrary: fc.constantFrom(...SPECIAL) }) : float,
    float16: float,
    bfloat16: float,
    int32: fc.integer({ min: -1000, max: 1000 }),
    bool: fc.integer({ min: 0, max: 1 }),
  }[dtype];
  return fc.array(element, { minLength: count, maxLength: count });
}

function tensorOf(shape: readonly number[], dtype: DType, special: boolean): fc.Arbitrary<HostTensor> {
  return values(elementCount(shape), dtype, special).map((data) => hostTensor(shape, data, dtype));
}

/** Random attributes that fit a tensor of this rank: an axis or axes where the operator has them, numbers for its factors and bounds. */
function attributesOf(operator: OperatorDefinition, rank: number): fc.Arbitrary<Attributes> {
  const known: Record<string, fc.Arbitrary<Attributes>> = {
    axis: rank === 0 ? fc.constant({}) : fc.integer({ min: -rank, max: rank - 1 }).map((axis) => ({ axis })),
    axes: fc.uniqueArray(fc.nat(Math.max(0, rank - 1)), { maxLength: rank }).map((axes) => ({ axes })),
    keepDims: fc.boolean().map((keepDims) => ({ keepDims })),
    alpha: fc.constantFrom(0, 0.2, 1, -2).map((alpha) => ({ alpha })),
    epsilon: fc.constantFrom(0.001, 1).map((epsilon) => ({ epsilon })),
    min: fc.constantFrom(Number.NEGATIVE_INFINITY, -3, 0).map((min) => ({ min })),
    max: fc.constantFrom(0, 6, Number.POSITIVE_INFINITY).map((max) => ({ max })),
  };
  const parts = Object.keys(operator.attributes ?? {}).map((name) => {
    const part = known[name];
    if (!part) throw new Error(`${operator.name}: no way to draw attribute ${name}.`);
    return fc.option(part, { nil: {} });
  });
  return fc.tuple(...parts).map((drawn) => Object.assign({}, ...drawn) as Attributes);
}

/** Which dtypes the first input may have, asked of the operator itself. */
function dtypesOf(operator: OperatorDefinition): DType[] {
  return (['float32', 'int32', 'bool'] as const).filter((dtype) => {
    try {
      operator.infer([{ shape: [2], dtype }], {});
      return true;
    } catch {
      return false;
    }
  });
}

/** Parameters stay finite: infinity times what is 0 only after rounding may differ. */
function trials(operator: OperatorDefinition, special: boolean): fc.Arbitrary<Trial> {
  const needsAxis = operator.family === 'normalization';
  const shape = fc.array(fc.oneof(fc.constantFrom(0, 1), fc.integer({ min: 2, max: 7 })), { minLength: needsAxis ? 1 : 0, maxLength: 4 });
  return fc
    .tuple(shape, fc.constantFrom(...dtypesOf(operator)), fc.nat(operator.inputs.length - 1))
    .chain(([sizes, dtype, extra]) =>
      fc
        .tuple(
          tensorOf(sizes, dtype, special),
          attributesOf(operator, sizes.length),
          fc.tuple(...Array.from({ length: extra }, () => tensorOf([sizes[sizes.length - 1] as number], 'float32', false))),
        )
        .map(([x, attributes, parameters]) => ({ operator, inputs: [x, ...parameters], attributes })),
    );
}

/** The expansion rounds to float32 after each step, the reference once: compare relative to the largest intermediate. */
function expectClose(got: HostTensor, expected: HostTensor, scale: number): void {
  expect(got.shape).toEqual(expected.shape);
  expect(got.dtype).toBe(expected.dtype);
  for (const [i, value] of expected.data.entries()) {
    const actual = got.data[i] as number;
    if (!Number.isFinite(value) || expected.dtype !== 'float32') expect(actual, `element ${i}`).toBe(value);
    else
      expect(Math.abs(actual - value), `element ${i}: ${actual} for ${value}`).toBeLessThanOrEqual(2e-6 * Math.max(scale, Math.abs(value)));
  }
}

/** Largest finite magnitude of the inputs, at least 1. */
function magnitude(inputs: readonly HostTensor[]): number {
  let most = 1;
  for (const input of inputs) for (const value of input.data) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
  return most;
}

/**
 * What an error of one rounding is relative to. Layer norm subtracts the mean, so the roundings of x grow by |x| over
 * the deviation of its row.
 */
function scaleOf(operator: OperatorDefinition, inputs: readonly HostTensor[], attributes: Attributes): number {
  const [x, ...parameters] = inputs as readonly [HostTensor, ...HostTensor[]];
  if (!operator.name.endsWith('-norm')) return magnitude(inputs);
  if (operator.name === 'rms-norm') return magnitude(parameters);
  const width = x.shape[x.shape.length - 1] as number;
  let condition = 1;
  for (let start = 0; start < x.data.length; start += width) {
    const row = Array.from(x.data.subarray(start, start + width));
    const mean = row.reduce((sum, value) => sum + value, 0) / width;
    const variance = row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / width;
    const own = Math.max(...row.map(Math.abs)) / Math.sqrt(variance + ((attributes['epsilon'] as number | undefined) ?? 1e-5));
    if (own > condition) condition = own;
  }
  return condition * magnitude(parameters);
}

describe('expansions', () => {
  for (const operator of COMPOSITES) {
    const { name } = operator;
    const expand = operator.expand as NonNullable<typeof operator.expand>;
    const compare = ({ inputs, attributes }: Trial) => {
      const expected = referenceRun(name, inputs, attributes)[0] as HostTensor;
      expectClose(expand(evaluator, inputs, attributes), expected, scaleOf(operator, inputs, attributes));
    };

    it(`${name}: equals its reference on finite values, shapes with 0 and 1 included`, () => {
      fc.assert(fc.property(trials(operator, false), compare), { numRuns: 150 });
    });

    it(`${name}: equals its reference with NaN, infinities and denormals`, () => {
      fc.assert(fc.property(trials(operator, true), compare), { numRuns: 250 });
    });
  }

  it('check attributes like infer does', () => {
    const softmax = operatorByName('softmax');
    expect(() => softmax.expand?.(evaluator, [hostTensor([2], [1, 2])], { axes: 1 })).toThrow(/no attribute "axes"/);
    expect(() => softmax.expand?.(evaluator, [hostTensor([2], [1, 2])], { axis: 5 })).toThrow(/axis 5 is out of range/);
  });

  it('do not overflow where the result does not', () => {
    const x = hostTensor([2], [3e38, 3e38]);
    expect(Array.from(evaluator.apply('softmax', [x]).data)).toEqual([0.5, 0.5]);
    expect(Array.from(evaluator.apply('log-softmax', [x]).data)).toEqual([Math.fround(-Math.LN2), Math.fround(-Math.LN2)]);
    expect(evaluator.apply('log-sum-exp', [x]).data[0]).toBe(Math.fround(3e38));
  });
});
