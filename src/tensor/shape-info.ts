import type { Shape } from '../ops/define.ts';
import { elementCount, strides } from '../ops/shape.ts';

/** A shape that exists once: equal shapes are the same object, so comparing and naming them is cheap. */
export interface ShapeInfo {
  readonly id: number;
  readonly dims: Shape;
  readonly size: number;
  /** Row-major strides in elements. */
  readonly strides: readonly number[];
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
    info = { id: known.size, dims: frozen, size: elementCount(frozen), strides: Object.freeze(strides(frozen)) };
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
