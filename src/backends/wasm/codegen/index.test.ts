import { describe, expect, test } from 'vitest';
import wabt from 'wabt';
import { isHalf } from '../../../ops/dtype.ts';
import { MAPS } from '../../../ops/map.ts';
import type { MapName, Program, ProgramNode } from '../../../ops/program.ts';
import { compileProgram, programSignature } from './index.ts';

const { readWasm } = await wabt();

const AXPY: Program = {
  inputs: [
    { dtype: 'float32', columnStride: 1 },
    { dtype: 'float32', columnStride: 0 },
  ],
  scalars: 1,
  nodes: [
    { kind: 'input', input: 0, dtype: 'float32' },
    { kind: 'scalar', scalar: 0, dtype: 'float32' },
    { kind: 'map', op: 'mul', args: [0, 1], dtype: 'float32' },
    { kind: 'input', input: 1, dtype: 'float32' },
    { kind: 'map', op: 'add', args: [2, 3], dtype: 'float32' },
    { kind: 'map', op: 'exp', args: [0], dtype: 'float32' }, // no output needs it
  ],
  outputs: [{ node: 4, dtype: 'float32', space: 'full' }],
  outerRank: 1,
};

describe('compileProgram', () => {
  test('the text of a kernel', () => {
    const module = readWasm(compileProgram(AXPY).bytes, { threads: true, simd: true } as never);
    expect(module.toText({ foldExprs: false, inlineExport: false })).toMatchSnapshot();
    module.destroy();
  });

  test('every operation of the library compiles for every dtype that its rule allows', () => {
    for (const [name, rule] of Object.entries(MAPS)) {
      for (const operand of rule.operands) {
        if (isHalf(operand)) continue; // computed in float32
        const results =
          rule.result === 'attribute' ? (['float32', 'int32', 'bool'] as const) : [rule.result === 'same' ? operand : ('bool' as const)];
        for (const dtype of results) {
          const inputs = rule.inputs.map((_, i) => ({
            dtype: rule.condition && i === 0 ? ('bool' as const) : operand,
            columnStride: 1 as const,
          }));
          const nodes: ProgramNode[] = inputs.map((input, i) => ({ kind: 'input', input: i, dtype: input.dtype }));
          nodes.push({ kind: 'map', op: name as MapName, args: inputs.map((_, i) => i), dtype });
          const { bytes } = compileProgram({
            inputs,
            scalars: 0,
            nodes,
            outputs: [{ node: inputs.length, dtype, space: 'full' }],
            outerRank: 0,
          });
          expect(WebAssembly.validate(bytes as BufferSource), `${name} of ${operand}`).toBe(true);
        }
      }
    }
  });

  test('the same program gives the same bytes', () => {
    expect(compileProgram(structuredClone(AXPY)).bytes).toEqual(compileProgram(AXPY).bytes);
  });
});

describe('programSignature', () => {
  test('programs that differ in anything have different signatures', () => {
    const change = (edit: (program: { -readonly [K in keyof Program]: Program[K] }) => void): Program => {
      const copy = structuredClone(AXPY);
      edit(copy);
      return copy;
    };
    const node = (index: number, replacement: ProgramNode) => change((p) => (p.nodes = p.nodes.with(index, replacement)));
    const constant = (value: number, dtype: 'float32' | 'int32' = 'float32') => node(1, { kind: 'constant', value, dtype });
    const programs = [
      AXPY,
      change((p) => (p.outerRank = 2)),
      change((p) => (p.scalars = 2)),
      change((p) => (p.inputs = p.inputs.with(0, { dtype: 'float32', columnStride: 'strided' }))),
      change((p) => (p.inputs = p.inputs.with(0, { dtype: 'int32', columnStride: 1 }))),
      change((p) => (p.outputs = [{ node: 2, dtype: 'float32', space: 'full' }])),
      change((p) => (p.outputs = [{ node: 3, dtype: 'float32', space: 'row' }])),
      constant(0),
      constant(-0),
      constant(1),
      constant(1, 'int32'),
      constant(0.1),
      constant(Number.NaN),
      node(4, { kind: 'map', op: 'add', args: [3, 2], dtype: 'float32' }),
      node(4, { kind: 'map', op: 'sub', args: [2, 3], dtype: 'float32' }),
      node(4, { kind: 'reduce', op: 'sum', arg: 2, dtype: 'float32' }),
      node(4, { kind: 'reduce', op: 'max', arg: 2, dtype: 'float32' }),
    ];
    expect(new Set(programs.map(programSignature)).size).toBe(programs.length);
    expect(programSignature(structuredClone(AXPY))).toBe(programSignature(AXPY));
  });
});
