/** Memory that operators compute in apart from what the host sees, as on a GPU: played on the wasm device, whose memory is divided. */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { MemorySpace } from '../backends/backend.ts';
import { Heap } from '../runtime/heap.ts';
import { init, type System } from '../runtime/system.ts';
import { type Engine, engineOf } from './engine.ts';
import type { Tensor } from './tensor.ts';

const MIB = 2 ** 20;
const HOST_BYTES = 4 * MIB;

let system: System;
let engine: Engine;

/** Divides the memory of a system that has used none yet. */
function divide(): void {
  const { memory } = system.device;
  const border = Math.ceil((memory.start + HOST_BYTES) / MIB) * MIB;
  const part = (start: number, limit: number): MemorySpace => ({
    start,
    limit,
    get end() {
      return Math.min(limit, memory.end);
    },
    ensure: (end) => memory.ensure(end),
  });
  Object.assign(system, { hostHeap: new Heap(part(memory.start, border)), heap: new Heap(part(border, memory.limit)) });
}

beforeEach(() => {
  system = init({ device: 'wasm', workers: 1, memoryMib: 64 });
  divide();
  engine = engineOf(system);
});
afterEach(() => system.shutdown());

const isHosts = (tensor: Tensor): boolean => tensor.storage?.isOf(system.hostHeap) === true;

describe('values on their way', () => {
  it.each([1, 2, 1000, 70_000])('%i of them get in and out, of every dtype', async (n) => {
    const numbers = Array.from({ length: n + 1 }, (_, i) => (i * 7) % 13);
    for (const dtype of ['float32', 'int32', 'bool', 'float16', 'bfloat16'] as const) {
      const tensor = engine.fromHost(numbers, [n + 1], dtype);
      expect(isHosts(tensor)).toBe(false);
      const expected = numbers.map((value) => (dtype === 'bool' ? Number(value !== 0) : value));
      expect(Array.from(await tensor.data())).toEqual(expected);
      expect(Array.from(tensor.dataSync())).toEqual(expected);
      tensor.dispose();
    }
    // Nothing of it is left where it passed through.
    expect(system.hostHeap.usedBytes).toBe(0);
    expect(system.heap.usedBytes).toBe(0);
  });

  it('a small result is written where the host reads it, a large one and a view are brought there', () => {
    const [rows, columns] = [300, 70];
    const x = engine.fromHost(
      Array.from({ length: rows * columns }, (_, i) => i % 101),
      [rows, columns],
    );
    const large = engine.binary('add', x, 1);
    const values = large.dataSync();
    expect(isHosts(large)).toBe(false);
    expect(values[12_345]).toBe((12_345 % 101) + 1);
    const small = engine.apply('sum', [engine.binary('mul', x, 2)], { axes: [1] })[0] as Tensor;
    const sums = small.dataSync();
    expect(isHosts(small)).toBe(true);
    expect(sums[0]).toBe(Array.from({ length: columns }, (_, i) => 2 * (i % 101)).reduce((a, b) => a + b));
    // Both are operands like any other from here on.
    const [turned] = engine.apply(
      'transpose',
      [engine.binary('add', large, engine.apply('reshape', [small], { shape: [rows, 1] })[0] as Tensor)],
      {
        perm: [1, 0],
      },
    ) as [Tensor];
    expect(turned.dataSync()[1]).toBe((values[columns] as number) + (sums[1] as number));
  });

  it('a value that could not be computed tells why, and not that it could not be brought', async () => {
    const table = engine.fromHost([1, 2, 3, 4], [4]);
    // Of either kind: written where the host reads it, and brought there by a task that depends on it.
    for (const n of [2, 20_000]) {
      const indices = engine.fromHost(
        Array.from({ length: n }, (_, i) => (i === 1 ? 9 : 0)),
        [n],
        'int32',
      );
      const wrong = engine.apply('gather', [table, indices], { axis: 0 })[0] as Tensor;
      await expect(wrong.data()).rejects.toMatchObject({ code: 'GPUOS_INDEX_OUT_OF_RANGE' });
      const last = system.queue(0).failure(system.queue(0).tail - 1);
      expect(last?.code).toBe(n === 2 ? 'GPUOS_INDEX_OUT_OF_RANGE' : 'GPUOS_DEPENDENCY_FAILED');
      expect(() => wrong.dataSync()).toThrow(/GPUOS_INDEX_OUT_OF_RANGE/);
    }
    expect(Array.from(table.dataSync())).toEqual([1, 2, 3, 4]);
  });

  it('a large result is brought when it is complete, also one that takes long', () => {
    const n = 256;
    const a = engine.fromHost(new Float32Array(n * n).fill(0.5), [n, n]);
    for (let round = 0; round < 8; round++) {
      const b = engine.fromHost(new Float32Array(n * n).fill(round), [n, n]);
      const product = engine.apply('matmul', [a, b])[0] as Tensor;
      expect([...new Set(product.dataSync())]).toEqual([(n / 2) * round]);
      b.dispose();
      product.dispose();
    }
  });

  it('what does not fit through is an error with the sizes, and all goes on', () => {
    const n = HOST_BYTES / 2;
    expect(() => engine.fromHost(new Float32Array(n), [n])).toThrow(/8\.0 MiB asked for.*GPUOS_OUT_OF_MEMORY/);
    expect(system.hostHeap.usedBytes).toBe(0);
    expect(system.heap.usedBytes).toBe(0);
    expect(Array.from(engine.binary('add', engine.fromHost([1, 2], [2]), 1).dataSync())).toEqual([2, 3]);
  });
});
