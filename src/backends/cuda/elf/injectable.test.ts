import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { CASES } from '../../../../test/fixtures/cubin/cases.mjs';
import { GpuosError } from '../../../errors.ts';
import { Cubin } from './cubin.ts';
import { ElfFile, SHDR_BYTES } from './elf.ts';
import {
  type InjectableFunction,
  type InjectionBudget,
  placeCode,
  readInjectable,
  REFUSAL_CHECKS,
  type RefusalCheck,
} from './injectable.ts';

/** Committed cubins: what the reader says of them does not depend on nvcc being there. */

type Case = { refused: string[]; refusedWithCalls?: string[]; fixtures?: number[] };
const cases = Object.entries(CASES as Record<string, Case>);
const sm90: InjectionBudget = { sm: 90 };
const withCalls: InjectionBudget = { sm: 90, calls: true, stackBytes: 512 };

function fixture(name: string): Uint8Array {
  return new Uint8Array(readFileSync(new URL(`../../../../test/fixtures/cubin/${name}.cubin`, import.meta.url)));
}

const provoked = new Set<RefusalCheck>();

/** The checks that refuse a function, each once, in alphabetical order. */
function refusals(bytes: Uint8Array, budget: InjectionBudget, name = 'op'): string[] {
  const result = readInjectable(bytes, name, budget);
  if (result.ok) return [];
  expect(result.reasons.length).toBeGreaterThan(0);
  for (const { check, message } of result.reasons) {
    provoked.add(check);
    expect(message).toMatch(/^[\x20-\x7e]+\.$/);
  }
  return [...new Set(result.reasons.map((r) => r.check))].sort();
}

function accepted(bytes: Uint8Array, budget: InjectionBudget): InjectableFunction {
  const result = readInjectable(bytes, 'op', budget);
  if (!result.ok) throw new Error(JSON.stringify(result.reasons));
  return result.function;
}

/** A copy with a change. */
function changed(bytes: Uint8Array, change: (view: DataView, elf: ElfFile) => void): Uint8Array {
  const copy = bytes.slice();
  change(new DataView(copy.buffer), new ElfFile(bytes));
  return copy;
}

const sectionNamed = (elf: ElfFile, name: string) => elf.sections.find((s) => s.name === name)!;
const headerOf = (view: DataView, index: number) => Number(view.getBigUint64(40, true)) + index * SHDR_BYTES;

/** The place of the first instruction of an operation in `.text.op`. */
function instruction(view: DataView, elf: ElfFile, operation: number): number {
  const { offset, size } = sectionNamed(elf, '.text.op');
  for (let at = offset; at < offset + size; at += 16) if ((view.getUint32(at, true) & 0xfff) === operation) return at;
  throw new Error(`no instruction 0x${operation.toString(16)}`);
}

describe('committed cubins', () => {
  for (const [name, { refused, refusedWithCalls = refused, fixtures = [] }] of cases) {
    for (const sm of fixtures) {
      it(`${name} for sm_${sm}: ${refused.join(', ') || 'injected'}`, () => {
        const bytes = fixture(`${name}.sm_${sm}`);
        expect(refusals(bytes, { sm })).toEqual(refused);
        expect(refusals(bytes, { ...withCalls, sm })).toEqual(refusedWithCalls);
      });
    }
  }

  it('has what is needed to place a function', () => {
    const bytes = fixture('multiply.sm_90');
    const fn = accepted(bytes, sm90);
    const { code, ...rest } = fn;
    expect(rest).toEqual({
      name: 'op',
      sm: 90,
      abi: 8,
      alignmentBytes: 128,
      registers: 24,
      stackBytes: 0,
      barriers: 0,
      patches: [],
      functions: ['op'],
    });
    const elf = new ElfFile(bytes);
    expect(code).toEqual(elf.contents(sectionNamed(elf, '.text.op')));
    expect(code.buffer).not.toBe(bytes.buffer);
    expect(placeCode(fn, 0x7f1234567880n)).toEqual(code);
  });

  it('counts the barriers of the block and the registers', () => {
    expect(accepted(fixture('block-sum.sm_90'), sm90)).toMatchObject({ barriers: 1, registers: 84 });
    expect(refusals(fixture('block-sum.sm_90'), { sm: 90, barriers: 0 })).toEqual(['barriers']);
    expect(refusals(fixture('multiply.sm_90'), { sm: 90, registers: 16 })).toEqual(['registers']);
  });

  it('takes a frame that the resident kernel reserves, and adds the frames of a chain of calls', () => {
    expect(accepted(fixture('local.sm_90'), { sm: 90, stackBytes: 136 }).stackBytes).toBe(136);
    expect(refusals(fixture('local.sm_90'), { sm: 90, stackBytes: 135 })).toEqual(['stack']);
    expect(accepted(fixture('callee.sm_90'), withCalls).stackBytes).toBe(8);
  });
});

describe('relocations', () => {
  for (const [sm, kind] of [
    [80, 'call-47'],
    [90, 'call-55'],
  ] as const) {
    it(`are applied where functions call others of their file (sm_${sm})`, () => {
      const fn = accepted(fixture(`divide.sm_${sm}`), { sm, calls: true });
      expect(fn.functions).toEqual(['op', expect.stringContaining('slowpath')]);
      expect(fn.patches.map((p) => p.kind).sort()).toEqual([kind, 'high-32', 'low-32']);
      const address = 0x7fabcdef1200n;
      const placed = placeCode(fn, address);
      const view = new DataView(placed.buffer);
      const of = (wanted: string) => fn.patches.find((p) => p.kind === wanted)!;

      // The halves of the return address: the instruction after the call.
      expect(of('low-32').target).toBe(of(kind).at + 16);
      const halves = [of('low-32'), of('high-32')].map(({ at }) => BigInt(view.getUint32(at + 4, true)));
      expect((halves[1]! << 32n) | halves[0]!).toBe(address + BigInt(of('low-32').target));

      // The target of the call: bits 34 to 80 in units of 4 bytes, with byte 2 below them on newer architectures.
      const at = of(kind).at;
      const bits = view.getBigUint64(at, true) | (view.getBigUint64(at + 8, true) << 64n);
      const field = (bits >> 34n) & ((1n << 47n) - 1n);
      const units = kind === 'call-55' ? (field << 8n) | ((bits >> 16n) & 0xffn) : field;
      expect(units * 4n).toBe(address + BigInt(of(kind).target));
      expect(of(kind).target % 128).toBe(0);

      // Nothing else is touched.
      const fields = new Map(fn.patches.map((p) => [p.at, p.kind]));
      for (let i = 0; i < placed.length; i += 16)
        if (!fields.has(i)) expect(placed.subarray(i, i + 16)).toEqual(fn.code.subarray(i, i + 16));
      const mask = (((1n << 47n) - 1n) << 34n) | (kind === 'call-55' ? 0xff0000n : 0n);
      const before = new DataView(fn.code.buffer);
      expect(bits & ~mask).toBe((before.getBigUint64(at, true) | (before.getBigUint64(at + 8, true) << 64n)) & ~mask);
    });
  }

  it('need an address that is aligned', () => {
    const fn = accepted(fixture('multiply.sm_90'), sm90);
    for (const address of [64n, 0x7f0000000001n, -128n]) {
      expect(() => placeCode(fn, address)).toThrow(expect.objectContaining({ code: 'GPUOS_INTERNAL' }));
    }
  });
});

describe('the file as a whole', () => {
  const bytes = fixture('multiply.sm_90');

  it('is for the architecture of the device, no other', () => {
    expect(refusals(bytes, { sm: 89 })).toEqual(['architecture']);
    expect(refusals(fixture('multiply.sm_75'), sm90)).toContain('architecture');
    expect(refusals(fixture('multiply.sm_100'), { sm: 103 })).toEqual(['architecture']);
  });

  it('may follow the ABI of CUDA 12: the architecture in the lowest byte of e_flags, counts in the section of code', () => {
    // No CUDA 12 compiler was at hand: the header is rewritten as LLVM describes it, the rest is what CUDA 13 wrote.
    const old = changed(bytes, (view) => {
      view.setUint8(7, 51);
      view.setUint8(8, 7);
      view.setUint32(48, 0x5a055a, true);
    });
    expect(new Cubin(old)).toMatchObject({ abi: 7, sm: 90 });
    expect(accepted(old, sm90)).toMatchObject({ abi: 7, sm: 90, registers: 24 });
    expect(refusals(old, { sm: 5 })).toEqual(['architecture']);
    const counted = changed(old, (view, elf) => {
      const header = headerOf(view, sectionNamed(elf, '.text.op').index);
      view.setUint32(header + 8, view.getUint32(header + 8, true) | (3 << 20), true);
      view.setUint32(header + 44, (view.getUint32(header + 44, true) | (200 << 24)) >>> 0, true);
    });
    expect(refusals(counted, sm90)).toEqual(['barriers', 'registers']);
  });

  it('follows an ABI that is known', () => {
    expect(
      refusals(
        changed(bytes, (view) => view.setUint8(8, 9)),
        sm90,
      ),
    ).toEqual(['abi']);
    expect(
      refusals(
        changed(bytes, (view) => view.setUint8(7, 51)),
        sm90,
      ),
    ).toEqual(['abi']);
  });

  it('has not been linked', () => {
    expect(
      refusals(
        changed(bytes, (view) => view.setUint16(16, 2, true)),
        sm90,
      ),
    ).toEqual(['file-type']);
  });

  it('has the function, as a device function', () => {
    expect(refusals(bytes, sm90, 'absent')).toEqual(['missing-function']);
    expect(refusals(bytes, sm90, '')).toEqual(['missing-function']);
    expect(refusals(fixture('kernel.sm_90'), sm90)).toEqual(['kernel']);
  });

  it('has no section that needs memory and is of no known kind', () => {
    const retype = (name: string, type: number, flags?: number) =>
      changed(bytes, (view, elf) => {
        const header = headerOf(view, sectionNamed(elf, name).index);
        view.setUint32(header + 4, type, true);
        if (flags !== undefined) view.setUint32(header + 8, flags, true);
      });
    expect(refusals(retype('.nv.prototype', 0x70000055, 2), sm90)).toEqual(['section']);
    expect(refusals(retype('.nv.prototype', 1, 6), sm90)).toEqual(['section']);
    expect(refusals(retype('.nv.prototype', 0x70000009), sm90)).toEqual(['local-memory']);
    expect(refusals(retype('.nv.prototype', 0x70000065), sm90)).toEqual(['constant-bank']);
    expect(refusals(retype('.nv.prototype', 0x70000055), sm90)).toEqual([]);
  });
});

describe('the function', () => {
  const bytes = fixture('multiply.sm_90');
  const edited = (operation: number, edit: (view: DataView, at: number) => void, file = bytes) =>
    changed(file, (view, elf) => edit(view, instruction(view, elf, operation)));

  it('fills its section, with whole instructions', () => {
    const resized = (size: bigint) =>
      changed(bytes, (view, elf) => {
        const [symbol] = elf.symbolsNamed('op', 2);
        view.setBigUint64(sectionNamed(elf, '.symtab').offset + symbol!.index * 24 + 16, size, true);
      });
    expect(refusals(resized(0n), sm90)).toEqual(['code-shape']);
    expect(refusals(resized(64n), sm90)).toEqual(['code-shape']);
    const odd = changed(bytes, (view, elf) => view.setBigUint64(headerOf(view, sectionNamed(elf, '.text.op').index) + 32, 760n, true));
    expect(refusals(odd, sm90)).toEqual(['code-shape']);
    expect(refusals(bytes, { sm: 90, codeBytes: 512 })).toEqual(['code-shape']);
  });

  it('has only attributes that are known', () => {
    const renamed = (from: number, to: number) =>
      changed(bytes, (view, elf) => {
        const { offset, size } = sectionNamed(elf, '.nv.info.op');
        for (let at = offset; at < offset + size; at += 4)
          if (view.getUint8(at) === 4 && view.getUint8(at + 1) === from) view.setUint8(at + 1, to);
      });
    expect(refusals(renamed(0x36, 0x7e), sm90)).toEqual(['attribute']);
    expect(refusals(renamed(0x36, 0x46), sm90)).toEqual(['external-call']);
    expect(refusals(renamed(0x36, 0x1e), sm90)).toEqual(['stack']);
  });

  it('says how many registers and how much stack it needs', () => {
    const without = (id: number) =>
      changed(bytes, (view, elf) => {
        const { offset } = sectionNamed(elf, '.nv.info');
        for (let at = offset; at < offset + 36; at += 12) if (view.getUint8(at + 1) === id) view.setUint8(at + 1, 0x12);
      });
    expect(refusals(without(0x2f), sm90)).toEqual(['registers']);
    expect(refusals(without(0x11), sm90)).toEqual(['stack']);
  });

  it('returns as a called function does', () => {
    const relative = edited(0x950, (view, at) => view.setUint32(at + 8, view.getUint32(at + 8, true) & ~(1 << 21), true));
    const register = edited(0x950, (view, at) => view.setUint8(at + 3, 2));
    const without = edited(0x950, (view, at) => view.setUint16(at, 0x7918, true));
    for (const file of [relative, register, without]) expect(refusals(file, sm90)).toEqual(['return']);
    const open = changed(bytes, (view, elf) => {
      // The branch to itself behind the return, which keeps the code from running on.
      view.setUint16(instruction(view, elf, 0x950) + 16, 0x7918, true);
      view.setUint8(instruction(view, elf, 0x950) + 1, 0x09);
    });
    expect(refusals(open, sm90)).toEqual(['return']);
  });

  it('branches only inside of itself', () => {
    expect(
      refusals(
        edited(0x947, (view, at) => view.setUint8(at + 6, 0x7f)),
        sm90,
      ),
    ).toEqual(['branch']);
    expect(
      refusals(
        edited(0x947, (view, at) => view.setUint32(at + 8, view.getUint32(at + 8, true) | 0x3ffff, true)),
        sm90,
      ),
    ).toEqual(['branch']);
    const old = fixture('multiply.sm_75');
    expect(
      refusals(
        edited(0x947, (view, at) => view.setUint8(at + 6, 0x7f), old),
        { sm: 75 },
      ),
    ).toEqual(['branch']);
  });

  it('has no control instruction that is unknown', () => {
    expect(
      refusals(
        edited(0x947, (view, at) => view.setUint16(at, 0x794e, true)),
        sm90,
      ),
    ).toEqual(['instruction']);
    expect(
      refusals(
        edited(0x947, (view, at) => view.setUint16(at, 0x794c, true)),
        sm90,
      ),
    ).toEqual(['indirect-branch']);
    expect(
      refusals(
        edited(0x947, (view, at) => view.setUint16(at, 0x7943, true)),
        sm90,
      ),
    ).toEqual(['call']);
  });

  it('has relocations of the known forms only', () => {
    const divide = fixture('divide.sm_90');
    const relocation = (edit: (view: DataView, at: number) => void, index = 0) =>
      changed(divide, (view, elf) => edit(view, sectionNamed(elf, '.rela.text.op').offset + 24 * index));
    for (const file of [
      relocation((view, at) => view.setBigUint64(at, 8n, true)),
      relocation((view, at) => view.setBigUint64(at, 1n << 40n, true)),
      relocation((view, at) => view.setUint32(at + 8, 58, true)),
      relocation((view, at) => view.setUint32(at + 12, 0, true)),
      relocation((view, at) => view.setBigInt64(at + 16, 16n, true)),
      relocation((view, at) => view.setBigInt64(at + 16, -16n, true), 1),
      relocation((view, at) => view.setBigInt64(at + 16, 1n << 40n, true), 1),
      relocation((view, at) => view.setBigUint64(at, view.getBigUint64(at - 24, true), true), 1),
    ]) {
      expect(refusals(file, withCalls)).toContain('relocation');
    }
    const inside = changed(divide, (view, elf) => {
      const helper = Array.from({ length: elf.symbolCount }, (_, i) => elf.symbol(i)).find(
        (s) => s.type === 2 && elf.symbolName(s) !== 'op',
      )!;
      view.setBigUint64(sectionNamed(elf, '.symtab').offset + helper.index * 24 + 8, 64n, true);
    });
    expect(refusals(inside, withCalls)).toContain('relocation');
  });
});

describe('the checks', () => {
  it('are each provoked by a test of this file', () => {
    expect(REFUSAL_CHECKS.filter((check) => !provoked.has(check))).toEqual([]);
  });

  it('throw for what is no cubin, and refuse nothing silently', () => {
    for (const file of [new Uint8Array(0), new Uint8Array(4096), new TextEncoder().encode('#!/bin/sh\n'.repeat(100))]) {
      expect(() => readInjectable(file, 'op', sm90)).toThrow(GpuosError);
      expect(() => readInjectable(file, 'op', sm90)).toThrow(expect.objectContaining({ code: 'GPUOS_BAD_CUBIN' }));
    }
  });
});
