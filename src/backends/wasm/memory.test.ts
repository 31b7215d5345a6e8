import { afterEach, describe, expect, it } from 'vitest';
import { existsSync, readFileSync } from 'node:fs';
import { program } from '../../../test/program.ts';
import { GpuosError } from '../../errors.ts';
import { koffi } from '../native.ts';
import { WasmMemory } from './memory.ts';

const MIB = 2 ** 20;
const PAGES_A_MIB = 16;

const thrown = (run: () => unknown): GpuosError | undefined => {
  try {
    run();
  } catch (error) {
    if (error instanceof GpuosError) return error;
    throw error;
  }
  return undefined;
};

const { Memory } = WebAssembly;

/** An operating system that reserves no more than this. */
function refuseAbove(mib: number): void {
  WebAssembly.Memory = class extends Memory {
    constructor(descriptor: WebAssembly.MemoryDescriptor) {
      if ((descriptor.maximum as number) > mib * PAGES_A_MIB) throw new RangeError('could not allocate memory');
      super(descriptor);
    }
  };
}
afterEach(() => {
  WebAssembly.Memory = Memory;
});

/** What Linux says of the mapping that begins where this memory does: its flags, such as `hg` for huge pages. */
function mappingFlags(memory: WasmMemory): string {
  const start = koffi().address(new Uint8Array(memory.memory.buffer));
  const mappings = readFileSync('/proc/self/smaps', 'utf8').split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m);
  const own = mappings.find((text) => text.startsWith(start.toString(16)));
  return /^VmFlags: (.*)$/m.exec(own ?? '')?.[1] ?? '';
}

const HUGE_PAGES = '/sys/kernel/mm/transparent_hugepage/enabled';

describe('memory', () => {
  it.skipIf(!existsSync(HUGE_PAGES) || readFileSync(HUGE_PAGES, 'utf8').includes('[never]'))(
    'asks for huge pages, also of what it grows by (skipped where the system has none)',
    () => {
      const memory = new WasmMemory(64, MIB);
      expect(mappingFlags(memory)).toMatch(/\bhg\b/);
      memory.ensure(40 * MIB);
      expect(mappingFlags(memory)).toMatch(/\bhg\b/);
    },
  );

  it('may grow to what was asked for, and says how much that is when it is not enough', () => {
    const memory = new WasmMemory(64, MIB);
    expect(memory.limit).toBe(64 * MIB);
    const before = memory.views;
    memory.ensure(40 * MIB);
    expect(memory.views.bytes).toBeGreaterThanOrEqual(40 * MIB);
    expect(memory.views.u32).toHaveLength(memory.views.bytes / 4);
    expect(before.bytes).toBeLessThan(40 * MIB);
    const error = thrown(() => memory.ensure(64 * MIB + 1));
    expect(error?.code).toBe('GPUOS_OUT_OF_MEMORY');
    expect(error?.message).toMatch(/would need 64\.0 MiB; it has \d+\.\d MiB and may grow to 64\.0 MiB/);
    memory.ensure(64 * MIB);
    expect(memory.views.bytes).toBe(64 * MIB);
  });

  it('takes half as often as it has to where so much is refused', () => {
    refuseAbove(300);
    expect(new WasmMemory(1024, MIB).limit).toBe(256 * MIB);
    expect(new WasmMemory(200, MIB).limit).toBe(200 * MIB);
  });

  it('is GPUOS_NO_SHARED_MEMORY where even the least is refused, with every size that was tried', () => {
    refuseAbove(20);
    const error = thrown(() => new WasmMemory(100, 30 * MIB));
    expect(error?.code).toBe('GPUOS_NO_SHARED_MEMORY');
    expect(error?.message).toMatch(/100 MiB: could not.*; 50 MiB: could not.*; 30 MiB: could not/);
  });
});

describe('a process without what the device stands on', () => {
  it.each([
    ['SharedArrayBuffer', 'SharedArrayBuffer'],
    ['WebAssembly, as node --jitless leaves it', 'WebAssembly'],
  ])('gets GPUOS_NO_SHARED_MEMORY from init() without %s', (_, name) => {
    const { json, stderr } = program(`
      delete globalThis.${name};
      const { init, current } = await import('gpuos');
      let error = {};
      try { init(); } catch (caught) { error = caught; }
      console.log(JSON.stringify({ code: error.code, remedy: error.remedy, running: current() !== undefined }));
    `);
    expect(json, stderr).toEqual({ code: 'GPUOS_NO_SHARED_MEMORY', remedy: expect.stringContaining('Node.js 20.3'), running: false });
  });
});
