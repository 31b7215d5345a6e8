/** The short way of a kernel call: the same as the engine's own, and not taken where somebody wants to see each call. */
import * as tf from '@tensorflow/tfjs-core';
import '@tensorflow/tfjs-backend-cpu';
// Brings the gradients of the kernels.
import '@tensorflow/tfjs-layers';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ENGINES, type OpenedEngine } from '../../../test/tfjs-engines.ts';
import { type Registration, register } from './registration.ts';
import { BACKEND, tfjsEngine } from './tfjs.ts';

const { open } = ENGINES.find(({ name }) => name === 'reference') as (typeof ENGINES)[number];
let opened: OpenedEngine;
let registration: Registration;
/** Calls that the engine's own runKernelFunc saw. */
let long = 0;

const engine = tfjsEngine() as ReturnType<typeof tfjsEngine> & { runKernelFunc(parameters: unknown): unknown };
const own = engine.runKernelFunc;

beforeEach(async () => {
  opened = await open();
  registration = register({ open: () => opened.engine, mode: 'warn', warn: () => {}, inform: () => {} });
  await tf.ready();
  long = 0;
  engine.runKernelFunc = function counted(this: unknown, parameters: unknown) {
    long++;
    return own.call(this, parameters);
  };
});

afterEach(async () => {
  Reflect.deleteProperty(engine, 'runKernelFunc');
  tf.env().set('DEBUG', false);
  registration.remove();
  await opened.close();
});

const pair = () => [tf.tensor1d([1, -2, 3]), tf.tensor1d([4, 5, -6])] as const;

describe('a kernel call', () => {
  test('goes the short way, and gives a tensor that tfjs knows', () => {
    const [a, b] = pair();
    const before = tf.memory();
    const sum = tf.add(a, b);
    expect(long).toBe(0);
    expect(sum).toBeInstanceOf(tf.Tensor);
    expect(tf.memory().numTensors).toBe(before.numTensors + 1);
    expect(tf.memory().numDataBuffers).toBe(before.numDataBuffers + 1);
    expect([...sum.dataSync()]).toEqual([5, 3, -3]);
    sum.dispose();
    expect(tf.memory()).toEqual(before);
  });

  test('of a kernel with several results gives a list of tensors', () => {
    const { values, indices } = tf.topk(tf.tensor1d([1, 7, 3]), 2);
    expect(long).toBe(0);
    expect([[...values.dataSync()], [...indices.dataSync()]]).toEqual([
      [7, 3],
      [1, 2],
    ]);
  });

  test('inside tidy is cleaned up, and what tidy returns stays', () => {
    const [a, b] = pair();
    const before = tf.memory().numTensors;
    const kept = tf.tidy(() => tf.mul(tf.relu(tf.add(a, b)), b));
    expect(tf.memory().numTensors).toBe(before + 1);
    expect([...kept.dataSync()]).toEqual([20, 15, -0]);
  });

  test('that fails leaves the depth as it was: gradients still work afterwards', () => {
    const [a] = pair();
    expect(() => tf.engine().runKernel('Reshape', { x: a } as never, { shape: [7] } as never)).toThrow();
    expect(engine.state.kernelDepth).toBe(0);
    expect([
      ...tf
        .grad((x: tf.Tensor) => tf.square(x))(a)
        .dataSync(),
    ]).toEqual([2, -4, 6]);
  });
});

describe('the long way is taken', () => {
  test('by a gradient, for what its tape has to see', () => {
    const [a, b] = pair();
    expect([
      ...tf
        .grad((x: tf.Tensor) => tf.mul(tf.square(x), b))(a)
        .dataSync(),
    ]).toEqual([8, -20, -36]);
    expect(long).toBeGreaterThanOrEqual(2);
  });

  test('by tf.profile, which counts every kernel', async () => {
    const [a, b] = pair();
    const { kernels } = await tf.profile(() => tf.relu(tf.add(a, b)));
    expect(kernels.map(({ name }) => name)).toEqual(['Add', 'Relu']);
  });

  test('in debug mode, which looks at every result', () => {
    const [a] = pair();
    tf.env().set('DEBUG', true);
    tf.neg(a);
    expect(long).toBe(1);
  });

  test('for a kernel that nobody has, with the message of tfjs', () => {
    expect(() => tf.engine().runKernel('NoSuchKernel', {})).toThrow("Kernel 'NoSuchKernel' not registered for backend 'gpuos'");
  });

  test('while another backend is selected', async () => {
    await tf.setBackend('cpu');
    tf.neg(tf.tensor1d([1]));
    expect(long).toBe(1);
    await tf.setBackend(BACKEND);
  });
});

test('a kernel that a program registers in place of ours is the one that runs', () => {
  const [a] = pair();
  tf.neg(a); // so that ours has been found before
  const ours = tf.getKernel('Neg', BACKEND);
  tf.unregisterKernel('Neg', BACKEND);
  tf.registerKernel({ kernelName: 'Neg', backendName: BACKEND, kernelFunc: ({ inputs }) => tf.square(inputs['x'] as tf.Tensor) });
  expect([...tf.neg(a).dataSync()]).toEqual([1, 4, 9]);
  tf.unregisterKernel('Neg', BACKEND);
  tf.registerKernel(ours);
});

test('when the backend is taken out, the engine has its own runKernel again', () => {
  expect(Object.hasOwn(engine, 'runKernel')).toBe(true);
  registration.remove();
  expect(Object.hasOwn(engine, 'runKernel')).toBe(false);
});
