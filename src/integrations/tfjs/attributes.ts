/**
 * Attributes that kernels ask for again and again, as frozen objects: the tensor engine checks and numbers such an
 * object once, so that a repeated model pays for a look-up only.
 */
import type { Attributes, AttributeValue } from '../../ops/define.ts';

/** Far more than a model has; a program that never repeats itself starts over. */
const MAX_KNOWN = 4096;

const known = new Map<string, Attributes>();

function remember(key: string, attributes: Record<string, AttributeValue>): Attributes {
  if (known.size >= MAX_KNOWN) known.clear();
  // The lists are those of tfjs, whose program may change them afterwards.
  for (const name in attributes) {
    const value = attributes[name];
    if (Array.isArray(value)) attributes[name] = Object.freeze(value.slice()) as readonly number[];
  }
  Object.freeze(attributes);
  known.set(key, attributes);
  return attributes;
}

/** { shape } */
export function shapeAttributes(shape: readonly number[]): Attributes {
  const key = `shape ${shape.join()}`;
  return known.get(key) ?? remember(key, { shape });
}

/** { perm } */
export function permutationAttributes(perm: readonly number[]): Attributes {
  const key = `perm ${perm.join()}`;
  return known.get(key) ?? remember(key, { perm });
}

/** { begin, size } */
export function blockAttributes(begin: readonly number[], size: readonly number[]): Attributes {
  const key = `block ${begin.join()} ${size.join()}`;
  return known.get(key) ?? remember(key, { begin, size });
}

/** { axes, keepDims } */
export function reductionAttributes(axes: readonly number[], keepDims: boolean): Attributes {
  const key = `${keepDims ? 'keep' : 'drop'} ${axes.join()}`;
  return known.get(key) ?? remember(key, { axes, keepDims });
}

/** { axis } */
export function axisAttributes(axis: number): Attributes {
  const key = `axis ${axis}`;
  return known.get(key) ?? remember(key, { axis });
}

/** { axis, batchDims } */
export function gatherAttributes(axis: number, batchDims: number): Attributes {
  const key = `gather ${axis} ${batchDims}`;
  return known.get(key) ?? remember(key, { axis, batchDims });
}

/** { transposeA, transposeB, activation } */
export function productAttributes(transposeA: boolean, transposeB: boolean, activation: string): Attributes {
  const key = `product ${transposeA} ${transposeB} ${activation}`;
  return known.get(key) ?? remember(key, { transposeA, transposeB, activation });
}
