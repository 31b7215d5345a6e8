import { checkAttributes, inputCounts, wrongInputCount } from './attributes.ts';
import { type DType, isHalf } from './dtype.ts';
import { checkExtent } from './shape.ts';

export type { DType } from './dtype.ts';
export type Shape = readonly number[];

/** What is known of a tensor before it has values. */
export interface TensorSpec {
  readonly shape: Shape;
  readonly dtype: DType;
}

export type AttributeValue = number | boolean | string | readonly number[] | undefined;
export type Attributes = Readonly<Record<string, AttributeValue>>;

/**
 * One attribute of an operator, checked before anything reaches a device. An attribute with neither a
 * `default` nor `optional` must be given.
 */
export interface AttributeDefinition {
  /** `shape` is a list of dimensions (at least 0; with `min: -1` one may be the wildcard -1), refused with GPUOS_BAD_SHAPE. */
  readonly type: 'integer' | 'number' | 'boolean' | 'string' | 'integers' | 'shape';
  readonly default?: AttributeValue;
  /** May be left out although it has no default; the operator then finds `undefined`. */
  readonly optional?: boolean;
  /** Least value (of every element, for `integers`). NaN is refused where `min` or `max` is given. */
  readonly min?: number;
  readonly max?: number;
  readonly values?: readonly string[];
  readonly about: string;
}

export type Family =
  | 'control'
  | 'map'
  | 'reduction'
  | 'normalization'
  | 'matrix'
  | 'attention'
  | 'rotary'
  | 'cache'
  | 'indexing'
  | 'view'
  | 'fill'
  | 'random';

/**
 * How the planner treats an operator:
 *  - `map`: element-wise with NumPy broadcasting; fused freely.
 *  - `reduce`: a reduction over axes; fused with its producers and consumers.
 *  - `composite`: `expand` states it as maps, reductions and views, so that it is fused like them.
 *  - `view`: new shape or strides over the same memory; no task.
 *  - `fixed`: a device function of its own.
 */
export type OperatorKind = 'map' | 'reduce' | 'composite' | 'view' | 'fixed';

/** Records operators while a composite is expanded. `V` is a recorded value, opaque to the operator library. */
export interface ExpressionBuilder<V> {
  apply(operator: string, inputs: readonly V[], attributes?: Attributes): V;
  constant(value: number, dtype?: DType): V;
  spec(value: V): TensorSpec;
}

/** One operator of the library: one literal an operator, one file a family, `ops/index.ts` the one table. */
export interface OperatorDefinition {
  readonly name: string;
  readonly family: Family;
  readonly kind: OperatorKind;
  readonly about: string;
  /** Names of the inputs, in order; a trailing `?` marks an optional one, a trailing `...` a list. */
  readonly inputs: readonly string[];
  readonly attributes?: Readonly<Record<string, AttributeDefinition>>;
  /**
   * Specs of the outputs. Throws GpuosError (SHAPE_MISMATCH, DTYPE_MISMATCH, BAD_SHAPE, BAD_AXIS, BAD_ATTRIBUTE) with
   * the operator's name and the offending shapes in the message.
   */
  infer(inputs: readonly TensorSpec[], attributes: Attributes): readonly TensorSpec[];
  /** Only for `composite`. */
  expand?<V>(builder: ExpressionBuilder<V>, inputs: readonly V[], attributes: Attributes): V;
}

/**
 * Completes a literal: `infer` and `expand` of the result count the inputs, check the attributes and fill in their
 * defaults before the literal's own function sees them, so a literal reads attributes without checking their types,
 * and a caller may pass them as the user gave them.
 */
export function defineOperator(definition: OperatorDefinition): OperatorDefinition {
  const { infer, expand } = definition;
  const [least, most] = inputCounts(definition);
  const checked: OperatorDefinition = {
    ...definition,
    infer(inputs, attributes) {
      if (inputs.length < least || inputs.length > most) throw wrongInputCount(definition, inputs.length);
      const outputs = infer(inputs, checkAttributes(definition, attributes));
      for (let i = 0; i < outputs.length; i++) checkExtent(definition.name, (outputs[i] as TensorSpec).shape);
      return outputs;
    },
  };
  if (!expand) return checked;
  return {
    ...checked,
    expand(builder, inputs, attributes) {
      if (inputs.length < least || inputs.length > most) throw wrongInputCount(definition, inputs.length);
      const checked = checkAttributes(definition, attributes);
      if (!inputs.some((input) => isHalf(builder.spec(input).dtype))) return expand(builder, inputs, checked);
      // A composite is one operator: of halves, too, it is computed in float32 and rounded once.
      const { dtype } = infer(inputs.map(builder.spec), checked)[0] as TensorSpec;
      const wide = inputs.map((input) =>
        isHalf(builder.spec(input).dtype) ? builder.apply('cast', [input], { dtype: 'float32' }) : input,
      );
      const result = expand(builder, wide, checked);
      return builder.spec(result).dtype === dtype ? result : builder.apply('cast', [result], { dtype });
    },
  };
}
