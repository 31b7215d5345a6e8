import { afterEach, describe, expect, it } from 'vitest';
import { STATUS } from '../abi/status.ts';
import { GpuosError } from '../errors.ts';
import { programFromTemplate } from '../ops/template.ts';
import { NO_ORDER } from './queue.ts';
import { current, init, requireSystem, type System, type SystemOptions } from './system.ts';

const open: System[] = [];
function start(options: SystemOptions = {}): System {
  const system = init({ workers: 1, ring: 64, memoryMib: 64, ...options });
  open.push(system);
  return system;
}
afterEach(async () => {
  for (const system of open.splice(0)) await system.shutdown();
});

const code = (run: () => unknown): string | undefined => {
  try {
    run();
  } catch (error) {
    return error instanceof GpuosError ? error.code : `not a GpuosError: ${String(error)}`;
  }
  return undefined;
};
const rejection = async (promise: Promise<unknown>): Promise<string | undefined> =>
  promise.then(
    () => undefined,
    (error) => (error instanceof GpuosError ? error.code : `not a GpuosError: ${String(error)}`),
  );

/** fill writes `value` (as bits) into n elements: a task whose effect can be seen. */
function fill(system: System, address: number, n: number, value: number, more: object = {}) {
  return system.submit({
    operator: 'fill',
    pointers: [address],
    words: [Math.max(1, Math.ceil(n / 1024)), n, new Int32Array(new Float32Array([value]).buffer)[0] as number],
    ...more,
  });
}

describe('life of a system', () => {
  it('runs tasks in a worker without the host', async () => {
    const system = start();
    const buffer = system.buffer(1000);
    const task = fill(system, buffer.address, 1000, 2.5);
    // The host only looks; the worker has to do it.
    const until = Date.now() + 10_000;
    while (!system.queue(0).isComplete(task.sequence) && Date.now() < until) await new Promise((resolve) => setTimeout(resolve, 1));
    expect(system.workers()[1]?.tiles).toBeGreaterThan(0);
    expect([...new Set(buffer.read())]).toEqual([2.5]);
  });

  it('runs tasks on the host when there are no workers', () => {
    const system = start({ workers: 0 });
    const buffer = system.buffer(10);
    fill(system, buffer.address, 10, 1).doneSync();
    expect([...buffer.read()]).toEqual(new Array(10).fill(1));
    expect(system.workerAlive()).toBe(true);
  });

  it('refuses a second init, and use after shutdown', async () => {
    const system = start();
    expect(code(() => init())).toBe('GPUOS_ALREADY_INITIALIZED');
    await system.shutdown();
    expect(code(() => system.submit({ operator: 'nop', words: [1] }))).toBe('GPUOS_SHUT_DOWN');
    expect(code(() => system.buffer(1))).toBe('GPUOS_SHUT_DOWN');
    expect(code(() => requireSystem())).toBe('GPUOS_NOT_INITIALIZED');
    expect(current()).toBeUndefined();
    expect(system.workerAlive()).toBe(false);
    await system.shutdown(); // twice is harmless
  });

  it.each<[string, SystemOptions]>([
    ['workers', { workers: Number.NaN }],
    ['workers', { workers: -1 }],
    ['workers', { workers: 1e9 }],
    ['workers', { workers: 1.5 }],
    ['queues', { queues: 0 }],
    ['queues', { queues: 17 }],
    ['ring', { ring: 1 }],
    ['ring', { ring: 48 }],
    ['ring', { ring: 2 ** 17 }],
    ['memoryMib', { memoryMib: 4097 }],
    ['spinUs', { spinUs: Number.NaN }],
    ['spinUs', { spinUs: -1 }],
    ['workerSpinUs', { workerSpinUs: Infinity }],
    ['taskBudgetMs', { taskBudgetMs: 0 }],
    ['firstSequence', { firstSequence: 2 ** 32 }],
  ])('refuses %s out of range, %j, and leaves nothing running', (name, options) => {
    expect(() => init(options)).toThrow(new RegExp(`^${name} is .*\\[GPUOS_BAD_OPTION\\]`));
    expect(current()).toBeUndefined();
  });

  it('starts again after shutdown', async () => {
    await start().shutdown();
    const system = start();
    await system.submit({ operator: 'nop', words: [1] }).done();
    expect(system.peekQueue().processed).toBe(1);
  });

  it('cancels what is pending at shutdown, and drains when asked', async () => {
    const blocked = start({ workers: 0 });
    const task = blocked.submit({ operator: 'nop', words: [1] });
    const second = blocked.submit({ operator: 'nop', words: [1] });
    await blocked.shutdown();
    expect(await rejection(task.done())).toBe('GPUOS_SHUT_DOWN');
    expect(code(() => second.doneSync())).toBe('GPUOS_SHUT_DOWN');
    const drained = start({ workers: 0 });
    const kept = drained.submit({ operator: 'nop', words: [1] });
    await drained.shutdown({ drain: true });
    await kept.done();
  });

  it('rejects a promise that is pending when shutdown comes', async () => {
    const system = start({ workers: 1 });
    // A dependency that cannot be met until after shutdown: the task waits on a barrier that the worker has not begun.
    system.setYieldEvery(1);
    const tasks = Array.from({ length: 200 }, () => system.submit({ operator: 'nop', words: [1] }));
    const outcomes = Promise.all(tasks.map((task) => rejection(task.done())));
    await system.shutdown();
    for (const outcome of await outcomes) expect([undefined, 'GPUOS_SHUT_DOWN']).toContain(outcome);
  });
});

describe('submit', () => {
  it('refuses what cannot be right before it reaches the device', () => {
    const system = start({ workers: 0 });
    const buffer = system.buffer(4);
    const submit = (request: object) => code(() => system.submit({ operator: 'nop', words: [1], ...request }));
    expect(submit({ tiles: 0 })).toBe('GPUOS_BAD_DESCRIPTOR');
    expect(submit({ tiles: 65 })).toBe('GPUOS_BAD_DESCRIPTOR');
    expect(submit({ tiles: Number.NaN })).toBe('GPUOS_BAD_DESCRIPTOR');
    expect(submit({ words: [1, 2, 3, 4, 5, 6, 7, 8] })).toBe('GPUOS_BAD_DESCRIPTOR');
    expect(submit({ words: [0.5] })).toBe('GPUOS_BAD_DESCRIPTOR');
    expect(submit({ pointers: [buffer.address + 2] })).toBe('GPUOS_BAD_DESCRIPTOR');
    expect(submit({ pointers: [0] })).toBe('GPUOS_BAD_DESCRIPTOR');
    expect(submit({ operator: 5000 })).toBe('GPUOS_OPERATOR_OUT_OF_RANGE');
    expect(submit({ operator: -1 })).toBe('GPUOS_OPERATOR_OUT_OF_RANGE');
    expect(submit({ operator: 4000 })).toBe('GPUOS_OPERATOR_EMPTY');
    expect(submit({ operator: 'nonsense' })).toBe('GPUOS_UNKNOWN_OPERATOR');
    expect(submit({ queue: 1 })).toBe('GPUOS_BAD_OPTION');
    expect(submit({ dependencies: [{ queue: 0, sequence: 99 }] })).toBe('GPUOS_BAD_DEPENDENCY');
    expect(submit({ dependencies: [{ queue: 9, sequence: 0 }] })).toBe('GPUOS_BAD_DEPENDENCY');
    expect(system.peekQueue().tail).toBe(0);
    const first = system.submit({ operator: 'nop', words: [1] });
    expect(submit({ dependencies: new Array(4).fill(first) })).toBeUndefined();
    expect(submit({ dependencies: new Array(5).fill(first) })).toBe('GPUOS_BAD_DEPENDENCY');
  });

  it('waits or refuses when the ring is full, and loses nothing', async () => {
    const system = start({ workers: 0, ring: 8 });
    for (let i = 0; i < 8; i++) system.submit({ operator: 'nop', words: [1], wait: false });
    expect(code(() => system.submit({ operator: 'nop', words: [1], wait: false }))).toBe('GPUOS_QUEUE_FULL');
    const last = system.submit({ operator: 'nop', words: [1] });
    await last.done();
    expect(system.peekQueue()).toMatchObject({ processed: 9, depth: 0, tail: 9, head: 9 });
  });

  it('fails a task whose operator id is past the table or whose slot is empty, and goes on', async () => {
    const system = start();
    const queue = system.queue(0);
    const past = system.task(queue, queue.writeInline(70_000, 1, [], [1], NO_ORDER), 70_000);
    const empty = system.task(queue, queue.writeInline(4000, 3, [], [1], NO_ORDER), 4000);
    system.device.ringDoorbell(1);
    expect(await rejection(past.done())).toBe('GPUOS_OPERATOR_OUT_OF_RANGE');
    expect(await rejection(empty.done())).toBe('GPUOS_OPERATOR_EMPTY');
    await system.submit({ operator: 'nop', words: [1] }).done();
  });

  it('fails the dependents of a failed task, with the cause, and nothing else', async () => {
    const system = start();
    const queue = system.queue(0);
    const failing = system.task(queue, queue.writeInline(4000, 1, [], [1], NO_ORDER), 4000);
    const dependent = system.task(
      queue,
      queue.writeInline(system.operators.builtIn('nop'), 1, [], [1], { after: -1, dependencies: [failing] }),
      0,
    );
    const second = system.task(
      queue,
      queue.writeInline(system.operators.builtIn('nop'), 1, [], [1], { after: -1, dependencies: [dependent] }),
      0,
    );
    const other = system.submit({ operator: 'nop', words: [1] });
    await other.done();
    const error = (await second.done().catch((caught) => caught)) as GpuosError;
    expect(error.code).toBe('GPUOS_DEPENDENCY_FAILED');
    expect((error.cause as GpuosError).code).toBe('GPUOS_DEPENDENCY_FAILED');
    expect(((error.cause as GpuosError).cause as GpuosError).code).toBe('GPUOS_OPERATOR_EMPTY');
    // Known to have failed: refused at once.
    expect(code(() => system.submit({ operator: 'nop', words: [1], dependencies: [failing] }))).toBe('GPUOS_DEPENDENCY_FAILED');
  });

  it('survives a task that traps', async () => {
    const system = start();
    const task = system.task(
      system.queue(0),
      system.queue(0).writeInline(system.operators.builtIn('fill'), 1, [0xffff_fff0], [1, 64, 0], NO_ORDER),
      0,
    );
    expect(await rejection(task.done())).toBe('GPUOS_TASK_TRAPPED');
    await system.submit({ operator: 'nop', words: [1] }).done();
    expect(system.device.losses).toBe(0);
  });

  it('honours dependencies across queues and within one', async () => {
    const system = start({ queues: 3, ring: 16 });
    const buffer = system.buffer(64 * 1024);
    let before = fill(system, buffer.address, 64 * 1024, 0, { queue: 0, tiles: 4 });
    for (let i = 1; i <= 300; i++) {
      before = fill(system, buffer.address, 64 * 1024, i, { queue: i % 3, tiles: 1 + (i % 4), dependencies: [before] });
    }
    await before.done();
    expect([...new Set(buffer.read())]).toEqual([300]);
  });
});

describe('memory that a task may touch', () => {
  const message = (run: () => unknown): string => {
    try {
      run();
    } catch (error) {
      if (error instanceof GpuosError && error.code === 'GPUOS_BAD_DESCRIPTOR') return error.message;
      throw error;
    }
    return 'taken';
  };

  it('is that of the buffers that its pointers point into, and no other', () => {
    const system = start({ workers: 0 });
    const operator = system.inject('map', { inputs: ['x'], expression: 'x*0+9' });
    const [a, o, other] = [system.buffer([1, 2, 3]), system.buffer(3), system.buffer(200_000)];
    const submit = (from: number, to: number, ...words: number[]) =>
      message(() => system.submit({ operator, pointers: [from, to], words }).doneSync());
    expect(submit(a.address, o.address, 100_000)).toMatch(/pointer 0 \(input 0\) is used for 100000 elements; 3 lie from there/);
    expect(submit(other.address, o.address, 100_000)).toMatch(/pointer 1 \(output 0\) is used for 100000 elements; 3 lie/);
    // The block behind a buffer is longer than what was asked for: that is nobody's.
    expect(submit(a.address, o.address, 4)).toMatch(/used for 4 elements; 3 lie/);
    expect(submit(a.address + 4, o.address, 3)).toMatch(/used for 3 elements; 2 lie/);
    for (const count of [-1, 2 ** 31, 2 ** 32 - 1]) expect(submit(a.address, o.address, count)).toMatch(/word 0, the number of elements/);
    for (const count of [0.5, Number.NaN, Infinity, 2 ** 32]) expect(submit(a.address, o.address, count)).toMatch(/not a 32-bit integer/);
    expect([...o.read(), ...other.read().slice(0, 3)]).toEqual([0, 0, 0, 0, 0, 0]);
    expect(system.queue(0).depth).toBe(1); // the injection
    expect(submit(a.address, o.address, 3)).toBe('taken');
    expect([...o.read()]).toEqual([9, 9, 9]);
    // Into the middle, and nothing at the end.
    expect(submit(a.address + 8, other.address + 400, 1)).toBe('taken');
    expect(submit(a.address + 12, o.address + 12, 0)).toBe('taken');
    expect([...other.read().slice(99, 102)]).toEqual([0, 9, 0]);
  });

  it('is not what lies between buffers, nor a buffer that is free', () => {
    const system = start({ workers: 0 });
    const operator = system.inject('map', { inputs: ['x'], expression: 'x + 1' });
    const [a, b] = [system.buffer(3), system.buffer(3)];
    const submit = (...pointers: number[]) => message(() => system.submit({ operator, pointers, words: [1] }));
    expect(submit(a.address, a.address + 16)).toMatch(/pointer 1 is \d+, which lies in no buffer/);
    expect(submit(a.address, b.address)).toBe('taken');
    b.free();
    expect(submit(a.address, b.address)).toMatch(/pointer 1 is \d+, which lies in no buffer/);
    expect(message(() => fill(system, b.address, 3, 1))).toMatch(/pointer 0 is \d+, which lies in no buffer/);
    // One pointer more than the operator has: the last would not be its output.
    expect(submit(a.address, a.address, a.address)).toMatch(/3 pointers given; map:x \+ 1 takes 2/);
  });

  it('is checked by the version of the operator that will run', () => {
    const system = start({ workers: 0 });
    const operator = system.inject('map', { inputs: ['x'], expression: 'x + 1' });
    const x = system.buffer([1, 2]);
    system.replace(operator, 'map', { inputs: ['x', 'y'], expression: 'x + y' });
    const submit = (...pointers: number[]) => message(() => system.submit({ operator, pointers, words: [2] }).doneSync());
    expect(submit(x.address, x.address)).toMatch(/needs 3 pointers/);
    expect(submit(x.address, x.address, x.address)).toBe('taken');
    expect([...x.read()]).toEqual([2, 4]);
  });

  it.each([0, 1])('may be of as many inputs as inject() takes, in queue %i', async (index) => {
    const system = start({ workers: 1, queues: 2, ring: 16 });
    const names = Array.from({ length: 16 }, (_, i) => `x${i}`);
    const operator = system.inject('map', { inputs: names, expression: names.join(' + ') });
    await system.submit({ operator: 'nop' }).done();
    const n = 1000;
    const inputs = names.map((_, i) => system.buffer(Array.from({ length: n }, (_, k) => 2 ** i * (k % 2))));
    const outputs = Array.from({ length: 40 }, () => system.buffer(n));
    const held = system.hostHeap.usedBytes;
    const pointers = inputs.map(({ address }) => address);
    expect(message(() => system.submit({ operator, pointers, words: [n] }))).toMatch(/needs 17 pointers.*16 and 1 were given/);
    // More of them than the ring has slots, so that their parameter blocks are used anew.
    const tasks = outputs.map(({ address }) =>
      system.submit({ operator, pointers: [...pointers, address], words: [n], tiles: 3, queue: index }),
    );
    await Promise.all(tasks.map((task) => task.done()));
    for (const output of outputs) expect([...new Set(output.read())]).toEqual([0, 65_535]);
    const last = outputs.at(-1)?.address as number;
    expect(message(() => system.submit({ operator, pointers: [...pointers, last], words: [n + 1] }))).toMatch(/used for 1001 elements/);
    system.buffer(1).free();
    expect(system.hostHeap.usedBytes).toBe(held);
  });
});

describe('fields that a task does not have', () => {
  it('are refused, with the one that was meant', () => {
    const system = start({ workers: 0 });
    const first = system.submit({ operator: 'nop' });
    const refusal = (request: object): string => {
      try {
        system.submit(request as never);
      } catch (error) {
        return (error as GpuosError).message;
      }
      return 'taken';
    };
    expect(refusal({ operator: 'nop', dependancies: [first] })).toMatch(
      /no field "dependancies"\. Did you mean "dependencies"\? \[GPUOS_BAD_DESCRIPTOR\]/,
    );
    expect(refusal({ operator: 'nop', tile: 2 })).toMatch(/Did you mean "tiles"/);
    expect(refusal({ operator: 'nop', params: 256 })).toMatch(/no field "params"/);
    expect(refusal({ operator: 'nop', wait: 'no' })).toMatch(/wait is "no"; it has to be true or false/);
    expect(refusal({ operator: 'nopp' })).toMatch(/Did you mean "nop"\?.*GPUOS_UNKNOWN_OPERATOR/);
    expect(refusal({ operator: 'nop', dependencies: undefined, wait: undefined, tiles: undefined, queue: undefined })).toBe('taken');
    expect(refusal({ operator: 'nop', dependencies: [first] })).toBe('taken');
  });
});

describe('buffers', () => {
  it('refuse what does not fit, and all use once they are free', () => {
    const system = start({ workers: 0 });
    for (const elements of [-1, 0.5, Number.NaN, 2 ** 31]) expect(code(() => system.buffer(elements))).toBe('GPUOS_BAD_OPTION');
    const held = system.hostHeap.usedBytes;
    for (const values of [undefined, null, 'abc', [1, '2'], new Array(2), { length: 3 }, BigInt64Array.of(1n), [[1]]])
      expect(code(() => system.buffer(values as never))).toBe('GPUOS_DTYPE_MISMATCH');
    expect(system.hostHeap.usedBytes).toBe(held);
    const buffer = system.buffer([1, 2]);
    expect(code(() => buffer.write([1, 2, 3]))).toBe('GPUOS_SHAPE_MISMATCH');
    buffer.write([9]);
    expect([...buffer.read()]).toEqual([9, 2]);
    buffer.free();
    for (const use of [() => buffer.read(), () => buffer.write([1]), () => buffer.free()]) expect(code(use)).toBe('GPUOS_TENSOR_DISPOSED');
  });

  it.each([0, 1])('may be free while a task of queue %i writes to them: nobody else gets the memory before', (queue) => {
    const system = start({ workers: 0, queues: 2 });
    const buffer = system.buffer(100);
    const late = fill(system, buffer.address, 100, 5, { queue });
    buffer.free();
    const others = Array.from({ length: 20 }, () => system.buffer(new Array(100).fill(7)));
    late.doneSync();
    for (const other of others) expect([...new Set(other.read())]).toEqual([7]);
    // Afterwards it is there again.
    const { heldBytes } = system.heap;
    expect(system.buffer(100).address).toBe(buffer.address);
    expect(system.heap.heldBytes).toBe(heldBytes);
  });
});

describe('sequences', () => {
  it.each([0, 2 ** 32 - 1000, 2 ** 32 - 1])('wrap without loss from %i on', async (firstSequence) => {
    const system = start({ firstSequence, ring: 16 });
    const buffer = system.buffer(3000);
    for (let i = 0; i < 3000; i++) fill(system, buffer.address + 4 * i, 1, i + 1);
    await system.submit({ operator: 'nop', words: [1] }).done();
    const values = buffer.read();
    expect(values.every((value, i) => value === i + 1)).toBe(true);
    expect(system.peekQueue().processed).toBe(3001);
  });
});

describe('kill and revive', () => {
  it('take effect in order, by id and by name', async () => {
    const system = start();
    const before = system.submit({ operator: 'nop', words: [1] });
    const killed = system.kill('nop');
    const during = system.submit({ operator: 'nop', words: [1] });
    const revived = system.revive('nop');
    const after = system.submit({ operator: 'nop', words: [1] });
    await Promise.all([killed, revived]);
    expect(await rejection(before.done())).toBeUndefined();
    expect(await rejection(during.done())).toBe('GPUOS_OPERATOR_KILLED');
    expect(await rejection(after.done())).toBeUndefined();
    expect(code(() => system.operators.kill(system.operators.builtIn('controlTable')))).toBe('GPUOS_BAD_OPTION');
  });
});

describe('yield', () => {
  it('lets workers leave their loop and come back', async () => {
    const system = start();
    system.setYieldEvery(2);
    const tasks = Array.from({ length: 60 }, () => system.submit({ operator: 'nop', words: [1] }));
    await Promise.all(tasks.map((task) => task.done()));
    expect(code(() => system.setYieldEvery(-1))).toBe('GPUOS_BAD_OPTION');
    // The last of them may be on its way back.
    await expect.poll(() => system.workerAlive(), { timeout: 8000 }).toBe(true);
  });
});

describe('a worker that dies', () => {
  // Every point that a tile passes: after the claim, the cursor, the function, the tile's end, the completion.
  it.each([1, 2, 3, 4, 5])('at fault point %i loses its own tile at most', async (point) => {
    const fault = new SharedArrayBuffer(8);
    const system = start({ fault, ring: 32 });
    await system.submit({ operator: 'nop', words: [1] }).done();
    const plan = new Int32Array(fault);
    const tasks = [];
    let fired = 0;
    for (let round = 0; round < 3; round++) {
      Atomics.store(plan, 1, 5);
      Atomics.store(plan, 0, point);
      for (let i = 0; i < 400; i++) tasks.push(system.submit({ operator: 'nop', words: [4], tiles: 1 + (i % 4) }));
      // The host must not do it all: only the worker passes the fault point.
      const until = Date.now() + 8000;
      while (Atomics.load(plan, 0) !== 0 && Date.now() < until) {
        tasks.push(system.submit({ operator: 'nop', words: [1] }));
        await new Promise((resolve) => setTimeout(resolve, 1));
      }
      if (Atomics.load(plan, 0) === 0) fired++;
      while (system.device.losses < fired && Date.now() < until) await new Promise((resolve) => setTimeout(resolve, 1));
    }
    const outcomes = await Promise.all(tasks.map((task) => rejection(task.done())));
    expect(fired).toBe(3);
    expect(system.device.losses).toBe(3);
    const lost = outcomes.filter((outcome) => outcome === 'GPUOS_WORKER_LOST').length;
    expect(outcomes.every((outcome) => outcome === undefined || outcome === 'GPUOS_WORKER_LOST')).toBe(true);
    // Before the tile's end the tile is lost; after it, nothing is.
    expect(lost).toBe(point <= 3 ? 3 : 0);
    // The host may have done the last tasks while the third replacement is still starting.
    await expect.poll(() => system.workerAlive(), { timeout: 8000 }).toBe(true);
  });

  it('is noticed by a waiter that blocks the event loop', () => {
    const fault = new SharedArrayBuffer(8);
    const system = start({ fault, taskBudgetMs: 60_000 });
    const plan = new Int32Array(fault);
    Atomics.store(plan, 1, 1);
    Atomics.store(plan, 0, 1);
    const task = system.submit({ operator: 'nop', words: [1] });
    // Block without helping until the worker has died with the tile in hand.
    const until = Date.now() + 8000;
    while (Atomics.load(plan, 0) !== 0 && Date.now() < until) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    expect(code(() => task.doneSync())).toBe('GPUOS_WORKER_LOST');
    expect(STATUS.WORKER_LOST).toBe(7);
    system.submit({ operator: 'nop', words: [1] }).doneSync();
  });
});

describe('a task past its budget', () => {
  it('is ended with its worker, and everything else goes on', async () => {
    const system = start({ taskBudgetMs: 60, memoryMib: 512 });
    const queue = system.queue(0);
    await system.submit({ operator: 'nop', words: [1] }).done();
    // A product of 3,000 squared matrices in one tile: more than a second on any core.
    const n = 3000;
    const [a, b, c] = [system.buffer(n * n), system.buffer(n * n), system.buffer(n * n)];
    const view = { shape: [n, n], dtype: 'float32' as const, strides: [n, 1], offset: 0 };
    const call = system.device.lower('matmul', [view, view], [view], { transposeA: false, transposeB: false, activation: 'none' });
    const params = system.buffer(64);
    const { i32 } = system.device.views();
    [a, b, c].forEach((buffer, i) => {
      i32[(params.address >> 2) + 2 * i] = buffer.address;
    });
    i32.set(call.words, (params.address >> 2) + 8);
    const slow = system.task(
      queue,
      queue.writeDescriptor(system.operators.builtIn('matmul'), 1, params.address, 4 * params.elements, NO_ORDER),
      0,
    );
    system.device.ringDoorbell(1);
    // The host must not take it: it only looks.
    const until = Date.now() + 20_000;
    while (!queue.isComplete(slow.sequence) && Date.now() < until) await new Promise((resolve) => setTimeout(resolve, 5));
    expect(await rejection(slow.done())).toBe('GPUOS_TASK_TIMEOUT');
    expect(system.device.losses).toBe(1);
    await system.submit({ operator: 'nop', words: [1] }).done();
    // The host may have done that one while the replacement is still starting.
    await expect.poll(() => system.workerAlive(), { timeout: 8000 }).toBe(true);
  });
});

describe('a full operator table', () => {
  const formula = (i: number) => ({ inputs: ['x'], expression: `x + ${i}` });

  it('refuses another operator, and takes it once one was removed', async () => {
    const system = start({ workers: 0 });
    let last = system.inject('map', formula(0));
    const full = code(() => {
      for (let i = 1; i < 5000; i++) last = system.inject('map', formula(i));
    });
    expect(full).toBe('GPUOS_OPERATOR_TABLE_FULL');
    system.remove(last);
    expect(code(() => system.inject('map', formula(9999)))).toBeUndefined();
    await system.submit({ operator: 'nop', words: [1] }).done();
  });

  it('lets go of kernels that no plan names', () => {
    const system = start({ workers: 0 });
    const kept = system.inject('map', formula(0));
    for (let i = 1; i < 4300; i++) system.operators.inject(programFromTemplate('map', formula(i)).program, 'kernel');
    const x = system.buffer([1, 2]);
    system.submit({ operator: kept, pointers: [x.address, x.address], words: [2] }).doneSync();
    expect([...x.read()]).toEqual([1, 2]);
    expect(system.operators.get(kept.id).name).toBe(kept.name);
  });
});

describe('what a caller gives', () => {
  it('options that are none are refused, with the one that was meant', () => {
    const refuse = (options: unknown): string => {
      try {
        start(options as SystemOptions);
      } catch (error) {
        return (error as GpuosError).message;
      }
      return 'accepted';
    };
    expect(refuse({ wokers: 0 })).toMatch(/no option "wokers".*workers.*GPUOS_BAD_OPTION/s);
    expect(refuse({ fuse: 'no' })).toMatch(/true or false/);
    expect(code(() => init(7 as never))).toBe('GPUOS_BAD_OPTION');
  });

  it('a task without all pointers or words of its operator is refused', async () => {
    const system = start({ workers: 0 });
    const operator = system.inject('map', { inputs: ['x'], expression: 'x + 1' });
    const [x, out] = [system.buffer([1, 2]), system.buffer(2)];
    for (const request of [
      { operator, pointers: [], words: [2] },
      { operator, pointers: [x.address], words: [2] },
      { operator, pointers: [x.address, out.address] },
    ]) {
      expect(code(() => system.submit(request))).toBe('GPUOS_BAD_DESCRIPTOR');
    }
    expect(code(() => system.submit(undefined as never))).toBe('GPUOS_BAD_DESCRIPTOR');
    await system.submit({ operator, pointers: [x.address, out.address], words: [2] }).done();
    expect([...out.read()]).toEqual([2, 3]);
  });

  it('a built-in function without the pointers that it reads is refused, and one of the executor itself', async () => {
    const system = start({ workers: 0 });
    const out = system.buffer(8);
    const submit = (operator: string, words: number[], ...pointers: number[]) => code(() => system.submit({ operator, words, pointers }));
    expect(submit('fill', [8, 8, 0x3f80_0000])).toBe('GPUOS_BAD_DESCRIPTOR');
    expect(submit('fill', [8, 8], out.address)).toBe('GPUOS_BAD_DESCRIPTOR');
    // With as many as a descriptor holds it would still read past it.
    for (const operator of ['matmul', 'attention', 'concat_16', 'copy_strided', 'copy_halves'])
      expect(submit(operator, Array(7).fill(0), ...Array(4).fill(out.address)), operator).toBe('GPUOS_BAD_DESCRIPTOR');
    for (const operator of ['controlTable', 'chain'])
      expect(submit(operator, Array(7).fill(0), ...Array(4).fill(out.address)), operator).toBe('GPUOS_BAD_DESCRIPTOR');
    expect(system.peekQueue().tail).toBe(0);
    await system.submit({ operator: 'fill', pointers: [out.address], words: [8, 8, 0x3f80_0000] }).done();
    expect([...out.read()]).toEqual(Array(8).fill(1));
  });

  it('after shutdown everything but shutdown is an error', async () => {
    const system = start({ workers: 0 });
    const buffer = system.buffer([1]);
    await system.shutdown();
    for (const use of [() => system.peekQueue(), () => buffer.read(), () => buffer.write([2]), () => buffer.free()]) {
      expect(code(use)).toBe('GPUOS_SHUT_DOWN');
    }
    await system.shutdown();
  });
});
