import { GpuosError } from '../../errors.ts';
import type { Attributes } from '../../ops/define.ts';
import type { ComputeType } from '../../ops/dtype.ts';
import { MAX_RANK, sameShape } from '../../ops/shape.ts';
import { DataRecord, deviceShape, type HostArray, type RingEngine, type RingTensor, SHADOW_ELEMENTS, toHostArray } from './record.ts';
import { Counters, type Statistics } from './statistics.ts';
import { BACKEND, type BackendValues, type DataType, type TensorInfo, tf, tfjsEngine } from './tfjs.ts';

/** Thrown by a kernel of ours, before it has done anything, when the CPU kernel of tfjs has to take the call. */
export const DECLINED: unique symbol = Symbol('declined');

const MAX_SCALARS = 64;

/** Whether the device has the dtype. */
export function isDeviceDType(dtype: DataType): dtype is ComputeType {
  return dtype === 'float32' || dtype === 'int32' || dtype === 'bool';
}

/** The backend of TensorFlow.js: where tensors live, and what its kernels share. */
export class GpuosBackend extends tf.KernelBackend {
  readonly engine: RingEngine;
  readonly counters = new Counters();
  /** Data that came from another backend, under the key that it has there. */
  readonly #foreign = new WeakMap<object, DataRecord>();
  readonly #scalars = new Map<number, RingTensor>();
  #records = 0;
  #tasksBefore: number;

  constructor(engine: RingEngine) {
    super();
    this.engine = engine;
    this.#tasksBefore = engine.counters.tasks;
  }

  // What kernels use.

  /**
   * The data of a tensor; fetched from the backend that has it if that is another one.
   *
   * @throws GpuosError GPUOS_TENSOR_DISPOSED
   */
  record(dataId: object): DataRecord {
    if (dataId instanceof DataRecord && dataId.refCount > 0) return dataId;
    return this.#find(dataId) ?? this.#fetch(dataId);
  }

  /** The tensor of the device for a tensor of tfjs, under the shape that tfjs gives it; small host values are uploaded now. */
  operand(info: TensorInfo): RingTensor {
    return this.operandAs(info, info.shape);
  }

  /** The same under a shape that the kernel wants. */
  operandAs(info: TensorInfo, shape: readonly number[]): RingTensor {
    const record = this.record(info.dataId);
    const tensor = record.tensor ?? this.#upload(record, info);
    if (record.dtype === info.dtype && sameShape(tensor.shape, shape)) return tensor;
    if (shape.length > MAX_RANK || !isDeviceDType(info.dtype)) throw DECLINED;
    return record.view(this.engine, tensor, shape, info.dtype);
  }

  /** The values of a small integer tensor if the host knows them. */
  shadow(info: TensorInfo): readonly number[] | undefined {
    const record = this.record(info.dataId);
    return record.dtype === info.dtype ? record.shadow : undefined;
  }

  /** A tensor of tfjs for a result of the ring. */
  result(tensor: RingTensor): TensorInfo {
    this.#records++;
    // Kernels of tfjs have no others.
    const dtype = tensor.dtype as ComputeType;
    return { dataId: new DataRecord(dtype, tensor, undefined), shape: tensor.shape as number[], dtype };
  }

  /** A tensor of tfjs for a result of host arithmetic: at most 64 values, exact in their dtype. */
  hostResult(values: readonly number[], shape: readonly number[], dtype: 'int32' | 'bool'): TensorInfo {
    this.counters.host++;
    this.#records++;
    return { dataId: new DataRecord(dtype, undefined, values), shape: shape as number[], dtype };
  }

  /** The same data under another shape. */
  share(info: TensorInfo, shape: readonly number[]): TensorInfo {
    this.counters.metadata++;
    this.record(info.dataId).refCount++;
    return { dataId: info.dataId, shape: shape as number[], dtype: info.dtype };
  }

  /** A float32 scalar, kept for its next use: kernels have few constants. */
  scalar(value: number): RingTensor {
    let tensor = this.#scalars.get(value);
    if (tensor === undefined) {
      tensor = this.engine.fromHost(Float32Array.of(value), [], 'float32');
      this.#scalars.set(value, tensor);
      if (this.#scalars.size > MAX_SCALARS) {
        const [oldest, unused] = this.#scalars.entries().next().value as [number, RingTensor];
        this.#scalars.delete(oldest);
        unused.dispose();
      }
    }
    return tensor;
  }

  /** Records one operator with one result. */
  apply(operator: string, inputs: readonly RingTensor[], attributes?: Attributes): RingTensor {
    return this.engine.apply(operator, inputs, attributes)[0] as RingTensor;
  }

  /** Records one operator as the answer to a kernel call. */
  ring(operator: string, inputs: readonly RingTensor[], attributes?: Attributes): TensorInfo {
    const result = this.result(this.engine.apply(operator, inputs, attributes)[0] as RingTensor);
    this.counters.ring++;
    return result;
  }

  /** The same for an element-wise operator of one input. */
  ringUnary(operator: string, x: TensorInfo): TensorInfo {
    const result = this.result(this.engine.unary(operator, this.operandAs(x, x.shape)));
    this.counters.ring++;
    return result;
  }

  /** The same for an element-wise operator of two inputs. */
  ringBinary(operator: string, a: TensorInfo, b: TensorInfo): TensorInfo {
    const result = this.result(this.engine.binary(operator, this.operandAs(a, a.shape), this.operandAs(b, b.shape)));
    this.counters.ring++;
    return result;
  }

  /** A tensor of tfjs with values of the host's. */
  store(values: BackendValues, shape: readonly number[], dtype: DataType): TensorInfo {
    return { dataId: this.#create(values, shape, dtype), shape: shape as number[], dtype };
  }

  /** A complex tensor that owns two float32 tensors. */
  storeComplex(real: TensorInfo, imag: TensorInfo, shape: readonly number[]): TensorInfo {
    const record = new DataRecord('complex64', undefined, undefined);
    record.complex = { real, imag };
    this.#records++;
    return { dataId: record, shape: shape as number[], dtype: 'complex64' };
  }

  // What tfjs asks of a backend.

  override write(values: BackendValues, shape: number[], dtype: DataType): object {
    return this.#create(values, shape, dtype);
  }

  override move(dataId: object, values: BackendValues, shape: number[], dtype: DataType, refCount: number): void {
    const record = this.#create(values, shape, dtype);
    record.refCount = refCount;
    this.#foreign.set(dataId, record);
  }

  override async read(dataId: object): Promise<BackendValues> {
    const record = this.record(dataId);
    if (record.tensor === undefined || record.shadow !== undefined) return this.readSync(dataId);
    return await record.tensor.data();
  }

  override readSync(dataId: object): BackendValues {
    const record = this.record(dataId);
    if (record.complex) {
      const real = this.readSync(record.complex.real.dataId) as Float32Array;
      const imag = this.readSync(record.complex.imag.dataId) as Float32Array;
      return tf.backend_util.mergeRealAndImagArrays(real, imag);
    }
    if (record.strings) return record.strings;
    if (record.shadow) return record.dtype === 'int32' ? Int32Array.from(record.shadow) : Uint8Array.from(record.shadow);
    return (record.tensor as RingTensor).dataSync();
  }

  override refCount(dataId: object): number {
    return this.#find(dataId)?.refCount ?? 0;
  }

  override incRef(dataId: object): void {
    this.record(dataId).refCount++;
  }

  /** Drops one reference without releasing anything. */
  decRef(dataId: object): void {
    const record = this.#find(dataId);
    if (record) record.refCount--;
  }

  override disposeData(dataId: object, force = false): boolean {
    const record = this.#find(dataId);
    if (!record) return true;
    record.refCount--;
    if (!force && record.refCount > 0) return false;
    if (record.complex) {
      this.disposeData(record.complex.real.dataId, true);
      this.disposeData(record.complex.imag.dataId, true);
    }
    record.release();
    if (dataId !== record) this.#foreign.delete(dataId);
    this.#records--;
    return true;
  }

  override numDataIds(): number {
    return this.#records;
  }

  override memory(): { unreliable: boolean } {
    return { unreliable: false };
  }

  override floatPrecision(): 16 | 32 {
    return 32;
  }

  override epsilon(): number {
    return 1e-7;
  }

  /** Kernels only record, so there is nothing to time in one; tfjs then times each with a read of its result. */
  override timerAvailable(): boolean {
    return false;
  }

  override async time(query: () => void): Promise<{ kernelMs: number }> {
    // What was recorded before is not timed, and how it failed is for those who read it: with the device gone, the sync after fails too.
    await this.engine.sync().catch(() => {});
    const start = performance.now();
    query();
    await this.engine.sync();
    return { kernelMs: performance.now() - start };
  }

  /** tfjs takes the backend out; tensors that it holds can no longer be read. */
  override dispose(): void {
    for (const tensor of this.#scalars.values()) tensor.dispose();
    this.#scalars.clear();
  }

  statistics(): Statistics {
    return this.counters.snapshot(this.engine.counters.tasks - this.#tasksBefore);
  }

  resetStatistics(): void {
    this.counters.reset();
    this.#tasksBefore = this.engine.counters.tasks;
  }

  #find(dataId: object): DataRecord | undefined {
    if (dataId instanceof DataRecord && dataId.refCount > 0) return dataId;
    return this.#foreign.get(dataId);
  }

  #fetch(dataId: object): DataRecord {
    const engine = tfjsEngine();
    const place = engine.state.tensorInfo.get(dataId);
    if (place === undefined || place.backend === this) {
      throw new GpuosError('GPUOS_TENSOR_DISPOSED', `A tensor that the backend ${BACKEND} was given has been disposed of.`);
    }
    engine.moveData(this, dataId);
    return this.#foreign.get(dataId) as DataRecord;
  }

  #create(values: BackendValues, shape: readonly number[], dtype: DataType): DataRecord {
    if (dtype === 'complex64') return this.#createComplex(values as Float32Array, shape);
    let record: DataRecord;
    if (dtype === 'string') {
      record = new DataRecord(dtype, undefined, undefined);
      record.strings = values;
    } else {
      const array = toHostArray(values as HostArray, dtype);
      const small = dtype !== 'float32' && array.length <= SHADOW_ELEMENTS;
      const tensor = small ? undefined : this.engine.fromHost(array, deviceShape(shape), dtype);
      record = new DataRecord(dtype, tensor, small ? Array.from(array) : undefined);
    }
    this.#records++;
    return record;
  }

  #createComplex(interleaved: Float32Array, shape: readonly number[]): DataRecord {
    const { real, imag } = tf.backend_util.splitRealAndImagArrays(interleaved);
    return this.storeComplex(this.store(real, shape, 'float32'), this.store(imag, shape, 'float32'), shape).dataId as DataRecord;
  }

  #upload(record: DataRecord, info: TensorInfo): RingTensor {
    const { dtype, shadow } = record;
    if (shadow === undefined || !isDeviceDType(dtype)) throw DECLINED;
    record.tensor = this.engine.fromHost(toHostArray(shadow, dtype), deviceShape(info.shape), dtype);
    return record.tensor;
  }
}
