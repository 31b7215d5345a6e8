import type { Attributes, DType } from '../../ops/define.ts';
import { elementCount, MAX_RANK, sameShape } from '../../ops/shape.ts';
import { shapeAttributes } from './attributes.ts';
import type { BackendValues, DataType, TensorInfo } from './tfjs.ts';

export type HostArray = Float32Array | Int32Array | Uint8Array;

/** What we need of a tensor of the tensor engine: lazy, and immutable. */
export interface RingTensor {
  readonly shape: readonly number[];
  readonly dtype: DType;
  data(): Promise<HostArray>;
  dataSync(): HostArray;
  dispose(): void;
}

/** What we need of the tensor engine; tests put an eager one in its place. */
export interface RingEngine {
  fromHost(values: HostArray, shape: readonly number[], dtype: DType): RingTensor;
  apply(operator: string, inputs: readonly RingTensor[], attributes?: Attributes): RingTensor[];
  /** Element-wise operations without attributes, the quick way. */
  unary(operator: string, x: RingTensor): RingTensor;
  binary(operator: string, a: RingTensor, b: RingTensor): RingTensor;
  /** Submits what is recorded, and resolves when all of it is complete. */
  sync(): Promise<void>;
  readonly counters: { readonly operations: number; readonly tasks: number };
}

/** Most elements of an integer tensor whose values the host keeps: shapes, indices, sizes; not data. */
export const SHADOW_ELEMENTS = 64;

/** Views of one tensor under other shapes that are kept for their next use. */
const MAX_VIEWS = 8;

/**
 * The data behind one or several tensors of tfjs. It is its own `dataId`, so that finding the data of a tensor costs a
 * type check instead of a look-up. tfjs shares a dataId between tensors that differ only in shape, and counts them.
 *
 * The values are on the host (`shadow`, small integers), on the device (`tensor`), or both; strings and complex numbers
 * have a place of their own, as the device has no such dtypes.
 */
export class DataRecord {
  /** Tensors of tfjs that use it; 0: disposed of, or moved to another backend. */
  refCount = 1;
  readonly dtype: DataType;
  /** int32 and bool of at most 64 elements whose values the host knows without asking the device. */
  shadow: readonly number[] | undefined;
  tensor: RingTensor | undefined;
  /** Strings, encoded. */
  strings: BackendValues | undefined;
  complex: { readonly real: TensorInfo; readonly imag: TensorInfo } | undefined;
  #views: RingTensor[] | undefined;

  constructor(dtype: DataType, tensor: RingTensor | undefined, shadow: readonly number[] | undefined) {
    this.dtype = dtype;
    this.tensor = tensor;
    this.shadow = shadow;
    this.strings = undefined;
    this.complex = undefined;
  }

  /** The tensor under another shape or dtype. The same request gives the same tensor, so that packed weights are found again. */
  view(engine: RingEngine, tensor: RingTensor, shape: readonly number[], dtype: DType): RingTensor {
    this.#views ??= [];
    const views = this.#views;
    for (const view of views) if (view.dtype === dtype && sameShape(view.shape, shape)) return view;
    let view = tensor;
    if (!sameShape(tensor.shape, shape)) view = engine.apply('reshape', [view], shapeAttributes(shape))[0] as RingTensor;
    if (tensor.dtype !== dtype) {
      const cast = engine.apply('cast', [view], { dtype })[0] as RingTensor;
      if (view !== tensor) view.dispose();
      view = cast;
    }
    if (views.length === MAX_VIEWS) views.shift()?.dispose();
    views.push(view);
    return view;
  }

  /** Lets go of the values; pending work keeps what it needs. */
  release(): void {
    this.refCount = 0;
    this.tensor?.dispose();
    if (this.#views) for (const view of this.#views) view.dispose();
    this.tensor = this.shadow = this.strings = this.#views = undefined;
  }
}

/** The shape under which the device keeps a tensor: its own, flat where it has more dimensions than operators take. */
export function deviceShape(shape: readonly number[]): readonly number[] {
  return shape.length <= MAX_RANK ? shape : [elementCount(shape)];
}

/** Values as the host's array for a dtype; the same array where it already is one. */
export function toHostArray(values: ArrayLike<number>, dtype: DType): HostArray {
  if (dtype === 'float32') return values instanceof Float32Array ? values : Float32Array.from(values);
  if (dtype === 'int32') return values instanceof Int32Array ? values : Int32Array.from(values);
  return values instanceof Uint8Array ? values : Uint8Array.from(values, (value) => (value === 0 ? 0 : 1));
}
