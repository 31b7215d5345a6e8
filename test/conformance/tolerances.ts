import type { OperatorDefinition } from '../../src/ops/define.ts';
import { type HalfType, isFloat, isHalf } from '../../src/ops/dtype.ts';
import type { HostTensor } from '../../src/ops/host-tensor.ts';
import type { Case } from './cases.ts';

export interface Tolerance {
  readonly relative: number;
  readonly absolute: number;
}

const ULP = 2 ** -23;
/** From one value to the next, at most: with 11 and with 8 bits, and among subnormal ones. */
const STEPS: Readonly<Record<HalfType, Tolerance>> = {
  float16: { relative: 2 ** -10, absolute: 2 ** -24 },
  bfloat16: { relative: 2 ** -7, absolute: 2 ** -133 },
};
const EXACT: Tolerance = { relative: 0, absolute: 0 };
/** Least normal float32: below it a result keeps fewer digits the smaller it is. */
const LEAST_NORMAL = 2 ** -126;

/** Correctly rounded by IEEE 754 on every device, or no arithmetic at all. */
const ROUNDED: ReadonlySet<string> = new Set([
  ...['add', 'sub', 'mul', 'div', 'floor-div', 'mod', 'maximum', 'minimum', 'prelu', 'neg', 'abs', 'sign', 'sqrt', 'square', 'reciprocal'],
  ...['floor', 'ceil', 'round', 'relu', 'relu6', 'select', 'cast', 'clip', 'step', 'max', 'min'],
]);
/** Formulas in which a device may cancel: good to a few units of the largest term, not of the result. */
const CANCELLING: ReadonlySet<string> = new Set(['gelu', 'gelu-tanh', 'softplus', 'silu']);

function largest(tensor: HostTensor | undefined): number {
  let most = 0;
  for (const value of tensor?.data ?? []) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
  return most;
}

function total(tensor: HostTensor): number {
  let sum = 0;
  for (const value of tensor.data) if (Number.isFinite(value)) sum += Math.abs(value);
  return sum;
}

/**
 * How far a result may be from the reference, by family:
 *  - what IEEE 754 rounds correctly, selection, indexing, views, integers and truth values: not at all;
 *  - other functions: a few units in the last place, as the code generator's own tests hold them to;
 *  - sums, means, products of matrices: a device adds in an order and precision of its own, so the error is
 *    relative to the sum of the sizes of what is added, not to a result that may have cancelled;
 *  - normalizations and attention: sums inside, then exponentials or a root, whose relative error is theirs.
 *
 * Of float16 and bfloat16 all of that holds in float32, before the one rounding: two results that close may be rounded to
 * neighbours. What is exact, or rounded correctly to float32, stays exact.
 */
export function toleranceOf(definition: OperatorDefinition, example: Case, output: HostTensor): Tolerance {
  if (!isFloat(output.dtype) || ROUNDED.has(definition.name)) return EXACT;
  const tolerance = inFloat32(definition, example);
  if (!isHalf(output.dtype) || tolerance === EXACT) return tolerance;
  const step = STEPS[output.dtype];
  return { relative: tolerance.relative + step.relative, absolute: tolerance.absolute + step.absolute };
}

function inFloat32(definition: OperatorDefinition, { inputs, attributes }: Case): Tolerance {
  const [x, y] = inputs;
  switch (definition.family) {
    case 'map':
      return CANCELLING.has(definition.name)
        ? { relative: 4 * ULP, absolute: 4 * ULP * 0.1 }
        : { relative: 4 * ULP, absolute: LEAST_NORMAL };
    case 'reduction':
      if (definition.name === 'prod') return { relative: 1e-4, absolute: LEAST_NORMAL };
      if (definition.name === 'log-sum-exp') return { relative: 1e-5, absolute: 1e-5 };
      return { relative: 2 * ULP, absolute: 2 * ULP * total(x as HostTensor) };
    case 'normalization': {
      if (definition.name !== 'layer-norm') return { relative: 2e-5, absolute: 2e-5 };
      // Where a row hardly varies, the rounding of x - mean is divided by little more than the root of epsilon.
      const epsilon = (attributes['epsilon'] as number | undefined) ?? 1e-5;
      return { relative: 2e-5, absolute: 2e-5 + (ULP * largest(x) * Math.max(1, largest(y))) / Math.sqrt(epsilon) };
    }
    case 'matrix': {
      const terms = Math.max(...(x as HostTensor).shape);
      return { relative: 1e-5, absolute: 2 * ULP * (terms * largest(x) * largest(y) + largest(inputs[2])) };
    }
    case 'attention':
      return { relative: 2e-5, absolute: 5e-6 };
    case 'rotary':
      return { relative: 2 * ULP, absolute: 2 * ULP * largest(x) };
    case 'indexing':
      if (definition.name === 'cumsum' || definition.name === 'scatter-nd') {
        return { relative: 2 * ULP, absolute: 2 * ULP * total(definition.name === 'cumsum' ? (x as HostTensor) : (y as HostTensor)) };
      }
      return EXACT;
    case 'cache':
      return EXACT;
    default:
      return EXACT;
  }
}

/** The first element that is too far from what it should be, in words; undefined if none is. 0 and -0 are equal, and so are two NaN. */
export function difference(actual: ArrayLike<number>, expected: ArrayLike<number>, { relative, absolute }: Tolerance): string | undefined {
  if (actual.length !== expected.length) return `${actual.length} elements, not ${expected.length}`;
  for (let i = 0; i < expected.length; i++) {
    const [got, want] = [actual[i] as number, expected[i] as number];
    if (got === want || (Number.isNaN(got) && Number.isNaN(want)) || Math.abs(got - want) <= absolute + relative * Math.abs(want)) continue;
    return `element ${i} is ${got}, not ${want}`;
  }
  return undefined;
}
