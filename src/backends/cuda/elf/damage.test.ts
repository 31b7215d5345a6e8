import { readdirSync, readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GpuosError } from '../../../errors.ts';
import { EHDR_BYTES, ElfFile, MAX_FILE_BYTES, SHDR_BYTES } from './elf.ts';
import { INSTRUCTION_BYTES } from './instructions.ts';
import { placeCode, readInjectable } from './injectable.ts';

/** Damaged and hostile files: whatever the bytes, the reader ends soon with a result, a refusal or GPUOS_BAD_CUBIN. */

const folder = new URL('../../../../test/fixtures/cubin/', import.meta.url);
const cubins = readdirSync(folder)
  .filter((name) => name.endsWith('.cubin'))
  .map((name) => ({ name, sm: Number(/sm_(\d+)/.exec(name)?.[1]), bytes: new Uint8Array(readFileSync(new URL(name, folder))) }));
const multiply = cubins.find(({ name }) => name === 'multiply.sm_90.cubin')!.bytes;

/** Far more than a file of a few KiB takes; a loop without end would not. */
const SOON_MS = 2000;

type Outcome = 'accepted' | 'refused' | 'damaged';

/** Reads the file and holds the outcome to what it promises. */
function outcome(bytes: Uint8Array, sm = 90, calls = true): Outcome {
  const before = performance.now();
  try {
    const result = readInjectable(bytes, 'op', { sm, calls, stackBytes: 512 });
    if (!result.ok) {
      expect(result.reasons.length).toBeGreaterThan(0);
      expect(result.reasons.length).toBeLessThanOrEqual(32);
      return 'refused';
    }
    const { code, registers, stackBytes, barriers, patches, alignmentBytes } = result.function;
    expect(code.length).toBeGreaterThan(0);
    expect(code.length).toBeLessThanOrEqual(1024 * 1024);
    expect(code.length % INSTRUCTION_BYTES).toBe(0);
    expect(registers).toBeLessThanOrEqual(128);
    expect(stackBytes).toBeLessThanOrEqual(512);
    expect(barriers).toBeLessThanOrEqual(1);
    for (const { at, target } of patches) {
      expect(at % INSTRUCTION_BYTES).toBe(0);
      expect(at).toBeLessThan(code.length);
      expect(target % INSTRUCTION_BYTES).toBe(0);
      expect(target).toBeLessThan(code.length);
    }
    expect(placeCode(result.function, BigInt(alignmentBytes) * 3n).length).toBe(code.length);
    return 'accepted';
  } catch (error) {
    if (!(error instanceof GpuosError)) throw error;
    expect(error.code).toBe('GPUOS_BAD_CUBIN');
    expect(error.message.length).toBeLessThan(400);
    return 'damaged';
  } finally {
    expect(performance.now() - before).toBeLessThan(SOON_MS);
  }
}

const anyCubin = fc.constantFrom(...cubins);
/** Values that break careless arithmetic: nothing, ends of ranges of signed and unsigned types, sums that wrap. */
const awkward = fc.constantFrom(
  0n,
  1n,
  7n,
  63n,
  64n,
  0x7fn,
  0xffn,
  0xfff1n,
  0xffffn,
  0x7fffffffn,
  0x80000000n,
  0xffffffc0n,
  0xffffffffn,
  1n << 53n,
  (1n << 63n) - 1n,
  1n << 63n,
  (1n << 64n) - 64n,
  (1n << 64n) - 1n,
);
const number = fc.oneof(awkward, fc.bigInt(0n, 8192n), fc.bigInt(0n, (1n << 64n) - 1n));

function write(bytes: Uint8Array, at: number, width: number, value: bigint): void {
  for (let i = 0; i < width && at + i < bytes.length; i++) bytes[at + i] = Number((value >> BigInt(8 * i)) & 0xffn);
}

/** Fields of the ELF header and of a section header: offset and width. */
const HEADER = [[0, 4], [4, 1], [5, 1], [6, 1], [7, 1], [8, 1], [16, 2], [18, 2], [20, 4], [24, 8], [32, 8], [40, 8], [48, 4], [52, 2], [54, 2], [56, 2], [58, 2], [60, 2], [62, 2]] as const; // biome-ignore format: a table
const SECTION = [[0, 4], [4, 4], [8, 8], [16, 8], [24, 8], [32, 8], [40, 4], [44, 4], [48, 8], [56, 8]] as const; // biome-ignore format: a table

const runs = (numRuns: number) => ({ numRuns });

describe('random damage', () => {
  it('of bytes anywhere', () => {
    const seen = new Set<Outcome>();
    fc.assert(
      fc.property(
        anyCubin,
        fc.array(fc.tuple(fc.nat(), fc.nat(255)), { minLength: 1, maxLength: 12 }),
        fc.boolean(),
        ({ bytes, sm }, edits, calls) => {
          const copy = bytes.slice();
          for (const [at, value] of edits) copy[at % copy.length] = value;
          seen.add(outcome(copy, sm, calls));
        },
      ),
      runs(2000),
    );
    expect([...seen].sort()).toEqual(['accepted', 'damaged', 'refused']);
  });

  it('by cutting the file short, or adding to it', () => {
    for (let length = 0; length < multiply.length; length++) expect(outcome(multiply.subarray(0, length))).toBe('damaged');
    fc.assert(
      fc.property(anyCubin, fc.nat(), ({ bytes, sm }, length) => {
        outcome(bytes.subarray(0, length % bytes.length), sm);
      }),
      runs(500),
    );
    const longer = new Uint8Array(multiply.length + 4096);
    longer.set(multiply);
    expect(outcome(longer)).toBe('accepted');
  });

  it('by cutting something out of the middle', () => {
    fc.assert(
      fc.property(anyCubin, fc.nat(), fc.integer({ min: 1, max: 512 }), ({ bytes, sm }, from, count) => {
        const at = from % bytes.length;
        const copy = new Uint8Array([...bytes.subarray(0, at), ...bytes.subarray(at + count)]);
        outcome(copy, sm);
      }),
      runs(500),
    );
  });

  it('of bytes that are no cubin at all', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 4096 }), (bytes) => {
        expect(outcome(bytes)).toBe('damaged');
        if (bytes.length >= EHDR_BYTES) {
          bytes.set(multiply.subarray(0, 40));
          outcome(bytes);
        }
      }),
      runs(500),
    );
  });
});

describe('tricks with', () => {
  it('the header', () => {
    fc.assert(
      fc.property(
        anyCubin,
        fc.array(fc.tuple(fc.constantFrom(...HEADER), number), { minLength: 1, maxLength: 3 }),
        ({ bytes, sm }, edits) => {
          const copy = bytes.slice();
          for (const [[at, width], value] of edits) write(copy, at, width, value);
          outcome(copy, sm);
        },
      ),
      runs(1500),
    );
  });

  it('section headers', () => {
    const seen = new Set<Outcome>();
    fc.assert(
      fc.property(
        anyCubin,
        fc.array(fc.tuple(fc.nat(), fc.constantFrom(...SECTION), number), { minLength: 1, maxLength: 4 }),
        ({ bytes, sm }, edits) => {
          const copy = bytes.slice();
          const view = new DataView(copy.buffer);
          const [table, count] = [Number(view.getBigUint64(40, true)), view.getUint16(60, true)];
          for (const [index, [at, width], value] of edits) write(copy, table + (index % count) * SHDR_BYTES + at, width, value);
          seen.add(outcome(copy, sm));
        },
      ),
      runs(2000),
    );
    expect([...seen].sort()).toEqual(['accepted', 'damaged', 'refused']);
  });

  it('the contents of symbols, relocations and attributes', () => {
    fc.assert(
      fc.property(
        anyCubin,
        fc.array(fc.tuple(fc.nat(), fc.nat(), fc.constantFrom(1, 2, 4, 8), number), { minLength: 1, maxLength: 4 }),
        ({ bytes, sm }, edits) => {
          const copy = bytes.slice();
          const sections = new ElfFile(bytes).sections.filter(
            (s) =>
              s.size > 0 && (s.type === 2 || s.type === 4 || s.type === 9 || s.type >= 0x70000000) && s.offset + s.size <= bytes.length,
          );
          for (const [which, at, width, value] of edits) {
            const { offset, size } = sections[which % sections.length]!;
            write(copy, offset + (at % size), width, value);
          }
          outcome(copy, sm);
        },
      ),
      runs(2000),
    );
  });

  /** multiply.sm_90 with one field of a section changed. */
  function section(name: string, at: number, width: number, value: bigint): Uint8Array {
    const { index } = new ElfFile(multiply).sections.find((s) => s.name === name)!;
    const copy = multiply.slice();
    write(copy, Number(new DataView(copy.buffer).getBigUint64(40, true)) + index * SHDR_BYTES + at, width, value);
    return copy;
  }

  it.each([
    ['a section of more bytes than there are', section('.text.op', 32, 8, 1n << 40n)],
    ['a section whose end wraps around', section('.text.op', 24, 8, (1n << 64n) - 64n)],
    ['sections that overlap', section('.nv.info.op', 24, 8, 0x260n)],
    ['a section over the header', section('.nv.info.op', 24, 8, 0n)],
    ['a symbol table that links to itself', section('.symtab', 40, 4, 3n)],
    ['a symbol table that links to nothing', section('.symtab', 40, 4, 0xffffffffn)],
    ['a second symbol table', section('.nv.prototype', 4, 4, 2n)],
    ['no symbol table', section('.symtab', 4, 4, 1n)],
    ['symbols of no size', section('.symtab', 56, 8, 0n)],
    ['a symbol table that ends within a symbol', section('.symtab', 32, 8, 0x190n)],
    ['a section name outside of the names', section('.text.op', 0, 4, 0xffffn)],
    ['names that do not end', section('.shstrtab', 32, 8, 0xa0n)],
    ['a string table of no size', section('.strtab', 32, 8, 0n)],
    ['attributes that end within one', section('.nv.info.op', 32, 8, 0x1en)],
  ])('%s: damaged, or no function found', (_, bytes) => {
    expect(outcome(bytes)).not.toBe('accepted');
  });

  it.each([
    ['more sections than there are', 60, 2, 0xffffn],
    ['no sections', 60, 2, 0n],
    ['section headers of no size', 58, 2, 0n],
    ['names in a section that is not there', 62, 2, 0xfff0n],
    ['section headers past the end', 40, 8, 1n << 62n],
    ['program headers past the end', 56, 2, 0xffffn],
    ['another machine', 18, 2, 62n],
    ['32 bits', 4, 1, 1n],
    ['big-endian numbers', 5, 1, 2n],
  ])('%s: damaged', (_, at, width, value) => {
    const copy = multiply.slice();
    write(copy, at, width, value);
    expect(outcome(copy)).toBe('damaged');
  });

  it('names meant for a terminal', () => {
    const copy = multiply.slice();
    const elf = new ElfFile(multiply);
    const text = elf.sections.find((s) => s.name === '.text.op')!;
    const names = elf.sections.find((s) => s.name === '.shstrtab')!;
    const view = new DataView(copy.buffer);
    const at = names.offset + view.getUint32(Number(view.getBigUint64(40, true)) + text.index * SHDR_BYTES, true);
    copy.set([0x1b, 0x5b, 0x32, 0x4a], at);
    const result = readInjectable(copy, 'op', { sm: 90 });
    expect(result.ok || result.reasons.map((r) => r.message).join('')).toMatch(/^[\x20-\x7e]+$/);
  });
});

describe('large files', () => {
  it('are refused unread', () => {
    expect(outcome(new Uint8Array(MAX_FILE_BYTES + 1))).toBe('damaged');
  });

  /** multiply.sm_90 with one of its sections moved to the end and grown to fill the largest file. */
  function grown(name: string, fill: (contents: Uint8Array) => void): Uint8Array {
    const bytes = new Uint8Array(MAX_FILE_BYTES);
    bytes.set(multiply);
    const { index } = new ElfFile(multiply).sections.find((s) => s.name === name)!;
    const header = Number(new DataView(bytes.buffer).getBigUint64(40, true)) + index * SHDR_BYTES;
    const start = Math.ceil(multiply.length / 128) * 128;
    const size = Math.floor((MAX_FILE_BYTES - start) / 384) * 384;
    write(bytes, header + 24, 8, BigInt(start));
    write(bytes, header + 32, 8, BigInt(size));
    const old = new ElfFile(multiply).sections[index]!;
    for (let at = start; at + old.size <= start + size; at += old.size) bytes.copyWithin(at, old.offset, old.offset + old.size);
    fill(bytes.subarray(start, start + size));
    return bytes;
  }

  it.each(['.text.op', '.symtab', '.strtab', '.nv.info', '.nv.info.op', '.rela.debug_frame'])(
    'are read in linear time: %s of 16 MiB',
    (name) => {
      outcome(grown(name, () => {}));
      outcome(grown(name, (contents) => contents.fill(0)));
      outcome(grown(name, (contents) => contents.fill(1)));
    },
  );

  it('are read in linear time: a million relocations of the code', () => {
    const bytes = grown('.rela.debug_frame', () => {});
    const elf = new ElfFile(multiply);
    const header =
      Number(new DataView(bytes.buffer).getBigUint64(40, true)) +
      elf.sections.find((s) => s.name === '.rela.debug_frame')!.index * SHDR_BYTES;
    write(bytes, header + 44, 4, BigInt(elf.sections.find((s) => s.name === '.text.op')!.index));
    expect(outcome(bytes)).toBe('refused');
  });

  it('are read in linear time: a long name that every relocation needs', () => {
    const bytes = grown('.strtab', (contents) => contents.fill(0x61).fill(0, 1000));
    expect(outcome(bytes)).not.toBe('accepted');
  });
});
