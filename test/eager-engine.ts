/** A tensor engine that runs every operator at once on the reference device: what the tfjs kernels mean, without a runtime. */
import { referenceRun } from '../src/backends/reference/index.ts';
import { GpuosError } from '../src/errors.ts';
import type { Attributes, DType } from '../src/ops/define.ts';
import { type HostData, hostTensor } from '../src/ops/host-tensor.ts';

export class EagerTensor {
  readonly shape: readonly number[];
  readonly dtype: DType;
  #values: HostData | undefined;
  readonly #engine: EagerEngine;

  constructor(engine: EagerEngine, shape: readonly number[], dtype: DType, values: HostData) {
    this.shape = shape;
    this.dtype = dtype;
    this.#values = values;
    this.#engine = engine;
    engine.live++;
  }

  get values(): HostData {
    if (this.#values === undefined) throw new GpuosError('GPUOS_TENSOR_DISPOSED', 'The tensor has been disposed of.');
    return this.#values;
  }

  dataSync(): HostData {
    return this.values.slice();
  }

  async data(): Promise<HostData> {
    return this.values.slice();
  }

  dispose(): void {
    if (this.#values === undefined) throw new Error('disposed of twice');
    this.#values = undefined;
    this.#engine.live--;
  }
}

export class EagerEngine {
  /** Tensors that nobody has disposed of. */
  live = 0;
  /** Names of the operators that ran. */
  readonly log: string[] = [];
  readonly counters = { operations: 0, tasks: 0 };

  fromHost(values: HostData, shape: readonly number[], dtype: DType): EagerTensor {
    return new EagerTensor(this, shape, dtype, hostTensor(shape, values, dtype).data);
  }

  unary(operator: string, x: EagerTensor): EagerTensor {
    return this.apply(operator, [x])[0] as EagerTensor;
  }

  binary(operator: string, a: EagerTensor, b: EagerTensor): EagerTensor {
    return this.apply(operator, [a, b])[0] as EagerTensor;
  }

  async sync(): Promise<void> {}

  apply(operator: string, inputs: readonly EagerTensor[], attributes: Attributes = {}): EagerTensor[] {
    const operands = inputs.map((input) => ({ shape: input.shape, dtype: input.dtype, data: input.values }));
    const outputs = referenceRun(operator, operands, attributes);
    this.counters.operations++;
    this.counters.tasks++;
    this.log.push(operator);
    return outputs.map(({ shape, dtype, data }) => new EagerTensor(this, shape, dtype, data));
  }
}
