import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';

const models = new URL('./', import.meta.url);
const source = new URL('../../src/', import.meta.url);

const read = (name: string): string => readFileSync(new URL(name, models), 'utf8');
const files = readdirSync(models).filter((name) => name.endsWith('.pml') || name.endsWith('.inc'));
const run = read('run.sh');
const rows = (/^rows='$([\s\S]*?)^'$/m.exec(run)?.[1] ?? '').split('\n').filter((row) => row !== '');

/** The files that the models stand for. */
const code = [
  'backends/wasm/device/executor.ts',
  'backends/wasm/device.ts',
  'backends/wasm/supervisor.ts',
  ...readdirSync(new URL('runtime/', source))
    .filter((name) => name.endsWith('.ts') && !name.endsWith('.test.ts'))
    .map((name) => `runtime/${name}`),
];

/** Names of the functions and methods that a source text defines. */
function definitions(text: string): Set<string> {
  const names = new Set<string>();
  for (const match of text.matchAll(/^(?:export )?(?:async )?function (\w+)\(/gm)) names.add(match[1] as string);
  for (const match of text.matchAll(/^ {2}(?:async )?(?:get )?#?(\w+)\([^)]*\)[^;]*\{$/gm)) names.add(match[1] as string);
  return names;
}

describe('the protocol models', () => {
  const defined = new Set(code.flatMap((name) => [...definitions(readFileSync(new URL(name, source), 'utf8'))]));

  it.each(files)('%s stands for functions that exist', (name) => {
    const markers = [...read(name).matchAll(/\[code: (\w+)\]/g)].map((match) => match[1] as string);
    if (name !== 'sequence.inc') expect(markers.length).toBeGreaterThan(0);
    expect(markers.filter((marker) => !defined.has(marker))).toEqual([]);
  });

  it('finds no function where there is none', () => {
    expect(definitions('  while (a) {\n').has('step')).toBe(false);
    expect(definitions('export function step(worker: u32): i32 {').has('step')).toBe(true);
    expect(definitions('  ringSpace(): void {').has('ringSpace')).toBe(true);
  });

  it('says at the top of each model what it covers, abstracts and proves', () => {
    for (const name of files.filter((file) => file.endsWith('.pml'))) {
      const top = /^\/\*([\s\S]*?)\*\//.exec(read(name))?.[1] ?? '';
      for (const word of ['Covers:', 'Abstracts:', 'Proved:']) expect(`${name} ${top}`).toContain(word);
    }
  });

  it('runs every model, and every mutant that a model plants', () => {
    for (const name of files.filter((file) => file.endsWith('.pml'))) {
      expect(rows.some((row) => row.startsWith(`${name.slice(0, -4)} `) && !row.includes('MUTANT'))).toBe(true);
    }
    const planted = new Set(files.flatMap((name) => [...read(name).matchAll(/MUTANT_\w+/g)].map((match) => match[0])));
    const checked = new Set(rows.flatMap((row) => row.match(/MUTANT_\w+/g) ?? []));
    expect([...checked].sort()).toEqual([...planted].sort());
    for (const row of rows) expect(row.includes('MUTANT')).toBe(row.split(' ')[1] === 'found');
  });
});
