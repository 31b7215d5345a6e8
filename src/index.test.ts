/** Whatever a caller gives: it is taken, or refused with a GpuosError. JavaScript's own errors say nothing to a user. */
import fc from 'fast-check';
import { afterEach, describe, expect, it } from 'vitest';
import { GpuosError } from './errors.ts';
import * as gpuos from './index.ts';
import type { Queue } from './runtime/queue.ts';
import { System } from './runtime/system.ts';

function start(): gpuos.System {
  return gpuos.init({ workers: 0, ring: 64, memoryMib: 64, queues: 2 });
}
afterEach(() => gpuos.shutdown());

const odd: fc.Arbitrary<unknown> = fc.oneof(
  fc.anything({ withNullPrototype: true, withSparseArray: true, withBigInt: true, withDate: true, withMap: true, withTypedArray: true }),
  fc.constantFrom<unknown>(
    undefined,
    null,
    Number.NaN,
    -1,
    0.5,
    2 ** 31,
    2 ** 53,
    Infinity,
    '',
    'nop',
    'length',
    '__proto__',
    Symbol('s'),
    1n,
    () => 1,
    new Array(1),
    [null],
    [[]],
    {},
    Object.create(null),
    { length: 2 },
    { length: -1 },
    { id: {} },
    { id: Number.NaN },
    { id: 'length' },
    { queue: 'length', sequence: 0 },
    BigInt64Array.of(1n),
    new DataView(new ArrayBuffer(8)),
  ),
);

/** Calls, and waits where there is something to wait for. Thrown on is what is no GpuosError. */
async function call(what: string, run: () => unknown, given: readonly unknown[]): Promise<void> {
  try {
    await run();
  } catch (error) {
    if (error instanceof GpuosError) {
      expect(error.message).not.toMatch(/undefined \(|\[object/);
      return;
    }
    throw new Error(`${what} of ${fc.stringify(given)} ended with ${String(error)}`, { cause: error });
  }
}

const FUNCTIONS = Object.entries(gpuos).filter(([name, value]) => typeof value === 'function' && !/^[A-Z]/.test(name));
const METHODS = Object.entries(Object.getOwnPropertyDescriptors(System.prototype)).filter(
  ([name, { value }]) => typeof value === 'function' && name !== 'constructor',
);

describe('whatever is given', () => {
  it('to a function of the module, it returns or throws a GpuosError', async () => {
    start();
    expect(FUNCTIONS.map(([name]) => name)).toEqual(expect.arrayContaining(['init', 'submit', 'kill', 'tensor', 'tidy', 'fuse']));
    for (const [name, fn] of FUNCTIONS) {
      if (name === 'inspectDevices') continue; // It takes nothing, and starts a process.
      const calls = fc.asyncProperty(fc.array(odd, { maxLength: 3 }), async (given) => {
        if (gpuos.current() === undefined) start();
        await call(name, () => (fn as (...given: unknown[]) => unknown)(...given), given);
      });
      await fc.assert(calls, { seed: 5, numRuns: name === 'shutdown' ? 40 : 300 });
    }
  });

  it('to init() as one of its options, it returns or throws a GpuosError', async () => {
    const names = [
      'device',
      'workers',
      'queues',
      'ring',
      'memoryMib',
      'spinUs',
      'workerSpinUs',
      'taskBudgetMs',
      'fuse',
      'firstSequence',
      'fault',
    ];
    const calls = fc.asyncProperty(fc.constantFrom(...names), odd, async (name, value) => {
      await call(`init() with ${name}`, () => gpuos.init({ workers: 0, memoryMib: 16, ring: 16, [name]: value }), [value]);
      await gpuos.shutdown();
    });
    await fc.assert(calls, { seed: 6, numRuns: 150 });
  });

  it('to a method of the system, it returns or throws a GpuosError', async () => {
    let system = start();
    expect(METHODS.length).toBeGreaterThan(15);
    for (const [name, { value: method }] of METHODS) {
      const calls = fc.asyncProperty(fc.array(odd, { maxLength: 3 }), async (given) => {
        if (gpuos.current() === undefined) system = start();
        await call(name, () => method.apply(system, given), given);
      });
      await fc.assert(calls, { seed: 7, numRuns: name === 'shutdown' ? 40 : 300 });
    }
  });

  it('to submit() as one of its fields, it returns or throws a GpuosError', async () => {
    const system = start();
    const operator = system.inject('map', { inputs: ['x'], expression: 'x + 1' });
    const { address } = system.buffer([1, 2]);
    const first = system.submit({ operator: 'nop' });
    const good = { operator, pointers: [address, address], words: [2], tiles: 1, queue: 0, dependencies: [first], wait: true };
    const fields = fc.constantFrom(...Object.keys(good), 'other');
    const calls = fc.asyncProperty(fields, odd, fc.boolean(), async (field, value, listed) => {
      const request = { ...good, [field]: listed ? [value] : value };
      await call('submit', () => system.submit(request as never).doneSync(), [request]);
    });
    await fc.assert(calls, { seed: 8, numRuns: 2000 });
    await system.submit(good).done();
  });

  it('to a buffer or for an operator, it returns or throws a GpuosError', async () => {
    const system = start();
    const buffer = system.buffer(4);
    const operator = system.inject('map', { inputs: ['x'], expression: 'x' });
    const calls = fc.asyncProperty(odd, async (value) => {
      for (const given of [value, [value], { ...operator, id: value }]) {
        await call('write', () => buffer.write(given as never), [given]);
        await call('buffer', () => system.buffer(given as never).free(), [given]);
        await call('replace', () => system.replace(given as never, 'map', { inputs: ['x'], expression: 'x' }), [given]);
        await call('replace', () => system.replace(operator, 'map', given as never), [given]);
      }
    });
    await fc.assert(calls, { seed: 9, numRuns: 500 });
    expect(buffer.read().length).toBe(4);
  });

  it('to task(), only what has been submitted is taken', async () => {
    const system = start();
    const { sequence } = system.submit({ operator: 'nop' });
    const queue = system.queues[0] as Queue;
    const calls = fc.asyncProperty(odd, odd, async (at, operator) => {
      await call('task', () => system.task(queue, at as number, operator as number).doneSync(), [at, operator]);
    });
    await fc.assert(calls, { seed: 10, numRuns: 300 });
    system.task(queue, sequence, 0).doneSync();
  });
});

it.each<[string, (system: gpuos.System) => unknown, string]>([
  ['submit({})', (system) => system.submit({} as never), 'GPUOS_UNKNOWN_OPERATOR'],
  ['kill()', (system) => system.kill(undefined as never), 'GPUOS_UNKNOWN_OPERATOR'],
  ['a dependency that is null', (system) => system.submit({ operator: 'nop', dependencies: [null as never] }), 'GPUOS_BAD_DEPENDENCY'],
  ['buffer()', (system) => system.buffer(undefined as never), 'GPUOS_DTYPE_MISMATCH'],
  ['shutdown(null)', (system) => system.shutdown(null as never), 'GPUOS_BAD_OPTION'],
  ['shutdown() with a field misspelt', (system) => system.shutdown({ drian: true } as never), 'GPUOS_BAD_OPTION'],
  ['a queue by name', (system) => system.peekQueue('length' as never), 'GPUOS_BAD_OPTION'],
])('%s is an error of its own', async (_, run, code) => {
  const system = start();
  await expect((async () => run(system))()).rejects.toMatchObject({ code });
});
