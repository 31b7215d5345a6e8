import { describe, expect, it, vi } from 'vitest';
import { STATUS } from '../../../abi/status.ts';
import { GpuosError } from '../../../errors.ts';
import { CudaError } from '../cuda-error.ts';
import { CallGuard } from './call-guard.ts';
import { type OrdinaryTask, OrdinaryTasks } from './ordinary-tasks.ts';
import type { ProductLibrary } from './product-library.ts';

const matrix = { transposed: false, stride: 4, batchStride: 0 };
const product = { dtype: 'float32', m: 4, n: 4, k: 4, a: matrix, b: matrix, c: matrix, batch: 1 } as const;
const failure = (code: 'GPUOS_CUDA_CALL_FAILED' | 'GPUOS_DEVICE_LOST') =>
  new CudaError(code, 'cublasLtMatmul answered no.', { call: 'cublasLtMatmul', result: 13, resultName: 'NO' });

/** Gates of four slots, then their completions. */
function stage(multiply: () => void = () => {}, first = 8) {
  const words = new Int32Array(8);
  for (let i = 0; i < 4; i++) words[(first + i) & 3] = words[4 + ((first + i) & 3)] = first + i - 4;
  const log: string[] = [];
  let why: string | undefined;
  const library = {
    multiply: () => {
      log.push('multiply');
      multiply();
    },
    disable: (reason: string) => {
      why ??= reason;
    },
  } as unknown as ProductLibrary;
  const guard = new CallGuard();
  const kernel = {
    without: <T>(meanwhile: () => T): T => {
      log.push('without');
      return meanwhile();
    },
  };
  const end = (queue: number, sequence: number, status: number): void => void log.push(`end ${queue}:${sequence} ${status}`);
  const tasks = new OrdinaryTasks({ words, library, guard, kernel, end });
  const task = (sequence: number): OrdinaryTask => {
    const slot = sequence & 3;
    return { product, pointers: [16, 32, 48], queue: 1, sequence, gateWord: slot, completionWord: 4 + slot };
  };
  return {
    ...{ words, log, guard, tasks, task },
    why: () => why,
    open: (sequence: number) => Atomics.store(words, sequence & 3, sequence | 0),
    complete: (sequence: number) => Atomics.store(words, 4 + (sequence & 3), sequence | 0),
  };
}

describe('tasks whose work is done beside the kernel', () => {
  it.each([8, 2 ** 32 - 2])('are begun when their gates open, in whatever order that is, from sequence %i on', (first) => {
    const { tasks, task, open, log } = stage(undefined, first);
    const of = (i: number): number => (first + i) % 2 ** 32;
    for (let i = 0; i < 3; i++) tasks.add(task(of(i)));
    expect(tasks.look()).toBe('now');
    expect(log).toEqual([]);
    open(of(2));
    expect(tasks.look()).toBe('now');
    open(of(0));
    open(of(1));
    expect(tasks.look()).toBe('idle');
    expect(log).toEqual([2, 0, 1].flatMap((i) => ['multiply', `end 1:${of(i)} ${STATUS.OK}`]));
    expect(tasks.counters).toEqual({ waiting: 0, launched: 3, begun: 3, failed: 0 });
  });

  it('are begun also if the gate was open before anybody knew of them', () => {
    const { tasks, task, open, log } = stage();
    open(9);
    tasks.add(task(9));
    expect(tasks.look()).toBe('idle');
    expect(log).toEqual(['multiply', `end 1:9 ${STATUS.OK}`]);
  });

  it('are forgotten when they have ended without, also if the slot is another task`s by then', () => {
    const { tasks, task, complete, open, log } = stage();
    tasks.add(task(8));
    tasks.add(task(9));
    complete(8);
    open(13);
    complete(13);
    expect(tasks.look()).toBe('idle');
    expect(log).toEqual([]);
  });

  it('are looked for less often when nothing has happened for long', () => {
    const { tasks, task } = stage();
    const now = vi.spyOn(performance, 'now');
    try {
      now.mockReturnValue(1000);
      tasks.add(task(8));
      for (const [after, look] of [
        [1, 'now'],
        [3, 'soon'],
        [900, 'soon'],
        [1100, 'later'],
      ] as const) {
        // biome-ignore format: a table
        now.mockReturnValue(1000 + after);
        expect(tasks.look()).toBe(look);
      }
      tasks.add(task(9));
      expect(tasks.look()).toBe('now');
    } finally {
      now.mockRestore();
    }
  });

  it('fail where the launch fails, and are the last ones', () => {
    const { tasks, task, open, log, why } = stage(() => {
      throw failure('GPUOS_CUDA_CALL_FAILED');
    });
    tasks.add(task(8));
    open(8);
    expect(tasks.look()).toBe('idle');
    expect(log).toEqual(['multiply', `end 1:8 ${STATUS.FAILED}`]);
    expect(why()).toMatch(/a product could not be launched: cublasLtMatmul answered no/);
    expect(tasks.counters).toMatchObject({ begun: 1, failed: 1 });
  });

  it.each([failure('GPUOS_DEVICE_LOST'), new GpuosError('GPUOS_INTERNAL', 'A defect.')])(
    'end the process by what it does not survive: %s',
    (error) => {
      const { tasks, task, open } = stage(() => {
        throw error;
      });
      tasks.add(task(8));
      open(8);
      expect(() => tasks.look()).toThrow(error);
    },
  );

  it('have the kernel launched again if a launch waited for its end, and are the last ones', () => {
    const { tasks, task, open, log, why, guard } = stage(() => {
      for (let i = 0; i < 20; i++) guard.beat(() => {});
    });
    tasks.add(task(8));
    open(8);
    tasks.look();
    expect(log).toEqual(['multiply', `end 1:8 ${STATUS.OK}`, 'without']);
    expect(why()).toMatch(/had to wait for the end of the resident kernel/);
  });

  it('have the kernel make room if one does not come to an end, but not while others do', () => {
    const { tasks, task, open, complete, log, why } = stage();
    const now = vi.spyOn(performance, 'now');
    try {
      now.mockReturnValue(1000);
      tasks.add(task(8));
      tasks.add(task(9));
      open(8);
      open(9);
      tasks.look();
      tasks.watch();
      now.mockReturnValue(5900);
      complete(8);
      tasks.watch();
      now.mockReturnValue(10_800);
      tasks.watch();
      expect(why()).toBeUndefined();
      now.mockReturnValue(11_000);
      tasks.watch();
      expect(why()).toMatch(/did not end within 5 s/);
      expect(log.at(-1)).toBe('without');
      complete(13);
      tasks.watch();
      expect(tasks.counters.launched).toBe(0);
    } finally {
      now.mockRestore();
    }
  });
});
