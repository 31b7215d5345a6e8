/**
 * Kernels of our tfjs backend against the CPU kernels of tfjs: random shapes, dtypes and values, through the public
 * operations of tfjs; on the reference engine, so that our mapping alone is at test, and on the real one.
 */
import * as tf from '@tensorflow/tfjs-core';
import '@tensorflow/tfjs-backend-cpu';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect } from 'vitest';
import type { GpuosBackend } from '../src/integrations/tfjs/backend.ts';
import { type Registration, register } from '../src/integrations/tfjs/registration.ts';
import type { Statistics } from '../src/integrations/tfjs/statistics.ts';
import { ENGINES, type OpenedEngine } from './tfjs-engines.ts';

export type Result = tf.Tensor | tf.Tensor[];
export type DType = 'float32' | 'int32' | 'bool';

let opened: OpenedEngine | undefined;
let registration: Registration | undefined;

/** Declares the tests once for each tensor engine, with our backend registered on it. */
export function onEachEngine(tests: () => void): void {
  describe.each(ENGINES)('on the $name engine', ({ open }) => {
    beforeAll(() => {
      const engine = open();
      opened = engine;
      registration = register({ open: () => engine.engine, mode: 'warn', warn: () => {}, inform: () => {} });
    });

    afterAll(async () => {
      registration?.remove();
      await opened?.close();
    });

    tests();
  });
}

/** Our backend on the engine that is being tested. */
export function backend(): GpuosBackend {
  return (registration as Registration).backend;
}

/** Tensors of the engine that nobody has disposed of. */
export function live(): number {
  return (opened as OpenedEngine).live();
}

export interface Value {
  readonly shape: number[];
  readonly dtype: string;
  readonly values: number[];
}

export function on(name: string, run: () => Result): Value[] {
  void tf.setBackend(name);
  const before = tf.memory();
  let values: Value[] = [];
  tf.tidy(() => {
    const result = run();
    const tensors = Array.isArray(result) ? result : [result];
    values = tensors.map((tensor) => ({ shape: tensor.shape, dtype: tensor.dtype, values: [...tensor.dataSync()] }));
  });
  expect(tf.memory()).toEqual(before);
  return values;
}

/** Runs the operation on both backends and compares shapes, dtypes and values. */
export function compare(run: () => Result, tolerance = 1e-5): void {
  const expected = on('cpu', run);
  const before = live();
  const actual = on('gpuos', run);
  expect(actual.map(({ shape, dtype }) => ({ shape, dtype }))).toEqual(expected.map(({ shape, dtype }) => ({ shape, dtype })));
  for (const [i, { values, dtype }] of actual.entries()) {
    const wanted = (expected[i] as Value).values;
    for (let j = 0; j < wanted.length; j++) {
      const [a, b] = [values[j] as number, wanted[j] as number];
      if (Object.is(a, b) || a === b) continue;
      if (dtype !== 'float32' || !(Math.abs(a - b) <= tolerance * Math.max(1, Math.abs(b)))) {
        expect.fail(`element ${j} of output ${i} is ${a}, not ${b}`);
      }
    }
  }
  // Scalars that the backend keeps are the only thing that stays.
  expect(live() - before).toBeLessThanOrEqual(4);
}

export function counts(run: () => void): Statistics {
  void tf.setBackend('gpuos');
  backend().resetStatistics();
  tf.tidy(run);
  return backend().statistics();
}

const random = (seed: number) => {
  let state = seed | 1;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) | 0;
    return (state >>> 8) / 2 ** 24;
  };
};

/** A tensor of these random values, made anew on whichever backend is selected. */
export function tensor(shape: readonly number[], dtype: DType, seed: number, low = -4, high = 4): tf.Tensor {
  const next = random(seed * 7919 + 17);
  const count = shape.reduce((a, b) => a * b, 1);
  const values = Array.from({ length: count }, () => low + next() * (high - low));
  if (dtype === 'float32') return tf.tensor(values, [...shape], 'float32');
  if (dtype === 'int32') return tf.tensor(Int32Array.from(values, Math.floor), [...shape], 'int32');
  return tf.tensor(
    Uint8Array.from(values, (value) => (value > 0 ? 1 : 0)),
    [...shape],
    'bool',
  );
}

/** Small ones, which the host knows when they are integers, and ones too big for that. */
export const shapes = fc.oneof(fc.array(fc.integer({ min: 0, max: 4 }), { maxLength: 4 }), fc.constantFrom([65], [3, 40], [2, 3, 4, 5]));

/** A pair that broadcasts. */
export const pairs = shapes.chain((shape) =>
  fc
    .tuple(fc.array(fc.boolean(), { minLength: shape.length, maxLength: shape.length }), fc.nat({ max: shape.length }), fc.boolean())
    .map(([ones, drop, swap]) => {
      const other = shape.map((size, i) => (ones[i] ? 1 : size)).slice(drop);
      return swap ? ([other, shape] as const) : ([shape, other] as const);
    }),
);

export const seeds = fc.nat({ max: 1000 });
export const RUNS = { numRuns: 25 };
