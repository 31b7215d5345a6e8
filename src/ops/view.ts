import { at, mismatch, refuse } from './checks.ts';
import { type AttributeDefinition, type Attributes, defineOperator, type OperatorDefinition, type Shape } from './define.ts';
import { broadcastsTo, elementCount, formatShape, normalizeAxes, normalizeAxis } from './shape.ts';

/** The shape that reshape gives, its -1 worked out. Throws GPUOS_SHAPE_MISMATCH when the numbers of elements differ. */
export function resolveReshape(from: Shape, to: Shape): Shape {
  const count = elementCount(from);
  const known = elementCount(to.filter((size) => size !== -1));
  const wildcard = to.indexOf(-1);
  const shown = () => `x ${formatShape(from)} of ${count} elements does not fit ${formatShape(to)}`;
  if (wildcard < 0) {
    if (known !== count) throw mismatch('reshape', `${shown()} of ${known}.`);
    return to;
  }
  if (known === 0) throw mismatch('reshape', `${shown()}: with a size of 0, the -1 could be any size.`);
  if (count % known !== 0) throw mismatch('reshape', `${shown()}: ${count} is not a multiple of ${known}.`);
  return to.map((size) => (size === -1 ? count / known : size));
}

/** The permutation of transpose, counted from the front; reversed axes when none is given. */
export function resolvePermutation(rank: number, attributes: Attributes): readonly number[] {
  const perm = attributes['perm'] as readonly number[] | undefined;
  if (perm === undefined) return Array.from({ length: rank }, (_, i) => rank - 1 - i);
  if (perm.length !== rank)
    throw refuse('GPUOS_BAD_AXIS', 'transpose', `perm ${formatShape(perm)} has ${perm.length} axes, but x has rank ${rank}.`);
  normalizeAxes('transpose', perm, rank);
  return perm.map((axis) => normalizeAxis('transpose', axis, rank));
}

function checkLength(operator: string, name: string, list: readonly number[], rank: number): void {
  if (list.length !== rank) {
    throw refuse(
      'GPUOS_BAD_ATTRIBUTE',
      operator,
      `attribute ${name} is ${formatShape(list)}; x has rank ${rank}, so it needs ${rank} values.`,
    );
  }
}

/** The sizes that slice leaves, -1 worked out. */
export function resolveSlice(shape: Shape, attributes: Attributes): { begin: readonly number[]; size: readonly number[] } {
  const begin = attributes['begin'] as readonly number[];
  const given = attributes['size'] as readonly number[];
  checkLength('slice', 'begin', begin, shape.length);
  checkLength('slice', 'size', given, shape.length);
  const size = given.map((count, i) => (count === -1 ? at(shape, i) - at(begin, i) : count));
  for (let i = 0; i < shape.length; i++) {
    if (at(size, i) < 0 || at(begin, i) + at(size, i) > at(shape, i)) {
      const asked = `begin ${formatShape(begin)} and size ${formatShape(given)}`;
      throw refuse('GPUOS_BAD_ATTRIBUTE', 'slice', `${asked} leave x ${formatShape(shape)} on axis ${i}.`);
    }
  }
  return { begin, size };
}

/** The shape of a strided slice whose begin and end are absolute. */
export function resolveStridedSlice(shape: Shape, attributes: Attributes): Shape {
  const begin = attributes['begin'] as readonly number[];
  const end = attributes['end'] as readonly number[];
  const steps = attributes['strides'] as readonly number[];
  checkLength('strided-slice', 'begin', begin, shape.length);
  checkLength('strided-slice', 'end', end, shape.length);
  checkLength('strided-slice', 'strides', steps, shape.length);
  return shape.map((size, i) => {
    const [from, to, step] = [at(begin, i), at(end, i), at(steps, i)];
    if (step === 0) throw refuse('GPUOS_BAD_ATTRIBUTE', 'strided-slice', `stride ${i} of ${formatShape(steps)} is 0.`);
    const count = Math.max(0, Math.ceil((to - from) / step));
    const last = from + (count - 1) * step;
    if (count > 0 && (from < 0 || from >= size || last < 0 || last >= size)) {
      throw refuse(
        'GPUOS_BAD_ATTRIBUTE',
        'strided-slice',
        `begin ${from}, end ${to} and stride ${step} leave x ${formatShape(shape)} on axis ${i}.`,
      );
    }
    return count;
  });
}

/** The axes that squeeze takes away, ascending. */
export function resolveSqueeze(shape: Shape, attributes: Attributes): readonly number[] {
  const given = attributes['axes'] as readonly number[] | undefined;
  if (given === undefined) return shape.flatMap((size, i) => (size === 1 ? [i] : []));
  const axes = normalizeAxes('squeeze', given, shape.length);
  for (const axis of axes) {
    if (shape[axis] !== 1) throw mismatch('squeeze', `axis ${axis} of x ${formatShape(shape)} has size ${shape[axis]}, not 1.`);
  }
  return axes;
}

function viewOperator(
  name: string,
  about: string,
  attributes: Readonly<Record<string, AttributeDefinition>>,
  shapeOf: (shape: Shape, attributes: Attributes) => Shape,
): OperatorDefinition {
  return defineOperator({
    name,
    family: 'view',
    kind: 'view',
    about,
    inputs: ['x'],
    attributes,
    infer(inputs, given) {
      const x = at(inputs, 0);
      return [{ shape: shapeOf(x.shape, given), dtype: x.dtype }];
    },
  });
}

export const VIEW_OPERATORS: readonly OperatorDefinition[] = [
  viewOperator(
    'reshape',
    'the same elements in row-major order under another shape',
    { shape: { type: 'shape', min: -1, about: 'new shape; one size may be -1, worked out from the others' } },
    (shape, attributes) => resolveReshape(shape, attributes['shape'] as Shape),
  ),
  viewOperator(
    'transpose',
    'axis i of the result is axis perm[i] of x',
    { perm: { type: 'integers', optional: true, about: 'permutation of the axes; reversed by default' } },
    (shape, attributes) => resolvePermutation(shape.length, attributes).map((axis) => at(shape, axis)),
  ),
  viewOperator(
    'slice',
    'the block of `size` elements from `begin`',
    {
      begin: { type: 'integers', min: 0, about: 'first index on each axis' },
      size: { type: 'integers', min: -1, about: 'number of indices on each axis; -1 for all to the end' },
    },
    (shape, attributes) => resolveSlice(shape, attributes).size,
  ),
  viewOperator(
    'strided-slice',
    'the indices begin, begin + stride, .. before end on each axis; begin and end are absolute (for a negative stride, end may be -1)',
    {
      begin: { type: 'integers', about: 'first index on each axis' },
      end: { type: 'integers', min: -1, about: 'index on each axis before which to stop' },
      strides: { type: 'integers', about: 'step on each axis, not 0' },
    },
    resolveStridedSlice,
  ),
  viewOperator('expand', 'x broadcast to a shape', { shape: { type: 'shape', about: 'shape to broadcast to' } }, (shape, attributes) => {
    const to = attributes['shape'] as Shape;
    if (!broadcastsTo(shape, to)) throw mismatch('expand', `x ${formatShape(shape)} does not broadcast to ${formatShape(to)}.`);
    return to;
  }),
  viewOperator(
    'reverse',
    'x with the order of indices reversed on the axes',
    { axes: { type: 'integers', optional: true, about: 'axes to reverse; all by default' } },
    (shape, attributes) => {
      normalizeAxes('reverse', attributes['axes'] as readonly number[] | undefined, shape.length);
      return shape;
    },
  ),
  viewOperator(
    'squeeze',
    'x without axes of size 1',
    { axes: { type: 'integers', optional: true, about: 'axes to take away; every one of size 1 by default' } },
    (shape, attributes) => {
      const axes = resolveSqueeze(shape, attributes);
      return shape.filter((_, i) => !axes.includes(i));
    },
  ),
  viewOperator(
    'expand-dims',
    'x with an axis of size 1 put in',
    { axis: { type: 'integer', about: 'place of the new axis in the result, negative from the end' } },
    (shape, attributes) => {
      const axis = normalizeAxis('expand-dims', attributes['axis'] as number, shape.length + 1);
      return [...shape.slice(0, axis), 1, ...shape.slice(axis)];
    },
  ),
];
