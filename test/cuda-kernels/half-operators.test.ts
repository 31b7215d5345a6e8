/**
 * Operators that read and write float16 and bfloat16 themselves, on emulated blocks: sizes that lead into each way, vectors of
 * them where they are aligned and not where they are not, transposes and broadcasts.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { OperandView } from '../../src/backends/backend.ts';
import { acceptsStrides, lower, type MatmulOptions } from '../../src/backends/lowering/index.ts';
import { referenceRun } from '../../src/backends/reference/index.ts';
import { checkAttributes } from '../../src/ops/attributes.ts';
import type { Attributes, DType, Shape } from '../../src/ops/define.ts';
import { isHalf } from '../../src/ops/dtype.ts';
import { type HostTensor, hostTensor } from '../../src/ops/host-tensor.ts';
import { operatorByName } from '../../src/ops/index.ts';
import { elementCount, strides } from '../../src/ops/shape.ts';
import { Random, randomIndices, randomTensor } from '../conformance/random.ts';
import { difference, toleranceOf } from '../conformance/tolerances.ts';
import { NO_GXX, reason } from '../cuda/emulation/emulation.ts';
import type { Placed } from '../wasm-kernels/runner.ts';
import { bitsOf, COMPILE_MS, type Machine, machine, valuesOf, type Way, wordsOf } from './machine.ts';

const WAYS: readonly Way[] = [
  { threads: 256, order: 0 },
  { threads: 96, order: 1 },
  { threads: 1024, order: 7 },
  { threads: 32, order: 3 },
];
const HALVES = ['float16', 'bfloat16'] as const;

const view = (shape: Shape, dtype: DType): OperandView => ({ shape, dtype, strides: strides(shape), offset: 0 });

type Layout = (tensor: HostTensor) => Placed;
const dense: Layout = (tensor) => ({ view: view(tensor.shape, tensor.dtype), storage: bitsOf(tensor) });

/** In a storage whose rows are `pitch` elements longer, `offset` elements after its beginning; what is between is NaN. */
function spread(pitch: number, offset: number): Layout {
  return (tensor) => {
    const width = tensor.shape.at(-1) ?? 1;
    const rows = elementCount(tensor.shape) / Math.max(1, width);
    const data = new Float32Array(offset + rows * (width + pitch)).fill(Number.NaN);
    tensor.data.forEach((value, i) => {
      data[offset + Math.floor(i / width) * (width + pitch) + (i % width)] = value;
    });
    const own = [...strides([...tensor.shape.slice(0, -1), width + pitch])];
    const placed = { shape: [data.length], dtype: tensor.dtype, data: isHalf(tensor.dtype) ? data : Int32Array.from(data) } as HostTensor;
    return { view: { shape: tensor.shape, dtype: tensor.dtype, strides: own, offset }, storage: bitsOf(placed) };
  };
}

/** The last two dimensions exchanged in storage, columns `pitch` elements longer. */
function turned(pitch: number): Layout {
  return (tensor) => {
    const [rows, columns] = tensor.shape.slice(-2) as [number, number];
    const matrices = elementCount(tensor.shape.slice(0, -2));
    const across = spread(
      pitch,
      0,
    )({
      ...tensor,
      shape: [...tensor.shape.slice(0, -2), columns, rows],
      data: Float32Array.from(
        { length: matrices * rows * columns },
        (_, i) =>
          tensor.data[
            Math.floor(i / (rows * columns)) * rows * columns + (i % rows) * columns + (Math.floor(i / rows) % columns)
          ] as number,
      ),
    } as HostTensor);
    const own = across.view.strides;
    return {
      view: { ...across.view, shape: tensor.shape, strides: [...own.slice(0, -2), own.at(-1) as number, own.at(-2) as number] },
      storage: across.storage,
    };
  };
}

/** Aligned for the widest loads, for narrower ones, and for none; transposes of both kinds. */
const LAYOUTS: readonly Layout[] = [dense, spread(4, 4), spread(3, 1), turned(0), turned(5), spread(8, 0)];

describe.skipIf(NO_GXX)(reason('operators of halves on emulated CUDA blocks'), () => {
  let device: Machine;
  beforeAll(() => {
    device = machine();
  }, COMPILE_MS);
  afterAll(() => device.free());

  interface Options {
    readonly layouts?: readonly Layout[];
    readonly options?: MatmulOptions;
    readonly tiles?: number;
    readonly way?: Way;
    /** The first output as float32, before it is rounded. */
    readonly wide?: boolean;
  }

  function check(name: string, inputs: readonly HostTensor[], attributes: Attributes, options: Options = {}): void {
    const definition = operatorByName(name);
    const filled = checkAttributes(definition, attributes);
    const wide = options.wide === true;
    const exact = wide ? inputs.map((input) => ({ ...input, dtype: 'float32' as const })) : inputs;
    const specs = definition.infer(exact, filled);
    const expected = referenceRun(name, exact as readonly HostTensor[], attributes);
    const placed = inputs.map((input, i) => (acceptsStrides(name, i) ? (options.layouts?.[i] ?? dense)(input) : dense(input)));
    const call = lower(
      name,
      placed.map((operand) => operand.view),
      specs.map(({ shape, dtype }) => view(shape, dtype)),
      filled,
      options.options,
    );
    const { status, outputs } = device.execute(call, placed, specs.map(wordsOf), options.tiles ?? 1, options.way);
    expect(status).toBe(0);
    for (const [i, spec] of specs.entries()) {
      const want = expected[i] as HostTensor;
      const tolerance = toleranceOf(definition, { inputs: exact as readonly HostTensor[], attributes: filled }, want);
      const wrong = difference(valuesOf(spec, outputs[i] as Int32Array), want.data, tolerance);
      const told = `${name} ${inputs.map(({ shape, dtype }) => `${dtype}[${shape}]`)} ${JSON.stringify(attributes)}`;
      if (wrong !== undefined) expect.fail(`output ${i} of ${told}: ${wrong}`);
    }
  }

  describe.each(HALVES)('%s', (dtype) => {
    const tame = (random: Random, shape: Shape) => randomTensor(random, shape, dtype, 'tame');

    it.each([1, 3, 8, 11, 20, 33, 70])('matmul of %i rows', (m) => {
      const random = new Random(m);
      for (const [n, k] of [
        [1, 70],
        [8, 40],
        [31, 65],
        [64, 528],
        [67, 1],
        [132, 17],
      ] as const) {
        const [a, b] = [tame(random, [m, k]), tame(random, [k, n])];
        LAYOUTS.forEach((layout, i) => {
          const layouts = [LAYOUTS[(i + m) % LAYOUTS.length] as Layout, layout];
          const partition = i % 2 === 0 ? 'rows' : 'columns';
          check(
            'matmul',
            [a, b],
            {},
            { layouts, options: { partition }, tiles: 1 + (i % 3), way: WAYS[i % WAYS.length] as Way, wide: i % 3 === 0 },
          );
          check('matmul', [a, b], {}, { layouts, options: { partition: 'columns' }, way: WAYS[(i + 1) % WAYS.length] as Way });
        });
      }
    });

    it.each([
      [8, 300, 1900],
      [1, 4, 15000],
      [2, 5, 9100],
      [1, 2100, 40],
    ])('matmul of few rows in passes: m %i, n %i, k %i', (m, n, k) => {
      const random = new Random(n);
      const [a, b] = [tame(random, [m, k]), tame(random, [k, n])];
      for (const layout of LAYOUTS) {
        check('matmul', [a, b], {}, { layouts: [dense, layout], options: { partition: 'columns' }, tiles: 2 });
      }
    });

    it('matmul of many matrices, broadcast and transposed', () => {
      const random = new Random(5);
      for (const [a, b] of [
        [
          [3, 2, 5, 17],
          [2, 17, 9],
        ],
        [
          [2, 1, 9, 8],
          [1, 3, 8, 24],
        ],
      ] as const) {
        for (const layout of LAYOUTS) check('matmul', [tame(random, a), tame(random, b)], {}, { layouts: [layout, layout], tiles: 3 });
      }
      check('matmul', [tame(random, [17, 5]), tame(random, [9, 17])], { transposeA: true, transposeB: true });
    });

    it.each([
      ['wide values', [2, 5, 20], [2, 70, 20], 300],
      ['one query', [1, 128], [75, 128], 128],
      ['one query, odd sizes', [1, 33], [130, 33], 66],
      ['a few queries, many keys', [3, 24], [333, 24], 100],
      ['more heads than warps', [20, 1, 16], [20, 90, 16], 72],
      ['rows that a tile begins in the middle of', [3, 11, 8], [3, 50, 8], 8],
    ] as const)('attention: %s', (_, q, k, dv) => {
      const random = new Random(dv);
      const inputs = [tame(random, q), tame(random, k), tame(random, [...k.slice(0, -1), dv])];
      const mask = tame(random, [q.at(-2) as number, k.at(-2) as number]);
      LAYOUTS.forEach((layout, i) => {
        const layouts = [LAYOUTS[(i + 1) % LAYOUTS.length] as Layout, layout, LAYOUTS[(2 * i) % LAYOUTS.length] as Layout, layout];
        const options = { layouts, tiles: 1 + (i % 3), way: WAYS[i % WAYS.length] as Way };
        check('attention', i % 2 === 0 ? inputs : [...inputs, mask], { causal: i % 3 === 0 }, options);
      });
    });

    it('rotary', () => {
      const random = new Random(6);
      for (const interleaved of [false, true]) {
        for (const [s, d] of [
          [5, 34],
          [3, 128],
        ] as const) {
          const inputs = [tame(random, [2, s, d]), tame(random, [s, d / 2]), tame(random, [s, d / 2])];
          for (const layout of LAYOUTS) check('rotary', inputs, { interleaved }, { layouts: [layout, layout, dense], tiles: 2 });
        }
      }
    });

    it('cache-update, cache-evict, cache-compress', () => {
      const random = new Random(7);
      for (const d of [1, 8, 33, 70]) {
        const inputs = [tame(random, [2, 40, d]), tame(random, [2, 9, d]), randomIndices(random, [9], 5)];
        for (const layout of LAYOUTS) {
          check('cache-update', inputs, {}, { layouts: [dense, layout], tiles: 3 });
          check('cache-compress', [tame(random, [7, d])], {}, { layouts: [layout], tiles: 2 });
        }
        check('cache-update', [inputs[0] as HostTensor, tame(random, [2, 1, d]), randomIndices(random, [1], 40)], {}, { tiles: 2 });
        check('cache-evict', [tame(random, [3, 20, d])], { sinks: 3, window: 6 }, { tiles: 4 });
      }
    });

    it('concat, pad, one-hot, gather-nd, tensor-scatter-update, sparse-to-dense', () => {
      const random = new Random(8);
      for (const count of [2, 7, 20]) {
        const inputs = Array.from({ length: count }, (_, i) => tame(random, [3, 1 + (i % 4), 5]));
        for (const axis of [0, 1, 2]) {
          const alike = inputs.map((x) => (axis === 1 ? x : tame(random, [3, 4, 5])));
          check('concat', alike, { axis }, { tiles: 1 + axis });
        }
      }
      for (const width of [1, 7, 40]) {
        for (const layout of LAYOUTS)
          check('pad', [tame(random, [4, width])], { paddings: [1, 0, 3, 2], value: 1.3 }, { layouts: [layout] });
        check('gather-nd', [tame(random, [6, 5, width]), randomIndices(random, [9, 2], 5)], {}, { tiles: 2 });
        check(
          'tensor-scatter-update',
          [tame(random, [6, width]), randomIndices(random, [9, 1], 6), tame(random, [9, width])],
          {},
          { tiles: 3 },
        );
      }
      for (const depth of [5, 16]) check('one-hot', [randomIndices(random, [7], depth)], { depth, on: 0.1, off: -3, dtype });
      check('sparse-to-dense', [randomIndices(random, [9], 30), tame(random, [9]), tame(random, [])], { shape: [31] }, { tiles: 3 });
    });

    it('fill and range', () => {
      for (const count of [1, 7, 2500]) {
        check('fill', [], { shape: [count], value: 0.1, dtype }, { tiles: 2 });
        check('range', [], { start: 0.1, stop: 0.1 + count * 0.3, step: 0.3, dtype }, { tiles: 2 });
      }
      check('fill', [], { shape: [3], value: 1e9, dtype });
    });

    it('top-k and cumsum', () => {
      const random = new Random(9);
      const special = [0, -0, Number.NaN, 1, Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY, 1.5];
      for (const [length, k] of [
        [20, 7],
        [100, 3],
        [1500, 4],
        [300, 200],
        [5000, 2500],
      ] as const) {
        check('top-k', [tame(random, [3, length])], { k }, { tiles: 2 });
        const ties = hostTensor(
          [2, length],
          Array.from({ length: 2 * length }, () => random.pick(special)),
          dtype,
        );
        check('top-k', [ties], { k });
      }
      for (const shape of [
        [3, 5000],
        [70, 40],
      ]) {
        for (const axis of [0, 1])
          check('cumsum', [tame(random, shape)], { axis, exclusive: axis === 0, reverse: axis === 1 }, { tiles: 2 });
      }
    });
  });

  it('others refuse them', () => {
    const half = view([2, 2], 'bfloat16');
    const indices = view([2, 1], 'int32');
    expect(() => lower('scatter-nd', [indices, half], [half], { shape: [2, 2] })).toThrow(/no kernel for bfloat16.*GPUOS_DTYPE_MISMATCH/);
  });
});
