/** For each operator of the library: random inputs and attributes that it accepts. */
import type { Attributes, DType, OperatorDefinition, Shape } from '../../src/ops/define.ts';
import { isFloat } from '../../src/ops/dtype.ts';
import type { HostTensor } from '../../src/ops/host-tensor.ts';
import { hostTensor } from '../../src/ops/host-tensor.ts';
import { MAPS } from '../../src/ops/map.ts';
import { ACTIVATIONS } from '../../src/ops/matrix.ts';
import type { MapName } from '../../src/ops/program.ts';
import { elementCount } from '../../src/ops/shape.ts';
import { broadcastable, type Random, randomIndices, randomShape, randomTensor } from './random.ts';

export interface Case {
  readonly inputs: readonly HostTensor[];
  readonly attributes: Attributes;
}
type Make = (random: Random) => Case;

const FLOATS: readonly DType[] = ['float32', 'float16', 'bfloat16'];
const NUMBERS: readonly DType[] = [...FLOATS, 'int32'];
const ANY: readonly DType[] = [...NUMBERS, 'bool'];

/** Mostly of few dimensions, now and then of up to 6. */
const shapeOf = (random: Random, least = 0, limit = 1500): number[] =>
  randomShape(random, random.chance(0.15) ? random.between(Math.max(least, 4), 6) : random.between(least, Math.max(least, 3)), limit);

function mapCase(name: MapName): Make {
  const rule = MAPS[name];
  return (random) => {
    const shape = shapeOf(random);
    const dtype = random.pick(rule.operands);
    const inputs = rule.inputs.map((_, i) => {
      const own = rule.inputs.length === 1 || random.chance(0.5) ? shape : broadcastable(random, shape);
      return randomTensor(random, own, i === 0 && rule.condition ? 'bool' : dtype, 'any');
    });
    return { inputs, attributes: name === 'cast' ? { dtype: random.pick(ANY) } : {} };
  };
}

const axisOf = (random: Random, rank: number): number => random.between(-rank, rank - 1);

function axesCase(dtypes: readonly DType[], wildness: 'open' | 'tame' = 'open'): Make {
  return (random) => {
    const shape = shapeOf(random);
    const axes = random
      .shuffled(shape.map((_, i) => i))
      .slice(0, random.below(shape.length + 1))
      .map((axis) => (random.chance(0.3) ? axis - shape.length : axis));
    const attributes = random.chance(0.15) ? {} : { axes, keepDims: random.chance(0.5) };
    return { inputs: [randomTensor(random, shape, random.pick(dtypes), wildness)], attributes };
  };
}

const argCase: Make = (random) => {
  const shape = shapeOf(random, 1).map((size) => Math.max(1, size));
  return { inputs: [randomTensor(random, shape, random.pick(NUMBERS), 'open')], attributes: { axis: axisOf(random, shape.length) } };
};

const alongAxis: Make = (random) => {
  const shape = shapeOf(random, 1);
  return {
    inputs: [randomTensor(random, shape, random.pick(FLOATS), 'open')],
    attributes: random.chance(0.4) ? {} : { axis: axisOf(random, shape.length) },
  };
};

function normCase(parameters: number): Make {
  return (random) => {
    const shape = shapeOf(random, 1);
    const last = shape[shape.length - 1] as number;
    const dtype = random.pick(FLOATS);
    const more = Array.from({ length: random.below(parameters + 1) }, () => randomTensor(random, [last], dtype, 'tame'));
    return { inputs: [randomTensor(random, shape, dtype, 'open'), ...more], attributes: random.chance(0.5) ? {} : { epsilon: 0.1 } };
  };
}

const matmulCase: Make = (random) => {
  const size = (most: number) => (random.chance(0.05) ? 0 : random.between(1, random.chance(0.2) ? most : 9));
  const [m, k, n] = [size(40), size(70), size(40)];
  const batch = randomShape(random, random.below(3), 6);
  const [transposeA, transposeB] = [random.chance(0.3), random.chance(0.3)];
  const a = [...(random.chance(0.5) ? batch : broadcastable(random, batch)), ...(transposeA ? [k, m] : [m, k])];
  const b = [...(random.chance(0.5) ? batch : broadcastable(random, batch)), ...(transposeB ? [n, k] : [k, n])];
  const dtype = random.pick(FLOATS);
  return {
    inputs: [a, b, ...(random.chance(0.4) ? [[n]] : [])].map((shape) => randomTensor(random, shape, dtype, 'open')),
    attributes: { transposeA, transposeB, activation: random.chance(0.5) ? 'none' : random.pick(ACTIVATIONS) },
  };
};

const attentionCase: Make = (random) => {
  const [sq, sk] = [random.chance(0.3) ? 1 : random.between(0, 9), random.between(0, 20)];
  const [d, dv] = [random.between(1, 9), random.between(0, 9)];
  const [queryHeads, keyHeads] = random.pick([
    [[], []],
    [[3], [3]],
    [[4], [2]],
    [
      [2, 3],
      [2, 1],
    ],
    [[0], [0]],
  ] as const);
  const dtype = random.pick(FLOATS);
  const inputs = [
    [...queryHeads, sq, d],
    [...keyHeads, sk, d],
    [...keyHeads, sk, dv],
  ].map((shape) => randomTensor(random, shape, dtype, 'tame'));
  if (random.chance(0.4)) {
    const mask = randomTensor(random, broadcastable(random, [...queryHeads, sq, sk]), dtype, 'tame');
    for (let i = 0; i < mask.data.length; i++) if (random.chance(0.2)) mask.data[i] = Number.NEGATIVE_INFINITY;
    inputs.push(mask);
  }
  return { inputs, attributes: { causal: random.chance(0.4), ...(random.chance(0.3) ? { scale: 0.3 } : {}) } };
};

const rotaryCase: Make = (random) => {
  const [s, half] = [random.between(0, 9), random.between(0, 8)];
  const lead = randomShape(random, random.below(4), 8);
  const dtype = random.pick(FLOATS);
  return {
    inputs: [
      [...lead, s, 2 * half],
      [s, half],
      [s, half],
    ].map((shape) => randomTensor(random, shape, dtype, 'tame')),
    attributes: { interleaved: random.chance(0.5) },
  };
};

/** cache [.., S, D] and update [.., T, D]. */
function cacheRows(random: Random): { cache: HostTensor; update: HostTensor; s: number; t: number } {
  const lead = randomShape(random, random.below(4), 6);
  const [s, d] = [random.between(1, 9), random.between(0, 9)];
  const t = random.between(0, s);
  const dtype = random.pick(NUMBERS);
  return { cache: randomTensor(random, [...lead, s, d], dtype), update: randomTensor(random, [...lead, t, d], dtype), s, t };
}

/** Indices [.., K] into a tensor of this shape; updates of the shape that belongs to them. */
function scatter(random: Random, shape: Shape, dtype: DType): { indices: HostTensor; updates: HostTensor } {
  const depth = random.below(shape.length + 1);
  const rows = shape.slice(0, depth).includes(0) ? [0] : randomShape(random, random.below(3), 12);
  const values: number[] = [];
  for (let i = 0; i < elementCount(rows); i++) for (let k = 0; k < depth; k++) values.push(random.below(shape[k] as number));
  return {
    indices: hostTensor([...rows, depth], values, 'int32'),
    updates: randomTensor(random, [...rows, ...shape.slice(depth)], dtype, 'open'),
  };
}

const CASES: Readonly<Record<string, Make>> = {
  clip: (random) => ({
    inputs: [randomTensor(random, shapeOf(random), random.pick(NUMBERS))],
    attributes: random.pick<Attributes>([{}, { min: -1 }, { max: 2 }, { min: -1, max: 2 }, { min: 0, max: 0 }]),
  }),
  'leaky-relu': (random) => ({
    inputs: [randomTensor(random, shapeOf(random), random.pick(FLOATS))],
    attributes: random.pick<Attributes>([{}, { alpha: -0.5 }]),
  }),
  step: (random) => ({
    inputs: [randomTensor(random, shapeOf(random), random.pick(FLOATS))],
    attributes: random.pick<Attributes>([{}, { alpha: 0.25 }]),
  }),

  sum: axesCase(NUMBERS),
  prod: axesCase(NUMBERS, 'tame'),
  max: axesCase(NUMBERS),
  min: axesCase(NUMBERS),
  any: axesCase(['bool']),
  all: axesCase(['bool']),
  mean: axesCase(ANY),
  'log-sum-exp': axesCase(FLOATS),
  argmax: argCase,
  argmin: argCase,

  softmax: alongAxis,
  'log-softmax': alongAxis,
  'layer-norm': normCase(2),
  'rms-norm': normCase(1),

  matmul: matmulCase,
  attention: attentionCase,
  rotary: rotaryCase,

  'cache-append'(random) {
    const { cache, update, s, t } = cacheRows(random);
    return { inputs: [cache, update, hostTensor([], [random.between(0, s - t)], 'int32')], attributes: {} };
  },
  'cache-update'(random) {
    const { cache, update, s, t } = cacheRows(random);
    return { inputs: [cache, update, randomIndices(random, [t], s)], attributes: {} };
  },
  'prefix-match'(random) {
    const a = randomIndices(random, [random.below(40)], 3);
    const b = Int32Array.from({ length: random.below(40) }, (_, i) => (random.chance(0.97) ? (a.data[i] ?? 0) : 5));
    return { inputs: [a, hostTensor([b.length], b, 'int32')], attributes: {} };
  },
  'cache-compress': (random) => ({
    inputs: [randomTensor(random, shapeOf(random, 1), random.pick(FLOATS), random.pick(['any', 'tame']))],
    attributes: {},
  }),
  'cache-decompress'(random) {
    const rows = randomShape(random, random.below(4), 30);
    const size = random.below(19);
    const packed = randomTensor(random, [...rows, Math.ceil(size / 4)], 'int32');
    for (let i = 0; i < packed.data.length; i++) packed.data[i] = Math.floor(random.next() * 2 ** 32) | 0;
    return { inputs: [packed, randomTensor(random, rows, 'float32', 'tame')], attributes: { size } };
  },
  'cache-evict'(random) {
    const { cache, s } = cacheRows(random);
    const sinks = random.between(0, s);
    return { inputs: [cache], attributes: { sinks, window: random.between(0, s - sinks) } };
  },

  gather(random) {
    const batchDims = random.below(3);
    const batch = randomShape(random, batchDims, 6);
    const x = [...batch, ...randomShape(random, random.between(1, 3), 60)];
    const axis = random.between(batchDims, x.length - 1);
    const indices = [...batch, ...randomShape(random, random.below(6 - x.length + 2), 12)];
    const size = x[axis] as number;
    // There is no index into an axis without elements.
    if (size === 0) indices[batchDims] = 0;
    return {
      inputs: [randomTensor(random, x, random.pick(ANY)), randomIndices(random, indices, size)],
      attributes: { axis: random.chance(0.3) ? axis - x.length : axis, batchDims },
    };
  },
  'gather-nd'(random) {
    const shape = randomShape(random, random.below(4), 60);
    const { indices } = scatter(random, shape, 'float32');
    return { inputs: [randomTensor(random, shape, random.pick(ANY)), indices], attributes: {} };
  },
  'scatter-nd'(random) {
    const shape = randomShape(random, random.below(4), 60);
    const { indices, updates } = scatter(random, shape, random.pick(NUMBERS));
    return { inputs: [indices, updates], attributes: { shape } };
  },
  'tensor-scatter-update'(random) {
    const shape = randomShape(random, random.below(4), 60);
    const x = randomTensor(random, shape, random.pick(ANY));
    const { indices, updates } = scatter(random, shape, x.dtype);
    return { inputs: [x, indices, updates], attributes: {} };
  },
  'sparse-to-dense'(random) {
    const shape = randomShape(random, random.between(1, 3), 60);
    const dtype = random.pick(ANY);
    const count = shape.includes(0) ? 0 : random.below(9);
    const flat = shape.length === 1 && random.chance(0.5);
    const values: number[] = [];
    for (let i = 0; i < count; i++) for (const size of shape) values.push(random.below(size));
    return {
      inputs: [
        hostTensor(flat ? [count] : [count, shape.length], values, 'int32'),
        randomTensor(random, random.chance(0.3) ? [] : [count], dtype),
        randomTensor(random, [], dtype),
      ],
      attributes: { shape },
    };
  },
  concat(random) {
    const shape = shapeOf(random, 1, 200);
    const axis = random.below(shape.length);
    const dtype = random.pick(ANY);
    const count = random.chance(0.1) ? random.between(5, 20) : random.between(1, 4);
    const inputs = Array.from({ length: count }, () =>
      randomTensor(
        random,
        shape.map((size, i) => (i === axis ? random.below(5) : size)),
        dtype,
      ),
    );
    return { inputs, attributes: { axis: random.chance(0.3) ? axis - shape.length : axis } };
  },
  pad(random) {
    const shape = shapeOf(random, 0, 200);
    const dtype = random.pick(ANY);
    return {
      inputs: [randomTensor(random, shape, dtype)],
      attributes: { paddings: shape.flatMap(() => [random.below(3), random.below(3)]), value: dtype === 'bool' ? 1 : random.pick([0, -3]) },
    };
  },
  'one-hot'(random) {
    const dtype = random.pick(NUMBERS);
    return {
      inputs: [
        hostTensor(
          [3, 4],
          Array.from({ length: 12 }, () => random.between(-2, 7)),
          'int32',
        ),
      ],
      attributes: { depth: random.below(7), dtype, ...(random.chance(0.5) ? { on: 5, off: -2 } : {}) },
    };
  },
  'top-k'(random) {
    const shape = shapeOf(random, 1, 300);
    const k = random.between(0, shape[shape.length - 1] as number);
    return { inputs: [randomTensor(random, shape, random.pick(NUMBERS))], attributes: { k, sorted: random.chance(0.5) } };
  },
  tile(random) {
    const shape = shapeOf(random, 0, 100);
    return { inputs: [randomTensor(random, shape, random.pick(ANY))], attributes: { reps: shape.map(() => random.below(4)) } };
  },
  cumsum(random) {
    const shape = shapeOf(random, 1);
    return {
      inputs: [randomTensor(random, shape, random.pick(NUMBERS), 'open')],
      attributes: { axis: axisOf(random, shape.length), exclusive: random.chance(0.5), reverse: random.chance(0.5) },
    };
  },

  reshape(random) {
    const shape = shapeOf(random);
    const to = random.shuffled(shape);
    // A size may be worked out where the others leave no doubt.
    if (!to.includes(0) && to.length > 0 && random.chance(0.3)) to[random.below(to.length)] = -1;
    return { inputs: [randomTensor(random, shape, random.pick(ANY))], attributes: { shape: to } };
  },
  transpose(random) {
    const shape = shapeOf(random);
    const perm = random.shuffled(shape.map((_, i) => i)).map((axis) => (random.chance(0.2) ? axis - shape.length : axis));
    return { inputs: [randomTensor(random, shape, random.pick(ANY))], attributes: random.chance(0.3) ? {} : { perm } };
  },
  slice(random) {
    const shape = shapeOf(random);
    const begin = shape.map((size) => random.between(0, size));
    const size = shape.map((count, i) => (random.chance(0.3) ? -1 : random.between(0, count - (begin[i] as number))));
    return { inputs: [randomTensor(random, shape, random.pick(ANY))], attributes: { begin, size } };
  },
  'strided-slice'(random) {
    const shape = shapeOf(random).map((size) => Math.max(1, size));
    const strides = shape.map(() => random.pick([1, 2, 3, -1, -2]));
    const begin = shape.map((size) => random.below(size));
    const end = shape.map((size, i) => ((strides[i] as number) > 0 ? random.between(0, size) : random.between(-1, size - 1)));
    return { inputs: [randomTensor(random, shape, random.pick(ANY))], attributes: { begin, end, strides } };
  },
  expand(random) {
    const shape = shapeOf(random, 0, 200);
    return { inputs: [randomTensor(random, broadcastable(random, shape), random.pick(ANY))], attributes: { shape } };
  },
  reverse(random) {
    const shape = shapeOf(random);
    return {
      inputs: [randomTensor(random, shape, random.pick(ANY))],
      attributes: random.chance(0.3) ? {} : { axes: shape.map((_, i) => i).filter(() => random.chance(0.5)) },
    };
  },
  squeeze(random) {
    const shape = shapeOf(random)
      .flatMap((size) => (random.chance(0.3) ? [1, size] : [size]))
      .slice(0, 6);
    const ones = shape.flatMap((size, i) => (size === 1 ? [i] : []));
    return {
      inputs: [randomTensor(random, shape, random.pick(ANY))],
      attributes: random.chance(0.4) ? {} : { axes: ones.filter(() => random.chance(0.5)) },
    };
  },
  'expand-dims'(random) {
    const shape = shapeOf(random).slice(0, 5);
    return {
      inputs: [randomTensor(random, shape, random.pick(ANY))],
      attributes: { axis: random.between(-shape.length - 1, shape.length) },
    };
  },

  fill(random) {
    const dtype = random.pick(ANY);
    const value = isFloat(dtype) ? random.pick([0, -0, 2.5, 0.1, Number.NaN, Number.NEGATIVE_INFINITY, 1e-42]) : dtype === 'int32' ? -7 : 1;
    return { inputs: [], attributes: { shape: shapeOf(random), value, dtype } };
  },
  range: (random) => ({
    inputs: [],
    attributes: random.chance(0.5)
      ? { start: random.between(-5, 5), stop: random.between(-9, 40), step: random.pick([1, 2, -1, -3]), dtype: 'int32' }
      : { start: random.next(), stop: random.between(-9, 40), step: random.pick([0.25, 1 / 3, -0.7]), dtype: random.pick(FLOATS) },
  }),
};

/** How to make a case of an operator; undefined where it has none (a test says that only nop may). */
export function caseOf(definition: OperatorDefinition): Make | undefined {
  if (Object.hasOwn(MAPS, definition.name)) return mapCase(definition.name as MapName);
  return CASES[definition.name];
}
