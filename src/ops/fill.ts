import { ANY, checkScalarOf, NUMBERS, refuse } from './checks.ts';
import { type Attributes, type DType, defineOperator, type OperatorDefinition, type Shape } from './define.ts';
import { MAX_ELEMENTS } from './shape.ts';

const FINITE = { min: -Number.MAX_VALUE, max: Number.MAX_VALUE } as const;

/** Number of elements of range: ceil((stop - start) / step), at least 0. */
export function rangeLength(attributes: Attributes): number {
  return Math.max(0, Math.ceil(((attributes['stop'] as number) - (attributes['start'] as number)) / (attributes['step'] as number)));
}

export const FILL_OPERATORS: readonly OperatorDefinition[] = [
  defineOperator({
    name: 'fill',
    family: 'fill',
    kind: 'fixed',
    about: 'a tensor whose elements are all `value`',
    inputs: [],
    attributes: {
      shape: { type: 'shape', about: 'shape of the result' },
      value: { type: 'number', about: 'value of every element' },
      dtype: { type: 'string', default: 'float32', values: ANY, about: 'dtype of the result' },
    },
    infer(_, attributes) {
      const dtype = attributes['dtype'] as DType;
      checkScalarOf('fill', 'value', attributes['value'] as number, dtype);
      return [{ shape: attributes['shape'] as Shape, dtype }];
    },
  }),
  defineOperator({
    name: 'range',
    family: 'fill',
    kind: 'fixed',
    about: 'start + i step for i = 0 .. ceil((stop - start) / step) - 1',
    inputs: [],
    attributes: {
      start: { type: 'number', default: 0, ...FINITE, about: 'first element' },
      stop: { type: 'number', ...FINITE, about: 'bound that is not reached' },
      step: { type: 'number', default: 1, ...FINITE, about: 'difference of neighbours, not 0' },
      dtype: { type: 'string', default: 'float32', values: NUMBERS, about: 'dtype of the result' },
    },
    infer(_, attributes) {
      const dtype = attributes['dtype'] as DType;
      if (attributes['step'] === 0) throw refuse('GPUOS_BAD_ATTRIBUTE', 'range', 'attribute step is 0.');
      for (const name of ['start', 'stop', 'step']) checkScalarOf('range', name, attributes[name] as number, dtype);
      const length = rangeLength(attributes);
      if (length > MAX_ELEMENTS)
        throw refuse('GPUOS_BAD_SHAPE', 'range', `it would have ${length} elements; at most ${MAX_ELEMENTS} are possible.`);
      return [{ shape: [length], dtype }];
    },
  }),
];
