/** Which images are made and put in place, by a device process that only notes what it is asked for. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { GpuosError } from '../../../errors.ts';
import type { Program } from '../../../ops/program.ts';
import { ImageCache } from '../image-cache.ts';
import type { DeviceProcess } from '../process/device-process.ts';
import { RelaunchFunctions } from './relaunch.ts';

const program = (constant: number): Program => ({
  inputs: [{ dtype: 'float32', columnStride: 1 }],
  scalars: 0,
  nodes: [
    { kind: 'input', input: 0, dtype: 'float32' },
    { kind: 'constant', value: constant, dtype: 'float32' },
    { kind: 'map', op: 'add', args: [0, 1], dtype: 'float32' },
  ],
  outputs: [{ node: 2, dtype: 'float32', space: 'full' }],
  outerRank: 0,
});

type Message = Readonly<Record<string, unknown>>;

/** Checks what it is asked for against what it has, as the real one does. */
class Process {
  readonly info = { computeCapability: [9, 0], nvrtcVersion: [13, 0] };
  lost: string | undefined;
  readonly log: string[] = [];
  readonly kept = new Set(['resident.cu']);
  readonly images: (readonly string[])[] = [];
  running: readonly string[] = [];
  readonly entries = new Map<number, string>();
  /** What fails, by what it is asked for; and how many swaps find the kernel busy. */
  fails: (name: string, ask: Message) => boolean = () => false;
  busy = 0;
  /** Whether answers are there as soon as somebody looks, not with the event loop only. */
  answers = false;

  call(name: string, ask: Message): Message {
    this.log.push(name);
    if (this.fails(name, ask)) throw new GpuosError('GPUOS_COMPILE_FAILED', `${name} failed`);
    if (name === 'compile' || name === 'keep') {
      this.kept.add(String(ask['keep'] ?? ask['name']));
      return { payload: Uint8Array.of(1) };
    }
    if (name === 'link') {
      const names = ask['names'] as readonly string[];
      for (const one of names) if (!this.kept.has(one)) throw new Error(`${one} is not kept`);
      for (const one of ask['forget'] as readonly string[]) this.kept.delete(one);
      this.images.push(names.slice(1, -1));
      return { image: this.images.length };
    }
    if (name === 'swap') {
      if (this.busy-- > 0) return { swapped: false };
      this.running = this.images[(ask['image'] as number) - 1]!;
      expect(ask['symbols']).toEqual(this.running);
      return { swapped: true, pauseUs: 100, parts: {} };
    }
    for (const [fn, symbol] of (name === 'enter' ? ask['entries'] : []) as readonly [number, string][]) {
      if (symbol !== '' && !this.running.includes(symbol)) throw new Error(`the kernel has no ${symbol}`);
      this.entries.set(fn, symbol);
    }
    return {};
  }

  post(name: string, ask: Message) {
    let outcome: { readonly answer: Message } | { readonly error: unknown } | undefined;
    const wait = (): Message => {
      try {
        outcome ??= { answer: this.call(name, ask) };
      } catch (error) {
        outcome = { error };
      }
      if ('error' in outcome) throw outcome.error;
      return outcome.answer;
    };
    const look = (): boolean => {
      // As if another process had worked on it.
      if (this.answers) void result(wait);
      return outcome !== undefined;
    };
    return {
      wait,
      get done() {
        return look();
      },
      get promise() {
        return new Promise<void>((resolve) => setTimeout(resolve, 1)).then(wait);
      },
    };
  }

  swaps = (): number => this.log.filter((name) => name === 'swap').length;
}

function result<T>(action: () => T): T | undefined {
  try {
    return action();
  } catch {
    return undefined;
  }
}

describe('RelaunchFunctions', () => {
  let folder: string;
  let process: Process;
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'gpuos-relaunch-'));
    process = new Process();
  });
  afterEach(() => rmSync(folder, { recursive: true, force: true }));

  const functions = (tiered = true): RelaunchFunctions =>
    new RelaunchFunctions(process as unknown as DeviceProcess, new ImageCache(folder), { first: 10, limit: 30, bytecode: 4096, tiered });
  const install = (all: RelaunchFunctions, constant: number): number => all.install(all.compile(program(constant)));
  async function settled(all: RelaunchFunctions): Promise<void> {
    for (const end = Date.now() + 5000; all.state.compiling > 0; await new Promise((resolve) => setTimeout(resolve, 5)))
      expect(Date.now()).toBeLessThan(end);
  }

  it('interprets at first, and brings all that is ready with one relaunch; the same program has one symbol', async () => {
    const all = functions();
    const list = [1, 2, 3, 1].map((k) => install(all, k));
    expect(list.map((fn) => process.entries.get(fn))).toEqual(['', '', '', '']);
    await settled(all);
    expect(process.swaps()).toBe(1);
    expect(process.running).toHaveLength(3);
    const symbols = list.map((fn) => process.entries.get(fn));
    expect(new Set(symbols)).toEqual(new Set(process.running));
    expect(symbols[3]).toBe(symbols[0]);
    // Known: entered at once, and neither compiled nor linked.
    expect(process.entries.get(install(all, 2))).toBe(symbols[1]);
    expect(process.log.at(-1)).toBe('enter');
    expect(process.swaps()).toBe(1);
  });

  it('takes from the cache what was compiled before, and leaves out of the next image what nobody needs', async () => {
    const before = functions();
    const [first] = [1, 2].map((k) => install(before, k));
    await settled(before);
    before.uninstall(first!);
    install(before, 3);
    await settled(before);
    expect(process.swaps()).toBe(2);
    expect(process.running).toHaveLength(2);
    expect([...process.kept].filter((name) => name.startsWith('gpuos_'))).toHaveLength(2);
    process = new Process();
    const all = functions();
    install(all, 1);
    await settled(all);
    expect(process.log).toEqual(['write', 'enter', 'keep', 'compile', 'link', 'swap', 'enter']);
  });

  it('finds the one of several that cannot be linked, and leaves it interpreted from then on', async () => {
    const all = functions();
    const list = [1, 2, 3, 4].map((k) => install(all, k));
    let bad: string | undefined;
    process.fails = (name, ask) => {
      if (name !== 'link') return false;
      const names = ask['names'] as readonly string[];
      bad ??= names[2];
      return names.includes(bad!);
    };
    await settled(all);
    expect(all.state.failed).toBe(
      "link failed [GPUOS_COMPILE_FAILED] Correct the source or the options as the compiler's log in the message states.",
    );
    expect(list.map((fn) => process.entries.get(fn) !== '')).toEqual([true, false, true, true]);
    const links = process.log.filter((name) => name === 'link').length;
    expect(process.entries.get(install(all, 2))).toBe('');
    await settled(all);
    expect(process.log.filter((name) => name === 'link').length).toBe(links);
  });

  it('asks again later where tasks take long', async () => {
    process.busy = 2;
    const all = functions();
    const fn = install(all, 1);
    await settled(all);
    expect(process.swaps()).toBe(3);
    expect(process.log.filter((name) => name === 'link')).toHaveLength(1);
    expect(process.entries.get(fn)).not.toBe('');
  });

  /** Waits as a task's caller does who never lets the event loop turn. */
  function waits(all: RelaunchFunctions, until: () => boolean): void {
    for (const end = Date.now() + 5000; !until(); all.whileWaiting()) expect(Date.now()).toBeLessThan(end);
  }

  it('goes on where the program waits and the event loop does not turn, and is done with it when that turns again', async () => {
    process.busy = 2;
    const all = functions();
    const list = [1, 2, 3].map((k) => install(all, k));
    process.answers = true;
    waits(all, () => all.state.compiling === 0);
    expect(process.swaps()).toBe(3);
    expect(list.map((fn) => process.entries.get(fn) !== '')).toEqual([true, true, true]);
    const asked = process.log.length;
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(process.log).toHaveLength(asked);
    // Whoever goes on with it, the rest is done: by one, by the other, by both in turn.
    const more = install(all, 4);
    await new Promise((resolve) => setTimeout(resolve, 1));
    all.whileWaiting();
    await settled(all);
    install(all, 5);
    waits(all, () => all.state.compiling === 0);
    expect(process.entries.get(more)).not.toBe('');
    expect(process.running).toHaveLength(5);
  });

  it('goes on there too where something fails, and leaves that interpreted', () => {
    process.fails = (name) => name === 'link';
    const all = functions();
    const fn = install(all, 1);
    process.answers = true;
    waits(all, () => all.state.compiling === 0);
    expect(all.state.failed).toMatch(/^link failed/);
    expect(process.entries.get(fn)).toBe('');
  });

  it('has the caller wait where it is to compile first, and says so if tasks take too long', () => {
    const all = functions(false);
    const list = [1, 2].map((k) => install(all, k));
    expect(process.swaps()).toBe(2);
    expect(list.map((fn) => process.entries.get(fn))).toEqual(process.running);
    process.busy = 1;
    expect(() => install(all, 3)).toThrow(/GPUOS_DEVICE_BUSY/);
    expect(install(all, 3)).toBe(12);
  });

  it('makes an image anew that a waiting caller has overtaken, at whatever point', async () => {
    const long = Array.from({ length: 400 }, (_, i) => i);
    /** A program that the interpreter cannot hold: every value is needed at the end. */
    const large = (constant: number): Program => ({
      ...program(constant),
      nodes: [
        { kind: 'input', input: 0, dtype: 'float32' },
        { kind: 'constant', value: constant, dtype: 'float32' },
        ...long.map((i) => ({ kind: 'map', op: 'mul', args: [i === 0 ? 0 : i + 1, 1], dtype: 'float32' }) as const),
        ...long.map((i) => ({ kind: 'map', op: 'add', args: [401 + i, 401 - i], dtype: 'float32' }) as const),
      ],
      outputs: [{ node: 801, dtype: 'float32', space: 'full' }],
    });
    for (let turns = 0; turns < 14; turns++) {
      process = new Process();
      const all = functions();
      const background = install(all, 100 + turns);
      for (let i = 0; i < turns; i++) await new Promise((resolve) => setTimeout(resolve, 1));
      const artifact = all.compile(large(turns));
      expect(artifact.bytes).toHaveLength(0);
      const now = all.install(artifact);
      expect(process.running).toContain(process.entries.get(now));
      await settled(all);
      expect(all.state.failed).toBeUndefined();
      expect(process.running).toHaveLength(2);
      expect(process.running).toContain(process.entries.get(now));
      expect(process.running).toContain(process.entries.get(background));
    }
  });
});
