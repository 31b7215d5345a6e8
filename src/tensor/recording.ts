import { dtypeCode, type Graph, type GraphExternal, type GraphNode } from './graph.ts';
import type { Operation } from './operations.ts';
import { Interner } from './shape-info.ts';
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

const HASH_START = 0x811c9dc5;
const HASH_FACTOR = 0x01000193;

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
  #tape = new Int32Array(4096);
  /** Integers of the part of the operations, and its hash. */
  #recorded = 0;
  #recordedHash = HASH_START;
  #length = 0;
  #hash = HASH_START;
  #live = 0;

  /** Nodes recorded. */
  get count(): number {
    return this.#count;
  }

  /** Of these, at the last close(): those that somebody can ask for, directly or through others. */
  get live(): number {
    return this.#live;
  }

  /** The form, in the first `length` integers. Valid from close() to the next operation. */
  get tape(): Int32Array {
    return this.#tape;
  }

  get length(): number {
    return this.#length;
  }

  get hash(): number {
    return this.#hash;
  }

  /** Forgets everything. */
  clear(): void {
    this.#window = ++windows;
    // Not by their length: the arrays keep their room. But they must not keep tensors from being collected.
    this.nodes.fill(undefined, 0, this.#count);
    this.externals.fill(undefined, 0, this.#externals);
    this.#count = this.#externals = this.#recorded = 0;
    this.#recordedHash = HASH_START;
  }

  /** Records what is still wanted of the nodes again; for when tensors were numbered by another recording, or some are dead weight. */
  renew(): void {
    const nodes = this.nodes.slice(0, this.#count) as Tensor[];
    this.clear();
    for (const tensor of nodes) if (isUnfinished(tensor) && (tensor.handle || tensor.uses > 0)) this.include(tensor);
  }

  /** Numbers a new node. Its inputs that are unfinished, from before the last flush, are recorded with it. */
  add(tensor: Tensor): void {
    const { inputs } = tensor;
    const operation = tensor.operation as Operation;
    for (let i = 0; i < inputs.length; i++) {
      const input = inputs[i] as Tensor;
      if (input.window !== this.#window) this.#number(input);
    }
    if (operation.definition.name === 'matmul') this.#countProduct(inputs[1] as Tensor);
    tensor.window = this.#window;
    tensor.index = this.#count;
    this.nodes[this.#count++] = tensor;
    if (this.#recorded + 3 + inputs.length > this.#tape.length) this.#grow();
    const tape = this.#tape;
    let at = this.#recorded;
    let hash = this.#recordedHash;
    tape[at] = operation.id;
    hash = Math.imul(hash ^ operation.id, HASH_FACTOR);
    const type = (tensor.info.id << 3) | dtypeCode(tensor.dtype);
    tape[at + 1] = type;
    hash = Math.imul(hash ^ type, HASH_FACTOR);
    const shape = (inputs.length << 4) | tensor.output;
    tape[at + 2] = shape;
    hash = Math.imul(hash ^ shape, HASH_FACTOR);
    at += 3;
    for (let i = 0; i < inputs.length; i++) {
      const { index } = inputs[i] as Tensor;
      tape[at++] = index;
      hash = Math.imul(hash ^ index, HASH_FACTOR);
    }
    this.#recorded = at;
    this.#recordedHash = hash;
  }

  /** Records an unfinished tensor, after what it is made from, unless that has been done. */
  include(tensor: Tensor): void {
    if (tensor.window === this.#window) return;
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
    input.window = this.#window;
    input.index = ~this.#externals;
    this.externals[this.#externals++] = input;
  }

  /** Counts the flushes whose products read a matrix. */
  #countProduct({ storage }: Tensor): void {
    if (storage === undefined || storage.productWindow === this.#window) return;
    storage.productWindow = this.#window;
    storage.products++;
  }

  #grow(): void {
    const larger = new Int32Array(this.#tape.length * 2);
    larger.set(this.#tape);
    this.#tape = larger;
  }

  #put(value: number): void {
    if (this.#length === this.#tape.length) this.#grow();
    this.#tape[this.#length++] = value;
    this.#hash = Math.imul(this.#hash ^ value, HASH_FACTOR);
  }

  /** Completes the form: `target` is to get memory, and with `keep` everything that may be asked for. */
  close(target: Tensor | undefined, keep: boolean): void {
    this.#length = this.#recorded;
    this.#hash = this.#recordedHash;
    this.#target = target;
    this.#keep = keep;
    this.#live = 0;
    for (let i = 0; i < this.#externals; i++) this.#putExternal(this.externals[i] as Tensor);
    let word = 0;
    for (let i = 0; i < this.#count; i++) {
      const state = this.#state(this.nodes[i] as Tensor);
      if (state !== 0) this.#live++;
      word = (word << STATE_BITS) | state;
      if (i % STATES_A_WORD === STATES_A_WORD - 1) this.#put(word);
      if (i % STATES_A_WORD === STATES_A_WORD - 1) word = 0;
    }
    this.#put(word);
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

  #putExternal(input: Tensor): void {
    const { storage } = input;
    this.#put(input.info.id);
    if (storage === undefined) {
      this.#put(dtypeCode(input.dtype) | (input.constant ? 8 : 16));
      if (!input.constant) return;
      float[0] = input.value as number;
      this.#put(bits[0] as number);
      this.#put(bits[1] as number);
      return;
    }
    this.#put(dtypeCode(input.dtype) | (storage.products >= REUSED_PRODUCTS ? 64 : 32));
    this.#put(isContiguous(input.info, input) ? -1 : strideIds.id(input.strides.join()));
  }

  /** The closed form as a graph, for the planner. */
  graph(): Graph {
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
        inputs: tensor.inputs.map(({ index }) => (index < 0 ? index : (numbers[index] as number))),
        info: tensor.info,
        dtype: tensor.dtype,
        needed: (state & NEEDED) !== 0,
        alive: (state & ALIVE) !== 0,
        output: tensor.output,
        tag: i,
      });
    }
    return { nodes, externals: this.externals.slice(0, this.#externals).map((input) => describe(input as Tensor)) };
  }
}

/** It is recorded, and has not been computed. */
export function isUnfinished(tensor: Tensor): boolean {
  return tensor.operation !== undefined && tensor.storage === undefined;
}

function describe(input: Tensor): GraphExternal {
  const { info, dtype, storage } = input;
  if (storage === undefined) {
    return input.constant ? { kind: 'constant', info, dtype, value: input.value as number } : { kind: 'scalar', info, dtype };
  }
  const strides = isContiguous(info, input) ? info.strides : input.strides;
  // The offset is a run-time matter: it is added to the address.
  return { kind: 'storage', info, dtype, view: { strides, offset: 0 }, reused: storage.products >= REUSED_PRODUCTS };
}

const float = new Float64Array(1);
const bits = new Int32Array(float.buffer);
