import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Random } from '../../test/conformance/random.ts';
import { referenceRun } from '../backends/reference/index.ts';
import type { Attributes, DType, Shape } from '../ops/define.ts';
import { isHalf } from '../ops/dtype.ts';
import { type HostTensor, hostTensor } from '../ops/host-tensor.ts';
import { init, type System } from '../runtime/system.ts';
import { type Engine, engineOf } from './engine.ts';
import { instanceOf, PlanCache } from './plan-cache.ts';
import { type Plan, Planner } from './plan.ts';
import { Recording } from './recording.ts';
import { Structure } from './structure.ts';
import type { Tensor } from './tensor.ts';

let system: System;
let engine: Engine;
beforeAll(() => {
  system = init({ workers: 1, memoryMib: 128 });
  engine = engineOf(system);
});
afterAll(() => system.shutdown());

/** What an expression is computed with: lazy tensors, or values of the reference. */
interface Host<T extends { readonly shape: Shape; readonly dtype: DType }> {
  leaf(shape: Shape, seed: number): T;
  apply(name: string, inputs: readonly T[], attributes?: Attributes): T;
}

const SMOOTH = ['tanh', 'sigmoid', 'relu', 'gelu', 'neg', 'sin'];

/**
 * A random expression, the same for every `dims`: its choices depend on the seed and on ranks, not on sizes. Each of its
 * dimensions is one of `dims`, or 1, or made of such. Some of it is in halves. Returns the values that the caller keeps.
 */
function expression<T extends { readonly shape: Shape; readonly dtype: DType }>(
  seed: number,
  dims: readonly number[],
  host: Host<T>,
  steps: number,
): T[] {
  const random = new Random(seed);
  // Dimensions by name (an index of `dims`; -1: 1), so that choices do not look at sizes.
  const values: { value: T; names: readonly number[][] }[] = [];
  const size = (name: readonly number[]): number => name.reduce((product, index) => product * (dims[index] as number), 1);
  const leaf = (names: readonly number[][]): void => {
    const whole = random.chance(0.7);
    const seeded = random.below(1 << 30);
    if (whole || names.length < 2) {
      values.push({ value: host.leaf(names.map(size), seeded), names });
      return;
    }
    // In memory it lies the other way round.
    const turned = host.leaf([...names].reverse().map(size), seeded);
    values.push({ value: host.apply('transpose', [turned], {}), names });
  };
  /** As a partner of `other`. */
  const like = (other: T, value: T): T => (value.dtype === other.dtype ? value : host.apply('cast', [value], { dtype: other.dtype }));
  const push = (name: string, inputs: readonly T[], attributes: Attributes, names: readonly number[][]): void => {
    values.push({ value: host.apply(name, inputs, attributes), names });
  };
  const rank = random.between(1, 3);
  leaf(Array.from({ length: rank }, () => [random.below(dims.length)]));
  for (let i = 0; i < steps; i++) {
    const { value, names } = random.chance(0.7) ? (values[values.length - 1] as (typeof values)[number]) : random.pick(values);
    const axis = random.below(Math.max(1, names.length));
    switch (random.below(13)) {
      case 0:
      case 1:
        push(random.pick(SMOOTH), [value], {}, names);
        break;
      case 2: {
        // A partner that is repeated over some of the dimensions.
        const lead = random.below(names.length + 1);
        leaf(names.slice(lead).map((name) => (random.chance(0.5) ? name : [])));
        const partner = like(value, (values[values.length - 1] as (typeof values)[number]).value);
        push(random.pick(['add', 'maximum', 'sub']), random.chance(0.5) ? [value, partner] : [partner, value], {}, names);
        break;
      }
      case 3: {
        const same = values.filter((other) => JSON.stringify(other.names) === JSON.stringify(names));
        push('add', [value, like(value, random.pick(same).value)], {}, names);
        break;
      }
      case 4: {
        if (names.length === 0) break;
        const keepDims = random.chance(0.5);
        const left = keepDims ? names.map((name, j) => (j === axis ? [] : name)) : names.filter((_, j) => j !== axis);
        push(random.pick(['max', 'mean', 'sum']), [value], { axes: [axis], keepDims }, left);
        if (keepDims && random.chance(0.7)) push('sub', [value, (values[values.length - 1] as (typeof values)[number]).value], {}, names);
        break;
      }
      case 5:
        if (names.length > 0) push('softmax', [value], { axis }, names);
        break;
      case 6:
        if (names.length > 1) push('transpose', [value], {}, [...names].reverse());
        break;
      case 7: {
        // Two neighbours become one dimension, or one of two becomes two again.
        const split = names.findIndex((name) => name.length > 1);
        const to =
          split >= 0
            ? [...names.slice(0, split), ...(names[split] as number[]).map((index) => [index]), ...names.slice(split + 1)]
            : names.length > 1
              ? [...names.slice(0, -2), [...(names[names.length - 2] as number[]), ...(names[names.length - 1] as number[])]]
              : [...names, []];
        if (to.length < 6) push('reshape', [value], { shape: to.map(size) }, to);
        break;
      }
      case 8: {
        // The parts of a dimension without its first element, in the middle of a sum.
        if (names.length === 0 || value.shape.some((count) => count < 2)) break;
        const begin = names.map((_, j) => (j === axis ? 1 : 0));
        const part = host.apply('slice', [value], { begin, size: value.shape.map((count, j) => count - (begin[j] as number)) });
        push(
          'max',
          [host.apply('tanh', [part])],
          { axes: [axis], keepDims: true },
          names.map((name, j) => (j === axis ? [] : name)),
        );
        break;
      }
      case 9: {
        if (names.length !== 2) break;
        const other = [random.below(dims.length)];
        leaf([names[1] as number[], other]);
        const product = host.apply('matmul', [value, like(value, (values[values.length - 1] as (typeof values)[number]).value)]);
        push('tanh', [product], {}, [names[0] as number[], other]);
        break;
      }
      case 10:
        if (names.length > 0 && random.chance(0.3)) push('reverse', [value], { axes: [axis] }, names);
        break;
      case 11:
        push('cast', [value], { dtype: random.pick(['float16', 'bfloat16', 'float32']) }, names);
        break;
      default:
        if (names.length < 5) push('expand-dims', [value], { axis }, [...names.slice(0, axis), [], ...names.slice(axis)]);
    }
  }
  const kept = values.slice(0, -1).filter(() => random.chance(0.15));
  return [...kept, values[values.length - 1] as (typeof values)[number]].map(({ value }) => value);
}

const leafValues = (shape: Shape, seed: number): HostTensor => {
  const random = new Random(seed);
  const values = Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () => random.between(-8, 8) / 8);
  return hostTensor(shape, values);
};

const LAZY: Host<Tensor> = {
  leaf: (shape, seed) => engine.fromHost(leafValues(shape, seed).data, shape),
  apply: (name, inputs, attributes) => engine.apply(name, inputs, attributes)[0] as Tensor,
};
const REFERENCE: Host<HostTensor> = {
  leaf: leafValues,
  apply: (name, inputs, attributes) => referenceRun(name, inputs, attributes)[0] as HostTensor,
};

const counters = () => ({ operations: 0, tasks: 0, flushes: 0, plans: 0, structures: 0 });

/** What is done with the recording of an expression that is never computed. */
function recorded<T>(seed: number, dims: readonly number[], steps: number, use: (recording: Recording) => T): T {
  // Nothing is pending, so that nothing is submitted in the middle.
  engine.flush();
  return engine.tidy(() => {
    const kept = expression(seed, dims, LAZY, steps);
    const recording = new Recording();
    for (const tensor of kept) if (tensor.operation !== undefined) recording.include(tensor);
    recording.close(kept[kept.length - 1], true);
    const result = use(recording);
    recording.clear();
    return result;
  });
}

/** A plan for these sizes alone, decided by themselves. */
function literalPlan(recording: Recording, fused: boolean): Plan {
  const structure = new Structure(recording.graph(), fused);
  return new Planner(system, instanceOf(structure, recording, undefined)).plan();
}

const plain = (plan: Plan): Plan => ({ ...plan, operators: [...plan.operators].sort((a, b) => a - b) });

/** Sizes of which none is another's product, and none is one less than another. */
const APART = [5, 8, 11, 14, 17, 23, 26, 29] as const;
const apart = fc.shuffledSubarray([...APART], { minLength: 3, maxLength: 3 });
const any = fc.array(fc.oneof(fc.integer({ min: 1, max: 6 }), fc.constantFrom(0, 1, 16, 24)), { minLength: 3, maxLength: 3 });
const SEEDS = fc.integer({ min: 0, max: 2 ** 31 });

describe('a structure that is known', () => {
  it('gives the plan that planning from nothing gives, at any sizes', () => {
    let shared = 0;
    fc.assert(
      fc.property(SEEDS, fc.oneof(fc.tuple(apart, apart), fc.tuple(any, any)), fc.boolean(), (seed, [before, dims], fused) => {
        const counted = counters();
        const fresh = new PlanCache(system, counters());
        const used = new PlanCache(system, counted);
        recorded(seed, before, 12, (recording) => used.find(recording, fused));
        const made = counted.structures;
        const cached = recorded(seed, dims, 12, (recording) => used.find(recording, fused));
        if (counted.structures === made) shared++;
        const scratch = recorded(seed, dims, 12, (recording) => fresh.find(recording, fused));
        expect(plain(cached)).toEqual(plain(scratch));
      }),
      { seed: 31, numRuns: 400 },
    );
    expect(shared).toBeGreaterThan(150);
  });

  it('gives the plan that is decided by the sizes themselves, where they have nothing in common', () => {
    fc.assert(
      fc.property(SEEDS, apart, fc.boolean(), (seed, dims, fused) => {
        const cached = recorded(seed, dims, 12, (recording) => new PlanCache(system, counters()).find(recording, fused));
        const literal = recorded(seed, dims, 12, (recording) => literalPlan(recording, fused));
        expect(plain(cached)).toEqual(plain(literal));
      }),
      { seed: 32, numRuns: 300 },
    );
  });

  it('computes what the reference computes', () => {
    fc.assert(
      fc.property(SEEDS, fc.array(fc.oneof(apart, any), { minLength: 3, maxLength: 3 }), fc.boolean(), (seed, sizes, fused) => {
        system.fused = fused;
        try {
          for (const dims of sizes) {
            let halves = false;
            const noting: Host<HostTensor> = {
              leaf: REFERENCE.leaf,
              apply: (name, inputs, attributes) => {
                const result = REFERENCE.apply(name, inputs, attributes);
                halves ||= isHalf(result.dtype);
                return result;
              },
            };
            const expected = expression(seed, dims, noting, 12);
            // What differs in the last bit of a float32 may be rounded to another half.
            const tolerance = halves ? 0.05 : 1e-4;
            engine.tidy(() => {
              expression(seed, dims, LAZY, 12).forEach((tensor, i) => {
                const { shape, data } = expected[i] as HostTensor;
                expect(tensor.shape).toEqual(shape);
                tensor.dataSync().forEach((value, at) => {
                  const wanted = data[at] as number;
                  if (Math.abs(value - wanted) > tolerance * (1 + Math.abs(wanted)))
                    expect(value, `element ${at} of [${shape.join()}]`).toBe(wanted);
                });
              });
            });
          }
        } finally {
          system.fused = true;
        }
      }),
      { seed: 33, numRuns: 150 },
    );
  });
});
