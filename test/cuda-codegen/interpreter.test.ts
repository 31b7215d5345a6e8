/** The interpreter on the emulation of a block: against the evaluator, against compiled programs, and with damaged bytecode. */
import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { checkBytecode, encodeProgram } from '../../src/backends/cuda/interpreter/index.ts';
import { OPCODES, operationKind } from '../../src/backends/cuda/interpreter/opcodes.ts';
import { MAPS } from '../../src/ops/map.ts';
import type { MapName, Program, ProgramNode } from '../../src/ops/program.ts';
import { type DeviceMemory, deviceMemory, type Emulated, compileEmulated, NO_GXX, reason } from '../cuda/emulation/emulation.ts';
import { identical } from '../wasm-codegen/machine.ts';
import { manyOperands, manyUniforms, randomCase, rowInPlace } from './cases.ts';
import { check, compileAll, type Run, runRow } from './machine.ts';

const THREADS = [32, 64, 256];
const SOURCE = '#include "gpuos_abi.h"\n#include "interpreter.cuh"\n';

/** The next tile's bytecode lies where this one's did. */
function interpret(emulated: Emulated, memory: DeviceMemory, code: Uint32Array, threads: number, order = 0): Run {
  memory.bytes.set(new Uint8Array(code.buffer, code.byteOffset, code.byteLength));
  return (params, tiles) => emulated.callAll('operator_interpret', params, tiles, { threads, order, data: memory.address });
}

describe('bytecode', () => {
  test("operations are numbered as in the device's source", () => {
    const source = readFileSync(new URL('../../src/backends/cuda/device/interpreter.cuh', import.meta.url), 'utf8').replaceAll('\\\n', ' ');
    const list = (macro: string) =>
      [...new RegExp(`#define ${macro}\\(X\\)(.*)`).exec(source)![1]!.matchAll(/X\((\w+)/g)].map(([, name]) => name);
    const first = [
      ...source
        .slice(source.indexOf('enum Opcode'))
        .split('#define')[0]!
        .matchAll(/CODE_(\w+)/g),
    ].map(([, name]) => name);
    expect(OPCODES).toEqual([
      ...first,
      ...list('GPUOS_BOOL_BINARY'),
      ...[...list('GPUOS_FLOAT_UNARY'), ...list('GPUOS_FLOAT_BINARY')].map((name) => `${name}_float`),
      ...[...list('GPUOS_INT_UNARY'), ...list('GPUOS_INT_BINARY')].map((name) => `${name}_int`),
      ...list('GPUOS_REDUCTIONS').flatMap((name) => [`begin_${name}`, `fold_${name}`, `finish_${name}`]),
    ]);
    expect(OPCODES.length).toBeLessThanOrEqual(256);
  });

  const chain = (length: number): Program => {
    const nodes: ProgramNode[] = [{ kind: 'input', input: 0, dtype: 'float32' }];
    for (let i = 0; i < length; i++)
      nodes.push({ kind: 'map', op: (['add', 'mul', 'relu', 'gelu'] as const)[i % 4]!, args: i % 4 < 2 ? [i, 0] : [i], dtype: 'float32' });
    return {
      inputs: [{ dtype: 'float32', columnStride: 1 }],
      scalars: 0,
      nodes,
      outputs: [{ node: length, dtype: 'float32', space: 'full' }],
      outerRank: 0,
    };
  };

  test('a chain of any length needs two registers', () => {
    for (const length of [1, 10, 100]) expect(encodeProgram(chain(length))?.[8]).toBe(length === 1 ? 1 : 2);
  });

  test('is accepted for every random program, and programs that do not fit have none', () => {
    fc.assert(
      fc.property(fc.integer(), (seed) => {
        for (const { program } of [randomCase(seed), manyOperands(seed)]) {
          const code = encodeProgram(program);
          if (code !== undefined) expect(checkBytecode(code, program)).toBeUndefined();
        }
      }),
    );
    expect(encodeProgram(chain(5000))).toBeUndefined();
    const wide: ProgramNode[] = Array.from({ length: 40 }, (_, i) => ({ kind: 'input', input: i, dtype: 'float32' }));
    for (let i = 0; i < 40; i++) wide.push({ kind: 'map', op: 'neg', args: [i], dtype: 'float32' });
    for (let i = 0, sum = 40; i < 39; i++, sum = wide.length - 1)
      wide.push({ kind: 'map', op: 'add', args: [sum, 41 + i], dtype: 'float32' });
    const program: Program = {
      inputs: Array.from({ length: 40 }, () => ({ dtype: 'float32', columnStride: 1 })),
      scalars: 0,
      nodes: wide,
      outputs: [{ node: wide.length - 1, dtype: 'float32', space: 'full' }],
      outerRank: 0,
    };
    expect(encodeProgram(program)).toBeUndefined();
  });

  test('that reads or writes just past the end of anything is refused', () => {
    for (const seed of [1, 2, 3, 4, 5, 6, 7, 8]) {
      const { program } = randomCase(seed);
      const code = encodeProgram(program);
      if (code === undefined) continue;
      const [inputs, outputs, passes, constants] = [code[2]!, code[3]!, code[5]!, code[6]!];
      const limits = [code[8]!, code[9]!, constants, code[7]!];
      const first = 12 + inputs + outputs + 2 * passes + 1 + constants;
      for (let at = first; at < code.length; at += 2) {
        const kind = operationKind(code[at]! & 0xff)!;
        const damaged = (high: number, low: number) => {
          const copy = code.slice();
          copy[at] = high;
          copy[at + 1] = low;
          return checkBytecode(copy, program);
        };
        const [high, low] = [code[at]!, code[at + 1]!];
        const sources = { unary: 1, binary: 2, select: 3, store: 1, 'store-row': 1, fold: 1, finish: 1 }[kind as string] ?? 0;
        limits.forEach((limit, of) => {
          const operand = (of << 14) | limit;
          if (sources > 0) expect(damaged(high, ((low & 0xffff0000) | operand) >>> 0)).toBeDefined();
          if (sources > 1) expect(damaged(high, ((operand << 16) | (low & 0xffff)) >>> 0)).toBeDefined();
          if (sources > 2) expect(damaged(((high & 0xffff) | (operand << 16)) >>> 0, low)).toBeDefined();
        });
        if (kind === 'load' || kind === 'load-row') expect(damaged(((high & 0xffff) | (inputs << 16)) >>> 0, low)).toBeDefined();
        if (kind === 'store' || kind === 'store-row') expect(damaged(((high & 0xffff) | (outputs << 16)) >>> 0, low)).toBeDefined();
        else if (kind !== 'settle') {
          const past = (high >>> 8) & 0x80 ? 0x80 | (limits[1]! - (kind === 'begin' || kind === 'fold' ? 1 : 0)) : limits[0]!;
          expect(damaged(((high & 0xffff00ff) | (past << 8)) >>> 0, low)).toBeDefined();
          // Row registers up to the outer rank have the row's coordinates, which decide what loads and stores reach.
          if (program.outerRank > 0) expect(damaged(((high & 0xffff00ff) | (0x80 << 8)) >>> 0, low)).toBeDefined();
        }
      }
      for (const field of [8, 9]) {
        const copy = code.slice();
        copy[field]! -= 1;
        if (code[field]! > 0) expect(checkBytecode(copy, program)).toBeDefined();
      }
    }
  });

  test('of another program is refused', () => {
    const code = encodeProgram(chain(3))!;
    expect(checkBytecode(code, { ...chain(3), outerRank: 1 })).toMatch(/outer dimensions/);
    expect(checkBytecode(code, { ...chain(3), inputs: [{ dtype: 'float32', columnStride: 0 }] })).toMatch(/column stride/);
    expect(checkBytecode(code.slice(0, -2), chain(3))).toMatch(/words/);
    expect(checkBytecode(new Uint32Array(0), chain(3))).toMatch(/no bytecode/);
  });
});

describe.skipIf(NO_GXX)(reason('the interpreter on the CUDA device'), () => {
  let emulated: Emulated;
  let memory: DeviceMemory;
  beforeAll(() => {
    emulated = compileEmulated(SOURCE);
    memory = deviceMemory(32 * 1024);
  }, 120_000);
  afterAll(() => {
    emulated.free();
    memory.free();
  });

  const runs = Number(process.env['RUNS'] ?? 3);

  test('random programs, shapes, strides, tiles and blocks equal the evaluator', { timeout: 300_000 }, () => {
    let encoded = 0;
    fc.assert(
      fc.property(fc.integer(), (seed) => {
        const one = randomCase(seed);
        const code = encodeProgram(one.program);
        if (code === undefined) return;
        encoded++;
        check(one, interpret(emulated, memory, code, THREADS[(seed >>> 1) % 3]!, (seed >>> 3) % 5), identical);
      }),
      { numRuns: 60 * runs },
    );
    expect(encoded).toBeGreaterThan(50 * runs);
  });

  test('so do programs with many values a row, and with row outputs in the place of inputs', { timeout: 300_000 }, () => {
    let encoded = 0;
    fc.assert(
      fc.property(fc.integer(), (seed) => {
        for (const one of [manyUniforms(seed), rowInPlace(seed)]) {
          const code = encodeProgram(one.program);
          if (code === undefined) continue;
          encoded++;
          check(one, interpret(emulated, memory, code, THREADS[(seed >>> 1) % 3]!, (seed >>> 3) % 5), identical);
        }
      }),
      { numRuns: 10 * runs },
    );
    expect(encoded).toBeGreaterThan(15 * runs);
  });

  test('programs of many operands equal the evaluator', { timeout: 300_000 }, () => {
    fc.assert(
      fc.property(fc.integer(), (seed) => {
        const one = manyOperands(seed);
        const code = encodeProgram(one.program);
        if (code !== undefined) check(one, interpret(emulated, memory, code, THREADS[(seed >>> 1) % 3]!), identical);
      }),
      { numRuns: 5 * runs },
    );
  });

  test('every operation gives the bits that it gives compiled', { timeout: 120_000 }, () => {
    const programs = (Object.keys(MAPS) as MapName[]).flatMap((op): Program[] =>
      MAPS[op].operands.includes('float32') && op !== 'select'
        ? (op === 'cast' ? (['int32', 'bool'] as const) : [MAPS[op].result === 'bool' ? ('bool' as const) : ('float32' as const)]).map(
            (dtype) => ({
              inputs: MAPS[op].inputs.map(() => ({ dtype: 'float32', columnStride: 1 })),
              scalars: 0,
              nodes: [
                ...MAPS[op].inputs.map((_, input): ProgramNode => ({ kind: 'input', input, dtype: 'float32' })),
                { kind: 'map', op, args: MAPS[op].inputs.map((_, i) => i), dtype },
              ],
              outputs: [{ node: MAPS[op].inputs.length, dtype, space: 'full' }],
              outerRank: 0,
            }),
          )
        : [],
    );
    const edges = [
      0,
      -0,
      1,
      -1,
      0.5,
      2.5,
      3,
      -7,
      1e-40,
      1e38,
      -1e38,
      88.8,
      -104,
      40000,
      2 ** 31,
      Number.NaN,
      Number.POSITIVE_INFINITY,
      Number.NEGATIVE_INFINITY,
    ];
    const a = edges.flatMap((x) => edges.map(() => Math.fround(x)));
    const b = edges.flatMap(() => edges.map(Math.fround));
    const compiled = compileAll(programs);
    try {
      programs.forEach((program, i) => {
        const inputs = [a, b].slice(0, program.inputs.length);
        const code = encodeProgram(program)!;
        const expected = runRow(program, (params, tiles) => compiled.callAll(`p${i}`, params, tiles), inputs);
        expect(runRow(program, interpret(emulated, memory, code, 256), inputs), JSON.stringify(program.nodes.at(-1))).toEqual(expected);
      });
    } finally {
      compiled.free();
    }
  });

  test('damaged bytecode is refused, or reaches nothing but its operands', { timeout: 300_000 }, () => {
    let refused = 0;
    let accepted = 0;
    fc.assert(
      fc.property(fc.integer(), fc.array(fc.tuple(fc.nat(), fc.nat(31)), { minLength: 1, maxLength: 3 }), (seed, flips) => {
        const one = randomCase(seed);
        const code = encodeProgram(one.program);
        if (code === undefined) return;
        for (const [word, bit] of flips) code[word % code.length]! ^= 1 << bit;
        if (checkBytecode(code, one.program) !== undefined) {
          refused++;
          return;
        }
        accepted++;
        // Whatever it computes, it writes its outputs alone: `check` compares all other memory.
        check(one, interpret(emulated, memory, code, 64), () => true);
      }),
      { numRuns: 100 * runs },
    );
    expect(refused).toBeGreaterThan(0);
    expect(accepted).toBeGreaterThan(0);
  });
});
