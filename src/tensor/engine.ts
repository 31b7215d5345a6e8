import { GpuosError } from '../errors.ts';
import { checkAttributes, checkInputCount } from '../ops/attributes.ts';
import { type Attributes, type DType, type ExpressionBuilder, type OperatorDefinition, type Shape, defineOperator } from '../ops/define.ts';
import { DTYPES, type HostData, hostData } from '../ops/host-tensor.ts';
import { operatorByName, operatorId } from '../ops/index.ts';
import { MAPS } from '../ops/map.ts';
import type { Activation } from '../ops/matrix.ts';
import type { MapName } from '../ops/program.ts';
import { checkShape, formatValue } from '../ops/shape.ts';
import type { System } from '../runtime/system.ts';
import { PlanCache } from './plan-cache.ts';
import type { Result } from './plan.ts';
import { PlanRunner } from './plan-runner.ts';
import { Interner, type ShapeInfo, shapeInfo } from './shape-info.ts';
import { Storage } from './storage.ts';
import { Recording } from './recording.ts';
import { NO_ATTRIBUTES, NO_INPUTS, Tensor } from './tensor.ts';
import { composeView, isContiguous } from './view.ts';

/** Recorded operations after which the queue's window is full, and what is recorded is submitted. */
const WINDOW = 1024;

/** Work that the host does alone, while it waits for it anyway, in the time that waking a worker takes. */
const ALONE_NS = 40_000;

/** Runs of tasks, two numbers each, that sync() looks at; with other tasks between them they do not join, and the oldest go. */
const MAX_UNSEEN = 4096;

/** Pending work that is worth submitting before anyone asks for it: the first since the caller last waited, and later ones. */
const FIRST_NS = 150_000;
const EARLY_NS = 1_200_000;
/** What a multiplication and addition of a product takes on one core. */
const PRODUCT_NS = 0.05;

/** Number of no operator. */
const LEAF = 0;
const SCALAR = shapeInfo([]);

/** A view's elements brought into memory of their own; what data() of a strided tensor records. */
const CONTIGUOUS: OperatorDefinition = defineOperator({
  name: 'cast',
  family: 'map',
  kind: 'map',
  about: 'the same values in contiguous memory',
  inputs: ['x'],
  infer: (inputs) => inputs,
});

interface OperatorRecord {
  readonly id: number;
  readonly definition: OperatorDefinition;
  /** For maps: result type rule, so that the common case needs no call of infer. */
  readonly rule: (typeof MAPS)[MapName] | undefined;
}

export interface EngineCounters {
  /** Operations recorded: calls of the library's operators. */
  operations: number;
  /** Tasks submitted for them. */
  tasks: number;
  /** Times that recorded work was submitted. */
  flushes: number;
  /** Plans made because no plan of the same form was known. */
  plans: number;
}

/**
 * Records operations on tensors, and submits them when a value is needed: data(), sync(), a full window.
 */
export class Engine {
  readonly system: System;
  readonly counters: EngineCounters = { operations: 0, tasks: 0, flushes: 0, plans: 0 };
  readonly #records = new Map<string, OperatorRecord>();
  readonly #operatorNumbers = new Map<OperatorDefinition, number>();
  readonly #attributeIds = new Interner();
  readonly #attributeValues: Attributes[] = [];
  readonly #attributeCache = new WeakMap<Attributes, Map<OperatorDefinition, { checked: Attributes; id: number }>>();
  readonly #plans: PlanCache;
  readonly #runner: PlanRunner;
  readonly #recording = new Recording();
  readonly #pending: Tensor[] = [];
  /** Estimate of the products among them, on one core. */
  #pendingNs = 0;
  /** Workers were given something since the caller last waited. (Not whether they have work left: cuts must not depend on timing, or each time would need a plan of its own.) */
  #ahead = false;
  readonly #scopes: Tensor[][] = [];
  // The last resort for tensors that nobody disposed of.
  readonly #garbage = new FinalizationRegistry<Storage>((storage) => storage.release());

  constructor(system: System) {
    this.system = system;
    this.#plans = new PlanCache(system);
    this.#runner = new PlanRunner(system, this.counters);
  }

  // --- making tensors

  /**
   * A tensor of these values, which are copied.
   * @throws GPUOS_BAD_SHAPE, GPUOS_SHAPE_MISMATCH, GPUOS_DTYPE_MISMATCH, GPUOS_OUT_OF_MEMORY
   */
  fromHost(values: ArrayLike<number | boolean>, shape: Shape, dtype: DType = 'float32'): Tensor {
    this.system.checkOpen();
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
    const tensor = new Tensor(this, info, dtype, LEAF, undefined, NO_INPUTS, NO_ATTRIBUTES);
    if (info.size === 1) tensor.value = inDType(Number(values[0]), dtype);
    else this.#upload(tensor, values);
    return this.#scoped(tensor);
  }

  #upload(tensor: Tensor, values: ArrayLike<number | boolean>): void {
    const queue = this.system.queue(0);
    queue.refresh();
    const storage = new Storage(this.system.heap, this.system.heap.allocate(tensor.size * 4, queue.mark, true));
    const { f32, i32 } = this.system.device.views();
    const at = storage.block.address >> 2;
    if (tensor.dtype === 'float32') f32.set(values as ArrayLike<number>, at);
    else if (tensor.dtype === 'int32') i32.set(values as ArrayLike<number>, at);
    else for (let i = 0; i < values.length; i++) i32[at + i] = values[i] ? 1 : Number.isNaN(values[i]) ? 1 : 0;
    this.#settle(tensor, storage);
  }

  /** A single host value gets memory, for an operator that reads memory. */
  #ensureStorage(tensor: Tensor): void {
    if (tensor.storage === undefined && tensor.value !== undefined) this.#upload(tensor, [tensor.value]);
  }

  #settle(tensor: Tensor, storage: Storage): void {
    tensor.storage = storage;
    if (tensor.tracked) this.#garbage.register(tensor, storage, tensor);
  }

  /**
   * The caller disposes of every tensor (as TensorFlow.js does): none is watched for becoming garbage,
   * which costs more than recording does.
   */
  manual = false;

  /** A tensor of one shape [] and one value. */
  scalar(value: number, dtype: DType = 'float32'): Tensor {
    return this.fromHost([value], [], dtype);
  }

  #scoped(tensor: Tensor): Tensor {
    const scopes = this.#scopes;
    if (scopes.length > 0) (scopes[scopes.length - 1] as Tensor[]).push(tensor);
    else if (!this.manual && !tensor.tracked) {
      tensor.tracked = true;
      if (tensor.storage !== undefined) this.#garbage.register(tensor, tensor.storage, tensor);
    }
    return tensor;
  }

  /** Runs `body` and disposes of every tensor made in it but those that it returns. */
  tidy<T>(body: () => T): T {
    this.#scopes.push([]);
    let result: T | undefined;
    let done = false;
    try {
      result = body();
      done = true;
      if (result instanceof Promise) throw new GpuosError('GPUOS_BAD_OPTION', 'tidy() takes a function that is not asynchronous.');
      return result;
    } finally {
      const made = this.#scopes.pop() as Tensor[];
      const kept = new Set<unknown>();
      if (done) collectTensors(result, kept);
      for (const tensor of made) {
        if (kept.has(tensor)) this.#scoped(tensor);
        else if (tensor.handle) this.dispose(tensor);
      }
    }
  }

  // --- recording

  #record(name: string): OperatorRecord {
    let record = this.#records.get(name);
    if (record === undefined) {
      const definition = operatorByName(name);
      record = { id: operatorId(name), definition, rule: definition.kind === 'map' ? MAPS[name as MapName] : undefined };
      this.#records.set(name, record);
    }
    return record;
  }

  #check(tensor: Tensor): void {
    if (!tensor.handle)
      throw new GpuosError('GPUOS_TENSOR_DISPOSED', `A tensor of shape [${tensor.shape.join()}] was used after it was disposed of.`);
    if (tensor.engine !== this) throw new GpuosError('GPUOS_SHUT_DOWN', 'The tensor belongs to another system.');
  }

  /** An element-wise operation of one input, the quick way. */
  unary(name: string, x: Tensor): Tensor {
    const record = this.#record(name);
    const rule = record.rule;
    if (rule === undefined || rule.inputs.length !== 1 || name === 'cast') return this.apply(name, [x])[0] as Tensor;
    this.#check(x);
    if (!rule.operands.includes(x.dtype)) record.definition.infer([x], NO_ATTRIBUTES);
    this.counters.operations++;
    return this.#scoped(this.#push(record.definition, x.info, rule.result === 'bool' ? 'bool' : x.dtype, [x], NO_ATTRIBUTES, 0));
  }

  /** An element-wise operation of two inputs, the quick way; a number is taken as a scalar of the other's dtype. */
  binary(name: string, a: Tensor, other: Tensor | number): Tensor {
    this.#check(a);
    const b = typeof other === 'number' ? this.#hidden(other, a.dtype) : other;
    const record = this.#record(name);
    const rule = record.rule;
    if (
      rule === undefined ||
      rule.inputs.length !== 2 ||
      a.dtype !== b.dtype ||
      !rule.operands.includes(a.dtype) ||
      (a.info !== b.info && b.size !== 1)
    ) {
      return this.apply(name, [a, b])[0] as Tensor;
    }
    if (typeof other !== 'number') this.#check(b);
    if (a.info !== b.info && b.info.dims.length > a.info.dims.length) return this.apply(name, [a, b])[0] as Tensor;
    this.counters.operations++;
    return this.#scoped(this.#push(record.definition, a.info, rule.result === 'bool' ? 'bool' : a.dtype, [a, b], NO_ATTRIBUTES, 0));
  }

  /** A scalar that only this operation knows. */
  #hidden(value: number, dtype: DType): Tensor {
    const tensor = new Tensor(this, SCALAR, dtype, LEAF, undefined, NO_INPUTS, NO_ATTRIBUTES);
    tensor.value = inDType(value, dtype);
    return tensor;
  }

  /**
   * Records an operator of the library. Nothing runs yet; shapes and attributes are checked now.
   * @returns its outputs
   * @throws GPUOS_UNKNOWN_OPERATOR, GPUOS_SHAPE_MISMATCH, GPUOS_DTYPE_MISMATCH, GPUOS_BAD_AXIS, GPUOS_BAD_ATTRIBUTE, GPUOS_TENSOR_DISPOSED
   */
  apply(name: string, inputs: readonly Tensor[], attributes: Attributes = NO_ATTRIBUTES): Tensor[] {
    this.system.checkOpen();
    const { definition } = this.#record(name);
    for (const input of inputs) this.#check(input);
    this.counters.operations++;
    const outputs = this.#apply(definition, inputs, attributes);
    for (const output of outputs) this.#scoped(output);
    return outputs;
  }

  /** The attributes with their defaults, and their number. A frozen object is taken to stay as it is, its lists as well, and is checked once. */
  #checked(definition: OperatorDefinition, attributes: Attributes): { checked: Attributes; id: number } {
    if (attributes === NO_ATTRIBUTES && definition.attributes === undefined) return { checked: NO_ATTRIBUTES, id: 0 };
    const known = Object.isFrozen(attributes) ? this.#attributeCache.get(attributes)?.get(definition) : undefined;
    if (known !== undefined) return known;
    const given = checkAttributes(definition, attributes);
    const id = this.#attributeIds.id(JSON.stringify(given, encodeNumber));
    // Equal attributes are one object, a copy: the plan is made later, and the caller may have written its lists by then.
    this.#attributeValues[id] ??= Object.freeze(
      Object.fromEntries(Object.entries(given).map(([name, value]) => [name, Array.isArray(value) ? Object.freeze([...value]) : value])),
    );
    const entry = { checked: this.#attributeValues[id], id: 1 + id };
    if (Object.isFrozen(attributes)) {
      let byDefinition = this.#attributeCache.get(attributes);
      if (byDefinition === undefined) {
        byDefinition = new Map();
        this.#attributeCache.set(attributes, byDefinition);
      }
      byDefinition.set(definition, entry);
    }
    return entry;
  }

  #apply(definition: OperatorDefinition, inputs: readonly Tensor[], attributes: Attributes): Tensor[] {
    const { checked, id } = this.#checked(definition, attributes);
    checkInputCount(definition, inputs.length);
    const specs = definition.infer(inputs, checked);
    const spec = specs[0] as { shape: Shape; dtype: DType };
    if (definition.kind === 'composite' && definition.expand !== undefined) {
      return [this.#expand(definition.expand, inputs, checked)];
    }
    if (definition.name === 'matmul') return [this.#matmul(definition, inputs, checked, shapeInfo(spec.shape))];
    const info = shapeInfo(spec.shape);
    if (definition.kind === 'view') return [this.#view(definition, inputs[0] as Tensor, checked, info, id)];
    if (definition.kind === 'fixed') for (const input of inputs) this.#ensureStorage(input);
    if (specs.length === 1) return [this.#push(definition, info, spec.dtype, inputs, checked, id)];
    // Several outputs run, and get their memory, together: they are recorded before anything is submitted.
    const outputs: Tensor[] = [];
    for (let output = 0; output < specs.length; output++) {
      const { shape, dtype } = specs[output] as { shape: Shape; dtype: DType };
      const tensor = this.#add(definition, shapeInfo(shape), dtype, output === 0 ? inputs : [outputs[0] as Tensor], checked, id);
      tensor.output = output;
      tensor.siblings = outputs;
      outputs.push(tensor);
    }
    this.#submitIfDue(outputs);
    return outputs;
  }

  /** Bias and activation are element-wise operations on the product, so that they fuse like any other. */
  #matmul(definition: OperatorDefinition, inputs: readonly Tensor[], attributes: Attributes, info: ShapeInfo): Tensor {
    const [a, b, bias] = inputs as [Tensor, Tensor, Tensor?];
    for (const input of [a, b]) this.#ensureStorage(input);
    const activation = attributes['activation'] as Activation;
    const plain = { transposeA: attributes['transposeA'], transposeB: attributes['transposeB'], activation: 'none' } as Attributes;
    const { checked, id } = this.#checked(definition, plain);
    this.#submitEarly();
    let result = this.#push(definition, info, 'float32', [a, b], checked, id);
    const inner = a.info.dims[a.rank - (attributes['transposeA'] === true ? 2 : 1)] as number;
    this.#pendingNs += info.size * inner * PRODUCT_NS;
    if (bias !== undefined) {
      result.handle = false;
      result = this.#push(operatorByName('add'), info, 'float32', [result, bias], NO_ATTRIBUTES, 0);
    }
    if (activation !== undefined && activation !== 'none') {
      result.handle = false;
      result = this.#push(operatorByName(activation), info, 'float32', [result], NO_ATTRIBUTES, 0);
    }
    return result;
  }

  #view(definition: OperatorDefinition, x: Tensor, attributes: Attributes, info: ShapeInfo, id?: number): Tensor {
    if (x.value !== undefined && x.storage === undefined) {
      if (info.size === 1) {
        const tensor = new Tensor(this, info, x.dtype, LEAF, undefined, NO_INPUTS, NO_ATTRIBUTES);
        tensor.value = x.value;
        return tensor;
      }
      this.#ensureStorage(x);
    }
    if (x.storage !== undefined) {
      const view = composeView(definition.name, attributes, x.info, x, info);
      if (view !== undefined) {
        const tensor = new Tensor(this, info, x.dtype, LEAF, undefined, NO_INPUTS, NO_ATTRIBUTES);
        tensor.strides = view.strides;
        tensor.offset = view.offset;
        this.#settle(tensor, x.storage.retain());
        return tensor;
      }
    }
    return this.#push(definition, info, x.dtype, [x], attributes, id ?? this.#checked(definition, attributes).id);
  }

  /** A small number for each definition, for the form of a recording. */
  #operatorNumber(definition: OperatorDefinition): number {
    let number = this.#operatorNumbers.get(definition);
    if (number === undefined) {
      number = this.#operatorNumbers.size + 1;
      this.#operatorNumbers.set(definition, number);
    }
    return number;
  }

  #push(
    definition: OperatorDefinition,
    info: ShapeInfo,
    dtype: DType,
    inputs: readonly Tensor[],
    attributes: Attributes,
    id: number,
  ): Tensor {
    const tensor = this.#add(definition, info, dtype, inputs, attributes, id);
    if (this.#pending.length >= WINDOW) this.#submitIfDue([tensor]);
    return tensor;
  }

  #add(
    definition: OperatorDefinition,
    info: ShapeInfo,
    dtype: DType,
    inputs: readonly Tensor[],
    attributes: Attributes,
    id: number,
  ): Tensor {
    const tensor = new Tensor(this, info, dtype, this.#operatorNumber(definition), definition, inputs, attributes);
    tensor.attributesId = id;
    for (let i = 0; i < inputs.length; i++) (inputs[i] as Tensor).uses++;
    this.#pending.push(tensor);
    return tensor;
  }

  /**
   * Before a product is recorded: what is pending goes to the workers, if it is worth it, so that they
   * compute while the caller records on. A product starts a task anyway, so little fusion is lost.
   */
  #submitEarly(): void {
    if (this.#pendingNs < (this.#ahead ? EARLY_NS : FIRST_NS) || this.system.device.workers === 0) return;
    // In the middle of a computation what is alive will be used again: it is kept rather than computed twice.
    this.flush(undefined, false, true);
    this.#ahead = true;
  }

  /** Submits when the window is full. If that fails, the newest are not recorded: the caller never gets them. */
  #submitIfDue(newest: readonly Tensor[]): void {
    if (this.#pending.length < WINDOW) return;
    try {
      this.flush();
    } catch (error) {
      for (let i = newest.length - 1; i >= 0; i--) this.dispose(newest[i] as Tensor);
      throw error;
    }
  }

  /** What the composite that is being expanded has recorded so far. */
  #inner: Tensor[] = [];

  /**
   * Records what a composite consists of. Its inner values keep their handles until all of it is recorded:
   * in the middle a full window may be submitted, and they may be used again after that.
   */
  #expand(expand: NonNullable<OperatorDefinition['expand']>, inputs: readonly Tensor[], attributes: Attributes): Tensor {
    const outer = this.#inner;
    const inner: Tensor[] = [];
    this.#inner = inner;
    let recorded: Tensor | undefined;
    try {
      recorded = expand(this.#builder, inputs, attributes);
    } finally {
      this.#inner = outer;
      for (let i = 0; i < inner.length; i++) if (inner[i] !== recorded) this.dispose(inner[i] as Tensor);
    }
    const result = recorded as Tensor;
    // An expansion may be one of its inputs: that needs a handle of its own.
    return inputs.includes(result) ? this.#view(operatorByName('reshape'), result, { shape: result.shape }, result.info) : result;
  }

  /** How composite operators record what they consist of. */
  readonly #builder: ExpressionBuilder<Tensor> = {
    apply: (operator, inputs, attributes = NO_ATTRIBUTES) => {
      const result = this.#apply(operatorByName(operator), inputs, attributes)[0] as Tensor;
      this.#inner.push(result);
      return result;
    },
    constant: (value, dtype = 'float32') => {
      const tensor = this.#hidden(value, dtype);
      tensor.constant = true;
      return tensor;
    },
    spec: (value) => value,
  };

  // --- running

  /**
   * Submits what is recorded. Nothing waits; `target` gets memory whether or not others need it. With
   * `awaited` the caller is about to wait, and so to compute: small work then wakes no sleeping worker.
   * With `keep` every value that may be asked for gets memory, also those that are only computed on the way.
   * @throws GPUOS_OUT_OF_MEMORY; what is recorded stays so, and is tried again at the next flush
   */
  flush(target?: Tensor, awaited = false, keep = false): void {
    this.system.checkOpen();
    try {
      this.#submit(this.#pending, target, awaited, keep);
    } catch (error) {
      this.system.checkOpen();
      if (target === undefined) throw error;
      // Others may be what asks for too much: then the target alone, with what it is made from.
      this.#submit(NO_INPUTS, target, awaited);
      return;
    }
    this.#pending.length = 0;
    this.#pendingNs = 0;
    if (awaited) this.#ahead = false;
  }

  #submit(pending: readonly Tensor[], target: Tensor | undefined, awaited: boolean, keep = false): void {
    const recording = this.#recording.collect(pending, target, keep);
    if (recording.nodes.length === 0) return;
    this.counters.flushes++;
    const { plan } = this.#plans.find(recording, this.system.fused, this.#onFreshPlan);
    const first = this.system.queue(0).tail;
    this.#runner.run(plan, recording.externals, this.#onResult);
    this.#note(first, this.system.queue(0).tail);
    if (!awaited || plan.costNs > ALONE_NS) this.system.device.ringDoorbell(plan.tiles);
    const { nodes } = recording;
    // Readers first: what one that may still be asked for is made from has to stay.
    for (let i = nodes.length - 1; i >= 0; i--) this.#afterRun(nodes[i] as Tensor);
  }

  readonly #onFreshPlan = (): void => {
    this.counters.plans++;
  };

  readonly #onResult = (result: Result, storage: Storage, offset: number): void => {
    const tensor = this.#recording.nodes[result.node] as Tensor;
    tensor.strides = result.strides;
    tensor.offset = offset;
    this.#settle(tensor, storage);
  };

  /** Lets go of what a node needed, unless it was only computed on the way and it, or what is made of it, may be asked for again. */
  #afterRun(tensor: Tensor): void {
    if (tensor.storage === undefined && (tensor.handle || tensor.uses > 0)) {
      if (tensor.handle) tensor.skipped = true;
      return;
    }
    this.#releaseInputs(tensor);
    if (!tensor.handle) this.#releaseStorage(tensor);
  }

  #releaseInputs(tensor: Tensor): void {
    const { inputs } = tensor;
    tensor.inputs = NO_INPUTS;
    tensor.definition = undefined;
    for (let i = 0; i < inputs.length; i++) {
      const input = inputs[i] as Tensor;
      input.uses--;
      if (input.uses === 0 && !input.handle) this.#discard(input);
    }
  }

  /** Nobody can ask for the tensor any more. */
  #discard(tensor: Tensor): void {
    if (tensor.storage !== undefined) this.#releaseStorage(tensor);
    else if (tensor.definition !== undefined) this.#releaseInputs(tensor);
  }

  #releaseStorage(tensor: Tensor): void {
    const { storage } = tensor;
    if (storage === undefined || tensor.uses > 0) return;
    tensor.storage = undefined;
    if (tensor.tracked) this.#garbage.unregister(tensor);
    storage.release();
  }

  dispose(tensor: Tensor): void {
    if (!tensor.handle) return;
    tensor.handle = false;
    if (tensor.uses === 0) this.#discard(tensor);
  }

  /** Submits what is recorded and resolves when all of it is complete. Rejects if any of what was submitted since the last sync() failed. */
  async sync(): Promise<void> {
    this.flush();
    const tasks = this.#unseen.splice(0);
    await this.settled();
    for (let i = 0; i < tasks.length; i += 2) {
      for (let sequence = tasks[i] as number; sequence < (tasks[i + 1] as number); sequence++) {
        const failure = this.system.queue(0).failure(sequence);
        if (failure !== undefined) throw failure;
      }
    }
  }

  /** First and end of the runs of tasks that sync() has not looked at yet, flat. */
  readonly #unseen: number[] = [];

  #note(first: number, end: number): void {
    const unseen = this.#unseen;
    if (first === end) return;
    if (unseen[unseen.length - 1] === first) unseen[unseen.length - 1] = end;
    else if (unseen.push(first, end) > MAX_UNSEEN) unseen.splice(0, MAX_UNSEEN / 2);
  }

  /** Resolves when every task submitted so far is complete, however it ended. */
  async settled(): Promise<void> {
    const queue = this.system.queue(0);
    if (queue.tail > 0) await queue.wait(queue.tail - 1);
  }

  // --- reading

  #ready(tensor: Tensor): Tensor {
    this.system.checkOpen();
    this.#check(tensor);
    if (tensor.storage !== undefined && isContiguous(tensor.info, tensor)) return tensor;
    if (tensor.storage === undefined) {
      this.flush(tensor, true);
      if (tensor.storage !== undefined && isContiguous(tensor.info, tensor)) return tensor;
    }
    const copy = this.#push(CONTIGUOUS, tensor.info, tensor.dtype, [tensor], NO_ATTRIBUTES, 0);
    try {
      if (copy.storage === undefined) this.flush(copy, true);
    } catch (error) {
      this.dispose(copy);
      throw error;
    }
    return copy;
  }

  async data(tensor: Tensor): Promise<HostData> {
    if (tensor.value !== undefined && tensor.storage === undefined) return this.#readValue(tensor);
    const ready = this.#ready(tensor);
    // The tensor may be disposed of meanwhile; its memory stays until it is read.
    const storage = (ready.storage as Storage).retain();
    const { offset } = ready;
    try {
      if (storage.producer >= 0) await this.system.queue(0).wait(storage.producer);
      return this.#read(ready, storage, offset);
    } finally {
      storage.release();
      if (ready !== tensor) this.dispose(ready);
    }
  }

  dataSync(tensor: Tensor): HostData {
    if (tensor.value !== undefined && tensor.storage === undefined) return this.#readValue(tensor);
    const ready = this.#ready(tensor);
    const storage = ready.storage as Storage;
    try {
      if (storage.producer >= 0) this.system.queue(0).waitSync(storage.producer);
      return this.#read(ready, storage, ready.offset);
    } finally {
      if (ready !== tensor) this.dispose(ready);
    }
  }

  #readValue(tensor: Tensor): HostData {
    this.system.checkOpen();
    this.#check(tensor);
    const data = hostData(tensor.dtype, 1);
    data[0] = tensor.value as number;
    return data;
  }

  /** Copies complete values out. @throws the error of the task that was to make them */
  #read({ dtype, size }: Tensor, storage: Storage, offset: number): HostData {
    if (storage.error === undefined && storage.producer >= 0) storage.error = this.system.queue(0).failure(storage.producer);
    if (storage.error !== undefined) throw storage.error;
    const at = (storage.block.address >> 2) + offset;
    const { f32, i32 } = this.system.device.views();
    if (dtype === 'float32') return f32.slice(at, at + size);
    if (dtype === 'int32') return i32.slice(at, at + size);
    return Uint8Array.from(i32.subarray(at, at + size));
  }
}

/** The value that a device would hold. */
function inDType(value: number, dtype: DType): number {
  return dtype === 'float32' ? Math.fround(value) : dtype === 'int32' ? value | 0 : Number(value !== 0);
}

/** JSON has no infinities, no NaN and no -0, but attributes do, and different attributes must not look alike. */
function encodeNumber(_: string, value: unknown): unknown {
  return typeof value === 'number' && (!Number.isFinite(value) || Object.is(value, -0)) ? `#${Object.is(value, -0) ? '-0' : value}` : value;
}

function collectTensors(value: unknown, into: Set<unknown>): void {
  if (value instanceof Tensor) into.add(value);
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
