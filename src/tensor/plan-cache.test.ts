import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import type { DType } from '../ops/define.ts';
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

const ramp = (shape: readonly number[], dtype: DType = 'float32'): Tensor =>
  engine.fromHost(
    Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, i) => (i % 7) - 3),
    shape,
    dtype,
  );

/** Plans and kernels that a computation adds to those that are there. */
function made(compute: () => Tensor): { plans: number; kernels: number; values: number[] } {
  engine.flush();
  const [plans, kernels] = [engine.counters.plans, system.operators.counters.injections];
  // -0 is 0 here.
  const values = engine.tidy(() => Array.from(compute().dataSync(), (value) => value + 0));
  return { plans: engine.counters.plans - plans, kernels: system.operators.counters.injections - kernels, values };
}

/** The second of two computations, once plans for the first are there. */
const second = (first: () => Tensor, other: () => Tensor) => {
  made(first);
  return made(other);
};

describe('a plan serves every computation of the same form', () => {
  const compute = (x: Tensor, y: Tensor): Tensor => x.mul(y).sum([1], true).sub(x).exp();

  it('on other tensors of the same shapes', () => {
    expect(
      second(
        () => compute(ramp([3, 8]), ramp([3, 8])),
        () => compute(ramp([3, 8]).neg().neg(), ramp([3, 8])),
      ),
    ).toMatchObject({ plans: 1 });
    const result = second(
      () => compute(ramp([4, 8]), ramp([4, 8])),
      () => compute(ramp([4, 8]), ramp([4, 8])),
    );
    expect(result).toMatchObject({ plans: 0, kernels: 0 });
  });

  it('with other scalars, whose values are parameters', () => {
    const results = [0.5, 2, -1, Number.NaN, Number.POSITIVE_INFINITY].map((factor, i) => {
      const { plans, kernels, values } = made(() => ramp([8]).mul(factor).add(engine.scalar(i)));
      if (i > 0) expect({ plans, kernels }, `factor ${factor}`).toEqual({ plans: 0, kernels: 0 });
      return values;
    });
    expect(results[1]).toEqual([-5, -3, -1, 1, 3, 5, 7, -5]);
    expect(results[2]).toEqual([5, 4, 3, 2, 1, 0, -1, 5]);
    expect(results[3]!.every(Number.isNaN)).toBe(true);
  });

  it('wherever a view begins', () => {
    const part = (row: number) => ramp([6, 4]).slice([row, 0], [2, 4]).neg();
    expect(
      second(
        () => part(0),
        () => part(3),
      ),
    ).toMatchObject({ plans: 0, values: [-2, -3, 3, 2, 1, 0, -1, -2] });
  });
});

describe('another form takes another plan', () => {
  const x = () => ramp([2, 6]);
  it.each<[string, () => Tensor, () => Tensor, number]>(
    [
      ['other shapes, but the same kernel', () => ramp([2, 6]).neg().exp(), () => ramp([5, 7]).neg().exp(), 0],
      [
        'other shapes of a reduction, but the same kernel',
        () => ramp([2, 6]).apply('abs').sum([1]),
        () => ramp([3, 10]).apply('abs').sum([1]),
        0,
      ],
      ['another dtype', () => ramp([2, 6]).neg().square(), () => ramp([2, 6], 'int32').neg().square(), 1],
      ['another operation', () => x().relu().apply('sin'), () => x().relu().apply('cos'), 1],
      ['other attributes', () => x().tanh().sum([0]), () => x().tanh().sum([1]), 1],
      ['a constant that is part of the operator', () => x().apply('clip', [], { min: -1 }), () => x().apply('clip', [], { min: -2 }), 1],
      ['a zero of the other sign', () => x().apply('clip', [], { min: 0 }), () => x().apply('clip', [], { min: -0 }), 1],
      ['operands in the other order', () => x().sub(ramp([2, 6]).exp()), () => ramp([2, 6]).exp().sub(x()), 1],
      [
        'one operand twice',
        () => x().apply('atan2', [x()]),
        () => {
          const a = x();
          return a.apply('atan2', [a]);
        },
        1,
      ],
      ['strides', () => ramp([6, 2]).apply('cosh'), () => ramp([2, 6]).transpose().apply('cosh'), 1],
    ].map(([name, a, b, kernels]) => [name, a, b, kernels] as [string, () => Tensor, () => Tensor, number]),
  )('%s', (_, first, other, kernels) => {
    const result = second(first, other);
    expect(result.plans).toBeGreaterThan(0);
    expect(result.kernels).toBeLessThanOrEqual(kernels);
  });

  it('a value that the caller keeps has to be written', () => {
    const a = ramp([9]);
    const form = (keep: boolean) => {
      const b = a.neg();
      const c = b.exp();
      if (!keep) b.dispose();
      const data = c.dataSync();
      c.dispose();
      const kept = keep ? Array.from(b.dataSync()) : [];
      b.dispose();
      return [Array.from(data), kept] as const;
    };
    const [dropped] = form(false);
    const [data, kept] = form(true);
    expect(data).toEqual(dropped);
    expect(kept).toEqual([3, 2, 1, 0, -1, -2, -3, 3, 2].map((value) => value || -0));
  });

  it('fused and not fused', () => {
    const run = () => ramp([11]).neg().exp().relu();
    made(run);
    system.fused = false;
    try {
      const before = engine.counters.tasks;
      made(run);
      expect(engine.counters.tasks - before).toBe(3);
    } finally {
      system.fused = true;
    }
    const before = engine.counters.tasks;
    expect(made(run).plans).toBe(0);
    expect(engine.counters.tasks - before).toBe(1);
  });
});

describe('a structure serves every sizes of the same form', () => {
  /** Structures that the second computation adds. */
  const added = (first: () => Tensor, other: () => Tensor): number => {
    made(first);
    const before = engine.counters.structures;
    expect(made(other).plans).toBeGreaterThan(0);
    return engine.counters.structures - before;
  };
  const norm = (rows: number, columns: number) => () => {
    const x = ramp([rows, columns]);
    return x
      .mul(ramp([columns]))
      .softmax()
      .add(x.sum([1], true))
      .apply('erf');
  };
  const heads = (batch: number, length: number, count: number, size: number) => () => {
    const split = ramp([batch, length, count * size])
      .tanh()
      .reshape([batch, length, count, size]);
    const scores = split.transpose([0, 2, 1, 3]).mul(0.5).sum([3]).softmax();
    return scores.reshape([batch * count, length]).apply('atan');
  };
  const turned = (rows: number, columns: number) => () =>
    ramp([rows, columns])
      .transpose()
      .apply('cosh')
      .add(ramp([columns, rows]));
  const part = (length: number) => () =>
    ramp([length])
      .neg()
      .slice([2], [length - 4])
      .apply('sinh');

  it.each<[string, () => Tensor, () => Tensor]>([
    ['rows and columns', norm(3, 8), norm(90, 57)],
    ['dimensions that a reshape divides', heads(2, 9, 3, 8), heads(5, 31, 4, 16)],
    ['strides', turned(4, 9), turned(17, 6)],
    ['the part of a slice', part(20), part(501)],
  ])('%s', (_, first, other) => {
    expect(added(first, other)).toBe(0);
  });

  it.each<[string, () => Tensor, () => Tensor]>([
    ['a size of 1', norm(4, 9), norm(1, 9)],
    ['sizes that are equal', norm(5, 10), norm(7, 7)],
    ['a part that begins at the start', part(30), () => ramp([30]).neg().slice([0], [26]).apply('sinh')],
  ])('but not for %s', (_, first, other) => {
    expect(added(first, other)).toBe(1);
  });

  it('and what a reshape divides in no way that sizes tell is planned for itself', () => {
    const pairs = (a: number, b: number, c: number, d: number) => () => ramp([a, b]).tanh().reshape([c, d]).sum([1]).apply('asinh');
    expect(added(pairs(4, 6, 8, 3), pairs(8, 6, 16, 3))).toBe(1);
    expect(made(pairs(4, 6, 8, 3)).plans).toBe(0);
  });

  it('also one that has to let go of its kernels, as the table is full, in the middle of a plan', () => {
    const compute = (length: number) => () => {
      const x = ramp([length]).apply('softplus');
      return x
        .add(
          x
            .reshape([1, length])
            .matmul(ramp([length, length]))
            .reshape([length])
            .apply('erf')
            .sum(),
        )
        .apply('log1p');
    };
    const expected = made(compute(7)).values;
    const inject = vi.spyOn(system.operators, 'inject').mockImplementation((...given) => {
      system.operators.onFull?.();
      inject.mockRestore();
      return system.operators.inject(...given);
    });
    try {
      // Each time half of what is kept goes.
      for (let i = 0; i < 12; i++) system.operators.onFull?.();
      expect(made(compute(7)).values).toEqual(expected);
    } finally {
      inject.mockRestore();
    }
    expect(made(compute(7))).toMatchObject({ plans: 0, kernels: 0, values: expected });
    expect(made(compute(9))).toMatchObject({ plans: 1, kernels: 0 });
  });
});

describe('what followed the last time', () => {
  const forms = [3, 5, 7].map((length) => () => ramp([length]).apply('log1p').add(length).apply('sign'));
  const expected = (): number[][] => forms.map((form) => made(form).values);

  it('is looked at first, and another found where another follows', () => {
    const values = expected();
    for (const i of [0, 1, 0, 2, 2, 1, 1, 0, 1, 2, 0, 1]) {
      expect(made(forms[i] as () => Tensor)).toEqual({ plans: 0, kernels: 0, values: values[i] });
    }
    // The same form, not fused, is another.
    system.fused = false;
    const apart = forms.map((form) => made(form));
    system.fused = true;
    for (const [i, { plans, values: same }] of apart.entries()) expect([plans, same]).toEqual([1, values[i]]);
    expect(forms.map((form) => made(form).plans)).toEqual([0, 0, 0]);
  });

  it('is not used once it has gone', () => {
    const values = expected();
    expect(expected()).toEqual(values);
    for (let i = 0; i < 14; i++) system.operators.onFull?.();
    expect(forms.map((form) => made(form)).map(({ plans, values: same }) => [plans, same])).toEqual(values.map((same) => [1, same]));
  });
});

describe('a program whose shapes never repeat', () => {
  it('goes on past the number of plans that are kept', () => {
    const x = ramp([3000]);
    for (let size = 1; size <= 2600; size += 1) {
      engine.tidy(() => {
        const part = x.slice([0], [size]).neg();
        if (size % 400 === 0) expect(part.dataSync()[size - 1]).toBe(-(((size - 1) % 7) - 3 || 0));
        else engine.flush();
      });
    }
    expect(made(() => x.slice([0], [5]).neg()).values).toEqual([3, 2, 1, 0, -1]);
  }, 20_000);
});
