import type { DType } from '../ops/define.ts';
import type { MapName, ProgramInput, ProgramNode } from '../ops/program.ts';
import type { Queue } from '../runtime/queue.ts';
import type { System } from '../runtime/system.ts';
import { mapCostNs } from './emission.ts';
import type { ShapeInfo } from './shape-info.ts';
import { Storage } from './storage.ts';
import type { Tensor } from './tensor.ts';
import { tilesFor } from './tiles.ts';
import { isContiguous } from './view.ts';

interface Kernel {
  readonly slot: number;
  readonly costNs: number;
}

const DTYPES = { float32: 0, int32: 1, bool: 2 } as const;
/** Kinds of operands: none, memory of a dtype, a value of a dtype. */
const MEMORY = 1;
const VALUE = 4;
const KINDS = 7;
/** Operands of the operation with the most: select. */
const MOST_INPUTS = 3;
const ELEMENT_BYTES = 4;

/**
 * The short way of an element-wise operation when fusion is off: its operands lie in memory, contiguous
 * and of its own shape, or are single host values, so its task can be written at once, without a
 * recording, a form or a plan.
 */
export class Immediate {
  readonly #system: System;
  readonly #queue: Queue;
  readonly #kernels = new Map<number, Kernel>();
  // Written anew for every task; the ring copies them.
  readonly #pointers: number[] = [];
  readonly #words: number[] = [];
  readonly #order: { after: number; dependencies: { queue: number; sequence: number }[] } = { after: -1, dependencies: [] };
  readonly #float = new Float32Array(1);
  readonly #bits = new Int32Array(this.#float.buffer);

  constructor(system: System) {
    this.#system = system;
    this.#queue = system.queue(0);
  }

  /** The memory of the result, its task submitted; undefined: it has to go the long way. */
  run(operator: number, name: MapName, info: ShapeInfo, dtype: DType, inputs: readonly Tensor[]): Storage | undefined {
    const queue = this.#queue;
    queue.refresh();
    const { mark } = queue;
    const pointers = this.#pointers;
    const words = this.#words;
    const { dependencies } = this.#order;
    pointers.length = 0;
    words.length = 1;
    words[0] = info.size;
    dependencies.length = 0;
    if (inputs.length > MOST_INPUTS) return undefined;
    // A number with a digit for each operand, also for those that are not there: no two forms share one.
    let key = operator * 3 + DTYPES[dtype];
    for (let i = inputs.length; i < MOST_INPUTS; i++) key *= KINDS;
    for (let i = 0; i < inputs.length; i++) {
      const { storage, value, dtype: type, info: own, offset } = inputs[i] as Tensor;
      if (storage === undefined) {
        if (value === undefined) return undefined;
        key = key * KINDS + VALUE + DTYPES[type];
        if (type === 'float32') {
          this.#float[0] = value;
          words.push(this.#bits[0] as number);
        } else words.push(value | 0);
        continue;
      }
      if (own !== info || !isContiguous(own, inputs[i] as Tensor) || storage.error !== undefined) return undefined;
      if (storage.producer >= 0) {
        if (storage.producer >= mark) dependencies.push({ queue: 0, sequence: storage.producer });
        else if (queue.hasFailures) return undefined;
        else storage.producer = -1;
      }
      key = key * KINDS + MEMORY + DTYPES[type];
      pointers.push(storage.block.address + offset * ELEMENT_BYTES);
    }
    if (pointers.length === 0) return undefined;
    const kernel = this.#kernels.get(key) ?? this.#compile(key, name, dtype, inputs);
    const block = this.#system.heap.allocate(info.size * ELEMENT_BYTES, mark);
    pointers.push(block.address);
    this.#order.after = block.lastUse;
    const storage = new Storage(this.#system.heap, block);
    const tiles = tilesFor(this.#system.device, kernel.costNs * info.size, info.size >> 4);
    const sequence = queue.writeInline(kernel.slot, tiles, pointers, words, this.#order);
    storage.producer = sequence;
    block.lastUse = sequence;
    for (let i = 0; i < inputs.length; i++) {
      const input = (inputs[i] as Tensor).storage;
      if (input !== undefined) input.block.lastUse = sequence;
    }
    this.#system.device.ringDoorbell(tiles);
    return storage;
  }

  #compile(key: number, name: MapName, dtype: DType, operands: readonly Tensor[]): Kernel {
    const inputs: ProgramInput[] = [];
    const nodes: ProgramNode[] = [];
    let scalars = 0;
    const args = operands.map((operand, i) => {
      if (operand.storage === undefined) nodes.push({ kind: 'scalar', scalar: scalars++, dtype: operand.dtype });
      else nodes.push({ kind: 'input', input: inputs.push({ dtype: operand.dtype, columnStride: 1 }) - 1, dtype: operand.dtype });
      return i;
    });
    const node = nodes.push({ kind: 'map', op: name, args, dtype }) - 1;
    const program = { inputs, scalars, nodes, outputs: [{ node, dtype, space: 'full' as const }], outerRank: 0 };
    const { id } = this.#system.operators.inject(program, name);
    this.#system.operators.retain([id]);
    const kernel = { slot: id, costNs: mapCostNs(name, inputs.length) };
    this.#kernels.set(key, kernel);
    return kernel;
  }
}
