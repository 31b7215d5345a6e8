import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { GpuosError } from '../errors.ts';
import { init, type System, type SystemOptions } from '../runtime/system.ts';
import { type Engine, engineOf } from './engine.ts';
import type { Tensor } from './tensor.ts';

let system: System;
let engine: Engine;
async function start(options: SystemOptions): Promise<void> {
  await system?.shutdown();
  system = init({ workers: 1, memoryMib: 64, ...options });
  engine = engineOf(system);
}
beforeEach(() => start({}));
afterEach(() => system.shutdown());

const code = (run: () => unknown): string | undefined => {
  try {
    run();
  } catch (error) {
    return error instanceof GpuosError ? error.code : `not a GpuosError: ${String(error)}`;
  }
  return undefined;
};
const rejection = async (promise: Promise<unknown>): Promise<GpuosError | undefined> =>
  promise.then(
    () => undefined,
    (error) => {
      if (!(error instanceof GpuosError)) throw error;
      return error;
    },
  );
const floats = (...values: number[]): Tensor => engine.fromHost(values, [values.length]);
const ints = (...values: number[]): Tensor => engine.fromHost(values, [values.length], 'int32');
const list = (tensor: Tensor): number[] => Array.from(tensor.dataSync());

describe('for a framework that takes long to record', () => {
  it('much element-wise work is submitted while it records on, and little is not', () => {
    const framework = engine.forFramework();
    const record = (size: number): { flushes: number; values: number[] } => {
      const x = framework.fromHost(new Float32Array(size).fill(1), [size], 'float32');
      const before = engine.counters.flushes;
      const made: Tensor[] = [x];
      for (let i = 0; i < 100; i++) made.push(framework.binary('add', made[i] as Tensor, x));
      const { flushes } = engine.counters;
      const values = [100, 60, 1].map((i) => (made[i] as Tensor).dataSync()[size - 1] as number);
      for (const tensor of made) tensor.dispose();
      return { flushes: flushes - before, values };
    };
    expect(record(64)).toEqual({ flushes: 0, values: [101, 61, 2] });
    const large = record(16_384);
    expect(large.values).toEqual([101, 61, 2]);
    expect(large.flushes).toBeGreaterThanOrEqual(2);
    // Parts stay large enough that fusion is worth it, however large the tensors are.
    expect(record(400_000).flushes).toBeLessThanOrEqual(4);
  });

  it('other callers of the same engine are not cut', () => {
    engine.forFramework();
    const x = engine.fromHost(new Float32Array(16_384).fill(1), [16_384]);
    for (const fused of [true, false]) {
      system.fused = fused;
      const before = engine.counters.flushes;
      const result = engine.tidy(() => {
        let y = x;
        for (let i = 0; i < 100; i++) y = y.add(x);
        return y;
      });
      expect(engine.counters.flushes - before).toBe(0);
      expect(result.dataSync()[5]).toBe(101);
      result.dispose();
    }
    system.fused = true;
  });

  it('its tensors belong to no scope', () => {
    const framework = engine.forFramework();
    const made = engine.tidy(() => {
      const tensor = framework.fromHost(new Float32Array([1, 2]), [2], 'float32');
      return { values: () => list(framework.unary('neg', tensor)) };
    });
    expect(made.values()).toEqual([-1, -2]);
  });
});

describe('an operation', () => {
  it('is recorded without a look at the device, which takes longer', () => {
    const x = floats(1, -2);
    const looks = vi.spyOn(system.device, 'lost', 'get');
    const y = x.add(x).mul(2).relu().neg();
    expect(looks).not.toHaveBeenCalled();
    looks.mockRestore();
    expect(list(y)).toEqual([-4, -0]);
  });
});

describe('attributes', () => {
  it('that differ at every call are forgotten in the end, and stay right', () => {
    const x = ints(...Array.from({ length: 16 }, (_, i) => i));
    const first = x.slice([3], [2]).neg();
    expect(list(first)).toEqual([-3, -4]);
    for (let i = 0; i < 70_000; i++) x.apply('one-hot', [], { depth: 1, on: i, off: 0 }).dispose();
    expect(list(x.slice([3], [2]).neg())).toEqual([-3, -4]);
    expect(list(x.apply('one-hot', [], { depth: 1, on: 5, off: 2 }))[0]).toBe(5);
  });
});

describe('tensors of host values', () => {
  it('hold them in their dtype, one value as well as many', () => {
    for (const pad of [[], [0]]) {
      const make = (value: unknown, dtype: 'float32' | 'int32' | 'bool') => {
        const values = [value as number, ...pad];
        return [
          list(engine.fromHost(values, [values.length], dtype))[0],
          list(engine.fromHost(values, [values.length], dtype).apply('cast', [], { dtype: 'float32' }))[0],
        ];
      };
      expect(make(0.1, 'float32')).toEqual([Math.fround(0.1), Math.fround(0.1)]);
      expect(make(2 ** 31, 'int32')).toEqual([-(2 ** 31), -(2 ** 31)]);
      expect(make(2.9, 'int32')).toEqual([2, 2]);
      for (const truth of [true, 1, 0.5, -3, 256, Number.NaN]) expect(make(truth, 'bool'), String(truth)).toEqual([1, 1]);
      for (const untruth of [false, 0, -0]) expect(make(untruth, 'bool')).toEqual([0, 0]);
    }
  });

  it('refuse what is no number, in lists and as operands', () => {
    const bad = (values: unknown): string | undefined => code(() => engine.fromHost(values as number[], [2]));
    for (const values of [
      [
        [1, 2],
        [3, 4],
      ],
      ['a', 'b'],
      [1, undefined],
      [null, 1],
      null,
      undefined,
      5,
      'ab',
    ])
      expect(bad(values), JSON.stringify(values)).toBe('GPUOS_DTYPE_MISMATCH');
    for (const value of [0.5, Number.NaN, 1e10, Number.POSITIVE_INFINITY])
      expect(
        code(() => ints(10, 20).mul(value)),
        String(value),
      ).toBe('GPUOS_DTYPE_MISMATCH');
    expect(list(ints(10, 20).mul(-2))).toEqual([-20, -40]);
    for (const other of ['x', undefined, null, {}]) expect(code(() => floats(1, 2).add(other as never))).toBe('GPUOS_DTYPE_MISMATCH');
    expect(code(() => engine.tidy(1 as never))).toBe('GPUOS_BAD_OPTION');
  });

  it('are of no use after shutdown', async () => {
    const x = floats(1, 2);
    await system.shutdown();
    expect(code(() => x.add(1))).toBe('GPUOS_SHUT_DOWN');
    expect(code(() => x.neg())).toBe('GPUOS_SHUT_DOWN');
  });

  it('refuse what is not a shape, a count or a dtype', () => {
    expect(code(() => engine.fromHost([1], [Number.NaN]))).toBe('GPUOS_BAD_SHAPE');
    expect(code(() => engine.fromHost([1], [-1]))).toBe('GPUOS_BAD_SHAPE');
    expect(code(() => engine.fromHost([1], [1.5]))).toBe('GPUOS_BAD_SHAPE');
    expect(code(() => engine.fromHost([1], 'no' as never))).toBe('GPUOS_BAD_SHAPE');
    expect(code(() => engine.fromHost([1, 2], [3]))).toBe('GPUOS_SHAPE_MISMATCH');
    expect(code(() => engine.fromHost([1, 2], [2], 'float64' as never))).toBe('GPUOS_DTYPE_MISMATCH');
    expect(code(() => engine.fromHost([1], [], 'string' as never))).toBe('GPUOS_DTYPE_MISMATCH');
  });

  it('do not see later changes of the arrays that they were made from', () => {
    const values = new Float32Array([1, 2, 3]);
    const shape = [3];
    const tensor = engine.fromHost(values, shape);
    values.fill(9);
    shape[0] = 7;
    expect(tensor.shape).toEqual([3]);
    expect(list(tensor)).toEqual([1, 2, 3]);
  });
});

describe('recording', () => {
  it('takes attributes as they are at the call', () => {
    const x = engine.fromHost([0, 1, 2, 3, 4, 5], [2, 3]);
    const expected = list(x.neg().transpose([1, 0]));
    const perm = [1, 0];
    const turned = x.exp().log().neg().transpose(perm);
    const summed = x.neg().sum(perm);
    perm[0] = 0;
    perm[1] = 1;
    for (const [i, value] of list(turned).entries()) expect(value).toBeCloseTo(expected[i]!, 4);
    expect(list(summed)).toEqual([-15]);
  });

  it('refuses at the call what cannot be right, and records nothing of it', () => {
    const [x, i] = [engine.fromHost([1, 2, 3, 4, 5, 6], [2, 3]), ints(1, 2)];
    const used = system.heap.usedBytes;
    expect(code(() => x.add(floats(1, 2)))).toBe('GPUOS_SHAPE_MISMATCH');
    expect(code(() => x.add(i))).toBe('GPUOS_DTYPE_MISMATCH');
    expect(code(() => i.div(i))).toBe('GPUOS_DTYPE_MISMATCH');
    expect(code(() => i.exp())).toBe('GPUOS_DTYPE_MISMATCH');
    expect(code(() => engine.unary('logical-not', x))).toBe('GPUOS_DTYPE_MISMATCH');
    expect(code(() => x.matmul(x))).toBe('GPUOS_SHAPE_MISMATCH');
    expect(code(() => x.sum([2]))).toBe('GPUOS_BAD_AXIS');
    expect(code(() => x.sum([-3]))).toBe('GPUOS_BAD_AXIS');
    expect(code(() => x.sum([0, -2]))).toBe('GPUOS_BAD_AXIS');
    expect(code(() => x.softmax(2))).toBe('GPUOS_BAD_AXIS');
    expect(code(() => x.transpose([0]))).toBe('GPUOS_BAD_AXIS');
    expect(code(() => x.sum([Number.NaN]))).toBe('GPUOS_BAD_ATTRIBUTE');
    expect(code(() => x.reshape([Number.NaN]))).toBe('GPUOS_BAD_SHAPE');
    expect(code(() => x.reshape([4]))).toBe('GPUOS_SHAPE_MISMATCH');
    expect(code(() => x.slice([0, 0], [3, 1]))).toBe('GPUOS_BAD_ATTRIBUTE');
    expect(code(() => x.apply('sum', [], { axis: 1 }))).toBe('GPUOS_BAD_ATTRIBUTE');
    expect(code(() => x.apply('summ'))).toBe('GPUOS_UNKNOWN_OPERATOR');
    expect(code(() => x.apply('add'))).toBe('GPUOS_SHAPE_MISMATCH');
    expect(code(() => x.apply('top-k', [], { k: 4 }))).toBe('GPUOS_BAD_ATTRIBUTE');
    expect(code(() => x.cast('complex' as never))).toBe('GPUOS_BAD_ATTRIBUTE');
    const before = engine.counters.tasks;
    engine.flush();
    expect(engine.counters.tasks).toBe(before);
    expect(system.heap.usedBytes - used).toBeLessThanOrEqual(512);
    expect(list(x.add(1))).toEqual([2, 3, 4, 5, 6, 7]);
  });

  it('refuses disposed tensors and those of another system', async () => {
    const x = floats(1, 2);
    x.dispose();
    x.dispose();
    expect(x.disposed).toBe(true);
    for (const use of [() => x.neg(), () => x.add(1), () => floats(1, 2).add(x), () => x.dataSync(), () => x.apply('concat', [])]) {
      expect(code(use)).toBe('GPUOS_TENSOR_DISPOSED');
    }
    expect((await rejection(x.data()))?.code).toBe('GPUOS_TENSOR_DISPOSED');
    const scalar = engine.scalar(1);
    scalar.dispose();
    expect(code(() => scalar.dataSync())).toBe('GPUOS_TENSOR_DISPOSED');

    const y = floats(1, 2);
    await start({});
    expect(code(() => floats(1, 2).add(y))).toBe('GPUOS_SHUT_DOWN');
  });
});

describe('tidy', () => {
  it('frees what is made in it but what it returns, however deep', () => {
    const before = system.heap.usedBytes;
    const x = engine.fromHost(new Float32Array(1000), [1000]);
    const kept = engine.tidy(() => {
      const a = x.add(1);
      const b = engine.tidy(() => ({ list: [a.mul(2), 'text'], rest: null }));
      a.neg().dataSync();
      return b;
    });
    expect((kept.list[0] as Tensor).dataSync()[0]).toBe(2);
    x.dispose();
    (kept.list[0] as Tensor).dispose();
    expect(system.heap.usedBytes).toBe(before);
  });

  it('frees everything if it throws, and refuses a promise', () => {
    const before = system.heap.usedBytes;
    expect(() =>
      engine.tidy(() => {
        engine.fromHost(new Float32Array(1000), [1000]).neg().dataSync();
        throw new Error('mine');
      }),
    ).toThrow('mine');
    expect(code(() => engine.tidy(async () => floats(1, 2)))).toBe('GPUOS_BAD_OPTION');
    expect(system.heap.usedBytes).toBe(before);
  });
});

describe('reading', () => {
  it('gives the values though the tensor is disposed of meanwhile', async () => {
    const y = floats(1, 2, 3).mul(2);
    const data = y.data();
    y.dispose();
    expect([...(await data)]).toEqual([2, 4, 6]);
    const view = engine.fromHost([1, 2, 3, 4], [2, 2]).transpose();
    const turned = view.data();
    view.dispose();
    expect([...(await turned)]).toEqual([1, 3, 2, 4]);
  });

  it('sees a system that shuts down', async () => {
    const [x, y] = [floats(1, 2), engine.scalar(3)];
    const recorded = x.neg();
    await system.shutdown();
    expect((await rejection(x.data()))?.code).toBe('GPUOS_SHUT_DOWN');
    expect(code(() => recorded.dataSync())).toBe('GPUOS_SHUT_DOWN');
    expect(code(() => floats(1, 2))).toBe('GPUOS_SHUT_DOWN');
    expect(code(() => x.apply('neg'))).toBe('GPUOS_SHUT_DOWN');
    expect(code(() => engine.flush())).toBe('GPUOS_SHUT_DOWN');
    expect((await rejection(engine.sync()))?.code).toBe('GPUOS_SHUT_DOWN');
    expect(code(() => y.dataSync())).toBe('GPUOS_SHUT_DOWN');
  });
});

describe('a result that becomes garbage', () => {
  it('is freed when another computation has run', async () => {
    await start({ memoryMib: 64 });
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    const x = engine.fromHost(new Float32Array(5000), [5000]);
    const before = system.heap.usedBytes;
    const compute = (): number => x.add(1).dataSync()[0] as number;
    expect(compute()).toBe(1);
    const last = x.mul(2);
    last.dataSync();
    for (let i = 0; i < 100 && system.heap.usedBytes - before > 30_000; i++) {
      collect();
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    expect(system.heap.usedBytes - before).toBeLessThan(30_000);
    last.dispose();
    expect(system.heap.usedBytes).toBe(before);
  });
});

describe('out of memory', () => {
  const MIB = 2 ** 20 / 4;

  it('in the middle of a graph: nothing is lost, and all goes on when something is freed', async () => {
    await start({ memoryMib: 64 });
    const before = system.heap.usedBytes;
    const big = engine.fromHost(new Float32Array(8 * MIB).fill(1), [8 * MIB]);
    const small = floats(1, 2, 3);
    const unrelated = small.mul(2);
    const results = Array.from({ length: 8 }, (_, i) => big.add(i));
    const failure = await rejection(engine.sync());
    expect(failure?.code).toBe('GPUOS_OUT_OF_MEMORY');
    expect(failure?.message).toMatch(/MiB/);
    // What does not need that much works, also what was recorded with it.
    expect(list(unrelated)).toEqual([2, 4, 6]);
    expect(list(small.add(1))).toEqual([2, 3, 4]);
    expect(results[3]!.dataSync()[0]).toBe(4);
    expect((await rejection(engine.sync()))?.code).toBe('GPUOS_OUT_OF_MEMORY');
    for (const result of results.splice(2)) result.dispose();
    await engine.sync();
    expect(results.map((result) => result.dataSync()[5])).toEqual([1, 2]);
    for (const tensor of [big, small, unrelated, ...results]) tensor.dispose();
    await engine.settled();
    // small.add(1) was not kept by anyone, and is freed as garbage.
    expect(system.heap.usedBytes - before).toBeLessThanOrEqual(256);
  });

  it('with fusion off, and for host values', async () => {
    await start({ memoryMib: 64, fuse: false });
    const big = engine.fromHost(new Float32Array(8 * MIB), [8 * MIB]);
    const made: Tensor[] = [];
    for (let i = 0; i < 9; i++) made.push(big.neg());
    expect(code(() => engine.flush())).toBe('GPUOS_OUT_OF_MEMORY');
    expect(code(() => engine.fromHost(new Float32Array(40 * MIB), [40 * MIB]))).toBe('GPUOS_OUT_OF_MEMORY');
    expect(list(floats(1, 2).add(1))).toEqual([2, 3]);
    for (const tensor of made) tensor.dispose();
    expect(big.neg().dataSync().length).toBe(8 * MIB);
    await engine.sync();
  });
});

describe('a task that fails', () => {
  const failing = (): Tensor => floats(1, 2, 3).apply('gather', [ints(0, 7)]);

  it('rejects its reader with its error and those of its dependents with GPUOS_DEPENDENCY_FAILED, and nothing else', async () => {
    const x = floats(1, 2, 3);
    const bad = failing();
    const dependent = bad.add(1);
    const further = dependent
      .exp()
      .reshape([2, 1])
      .matmul(engine.fromHost([1, 2], [1, 2]));
    const unrelated = x.add(1);
    const [first, second, third, fourth] = await Promise.all(
      [bad, dependent, further].map((tensor) => rejection(tensor.data())).concat(rejection(unrelated.data())),
    );
    expect(first?.code).toBe('GPUOS_INDEX_OUT_OF_RANGE');
    expect(first?.message).toMatch(/out of range/);
    expect(second?.code).toBe('GPUOS_DEPENDENCY_FAILED');
    expect(third?.code).toBe('GPUOS_DEPENDENCY_FAILED');
    let root: unknown = third;
    while (root instanceof Error && root.cause !== undefined) root = root.cause;
    expect(root instanceof GpuosError && root.code).toBe('GPUOS_INDEX_OUT_OF_RANGE');
    expect(fourth).toBeUndefined();
    expect(list(unrelated)).toEqual([2, 3, 4]);
    // Asked again, it says the same; what is made of it later fails too, and what is recorded beside that does not.
    expect(code(() => bad.dataSync())).toBe('GPUOS_INDEX_OUT_OF_RANGE');
    const late = bad.mul(2);
    const beside = x.mul(2);
    const view = bad.reshape([2, 1]);
    expect(code(() => late.dataSync())).toBe('GPUOS_DEPENDENCY_FAILED');
    expect(list(beside)).toEqual([2, 4, 6]);
    expect(code(() => view.dataSync())).toBe('GPUOS_INDEX_OUT_OF_RANGE');
    expect(code(() => engine.apply('concat', [late, x, bad])[0]!.dataSync())).toBe('GPUOS_DEPENDENCY_FAILED');
  });

  it('rejects sync, once', async () => {
    const bad = failing();
    expect((await rejection(engine.sync()))?.code).toBe('GPUOS_INDEX_OUT_OF_RANGE');
    expect(await rejection(engine.sync())).toBeUndefined();
    bad.dispose();
    expect(list(floats(1, 2).neg())).toEqual([-1, -2]);
  });

  it('is passed on by every one of many producers, known or still on their way', async () => {
    const x = floats(1, 2, 3);
    for (const wait of [false, true]) {
      for (let place = 0; place < 9; place++) {
        const parts = Array.from({ length: 9 }, (_, i) => x.apply('gather', [ints(0, i === place ? 99 : 1)]));
        for (const part of parts) {
          engine.flush();
          if (wait) await rejection(part.data());
        }
        const all = engine.apply('concat', parts)[0]!;
        expect(
          code(() => all.dataSync()),
          `producer ${place}, ${wait ? 'known' : 'on its way'}`,
        ).toBe('GPUOS_DEPENDENCY_FAILED');
      }
    }
  });

  it('also where the ring is so small that it has failed before its dependents are written', async () => {
    await start({ ring: 2 });
    const x = engine.fromHost(new Float32Array(64).fill(1), [8, 8]);
    const bad = x.apply('gather', [ints(0, 99)]);
    let y = bad;
    for (let i = 0; i < 12; i++) y = y.matmul(x);
    let good = x;
    for (let i = 0; i < 12; i++) good = good.apply('cumsum', [], { axis: 0 });
    expect((await rejection(y.data()))?.code).toBe('GPUOS_DEPENDENCY_FAILED');
    expect(good.dataSync()[0]).toBe(1);
  });

  it('frees all memory in the end', async () => {
    const before = system.heap.usedBytes;
    engine.tidy(() => {
      const bad = failing();
      const late = bad.add(1).softmax();
      expect(code(() => late.dataSync())).toBe('GPUOS_DEPENDENCY_FAILED');
      expect(code(() => late.mul(2).dataSync())).toBe('GPUOS_DEPENDENCY_FAILED');
    });
    await engine.settled();
    expect(system.heap.usedBytes).toBe(before);
  });
});
