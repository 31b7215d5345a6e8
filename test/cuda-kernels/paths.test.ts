/** Sizes that lead into each way an operator may take on a block, and blocks of unusual sizes. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { OperandView } from '../../src/backends/backend.ts';
import { lower, lowerCopy, lowerPack, type MatmulOptions, packedSize } from '../../src/backends/lowering/index.ts';
import { referenceRun } from '../../src/backends/reference/index.ts';
import { checkAttributes } from '../../src/ops/attributes.ts';
import type { Attributes, Shape } from '../../src/ops/define.ts';
import { type HostTensor, hostTensor } from '../../src/ops/host-tensor.ts';
import { operatorByName } from '../../src/ops/index.ts';
import { elementCount, strides } from '../../src/ops/shape.ts';
import { Random, randomIndices, randomTensor } from '../conformance/random.ts';
import { difference, type Tolerance } from '../conformance/tolerances.ts';
import { NO_GXX, reason } from '../cuda/emulation/emulation.ts';
import type { Placed } from '../wasm-kernels/runner.ts';
import { bitsOf, COMPILE_MS, type Machine, machine, valuesOf, type Way, wordsOf } from './machine.ts';

const EXACT: Tolerance = { relative: 0, absolute: 0 };
const WAYS: readonly Way[] = [
  { threads: 256, order: 0 },
  { threads: 96, order: 1 },
  { threads: 512, order: 7 },
  { threads: 1024, order: 1 },
  { threads: 32, order: 3 },
];

const view = (shape: Shape, dtype: OperandView['dtype'] = 'float32'): OperandView => ({ shape, dtype, strides: strides(shape), offset: 0 });
const dense = (tensor: HostTensor): Placed => ({ view: view(tensor.shape, tensor.dtype), storage: bitsOf(tensor) });
const floats = (random: Random, shape: Shape) => randomTensor(random, shape, 'float32', 'tame');

/** The tensor in storage where its last two dimensions are exchanged. */
function turned(tensor: HostTensor): Placed {
  const [rows, columns] = tensor.shape.slice(-2) as [number, number];
  const matrices = elementCount(tensor.shape.slice(0, -2));
  const bits = bitsOf(tensor);
  const storage = bits.map((_, i) => {
    const [matrix, at] = [Math.floor(i / (rows * columns)), i % (rows * columns)];
    return bits[matrix * rows * columns + (at % rows) * columns + Math.floor(at / rows)]!;
  });
  expect(storage.length).toBe(matrices * rows * columns);
  const own = strides(tensor.shape);
  return { view: { ...view(tensor.shape), strides: [...own.slice(0, -2), 1, rows] }, storage };
}

/** The tensor one element later than an allocation begins. */
function shifted(tensor: HostTensor): Placed {
  const bits = bitsOf(tensor);
  const storage = new Int32Array(bits.length + 1).fill(0x7fc00bad);
  storage.set(bits, 1);
  return { view: { ...view(tensor.shape), offset: 1 }, storage };
}

describe.skipIf(NO_GXX)(reason('ways through the operators'), () => {
  let device: Machine;
  beforeAll(() => {
    device = machine();
  }, COMPILE_MS);
  afterAll(() => device.free());

  function check(
    name: string,
    inputs: readonly HostTensor[],
    attributes: Attributes,
    tolerance: Tolerance,
    {
      placed = inputs.map(dense),
      options = {},
      tiles = 1,
      way,
    }: { placed?: readonly Placed[]; options?: MatmulOptions; tiles?: number; way?: Way } = {},
  ): void {
    const definition = operatorByName(name);
    const filled = checkAttributes(definition, attributes);
    const specs = definition.infer(inputs, filled);
    const expected = referenceRun(name, inputs, attributes);
    const views = placed.map((operand) => operand.view);
    const call = lower(
      name,
      views,
      specs.map(({ shape, dtype }) => view(shape, dtype)),
      filled,
      options,
    );
    const { status, outputs } = device.execute(call, placed, specs.map(wordsOf), tiles, way);
    expect(status).toBe(0);
    for (const [i, spec] of specs.entries()) {
      const wrong = difference(valuesOf(spec, outputs[i]!), expected[i]!.data, tolerance);
      if (wrong !== undefined) expect.fail(`${name} ${JSON.stringify(inputs.map(({ shape }) => shape))}: output ${i}: ${wrong}`);
    }
  }

  function packed(b: HostTensor, way?: Way): Placed {
    const [k, n] = b.shape as [number, number];
    const call = lowerPack(view(b.shape), view([packedSize(k, n)]));
    const { outputs } = device.execute(call, [dense(b)], [packedSize(k, n)], 1, way);
    return { view: view(b.shape), storage: outputs[0]! };
  }

  const heights = [1, 4, 8, 9, 16, 17, 32, 33, 64, 65, 130];
  it.each(heights)('matmul of %i rows: columns consecutive or not, aligned or not, packed', (m) => {
    const random = new Random(m);
    for (const [n, k] of [
      [1, 70],
      [8, 40],
      [31, 33],
      [64, 16],
      [67, 1],
      [132, 17],
    ] as const) {
      const [a, b] = [floats(random, [m, k]), floats(random, [k, n])];
      const tolerance = { relative: 1e-5, absolute: 1e-6 * (k + 4) };
      for (const [i, way] of WAYS.entries()) {
        const lay = [dense, shifted, turned][i % 3]!;
        const left = [dense, turned, shifted][Math.floor(i / 2) % 3]!;
        for (const partition of ['rows', 'columns'] as const) {
          const options = { partition };
          check('matmul', [a, b], {}, tolerance, { placed: [left(a), lay(b)], options, tiles: 1 + i, way });
          check('matmul', [a, b], {}, tolerance, {
            placed: [left(a), packed(b, way)],
            options: { ...options, packed: true },
            tiles: 2,
            way,
          });
        }
      }
    }
  });

  it.each([
    [8, 1100, 900],
    [3, 2100, 20],
    [8, 9, 1900],
    [2, 5, 7100],
    [1, 4, 7100],
  ])('matmul of few rows in passes: m %i, n %i, k %i', (m, n, k) => {
    const random = new Random(n);
    const [a, b] = [floats(random, [m, k]), floats(random, [k, n])];
    const tolerance = { relative: 1e-5, absolute: 1e-6 * (k + 4) };
    for (const way of WAYS) {
      for (const lay of [dense, shifted, turned]) {
        check('matmul', [a, b], {}, tolerance, { placed: [dense(a), lay(b)], options: { partition: 'columns' }, tiles: 2, way });
      }
    }
  });

  it.each([
    ['wide values', [2, 5, 20], [2, 70, 20], 300],
    ['one query, few keys', [1, 33], [7, 33], 64],
    ['one query, many keys shared by all warps', [1, 64], [700, 64], 130],
    ['a few queries, many keys', [3, 17], [333, 17], 40],
    ['more heads than warps', [20, 1, 16], [20, 90, 16], 32],
    ['rows that a tile begins in the middle of', [3, 11, 8], [3, 50, 8], 8],
  ] as const)('attention: %s', (_, q, k, dv) => {
    const random = new Random(dv);
    const inputs = [floats(random, q), floats(random, k), floats(random, [...k.slice(0, -1), dv])];
    const tolerance = { relative: 2e-5, absolute: 5e-6 };
    for (const [i, way] of WAYS.entries()) {
      for (const causal of [false, true]) {
        for (const lay of [dense, turned]) {
          check('attention', inputs, { causal }, tolerance, { placed: [inputs[0]!, inputs[1]!, inputs[2]!].map(lay), tiles: 1 + i, way });
        }
      }
    }
  });

  it.each([
    ['many ties', 5000, 3000, [0, 1, -1, 2.5]],
    ['all equal', 3000, 2500, [7]],
    ['few of a long row', 3000, 3, undefined],
    ['parts of the result', 6000, 5000, undefined],
    ['all of a row that just fits', 2048, 2048, [0, -0, Number.NaN, 1, Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY]],
  ] as const)('top-k: %s', (_, length, k, values) => {
    const random = new Random(k);
    for (const dtype of ['float32', 'int32'] as const) {
      const data = Array.from({ length: 2 * length }, () => (values ? random.pick(values) : Math.floor(random.next() * 2 ** 32) - 2 ** 31));
      const x = hostTensor([2, length], dtype === 'int32' ? data.map((value) => value | 0) : data, dtype);
      for (const [i, way] of WAYS.entries()) check('top-k', [x], { k }, EXACT, { tiles: 1 + (i % 2), way });
    }
  });

  it('concat of more inputs than fit the scratch at a time', () => {
    const random = new Random(1);
    const inputs = Array.from({ length: 2500 }, (_, i) => floats(random, [2, i % 4]));
    for (const tiles of [1, 5]) check('concat', inputs, { axis: 1 }, EXACT, { tiles });
  });

  it('many updates, most of them of the same rows: the last one stays, or all are added in their order', () => {
    const random = new Random(2);
    for (const [lead, s, t, d] of [
      [3, 40, 700, 5],
      [1, 9, 600, 33],
      [5, 300, 2, 70],
      [2, 600, 500, 3],
    ] as const) {
      const rows = Math.min(s, t);
      const inputs = [floats(random, [lead, s, d]), floats(random, [lead, rows, d]), randomIndices(random, [rows], Math.min(s, 4))];
      const scattered = [randomIndices(random, [t, 1], 4), floats(random, [t, d])];
      for (const [i, way] of WAYS.entries()) {
        check('cache-update', inputs, {}, EXACT, { tiles: 1 + i, way });
        check('tensor-scatter-update', [floats(random, [s, d]), ...scattered], {}, EXACT, { tiles: 1 + i, way });
        check('scatter-nd', scattered, { shape: [s, d] }, { relative: 1e-6, absolute: 1e-4 }, { tiles: 1 + i, way });
      }
    }
  });

  it('sums of long and of many lines', () => {
    const random = new Random(3);
    for (const shape of [
      [3, 5000],
      [70, 40],
      [2, 1023],
      [30, 70],
    ]) {
      for (const [i, way] of WAYS.entries()) {
        for (const axis of [0, 1]) {
          const attributes = { axis, exclusive: i % 2 === 0, reverse: i % 3 === 0 };
          check('cumsum', [floats(random, shape)], attributes, { relative: 1e-6, absolute: 1e-4 }, { tiles: 1 + i, way });
        }
      }
    }
  });

  it('copies of small matrices, of wide rows and of transposes, by blocks of any size', () => {
    const random = new Random(4);
    for (const shape of [
      [50, 3, 5],
      [3, 300, 140],
      [2, 20000],
      [37, 41],
      [2, 5, 200],
    ]) {
      const tensor = floats(random, shape);
      for (const lay of [dense, shifted, turned]) {
        for (const [i, way] of WAYS.entries()) {
          const placed = lay(tensor);
          const { outputs } = device.execute(lowerCopy(placed.view, view(shape)), [placed], [elementCount(shape)], 1 + i, way);
          expect(outputs[0]!.findIndex((word, j) => word !== bitsOf(tensor)[j])).toBe(-1);
        }
      }
    }
  });
});
