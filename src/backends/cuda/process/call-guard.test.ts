import { Worker } from 'node:worker_threads';
import { describe, expect, it } from 'vitest';
import { CallGuard } from './call-guard.ts';

describe('the guard of calls', () => {
  it('leaves a call alone that returns in time, and passes on what it throws', () => {
    const guard = new CallGuard();
    let told = 0;
    const beats = (count: number): void => {
      for (let i = 0; i < count; i++) guard.beat(() => told++);
    };
    beats(30);
    expect(guard.run(() => beats(9))).toEqual({ late: false, error: undefined });
    const error = new Error('no');
    expect(
      guard.run(() => {
        throw error;
      }),
    ).toEqual({ late: false, error });
    beats(30);
    expect(told).toBe(0);
  });

  it('tells once that a call takes long, whatever becomes of it, and is ready for the next one', () => {
    const guard = new CallGuard();
    let told = 0;
    const beats = (count: number): void => {
      for (let i = 0; i < count; i++) guard.beat(() => told++);
    };
    expect(guard.run(() => beats(30)).late).toBe(true);
    expect(told).toBe(1);
    const failed = guard.run(() => {
      beats(10);
      throw new Error('no');
    });
    expect(failed.late).toBe(true);
    expect(told).toBe(2);
    expect(guard.run(() => {}).late).toBe(false);
  });

  it('waits until the other thread has told: the kernel that is launched next is not to be told', async () => {
    const guard = new CallGuard();
    // The other thread, between having found that it is late and having told.
    const code = `
      const { workerData } = require('node:worker_threads');
      const words = new Int32Array(workerData);
      while (Atomics.load(words, 0) <= 0);
      Atomics.store(words, 0, -1);
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 150);
      Atomics.store(words, 1, 1);`;
    const worker = new Worker(code, { eval: true, workerData: guard.shared });
    const words = new Int32Array(guard.shared);
    const { late } = guard.run(() => {
      while (Atomics.load(words, 0) > 0);
    });
    expect(late).toBe(true);
    expect(Atomics.load(words, 1)).toBe(1);
    await worker.terminate();
  });
});
