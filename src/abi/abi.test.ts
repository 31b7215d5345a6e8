import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { DEPENDENCIES, descriptor, INLINE_POINTERS, INLINE_WORDS } from './descriptor.ts';
import { cudaHeader, wasmConstants } from './headers.ts';
import { control, operatorSlot, queueRecord, traceRecord, workerRecord } from './records.ts';
import { advance, distance, isAtLeast, isBefore } from './sequence.ts';
import { NO_QUEUE } from './status.ts';
import { struct } from './struct.ts';

describe('the task descriptor', () => {
  it('has its fields where devices look for them', () => {
    expect(descriptor.size).toBe(128);
    expect(descriptor.align).toBe(64);
    expect(descriptor.offset).toEqual({
      operator: 0,
      flags: 4,
      queue: 6,
      paramLines: 7,
      tiles: 8,
      epoch: 12,
      after: 16,
      dependencies: 20,
      dependencyQueues: 36,
      trace: 40,
      params: 48,
      tag0: 60,
      pointers: 64,
      words: 96,
      tag1: 124,
    });
  });

  it('ends each of its two lines in a tag, and holds a parameter block inline', () => {
    expect(descriptor.offset.tag0 % 64).toBe(60);
    expect(descriptor.offset.tag1 % 64).toBe(60);
    // The block's words come right behind its pointers, as in memory, and end at the tag.
    expect(descriptor.offset.words).toBe(descriptor.offset.pointers + 8 * INLINE_POINTERS);
    expect(descriptor.offset.words + 4 * INLINE_WORDS).toBe(descriptor.offset.tag1);
    expect(descriptor.fields.dependencies.count).toBe(DEPENDENCIES);
    expect(NO_QUEUE).toBeLessThanOrEqual(0xff);
  });
});

describe('records', () => {
  it.each([control, queueRecord, workerRecord, operatorSlot, traceRecord, descriptor])(
    '$name: no two fields overlap, and each is aligned',
    (record) => {
      const bytes = { u8: 1, u16: 2, u32: 4, u64: 8, i64: 8, f64: 8 };
      let end = 0;
      for (const [name, field] of Object.entries(record.fields as Record<string, { type: keyof typeof bytes; count?: number }>)) {
        const at = (record.offset as Record<string, number>)[name] as number;
        expect(at % bytes[field.type], name).toBe(0);
        expect(at, name).toBeGreaterThanOrEqual(end);
        end = at + bytes[field.type] * (field.count ?? 1);
      }
      expect(end).toBeLessThanOrEqual(record.size);
      expect(record.size % record.align).toBe(0);
    },
  );

  it('what several threads write stands on lines of its own', () => {
    const line = (at: number) => Math.floor(at / 64);
    const { ring, cursor, mark, tail } = queueRecord.offset;
    expect(new Set([ring, cursor, mark, tail].map(line)).size).toBe(4);
    const { abiVersion, quit, doorbell, hostWaiting } = control.offset;
    expect(new Set([abiVersion, quit, doorbell, hostWaiting].map(line)).size).toBe(4);
    expect(operatorSlot.offset.fn % 8).toBe(0);
    expect(operatorSlot.offset.version).toBe(operatorSlot.offset.fn + 4);
  });
});

describe('struct', () => {
  it('lays fields out as C does', () => {
    const record = struct('record', 32, 8, {
      a: { type: 'u8', about: '' },
      b: { type: 'u32', about: '' },
      c: { type: 'u16', count: 3, about: '' },
      d: { type: 'f64', about: '' },
    });
    expect(record.offset).toEqual({ a: 0, b: 4, c: 8, d: 16 });
  });

  it.each([
    ['fields that pass the size', () => struct('s', 8, 4, { a: { type: 'u64', about: '' }, b: { type: 'u8', about: '' } })],
    ['an array that passes it', () => struct('s', 8, 4, { a: { type: 'u32', count: 3, about: '' } })],
    ['a size that is not a multiple of the alignment', () => struct('s', 12, 8, { a: { type: 'u64', about: '' } })],
    ['a place that is taken', () => struct('s', 16, 8, { a: { type: 'u64', about: '' }, b: { type: 'u32', at: 4, about: '' } })],
    ['a place that is not aligned', () => struct('s', 16, 8, { a: { type: 'u32', at: 2, about: '' } })],
    ['an alignment that its fields pass', () => struct('s', 12, 4, { a: { type: 'u64', about: '' } })],
  ])('refuses %s', (_, make) => {
    expect(make).toThrow(RangeError);
  });
});

describe('sequences', () => {
  const MAX = 2 ** 32;
  const sequence = fc.oneof(
    fc.integer({ min: 0, max: MAX - 1 }),
    fc.integer({ min: MAX - 1000, max: MAX - 1 }),
    fc.integer({ min: 0, max: 1000 }),
  );
  const steps = fc.oneof(fc.integer({ min: 0, max: 70_000 }), fc.integer({ min: 0, max: 2 ** 31 - 1 }));
  const options = { seed: 4096, numRuns: 500 };

  it('advance and distance undo each other, also across the end', () => {
    fc.assert(
      fc.property(sequence, steps, (from, count) => {
        const to = advance(from, count);
        expect(to).toBe((from + count) % MAX);
        expect(distance(to, from)).toBe(count);
        expect(distance(from, to)).toBe(count === 0 ? 0 : -count);
      }),
      options,
    );
  });

  it('are in order while they are less than 2^31 apart', () => {
    fc.assert(
      fc.property(sequence, steps, (from, count) => {
        const to = advance(from, count);
        expect(isBefore(from, to)).toBe(count > 0);
        expect(isBefore(to, from)).toBe(false);
        expect(isAtLeast(to, from)).toBe(true);
        expect(isAtLeast(from, to)).toBe(count === 0);
        expect(isBefore(from, to)).toBe(!isAtLeast(from, to));
      }),
      options,
    );
  });

  it('the order is transitive within a ring', () => {
    fc.assert(
      fc.property(sequence, fc.integer({ min: 1, max: 65_536 }), fc.integer({ min: 1, max: 65_536 }), (a, first, second) => {
        const b = advance(a, first);
        const c = advance(b, second);
        expect(isBefore(a, b) && isBefore(b, c) && isBefore(a, c)).toBe(true);
      }),
      options,
    );
  });
});

describe('what devices include', () => {
  it('is as it was', () => {
    expect(cudaHeader()).toMatchSnapshot();
    expect(wasmConstants()).toMatchSnapshot();
  });

  const compilers = [
    {
      name: 'gcc as C11',
      command: 'gcc',
      file: 'header.c',
      flags: ['-std=c11', '-Wall', '-Wextra', '-Werror', '-pedantic', '-fsyntax-only'],
    },
    {
      name: 'g++ as C++17',
      command: 'g++',
      file: 'header.cc',
      flags: ['-std=c++17', '-Wall', '-Wextra', '-Werror', '-pedantic', '-fsyntax-only'],
    },
    {
      name: 'nvcc for sm_90',
      command: 'nvcc',
      file: 'header.cu',
      flags: ['-std=c++17', '-arch=sm_90', '-cubin', '-Werror=all-warnings', '-o', 'header.cubin'],
    },
  ];
  for (const { name, command, file, flags } of compilers) {
    const missing = spawnSync(command, ['--version']).error !== undefined;
    it.skipIf(missing)(`compiles with ${name}${missing ? `: there is no ${command} here` : ''}`, () => {
      const folder = mkdtempSync(join(tmpdir(), 'gpuos-abi-'));
      try {
        // The static asserts in the header are the test; the use shows that the types are complete.
        const use = file.endsWith('.cu')
          ? '__global__ void use(gpuos_descriptor* d, unsigned* out) { *out = d->tag1 + GPUOS_STATUS_OK; }'
          : 'unsigned use(const gpuos_descriptor* d); unsigned use(const gpuos_descriptor* d) { return d->tag1 + GPUOS_STATUS_OK; }';
        writeFileSync(join(folder, 'gpuos.h'), cudaHeader());
        writeFileSync(join(folder, file), `#include "gpuos.h"\n${use}\n`);
        const run = spawnSync(command, [...flags, file], { cwd: folder, encoding: 'utf8' });
        expect(`${run.stdout}${run.stderr}`).toBe('');
        expect(run.status).toBe(0);
      } finally {
        rmSync(folder, { recursive: true });
      }
    });
  }

  it('a layout that a compiler sees otherwise is refused', () => {
    if (spawnSync('gcc', ['--version']).error !== undefined) return;
    const folder = mkdtempSync(join(tmpdir(), 'gpuos-abi-'));
    try {
      writeFileSync(join(folder, 'wrong.c'), cudaHeader().replace('uint32_t tiles;', 'uint64_t tiles;'));
      expect(spawnSync('gcc', ['-std=c11', '-fsyntax-only', 'wrong.c'], { cwd: folder }).status).not.toBe(0);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
