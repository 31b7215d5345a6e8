/** Reductions of real numbers with what comes before and after them, compiled and interpreted, on rows of all lengths. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { encodeProgram } from '../../src/backends/cuda/interpreter/index.ts';
import type { MapName, Program, ProgramNode, ReduceName } from '../../src/ops/program.ts';
import { compileEmulated, type DeviceMemory, deviceMemory, type Emulated, NO_GXX, reason } from '../cuda/emulation/emulation.ts';
import { compileAll, type Run, runRow } from './machine.ts';

const input: ProgramNode = { kind: 'input', input: 0, dtype: 'float32' };
const map = (op: MapName, ...args: number[]): ProgramNode => ({ kind: 'map', op, args, dtype: 'float32' });
const reduce = (op: ReduceName, arg: number): ProgramNode => ({
  kind: 'reduce',
  op,
  arg,
  dtype: op.startsWith('arg') ? 'int32' : 'float32',
});
const constant = (value: number): ProgramNode => ({ kind: 'constant', value, dtype: 'float32' });

function program(nodes: ProgramNode[], space: 'full' | 'row'): Program {
  return {
    inputs: [{ dtype: 'float32', columnStride: 1 }],
    scalars: 1,
    nodes,
    outputs: [{ node: nodes.length - 1, dtype: nodes.at(-1)!.dtype, space }],
    outerRank: 0,
  };
}

const PROGRAMS = {
  softmax: program([input, reduce('max', 0), map('sub', 0, 1), map('exp', 2), reduce('sum', 3), map('div', 3, 4)], 'full'),
  sum: program([input, reduce('sum', 0)], 'row'),
  prod: program([input, reduce('prod', 0)], 'row'),
  argmax: program([input, reduce('argmax', 0)], 'row'),
  argmin: program([input, reduce('argmin', 0)], 'row'),
  normalization: program(
    [
      ...[input, reduce('sum', 0), constant(1 / 1029), map('mul', 1, 2), map('sub', 0, 3), map('square', 4), reduce('sum', 5)],
      ...[map('mul', 6, 2), constant(1e-5), map('add', 7, 8), map('rsqrt', 9), map('mul', 4, 10)],
    ],
    'full',
  ),
};
type Name = keyof typeof PROGRAMS;
const NAMES = Object.keys(PROGRAMS) as Name[];

function values(count: number, scale: number, shift = 0): number[] {
  let state = 99;
  return Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) | 0;
    return Math.fround(((state >>> 0) / 2 ** 32 - 0.5) * scale + shift);
  });
}

describe.skipIf(NO_GXX)(reason('reductions on the CUDA device'), () => {
  let compiled: Emulated;
  let apart: Emulated;
  let interpreter: Emulated;
  let memory: DeviceMemory;
  beforeAll(() => {
    const list = NAMES.map((name) => PROGRAMS[name]);
    compiled = compileAll(list);
    apart = compileAll(list, ['-DGPUOS_SHUFFLES=0']);
    interpreter = compileEmulated('#include "gpuos_abi.h"\n#include "interpreter.cuh"\n');
    memory = deviceMemory(32 * 1024);
  }, 120_000);
  afterAll(() => {
    for (const each of [compiled, apart, interpreter, memory]) each.free();
  });

  const FORMS = ['compiled', 'without shuffles', 'interpreted'] as const;
  const run = (form: (typeof FORMS)[number], name: Name, threads: number): Run => {
    if (form !== 'interpreted') {
      return (params, tiles) => (form === 'compiled' ? compiled : apart).callAll(`p${NAMES.indexOf(name)}`, params, tiles, { threads });
    }
    const code = encodeProgram(PROGRAMS[name])!;
    memory.bytes.set(new Uint8Array(code.buffer));
    return (params, tiles) => interpreter.callAll('operator_interpret', params, tiles, { threads, data: memory.address });
  };
  const CASES = FORMS.flatMap((form) => [32, 256].map((threads) => ({ form, threads })));
  const LENGTHS = [1, 3, 16, 67, 1000, 1029, 40_001];

  test.each(CASES)('softmax, $form, $threads threads', ({ form, threads }) => {
    for (const columns of LENGTHS) {
      const x = values(columns, 20);
      const [actual] = runRow(PROGRAMS.softmax, run(form, 'softmax', threads), [x]) as [number[]];
      const max = x.reduce((a, b) => Math.max(a, b));
      const e = x.map((v) => Math.exp(v - max));
      const sum = e.reduce((a, b) => a + b, 0);
      actual.forEach((value, i) => {
        expect(Math.abs(value - e[i]! / sum)).toBeLessThan(2e-6 * (e[i]! / sum) + 1e-37);
      });
    }
  });

  test.each(CASES)('a sum is that of the exact numbers, rounded once or nearly so, $form, $threads threads', ({ form, threads }) => {
    for (const columns of LENGTHS) {
      for (const x of [values(columns, 1, 0.7), values(columns, 1e6)]) {
        const [[actual]] = runRow(PROGRAMS.sum, run(form, 'sum', threads), [x]) as [[number]];
        const truth = x.reduce((a, b) => a + b, 0);
        const terms = x.reduce((a, b) => a + Math.abs(b), 0);
        expect(Math.abs(actual - truth)).toBeLessThanOrEqual(2 ** -24 * Math.abs(truth) + 2 ** -44 * terms);
      }
    }
    for (const [x, truth] of [
      [[Number.POSITIVE_INFINITY, 1, 2], Number.POSITIVE_INFINITY],
      [[1, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY], Number.NaN],
      [[3e38, 3e38], Number.POSITIVE_INFINITY],
      [[1, Number.NaN], Number.NaN],
    ] as const) {
      expect(runRow(PROGRAMS.sum, run(form, 'sum', threads), [x])).toEqual([[truth]]);
    }
  });

  test.each(CASES)('a product, $form, $threads threads', ({ form, threads }) => {
    const x = values(1000, 0.02, 1);
    const [[actual]] = runRow(PROGRAMS.prod, run(form, 'prod', threads), [x]) as [[number]];
    const truth = x.reduce((a, b) => a * b, 1);
    expect(Math.abs(actual / truth - 1)).toBeLessThan(1e-4);
  });

  test.each(CASES)('layer normalization, $form, $threads threads', ({ form, threads }) => {
    const x = values(1029, 4, 1);
    const [actual] = runRow(PROGRAMS.normalization, run(form, 'normalization', threads), [x]) as [number[]];
    const mean = x.reduce((a, b) => a + b, 0) / 1029;
    const variance = x.reduce((a, b) => a + (b - mean) ** 2, 0) / 1029;
    actual.forEach((value, i) => {
      expect(Math.abs(value - (x[i]! - mean) / Math.sqrt(variance + 1e-5))).toBeLessThan(3e-6);
    });
  });

  test.each(CASES)('argmax and argmin give the first of equal values and the first NaN, $form, $threads threads', ({ form, threads }) => {
    for (const name of ['argmax', 'argmin'] as const) {
      const sign = name === 'argmax' ? 1 : -1;
      for (const columns of [1, 2, 5, 17, 40, 67, 131]) {
        for (let at = 0; at < columns; at += 1 + (columns >> 4)) {
          const x = new Array<number>(columns).fill(-sign);
          x.fill(2 * sign, at);
          expect(runRow(PROGRAMS[name], run(form, name, threads), [x])).toEqual([[at]]);
          x.fill(Number.NaN, at);
          if (at > 0) x[0] = sign * Number.POSITIVE_INFINITY;
          expect(runRow(PROGRAMS[name], run(form, name, threads), [x])).toEqual([[at]]);
        }
        expect(runRow(PROGRAMS[name], run(form, name, threads), [new Array(columns).fill(-sign * Number.POSITIVE_INFINITY)])).toEqual([
          [0],
        ]);
      }
    }
  });
});
