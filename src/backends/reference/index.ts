/**
 * The reference device: every operator as plain loops over host arrays, in double precision where the result is
 * float32 and rounded once at the end (for float16 and bfloat16 to float32, and that to the narrower dtype). It is the definition of truth that other devices are held to, so it is written
 * from each operator's formula and shares no code with `expand` or with any device. It is not meant to be fast.
 */
import { GpuosError } from '../../errors.ts';
import { checkAttributes } from '../../ops/attributes.ts';
import type { Attributes } from '../../ops/define.ts';
import { isHalf } from '../../ops/dtype.ts';
import { roundToHalf } from '../../ops/half.ts';
import { type HostTensor, hostZeros } from '../../ops/host-tensor.ts';
import { OPERATORS, operatorByName } from '../../ops/index.ts';
import { MAPS } from '../../ops/map.ts';
import type { MapName } from '../../ops/program.ts';
import { checkShape, elementCount, formatShape } from '../../ops/shape.ts';
import { ATTENTIONS } from './attention.ts';
import { CACHES } from './cache.ts';
import type { ReferenceOperator } from './elements.ts';
import { FILLS } from './fill.ts';
import { INDEXINGS } from './indexing.ts';
import { COMPOSITE_MAPS, mapReference } from './map.ts';
import { MATRICES } from './matrix.ts';
import { NORMALIZATIONS } from './normalization.ts';
import { REDUCTIONS } from './reduction.ts';
import { ROTARIES } from './rotary.ts';
import { VIEWS } from './view.ts';

const REFERENCES: ReadonlyMap<string, ReferenceOperator> = new Map([
  ...Object.keys(MAPS).map((name): [string, ReferenceOperator] => [name, mapReference(name as MapName)]),
  ...[COMPOSITE_MAPS, REDUCTIONS, NORMALIZATIONS, MATRICES, ATTENTIONS, ROTARIES, CACHES, INDEXINGS, VIEWS, FILLS].flatMap((family) =>
    Object.entries(family),
  ),
]);

/** The operators that have a reference: all but nop, which computes nothing. */
export function hasReference(name: string): boolean {
  return REFERENCES.has(name);
}

/**
 * Runs one operator of the library on host tensors and gives its outputs; the inputs stay as they are.
 *
 * Throws what the operator's `infer` throws (GPUOS_SHAPE_MISMATCH, GPUOS_DTYPE_MISMATCH, GPUOS_BAD_SHAPE,
 * GPUOS_BAD_AXIS, GPUOS_BAD_ATTRIBUTE), GPUOS_UNKNOWN_OPERATOR, and GPUOS_INDEX_OUT_OF_RANGE where the values of an
 * input are indices and one is out of range.
 */
export function referenceRun(name: string, inputs: readonly HostTensor[], attributes: Attributes = {}): HostTensor[] {
  const definition = operatorByName(name);
  for (const input of inputs) {
    checkShape(name, input.shape);
    if (input.data.length !== elementCount(input.shape)) {
      throw new GpuosError('GPUOS_SHAPE_MISMATCH', `${name}: an input ${formatShape(input.shape)} has ${input.data.length} values.`);
    }
  }
  const filled = checkAttributes(definition, attributes);
  const outputs = definition.infer(inputs, filled).map(hostZeros);
  // Operators whose results are arithmetic store float32, as the host's arrays do; halves are rounded from there, all of them here.
  const run = REFERENCES.get(definition.name);
  if (run) run(inputs, filled, outputs);
  else if (definition !== OPERATORS[0]) throw new GpuosError('GPUOS_INTERNAL', `${name}: there is no reference.`);
  for (const { dtype, data } of outputs)
    if (isHalf(dtype)) for (let i = 0; i < data.length; i++) data[i] = roundToHalf(data[i] as number, dtype);
  return outputs;
}
