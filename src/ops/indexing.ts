import { ANY, at, checkDType, checkExactShape, checkRank, checkSameDType, checkScalarOf, mismatch, NUMBERS, refuse } from './checks.ts';
import { type Attributes, type DType, defineOperator, type OperatorDefinition, type Shape, type TensorSpec } from './define.ts';
import { formatShape, normalizeAxis, sameShape } from './shape.ts';

const INDEX: readonly DType[] = ['int32'];

/**
 * How indices [.., K] address a tensor: the last axis holds one index for each of its first K axes. Gives K and the
 * shape of the block that one such index names. Throws GPUOS_SHAPE_MISMATCH.
 */
export function indexDepth(name: string, indices: Shape, shape: Shape): { depth: number; block: Shape } {
  if (indices.length === 0) throw mismatch(name, `indices ${formatShape(indices)} must have at least rank 1.`);
  const depth = at(indices, indices.length - 1);
  if (depth > shape.length) {
    throw mismatch(name, `the last size ${depth} of indices ${formatShape(indices)} is more than the rank of ${formatShape(shape)}.`);
  }
  return { depth, block: shape.slice(depth) };
}

/** Checks that updates has the shape indices[:-1] + block. */
function checkUpdates(name: string, indices: Shape, updates: TensorSpec, shape: Shape): void {
  const { block } = indexDepth(name, indices, shape);
  const expected = [...indices.slice(0, -1), ...block];
  if (!sameShape(updates.shape, expected)) {
    const into = `indices ${formatShape(indices)} into ${formatShape(shape)}`;
    throw mismatch(name, `updates ${formatShape(updates.shape)} must have the shape ${formatShape(expected)} for ${into}.`);
  }
}

/** The axes of gather, checked and counted from the front. */
export function gatherAxes(x: Shape, indices: Shape, attributes: Attributes): { axis: number; batchDims: number } {
  const axis = normalizeAxis('gather', attributes['axis'] as number, x.length);
  const batchDims = attributes['batchDims'] as number;
  const shown = () => `x ${formatShape(x)} and indices ${formatShape(indices)}`;
  if (batchDims > axis || batchDims > indices.length) {
    throw refuse(
      'GPUOS_BAD_ATTRIBUTE',
      'gather',
      `${shown()}: batchDims ${batchDims} is more than the axis ${axis} or the rank of indices.`,
    );
  }
  if (!sameShape(x.slice(0, batchDims), indices.slice(0, batchDims)))
    throw mismatch('gather', `${shown()}: the first ${batchDims} sizes differ.`);
  return { axis, batchDims };
}

/** Padded sizes; throws GPUOS_BAD_ATTRIBUTE unless there are two paddings for each axis. */
function paddedShape(shape: Shape, paddings: readonly number[]): Shape {
  if (paddings.length !== 2 * shape.length) {
    throw refuse(
      'GPUOS_BAD_ATTRIBUTE',
      'pad',
      `paddings ${formatShape(paddings)} must have two values for each axis of x ${formatShape(shape)}.`,
    );
  }
  return shape.map((size, i) => at(paddings, 2 * i) + size + at(paddings, 2 * i + 1));
}

export const INDEXING_OPERATORS: readonly OperatorDefinition[] = [
  defineOperator({
    name: 'gather',
    family: 'indexing',
    kind: 'fixed',
    about:
      'slices of x at the indices along an axis: x[:axis] + indices[batchDims:] + x[axis+1:]; the first batchDims sizes are common to both',
    inputs: ['x', 'indices'],
    attributes: {
      axis: { type: 'integer', default: 0, about: 'axis of x that the indices address, negative from the end' },
      batchDims: { type: 'integer', default: 0, min: 0, about: 'number of leading sizes that x and indices have in common' },
    },
    infer(inputs, attributes) {
      const [x, indices] = inputs as readonly [TensorSpec, TensorSpec];
      checkDType('gather', 'indices', indices, INDEX);
      const { axis, batchDims } = gatherAxes(x.shape, indices.shape, attributes);
      return [{ shape: [...x.shape.slice(0, axis), ...indices.shape.slice(batchDims), ...x.shape.slice(axis + 1)], dtype: x.dtype }];
    },
  }),
  defineOperator({
    name: 'gather-nd',
    family: 'indexing',
    kind: 'fixed',
    about: 'blocks of x: indices [.., K] address the first K axes, the result is indices[:-1] + x[K:]',
    inputs: ['x', 'indices'],
    infer(inputs) {
      const [x, indices] = inputs as readonly [TensorSpec, TensorSpec];
      checkDType('gather-nd', 'indices', indices, INDEX);
      const { block } = indexDepth('gather-nd', indices.shape, x.shape);
      return [{ shape: [...indices.shape.slice(0, -1), ...block], dtype: x.dtype }];
    },
  }),
  defineOperator({
    name: 'scatter-nd',
    family: 'indexing',
    kind: 'fixed',
    about: 'zeros with updates added at indices [.., K]; updates for the same place are summed in their order',
    inputs: ['indices', 'updates'],
    attributes: { shape: { type: 'shape', about: 'shape of the result' } },
    infer(inputs, attributes) {
      const [indices, updates] = inputs as readonly [TensorSpec, TensorSpec];
      const shape = attributes['shape'] as Shape;
      checkDType('scatter-nd', 'indices', indices, INDEX);
      checkDType('scatter-nd', 'updates', updates, NUMBERS);
      checkUpdates('scatter-nd', indices.shape, updates, shape);
      return [{ shape, dtype: updates.dtype }];
    },
  }),
  defineOperator({
    name: 'tensor-scatter-update',
    family: 'indexing',
    kind: 'fixed',
    about: 'x with the blocks at indices [.., K] replaced by updates; the last write to a place stays',
    inputs: ['x', 'indices', 'updates'],
    infer(inputs) {
      const [x, indices, updates] = inputs as readonly [TensorSpec, TensorSpec, TensorSpec];
      checkDType('tensor-scatter-update', 'indices', indices, INDEX);
      checkSameDType('tensor-scatter-update', ['x', 'updates'], x, updates);
      checkUpdates('tensor-scatter-update', indices.shape, updates, x.shape);
      return [{ shape: x.shape, dtype: x.dtype }];
    },
  }),
  defineOperator({
    name: 'sparse-to-dense',
    family: 'indexing',
    kind: 'fixed',
    about:
      'a tensor of the scalar `default` with values written at indices: [N, K] for a result of rank K, [N] or [] for rank 1; values [N], ' +
      'or a scalar for every place; the last write to a place stays',
    inputs: ['indices', 'values', 'default'],
    attributes: { shape: { type: 'shape', about: 'shape of the result' } },
    infer(inputs, attributes) {
      const [indices, values, fallback] = inputs as readonly [TensorSpec, TensorSpec, TensorSpec];
      const shape = attributes['shape'] as Shape;
      checkDType('sparse-to-dense', 'indices', indices, INDEX);
      checkSameDType('sparse-to-dense', ['values', 'default'], values, fallback);
      checkExactShape('sparse-to-dense', 'default', fallback, []);
      const rank = indices.shape.length;
      const depth = rank === 2 ? at(indices.shape, 1) : 1;
      if (rank > 2 || depth !== shape.length) {
        throw mismatch(
          'sparse-to-dense',
          `indices ${formatShape(indices.shape)} do not address a tensor ${formatShape(shape)} of rank ${shape.length}.`,
        );
      }
      const count = rank === 0 ? 1 : at(indices.shape, 0);
      if (values.shape.length !== 0 && !sameShape(values.shape, [count])) {
        throw mismatch('sparse-to-dense', `values ${formatShape(values.shape)} must be a scalar or have the shape [${count}].`);
      }
      return [{ shape, dtype: values.dtype }];
    },
  }),
  defineOperator({
    name: 'concat',
    family: 'indexing',
    kind: 'fixed',
    about: 'the inputs one after the other along an axis; their other sizes are equal',
    inputs: ['xs...'],
    attributes: { axis: { type: 'integer', default: 0, about: 'axis to join along, negative from the end' } },
    infer(inputs, attributes) {
      const first = at(inputs, 0);
      const axis = normalizeAxis('concat', attributes['axis'] as number, first.shape.length);
      const without = (spec: TensorSpec) => spec.shape.filter((_, i) => i !== axis);
      let size = 0;
      for (const [i, x] of inputs.entries()) {
        checkSameDType('concat', ['input 0', `input ${i}`], first, x);
        if (x.shape.length !== first.shape.length || !sameShape(without(x), without(first))) {
          throw mismatch(
            'concat',
            `input 0 ${formatShape(first.shape)} and input ${i} ${formatShape(x.shape)} may differ only on axis ${axis}.`,
          );
        }
        size += at(x.shape, axis);
      }
      return [{ shape: first.shape.map((own, i) => (i === axis ? size : own)), dtype: first.dtype }];
    },
  }),
  defineOperator({
    name: 'pad',
    family: 'indexing',
    kind: 'fixed',
    about: 'x with elements of `value` put before and after it on each axis',
    inputs: ['x'],
    attributes: {
      paddings: { type: 'integers', min: 0, about: 'before and after for each axis, flat: [before0, after0, before1, ..]' },
      value: { type: 'number', default: 0, about: 'value of the padding' },
    },
    infer(inputs, attributes) {
      const x = at(inputs, 0);
      checkScalarOf('pad', 'value', attributes['value'] as number, x.dtype);
      return [{ shape: paddedShape(x.shape, attributes['paddings'] as readonly number[]), dtype: x.dtype }];
    },
  }),
  defineOperator({
    name: 'one-hot',
    family: 'indexing',
    kind: 'fixed',
    about: 'a new last axis of size depth, `on` at the index and `off` elsewhere; an index out of range gives `off` only',
    inputs: ['indices'],
    attributes: {
      depth: { type: 'integer', min: 0, about: 'size of the new axis' },
      on: { type: 'number', default: 1, about: 'value at the index' },
      off: { type: 'number', default: 0, about: 'value elsewhere' },
      dtype: { type: 'string', default: 'float32', values: NUMBERS, about: 'dtype of the result' },
    },
    infer(inputs, attributes) {
      const indices = at(inputs, 0);
      const dtype = attributes['dtype'] as DType;
      checkDType('one-hot', 'indices', indices, INDEX);
      checkScalarOf('one-hot', 'on', attributes['on'] as number, dtype);
      checkScalarOf('one-hot', 'off', attributes['off'] as number, dtype);
      return [{ shape: [...indices.shape, attributes['depth'] as number], dtype }];
    },
  }),
  defineOperator({
    name: 'top-k',
    family: 'indexing',
    kind: 'fixed',
    about:
      'the k greatest elements along the last axis, greatest first, and their int32 indices; equal ones in the order of their indices; ' +
      'NaN counts as greater than any number',
    inputs: ['x'],
    attributes: {
      k: { type: 'integer', min: 0, about: 'number of elements to find' },
      sorted: { type: 'boolean', default: true, about: 'whether the order matters; it is the same either way' },
    },
    infer(inputs, attributes) {
      const x = at(inputs, 0);
      const k = attributes['k'] as number;
      checkDType('top-k', 'x', x, NUMBERS);
      checkRank('top-k', 'x', x, 1);
      const size = at(x.shape, x.shape.length - 1);
      if (k > size)
        throw refuse(
          'GPUOS_BAD_ATTRIBUTE',
          'top-k',
          `attribute k is ${k}, but the last axis of x ${formatShape(x.shape)} has ${size} elements.`,
        );
      const shape = [...x.shape.slice(0, -1), k];
      return [
        { shape, dtype: x.dtype },
        { shape, dtype: 'int32' },
      ];
    },
  }),
  defineOperator({
    name: 'tile',
    family: 'indexing',
    kind: 'fixed',
    about: 'x repeated reps[i] times along axis i',
    inputs: ['x'],
    attributes: { reps: { type: 'integers', min: 0, about: 'number of repetitions on each axis' } },
    infer(inputs, attributes) {
      const x = at(inputs, 0);
      const reps = attributes['reps'] as readonly number[];
      checkDType('tile', 'x', x, ANY);
      if (reps.length !== x.shape.length) {
        throw refuse(
          'GPUOS_BAD_ATTRIBUTE',
          'tile',
          `reps ${formatShape(reps)} must have one value for each axis of x ${formatShape(x.shape)}.`,
        );
      }
      return [{ shape: x.shape.map((size, i) => size * at(reps, i)), dtype: x.dtype }];
    },
  }),
  defineOperator({
    name: 'cumsum',
    family: 'indexing',
    kind: 'fixed',
    about: 'running sum along an axis; exclusive: of the elements before; reverse: from the end; int32 wraps',
    inputs: ['x'],
    attributes: {
      axis: { type: 'integer', about: 'axis to sum along, negative from the end' },
      exclusive: { type: 'boolean', default: false, about: 'whether an element is left out of its own sum' },
      reverse: { type: 'boolean', default: false, about: 'whether to sum from the end' },
    },
    infer(inputs, attributes) {
      const x = at(inputs, 0);
      checkDType('cumsum', 'x', x, NUMBERS);
      normalizeAxis('cumsum', attributes['axis'] as number, x.shape.length);
      return [{ shape: x.shape, dtype: x.dtype }];
    },
  }),
];
