/** The text of emitted programs, and what nvcc makes of them: every operation and reduction is code that can be injected. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { cudaHeader } from '../../src/abi/headers.ts';
import { emitProgram, programHeaders } from '../../src/backends/cuda/codegen/index.ts';
import { readInjectable } from '../../src/backends/cuda/elf/injectable.ts';
import { RESIDENT_OPTIONS } from '../../src/backends/cuda/source.ts';
import { runTool } from '../cuda/toolkit.ts';
import { type ComputeType, type HalfType, isHalf } from '../../src/ops/dtype.ts';
import { MAPS } from '../../src/ops/map.ts';
import type { MapName, Program, ProgramNode, ReduceName } from '../../src/ops/program.ts';
import { REDUCES } from '../../src/ops/reduction.ts';

const input = (i: number, dtype: ComputeType = 'float32'): ProgramNode => ({ kind: 'input', input: i, dtype });
const map = (op: MapName, ...args: number[]): ProgramNode => ({ kind: 'map', op, args, dtype: 'float32' });
const reduce = (op: ReduceName, arg: number): ProgramNode => ({ kind: 'reduce', op, arg, dtype: 'float32' });

function floats(
  nodes: ProgramNode[],
  outerRank: number,
  space: 'full' | 'row' = 'full',
  strides: Program['inputs'][0]['columnStride'][] = [1],
): Program {
  return {
    inputs: strides.map((columnStride) => ({ dtype: 'float32', columnStride })),
    scalars: 0,
    nodes,
    outputs: [{ node: nodes.length - 1, dtype: 'float32', space }],
    outerRank,
  };
}

function mapProgram(op: MapName, operand: ComputeType, result: ComputeType): Program {
  const count = MAPS[op].inputs.length;
  const dtypes = Array.from({ length: count }, (_, i): ComputeType => (MAPS[op].condition && i === 0 ? 'bool' : operand));
  return {
    inputs: dtypes.map((dtype) => ({ dtype, columnStride: 1 })),
    scalars: 0,
    nodes: [...dtypes.map((dtype, i) => input(i, dtype)), { kind: 'map', op, args: dtypes.map((_, i) => i), dtype: result }],
    outputs: [{ node: count, dtype: result, space: 'full' }],
    outerRank: 0,
  };
}

function reduceProgram(op: ReduceName, dtype: ComputeType, outerRank: number): Program {
  const result = REDUCES[op].result === 'int32' ? 'int32' : dtype;
  return {
    inputs: [{ dtype, columnStride: 1 }],
    scalars: 0,
    nodes: [input(0, dtype), { kind: 'reduce', op, arg: 0, dtype: result }],
    outputs: [{ node: 1, dtype: result, space: 'row' }],
    outerRank,
  };
}

/** Halves read contiguous, strided and as one element a row, rounded on the way, stored as elements and as a row's. */
function halves(dtype: HalfType, outerRank: number): Program {
  return {
    inputs: ([1, 'strided', 0] as const).map((columnStride) => ({ dtype, columnStride })),
    scalars: 0,
    nodes: [
      ...[input(0), input(1), input(2), map('mul', 0, 1)],
      { kind: 'map', op: `round-${dtype}`, args: [3], dtype: 'float32' },
      ...[map('add', 4, 2), reduce('sum', 5)],
    ],
    outputs: [
      { node: 5, dtype, space: 'full' },
      { node: 6, dtype, space: 'row' },
    ],
    outerRank,
  };
}

const SOFTMAX: ProgramNode[] = [input(0), reduce('max', 0), map('sub', 0, 1), map('exp', 2), reduce('sum', 3), map('div', 3, 4)];

/** 100 operations on 70 inputs. */
function large(outerRank: number, stride: (i: number) => 0 | 1 | 'strided'): Program {
  const nodes = Array.from({ length: 70 }, (_, i) => input(i));
  for (let i = 0; i < 100; i++) {
    const last = i === 0 ? 0 : nodes.length - 1;
    if (i < 69) nodes.push(map((['add', 'mul', 'sub', 'maximum'] as const)[i % 4]!, last, i + 1));
    else nodes.push(map((['relu', 'gelu', 'exp', 'tanh'] as const)[i % 4]!, last));
  }
  return floats(
    nodes,
    outerRank,
    'full',
    Array.from({ length: 70 }, (_, i) => stride(i)),
  );
}

/** 100 operations of the costliest kinds on one input. */
function heavy(): Program {
  const nodes = [input(0)];
  for (let i = 0; i < 100; i++) {
    const last = nodes.length - 1;
    nodes.push(i % 4 === 2 ? map('sin', last) : map((['div', 'pow', 'mod', 'atan2'] as const)[i % 4]!, last, 0));
  }
  return floats(nodes, 0);
}

const RESULTS: readonly ComputeType[] = ['float32', 'int32', 'bool'];
const PROGRAMS: Record<string, Program> = {
  softmax: floats(SOFTMAX, 2),
  softmax_of_one_row: floats(SOFTMAX, 0),
  large: large(0, () => 1),
  large_of_rows: large(3, (i) => ([1, 0, 'strided'] as const)[i % 3]!),
  heavy: heavy(),
  deep: floats(
    [
      input(0),
      ...Array.from({ length: 100 }, (_, i) => map((['add', 'mul', 'relu', 'gelu'] as const)[i % 4]!, i, ...(i % 4 < 2 ? [0] : []))),
    ],
    1,
  ),
};
for (const [name, rule] of Object.entries(MAPS) as [MapName, (typeof MAPS)[MapName]][]) {
  for (const dtype of rule.operands) {
    if (isHalf(dtype)) continue; // computed in float32
    for (const result of rule.result === 'attribute' ? RESULTS : [rule.result === 'bool' ? ('bool' as const) : dtype]) {
      PROGRAMS[`map_of_${name.replaceAll('-', '_')}_${dtype}_${result}`] = mapProgram(name, dtype, result);
    }
  }
}
for (const [name, rule] of Object.entries(REDUCES) as [ReduceName, (typeof REDUCES)[ReduceName]][]) {
  for (const dtype of rule.operands) {
    if (isHalf(dtype)) continue;
    for (const outerRank of [0, 2]) PROGRAMS[`reduction_${name}_${dtype}_${outerRank}`] = reduceProgram(name, dtype, outerRank);
  }
}

for (const dtype of ['float16', 'bfloat16'] as const) {
  for (const outerRank of [0, 2]) PROGRAMS[`${dtype}_${outerRank}`] = halves(dtype, outerRank);
}

/**
 * Of a map alone, sm_75 and sm_90 show all that there is: what it is made of differs between them, the code is encoded alike.
 * A reduction on the architectures between them is the newer one's arithmetic with the older one's exchanges.
 */
const BETWEEN = Object.fromEntries(Object.entries(PROGRAMS).filter(([name]) => !name.startsWith('map_of_')));

describe('the text of emitted programs', () => {
  test('a sum of two tensors', () => {
    expect(emitProgram(floats([input(0), input(1), map('add', 0, 1)], 0, 'full', [1, 1]), 'operator_sum')).toMatchSnapshot();
  });

  test('halves', () => {
    expect(emitProgram(halves('float16', 1), 'operator_halves')).toMatchSnapshot();
  });

  test('softmax over rows', () => {
    expect(emitProgram(floats(SOFTMAX, 2), 'operator_softmax')).toMatchSnapshot();
  });

  test('constants, scalars, casts, bools, strides, row outputs', () => {
    const program: Program = {
      inputs: [
        { dtype: 'int32', columnStride: 'strided' },
        { dtype: 'float32', columnStride: 0 },
      ],
      scalars: 2,
      nodes: [
        input(0, 'int32'),
        input(1),
        { kind: 'scalar', scalar: 1, dtype: 'float32' },
        { kind: 'scalar', scalar: 0, dtype: 'bool' },
        { kind: 'constant', value: -(2 ** 31), dtype: 'int32' },
        { kind: 'map', op: 'greater', args: [0, 4], dtype: 'bool' },
        { kind: 'map', op: 'logical-and', args: [5, 3], dtype: 'bool' },
        { kind: 'map', op: 'cast', args: [6], dtype: 'float32' },
        ...[Number.NaN, Number.NEGATIVE_INFINITY, -0, 1e-45, 0.1, 3, 1e38].map(
          (value): ProgramNode => ({ kind: 'constant', value, dtype: 'float32' }),
        ),
        map('maximum', 7, 8),
        map('minimum', 15, 9),
        map('mul', 16, 10),
        map('add', 17, 11),
        map('sub', 18, 12),
        map('add', 19, 13),
        map('mul', 20, 14),
        map('mul', 1, 2),
      ],
      outputs: [
        { node: 21, dtype: 'float32', space: 'full' },
        { node: 6, dtype: 'bool', space: 'full' },
        { node: 22, dtype: 'float32', space: 'row' },
      ],
      outerRank: 1,
    };
    expect(emitProgram(program, 'operator_mixed')).toMatchSnapshot();
  });

  test('is the same each time, and differs where the program does', () => {
    const texts = Object.values(PROGRAMS).map((program) => emitProgram(program, 'f'));
    expect(Object.values(PROGRAMS).map((program) => emitProgram(program, 'f'))).toEqual(texts);
    expect(new Set(texts).size).toBe(texts.length);
  });

  test('a parameter block that does not fit into shared memory is refused', () => {
    const inputs = Array.from({ length: 4200 }, () => ({ dtype: 'float32', columnStride: 1 }) as const);
    const program: Program = { ...floats([input(0)], 0), inputs };
    expect(() => emitProgram(program, 'f')).toThrow(/GPUOS_INTERNAL/);
  });
});

const nvcc = spawnSync('nvcc', ['--version'], { encoding: 'utf8' });
const missing = nvcc.status === 0 ? '' : ' (skipped: no nvcc)';

describe.skipIf(nvcc.status !== 0)(`injected programs${missing}`, () => {
  test.concurrent.each([
    ['every operation and every reduction', 75, PROGRAMS],
    ['every reduction', 89, BETWEEN],
    ['every operation and every reduction', 90, PROGRAMS],
  ] as const)(
    '%s is position-independent code on sm_%i',
    async (_, sm, programs) => {
      const folder = mkdtempSync(join(tmpdir(), 'gpuos-programs-'));
      try {
        const source = Object.entries(programs).map(([name, program]) => emitProgram(program, name));
        writeFileSync(join(folder, 'programs.cu'), source.join('\n'));
        for (const [name, text] of Object.entries({ ...programHeaders(), 'gpuos_abi.h': cudaHeader() }))
          writeFileSync(join(folder, name), text);
        const cubin = join(folder, 'programs.cubin');
        const options = ['-cubin', ...RESIDENT_OPTIONS, `-arch=sm_${sm}`, '-o', cubin, join(folder, 'programs.cu')];
        const { status, output } = await runTool('nvcc', options);
        expect(output).not.toMatch(/error|warning/i);
        expect(status).toBe(0);
        const bytes = new Uint8Array(readFileSync(cubin));
        const refused: string[] = [];
        let largest = 0;
        for (const name of Object.keys(programs)) {
          // The stack is for registers that a function has to keep for its caller: none for values of a loop's turn.
          const result = readInjectable(bytes, name, { sm, registers: 128, stackBytes: 104 });
          if (result.ok) {
            expect(result.function.patches).toEqual([]);
            largest = Math.max(largest, result.function.code.length);
          } else refused.push(...result.reasons.map(({ message }) => message));
        }
        expect(refused).toEqual([]);
        expect(largest).toBeLessThan(256 * 1024);
      } finally {
        rmSync(folder, { recursive: true, force: true });
      }
    },
    200_000,
  );
});
