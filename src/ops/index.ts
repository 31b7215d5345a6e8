import { GpuosError } from '../errors.ts';
import { ATTENTION_OPERATORS } from './attention.ts';
import { CACHE_OPERATORS } from './cache.ts';
import { CONTROL_OPERATORS } from './control.ts';
import type { OperatorDefinition } from './define.ts';
import { FILL_OPERATORS } from './fill.ts';
import { INDEXING_OPERATORS } from './indexing.ts';
import { MAP_OPERATORS } from './map.ts';
import { MATRIX_OPERATORS } from './matrix.ts';
import { NORMALIZATION_OPERATORS } from './normalization.ts';
import { REDUCTION_OPERATORS } from './reduction.ts';
import { ROTARY_OPERATORS } from './rotary.ts';
import { nearMatchHint } from '../spelling.ts';
import { VIEW_OPERATORS } from './view.ts';

/** The operator library. An operator's id is its index here; 0 is nop. */
export const OPERATORS: readonly OperatorDefinition[] = [
  ...CONTROL_OPERATORS,
  ...MAP_OPERATORS,
  ...REDUCTION_OPERATORS,
  ...NORMALIZATION_OPERATORS,
  ...MATRIX_OPERATORS,
  ...ATTENTION_OPERATORS,
  ...ROTARY_OPERATORS,
  ...CACHE_OPERATORS,
  ...INDEXING_OPERATORS,
  ...VIEW_OPERATORS,
  ...FILL_OPERATORS,
];

const IDS: ReadonlyMap<string, number> = new Map(OPERATORS.map((operator, id) => [operator.name, id]));

/** The id of an operator of the library. Throws GPUOS_UNKNOWN_OPERATOR, with a hint where a name is near. */
export function operatorId(name: string): number {
  const id = IDS.get(name);
  if (id === undefined) {
    throw new GpuosError(
      'GPUOS_UNKNOWN_OPERATOR',
      `There is no operator "${String(name).slice(0, 64)}".${nearMatchHint(String(name), IDS.keys())}`,
    );
  }
  return id;
}

/** The operator of this name. Throws GPUOS_UNKNOWN_OPERATOR, with a hint where a name is near. */
export function operatorByName(name: string): OperatorDefinition {
  return OPERATORS[operatorId(name)] as OperatorDefinition;
}
