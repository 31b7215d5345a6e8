import type { Attributes, DType, Shape } from '../ops/define.ts';
import type { HostData } from '../ops/host-tensor.ts';
import type { Engine } from './engine.ts';
import type { Operation } from './operations.ts';
import { NO_ATTRIBUTES, named } from './operations.ts';
import type { ShapeInfo, TensorType } from './shape-info.ts';
import type { Storage } from './storage.ts';

export const NO_INPUTS: readonly Tensor[] = [];

/** Where values lie in memory: strides and offset in elements. */
interface Place {
  readonly storage: Storage;
  readonly strides: readonly number[];
  readonly offset: number;
}

// Operators that are looked up once.
const ADD = named('add');
const SUB = named('sub');
const MUL = named('mul');
const DIV = named('div');
const POW = named('pow');
const MAXIMUM = named('maximum');
const MINIMUM = named('minimum');
const NEG = named('neg');
const EXP = named('exp');
const LOG = named('log');
const SQRT = named('sqrt');
const RSQRT = named('rsqrt');
const SQUARE = named('square');
const TANH = named('tanh');
const SIGMOID = named('sigmoid');
const RELU = named('relu');
const GELU = named('gelu');
const SILU = named('silu');

/** What few tensors have. */
interface Extra {
  /** The value of a leaf of one element that the host knows. */
  value: number | undefined;
  /** Inputs from the third on. */
  others: readonly Tensor[];
  /** All outputs of its operator, where that has several. */
  siblings: readonly Tensor[] | undefined;
}

// Bits of `Tensor.state`; above them it counts uses.
const HANDLE = 1;
const CONSTANT = 2;
const SKIPPED = 4;
const TRACKED = 8;
const WATCHED = 16;
const KEPT = 32;
const USE = 64;
const USES_SHIFT = 6;

/**
 * A lazy tensor. An operation on tensors is recorded and nothing runs until a value is needed; then
 * what was recorded is planned, fused and submitted. It is also the node of the recorded computation, most of which
 * never get memory: so it is small, which is most of what recording costs.
 *
 * Dispose of tensors, or make them inside `tidy`; one that becomes garbage is freed in the end as well.
 */
export class Tensor {
  // Declared only: a field that is initialized here is written twice.
  /** @internal */ declare readonly engine: Engine;
  /** @internal Shape and dtype. */ declare readonly type: TensorType;
  /** @internal What makes it; undefined for a leaf, and once it has run. */ declare operation: Operation | undefined;
  // Inputs are fields, as most operations have one or two: a list would be a third of what recording allocates.
  /** @internal Its first input. */ declare first: Tensor | undefined;
  /** @internal Its second input. */ declare second: Tensor | undefined;
  /** @internal */ declare extra: Extra | undefined;
  /** @internal Memory, once it has any. */ declare place: Place | undefined;
  /** @internal */ declare state: number;
  /** @internal Its number in the recording that numbered it last; ~k: external k. */ declare index: number;
  /** @internal The one made before it in the same scope. */ declare below: Tensor | undefined;

  /** @internal */
  constructor(
    engine: Engine,
    type: TensorType,
    operation: Operation | undefined,
    first: Tensor | undefined,
    second: Tensor | undefined,
    extra: Extra | undefined,
  ) {
    this.engine = engine;
    this.type = type;
    this.operation = operation;
    this.first = first;
    this.second = second;
    this.extra = extra;
    this.place = undefined;
    this.state = HANDLE;
    this.index = 0;
    this.below = undefined;
  }

  /** @internal One that nothing recorded makes. */
  static leaf(engine: Engine, type: TensorType, value?: number): Tensor {
    const extra = value === undefined ? undefined : { value, others: NO_INPUTS, siblings: undefined };
    return new Tensor(engine, type, undefined, undefined, undefined, extra);
  }

  /** @internal What an operation with any number of inputs makes; `siblings`: with these. */
  static made(engine: Engine, type: TensorType, operation: Operation, inputs: readonly Tensor[], siblings?: readonly Tensor[]): Tensor {
    const others = inputs.length > 2 ? inputs.slice(2) : NO_INPUTS;
    const extra = others === NO_INPUTS && siblings === undefined ? undefined : { value: undefined, others, siblings };
    return new Tensor(engine, type, operation, inputs[0], inputs[1], extra);
  }

  get dtype(): DType {
    return this.type.dtype;
  }

  /** @internal */
  get info(): ShapeInfo {
    return this.type.info;
  }

  /** @internal See Extra. */
  get value(): number | undefined {
    return this.extra?.value;
  }

  /** @internal See Extra. */
  get siblings(): readonly Tensor[] | undefined {
    return this.extra?.siblings;
  }

  /** @internal Which output of its only input it is; 0: it is a value of its own. */
  get output(): number {
    return this.siblings === undefined ? 0 : this.siblings.indexOf(this);
  }

  /** @internal */
  get inputCount(): number {
    if (this.first === undefined) return 0;
    if (this.second === undefined) return 1;
    return this.extra === undefined ? 2 : 2 + this.extra.others.length;
  }

  /** @internal Input `i`, below inputCount. */
  input(i: number): Tensor {
    return (i === 0 ? this.first : i === 1 ? this.second : this.extra?.others[i - 2]) as Tensor;
  }

  /** @internal It has run, or nobody can ask for it: it forgets what it is made from. */
  forgetInputs(): void {
    this.operation = undefined;
    this.first = undefined;
    this.second = undefined;
    if (this.extra !== undefined) this.extra.others = NO_INPUTS;
  }

  /** @internal Recorded operations that need it and have not run. */
  get uses(): number {
    return this.state >> USES_SHIFT;
  }

  /** @internal One more recorded operation needs it. */
  use(): void {
    this.state += USE;
  }

  /** @internal One of them has run. */
  unuse(): void {
    this.state -= USE;
  }

  /** @internal */
  get storage(): Storage | undefined {
    return this.place?.storage;
  }

  /** @internal */
  get strides(): readonly number[] {
    return this.place === undefined ? this.type.info.strides : this.place.strides;
  }

  /** @internal */
  get offset(): number {
    return this.place === undefined ? 0 : this.place.offset;
  }

  /** @internal The caller may still ask for it. */
  get handle(): boolean {
    return (this.state & HANDLE) !== 0;
  }
  set handle(on: boolean) {
    this.state = on ? this.state | HANDLE : this.state & ~HANDLE;
  }

  /** @internal Part of the form of a computation rather than a parameter of it. */
  get constant(): boolean {
    return (this.state & CONSTANT) !== 0;
  }
  set constant(on: boolean) {
    this.state = on ? this.state | CONSTANT : this.state & ~CONSTANT;
  }

  /** @internal Planned without memory of its own in an earlier flush; the next that needs it keeps it. */
  get skipped(): boolean {
    return (this.state & SKIPPED) !== 0;
  }
  set skipped(on: boolean) {
    this.state = on ? this.state | SKIPPED : this.state & ~SKIPPED;
  }

  /** @internal Freed when it becomes garbage; others belong to a scope or to a caller who disposes of them. */
  get tracked(): boolean {
    return (this.state & TRACKED) !== 0;
  }
  set tracked(on: boolean) {
    this.state = on ? this.state | TRACKED : this.state & ~TRACKED;
  }

  /** @internal Of a tracked one: that is seen to already. */
  get watched(): boolean {
    return (this.state & WATCHED) !== 0;
  }
  set watched(on: boolean) {
    this.state = on ? this.state | WATCHED : this.state & ~WATCHED;
  }

  /** @internal A scope that is being left hands it on. */
  get kept(): boolean {
    return (this.state & KEPT) !== 0;
  }
  set kept(on: boolean) {
    this.state = on ? this.state | KEPT : this.state & ~KEPT;
  }

  get shape(): Shape {
    return this.type.info.dims;
  }

  get size(): number {
    return this.type.info.size;
  }

  get rank(): number {
    return this.type.info.dims.length;
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
    return this.engine.binary(ADD, this, other);
  }
  sub(other: Tensor | number): Tensor {
    return this.engine.binary(SUB, this, other);
  }
  mul(other: Tensor | number): Tensor {
    return this.engine.binary(MUL, this, other);
  }
  div(other: Tensor | number): Tensor {
    return this.engine.binary(DIV, this, other);
  }
  pow(other: Tensor | number): Tensor {
    return this.engine.binary(POW, this, other);
  }
  maximum(other: Tensor | number): Tensor {
    return this.engine.binary(MAXIMUM, this, other);
  }
  minimum(other: Tensor | number): Tensor {
    return this.engine.binary(MINIMUM, this, other);
  }
  neg(): Tensor {
    return this.engine.unary(NEG, this);
  }
  exp(): Tensor {
    return this.engine.unary(EXP, this);
  }
  log(): Tensor {
    return this.engine.unary(LOG, this);
  }
  sqrt(): Tensor {
    return this.engine.unary(SQRT, this);
  }
  rsqrt(): Tensor {
    return this.engine.unary(RSQRT, this);
  }
  square(): Tensor {
    return this.engine.unary(SQUARE, this);
  }
  tanh(): Tensor {
    return this.engine.unary(TANH, this);
  }
  sigmoid(): Tensor {
    return this.engine.unary(SIGMOID, this);
  }
  relu(): Tensor {
    return this.engine.unary(RELU, this);
  }
  gelu(): Tensor {
    return this.engine.unary(GELU, this);
  }
  silu(): Tensor {
    return this.engine.unary(SILU, this);
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
