import type { DType, Shape } from '../ops/define.ts';
import { elementCount, strides } from '../ops/shape.ts';
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

const known = new Map<string, ShapeInfo>();
/** Lists that were looked up before, by identity: programs hand the same array over and over. */
const seen = new WeakMap<Shape, ShapeInfo>();

/** The one ShapeInfo of these dimensions, which must be valid (see checkShape). */
export function shapeInfo(dims: Shape): ShapeInfo {
  const before = seen.get(dims);
  // A caller's array may have been written since; ours are frozen.
  if (before !== undefined && (before.dims === dims || sameDims(before.dims, dims))) return before;
  const key = dims.join();
  let info = known.get(key);
  if (info === undefined) {
    const frozen = Object.freeze([...dims]);
    const size = elementCount(frozen);
    const steps = Object.freeze(strides(frozen));
    const inOrder = size === 1 ? { dims: [], strides: [] } : { dims: [size], strides: [1] };
    info = { id: known.size, dims: frozen, size, strides: steps, contiguous: { strides: steps, offset: 0 }, inOrder, types: [] };
    known.set(key, info);
    seen.set(frozen, info);
  }
  if (dims !== info.dims) seen.set(dims, info);
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
