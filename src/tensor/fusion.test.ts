import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { referenceRun } from '../backends/reference/index.ts';
import { hostTensor } from '../ops/host-tensor.ts';
import { init, type System } from '../runtime/system.ts';
import { type Engine, engineOf } from './engine.ts';
import type { Tensor } from './tensor.ts';

let system: System;
let engine: Engine;
beforeAll(() => {
  system = init({ workers: 1, memoryMib: 64 });
  engine = engineOf(system);
});
afterAll(() => system.shutdown());

/** Tasks that evaluating `make()` takes. */
function tasks(make: () => Tensor): number {
  engine.flush();
  const before = engine.counters.tasks;
  const tensor = make();
  tensor.dataSync();
  tensor.dispose();
  return engine.counters.tasks - before;
}

const ramp = (...shape: number[]): Tensor =>
  engine.fromHost(
    Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, i) => ((i * 7) % 11) / 4 - 1),
    shape,
  );

describe('with fusion off', () => {
  /** 100 operations on 16,384 elements, with operands that all live. */
  const chain = (x: Tensor, others: readonly Tensor[]): Tensor => {
    let y = x;
    for (let i = 0; i < 100; i++)
      y = i % 3 === 0 ? y.add(others[i % 4] as Tensor) : i % 3 === 1 ? y.mul(others[i % 4] as Tensor) : y.relu();
    return y;
  };

  it('a chain is one task an operation, gives the same values, and its intermediate values share memory', () => {
    const x = ramp(16_384);
    const others = [1, 2, 3, 4].map((factor) => ramp(16_384).mul(factor / 4));
    for (const other of others) other.dataSync();
    const fused = engine.tidy(() => chain(x, others));
    const expected = fused.dataSync();
    system.fused = false;
    try {
      const { heldBytes } = system.heap;
      expect(tasks(() => engine.tidy(() => chain(x, others)))).toBe(100);
      // Two buffers of 64 KiB where each value in its own would take 6.4 MB.
      expect(system.heap.heldBytes - heldBytes).toBeLessThan(3 * 65_536 + 65_536);
      const result = engine.tidy(() => chain(x, others));
      expect(result.dataSync()).toEqual(expected);
      result.dispose();
    } finally {
      system.fused = true;
      for (const tensor of [x, fused, ...others]) tensor.dispose();
    }
  });

  it('values that are still to be asked for keep memory of their own, in the middle of a run as well', () => {
    system.fused = false;
    try {
      const x = ramp(12_288);
      const kept: Tensor[] = [];
      let y = x;
      for (let i = 0; i < 40; i++) {
        y = i % 2 === 0 ? y.add(x) : y.mul(0.5);
        if (i % 7 === 3) kept.push(y);
      }
      y.dataSync();
      const again = x.dataSync().map((start) => {
        let value = start;
        for (let i = 0; i < 18; i++) value = Math.fround(i % 2 === 0 ? value + start : value * 0.5);
        return value;
      });
      expect((kept[2] as Tensor).dataSync()).toEqual(again);
      for (const tensor of [x, y, ...kept]) tensor.dispose();
    } finally {
      system.fused = true;
    }
  });
});

describe('what becomes one task', () => {
  it('a chain of 100 element-wise operations', () => {
    const x = ramp(64);
    const other = ramp(64);
    expect(
      tasks(() => {
        let y = x;
        for (let i = 0; i < 100; i++) y = i % 3 === 0 ? y.add(other) : i % 3 === 1 ? y.mul(0.5) : y.relu();
        return y;
      }),
    ).toBe(1);
  });

  it.each([
    ['softmax', 0, {}],
    ['log-softmax', 0, {}],
    ['layer-norm', 0, {}],
    ['layer-norm', 2, {}],
    ['rms-norm', 0, {}],
    ['rms-norm', 1, {}],
    ['log-sum-exp', 0, { axes: [-1], keepDims: true }],
    ['mean', 0, { axes: [-1] }],
  ])('%s with %i parameters', (name, parameters, attributes) => {
    const x = ramp(6, 10);
    const more = Array.from({ length: parameters }, () => ramp(10));
    expect(tasks(() => x.apply(name, more, attributes))).toBe(1);
  });

  it('a reduction with the operations before and after it', () => {
    const x = ramp(6, 10);
    const row = ramp(10);
    expect(tasks(() => x.mul(row).gelu().sum([1], true).sqrt().add(x).tanh())).toBe(1);
  });

  it('matmul, bias and activation in few', () => {
    const [a, b, bias] = [ramp(8, 16), ramp(16, 12), ramp(12)];
    expect(tasks(() => a.matmul(b, bias, { activation: 'gelu' }))).toBeLessThanOrEqual(2);
    expect(tasks(() => a.matmul(b, bias, { activation: 'gelu' }).apply('layer-norm', [bias, bias]))).toBeLessThanOrEqual(2);
  });

  it('views take no task of their own', () => {
    const x = ramp(6, 10);
    expect(
      tasks(() =>
        x
          .transpose()
          .slice([2, 1], [5, 4])
          .apply('reverse', [], { axes: [0] })
          .neg(),
      ),
    ).toBe(1);
    expect(tasks(() => x.neg().reshape([10, 6]).exp())).toBe(1);
  });

  it('not what has fusion off', () => {
    const x = ramp(64);
    system.fused = false;
    try {
      expect(tasks(() => x.add(1).mul(2).neg())).toBe(3);
    } finally {
      system.fused = true;
    }
  });
});

describe('what must not become one task', () => {
  const agree = (actual: Tensor, expected: ArrayLike<number>) => expect(Array.from(actual.dataSync())).toEqual(Array.from(expected));

  it('spaces that together have more dimensions than a kernel', () => {
    const count = 128;
    const values = Array.from({ length: count }, (_, i) => i);
    const turned = (shape: number[]) => engine.fromHost(values, shape).transpose();
    const host = (shape: number[]) => referenceRun('transpose', [hostTensor(shape, values)])[0]!;
    const [a, b] = [
      [2, 2, 2, 2, 2, 4],
      [4, 2, 2, 2, 2, 2],
    ];
    const sum = turned(a)
      .neg()
      .reshape([count])
      .add(turned(b).neg().reshape([count]));
    agree(
      sum,
      host(a).data.map((value, i) => -value - (host(b).data[i] as number)),
    );
  });

  it('a kernel and what it reads from memory', () => {
    // The second sum reads the first one's result, one value a row, from memory; sub then meets both.
    const x = engine.fromHost([1, 2, 3, 4], [1, 4]);
    const sum = x.sum([1]);
    agree(sum.sub(sum.mean()), [0]);
  });

  it('operations across one that both need: no cycle', () => {
    const x = ramp(4, 4);
    const a = x.neg();
    const c = a.matmul(x);
    const d = a.add(c);
    const reference = (name: string, ...inputs: Tensor[]) =>
      referenceRun(
        name,
        inputs.map((t) => ({ shape: t.shape, dtype: t.dtype, data: t.dataSync() })),
      )[0]!.data;
    agree(d, reference('add', a, c));
  });
});

describe('what a later flush needs', () => {
  it('values passed over in one flush are there for the next, with all they are made from', () => {
    const x = engine.fromHost([1, 2, 3], [3]);
    const [b, c] = engine.tidy(() => {
      const a = x.neg();
      const kept = a.exp();
      return [kept, kept.relu()];
    });
    expect(c!.dataSync().length).toBe(3);
    const expected = [-1, -2, -3].map((value) => Math.fround(Math.exp(value)));
    for (const [i, value] of b!.dataSync().entries()) expect(value).toBeCloseTo(expected[i]!, 6);
  });

  it('a composite may be cut by a full window', () => {
    const x = ramp(5, 8);
    const expected = x.apply('log-softmax').dataSync();
    for (let ahead = 1015; ahead < 1025; ahead++) {
      engine.tidy(() => {
        for (let i = 0; i < ahead; i++) x.neg();
        const result = x.apply('log-softmax');
        expect(result.dataSync(), `after ${ahead} operations`).toEqual(expected);
      });
    }
  });

  it('either output of an operator with two', () => {
    const x = engine.fromHost([3, 1, 2], [3]);
    for (const kept of [0, 1]) {
      const outputs = engine.apply('top-k', [x], { k: 2 });
      outputs[1 - kept]!.dispose();
      expect([...outputs[kept]!.dataSync()]).toEqual(kept === 0 ? [3, 2] : [0, 2]);
    }
    const [values, indices] = engine.apply('top-k', [x], { k: 2 });
    expect([...values!.dataSync(), ...indices!.dataSync()]).toEqual([3, 2, 0, 2]);
  });
});

describe('reductions of no elements', () => {
  it('give their identity to what follows, with operands that broadcast', () => {
    const empty = engine.fromHost([], [0, 3, 8]);
    const row = ramp(1, 8);
    const result = empty.sum([0]).sub(row);
    expect(result.shape).toEqual([3, 8]);
    expect(Array.from(result.dataSync())).toEqual(Array.from({ length: 24 }, (_, i) => 0 - (row.dataSync()[i % 8] as number)));
    expect(empty.max([0, 2]).dataSync()[2]).toBe(Number.NEGATIVE_INFINITY);
  });
});
