/** Operators that are linked together, as for a relaunch: by the toolkit's compiler and linker, where there are any. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cudaHeader } from '../../src/abi/headers.ts';
import { emitProgram, programHeaders } from '../../src/backends/cuda/codegen/index.ts';
import { QUIT } from '../../src/backends/cuda/injection/replacement.ts';
import { tableSource, TELL_KERNEL } from '../../src/backends/cuda/injection/table-source.ts';
import type { Program } from '../../src/ops/program.ts';
import { runTool } from './toolkit.ts';

const NO_TOOLKIT = ['nvcc', 'nvlink'].some((name) => spawnSync(name, ['--version']).status !== 0);

const program = (op: 'exp' | 'tanh' | 'sqrt'): Program => ({
  inputs: [{ dtype: 'float32', columnStride: 1 }],
  scalars: 0,
  nodes: [
    { kind: 'input', input: 0, dtype: 'float32' },
    { kind: 'map', op, args: [0], dtype: 'float32' },
    { kind: 'map', op: 'div', args: [0, 1], dtype: 'float32' },
  ],
  outputs: [{ node: 2, dtype: 'float32', space: 'full' }],
  outerRank: 0,
});

describe.skipIf(NO_TOOLKIT)(`linking for a relaunch${NO_TOOLKIT ? ' (skipped: no nvcc or nvlink)' : ''}`, () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'gpuos-link-'));
  });
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  it('puts several operators and the kernel that tells their addresses into one image', async () => {
    const symbols = ['gpuos_operator_a', 'gpuos_operator_b', 'gpuos_operator_c'];
    const operators = (['exp', 'tanh', 'sqrt'] as const).map((op, i) => [`${op}.cu`, emitProgram(program(op), symbols[i]!)] as const);
    const sources = [...operators, ['table.cu', tableSource(symbols)] as const];
    for (const [name, text] of [...sources, ...Object.entries(programHeaders()), ['gpuos_abi.h', cudaHeader()] as const]) {
      writeFileSync(join(folder, name), text);
    }
    const options = ['-arch=sm_90', '-std=c++17', '-rdc=true', '--maxrregcount=128', '-cubin', '-I', folder];
    const objects = sources.map(([name]) => join(folder, `${name}.cubin`));
    for (const [i, [name]] of sources.entries()) {
      const { status, output } = await runTool('nvcc', [...options, '-o', objects[i]!, join(folder, name)]);
      expect(output).toBe('');
      expect(status).toBe(0);
    }
    const image = join(folder, 'image.cubin');
    const { status, output } = await runTool('nvlink', ['-arch=sm_90', '-o', image, ...objects]);
    expect(output).toBe('');
    expect(status).toBe(0);
    const text = readFileSync(image, 'latin1');
    for (const name of [...symbols, TELL_KERNEL]) expect(text).toContain(`.text.${name}`);
  });
});

describe('the word to leave', () => {
  it('is the same number for the kernel and its host', () => {
    const source = readFileSync(new URL('../../src/backends/cuda/device/dispatcher.cuh', import.meta.url), 'utf8');
    for (const [name, value] of [
      ['NOW', QUIT.now],
      ['WHEN_DONE', QUIT.whenDone],
      ['ASIDE', QUIT.aside],
    ] as const)
      expect(source).toContain(`#define GPUOS_QUIT_${name} ${value}u\n`);
  });
});
