import { describe, expect, it, vi } from 'vitest';
import { STATUS } from '../../../abi/status.ts';
import { GpuosError } from '../../../errors.ts';
import { CudaError } from '../cuda-error.ts';
import { CallGuard } from './call-guard.ts';
import { ASIDE_FLOPS, type OrdinaryTask, OrdinaryTasks } from './ordinary-tasks.ts';
import type { ProductLibrary } from './product-library.ts';
import type { Aside } from './requests.ts';

const matrix = { transposed: false, stride: 4, batchStride: 0 };
const product = { dtype: 'float32', m: 4, n: 4, k: 4, a: matrix, b: matrix, c: matrix, batch: 1 } as const;
const failure = (code: 'GPUOS_CUDA_CALL_FAILED' | 'GPUOS_DEVICE_LOST') =>
  new CudaError(code, 'cublasLtMatmul answered no.', { call: 'cublasLtMatmul', result: 13, resultName: 'NO' });

/** Gates of four slots, then their completions. */
function stage(multiply: () => void = () => {}, first = 8, aside: Aside = 'auto') {
  const words = new Int32Array(8);
  for (let i = 0; i < 4; i++) words[(first + i) & 3] = words[4 + ((first + i) & 3)] = first + i - 4;
  const log: string[] = [];
  let why: string | undefined;
  const library = {
    multiply: () => {
      log.push('multiply');
      multiply();
    },
    multiplyAlone: (_: unknown, __: unknown, stream: number) => {
      log.push(`alone on ${stream}`);
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
    stepAside: (queue: number, sequence: number, work: (stream: number) => void) => {
      if (others.leaving) return undefined;
      let error: CudaError | undefined;
      try {
        work(77);
      } catch (cause) {
        error = cause as CudaError;
      }
      log.push(`end ${queue}:${sequence} and back`);
      return error === undefined ? {} : { error };
    },
  };
  const others = { wait: false, leaving: false };
  const end = (queue: number, sequence: number, status: number): void => void log.push(`end ${queue}:${sequence} ${status}`);
  const tasks = new OrdinaryTasks({ words, library, guard, kernel, end, aside, othersWait: () => others.wait });
  const task = (sequence: number, rows = 4): OrdinaryTask => {
    const slot = sequence & 3;
    return { product: { ...product, m: rows }, pointers: [16, 32, 48], queue: 1, sequence, gateWord: slot, completionWord: 4 + slot };
  };
  return {
    ...{ words, log, guard, tasks, task, others },
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
    expect(tasks.counters).toEqual({ waiting: 0, launched: 3, begun: 3, aside: 0, failed: 0 });
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

describe('a product that fills the GPU for long', () => {
  /** Of a product with 4 columns, of 4 elements a sum. */
  const rows = ASIDE_FLOPS / (2 * 4 * 4);

  it('has the kernel step aside, and nothing else begin until it has ended', () => {
    const { tasks, task, open, complete, log } = stage();
    tasks.add(task(8, rows));
    tasks.add(task(9, rows));
    tasks.add(task(10));
    for (const sequence of [8, 9, 10]) open(sequence);
    expect(tasks.look()).toBe('now');
    expect(log.splice(0)).toEqual(['alone on 77', 'end 1:8 and back']);
    expect(tasks.look()).toBe('now');
    expect(log).toEqual([]);
    complete(8);
    tasks.look();
    expect(log.splice(0)).toEqual(['alone on 77', 'end 1:9 and back']);
    complete(9);
    expect(tasks.look()).toBe('idle');
    expect(log).toEqual(['multiply', `end 1:10 ${STATUS.OK}`]);
    expect(tasks.counters).toEqual({ waiting: 0, launched: 1, begun: 3, aside: 2, failed: 0 });
  });

  it('is done beside the kernel where others would wait, or another product is under way, or the kernel leaves already', () => {
    const { tasks, task, open, complete, log, others } = stage();
    const begins = (sequence: number): readonly string[] => {
      tasks.add(task(sequence, rows));
      open(sequence);
      tasks.look();
      return log.splice(0);
    };
    const beside = (sequence: number): readonly string[] => ['multiply', `end 1:${sequence} ${STATUS.OK}`];
    others.wait = true;
    expect(begins(8)).toEqual(beside(8));
    others.wait = false;
    expect(begins(9)).toEqual(beside(9));
    complete(8);
    complete(9);
    others.leaving = true;
    expect(begins(10)).toEqual(beside(10));
    complete(10);
    others.leaving = false;
    expect(begins(11)).toEqual(['alone on 77', 'end 1:11 and back']);
  });

  it('is the last one if it cannot be launched, as any other', () => {
    const { tasks, task, open, log, why } = stage(() => {
      throw failure('GPUOS_CUDA_CALL_FAILED');
    });
    tasks.add(task(8, rows));
    open(8);
    tasks.look();
    expect(log).toEqual(['alone on 77', 'end 1:8 and back']);
    expect(why()).toMatch(/could not be launched: cublasLtMatmul/);
    expect(tasks.counters).toMatchObject({ begun: 1, aside: 1, failed: 1 });
  });

  it.each([
    ['never', rows, 'multiply'],
    ['always', 4, 'alone on 77'],
  ] as const)('or not, where it is to do so %s', (aside, m, first) => {
    const { tasks, task, open, log } = stage(undefined, 8, aside);
    tasks.add(task(8, m));
    open(8);
    tasks.look();
    expect(log[0]).toBe(first);
  });

  it('needs one floating-point operation less to be done beside it', () => {
    const { tasks, task, open, log } = stage();
    tasks.add(task(8, rows - 1));
    open(8);
    tasks.look();
    expect(log[0]).toBe('multiply');
  });
});
