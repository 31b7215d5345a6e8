import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CASES, nvccArguments } from '../../../../test/fixtures/cubin/cases.mjs';
import { runTool } from '../../../../test/cuda/toolkit.ts';
import { cudaHeader } from '../../../abi/headers.ts';
import { OPERATOR_STACK_BYTES } from '../resident.ts';
import { RESIDENT_OPTIONS } from '../source.ts';
import { Cubin } from './cubin.ts';
import { ElfFile } from './elf.ts';
import { readInjectable, type InjectionResult } from './injectable.ts';

/**
 * The reader against the toolkit: what nvcc writes today, and what other readers say of the same files. A machine
 * without a tool skips its tests; the committed cubins are read everywhere (injectable.test.ts).
 */

type Case = { refused: string[]; refusedWithCalls?: string[]; also?: number[] };
const cases = CASES as Record<string, Case>;
const folder = fileURLToPath(new URL('../../../../test/fixtures/cubin/', import.meta.url));

const runs = (command: string) => spawnSync(command, ['--version']).status === 0;
const nvcc = runs('nvcc');
const nvlink = nvcc && runs('nvlink');
const readelf = runs('readelf');
const because = (tool: string, there: boolean) => (there ? '' : ` (skipped: no ${tool} on this machine)`);

let work: string;
beforeAll(() => {
  work = mkdtempSync(join(tmpdir(), 'gpuos-cubin-'));
});
afterAll(() => rmSync(work, { recursive: true }));

const compiled = new Set<string>();

function compile(name: string, sm: number): string {
  const target = join(work, `${name}.sm_${sm}.cubin`);
  if (!compiled.has(target)) execFileSync('nvcc', nvccArguments(name, sm, join(folder, `${name}.cu`), target), { stdio: 'pipe' });
  compiled.add(target);
  return target;
}

const read = (file: string, sm: number, calls: boolean): InjectionResult =>
  readInjectable(new Uint8Array(readFileSync(file)), 'op', { sm, calls, stackBytes: calls ? 512 : 0 });
const checks = (result: InjectionResult) => (result.ok ? [] : [...new Set(result.reasons.map((r) => r.check))].sort());

describe.skipIf(!nvcc)(`what nvcc writes${because('nvcc', nvcc)}`, () => {
  const rows = Object.entries(cases).flatMap(([name, { also = [] }]) => [90, ...also].map((sm) => [name, sm] as const));

  it.each(rows)('%s for sm_%i', (name, sm) => {
    const { refused, refusedWithCalls = refused } = cases[name]!;
    const file = compile(name, sm);
    expect(checks(read(file, sm, false))).toEqual(refused);
    expect(checks(read(file, sm, true))).toEqual(refusedWithCalls);
  });

  it('calls helpers for shuffles before sm_90, and leaves the linker a choice on sm_75', () => {
    expect(checks(read(compile('block-sum', 80), 80, false))).toEqual(['call', 'stack']);
    expect(checks(read(compile('block-sum', 80), 80, true))).toEqual([]);
    expect(checks(read(compile('block-sum', 75), 75, true))).toEqual(['relocation']);
  });

  it('is position-independent: the same function, linked or not, has the same bytes where nothing is relocated', () => {
    if (!nvlink) return;
    const file = compile('multiply', 90);
    const linked = join(work, 'linked.cubin');
    execFileSync('nvlink', ['-arch=sm_90', '-o', linked, compile('caller', 90), file], { stdio: 'pipe' });
    const elf = new ElfFile(new Uint8Array(readFileSync(linked)));
    const result = read(file, 90, false);
    expect(result.ok && result.function.code).toEqual(elf.contents(elf.sections.find((s) => s.name === '.text.op')!));
    expect(checks(read(linked, 90, false))).toEqual(['file-type']);
  });
});

describe.skipIf(!nvlink)(`what nvlink counts${because('nvlink', nvlink)}`, () => {
  it.each([
    ['multiply', 90],
    ['block-sum', 90],
    ['functions', 90],
    ['divide', 90],
    ['callee', 90],
    ['local', 90],
    ['divide', 80],
    ['callee', 100],
  ] as const)('%s for sm_%i: functions, registers, stack', (name, sm) => {
    const file = compile(name, sm);
    const { stdout, stderr } = spawnSync(
      'nvlink',
      [`-arch=sm_${sm}`, '-v', '-dump-callgraph', '-o', join(work, 'linked.cubin'), compile('caller', sm), file],
      { encoding: 'utf8' },
    );
    const text = stdout + stderr;
    // "2: op [46] -> 3" is a function with its registers, "used 46 registers, used 0 barriers, 8 stack" the whole.
    const functions = [...text.matchAll(/^\d+: (?!\^)\S.* \[(\d+)\] ->/gm)].map(([, registers]) => Number(registers));
    const stack = Number(/(\d+) stack/.exec(text)?.[1]);
    const result = read(file, sm, true);
    if (!result.ok) throw new Error(JSON.stringify(result.reasons));
    expect(functions).toHaveLength(result.function.functions.length);
    expect(result.function.registers).toBe(Math.max(...functions));
    expect(result.function.stackBytes).toBe(stack);
  });
});

describe.skipIf(!nvlink)(`what the resident kernel sets apart for injected operators${because('nvlink', nvlink)}`, () => {
  // One after another: each takes a core for half a minute.
  it.each([75, 80, 90, 100])(
    'is there in the linked kernel for sm_%i, which compiles without a warning, within 128 registers and a kilobyte of stack',
    async (sm) => {
      const device = fileURLToPath(new URL('../device/', import.meta.url));
      writeFileSync(join(work, 'gpuos_abi.h'), cudaHeader());
      const [object, linked] = [join(work, `resident.sm_${sm}.cubin`), join(work, `resident.sm_${sm}.linked`)];
      const options = ['-cubin', ...RESIDENT_OPTIONS, `-arch=sm_${sm}`, '-I', work, '-I', device];
      const compiled = await runTool('nvcc', [...options, '-o', object, join(device, 'resident.cu')]);
      expect(compiled.output).not.toMatch(/error|warning/i);
      expect(compiled.status).toBe(0);
      const { output } = await runTool('nvlink', ['-v', `-arch=sm_${sm}`, '-o', linked, object]);
      const used = /properties for 'gpuos_resident':[\s\S]*?used (\d+) registers, (?:used \d+ barriers, )?(\d+) stack/.exec(output);
      const cubin = new Cubin(new Uint8Array(readFileSync(linked)));
      const { frameBytes, registers } = cubin.function(cubin.functions('operator_reserve')[0]!);
      expect(frameBytes).toBeGreaterThanOrEqual(OPERATOR_STACK_BYTES);
      expect(Number(used?.[2])).toBeGreaterThanOrEqual(frameBytes!);
      expect(Number(used?.[2])).toBeLessThanOrEqual(1024);
      expect(Number(used?.[1])).toBeGreaterThanOrEqual(registers!);
      expect(Number(used?.[1])).toBeLessThanOrEqual(128);
    },
    120_000,
  );
});

describe.skipIf(!readelf)(`what readelf reads${because('readelf', readelf)}`, () => {
  it.each(readdirSync(folder).filter((name) => name.endsWith('.cubin')))('%s: sections, symbols, relocations', (name) => {
    const file = join(folder, name);
    const text = (option: string) =>
      execFileSync('readelf', ['-W', option, file], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
    const elf = new ElfFile(new Uint8Array(readFileSync(file)));

    // "[ 7] .nv.info  LOPROC+0  0000000000000000 000544 000028 00 ...": number, name, type, address, offset, size, size of entries.
    const sections = [...text('-S').matchAll(/^ +\[ *(\d+)\] (\S*) +(\S+) +[0-9a-f]{16} ([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+)/gm)];
    expect(elf.sections.map((s) => [s.index, s.name, s.offset, s.size, s.entrySize])).toEqual(
      sections.map(([, index, name, , offset, size, entry]) => [
        Number(index),
        name,
        ...[offset, size, entry].map((n) => Number.parseInt(n!, 16)),
      ]),
    );

    // "16: 0000000000000000   768 FUNC    GLOBAL DEFAULT   13 op": number, value, size, type.
    const symbols = [...text('-s').matchAll(/^ +(\d+): ([0-9a-f]{16}) +(\d+) (\S+)/gm)];
    expect(symbols).toHaveLength(elf.symbolCount);
    for (const [, index, value, size, type] of symbols) {
      const symbol = elf.symbol(Number(index));
      expect([symbol.value, symbol.size, symbol.type === 2]).toEqual([Number.parseInt(value!, 16), Number(size), type === 'FUNC']);
    }
    const functions = [...text('-s').matchAll(/FUNC .* (\S+)$/gm)].map(([, name]) => name);
    for (const name of functions) expect([...elf.symbolsNamed(name!, 2)]).toHaveLength(1);

    // "0000000000000050  0000001200000039 unrecognized: 39": place, symbol and type.
    const relocations = [...text('-r').matchAll(/^([0-9a-f]{16}) +([0-9a-f]{8})([0-9a-f]{8}) /gm)].map(([, at, symbol, type]) =>
      [at, symbol, type].map((n) => Number.parseInt(n!, 16)),
    );
    const ours = elf.sections
      .filter((s) => s.type === 4 || s.type === 9)
      .flatMap((s) => [...elf.relocations(s)].map((r) => [r.offset, r.symbol, r.type]));
    expect(ours).toEqual(relocations);
  });
});
