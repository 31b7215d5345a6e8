/** Gradients, optimizers and a model of layers on our backend, against the CPU backend of tfjs; and what they leave behind. */
import * as tf from '@tensorflow/tfjs-core';
import '@tensorflow/tfjs-backend-cpu';
import * as layers from '@tensorflow/tfjs-layers';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ENGINES, type OpenedEngine } from '../../../test/tfjs-engines.ts';
import { type Registration, register } from './registration.ts';

let opened: OpenedEngine;
let registration: Registration;

/** The same numbers on every backend. */
function noise(shape: number[], seed: number): Float32Array {
  let state = seed * 2654435761;
  return Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) | 0;
    return (state >>> 8) / 2 ** 23 - 1;
  });
}

const tensor = (shape: number[], seed: number) => tf.tensor(noise(shape, seed), shape);

function expectClose(actual: readonly ArrayLike<number>[], wanted: readonly ArrayLike<number>[], tolerance = 1e-4): void {
  expect(actual.length).toBe(wanted.length);
  for (const [i, values] of actual.entries()) {
    const other = wanted[i] as ArrayLike<number>;
    expect(values.length).toBe(other.length);
    for (let j = 0; j < values.length; j++) {
      const scale = Math.max(1, Math.abs(other[j] as number));
      expect(Math.abs((values[j] as number) - (other[j] as number)) / scale, `value ${j} of ${i}`).toBeLessThan(tolerance);
    }
  }
}

/** What a run adds to the memory that tfjs counts. */
function added<T>(run: () => T): { result: T; tensors: number; buffers: number; bytes: number } {
  const { numTensors, numDataBuffers, numBytes } = tf.memory();
  const result = run();
  const after = tf.memory();
  return {
    result,
    tensors: after.numTensors - numTensors,
    buffers: after.numDataBuffers - numDataBuffers,
    bytes: after.numBytes - numBytes,
  };
}

/** Runs on both backends: the same numbers, the same memory added (some optimizers keep a scalar), nothing else kept. */
function compare(run: () => ArrayLike<number>[]): void {
  void tf.setBackend('cpu');
  const { result: wanted, ...cpu } = added(run);
  void tf.setBackend('gpuos');
  const live = opened.live();
  const { result: actual, ...ours } = added(run);
  expectClose(actual, wanted);
  expect(ours).toEqual(cpu);
  // Beyond that, only constants that the backend keeps.
  expect(opened.live() - live - (live === 0 ? 0 : ours.buffers)).toBeLessThanOrEqual(4);
}

describe.each(ENGINES)('on the $name engine', ({ open }) => {
  beforeAll(() => {
    opened = open();
    registration = register({ open: () => opened.engine, mode: 'warn', warn: () => {}, inform: () => {} });
  });

  afterAll(async () => {
    registration.remove();
    await opened.close();
  });

  describe('gradients of single operations', () => {
    const one: Record<string, (x: tf.Tensor) => tf.Tensor> = {
      relu: tf.relu,
      relu6: (x) => tf.relu6(tf.mul(x, 8)),
      elu: tf.elu,
      selu: tf.selu,
      leakyRelu: (x) => tf.leakyRelu(x, 0.1),
      sigmoid: tf.sigmoid,
      tanh: tf.tanh,
      exp: tf.exp,
      log: (x) => tf.log(tf.add(x, 2)),
      sqrt: (x) => tf.sqrt(tf.add(x, 2)),
      rsqrt: (x) => tf.rsqrt(tf.add(x, 2)),
      square: tf.square,
      abs: tf.abs,
      sin: tf.sin,
      cos: tf.cos,
      erf: tf.erf,
      softplus: tf.softplus,
      softmax: (x) => tf.mul(tf.softmax(x), tensor([3, 4], 9)),
      logSoftmax: (x) => tf.mul(tf.logSoftmax(x), tensor([3, 4], 9)),
      sum: (x) => tf.sum(x, 0),
      mean: (x) => tf.mean(x, 1),
      max: (x) => tf.max(x, 1),
      min: (x) => tf.min(x, 0),
      cumsum: (x) => tf.cumsum(x, 1),
      transpose: (x) => tf.mul(tf.transpose(x), tensor([4, 3], 9)),
      slice: (x) => tf.slice(x, [1, 1], [2, 2]),
      pad: (x) =>
        tf.pad(x, [
          [1, 0],
          [0, 2],
        ]),
      tile: (x) => tf.mul(tf.tile(x, [2, 2]), tensor([6, 8], 9)),
      gather: (x) => tf.gather(x, tf.tensor1d([0, 2, 2], 'int32')),
      concat: (x) => tf.mul(tf.concat([x, x], 1), tensor([3, 8], 9)),
      stack: (x) => tf.mul(tf.stack([x, x]), tensor([2, 3, 4], 9)),
      unstack: (x) => tf.unstack(x)[1] as tf.Tensor,
      split: (x) => tf.split(x, 2, 1)[0] as tf.Tensor,
      reverse: (x) => tf.mul(tf.reverse(x), tensor([3, 4], 9)),
      where: (x) => tf.where(tf.greater(tensor([3, 4], 9), 0), x, tf.mul(x, 2)),
      clip: (x) => tf.clipByValue(x, -0.5, 0.5),
      step: (x) => tf.mul(tf.step(x), x),
      pow: (x) => tf.pow(tf.add(x, 2), 1.5),
      norm: (x) => tf.norm(x),
    };
    for (const [name, run] of Object.entries(one)) {
      test(name, () =>
        compare(() =>
          tf.tidy(() => [
            tf
              .grad((x) => tf.sum(run(x)))(tensor([3, 4], 1))
              .dataSync(),
          ]),
        ),
      );
    }
  });

  test('gradients of two operands, broadcast', () => {
    const two = [tf.add, tf.sub, tf.mul, tf.div, tf.atan2] as ((a: tf.Tensor, b: tf.Tensor) => tf.Tensor)[];
    for (const run of two) {
      compare(() =>
        tf.tidy(() =>
          tf
            .grads((a, b) => tf.sum(tf.mul(run(a, b), tensor([3, 4], 7))))([tensor([3, 4], 1), tf.add(tensor([4], 2), 2)])
            .map((g) => g.dataSync()),
        ),
      );
    }
    compare(() =>
      tf.tidy(() =>
        tf
          .grads((a, b) => tf.sum(tf.square(tf.matMul(a, b, true, true))))([tensor([4, 3], 1), tensor([5, 4], 2)])
          .map((g) => g.dataSync()),
      ),
    );
    compare(() =>
      tf.tidy(() =>
        tf
          .grads((x, w) => tf.sum(tf.square(tf.conv2d(x as tf.Tensor4D, w as tf.Tensor4D, 1, 'same'))))([
            tensor([1, 4, 4, 2], 1),
            tensor([1, 1, 2, 3], 2),
          ])
          .map((g) => g.dataSync()),
      ),
    );
  });

  describe('a perceptron trained by each optimizer', () => {
    const optimizers = {
      sgd: () => tf.train.sgd(0.1),
      momentum: () => tf.train.momentum(0.1, 0.9),
      adam: () => tf.train.adam(0.05),
      rmsprop: () => tf.train.rmsprop(0.01),
      adagrad: () => tf.train.adagrad(0.1),
    };
    for (const [name, make] of Object.entries(optimizers)) {
      test(name, () =>
        compare(() => {
          const optimizer = make();
          const [x, y] = [tensor([8, 5], 1), tensor([8, 2], 2)];
          const weights = [tensor([5, 7], 3), tensor([7], 4), tensor([7, 2], 5), tensor([2], 6)].map((initial) => {
            const variable = tf.variable(initial);
            initial.dispose();
            return variable;
          });
          const [w1, b1, w2, b2] = weights as [tf.Variable, tf.Variable, tf.Variable, tf.Variable];
          const losses: number[] = [];
          for (let step = 0; step < 3; step++) {
            const loss = optimizer.minimize(
              () => {
                const hidden = tf.relu(tf.add(tf.matMul(x as tf.Tensor2D, w1 as unknown as tf.Tensor2D), b1));
                const output = tf.add(tf.matMul(hidden as tf.Tensor2D, w2 as unknown as tf.Tensor2D), b2);
                return tf.losses.meanSquaredError(y, output) as tf.Scalar;
              },
              true,
              weights,
            ) as tf.Scalar;
            losses.push(loss.dataSync()[0] as number);
            loss.dispose();
          }
          expect(losses[2]).toBeLessThan(losses[0] as number);
          const result = [losses, ...weights.map((weight) => weight.dataSync())];
          for (const tensor of [x, y, ...weights]) tensor.dispose();
          optimizer.dispose();
          return result;
        }),
      );
    }
  });

  test('a model of layers: convolution, normalization, dense, softmax', async () => {
    const train = async () => {
      const model = layers.sequential({
        layers: [
          layers.layers.conv2d({ inputShape: [6, 6, 2], filters: 3, kernelSize: 1, activation: 'relu', name: 'pixel' }),
          layers.layers.batchNormalization({ name: 'norm' }),
          layers.layers.conv2d({ filters: 4, kernelSize: 3, strides: 2, name: 'window' }),
          layers.layers.flatten({ name: 'flat' }),
          layers.layers.dense({ units: 3, activation: 'softmax', name: 'classes' }),
        ],
      });
      model.setWeights(model.getWeights().map((weight, i) => tf.abs(tensor(weight.shape, i + 1))));
      model.compile({ optimizer: tf.train.sgd(0.05), loss: 'categoricalCrossentropy' });
      const [x, y] = [tensor([4, 6, 6, 2], 11), tf.oneHot(tf.tensor1d([0, 1, 2, 1], 'int32'), 3)];
      const loss = (await model.trainOnBatch(x, y)) as number;
      const output = model.predict(x) as tf.Tensor;
      const result = [Float32Array.of(loss), await output.data(), ...model.getWeights().map((weight) => weight.dataSync())];
      tf.dispose([x, y, output]);
      model.dispose();
      return result;
    };
    await tf.setBackend('cpu');
    const wanted = await train();
    await tf.setBackend('gpuos');
    registration.backend.resetStatistics();
    expectClose(await train(), wanted, 1e-3);
    const { fallbacks, nativeShare } = registration.backend.statistics();
    // Only the 3 x 3 convolution and its gradients are left to the CPU kernels, and the gradients of the other.
    expect(Object.keys(fallbacks).filter((name) => !/^(Fused)?Conv2D/.test(name))).toEqual([]);
    expect(nativeShare).toBeGreaterThan(0.9);
  });

  test('memory: tensors, buffers, bytes and what the engine holds', () => {
    void tf.setBackend('gpuos');
    const start = { ...tf.memory() };
    const live = opened.live();
    const held = registration.backend.numDataIds();
    const a = tensor([100], 1);
    expect(tf.memory()).toMatchObject({
      numTensors: start.numTensors + 1,
      numDataBuffers: start.numDataBuffers + 1,
      numBytes: start.numBytes + 400,
    });
    expect(tf.memory().unreliable).toBeFalsy();
    const reshaped = tf.reshape(a, [10, 10]);
    // Another shape of the same data.
    expect(tf.memory()).toMatchObject({ numTensors: start.numTensors + 2, numDataBuffers: start.numDataBuffers + 1 });
    expect(registration.backend.refCount(a.dataId)).toBe(2);
    a.dispose();
    expect(reshaped.dataSync()).toEqual(noise([100], 1));
    const sum = tf.add(reshaped, reshaped);
    reshaped.dispose();
    expect(sum.dataSync()[3]).toBeCloseTo(2 * (noise([100], 1)[3] as number));
    sum.dispose();
    const kept = tf.tidy(() => {
      const inner = tf.keep(tf.square(tensor([3], 2)));
      tf.split(tensor([4, 4], 3), 2);
      tf.fft(tf.complex(tensor([8], 4), tensor([8], 5)));
      return inner;
    });
    kept.dispose();
    expect(tf.memory()).toEqual(start);
    expect(opened.live()).toBe(live);
    expect(registration.backend.numDataIds()).toBe(held);
  });

  test('data moves between backends as tfjs asks for it, shared data and complex numbers included', () => {
    const using = (backend: string, run: () => void) => {
      void tf.setBackend(backend);
      tf.tidy(() => {
        run();
      });
    };
    void tf.setBackend('cpu');
    const before = tf.memory();
    const a = tensor([2, 3], 1);
    const b = tf.reshape(a, [3, 2]);
    const whole = tf.tensor1d([1, 2, 3], 'int32');
    const c = tf.cast(whole, 'float32');
    const z = tf.complex([1, 2], [3, 4]);
    using('gpuos', () => {
      expect([...tf.add(b, tf.reshape(a, [3, 2])).dataSync()]).toEqual([...noise([2, 3], 1)].map((value) => value * 2));
      // The CPU backend shares data between dtypes too.
      expect([...tf.mul(c, 0.5).dataSync()]).toEqual([0.5, 1, 1.5]);
      expect([...tf.add(whole, 1).dataSync()]).toEqual([2, 3, 4]);
      expect([...tf.imag(z).dataSync()]).toEqual([3, 4]);
    });
    const negative = [...noise([2, 3], 1)].map((value) => -value);
    using('cpu', () => expect([...tf.neg(b).dataSync()]).toEqual(negative));
    using('gpuos', () => expect([...tf.neg(b).dataSync()]).toEqual(negative));
    using('cpu', () => {
      expect(registration.backend.refCount(b.dataId)).toBe(2);
      expect(tf.neg(whole).dataSync()).toEqual(Int32Array.of(-1, -2, -3));
      expect(registration.backend.refCount(whole.dataId)).toBe(0);
    });
    tf.dispose([a, b, whole, c, z]);
    const after = tf.memory();
    expect([after.numTensors, after.numBytes]).toEqual([before.numTensors, before.numBytes]);
  });

  test('reads: strings, bools, integers that the host knows cannot be changed from outside', async () => {
    void tf.setBackend('gpuos');
    const source = Int32Array.of(1, 2, 3);
    const x = tf.tensor1d(source, 'int32');
    source[0] = 9;
    const read = x.dataSync();
    read[1] = 9;
    expect([...(await x.data())]).toEqual([1, 2, 3]);
    const flags = tf.tensor1d([true, false]);
    expect(await flags.data()).toEqual(Uint8Array.of(1, 0));
    const words = tf.tensor1d(['whale', 'sea']);
    expect(await words.data()).toEqual(['whale', 'sea']);
    const big = tf.tensor(noise([70], 1), [70]);
    expect(await tf.less(big, 0).data()).toEqual(Uint8Array.from(noise([70], 1), (value) => (value < 0 ? 1 : 0)));
    tf.dispose([x, flags, words, big]);
  });

  test('time and profile', async () => {
    void tf.setBackend('gpuos');
    const x = tensor([4], 1);
    const { kernelMs, wallMs } = (await tf.time(() => tf.tidy(() => void tf.square(x)))) as { kernelMs: number; wallMs: number };
    expect(kernelMs).toBeGreaterThan(0);
    expect(wallMs).toBeGreaterThanOrEqual(kernelMs);
    const profile = await tf.profile(() => tf.tidy(() => tf.add(tf.square(x), 1)));
    expect(profile.kernelNames.sort()).toEqual(['Add', 'Square']);
    x.dispose();
  });
});
