/** Memory that operators compute in apart from what the host sees, as on a GPU: played on the wasm device, whose memory is divided. */
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { MemorySpace } from '../backends/backend.ts';
import type { HostData } from '../ops/host-tensor.ts';
import { Heap } from '../runtime/heap.ts';
import { init, type System, type SystemOptions } from '../runtime/system.ts';
import { type Engine, engineOf } from './engine.ts';
import type { Tensor } from './tensor.ts';

const MIB = 2 ** 20;
const HOST_BYTES = 4 * MIB;

let system: System;
let engine: Engine;
/** What is in use of either memory when nothing is. */
let idle: readonly [host: number, device: number];

/** Divides the memory of a system that has used none yet. */
function divide(hostBytes: number, deviceBytes = Infinity): void {
  const { memory } = system.device;
  const border = Math.ceil((memory.start + hostBytes) / MIB) * MIB;
  const part = (start: number, limit: number): MemorySpace => ({
    start,
    limit,
    get end() {
      return Math.min(limit, memory.end);
    },
    ensure: (end) => memory.ensure(end),
  });
  const limit = Math.min(memory.limit, border + deviceBytes);
  Object.assign(system, { hostHeap: new Heap(part(memory.start, memory.start + hostBytes)), heap: new Heap(part(border, limit)) });
}

const used = () => [system.hostHeap.usedBytes, system.heap.usedBytes] as const;

function start(hostBytes: number, options: SystemOptions = {}, deviceBytes = Infinity): void {
  system = init({ device: 'wasm', workers: 1, memoryMib: 64, ...options });
  divide(hostBytes, deviceBytes);
  engine = engineOf(system);
  idle = used();
}

beforeEach(() => start(HOST_BYTES));
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
    expect(used()).toEqual(idle);
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

  it('what the device itself has no room for is an error with the sizes, and all goes on', async () => {
    await system.shutdown();
    start(256 * 1024, {}, 2 * MIB);
    const n = 2 * MIB;
    expect(() => engine.fromHost(new Float32Array(n), [n])).toThrow(
      /8\.0 MiB asked for; 0\.0 MiB are in use.* may hold 2\.0 MiB.*GPUOS_OUT_OF_MEMORY/,
    );
    expect(used()).toEqual(idle);
    expect(Array.from(engine.binary('add', engine.fromHost([1, 2], [2]), 1).dataSync())).toEqual([2, 3]);
  });
});

describe('values that are larger than the memory that they pass through', () => {
  /** Of which half is for values on their way, in pieces of 8 KiB. */
  const TINY_BYTES = 256 * 1024;
  const restart = async (options: SystemOptions = {}) => {
    await system.shutdown();
    start(TINY_BYTES, options);
  };
  /** Element by element in a list of a hundred thousand, the comparison would take far longer than all the rest. */
  const same = (values: HostData, expected: Float32Array): void => {
    const wrong = expected.findIndex((value, i) => value !== values[i]);
    expect([values.length, wrong, values[wrong]]).toEqual([expected.length, -1, undefined]);
  };
  const ramp = (n: number, from = 0): Float32Array => Float32Array.from({ length: n }, (_, i) => (i * 31 + from) % 1009);

  it.each([0, 1])('get in and out in pieces, of every dtype, with %i workers', async (workers) => {
    await restart({ workers });
    const n = 300_001;
    const numbers = Array.from(ramp(n), (value) => value % 253);
    for (const dtype of ['float32', 'int32', 'bool', 'float16', 'bfloat16'] as const) {
      for (const values of [numbers, Float32Array.from(numbers)]) {
        const tensor = engine.fromHost(values, [n], dtype);
        const expected = Float32Array.from(numbers, (value) => (dtype === 'bool' ? Number(value !== 0) : value));
        same(await tensor.data(), expected);
        same(tensor.dataSync(), expected);
        tensor.dispose();
      }
    }
    expect(used()).toEqual(idle);
  });

  it('do not wait for a reader who is not done: what it has not taken out yet is taken out for it', async () => {
    await restart();
    const n = 100_000;
    const made = [1, 2, 3, 4].map((from) => engine.binary('add', engine.fromHost(ramp(n, from), [n]), 1));
    const reading = made.map((tensor) => tensor.data());
    for (const tensor of made) tensor.dispose();
    // Every piece may be a reader's now; this one does not give way to any of them.
    const blocking = engine.binary('mul', engine.fromHost(ramp(n, 5), [n]), 2);
    expect(blocking.dataSync()[n - 1]).toBe(2 * (ramp(n, 5)[n - 1] as number));
    blocking.dispose();
    (await Promise.all(reading)).forEach((values, i) => {
      same(
        values,
        ramp(n, i + 1).map((value) => value + 1),
      );
    });
  });

  it('fail as a whole with the error of a piece, and leave nothing behind', async () => {
    await restart();
    const n = 60_000;
    const known = engine.fromHost(ramp(n), [n]);
    await known.data();
    await system.kill('copy_strided');
    const lost = engine.fromHost(ramp(n), [n]);
    expect(() => engine.binary('add', lost, 1).dataSync()).toThrow(/GPUOS_(OPERATOR_KILLED|DEPENDENCY_FAILED)/);
    await expect(lost.data()).rejects.toMatchObject({ code: expect.stringMatching(/KILLED|DEPENDENCY_FAILED/) });
    await expect(known.data()).rejects.toMatchObject({ code: 'GPUOS_OPERATOR_KILLED' });
    await system.revive('copy_strided');
    same(await known.data(), ramp(n));
    same(engine.fromHost(ramp(n, 7), [n]).dataSync(), ramp(n, 7));
  });

  it('end with an error if the system is shut down meanwhile', async () => {
    await restart({ workers: 0 });
    const n = 200_000;
    const reading = engine.binary('add', engine.fromHost(ramp(n), [n]), 1).data();
    await system.shutdown();
    await expect(reading).rejects.toMatchObject({ code: 'GPUOS_SHUT_DOWN' });
  });

  it('fail as a whole if one piece in the middle does', async () => {
    await restart();
    const n = 60_000;
    const known = engine.fromHost(ramp(n), [n]);
    await known.data();
    await system.kill('nop');
    const { lowerCopy } = system.device;
    let calls = 0;
    // A copy that has come to nothing.
    const failing: typeof lowerCopy = (...of) => ({ ...lowerCopy(...of), ...(calls++ === 10 ? { kernel: 'nop' } : {}) });
    Object.assign(system.device, { lowerCopy: failing });
    const lost = engine.fromHost(ramp(n), [n]);
    expect(calls).toBeGreaterThan(20);
    await expect(engine.binary('add', lost, 1).data()).rejects.toMatchObject({ code: 'GPUOS_DEPENDENCY_FAILED' });
    calls = 0;
    await expect(known.data()).rejects.toMatchObject({ code: 'GPUOS_OPERATOR_KILLED' });
    same(await known.data(), ramp(n));
  });

  it('are in order with the tasks that make and use them, whatever is done with them', async () => {
    await restart({ firstSequence: 2 ** 32 - 300 });
    const size = fc.oneof(fc.integer({ min: 1, max: 3000 }), fc.integer({ min: 3000, max: 40_000 }));
    const step = fc.oneof(
      fc.record({ kind: fc.constant('upload' as const), size }),
      fc.record({
        kind: fc.constantFrom('add' as const, 'reverse' as const, 'data' as const, 'dataSync' as const, 'dispose' as const),
        at: fc.nat(),
      }),
    );
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 4, maxLength: 40 }), async (steps) => {
        const live: { tensor: Tensor; values: Float32Array }[] = [];
        const pending: Promise<void>[] = [];
        let count = 0;
        for (const each of steps) {
          if (each.kind === 'upload' || live.length === 0) {
            const values = ramp(each.kind === 'upload' ? each.size : 5000, count++);
            live.push({ tensor: engine.fromHost(values, [values.length]), values: values.slice() });
            // They are copied: what becomes of the caller's does not matter.
            values.fill(-1);
            continue;
          }
          const index = each.at % live.length;
          const { tensor, values } = live[index]!;
          if (each.kind === 'add') live.push({ tensor: engine.binary('add', tensor, 3), values: values.map((value) => value + 3) });
          else if (each.kind === 'reverse') {
            live.push({ tensor: engine.apply('reverse', [tensor], { axes: [0] })[0] as Tensor, values: values.slice().reverse() });
          } else if (each.kind === 'data') pending.push(tensor.data().then((read) => same(read, values)));
          else if (each.kind === 'dataSync') same(tensor.dataSync(), values);
          else {
            tensor.dispose();
            live.splice(index, 1);
          }
        }
        await Promise.all(pending);
        for (const { tensor } of live) tensor.dispose();
        await engine.sync();
        expect(used()).toEqual(idle);
      }),
      { numRuns: 30 },
    );
  }, 120_000);
});
