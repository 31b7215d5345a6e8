import { dtypeCode, type Graph, type GraphExternal, type GraphNode } from './graph.ts';
import type { Operation } from './operations.ts';
import { Interner } from './shape-info.ts';
import { Sizes } from './sizes.ts';
import { Tape } from './tape.ts';
import type { Tensor } from './tensor.ts';
import { isContiguous } from './view.ts';

/** Flushes whose products have read a matrix before it counts as a constant, which is worth packing. */
const REUSED_PRODUCTS = 2;

/** What becomes of a node: three bits. A node that nobody can ask for any more has none of them. */
const LIVE = 1;
const ALIVE = 2;
const NEEDED = 4;
const STATE_BITS = 3;
const STATES_A_WORD = 8;

/** Integers of an operation of at most two inputs: the operation, the type, the shape of the entry, and the inputs. */
const MOST_WORDS = 5;
/** In the third of them: how many inputs there are, above which output it is. */
const INPUTS_SHIFT = 4;

let windows = 0;
const strideIds = new Interner();

/**
 * The operations recorded since the last flush, and their form as a list of integers (the tape). Two
 * recordings of the same tape are served by the same plan. The part of the operations is written while they
 * are recorded, so that little is left to do when a value is asked for; what can still change until then,
 * where values lie and who can ask for them, is written by close().
 */
export class Recording {
  /** Every node recorded, in an order in which each comes after its inputs. Those that nobody can ask for any more have no operation. */
  readonly nodes: (Tensor | undefined)[] = [];
  /** What they read that is not recorded here. */
  readonly externals: (Tensor | undefined)[] = [];
  #count = 0;
  #externals = 0;
  #window = ++windows;
  readonly #tape = new Tape();
  /** The form with numbers for sizes. */
  readonly #generic = new Tape();
  /** Integers of the part of the operations. */
  #recorded = 0;
  #live = 0;

  /** Nodes recorded. */
  get count(): number {
    return this.#count;
  }

  /** Of these, at the last close(): those that somebody can ask for, directly or through others. */
  get live(): number {
    return this.#live;
  }

  /** The form. Valid from close() to the next operation. */
  get form(): Tape {
    return this.#tape;
  }

  /** Forgets everything. */
  clear(): void {
    this.#window = ++windows;
    // Not by their length: the arrays keep their room. But they must not keep tensors from being collected.
    for (let i = 0; i < this.#count; i++) this.nodes[i] = undefined;
    for (let i = 0; i < this.#externals; i++) this.externals[i] = undefined;
    this.#count = this.#externals = this.#recorded = 0;
  }

  /** Records what is still wanted of the nodes again; for when tensors were numbered by another recording, or some are dead weight. */
  renew(): void {
    const nodes = this.nodes.slice(0, this.#count) as Tensor[];
    this.clear();
    for (const tensor of nodes) if (isUnfinished(tensor) && (tensor.handle || tensor.uses > 0)) this.include(tensor);
  }

  /** Numbers a new node. Its inputs that are unfinished, from before the last flush, are recorded with it. */
  add(tensor: Tensor): void {
    if (tensor.extra !== undefined) {
      this.#addAny(tensor, tensor.extra.others.length);
      return;
    }
    const { first, second } = tensor;
    const operation = tensor.operation as Operation;
    if (first !== undefined && !this.#has(first)) this.#number(first);
    if (second !== undefined && !this.#has(second)) this.#number(second);
    if (operation.isProduct) this.#countProduct(second as Tensor);
    tensor.index = this.#count;
    this.nodes[this.#count++] = tensor;
    if (this.#recorded + MOST_WORDS > this.#tape.words.length) this.#tape.grow();
    const tape = this.#tape.words;
    const at = this.#recorded;
    tape[at] = operation.id;
    tape[at + 1] = tensor.type.id;
    if (first === undefined) {
      tape[at + 2] = 0;
      this.#recorded = at + 3;
      return;
    }
    tape[at + 3] = first.index;
    if (second === undefined) {
      tape[at + 2] = 1 << INPUTS_SHIFT;
      this.#recorded = at + 4;
      return;
    }
    tape[at + 2] = 2 << INPUTS_SHIFT;
    tape[at + 4] = second.index;
    this.#recorded = at + 5;
  }

  /** The same for any number of inputs and outputs. */
  #addAny(tensor: Tensor, others: number): void {
    const count = tensor.inputCount;
    for (let i = 0; i < count; i++) {
      const input = tensor.input(i);
      if (!this.#has(input)) this.#number(input);
    }
    const operation = tensor.operation as Operation;
    if (operation.isProduct) this.#countProduct(tensor.second as Tensor);
    tensor.index = this.#count;
    this.nodes[this.#count++] = tensor;
    while (this.#recorded + MOST_WORDS + others > this.#tape.words.length) this.#tape.grow();
    const tape = this.#tape.words;
    let at = this.#recorded;
    tape[at] = operation.id;
    tape[at + 1] = tensor.type.id;
    tape[at + 2] = (count << INPUTS_SHIFT) | tensor.output;
    at += 3;
    for (let i = 0; i < count; i++) tape[at++] = tensor.input(i).index;
    this.#recorded = at;
  }

  /** Whether the tensor has a number here. */
  #has(tensor: Tensor): boolean {
    const { index } = tensor;
    return (index < 0 ? this.externals[~index] : this.nodes[index]) === tensor;
  }

  /** Records an unfinished tensor, after what it is made from, unless that has been done. */
  include(tensor: Tensor): void {
    if (this.#has(tensor)) return;
    this.add(tensor);
    // An operator's outputs go together; one that nobody can ask for stays out, and the planner makes room for it.
    const { siblings } = tensor;
    if (siblings === undefined) return;
    for (const sibling of siblings) if (isUnfinished(sibling) && (sibling.handle || sibling.uses > 0)) this.include(sibling);
  }

  #number(input: Tensor): void {
    if (isUnfinished(input)) {
      this.include(input);
      return;
    }
    input.index = ~this.#externals;
    this.externals[this.#externals++] = input;
  }

  /** Counts the flushes whose products read a matrix. */
  #countProduct({ storage }: Tensor): void {
    if (storage === undefined || storage.productWindow === this.#window) return;
    storage.productWindow = this.#window;
    storage.products++;
  }

  /** Completes the form: `target` is to get memory, and with `keep` everything that may be asked for. */
  close(target: Tensor | undefined, keep: boolean): void {
    this.#tape.restart(this.#recorded);
    this.#target = target;
    this.#keep = keep;
    for (let i = 0; i < this.#externals; i++) this.#putExternal(this.#tape, this.externals[i] as Tensor, undefined);
    this.#putStates(this.#tape);
  }

  #putStates(tape: Tape): void {
    this.#live = 0;
    let word = 0;
    for (let i = 0; i < this.#count; i++) {
      const state = this.#state(this.nodes[i] as Tensor);
      if (state !== 0) this.#live++;
      word = (word << STATE_BITS) | state;
      if (i % STATES_A_WORD === STATES_A_WORD - 1) tape.put(word);
      if (i % STATES_A_WORD === STATES_A_WORD - 1) word = 0;
    }
    tape.put(word);
  }

  #target: Tensor | undefined;
  #keep = false;

  #state(tensor: Tensor): number {
    const { handle, uses, skipped } = tensor;
    if (tensor.operation === undefined || !(handle || uses > 0 || tensor === this.#target)) return 0;
    const needed =
      (handle && (uses === 0 || skipped || this.#keep)) ||
      (skipped && uses > 0) ||
      tensor.siblings !== undefined ||
      tensor === this.#target;
    return LIVE | (handle ? ALIVE : 0) | (needed ? NEEDED : 0);
  }

  #putExternal(tape: Tape, input: Tensor, sizes: Sizes | undefined): void {
    const { storage } = input;
    tape.put((sizes?.shape(input.info) ?? input.info).id);
    if (storage === undefined) {
      tape.put(dtypeCode(input.dtype) | (input.constant ? 8 : 16));
      if (!input.constant) return;
      float[0] = input.value as number;
      tape.put(bits[0] as number);
      tape.put(bits[1] as number);
      return;
    }
    tape.put(dtypeCode(input.dtype) | (storage.products >= REUSED_PRODUCTS ? 64 : 32));
    tape.put(isContiguous(input.info, input) ? -1 : strideIds.id(stridesOf(input, sizes).join()));
  }

  readonly #sizes = new Sizes();

  /** What primes stand for the sizes of the closed form. Valid until it is asked for again. */
  sizes(): Sizes {
    const sizes = this.#sizes;
    sizes.restart();
    for (let i = 0; i < this.#externals; i++) relateStrides(this.externals[i] as Tensor, sizes);
    for (let i = 0; i < this.#count; i++) {
      const tensor = this.nodes[i] as Tensor;
      if (tensor.operation?.definition.kind === 'view') relateView(tensor, sizes);
    }
    return sizes;
  }

  /**
   * The closed form with numbers for sizes. Recordings for which it is the same are computed by the same kernels in the
   * same order.
   */
  generic(sizes: Sizes): Tape {
    const generic = this.#generic;
    const recorded = this.#tape.words;
    generic.restart();
    let at = 0;
    for (let i = 0; i < this.#count; i++) {
      const { info, operation } = this.nodes[i] as Tensor;
      const shape = recorded[at + 2] as number;
      generic.put(operation?.form ?? (recorded[at] as number));
      generic.put((sizes.shape(info).id << 3) | ((recorded[at + 1] as number) & 7));
      generic.put(shape);
      at += 3;
      for (const end = at + (shape >> INPUTS_SHIFT); at < end; at++) generic.put(recorded[at] as number);
    }
    for (let i = 0; i < this.#externals; i++) this.#putExternal(generic, this.externals[i] as Tensor, sizes);
    this.#putStates(generic);
    return generic;
  }

  /** The closed form as a graph, for the planner; with `sizes`, the generic one. */
  graph(sizes?: Sizes): Graph {
    const numbers = new Int32Array(this.#count);
    const nodes: GraphNode[] = [];
    for (let i = 0; i < this.#count; i++) {
      const tensor = this.nodes[i] as Tensor;
      const state = this.#state(tensor);
      if (state === 0) continue;
      const { definition, attributes } = tensor.operation as Operation;
      numbers[i] = nodes.length;
      nodes.push({
        definition,
        attributes,
        inputs: inputNumbers(tensor, numbers),
        info: sizes?.shape(tensor.info) ?? tensor.info,
        dtype: tensor.dtype,
        needed: (state & NEEDED) !== 0,
        alive: (state & ALIVE) !== 0,
        output: tensor.output,
        tag: i,
      });
    }
    return { nodes, externals: this.external(sizes) };
  }

  /** What the graph reads. */
  external(sizes?: Sizes): GraphExternal[] {
    const result = new Array<GraphExternal>(this.#externals);
    for (let i = 0; i < result.length; i++) result[i] = describe(this.externals[i] as Tensor, sizes);
    return result;
  }
}

/** It is recorded, and has not been computed. */
export function isUnfinished(tensor: Tensor): boolean {
  return tensor.operation !== undefined && tensor.storage === undefined;
}

function inputNumbers(tensor: Tensor, numbers: Int32Array): number[] {
  const inputs: number[] = [];
  for (let i = 0; i < tensor.inputCount; i++) {
    const { index } = tensor.input(i);
    inputs.push(index < 0 ? index : (numbers[index] as number));
  }
  return inputs;
}

function describe(input: Tensor, sizes: Sizes | undefined): GraphExternal {
  const { dtype, storage } = input;
  const info = sizes?.shape(input.info) ?? input.info;
  if (storage === undefined) {
    return input.constant ? { kind: 'constant', info, dtype, value: input.value as number } : { kind: 'scalar', info, dtype };
  }
  // The offset is a run-time matter: it is added to the address.
  const view = isContiguous(input.info, input) ? info.contiguous : { strides: stridesOf(input, sizes), offset: 0 };
  return { kind: 'storage', info, dtype, view, reused: storage.products >= REUSED_PRODUCTS };
}

function stridesOf({ info, strides }: Tensor, sizes: Sizes | undefined): readonly number[] {
  if (sizes === undefined) return strides;
  // Of a dimension of size 1, whose stride can be any number, nobody looks at it.
  return strides.map((stride, i) => (info.dims[i] === 1 ? 0 : sizes.stride(stride, info.dims[i] as number)));
}

/** Strides that go on where an inner dimension ends are products. */
function relateStrides(input: Tensor, sizes: Sizes): void {
  if (input.storage === undefined || isContiguous(input.info, input)) return;
  const { dims } = input.info;
  const order = [...input.strides.keys()].filter((i) => dims[i] !== 1 && input.strides[i] !== 0);
  const stride = (i: number): number => input.strides[i] as number;
  order.sort((a, b) => stride(a) - stride(b));
  order.forEach((axis, i) => {
    if (stride(axis) < 0) sizes.giveUp();
    const inner = order[i - 1];
    if (inner === undefined || stride(inner) <= 1) return;
    const size = dims[inner] as number;
    if (stride(axis) === stride(inner) * size) sizes.divide(stride(axis), [stride(inner), size]);
  });
}

/** Views whose strides are no products of sizes have no generic form. (An offset is only asked whether it is 0.) */
function relateView(tensor: Tensor, sizes: Sizes): void {
  const { definition, attributes } = tensor.operation as Operation;
  if (definition.name === 'reshape') sizes.relate((tensor.first as Tensor).info, tensor.info);
  else if (definition.name === 'reverse') sizes.giveUp();
  else if (definition.name === 'strided-slice') {
    if ((attributes['strides'] as readonly number[]).some((step) => step !== 1)) sizes.giveUp();
  }
}

const float = new Float64Array(1);
const bits = new Int32Array(float.buffer);
