import type { DType, Shape } from '../ops/define.ts';
import { elementCount, strides } from '../ops/shape.ts';
import { DTYPES } from '../ops/dtype.ts';
import { dtypeCode } from './graph.ts';

/** A shape that exists once: equal shapes are the same object, so comparing and naming them is cheap. */
export interface ShapeInfo {
  readonly id: number;
  readonly dims: Shape;
  readonly size: number;
  /** Row-major strides in elements. */
  readonly strides: readonly number[];
  /** A value of this shape in memory of its own. */
  readonly contiguous: { readonly strides: readonly number[]; readonly offset: number };
  /** All of its elements in their order, as one dimension; of a single one, as none. */
  readonly inOrder: { readonly dims: readonly number[]; readonly strides: readonly number[] };
  /** Tensors of this shape by their dtype (see typeOf). */
  readonly types: (TensorType | undefined)[];
  /** The shape with numbers for sizes, and in which round of asking for it that was found (see Sizes). */
  round: number;
  numbered: ShapeInfo | undefined;
}

/** A shape and a dtype, which exist once together. */
export interface TensorType {
  readonly id: number;
  readonly info: ShapeInfo;
  readonly dtype: DType;
  /** See dtypeCode. */
  readonly code: number;
}

export function typeOf(info: ShapeInfo, dtype: DType): TensorType {
  const code = dtypeCode(dtype);
  let type = info.types[code];
  if (type === undefined) {
    type = { id: (info.id << 3) | code, info, dtype, code };
    info.types[code] = type;
  }
  return type;
}

const ONE = { dims: [], strides: [] };
const known = new Map<string, ShapeInfo>();
/** Lists that were looked up before, by identity: programs hand the same array over and over. */
const seen = new WeakMap<Shape, ShapeInfo>();

/** The one ShapeInfo of these dimensions, which must be valid (see checkShape). */
export function shapeInfo(dims: Shape): ShapeInfo {
  const before = seen.get(dims);
  // A caller's array may have been written since; ours are frozen.
  if (before !== undefined && (before.dims === dims || sameDims(before.dims, dims))) return before;
  const info = shapeOf(dims);
  if (dims !== info.dims) seen.set(dims, info);
  return info;
}

/** The same for a list that is not handed over again: to remember it would be in vain. */
export function shapeOf(dims: Shape): ShapeInfo {
  const key = dims.join();
  let info = known.get(key);
  if (info === undefined) {
    const frozen = Object.freeze([...dims]);
    const size = elementCount(frozen);
    const steps = Object.freeze(strides(frozen));
    const inOrder = size === 1 ? ONE : frozen.length === 1 ? { dims: frozen, strides: steps } : { dims: [size], strides: [1] };
    const contiguous = { strides: steps, offset: 0 };
    const types = new Array<TensorType | undefined>(DTYPES.length).fill(undefined);
    info = { id: known.size, dims: frozen, size, strides: steps, contiguous, inOrder, types, round: 0, numbered: undefined };
    known.set(key, info);
    seen.set(frozen, info);
  }
  return info;
}

function sameDims(a: Shape, b: Shape): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

/** A small number for a list of integers or a text, the same whenever the content is. */
export class Interner {
  readonly #ids = new Map<string, number>();

  id(key: string): number {
    let id = this.#ids.get(key);
    if (id === undefined) {
      id = this.#ids.size;
      this.#ids.set(key, id);
    }
    return id;
  }
}
