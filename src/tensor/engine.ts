import { GpuosError } from '../errors.ts';
import type { Attributes, DType, Shape } from '../ops/define.ts';
import { DTYPES, isHalf } from '../ops/dtype.ts';
import { type HostData, halfValue } from '../ops/host-tensor.ts';
import { checkShape, formatValue } from '../ops/shape.ts';
import type { System } from '../runtime/system.ts';
import { Lifetimes } from './lifetime.ts';
import { NO_ATTRIBUTES, type Named, named } from './operations.ts';
import { Reading } from './reading.ts';
import { inDType, Recorder } from './recorder.ts';
import { shapeInfo, typeOf } from './shape-info.ts';
import { Submission } from './submission.ts';
import { Tensor } from './tensor.ts';
import { Transfers } from './transfers.ts';

export interface EngineCounters {
  /** Operations recorded: calls of the library's operators. */
  operations: number;
  /** Tasks submitted for them. */
  tasks: number;
  /** Times that recorded work was submitted. */
  flushes: number;
  /** Plans made because no plan of the same form was known. */
  plans: number;
  /** Of these, for a form that was not known at other sizes either. */
  structures: number;
}

/**
 * The tensors made in a call of tidy(), each with the one made before it. They are young, and so is this: to note each in a
 * list, which is not, would cost the collector's write barrier for every operation.
 */
interface Scope {
  newest: Tensor | undefined;
}

/** What a framework's backend needs of an engine. */
export interface FrameworkEngine {
  readonly counters: EngineCounters;
  fromHost(values: ArrayLike<number | boolean>, shape: Shape, dtype: DType): Tensor;
  apply(name: string, inputs: readonly Tensor[], attributes?: Attributes): Tensor[];
  unary(name: string, x: Tensor): Tensor;
  binary(name: string, a: Tensor, b: Tensor): Tensor;
  sync(): Promise<void>;
}

/**
 * The tensors of a system. Operations on them are recorded (Recorder), turned into tasks when a value is
 * needed (Submission), and read when it is there (Reading).
 */
export class Engine {
  readonly system: System;
  readonly counters: EngineCounters = { operations: 0, tasks: 0, flushes: 0, plans: 0, structures: 0 };
  readonly #lifetimes = new Lifetimes();
  readonly #submission: Submission;
  readonly #recorder: Recorder;
  readonly #reading: Reading;
  readonly #transfers: Transfers;
  /** The innermost that is open. */
  #scope: Scope | undefined;

  constructor(system: System) {
    this.system = system;
    this.#submission = new Submission(system, this.counters, this.#lifetimes);
    this.#recorder = new Recorder(this, this.#submission, this.#lifetimes);
    this.#transfers = new Transfers(system);
    this.#reading = new Reading(system, this.#recorder, this.#submission, this.#lifetimes, this.#transfers);
  }

  /**
   * A tensor of these values, which are copied. For float16 and bfloat16 they are rounded, and a Uint16Array is taken for
   * the bits.
   * @throws GPUOS_BAD_SHAPE, GPUOS_SHAPE_MISMATCH, GPUOS_DTYPE_MISMATCH, GPUOS_OUT_OF_MEMORY
   */
  fromHost(values: ArrayLike<number | boolean>, shape: Shape, dtype: DType = 'float32'): Tensor {
    return this.#scoped(this.#fromHost(values, shape, dtype));
  }

  #fromHost(values: ArrayLike<number | boolean>, shape: Shape, dtype: DType): Tensor {
    this.system.checkOpen();
    const bigInts = values instanceof BigInt64Array || values instanceof BigUint64Array;
    if (typeof values !== 'object' || values === null || !Number.isInteger(values.length) || bigInts) {
      throw new GpuosError('GPUOS_DTYPE_MISMATCH', `tensor: ${formatValue(values)} is no list of numbers.`);
    }
    checkShape('tensor', shape);
    if (!DTYPES.includes(dtype))
      throw new GpuosError('GPUOS_DTYPE_MISMATCH', `tensor: dtype ${formatValue(dtype)} is none of ${DTYPES.join(', ')}.`);
    const info = shapeInfo(shape);
    if (values.length !== info.size) {
      throw new GpuosError(
        'GPUOS_SHAPE_MISMATCH',
        `tensor: [${shape.join()}] has ${info.size} elements, but ${values.length} values are given.`,
      );
    }
    if (!ArrayBuffer.isView(values)) checkNumbers(values);
    const type = typeOf(info, dtype);
    if (info.size === 1) return Tensor.leaf(this, type, isHalf(dtype) ? halfValue(values, 0, dtype) : inDType(Number(values[0]), dtype));
    const tensor = Tensor.leaf(this, type);
    this.#upload(tensor, values);
    return tensor;
  }

  #upload(tensor: Tensor, values: ArrayLike<number | boolean>): void {
    this.#lifetimes.settle(tensor, this.#transfers.upload(values, tensor.dtype), tensor.info.strides, 0);
  }

  /** @internal A single host value gets memory, for an operator that reads memory. */
  ensureStorage(tensor: Tensor): void {
    if (tensor.storage === undefined && tensor.value !== undefined) this.#upload(tensor, [tensor.value]);
  }

  /** A tensor of one shape [] and one value. */
  scalar(value: number, dtype: DType = 'float32'): Tensor {
    return this.fromHost([value], [], dtype);
  }

  #scoped(tensor: Tensor): Tensor {
    const scope = this.#scope;
    if (scope !== undefined) {
      tensor.below = scope.newest;
      scope.newest = tensor;
    } else if (!tensor.tracked) this.#lifetimes.track(tensor);
    return tensor;
  }

  /** Runs `body` and disposes of every tensor made in it but those that it returns. */
  tidy<T>(body: () => T): T {
    if (typeof body !== 'function') throw new GpuosError('GPUOS_BAD_OPTION', `tidy() takes a function, not ${formatValue(body)}.`);
    const outer = this.#scope;
    const scope: Scope = { newest: undefined };
    this.#scope = scope;
    let result: T | undefined;
    let done = false;
    try {
      result = body();
      done = true;
      if (result instanceof Promise) {
        // Its own failure is of no interest any more, and must not end the process.
        result.catch(() => {});
        throw new GpuosError('GPUOS_BAD_OPTION', 'tidy() takes a function that is not asynchronous.');
      }
      return result;
    } finally {
      this.#scope = outer;
      const kept: Tensor[] = [];
      if (done) collectTensors(result, kept);
      for (const tensor of kept) tensor.kept = true;
      let next = scope.newest;
      while (next !== undefined) {
        const tensor = next;
        next = tensor.below;
        tensor.below = undefined;
        if (tensor.kept) this.#scoped(tensor);
        else if (tensor.handle) this.#lifetimes.dispose(tensor);
      }
      for (const tensor of kept) tensor.kept = false;
    }
  }

  /**
   * Records an operator of the library. Nothing runs yet; shapes and attributes are checked now.
   * @returns its outputs
   * @throws GPUOS_UNKNOWN_OPERATOR, GPUOS_SHAPE_MISMATCH, GPUOS_DTYPE_MISMATCH, GPUOS_BAD_AXIS, GPUOS_BAD_ATTRIBUTE, GPUOS_TENSOR_DISPOSED
   */
  apply(name: string, inputs: readonly Tensor[], attributes: Attributes = NO_ATTRIBUTES): Tensor[] {
    const operator = named(name);
    if (attributes === NO_ATTRIBUTES && inputs.length === operator.quickInputs) {
      const [a, b] = inputs as [Tensor, Tensor];
      if (inputs.length === 1) return [this.unary(operator, a)];
      if (inputs.length === 2 && typeof b === 'object') return [this.binary(operator, a, b)];
    }
    this.system.checkOpen();
    const outputs = this.#recorder.apply(operator, inputs, attributes);
    this.counters.operations++;
    for (const output of outputs) this.#scoped(output);
    return outputs;
  }

  /** An element-wise operator of one input and without attributes. */
  unary(operator: string | Named, x: Tensor): Tensor {
    const output = this.#recorder.unary(typeof operator === 'string' ? named(operator) : operator, x);
    this.counters.operations++;
    return this.#scoped(output);
  }

  /** An element-wise operator of two inputs; a number is taken as a scalar of the other's dtype. */
  binary(operator: string | Named, a: Tensor, b: Tensor | number): Tensor {
    const output = this.#recorder.binary(typeof operator === 'string' ? named(operator) : operator, a, b);
    this.counters.operations++;
    return this.#scoped(output);
  }

  /**
   * The same operations for a framework above us, which disposes of each tensor itself: no scope takes them,
   * and none is watched for becoming garbage, which costs more than recording does. As the framework takes
   * longer for an operation than we do, workers begin while it records on.
   */
  forFramework(): FrameworkEngine {
    const submission = this.#submission;
    const { counters } = this;
    const recorder = this.#recorder;
    return {
      counters,
      fromHost: (values, shape, dtype) => this.#fromHost(values, shape, dtype),
      apply: (name, inputs, attributes = NO_ATTRIBUTES) => {
        this.system.checkOpen();
        counters.operations++;
        return recorder.apply(named(name), inputs, attributes);
      },
      unary: (name, x) => {
        counters.operations++;
        const result = recorder.unary(named(name), x);
        submission.countFrameworkMap(result.size);
        return result;
      },
      binary: (name, a, b) => {
        counters.operations++;
        const result = recorder.binary(named(name), a, b);
        submission.countFrameworkMap(result.size);
        return result;
      },
      sync: () => this.sync(),
    };
  }

  /**
   * Submits what is recorded. Nothing waits; `target` gets memory whether or not others need it. With
   * `awaited` the caller is about to wait, and so to compute: small work then wakes no sleeping worker.
   * @throws GPUOS_OUT_OF_MEMORY; what is recorded stays so, and is tried again at the next flush
   */
  flush(target?: Tensor, awaited = false): void {
    this.#submission.flush(target, awaited);
  }

  /** Frees the tensor: at once if nothing pending needs it, else as soon as that has run. */
  dispose(tensor: Tensor): void {
    this.#lifetimes.dispose(tensor);
  }

  /** Submits what is recorded and resolves when all of it is complete. Rejects if any of what was submitted since the last sync() failed. */
  sync(): Promise<void> {
    return this.#submission.sync();
  }

  /** Resolves when every task submitted so far is complete, however it ended. */
  settled(): Promise<void> {
    return this.#submission.settled();
  }

  /** The values, row-major. @throws (rejects) the GpuosError of the task that made them, GPUOS_TENSOR_DISPOSED */
  data(tensor: Tensor): Promise<HostData> {
    return this.#reading.data(tensor);
  }

  /** The same, blocking. */
  dataSync(tensor: Tensor): HostData {
    return this.#reading.dataSync(tensor);
  }
}

/** Nested lists and texts would become NaN without a word. */
function checkNumbers(values: ArrayLike<number | boolean>): void {
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (typeof value === 'number' || typeof value === 'boolean') continue;
    const hint = Array.isArray(value) ? ' Give the values as one flat list, and the shape beside it.' : '';
    throw new GpuosError('GPUOS_DTYPE_MISMATCH', `tensor: value ${i} is ${formatValue(value)}, not a number.${hint}`);
  }
}

function collectTensors(value: unknown, into: Tensor[]): void {
  if (value instanceof Tensor) into.push(value);
  else if (Array.isArray(value)) for (const item of value) collectTensors(item, into);
  else if (typeof value === 'object' && value !== null && Object.getPrototypeOf(value) === Object.prototype) {
    for (const item of Object.values(value)) collectTensors(item, into);
  }
}

const engines = new WeakMap<System, Engine>();

/** The engine of a system; made at the first call. */
export function engineOf(system: System): Engine {
  let engine = engines.get(system);
  if (engine === undefined) {
    engine = new Engine(system);
    engines.set(system, engine);
  }
  return engine;
}
