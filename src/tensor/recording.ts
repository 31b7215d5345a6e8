import type { GraphExternal, Graph, GraphNode } from './graph.ts';
import { Interner } from './shape-info.ts';
import type { Tensor } from './tensor.ts';
import { isContiguous } from './view.ts';

const DTYPE_CODE = { float32: 0, int32: 1, bool: 2 } as const;
const NEEDED = 1;
const ALIVE = 2;
/** Flushes whose products have read a matrix before it counts as a constant, which is worth packing. */
const REUSED_PRODUCTS = 2;

let stamp = 0;
const strideIds = new Interner();

/**
 * The pending operations of one flush: which nodes run, on which externals, and their form as a list of
 * integers (the tape). Two recordings of the same tape are served by the same plan.
 */
export class Recording {
  readonly nodes: Tensor[] = [];
  readonly externals: Tensor[] = [];
  #tape = new Int32Array(4096);
  #length = 0;
  #hash = 0;
  #target: Tensor | undefined;
  #keep = false;

  /** The form, in the first `length` integers. Written anew by the next collect(). */
  get tape(): Int32Array {
    return this.#tape;
  }

  get length(): number {
    return this.#length;
  }

  get hash(): number {
    return this.#hash;
  }

  /** Takes what is alive of `pending` and all that it needs. With `keep`, everything that may be asked for gets memory. */
  collect(pending: readonly Tensor[], target: Tensor | undefined, keep = false): this {
    stamp++;
    this.nodes.length = 0;
    this.externals.length = 0;
    this.#length = 0;
    this.#target = target;
    this.#keep = keep;
    for (let i = 0; i < pending.length; i++) {
      const tensor = pending[i] as Tensor;
      if (tensor.definition !== undefined && tensor.storage === undefined && (tensor.handle || tensor.uses > 0)) this.#visit(tensor);
    }
    if (target !== undefined && target.definition !== undefined && target.storage === undefined) this.#visit(target);
    // Whether a node is needed is known only when all are numbered.
    this.#writtenExternals = 0;
    for (let i = 0; i < this.nodes.length; i++) this.#write(this.nodes[i] as Tensor);
    let hash = 0x811c9dc5;
    const tape = this.#tape;
    for (let i = 0; i < this.#length; i++) hash = Math.imul(hash ^ (tape[i] as number), 0x01000193);
    this.#hash = hash;
    return this;
  }

  /** Numbers a node after its inputs. */
  #visit(tensor: Tensor): void {
    if (tensor.stamp === stamp) return;
    tensor.stamp = stamp;
    const { inputs } = tensor;
    const product = tensor.definition?.name === 'matmul';
    for (let i = 0; i < inputs.length; i++) {
      const input = inputs[i] as Tensor;
      if (product && i === 1 && input.storage !== undefined && input.storage.productStamp !== stamp) {
        input.storage.productStamp = stamp;
        input.storage.products++;
      }
      if (input.stamp === stamp) continue;
      if (input.definition !== undefined && input.storage === undefined) this.#visit(input);
      else {
        input.stamp = stamp;
        input.index = ~(this.externals.push(input) - 1);
      }
    }
    tensor.index = this.nodes.push(tensor) - 1;
    // An operator's outputs go together; one that nobody can ask for stays out, and the planner makes room for it.
    const { siblings } = tensor;
    if (siblings === undefined) return;
    for (let i = 0; i < siblings.length; i++) {
      const sibling = siblings[i] as Tensor;
      if (sibling.storage === undefined && (sibling.handle || sibling.uses > 0)) this.#visit(sibling);
    }
  }

  #needs(tensor: Tensor): boolean {
    return (
      tensor === this.#target ||
      (this.#keep && tensor.handle) ||
      tensor.siblings !== undefined ||
      (tensor.handle && (tensor.uses === 0 || tensor.skipped)) ||
      (tensor.skipped && tensor.uses > 0)
    );
  }

  #put(value: number): void {
    if (this.#length === this.#tape.length) {
      const larger = new Int32Array(this.#tape.length * 2);
      larger.set(this.#tape);
      this.#tape = larger;
    }
    this.#tape[this.#length++] = value;
  }

  #writtenExternals = 0;

  #write(tensor: Tensor): void {
    this.#put(tensor.operator);
    this.#put(tensor.attributesId);
    this.#put(tensor.info.id);
    this.#put(
      DTYPE_CODE[tensor.dtype] | ((this.#needs(tensor) ? NEEDED : 0) << 2) | ((tensor.handle ? ALIVE : 0) << 2) | (tensor.output << 5),
    );
    const { inputs } = tensor;
    this.#put(inputs.length);
    for (let i = 0; i < inputs.length; i++) {
      const input = inputs[i] as Tensor;
      this.#put(input.index);
      // An external is described where it first occurs; they are numbered in that order.
      if (input.index < 0 && ~input.index === this.#writtenExternals) {
        this.#writtenExternals++;
        this.#writeExternal(input);
      }
    }
  }

  #writeExternal(input: Tensor): void {
    this.#put(input.info.id);
    const { storage } = input;
    if (storage === undefined) {
      this.#put(DTYPE_CODE[input.dtype] | (input.constant ? 4 : 8));
      if (input.constant) {
        float[0] = input.value as number;
        this.#put(bits[0] as number);
        this.#put(bits[1] as number);
      }
      return;
    }
    this.#put(DTYPE_CODE[input.dtype] | (storage.products >= REUSED_PRODUCTS ? 32 : 16));
    if (isContiguous(input.info, input)) this.#put(-1);
    else this.#put(strideIds.id(input.strides.join()));
  }

  /** The form as a graph, for the planner. */
  graph(): Graph {
    return {
      nodes: this.nodes.map(
        (tensor): GraphNode => ({
          definition: tensor.definition as GraphNode['definition'],
          attributes: tensor.attributes,
          inputs: tensor.inputs.map((input) => input.index),
          info: tensor.info,
          dtype: tensor.dtype,
          needed: this.#needs(tensor),
          alive: tensor.handle,
          output: tensor.output,
        }),
      ),
      externals: this.externals.map((input): GraphExternal => {
        const { info, dtype, storage } = input;
        if (storage === undefined) {
          return input.constant ? { kind: 'constant', info, dtype, value: input.value as number } : { kind: 'scalar', info, dtype };
        }
        const strides = isContiguous(info, input) ? info.strides : input.strides;
        // The offset is a run-time matter: it is added to the address.
        return { kind: 'storage', info, dtype, view: { strides, offset: 0 }, reused: storage.products >= REUSED_PRODUCTS };
      }),
    };
  }
}

const float = new Float64Array(1);
const bits = new Int32Array(float.buffer);
