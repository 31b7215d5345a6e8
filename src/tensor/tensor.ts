import type { Attributes, DType, Shape } from '../ops/define.ts';
import type { HostData } from '../ops/host-tensor.ts';
import type { Engine } from './engine.ts';
import type { Operation } from './operations.ts';
import type { ShapeInfo } from './shape-info.ts';
import type { Storage } from './storage.ts';

export const NO_INPUTS: readonly Tensor[] = [];
export const NO_ATTRIBUTES: Attributes = Object.freeze({});

/**
 * A lazy tensor. An operation on tensors is recorded and nothing runs until a value is needed; then
 * what was recorded is planned, fused and submitted. It is also the node of the recorded computation.
 *
 * Dispose of tensors, or make them inside `tidy`; one that becomes garbage is freed in the end as well.
 */
export class Tensor {
  /** @internal */ readonly engine: Engine;
  /** @internal */ readonly info: ShapeInfo;
  readonly dtype: DType;
  /** @internal What makes it; undefined for a leaf, and once it has run. */ operation: Operation | undefined;
  /** @internal */ inputs: readonly Tensor[];
  /** @internal Which output of its only input it is; 0: it is a value of its own. */ output = 0;
  /** @internal All outputs of its operator, where that has several. */ siblings: readonly Tensor[] | undefined = undefined;
  /** @internal Memory, once it has any. */ storage: Storage | undefined = undefined;
  /** @internal */ strides: readonly number[];
  /** @internal */ offset = 0;
  /** @internal The value of a leaf of one element that the host knows. */ value: number | undefined = undefined;
  /** @internal Part of the form of a computation rather than a parameter of it. */ constant = false;
  /** @internal The caller may still ask for it. */ handle = true;
  /** @internal Recorded operations that need it and have not run. */ uses = 0;
  /** @internal Planned without memory of its own in an earlier flush; the next that needs it keeps it. */ skipped = false;
  /** @internal The recording that it is numbered in, and its number there; ~k: external k. */ window = 0;
  /** @internal */ index = 0;
  /** @internal Freed when it becomes garbage; others belong to a scope or to a caller who disposes of them. */ tracked = false;

  /** @internal */
  constructor(engine: Engine, info: ShapeInfo, dtype: DType, operation: Operation | undefined, inputs: readonly Tensor[]) {
    this.engine = engine;
    this.info = info;
    this.dtype = dtype;
    this.operation = operation;
    this.inputs = inputs;
    this.strides = info.strides;
  }

  get shape(): Shape {
    return this.info.dims;
  }

  get size(): number {
    return this.info.size;
  }

  get rank(): number {
    return this.info.dims.length;
  }

  get disposed(): boolean {
    return !this.handle;
  }

  /**
   * The values, row-major: Float32Array (float32, float16, bfloat16), Int32Array or Uint8Array (bool).
   * @throws (rejects) the GpuosError of the task that made it
   */
  data(): Promise<HostData> {
    return this.engine.data(this);
  }

  /** The same, blocking. */
  dataSync(): HostData {
    return this.engine.dataSync(this);
  }

  /** Frees it: at once if nothing pending needs it, else as soon as that has run. */
  dispose(): void {
    this.engine.dispose(this);
  }

  /** Frees it, and resolves when the tasks that use its memory are complete. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.dispose();
    await this.engine.settled();
  }

  /** Any operator of the library, with this tensor as its first input. */
  apply(operator: string, others: readonly Tensor[] = NO_INPUTS, attributes: Attributes = NO_ATTRIBUTES): Tensor {
    return this.engine.apply(operator, [this, ...others], attributes)[0] as Tensor;
  }

  add(other: Tensor | number): Tensor {
    return this.engine.binary('add', this, other);
  }
  sub(other: Tensor | number): Tensor {
    return this.engine.binary('sub', this, other);
  }
  mul(other: Tensor | number): Tensor {
    return this.engine.binary('mul', this, other);
  }
  div(other: Tensor | number): Tensor {
    return this.engine.binary('div', this, other);
  }
  pow(other: Tensor | number): Tensor {
    return this.engine.binary('pow', this, other);
  }
  maximum(other: Tensor | number): Tensor {
    return this.engine.binary('maximum', this, other);
  }
  minimum(other: Tensor | number): Tensor {
    return this.engine.binary('minimum', this, other);
  }
  neg(): Tensor {
    return this.engine.unary('neg', this);
  }
  exp(): Tensor {
    return this.engine.unary('exp', this);
  }
  log(): Tensor {
    return this.engine.unary('log', this);
  }
  sqrt(): Tensor {
    return this.engine.unary('sqrt', this);
  }
  rsqrt(): Tensor {
    return this.engine.unary('rsqrt', this);
  }
  square(): Tensor {
    return this.engine.unary('square', this);
  }
  tanh(): Tensor {
    return this.engine.unary('tanh', this);
  }
  sigmoid(): Tensor {
    return this.engine.unary('sigmoid', this);
  }
  relu(): Tensor {
    return this.engine.unary('relu', this);
  }
  gelu(): Tensor {
    return this.engine.unary('gelu', this);
  }
  silu(): Tensor {
    return this.engine.unary('silu', this);
  }
  cast(dtype: DType): Tensor {
    return this.apply('cast', NO_INPUTS, { dtype });
  }
  sum(axes?: readonly number[], keepDims = false): Tensor {
    return this.apply('sum', NO_INPUTS, { axes, keepDims });
  }
  mean(axes?: readonly number[], keepDims = false): Tensor {
    return this.apply('mean', NO_INPUTS, { axes, keepDims });
  }
  max(axes?: readonly number[], keepDims = false): Tensor {
    return this.apply('max', NO_INPUTS, { axes, keepDims });
  }
  min(axes?: readonly number[], keepDims = false): Tensor {
    return this.apply('min', NO_INPUTS, { axes, keepDims });
  }
  softmax(axis = -1): Tensor {
    return this.apply('softmax', NO_INPUTS, { axis });
  }
  matmul(other: Tensor, bias?: Tensor, attributes: Attributes = NO_ATTRIBUTES): Tensor {
    return this.apply('matmul', bias === undefined ? [other] : [other, bias], attributes);
  }
  reshape(shape: Shape): Tensor {
    return this.apply('reshape', NO_INPUTS, { shape });
  }
  transpose(perm?: readonly number[]): Tensor {
    return this.apply('transpose', NO_INPUTS, { perm });
  }
  slice(begin: readonly number[], size: readonly number[]): Tensor {
    return this.apply('slice', NO_INPUTS, { begin, size });
  }
}
