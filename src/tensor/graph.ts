import type { Attributes, DType, OperatorDefinition } from '../ops/define.ts';
import { DTYPES } from '../ops/dtype.ts';
import type { ShapeInfo } from './shape-info.ts';
import type { View } from './view.ts';

/**
 * What the planner sees of a recorded computation: no tensors, only how values hang together. A plan
 * made from it serves every later computation of the same form.
 *
 * A reference is a node's index, or ~k for external value k.
 */
export interface Graph {
  readonly nodes: readonly GraphNode[];
  readonly externals: readonly GraphExternal[];
}

export interface GraphNode {
  readonly definition: OperatorDefinition;
  readonly attributes: Attributes;
  readonly inputs: readonly number[];
  readonly info: ShapeInfo;
  readonly dtype: DType;
  /** It must be in memory when the plan has run. */
  readonly needed: boolean;
  /** Somebody may still ask for it; if it gets memory at all, then memory of its own. */
  readonly alive: boolean;
  /** Further outputs of an operator are nodes of their own: which output of their only input they are. */
  readonly output: number;
  /** What results call it. */
  readonly tag: number;
}

export type GraphExternal =
  | { readonly kind: 'storage'; readonly info: ShapeInfo; readonly dtype: DType; readonly view: View; readonly reused: boolean }
  /** A single host value: a run-time parameter. */
  | { readonly kind: 'scalar'; readonly info: ShapeInfo; readonly dtype: DType }
  /** A single value that is part of the form. */
  | { readonly kind: 'constant'; readonly info: ShapeInfo; readonly dtype: DType; readonly value: number };

/** A small number for a dtype, below 8; as a bit, `1 << dtypeCode(dtype)`. */
export const dtypeCode = (dtype: DType): number => (dtype === 'float32' ? 0 : DTYPES.indexOf(dtype));

export const isExternal = (ref: number): boolean => ref < 0;
