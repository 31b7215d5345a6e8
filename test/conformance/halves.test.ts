/**
 * Random programs over tensors of float16, bfloat16 and float32 by operations that round correctly: what they give is
 * known to the last bit, fused or not, whatever lies beside or in the place of what.
 */
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { referenceRun } from '../../src/backends/reference/index.ts';
import type { Attributes, DType } from '../../src/ops/define.ts';
import type { HostTensor } from '../../src/ops/host-tensor.ts';
import { broadcastPair } from '../../src/ops/shape.ts';
import type { System } from '../../src/runtime/system.ts';
import { type Engine, engineOf } from '../../src/tensor/engine.ts';
import type { Tensor } from '../../src/tensor/tensor.ts';
import { ALL_BITS, nearest, same, turningPoints, valueOfBits } from '../half-values.ts';
import { BACKENDS } from './backends.ts';
import { placed } from './layouts.ts';
import { HeapWatch } from './memory.ts';
import { broadcastable, Random, randomShape, randomTensor, search } from './random.ts';

const DTYPES: readonly DType[] = ['float16', 'bfloat16', 'float32'];
const UNARY = ['neg', 'abs', 'square', 'relu', 'sqrt', 'reciprocal', 'floor', 'round'];
const BINARY = ['add', 'sub', 'mul', 'div', 'maximum', 'minimum'];

interface Value {
  readonly host: HostTensor;
  readonly tensor: Tensor;
}

describe.each(BACKENDS)('halves on $name', ({ open, skip }) => {
  let system: System;
  let engine: Engine;
  let watch: HeapWatch;
  beforeAll(() => {
    if (skip !== undefined) return;
    system = open();
    watch = new HeapWatch(system);
    engine = engineOf(system);
  });
  afterAll(async () => {
    if (skip !== undefined) return;
    watch.check();
    expect(system.heap.usedBytes, 'bytes in use at the end').toBe(0);
    await system.shutdown();
  });

  const play = (seed: number, steps: number, elements: number, fused: boolean): void => {
    const random = new Random(seed);
    const values: Value[] = [];
    const told: string[] = [];
    const leaf = (shape: readonly number[], dtype: DType): Value => {
      const host = randomTensor(random, shape, dtype, 'open');
      return { host, tensor: placed(engine, random, host) };
    };
    const push = (operator: string, inputs: readonly Value[], attributes: Attributes = {}): void => {
      const hosts = inputs.map(({ host }) => host);
      const [host] = referenceRun(operator, hosts, attributes) as [HostTensor];
      const [tensor] = engine.apply(
        operator,
        inputs.map((input) => input.tensor),
        attributes,
      ) as [Tensor];
      told.push(`${operator}(${hosts.map(({ shape, dtype }) => `${dtype}[${shape}]`).join(', ')}) ${JSON.stringify(attributes)}`);
      values.push({ host, tensor });
    };
    system.fused = fused;
    try {
      engine.tidy(() => {
        for (const dtype of DTYPES) values.push(leaf(randomShape(random, 3, elements, 0), dtype));
        for (let step = 0; step < steps; step++) {
          const a = random.chance(0.6) ? (values.at(-1) as Value) : random.pick(values);
          const { shape, dtype } = a.host;
          const kind = random.next();
          if (kind < 0.25) push(random.pick(UNARY), [a]);
          else if (kind < 0.55) {
            const mates = values.filter(({ host }) => host.dtype === dtype && broadcastPair(host.shape, shape) !== undefined);
            const b = random.chance(0.7) ? random.pick(mates) : leaf(broadcastable(random, shape), dtype);
            const both = broadcastPair(shape, b.host.shape) as readonly number[];
            if (both.reduce((x, y) => x * y, 1) <= 4 * elements) push(random.pick(BINARY), [a, b]);
          } else if (kind < 0.75) push('cast', [a], { dtype: random.pick(DTYPES) });
          else if (kind < 0.82) push('transpose', [a], { perm: random.shuffled(shape.map((_, i) => i)) });
          else if (kind < 0.88) {
            const begin = shape.map((size) => random.below(size));
            push('slice', [a], { begin, size: shape.map((size, i) => random.between(1, size - (begin[i] as number))) });
          } else if (kind < 0.94) push(random.pick(['max', 'min']), [a], { axes: [random.below(shape.length)], keepDims: true });
          else if (kind < 0.97) push('concat', [a, a], { axis: random.below(shape.length) });
          else push('tile', [a], { reps: shape.map((_, i) => (i === 0 ? 2 : 1)) });
          if ((values.at(-1) as Value).host.data.length > 8 * elements) values.pop();
        }
        for (const [i, { host, tensor }] of random.shuffled(values).entries()) {
          if (i > 0 && random.chance(0.3)) continue;
          const got = tensor.dataSync();
          const at = got.findIndex((value, j) => !(value === host.data[j] || (Number.isNaN(value) && Number.isNaN(host.data[j]))));
          if (at >= 0 || got.length !== host.data.length) {
            expect.fail(
              `${host.dtype}[${host.shape}], element ${at}: ${got[at]}, not ${host.data[at]}; fused: ${fused}\n${told.join('\n')}`,
            );
          }
        }
      });
    } finally {
      system.fused = true;
    }
  };

  it.skipIf(skip !== undefined)(`random programs give what the reference gives, to the last bit${skip ? `: ${skip}` : ''}`, () => {
    fc.assert(
      fc.property(fc.integer(), fc.integer({ min: 3, max: 40 }), fc.boolean(), (seed, steps, fused) => play(seed, steps, 400, fused)),
      search(200, 16),
    );
  });

  it.skipIf(skip !== undefined)(`so do tensors that take several tiles${skip ? `: ${skip}` : ''}`, () => {
    fc.assert(
      fc.property(fc.integer(), fc.integer({ min: 3, max: 12 }), fc.boolean(), (seed, steps, fused) => play(seed, steps, 40_000, fused)),
      search(30, 17),
    );
  });

  it.skipIf(skip !== undefined)(`each of the 65,536 values, and each place where rounding turns${skip ? `: ${skip}` : ''}`, async () => {
    const expectSame = (got: ArrayLike<number>, want: readonly number[], what: string): void => {
      const at = want.findIndex((value, i) => !same(got[i] as number, value));
      if (at >= 0) expect.fail(`${what}: element ${at} is ${got[at]}, not ${want[at]}`);
    };
    for (let round = 0; round < 2; round++) {
      for (const dtype of ['float16', 'bfloat16'] as const) {
        const values = ALL_BITS.map((bits) => valueOfBits(bits, dtype));
        const points = turningPoints(dtype);
        const rounded = points.map((x) => nearest(x, dtype));
        engine.tidy(() => {
          const all = engine.fromHost(Uint16Array.from(ALL_BITS), [ALL_BITS.length], dtype);
          const wide = all.cast('float32');
          expectSame(wide.dataSync(), values, `${dtype} to float32`);
          expectSame(wide.cast(dtype).dataSync(), values, `${dtype} to float32 and back`);
          const exact = engine.fromHost(points, [points.length]);
          expectSame(exact.cast(dtype).dataSync(), rounded, `float32 to ${dtype}`);
          // On the way from one operation to another.
          expectSame(exact.cast(dtype).cast('float32').dataSync(), rounded, `float32 to ${dtype} and back`);
        });
      }
      // On a GPU the first round is interpreted, and the second compiled.
      if (round === 0 && system.device.kind === 'cuda') await new Promise((resolve) => setTimeout(resolve, 3000));
    }
  });

  it.skipIf(skip !== undefined)(`numbers and the bits of halves come in, float32 goes out${skip ? `: ${skip}` : ''}`, async () => {
    const bits = Uint16Array.of(0x3c00, 0xc000, 0x0001, 0x7c00, 0x7bff);
    const half = engine.fromHost(bits, [5], 'float16');
    expect(half.dtype).toBe('float16');
    expect(await half.data()).toEqual(Float32Array.of(1, -2, 2 ** -24, Number.POSITIVE_INFINITY, 65504));
    engine.tidy(() => {
      expect(half.mul(0.5).dataSync()).toEqual(Float32Array.of(0.5, -1, 0, Number.POSITIVE_INFINITY, 32752));
      const one = engine.fromHost(Uint16Array.of(0x3f80), [], 'bfloat16');
      expect(one.add(0.1).dataSync()).toEqual(Float32Array.of(1.1015625));
      // A sum is of float32, and rounded once: 4,096 ones, of which each addition in float16 past 2,048 would be lost.
      const ones = engine.fromHost(new Float32Array(4096).fill(1), [4096], 'float16');
      expect(ones.sum().dataSync()[0]).toBe(4096);
      expect(ones.mean().dtype).toBe('float16');
    });
    half.dispose();
  });
});
