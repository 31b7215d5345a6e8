import { GpuosError } from '../errors.ts';
import { checkInputCount } from '../ops/attributes.ts';
import {
  type Attributes,
  type DType,
  defineOperator,
  type ExpressionBuilder,
  type OperatorDefinition,
  type Shape,
  type TensorSpec,
} from '../ops/define.ts';
import { DTYPES, isFloat, isHalf } from '../ops/dtype.ts';
import { roundToHalf } from '../ops/half.ts';
import { operatorByName } from '../ops/index.ts';
import { formatValue } from '../ops/shape.ts';
import type { Activation } from '../ops/matrix.ts';
import type { System } from '../runtime/system.ts';
import type { Engine } from './engine.ts';
import type { Lifetimes } from './lifetime.ts';
import { NO_ATTRIBUTES, type Named, named, type Operation, operations } from './operations.ts';
import { type ShapeInfo, shapeInfo, type TensorType, typeOf } from './shape-info.ts';
import type { Submission } from './submission.ts';
import { Tensor } from './tensor.ts';
import { composeView } from './view.ts';

/** What a multiplication and addition of a product takes on one core. */
const PRODUCT_NS = 0.05;

const SCALAR = shapeInfo([]);

/** A view's elements brought into memory of their own; what reading a strided tensor records. */
const COPY = defineOperator({
  name: 'cast',
  family: 'map',
  kind: 'map',
  about: 'the same values in contiguous memory',
  inputs: ['x'],
  infer: (inputs) => inputs,
});

/** Checks operations on tensors and records them; nothing runs here. */
export class Recorder {
  readonly #engine: Engine;
  readonly #system: System;
  readonly #submission: Submission;
  readonly #lifetimes: Lifetimes;

  constructor(engine: Engine, submission: Submission, lifetimes: Lifetimes) {
    this.#engine = engine;
    this.#system = engine.system;
    this.#submission = submission;
    this.#lifetimes = lifetimes;
  }

  /** @throws GPUOS_TENSOR_DISPOSED, GPUOS_SHUT_DOWN */
  check(tensor: Tensor): void {
    if (!(tensor instanceof Tensor)) throw new GpuosError('GPUOS_DTYPE_MISMATCH', `An operand is ${formatValue(tensor)}, not a tensor.`);
    if (!tensor.handle)
      throw new GpuosError('GPUOS_TENSOR_DISPOSED', `A tensor of shape [${tensor.shape.join()}] was used after it was disposed of.`);
    // Whether the device is lost is looked at when something is submitted: it would cost a good part of recording.
    if (this.#system.closed) this.#system.checkOpen();
    if (tensor.engine !== this.#engine) throw new GpuosError('GPUOS_SHUT_DOWN', 'The tensor belongs to another system.');
  }

  /** Whether check() has nothing against the tensor, except perhaps that the system is closed. */
  #isUsable(tensor: Tensor): boolean {
    return tensor?.engine === this.#engine && tensor.handle;
  }

  /** An element-wise operation of one input, the quick way. */
  unary(operator: Named, x: Tensor): Tensor {
    if (!this.#isUsable(x) || this.#system.closed) this.check(x);
    const { plain, quickInputs, accepted, toBool } = operator;
    const { type } = x;
    if (quickInputs !== 1 || ((accepted >> type.code) & 1) === 0) return this.apply(operator, [x], NO_ATTRIBUTES)[0] as Tensor;
    return this.#push(plain, toBool ? typeOf(type.info, 'bool') : type, x, undefined);
  }

  /** An element-wise operation of two inputs, the quick way; a number is taken as a scalar of the other's dtype. */
  binary(operator: Named, a: Tensor, other: Tensor | number): Tensor {
    if (!this.#isUsable(a) || this.#system.closed) this.check(a);
    const { type } = a;
    const b = typeof other === 'number' ? this.#scalar(other, type.dtype) : other;
    if (!this.#isUsable(b)) this.check(b);
    const { plain, quickInputs, accepted, toBool } = operator;
    if (
      quickInputs !== 2 ||
      ((accepted >> type.code) & 1) === 0 ||
      (type !== b.type && (type.code !== b.type.code || b.size !== 1 || b.rank > a.rank))
    ) {
      return this.apply(operator, [a, b], NO_ATTRIBUTES)[0] as Tensor;
    }
    return this.#push(plain, toBool ? typeOf(type.info, 'bool') : type, a, b);
  }

  /** Any operator of the library. */
  apply({ definition }: Named, inputs: readonly Tensor[], attributes: Attributes): Tensor[] {
    for (const input of inputs) this.check(input);
    return this.#apply(definition, inputs, attributes);
  }

  /** The number of an operation; the same again is the same scalar, and so one parameter of the kernel rather than many. */
  #scalar(value: number, dtype: DType): Tensor {
    const last = this.#last;
    if (last !== undefined && Object.is(this.#lastNumber, value) && last.dtype === dtype && last.place === undefined) return last;
    this.#lastNumber = value;
    this.#last = this.hidden(value, dtype);
    return this.#last;
  }

  #last: Tensor | undefined;
  #lastNumber = 0;

  /** A scalar that only one operation knows. */
  hidden(value: number, dtype: DType): Tensor {
    if (!isFloat(dtype) && inDType(value, dtype) !== value) {
      throw new GpuosError(
        'GPUOS_DTYPE_MISMATCH',
        `${formatValue(value)} is no value of ${dtype}, which the other operand has; cast that first.`,
      );
    }
    return Tensor.leaf(this.#engine, typeOf(SCALAR, dtype), inDType(value, dtype));
  }

  /** The values of a strided tensor in memory of their own. */
  contiguous(tensor: Tensor): Tensor {
    return this.#push(operations.plain(COPY), tensor.type, tensor, undefined);
  }

  #apply(definition: OperatorDefinition, inputs: readonly Tensor[], attributes: Attributes): Tensor[] {
    const operation = operations.of(definition, attributes);
    const checked = operation.attributes;
    checkInputCount(definition, inputs.length);
    const specs = definition.infer(inputs, checked);
    const spec = specs[0] as { shape: Shape; dtype: DType };
    if (definition.kind === 'composite' && definition.expand !== undefined) {
      return [this.#expand(definition.expand, inputs, checked)];
    }
    const halves = definition.kind === 'fixed' && (specs.some(isOfHalves) || inputs.some(isOfHalves));
    if (halves && !this.#engine.system.device.acceptsHalves(definition.name)) {
      return this.#inFloat32(definition, inputs, checked, specs);
    }
    if (definition.name === 'matmul') return [this.#matmul(definition, inputs, checked, shapeInfo(spec.shape))];
    const info = shapeInfo(spec.shape);
    if (definition.kind === 'view') return [this.#view(operation, inputs[0] as Tensor, info)];
    if (definition.kind === 'fixed') for (const input of inputs) this.#engine.ensureStorage(input);
    if (specs.length === 1) return [this.#recorded(Tensor.made(this.#engine, typeOf(info, spec.dtype), operation, inputs))];
    // Several outputs run, and get their memory, together: they are recorded before anything is submitted.
    const outputs: Tensor[] = [];
    for (let output = 0; output < specs.length; output++) {
      const { shape, dtype } = specs[output] as { shape: Shape; dtype: DType };
      const from = output === 0 ? inputs : [outputs[0] as Tensor];
      const tensor = Tensor.made(this.#engine, typeOf(shapeInfo(shape), dtype), operation, from, outputs);
      outputs.push(tensor);
      this.#submission.record(tensor);
    }
    this.#submission.submitIfFull(outputs);
    return outputs;
  }

  /**
   * A fixed operator of float16 or bfloat16 for which the device has no kernel: what is read is widened to float32 before, and
   * the result rounded after. These casts are recorded like any other, and fuse with what makes or uses the values.
   */
  #inFloat32(definition: OperatorDefinition, inputs: readonly Tensor[], attributes: Attributes, specs: readonly TensorSpec[]): Tensor[] {
    const between: Tensor[] = [];
    try {
      const wide = inputs.map((input) => {
        if (!isHalf(input.dtype)) return input;
        const widened = this.#cast(input, 'float32');
        between.push(widened);
        return widened;
      });
      const own = attributes['dtype'] === undefined ? attributes : { ...attributes, dtype: 'float32' };
      const results = this.#apply(definition, wide, own);
      return results.map((result, i) => {
        const { dtype } = specs[i] as TensorSpec;
        if (result.dtype === dtype) return result;
        between.push(result);
        return this.#cast(result, dtype);
      });
    } finally {
      for (const tensor of between) this.#lifetimes.dispose(tensor);
    }
  }

  /** Records an operation of one input or two. */
  #push(operation: Operation, type: TensorType, first: Tensor, second: Tensor | undefined): Tensor {
    return this.#recorded(new Tensor(this.#engine, type, operation, first, second, undefined));
  }

  #recorded(tensor: Tensor): Tensor {
    this.#submission.record(tensor);
    if (this.#submission.full) this.#submission.submitIfFull([tensor]);
    return tensor;
  }

  #cast(x: Tensor, dtype: DType): Tensor {
    return this.#push(operations.of(operatorByName('cast'), CASTS[dtype]), typeOf(x.info, dtype), x, undefined);
  }

  /**
   * Bias and activation are element-wise operations on the product, so that they fuse like any other. Of halves they get the
   * product as float32: it is rounded once, after them.
   */
  #matmul(definition: OperatorDefinition, inputs: readonly Tensor[], attributes: Attributes, info: ShapeInfo): Tensor {
    const [a, b, bias] = inputs as [Tensor, Tensor, Tensor?];
    for (const input of [a, b]) this.#engine.ensureStorage(input);
    const activation = attributes['activation'] as Activation;
    const plain = { transposeA: attributes['transposeA'], transposeB: attributes['transposeB'], activation: 'none' } as Attributes;
    this.#submission.submitEarly();
    const alone = bias === undefined && (activation === undefined || activation === 'none');
    const type = typeOf(info, alone ? a.dtype : 'float32');
    let result = this.#push(operations.of(definition, plain), type, a, b);
    const inner = a.info.dims[a.rank - (attributes['transposeA'] === true ? 2 : 1)] as number;
    this.#submission.countProduct(info.size * inner * PRODUCT_NS);
    if (bias !== undefined) {
      const added = isHalf(bias.dtype) ? this.#cast(bias, 'float32') : bias;
      result.handle = false;
      result = this.#push(named('add').plain, type, result, added);
      if (added !== bias) this.#lifetimes.dispose(added);
    }
    if (activation !== undefined && activation !== 'none') {
      result.handle = false;
      result = this.#push(named(activation).plain, type, result, undefined);
    }
    if (result.dtype !== a.dtype) {
      result.handle = false;
      result = this.#cast(result, a.dtype);
    }
    return result;
  }

  #view(operation: Operation, x: Tensor, info: ShapeInfo): Tensor {
    const type = typeOf(info, x.dtype);
    if (x.value !== undefined && x.storage === undefined) {
      if (info.size === 1) {
        return Tensor.leaf(this.#engine, type, x.value);
      }
      this.#engine.ensureStorage(x);
    }
    if (x.storage !== undefined) {
      const view = composeView(operation.definition.name, operation.attributes, x.info, x, info);
      if (view !== undefined) {
        const tensor = Tensor.leaf(this.#engine, type);
        this.#lifetimes.settle(tensor, x.storage.retain(), view.strides, view.offset);
        return tensor;
      }
    }
    return this.#push(operation, type, x, undefined);
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
      for (let i = 0; i < inner.length; i++) if (inner[i] !== recorded) this.#lifetimes.dispose(inner[i] as Tensor);
    }
    const result = recorded as Tensor;
    if (!inputs.includes(result)) return result;
    // An expansion may be one of its inputs: that needs a handle of its own.
    return this.#view(operations.of(operatorByName('reshape'), { shape: result.shape }), result, result.info);
  }

  /** How composite operators record what they consist of. */
  readonly #builder: ExpressionBuilder<Tensor> = {
    apply: (operator, inputs, attributes = NO_ATTRIBUTES) => {
      const result = this.#apply(operatorByName(operator), inputs, attributes)[0] as Tensor;
      this.#inner.push(result);
      return result;
    },
    constant: (value, dtype = 'float32') => {
      const tensor = this.hidden(value, dtype);
      tensor.constant = true;
      return tensor;
    },
    spec: (value) => value,
  };
}

const isOfHalves = (spec: TensorSpec): boolean => isHalf(spec.dtype);

/** Attributes of casts; frozen, so that they are checked once. */
const CASTS = Object.fromEntries(DTYPES.map((dtype) => [dtype, Object.freeze({ dtype })])) as unknown as Readonly<
  Record<DType, Attributes>
>;

/** The value that a device would hold. */
export function inDType(value: number, dtype: DType): number {
  if (isHalf(dtype)) return roundToHalf(value, dtype);
  return dtype === 'float32' ? Math.fround(value) : dtype === 'int32' ? value | 0 : Number(value !== 0);
}
