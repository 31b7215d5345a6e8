import { GpuosError } from '../errors.ts';
import type { AttributeDefinition, Attributes, AttributeValue, OperatorDefinition } from './define.ts';
import { checkShape, formatValue } from './shape.ts';
import { nearMatchHint } from '../spelling.ts';

const NONE: Attributes = Object.freeze({});

type Named = Pick<OperatorDefinition, 'name' | 'inputs' | 'attributes'>;

/**
 * The attributes as the operator reads them: every declared name present, defaults filled in. Throws
 * GPUOS_BAD_ATTRIBUTE for a name that the operator does not have (with a hint), one that is missing, and a value of
 * the wrong type or out of range; GPUOS_BAD_SHAPE for a bad shape. Idempotent.
 */
export function checkAttributes(definition: Named, given: Attributes = NONE): Attributes {
  const declared = definition.attributes ?? NONE_DECLARED;
  for (const name in given) {
    if (!Object.hasOwn(declared, name)) {
      const names = Object.keys(declared);
      const has = names.length === 0 ? 'it has none' : `it has ${names.join(', ')}`;
      throw bad(definition, `there is no attribute "${name}"; ${has}.${nearMatchHint(name, names)}`);
    }
  }
  if (definition.attributes === undefined) return NONE;
  const filled: Record<string, AttributeValue> = {};
  for (const name in declared) {
    const attribute = declared[name] as AttributeDefinition;
    const value = given[name];
    if (value === undefined) {
      if (attribute.default === undefined && !attribute.optional)
        throw bad(definition, `attribute ${name} is missing (${attribute.about}).`);
      filled[name] = attribute.default;
    } else {
      checkValue(definition, name, attribute, value);
      filled[name] = value;
    }
  }
  return filled;
}

const NONE_DECLARED: Readonly<Record<string, AttributeDefinition>> = {};

function bad(definition: Named, message: string): GpuosError {
  return new GpuosError('GPUOS_BAD_ATTRIBUTE', `${definition.name}: ${message}`);
}

function checkValue(definition: Named, name: string, attribute: AttributeDefinition, value: unknown): void {
  const wrong = (wanted: string) => bad(definition, `attribute ${name} is ${formatValue(value)}, not ${wanted} (${attribute.about}).`);
  switch (attribute.type) {
    case 'boolean':
      if (typeof value !== 'boolean') throw wrong('true or false');
      return;
    case 'string':
      if (typeof value !== 'string') throw wrong('a string');
      if (attribute.values && !attribute.values.includes(value)) {
        throw bad(
          definition,
          `attribute ${name} is ${formatValue(value)}; it may be ${attribute.values.join(', ')}.${nearMatchHint(value, attribute.values)}`,
        );
      }
      return;
    case 'number':
      if (typeof value !== 'number') throw wrong('a number');
      checkRange(definition, name, attribute, value, value);
      return;
    case 'integer':
      if (!isInteger(value)) throw wrong('an integer');
      checkRange(definition, name, attribute, value, value);
      return;
    case 'integers':
      if (!Array.isArray(value) || !value.every(isInteger)) throw wrong('an array of integers');
      for (const item of value) checkRange(definition, name, attribute, item, value);
      return;
    case 'shape':
      checkShape(`${definition.name}: attribute ${name}`, value, attribute.min === -1);
  }
}

function isInteger(value: unknown): value is number {
  return Number.isSafeInteger(value);
}

function checkRange(definition: Named, name: string, attribute: AttributeDefinition, item: number, value: unknown): void {
  const { min, max } = attribute;
  // Written so that NaN, for which both comparisons are false, is refused.
  if ((min === undefined || item >= min) && (max === undefined || item <= max)) return;
  const range = max === undefined ? `at least ${min}` : min === undefined ? `at most ${max}` : `from ${min} to ${max}`;
  throw bad(definition, `attribute ${name} is ${formatValue(value)}; it must be ${range} (${attribute.about}).`);
}

/** Least and greatest number of inputs that an operator takes. */
export function inputCounts({ inputs }: Named): readonly [least: number, most: number] {
  let least = inputs.length;
  while (least > 0 && (inputs[least - 1] as string).endsWith('?')) least--;
  const list = inputs.length > 0 && (inputs[inputs.length - 1] as string).endsWith('...');
  return [least, list ? Number.POSITIVE_INFINITY : inputs.length];
}

/** The error of an operator that is given fewer or more inputs than it takes: GPUOS_SHAPE_MISMATCH. */
export function wrongInputCount(definition: Named, count: number): GpuosError {
  return new GpuosError('GPUOS_SHAPE_MISMATCH', `${definition.name}: takes (${definition.inputs.join(', ')}), but got ${count} inputs.`);
}

/** Throws GPUOS_SHAPE_MISMATCH when an operator is given fewer or more inputs than it takes. */
export function checkInputCount(definition: Named, count: number): void {
  const [least, most] = inputCounts(definition);
  if (count < least || count > most) throw wrongInputCount(definition, count);
}
