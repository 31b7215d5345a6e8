/**
 * Laws that tie operators to each other: what one operator does in one step, others do in several. They catch an error
 * of indexing that a few values by hand let through.
 */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Attributes, DType } from '../../ops/define.ts';
import { type HostTensor, hostTensor } from '../../ops/host-tensor.ts';
import { elementCount } from '../../ops/shape.ts';
import { referenceRun } from './index.ts';

function run(name: string, inputs: readonly HostTensor[], attributes: Attributes = {}): HostTensor {
  return referenceRun(name, inputs, attributes)[0] as HostTensor;
}

const size = fc.integer({ min: 0, max: 4 });
const shapes = (minLength: number, maxLength: number) => fc.array(size, { minLength, maxLength });

function tensorOf(shape: readonly number[], dtype: DType = 'float32'): fc.Arbitrary<HostTensor> {
  const count = elementCount(shape);
  const element = dtype === 'float32' ? fc.float({ min: -4, max: 4, noNaN: true }) : fc.integer({ min: -4, max: 4 });
  return fc.array(element, { minLength: count, maxLength: count }).map((values) => hostTensor(shape, values, dtype));
}

const anyTensor = shapes(0, 4).chain((shape) => tensorOf(shape));
const someTensor = shapes(1, 4).chain((shape) => tensorOf(shape));
const seeds = fc.array(fc.nat(1000), { minLength: 8, maxLength: 8 });

function expectSame(got: HostTensor, expected: HostTensor, tolerance = 0): void {
  expect(got.shape).toEqual(expected.shape);
  expect(got.dtype).toBe(expected.dtype);
  for (const [i, value] of expected.data.entries()) {
    const actual = got.data[i] as number;
    if (tolerance === 0)
      expect(actual === value || (Number.isNaN(actual) && Number.isNaN(value)), `element ${i}: ${actual}, ${value}`).toBe(true);
    else
      expect(Math.abs(actual - value), `element ${i}: ${actual}, ${value}`).toBeLessThanOrEqual(tolerance * Math.max(1, Math.abs(value)));
  }
}

/** A permutation of rank axes from random numbers. */
function permutation(rank: number, seed: readonly number[]): number[] {
  return Array.from({ length: rank }, (_, i) => i).sort((a, b) => (seed[a] as number) - (seed[b] as number) || a - b);
}

function scalar(value: number, dtype: DType = 'int32'): HostTensor {
  return hostTensor([], [value], dtype);
}

describe('views', () => {
  it('transpose is undone by the inverse permutation, and reverse by itself', () => {
    fc.assert(
      fc.property(anyTensor, seeds, (x, seed) => {
        const perm = permutation(x.shape.length, seed);
        const inverse = perm.map((_, axis) => perm.indexOf(axis));
        expectSame(run('transpose', [run('transpose', [x], { perm })], { perm: inverse }), x);
        expectSame(run('reverse', [run('reverse', [x])]), x);
      }),
    );
  });

  it('the two halves of a split, joined, are the whole', () => {
    fc.assert(
      fc.property(someTensor, seeds, (x, [a, b]) => {
        const axis = (a as number) % x.shape.length;
        const cut = (b as number) % ((x.shape[axis] as number) + 1);
        const begin = x.shape.map((_, i) => (i === axis ? cut : 0));
        const left = run('slice', [x], { begin: x.shape.map(() => 0), size: x.shape.map((full, i) => (i === axis ? cut : full)) });
        const right = run('slice', [x], { begin, size: x.shape.map(() => -1) });
        expectSame(run('concat', [left, right], { axis }), x);
      }),
    );
  });

  it('a strided slice is a gather on each axis', () => {
    fc.assert(
      fc.property(someTensor, seeds, (x, seed) => {
        const begin: number[] = [];
        const end: number[] = [];
        const steps: number[] = [];
        let expected = x;
        for (const [axis, full] of x.shape.entries()) {
          const step = [1, 2, -1, -2][(seed[axis] as number) % 4] as number;
          const first = full === 0 ? 0 : (seed[axis + 4] as number) % full;
          const stop = step > 0 ? full : -1;
          const picked: number[] = [];
          if (full > 0) for (let i = first; step > 0 ? i < stop : i > stop; i += step) picked.push(i);
          begin.push(first);
          end.push(full === 0 ? first : stop);
          steps.push(step);
          expected = run('gather', [expected, hostTensor([picked.length], picked, 'int32')], { axis });
        }
        expectSame(run('strided-slice', [x], { begin, end, strides: steps }), expected);
      }),
    );
  });

  it('squeeze undoes expand-dims', () => {
    fc.assert(
      fc.property(anyTensor, fc.nat(4), (x, seed) => {
        const axis = seed % (x.shape.length + 1);
        expectSame(run('squeeze', [run('expand-dims', [x], { axis })], { axes: [axis] }), x);
      }),
    );
  });
});

describe('indexing', () => {
  it('a slice takes away what pad has added', () => {
    fc.assert(
      fc.property(anyTensor, seeds, (x, seed) => {
        const paddings = x.shape.flatMap((_, i) => [(seed[i] as number) % 3, (seed[i + 4] as number) % 3]);
        const padded = run('pad', [x], { paddings, value: 7 });
        expectSame(run('slice', [padded], { begin: x.shape.map((_, i) => paddings[2 * i] as number), size: x.shape }), x);
        const added = elementCount(padded.shape) - elementCount(x.shape);
        expect(padded.data.filter((value) => value === 7).length).toBe(added + x.data.filter((value) => value === 7).length);
      }),
    );
  });

  it('tile is concat of copies', () => {
    fc.assert(
      fc.property(someTensor, seeds, (x, seed) => {
        const reps = x.shape.map((_, i) => 1 + ((seed[i] as number) % 3));
        const joined = reps.reduce((built, rep, axis) => run('concat', new Array(rep).fill(built), { axis }), x);
        expectSame(run('tile', [x], { reps }), joined);
      }),
    );
  });

  it('gather is one-hot times x, and gather-nd with one index an axis', () => {
    const sizes = fc.tuple(fc.integer({ min: 1, max: 5 }), size, size);
    const cases = sizes.chain(([rows, columns, picks]) =>
      fc.tuple(tensorOf([rows, columns]), fc.array(fc.nat(rows - 1), { minLength: picks, maxLength: picks })),
    );
    fc.assert(
      fc.property(cases, ([x, picks]) => {
        const indices = hostTensor([picks.length], picks, 'int32');
        const gathered = run('gather', [x, indices]);
        expectSame(gathered, run('matmul', [run('one-hot', [indices], { depth: x.shape[0] as number }), x]));
        expectSame(gathered, run('gather-nd', [x, run('expand-dims', [indices], { axis: 1 })]));
      }),
    );
  });

  it('batched gather is a gather of each batch', () => {
    const cases = fc
      .tuple(fc.integer({ min: 1, max: 3 }), fc.integer({ min: 1, max: 4 }), size, size)
      .chain(([batch, rows, columns, picks]) =>
        fc.tuple(
          tensorOf([batch, columns, rows]),
          fc
            .array(fc.nat(rows - 1), { minLength: batch * picks, maxLength: batch * picks })
            .map((values) => hostTensor([batch, picks], values, 'int32')),
        ),
      );
    fc.assert(
      fc.property(cases, ([x, indices]) => {
        const parts = Array.from({ length: x.shape[0] as number }, (_, n) =>
          run('gather', [run('gather', [x, scalar(n)]), run('gather', [indices, scalar(n)])], { axis: 1 }),
        ).map((part) => run('expand-dims', [part], { axis: 0 }));
        expectSame(run('gather', [x, indices], { axis: 2, batchDims: 1 }), run('concat', parts));
      }),
    );
  });

  it('scatter-nd is the transpose of one-hot times the updates, and its last writes are tensor-scatter-update', () => {
    const cases = fc
      .tuple(fc.integer({ min: 1, max: 5 }), size, size)
      .chain(([rows, columns, count]) =>
        fc.tuple(
          fc.constant(rows),
          tensorOf([count, columns], 'int32'),
          fc.array(fc.nat(rows - 1), { minLength: count, maxLength: count }),
        ),
      );
    fc.assert(
      fc.property(cases, ([rows, updates, places]) => {
        const columns = updates.shape[1] as number;
        const indices = hostTensor([places.length, 1], places, 'int32');
        const onehot = run('one-hot', [hostTensor([places.length], places, 'int32')], { depth: rows });
        const float = run('cast', [updates], { dtype: 'float32' });
        const sums = run('matmul', [onehot, float], { transposeA: true });
        expectSame(run('scatter-nd', [indices, updates], { shape: [rows, columns] }), run('cast', [sums], { dtype: 'int32' }));

        const base = run('fill', [], { shape: [rows, columns], value: 9, dtype: 'int32' });
        const written = run('tensor-scatter-update', [base, indices, updates]);
        for (let row = 0; row < rows; row++) {
          const last = places.lastIndexOf(row);
          const expected = last < 0 ? run('gather', [base, scalar(row)]) : run('gather', [updates, scalar(last)]);
          expectSame(run('gather', [written, scalar(row)]), expected);
        }
      }),
    );
  });

  it('cumsum is a product with a triangle of ones, in all four forms', () => {
    fc.assert(
      fc.property(
        fc.tuple(size, size).chain((shape) => tensorOf(shape, 'int32')),
        fc.boolean(),
        fc.boolean(),
        (x, exclusive, reverse) => {
          const n = x.shape[1] as number;
          const triangle = hostTensor(
            [n, n],
            Array.from({ length: n * n }, (_, flat) => {
              const [from, to] = [Math.floor(flat / n), flat % n];
              return Number((reverse ? from > to : from < to) || (!exclusive && from === to));
            }),
          );
          const product = run('matmul', [run('cast', [x], { dtype: 'float32' }), triangle]);
          expectSame(run('cumsum', [x], { axis: 1, exclusive, reverse }), run('cast', [product], { dtype: 'int32' }));
        },
      ),
    );
  });

  it('top-k in full sorts, its first is argmax, and its indices gather its values', () => {
    fc.assert(
      fc.property(
        fc.tuple(size, fc.integer({ min: 1, max: 6 })).chain((shape) => tensorOf(shape, 'int32')),
        (x) => {
          const k = x.shape[1] as number;
          const [values, indices] = referenceRun('top-k', [x], { k }) as [HostTensor, HostTensor];
          expectSame(run('gather', [x, indices], { axis: 1, batchDims: 1 }), values);
          expectSame(
            run('slice', [indices], { begin: [0, 0], size: [-1, 1] }),
            run('expand-dims', [run('argmax', [x], { axis: 1 })], { axis: 1 }),
          );
          for (let row = 0; row < (x.shape[0] as number); row++) {
            const sorted = Array.from(x.data.subarray(row * k, (row + 1) * k)).sort((a, b) => b - a);
            expect(Array.from(values.data.subarray(row * k, (row + 1) * k))).toEqual(sorted);
            expect(new Set(indices.data.subarray(row * k, (row + 1) * k)).size).toBe(k);
          }
        },
      ),
    );
  });
});

describe('reductions', () => {
  it('over several axes are reductions over one at a time, and over any order of the elements', () => {
    fc.assert(
      fc.property(
        shapes(1, 4).chain((shape) => tensorOf(shape, 'int32')),
        fc.constantFrom('sum', 'prod', 'max', 'min'),
        seeds,
        (x, name, seed) => {
          const perm = permutation(x.shape.length, seed);
          const axes = perm.slice(0, (seed[7] as number) % (x.shape.length + 1));
          const stepwise = axes.reduce((reduced, axis) => run(name, [reduced], { axes: [axis], keepDims: true }), x);
          expectSame(run(name, [x], { axes, keepDims: true }), stepwise);
          expectSame(run(name, [x]), run(name, [run('transpose', [x], { perm })]));
        },
      ),
    );
  });

  it('any is not all of the negation', () => {
    fc.assert(
      fc.property(shapes(0, 3), seeds, (shape, seed) => {
        const values = Array.from({ length: elementCount(shape) }, (_, i) => ((seed[i % 8] as number) + i * i) % 3 === 0);
        const x = hostTensor(shape, values, 'bool');
        expectSame(run('any', [x]), run('logical-not', [run('all', [run('logical-not', [x])])]));
      }),
    );
  });
});

describe('matrix products and attention', () => {
  const sizes = fc.tuple(size, size, size);

  it('take transposes, bias and activation as separate steps would', () => {
    const cases = sizes.chain(([m, k, n]) => fc.tuple(tensorOf([2, 1, m, k]), tensorOf([3, k, n]), tensorOf([n])));
    const activations = fc.constantFrom('none', 'relu', 'relu6', 'elu', 'sigmoid', 'tanh', 'gelu', 'gelu-tanh', 'silu');
    fc.assert(
      fc.property(cases, fc.boolean(), fc.boolean(), activations, ([a, b, bias], transposeA, transposeB, activation) => {
        const product = run('matmul', [a, b]);
        const left = transposeA ? run('transpose', [a], { perm: [0, 1, 3, 2] }) : a;
        const right = transposeB ? run('transpose', [b], { perm: [0, 2, 1] }) : b;
        expectSame(run('matmul', [left, right], { transposeA, transposeB }), product);
        const biased = run('add', [product, bias]);
        const expected = activation === 'none' ? biased : run(activation, [biased]);
        expectSame(run('matmul', [left, right, bias], { transposeA, transposeB, activation }), expected, 1e-5);
      }),
    );
  });

  it('the product is the sum over k of outer products', () => {
    fc.assert(
      fc.property(
        sizes.chain(([m, k, n]) => fc.tuple(tensorOf([m, k]), tensorOf([k, n]))),
        ([a, b]) => {
          const terms = run('mul', [run('expand-dims', [a], { axis: 2 }), run('expand-dims', [b], { axis: 0 })]);
          expectSame(run('matmul', [a, b]), run('sum', [terms], { axes: [1] }), 1e-5);
        },
      ),
    );
  });

  it('attention is softmax of the scaled product with the masks added, times v', () => {
    const heads = fc.tuple(fc.integer({ min: 1, max: 2 }), fc.integer({ min: 1, max: 3 }));
    const lengths = fc.tuple(fc.nat(4), fc.integer({ min: 1, max: 4 }), fc.integer({ min: 1, max: 4 }), fc.nat(3));
    const cases = fc.tuple(heads, lengths).chain(([[groups, each], [sq, more, d, dv]]) => {
      const sk = sq + more - 1 || 1;
      return fc.tuple(tensorOf([2, groups * each, sq, d]), tensorOf([2, groups, sk, d]), tensorOf([2, groups, sk, dv]), tensorOf([sq, sk]));
    });
    fc.assert(
      fc.property(cases, fc.boolean(), fc.boolean(), fc.constantFrom(undefined, 0.5), ([q, k, v, mask], masked, causal, scale) => {
        const each = (q.shape[1] as number) / (k.shape[1] as number);
        const [sq, d] = q.shape.slice(2) as [number, number];
        const sk = k.shape[2] as number;
        const spread = (x: HostTensor) => {
          const owner = Array.from({ length: q.shape[1] as number }, (_, head) => Math.floor(head / each));
          return run('gather', [x, hostTensor([owner.length], owner, 'int32')], { axis: 1 });
        };
        let logits = run('mul', [run('matmul', [q, spread(k)], { transposeB: true }), scalar(scale ?? 1 / Math.sqrt(d), 'float32')]);
        if (masked) logits = run('add', [logits, mask]);
        if (causal) {
          const hidden = Array.from({ length: sq * sk }, (_, flat) =>
            (flat % sk) - (sk - sq) > Math.floor(flat / sk) ? Number.NEGATIVE_INFINITY : 0,
          );
          logits = run('add', [logits, hostTensor([sq, sk], hidden)]);
        }
        const expected = run('matmul', [run('softmax', [logits]), spread(v)]);
        const inputs = masked ? [q, k, v, mask] : [q, k, v];
        expectSame(run('attention', inputs, scale === undefined ? { causal } : { causal, scale }), expected, 1e-5);
      }),
    );
  });

  it('one-token decode gives the last row of the causal whole', () => {
    const cases = fc.integer({ min: 1, max: 5 }).chain((s) => fc.tuple(tensorOf([s, 3]), tensorOf([s, 3]), tensorOf([s, 2])));
    fc.assert(
      fc.property(cases, ([q, k, v]) => {
        const last = (x: HostTensor) => run('slice', [x], { begin: [(q.shape[0] as number) - 1, 0], size: [1, -1] });
        expectSame(run('attention', [last(q), k, v], { causal: true }), last(run('attention', [q, k, v], { causal: true })));
      }),
    );
  });
});

describe('rotary and cache', () => {
  const angles = (s: number, half: number) => {
    const theta = hostTensor(
      [s, half],
      Float32Array.from({ length: s * half }, (_, i) => Math.floor(i / half) * 10 ** -(i % half)),
    );
    return [run('cos', [theta]), run('sin', [theta])] as const;
  };

  it('rotary keeps lengths, and the product of two rotated rows depends on their distance alone', () => {
    fc.assert(
      fc.property(tensorOf([1, 6]), tensorOf([1, 6]), fc.boolean(), (q, k, interleaved) => {
        const [cos, sin] = angles(6, 3);
        const rotated = (x: HostTensor) => run('rotary', [run('expand', [x], { shape: [6, 6] }), cos, sin], { interleaved });
        const products = run('matmul', [rotated(q), rotated(k)], { transposeB: true });
        for (let i = 1; i < 6; i++) {
          for (let j = 1; j < 6; j++) expect(products.data[i * 6 + j]).toBeCloseTo(products.data[(i - 1) * 6 + j - 1] as number, 3);
        }
        const norms = run('sum', [run('square', [rotated(q)])], { axes: [1] });
        for (const norm of norms.data) expect(norm).toBeCloseTo(norms.data[0] as number, 3);
      }),
    );
  });

  it('the two layouts of rotary differ by a permutation of the elements', () => {
    fc.assert(
      fc.property(tensorOf([2, 4, 6]), (x) => {
        const [cos, sin] = angles(4, 3);
        const toPairs = hostTensor([6], [0, 3, 1, 4, 2, 5], 'int32');
        const paired = run('gather', [x, toPairs], { axis: 2 });
        const expected = run('gather', [run('rotary', [x, cos, sin]), toPairs], { axis: 2 });
        expectSame(run('rotary', [paired, cos, sin], { interleaved: true }), expected);
      }),
    );
  });

  it('cache-append is cache-update at consecutive rows, and concat of three parts', () => {
    const cases = fc
      .tuple(size, fc.integer({ min: 0, max: 5 }), size)
      .chain(([t, extra, d]) => fc.tuple(tensorOf([2, t + extra, d]), tensorOf([2, t, d]), fc.nat(extra)));
    fc.assert(
      fc.property(cases, ([cache, update, position]) => {
        const t = update.shape[1] as number;
        const rows = Array.from({ length: t }, (_, i) => position + i);
        const appended = run('cache-append', [cache, update, scalar(position)]);
        expectSame(appended, run('cache-update', [cache, update, hostTensor([t], rows, 'int32')]));
        const before = run('slice', [cache], { begin: [0, 0, 0], size: [-1, position, -1] });
        const after = run('slice', [cache], { begin: [0, position + t, 0], size: [-1, -1, -1] });
        expectSame(appended, run('concat', [before, update, after], { axis: 1 }));
      }),
    );
  });

  it('compression loses at most half a step of its scale', () => {
    fc.assert(
      fc.property(
        fc.tuple(size, fc.integer({ min: 0, max: 9 })).chain((shape) => tensorOf(shape)),
        (x) => {
          const width = x.shape[1] as number;
          const [packed, scale] = referenceRun('cache-compress', [x]) as [HostTensor, HostTensor];
          const back = run('cache-decompress', [packed, scale], { size: width });
          for (const [i, value] of x.data.entries()) {
            const step = scale.data[Math.floor(i / width)] as number;
            // A row below the least float32 times 127 has a scale that is itself rounded coarsely, or 0.
            expect(Math.abs((back.data[i] as number) - value)).toBeLessThanOrEqual(0.5001 * step + 127 * 2 ** -149);
          }
        },
      ),
    );
  });

  it('eviction keeps the first and the last rows', () => {
    const cases = fc
      .tuple(fc.nat(3), fc.nat(3), fc.nat(3))
      .chain(([sinks, gone, window]) => fc.tuple(tensorOf([2, sinks + gone + window, 2]), fc.constant(sinks), fc.constant(window)));
    fc.assert(
      fc.property(cases, ([cache, sinks, window]) => {
        const first = run('slice', [cache], { begin: [0, 0, 0], size: [-1, sinks, -1] });
        const last = run('slice', [cache], { begin: [0, (cache.shape[1] as number) - window, 0], size: [-1, window, -1] });
        expectSame(run('cache-evict', [cache], { sinks, window }), run('concat', [first, last], { axis: 1 }));
      }),
    );
  });
});
