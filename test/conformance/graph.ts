/**
 * Random programs over tensors: leaves, operators of every kind, reads, disposals and flushes, with the
 * value of every tensor from the reference. The same program is played on an engine in any mode.
 */
import { referenceRun } from '../../src/backends/reference/index.ts';
import type { Attributes, DType, Shape } from '../../src/ops/define.ts';
import type { HostTensor } from '../../src/ops/host-tensor.ts';
import { broadcastPair, elementCount } from '../../src/ops/shape.ts';
import { broadcastable, Random, randomIndices, randomShape, randomTensor } from './random.ts';

/**
 * What may be said of a value.
 *  - `exact`: it comes of integers small enough that no addition rounds: every order and every device gives
 *    the same bits.
 *  - `bits`: it comes of exact values by element-wise operations and views alone: fused or not, the same bits.
 *  - `close`: something on the way adds in an order of its own.
 */
export type Certainty = 'exact' | 'bits' | 'close';

export interface Value {
  readonly host: HostTensor;
  readonly certainty: Certainty;
  /** No element is greater than this in size. */
  readonly bound: number;
}

export type Step =
  | { readonly kind: 'leaf'; readonly value: number }
  | {
      readonly kind: 'apply';
      readonly operator: string;
      readonly inputs: readonly number[];
      readonly attributes: Attributes;
      readonly outputs: readonly number[];
    }
  | { readonly kind: 'read'; readonly value: number; readonly blocking: boolean }
  | { readonly kind: 'dispose'; readonly value: number }
  | { readonly kind: 'flush' };

export interface Script {
  readonly steps: readonly Step[];
  readonly values: readonly Value[];
}

const RANK: Readonly<Record<Certainty, number>> = { exact: 0, bits: 1, close: 2 };
const least = (values: readonly Value[], floor: Certainty = 'exact'): Certainty =>
  values.reduce<Certainty>((worst, { certainty }) => (RANK[certainty] > RANK[worst] ? certainty : worst), floor);

/** Element-wise operations that keep integers exact, and the bound of their result. */
const EXACT_BINARY: Readonly<Record<string, (a: number, b: number) => number>> = {
  add: (a, b) => a + b,
  sub: (a, b) => a + b,
  mul: (a, b) => a * b,
  maximum: Math.max,
  minimum: Math.max,
  'squared-difference': (a, b) => (a + b) ** 2,
};
const EXACT_UNARY: Readonly<Record<string, (a: number) => number>> = {
  neg: (a) => a,
  abs: (a) => a,
  relu: (a) => a,
  square: (a) => a * a,
  sign: () => 1,
};
/** Smooth ones, whose results stay small and whose slopes are at most about 1. */
const SMOOTH_UNARY = ['sigmoid', 'tanh', 'erf', 'gelu', 'silu', 'softplus', 'sin', 'atan', 'elu', 'gelu-tanh', 'asinh'];
const COMPARISONS = ['equal', 'not-equal', 'less', 'less-equal', 'greater', 'greater-equal'];
/** Above this a float32 sum of integers might round, and smooth functions lose digits. */
const EXACT_BOUND = 1 << 20;
const CLOSE_BOUND = 64;

class Author {
  readonly #random: Random;
  /** Most elements of a leaf. */
  readonly #elements: number;
  readonly #values: Value[] = [];
  readonly #steps: Step[] = [];
  readonly #alive: number[] = [];
  /** Values whose tensor is made. A multi-output operator makes several at once. */
  #count = 0;

  constructor(random: Random, elements: number) {
    this.#random = random;
    this.#elements = elements;
  }

  write(steps: number): Script {
    const random = this.#random;
    for (let i = random.between(1, 3); i > 0; i--) this.#leaf();
    while (this.#count < steps) {
      const before = this.#count;
      this.#operation();
      if (this.#count === before) this.#count++;
      if (random.chance(0.05)) this.#steps.push({ kind: 'flush' });
      if (random.chance(0.08)) this.#read();
      if (random.chance(0.2)) this.#dispose();
    }
    // Whatever is left is read in any order, some of it twice, and freed in any order.
    for (const value of random.shuffled(this.#alive)) {
      if (this.#alive.includes(value) && random.chance(0.6)) this.#steps.push({ kind: 'read', value, blocking: random.chance(0.5) });
      if (random.chance(0.3)) this.#dispose();
    }
    for (const value of [...this.#alive]) if (random.chance(0.3)) this.#steps.push({ kind: 'read', value, blocking: true });
    for (const value of random.shuffled(this.#alive)) this.#steps.push({ kind: 'dispose', value });
    return { steps: this.#steps, values: this.#values };
  }

  #read(): void {
    if (this.#alive.length > 0)
      this.#steps.push({ kind: 'read', value: this.#random.pick(this.#alive), blocking: this.#random.chance(0.5) });
  }

  #dispose(): void {
    if (this.#alive.length === 0) return;
    const [value] = this.#alive.splice(this.#random.below(this.#alive.length), 1);
    this.#steps.push({ kind: 'dispose', value: value as number });
  }

  #add(value: Value): number {
    const id = this.#values.push(value) - 1;
    this.#alive.push(id);
    this.#count++;
    return id;
  }

  #leaf(shape?: Shape, dtype?: DType): number {
    const random = this.#random;
    const type = dtype ?? random.pick(['float32', 'float32', 'float32', 'int32', 'bool'] as const);
    const dims = shape ?? randomShape(random, random.chance(0.15) ? random.between(5, 6) : random.between(0, 4), this.#elements);
    const host = randomTensor(random, dims, type, 'tame');
    for (let i = 0; i < host.data.length; i++) if (type !== 'bool') host.data[i] = random.between(-4, 4);
    const id = this.#add({ host, certainty: 'exact', bound: 4 });
    this.#steps.push({ kind: 'leaf', value: id });
    return id;
  }

  #of(id: number): Value {
    return this.#values[id] as Value;
  }

  /** A live value for which `fits` holds, rather a late one: chains are what fuses. */
  #find(fits: (value: Value) => boolean): number | undefined {
    const candidates = this.#alive.filter((id) => fits(this.#of(id)));
    if (candidates.length === 0) return undefined;
    if (this.#random.chance(0.6)) return candidates[Math.max(0, candidates.length - 1 - this.#random.below(3))];
    return this.#random.pick(candidates);
  }

  #apply(operator: string, inputs: readonly number[], attributes: Attributes, certainty: Certainty, bound: number): number[] {
    const values = inputs.map((id) => this.#of(id));
    const outputs = referenceRun(
      operator,
      values.map(({ host }) => host),
      attributes,
    );
    if (outputs.some(({ data }) => data.length > 7 * this.#elements)) return [];
    const ids = outputs.map((host) => this.#add({ host, certainty: host.dtype === 'bool' ? 'exact' : certainty, bound }));
    this.#steps.push({ kind: 'apply', operator, inputs, attributes, outputs: ids });
    return ids;
  }

  #operation(): void {
    const kind = this.#random.next();
    if (kind < 0.07) this.#leaf();
    else if (kind < 0.35) this.#binary();
    else if (kind < 0.55) this.#unary();
    else if (kind < 0.62) this.#logic();
    else if (kind < 0.75) this.#reduction();
    else if (kind < 0.87) this.#view();
    else if (kind < 0.92) this.#composite();
    else this.#fixed();
  }

  /** A partner that broadcasts with the value, made if there is none. */
  #partner(id: number): number {
    const { host } = this.#of(id);
    const found = this.#find((other) => other.host.dtype === host.dtype && broadcastPair(other.host.shape, host.shape) !== undefined);
    if (found !== undefined && this.#random.chance(0.8)) return found;
    return this.#leaf(broadcastable(this.#random, host.shape), host.dtype);
  }

  #binary(): void {
    const a = this.#find(({ host }) => host.dtype !== 'bool');
    if (a === undefined) return;
    const b = this.#partner(a);
    const inputs = this.#random.chance(0.5) ? [a, b] : [b, a];
    const values = inputs.map((id) => this.#of(id));
    const operator = this.#random.pick(Object.keys(EXACT_BINARY));
    const bound = (EXACT_BINARY[operator] as (a: number, b: number) => number)(values[0]!.bound, values[1]!.bound);
    const certainty = least(values);
    if (bound > (certainty === 'exact' ? EXACT_BOUND : CLOSE_BOUND)) this.#shrink(a);
    else this.#apply(operator, inputs, {}, certainty, bound);
  }

  /** Brings a value back near 0. */
  #shrink(id: number): void {
    const value = this.#of(id);
    if (value.host.dtype === 'int32' || value.certainty === 'exact') this.#apply('clip', [id], { min: -3, max: 2 }, value.certainty, 3);
    else this.#apply('tanh', [id], {}, value.certainty, 1);
  }

  #unary(): void {
    const x = this.#find(({ host }) => host.dtype !== 'bool');
    if (x === undefined) return;
    const value = this.#of(x);
    if (value.host.dtype === 'float32' && value.bound <= CLOSE_BOUND && this.#random.chance(0.4)) {
      this.#apply(this.#random.pick(SMOOTH_UNARY), [x], {}, least([value], 'bits'), Math.max(1, value.bound + 1));
      return;
    }
    if (this.#random.chance(0.1) && value.certainty === 'exact') {
      this.#apply('cast', [x], { dtype: this.#random.pick(['float32', 'int32', 'bool'] as const) }, 'exact', value.bound);
      return;
    }
    const operator = this.#random.pick(Object.keys(EXACT_UNARY));
    const bound = (EXACT_UNARY[operator] as (a: number) => number)(value.bound);
    // A sign is a leap: of a value that is only close it may be another.
    if (operator === 'sign' && value.certainty !== 'exact') return;
    if (bound > (value.certainty === 'exact' ? EXACT_BOUND : CLOSE_BOUND)) this.#shrink(x);
    else this.#apply(operator, [x], {}, value.certainty, bound);
  }

  #logic(): void {
    const bool = this.#find(({ host }) => host.dtype === 'bool');
    if (bool !== undefined && this.#random.chance(0.5)) {
      if (this.#random.chance(0.3)) {
        this.#apply('logical-not', [bool], {}, 'exact', 1);
        return;
      }
      const { shape } = this.#of(bool).host;
      const a = this.#find(({ host }) => broadcastPair(host.shape, shape) !== undefined);
      if (a === undefined) return;
      const b = this.#partner(a);
      const both = broadcastPair(this.#of(a).host.shape, this.#of(b).host.shape);
      if (both === undefined || broadcastPair(both, shape) === undefined) return;
      const values = [this.#of(a), this.#of(b)];
      this.#apply('select', [bool, a, b], {}, least(values), Math.max(...values.map(({ bound }) => bound)));
      return;
    }
    // Comparisons are leaps as well.
    const a = this.#find(({ certainty }) => certainty === 'exact');
    if (a === undefined) return;
    const b = this.#partner(a);
    if (this.#of(b).certainty === 'exact') this.#apply(this.#random.pick(COMPARISONS), [a, b], {}, 'exact', 1);
  }

  #reduction(): void {
    const random = this.#random;
    const x = this.#find(({ host }) => host.shape.length > 0);
    if (x === undefined) return;
    const { host, certainty, bound } = this.#of(x);
    const rank = host.shape.length;
    const axes = random.chance(0.4)
      ? [random.chance(0.7) ? -1 : random.between(-rank, rank - 1)]
      : random.shuffled(host.shape.map((_, i) => i)).slice(random.below(rank));
    const attributes: Attributes = random.chance(0.1) ? {} : { axes, keepDims: random.chance(0.5) };
    if (host.dtype === 'bool') {
      this.#apply(random.pick(['any', 'all']), [x], attributes, 'exact', 1);
      return;
    }
    if (certainty === 'exact' && random.chance(0.2)) {
      const axis = random.below(rank);
      if (host.shape[axis] !== 0) this.#apply(random.pick(['argmax', 'argmin']), [x], { axis }, 'exact', 100);
      return;
    }
    const operator = random.pick(['sum', 'sum', 'max', 'min', 'mean']);
    if (operator === 'max' || operator === 'min') {
      // The identity of an empty one is infinite; what follows could make NaN of it.
      if (host.data.length > 0) this.#apply(operator, [x], attributes, certainty, bound);
      return;
    }
    if (operator === 'mean') {
      if (host.data.length > 0 && bound <= CLOSE_BOUND) this.#apply(operator, [x], attributes, 'close', bound);
      return;
    }
    const total = bound * Math.max(1, host.data.length);
    if (certainty === 'exact' && total <= EXACT_BOUND) this.#apply('sum', [x], attributes, 'exact', total);
    else if (host.dtype === 'float32' && host.data.length > 0 && bound <= CLOSE_BOUND) {
      this.#apply('mean', [x], attributes, 'close', bound);
    }
  }

  #view(): void {
    const random = this.#random;
    const x = this.#find(() => true);
    if (x === undefined) return;
    const { host, certainty, bound } = this.#of(x);
    const { shape } = host;
    const rank = shape.length;
    const choice = random.below(8);
    const view = (operator: string, attributes: Attributes) => this.#apply(operator, [x], attributes, certainty, bound);
    if (choice === 0) view('transpose', { perm: random.shuffled(shape.map((_, i) => i)) });
    else if (choice === 1) {
      const begin = shape.map((size) => random.below(size + 1));
      view('slice', { begin, size: shape.map((size, i) => (random.chance(0.3) ? -1 : random.between(0, size - (begin[i] as number)))) });
    } else if (choice === 2) view('reverse', random.chance(0.2) ? {} : { axes: shape.map((_, i) => i).filter(() => random.chance(0.5)) });
    else if (choice === 3 && rank < 6)
      view('expand', {
        shape: [
          ...(random.chance(0.5) ? [random.between(1, 3)] : []),
          ...shape.map((size) => (size === 1 && random.chance(0.5) ? random.between(2, 4) : size)),
        ],
      });
    else if (choice === 4 && rank < 6) view('expand-dims', { axis: random.between(-rank - 1, rank) });
    else if (choice === 5) view('squeeze', {});
    else if (choice === 6) {
      const steps = shape.map(() => random.pick([1, 1, 2, -1, -2]));
      const begin = shape.map((size, i) =>
        (steps[i] as number) > 0 ? random.below(Math.max(1, size)) : Math.max(0, size - 1 - random.below(2)),
      );
      const end = shape.map((size, i) => ((steps[i] as number) > 0 ? size : -1));
      if (shape.every((size) => size > 0)) view('strided-slice', { begin, end, strides: steps });
    } else view('reshape', { shape: randomFactors(random, elementCount(shape), shape) });
  }

  #composite(): void {
    const random = this.#random;
    const x = this.#find(
      ({ host, bound }) => host.dtype === 'float32' && host.shape.length > 0 && host.data.length > 0 && bound <= CLOSE_BOUND,
    );
    if (x === undefined) return;
    const { shape } = this.#of(x).host;
    const last = shape[shape.length - 1] as number;
    const choice = random.pick(['softmax', 'log-softmax', 'log-sum-exp', 'layer-norm', 'rms-norm', 'leaky-relu', 'clip'] as const);
    const rank = shape.length;
    const axis = random.chance(0.7) ? -1 : random.between(-rank, rank - 1);
    if (choice === 'softmax') this.#apply(choice, [x], { axis }, 'close', 1);
    else if (choice === 'log-softmax') this.#apply(choice, [x], { axis }, 'close', 2 * CLOSE_BOUND + 10);
    else if (choice === 'log-sum-exp') this.#apply(choice, [x], { axes: [axis], keepDims: random.chance(0.5) }, 'close', CLOSE_BOUND + 10);
    else if (choice === 'leaky-relu') this.#apply(choice, [x], {}, least([this.#of(x)], 'bits'), this.#of(x).bound);
    else if (choice === 'clip') this.#apply(choice, [x], { min: -2, max: 1 }, this.#of(x).certainty, 2);
    else {
      // Of a value that is only close, its noise over a small deviation would be all that is left.
      if (this.#of(x).certainty === 'close') return;
      const parameters = random.below(choice === 'layer-norm' ? 3 : 2);
      const inputs = [x, ...Array.from({ length: parameters }, () => this.#leaf([last], 'float32'))];
      this.#apply(choice, inputs, { epsilon: 0.1 }, 'close', 4 * Math.sqrt(last) + 4);
    }
  }

  #fixed(): void {
    const random = this.#random;
    const choice = random.pick(['matmul', 'matmul', 'concat', 'pad', 'tile', 'gather', 'cumsum', 'one-hot', 'top-k', 'scatter-nd']);
    if (choice === 'matmul') {
      const a = this.#find(
        ({ host, bound }) => host.dtype === 'float32' && host.shape.length >= 2 && host.shape.length <= 4 && bound <= 16,
      );
      if (a === undefined) return;
      const { host, certainty, bound } = this.#of(a);
      const [m, k] = host.shape.slice(-2) as [number, number];
      const [transposeA, transposeB] = [random.chance(0.2), random.chance(0.2)];
      const [inner, n] = [transposeA ? m : k, random.between(1, 9)];
      const b = this.#leaf(transposeB ? [n, inner] : [inner, n], 'float32');
      const bias = random.chance(0.4) ? [this.#leaf([n], 'float32')] : [];
      const activation = random.pick(['none', 'none', 'relu', 'gelu', 'tanh']);
      const total = bound * 4 * Math.max(1, inner) + 4;
      const exact = certainty === 'exact' && total <= EXACT_BOUND && (activation === 'none' || activation === 'relu');
      if (exact || total <= CLOSE_BOUND)
        this.#apply('matmul', [a, b, ...bias], { transposeA, transposeB, activation }, exact ? 'exact' : 'close', total);
      return;
    }
    const x = this.#find(({ host }) => host.shape.length > 0);
    if (x === undefined) return;
    const { host, certainty, bound } = this.#of(x);
    const { shape, dtype } = host;
    const rank = shape.length;
    const axis = random.below(rank);
    if (choice === 'concat') {
      const other = this.#find(
        (value) =>
          value.host.dtype === dtype &&
          value.host.shape.length === rank &&
          value.host.shape.every((size, i) => i === axis || size === shape[i]),
      );
      const inputs = random.chance(0.3) ? [x] : [x, other ?? x, x];
      const values = inputs.map((id) => this.#of(id));
      this.#apply('concat', inputs, { axis }, least(values), Math.max(...values.map((value) => value.bound)));
    } else if (choice === 'pad') {
      this.#apply(
        'pad',
        [x],
        { paddings: shape.flatMap(() => [random.below(3), random.below(3)]), value: 1 },
        certainty,
        Math.max(bound, 1),
      );
    } else if (choice === 'tile') this.#apply('tile', [x], { reps: shape.map(() => random.between(1, 2)) }, certainty, bound);
    else if (choice === 'gather') {
      const size = shape[axis] as number;
      if (size === 0) return;
      const indices = this.#add({
        host: randomIndices(random, randomShape(random, random.below(3), 20), size),
        certainty: 'exact',
        bound: size,
      });
      this.#steps.push({ kind: 'leaf', value: indices });
      if (rank - 1 + (this.#of(indices).host.shape.length ?? 0) <= 6) this.#apply('gather', [x, indices], { axis }, certainty, bound);
    } else if (choice === 'cumsum') {
      const total = bound * Math.max(1, shape[axis] as number);
      if (dtype !== 'bool' && certainty === 'exact' && total <= EXACT_BOUND) {
        this.#apply('cumsum', [x], { axis, exclusive: random.chance(0.5), reverse: random.chance(0.5) }, 'exact', total);
      }
    } else if (choice === 'one-hot') {
      if (dtype === 'int32' && rank < 5) this.#apply('one-hot', [x], { depth: random.between(1, 6) }, 'exact', 1);
    } else if (choice === 'top-k') {
      const size = shape[rank - 1] as number;
      if (dtype !== 'bool' && certainty === 'exact')
        this.#apply('top-k', [x], { k: random.between(0, Math.min(4, size)) }, 'exact', Math.max(bound, size));
    } else if (choice === 'scatter-nd' && dtype !== 'bool' && certainty === 'exact' && shape.length <= 3) {
      const count = shape[0] as number;
      const total = bound * Math.max(1, count);
      const indices = this.#add({ host: randomIndices(random, [count, 1], 5), certainty: 'exact', bound: 5 });
      this.#steps.push({ kind: 'leaf', value: indices });
      if (total <= EXACT_BOUND) this.#apply('scatter-nd', [indices, x], { shape: [5, ...shape.slice(1)] }, 'exact', total);
    }
  }
}

/** Another shape of the same number of elements. */
function randomFactors(random: Random, count: number, shape: Shape): number[] {
  if (count === 0 || random.chance(0.2)) return random.shuffled(shape);
  const factors: number[] = [];
  let rest = count;
  for (let divisor = 2; rest > 1; divisor++) {
    while (rest % divisor === 0) {
      factors.push(divisor);
      rest /= divisor;
    }
  }
  const result = new Array<number>(random.chance(0.15) ? random.between(5, 6) : random.between(1, 4)).fill(1);
  for (const factor of factors) {
    const i = random.below(result.length);
    result[i] = (result[i] as number) * factor;
  }
  return result;
}

/**
 * A program of about `steps` tensors, its leaves of at most `elements`. The same numbers give the same
 * program; fewer steps a shorter one.
 */
export function randomScript(seed: number, steps: number, elements = 600): Script {
  return new Author(new Random(seed), elements).write(steps);
}
