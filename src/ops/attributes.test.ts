import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GpuosError } from '../errors.ts';
import { checkAttributes, inputCounts } from './attributes.ts';
import type { AttributeDefinition, Attributes } from './define.ts';
import { OPERATORS } from './index.ts';

const OPERATOR = {
  name: 'example',
  inputs: ['x', 'bias?'],
  attributes: {
    size: { type: 'integer', min: 1, max: 8, about: 'a size' },
    scale: { type: 'number', default: 2, about: 'a factor' },
    epsilon: { type: 'number', default: 0.5, min: 0, about: 'not negative' },
    keepDims: { type: 'boolean', default: false, about: 'a switch' },
    mode: { type: 'string', default: 'linear', values: ['linear', 'cubic'], about: 'a choice' },
    axes: { type: 'integers', optional: true, min: -4, about: 'axes' },
    shape: { type: 'shape', default: [2], about: 'a shape' },
    to: { type: 'shape', min: -1, optional: true, about: 'a shape with a wildcard' },
  } satisfies Record<string, AttributeDefinition>,
};

function refused(run: () => unknown): GpuosError {
  try {
    run();
  } catch (error) {
    if (error instanceof GpuosError) return error;
    throw error;
  }
  throw new Error('It was not refused.');
}

/** As from JavaScript, where no type stands in the way. */
const check = (given: unknown) => checkAttributes(OPERATOR, given as Attributes);

describe('checkAttributes', () => {
  it('fills in defaults and leaves optional ones undefined', () => {
    expect(check({ size: 3 })).toEqual({
      size: 3,
      scale: 2,
      epsilon: 0.5,
      keepDims: false,
      mode: 'linear',
      axes: undefined,
      shape: [2],
      to: undefined,
    });
    expect(check({ size: 3, scale: undefined, shape: [], to: [-1, 2] })).toMatchObject({ scale: 2, shape: [], to: [-1, 2] });
  });

  it('lets NaN and the infinities through only where no range is given', () => {
    for (const scale of [Number.NaN, Number.POSITIVE_INFINITY]) expect(check({ size: 1, scale })['scale']).toBe(scale);
    expect(refused(() => check({ size: 1, epsilon: Number.NaN })).code).toBe('GPUOS_BAD_ATTRIBUTE');
  });

  it.each([
    ['a missing one', {}, /attribute size is missing/],
    ['one below its range', { size: 0 }, /size is 0; it must be from 1 to 8/],
    ['one above its range', { size: 9 }, /size is 9/],
    ['a fraction for an integer', { size: 1.5 }, /size is 1.5, not an integer/],
    ['NaN for an integer', { size: Number.NaN }, /size is NaN/],
    ['a text for an integer', { size: '1' }, /size is "1"/],
    ['null', { size: null }, /size is null/],
    ['a text for a number', { size: 1, scale: '2' }, /not a number/],
    ['a negative one', { size: 1, epsilon: -1 }, /epsilon is -1; it must be at least 0/],
    ['a number for a boolean', { size: 1, keepDims: 1 }, /keepDims is 1, not true or false/],
    ['a wrong choice', { size: 1, mode: 'cubik' }, /it may be linear, cubic\. Did you mean "cubic"/],
    ['a number for a choice', { size: 1, mode: 3 }, /not a string/],
    ['one axis without its list', { size: 1, axes: 1 }, /axes is 1, not an array of integers/],
    ['a fraction among integers', { size: 1, axes: [0, 0.5] }, /axes is \[0,0.5\]/],
    ['an item out of range', { size: 1, axes: [0, -5] }, /it must be at least -4/],
    ['a name that is near', { size: 1, keep_dims: true }, /no attribute "keep_dims".*Did you mean "keepDims"/],
    ['a name from the prototype', { size: 1, constructor: 1 }, /no attribute "constructor"/],
  ])('refuses %s', (_, given, message) => {
    const error = refused(() => check(given));
    expect(error.code).toBe('GPUOS_BAD_ATTRIBUTE');
    expect(error.message).toMatch(/^example: /);
    expect(error.message).toMatch(message);
  });

  it.each([
    ['a wildcard where none is possible', { size: 1, shape: [-1] }],
    ['NaN in a shape', { size: 1, shape: [Number.NaN] }],
    ['a shape that is no list', { size: 1, shape: 4 }],
    ['two wildcards', { size: 1, to: [-1, -1] }],
  ])('refuses %s as a bad shape', (_, given) => {
    const error = refused(() => check(given));
    expect(error.code).toBe('GPUOS_BAD_SHAPE');
    expect(error.message).toMatch(/^example: attribute (shape|to)/);
  });

  it('is idempotent, whatever it has accepted', () => {
    const given = fc.record(
      {
        size: fc.integer({ min: 1, max: 8 }),
        scale: fc.double(),
        epsilon: fc.double({ min: 0, noNaN: true }),
        keepDims: fc.boolean(),
        mode: fc.constantFrom('linear', 'cubic'),
        axes: fc.array(fc.integer({ min: -4, max: 4 })),
        shape: fc.array(fc.nat(4), { maxLength: 4 }),
      },
      { requiredKeys: ['size'] },
    );
    fc.assert(
      fc.property(given, (attributes) => {
        const filled = check(attributes);
        expect(filled).toMatchObject(attributes);
        expect(check(filled)).toEqual(filled);
      }),
    );
  });

  it('raises nothing but its own errors, for every operator and any junk', () => {
    const junk = fc.dictionary(
      fc.constantFrom('axis', 'axes', 'shape', 'value', 'dtype', 'k', 'begin', 'size', 'perm', 'min', 'max', 'depth', '__proto__', 'x'),
      fc.anything(),
      { maxKeys: 4 },
    );
    fc.assert(
      fc.property(fc.constantFrom(...OPERATORS), junk, (operator, attributes) => {
        try {
          checkAttributes(operator, attributes as Attributes);
        } catch (error) {
          expect(error).toBeInstanceOf(GpuosError);
          expect(['GPUOS_BAD_ATTRIBUTE', 'GPUOS_BAD_SHAPE']).toContain((error as GpuosError).code);
        }
      }),
      { numRuns: 500 },
    );
  });
});

describe('inputCounts', () => {
  it.each([
    [['x'], 1, 1],
    [['x', 'bias?'], 1, 2],
    [['x', 'gamma?', 'beta?'], 1, 3],
    [['x?'], 0, 1],
    [['xs...'], 1, Number.POSITIVE_INFINITY],
    [[], 0, 0],
  ])('%j takes %d to %d', (inputs, least, most) => {
    expect(inputCounts({ name: 'example', inputs })).toEqual([least, most]);
  });
});
