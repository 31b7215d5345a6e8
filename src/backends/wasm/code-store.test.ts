import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { FUNCTION_SLOTS } from '../../abi/status.ts';
import { CodeStore, Installer } from './code-store.ts';

const FIRST = 3;
const memory = new WebAssembly.Memory({ initial: 1, maximum: 1, shared: true });

/** A module whose function returns `value` (0 to 2^14 - 1). */
function moduleOf(value: number): Uint8Array {
  const name = (text: string): number[] => [text.length, ...Buffer.from(text)];
  const section = (id: number, ...content: number[]): number[] => [id, content.length, ...content];
  // Signed LEB128, in three bytes.
  const constant = [(value & 0x7f) | 0x80, ((value >> 7) & 0x7f) | 0x80, 0];
  return Uint8Array.from([
    ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    ...section(1, 1, 0x60, 0, 1, 0x7f),
    ...section(2, 1, ...name('env'), ...name('memory'), 2, 3, 1, 1),
    ...section(3, 1, 0),
    ...section(7, 1, ...name('f'), 0, 0),
    ...section(10, 1, 6, 0, 0x41, ...constant, 0x0b),
  ]);
}

/** A thread's table, and what each index gives there. */
class Thread {
  readonly table = new WebAssembly.Table({ element: 'anyfunc', initial: FUNCTION_SLOTS });
  readonly installer: Installer;

  constructor(store: CodeStore) {
    this.installer = new Installer(store.buffer, this.table, memory);
  }

  value(fn: number): number | undefined {
    return (this.table.get(fn) as (() => number) | null)?.();
  }
}

describe('the code store', () => {
  it('gives every thread what is installed, however often and in whatever order code comes and goes', () => {
    const action = fc.oneof(
      { weight: 4, arbitrary: fc.record({ kind: fc.constant('add' as const) }) },
      { weight: 2, arbitrary: fc.record({ kind: fc.constant('remove' as const), which: fc.nat(50) }) },
      { weight: 2, arbitrary: fc.record({ kind: fc.constant('install' as const), thread: fc.nat(1) }) },
    );
    fc.assert(
      fc.property(fc.array(action, { maxLength: 60 }), (actions) => {
        const store = new CodeStore(FIRST);
        const threads = [new Thread(store), new Thread(store)];
        const there = new Map<number, number>();
        let value = 0;
        for (const each of actions) {
          if (each.kind === 'add') {
            const { fn } = store.add(moduleOf(++value));
            expect(there.has(fn)).toBe(false);
            there.set(fn, value);
          } else if (each.kind === 'remove' && there.size > 0) {
            const fn = [...there.keys()][each.which % there.size] as number;
            store.remove(fn);
            there.delete(fn);
          } else if (each.kind === 'install') {
            const thread = threads[each.thread] as Thread;
            expect(thread.installer.install(store.epoch)).toBe(store.epoch);
            for (const [fn, expected] of there) expect(thread.value(fn)).toBe(expected);
          }
        }
      }),
      { numRuns: 60 },
    );
  });

  it('brings a thread up to date that is further behind than the log goes back, and one whose log runs over at the edge', () => {
    const store = new CodeStore(FIRST);
    const [far, edge, near] = [new Thread(store), new Thread(store), new Thread(store)];
    const old = store.add(moduleOf(1));
    edge.installer.install(store.epoch);
    near.installer.install(store.epoch);
    // Indices are given out anew: the one before last stays while the last is written.
    let last = store.add(moduleOf(2));
    const early = store.add(moduleOf(3));
    for (let i = 0; i < FUNCTION_SLOTS - 2; i++) {
      const next = store.add(moduleOf(i % 10_000));
      store.remove(last.fn);
      last = next;
      if (i % 100 === 0) near.installer.install(store.epoch);
    }
    expect(store.epoch).toBe(FUNCTION_SLOTS + 1);
    for (const thread of [far, edge, near]) {
      thread.installer.install(store.epoch);
      expect(thread.value(old.fn)).toBe(1);
      expect(thread.value(early.fn)).toBe(3);
      expect(thread.value(last.fn)).toBe((FUNCTION_SLOTS - 3) % 10_000);
    }
  });

  it('misses nothing when the log is written over while a thread reads it', () => {
    const store = new CodeStore(FIRST);
    const thread = new Thread(store);
    thread.installer.install(store.epoch);
    const kept = store.add(moduleOf(7));
    const { epoch } = store;
    // As if the host had gone on just now: more than the log holds has come since.
    let last = store.add(moduleOf(8));
    for (let i = 0; i < FUNCTION_SLOTS; i++) {
      const next = store.add(moduleOf(i % 10_000));
      store.remove(last.fn);
      last = next;
    }
    thread.installer.install(epoch);
    expect(thread.value(kept.fn)).toBe(7);
  });

  it('goes on when epochs wrap', () => {
    const store = new CodeStore(FIRST, 0x7fff_fff0);
    const thread = new Thread(store);
    const wrap = new CodeStore(FIRST, -3);
    const other = new Thread(wrap);
    for (let i = 0; i < 40; i++) {
      const { fn } = store.add(moduleOf(i));
      thread.installer.install(store.epoch);
      expect(thread.value(fn)).toBe(i);
      const { fn: second } = wrap.add(moduleOf(i));
      if (i % 3 === 0) other.installer.install(wrap.epoch);
      if (i % 3 === 0) expect(other.value(second)).toBe(i);
      expect(wrap.epoch).not.toBe(0);
    }
  });
});
