import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { GpuosError } from '../../errors.ts';
import { cacheFolder } from '../../flags.ts';
import { IndexCache, indexKey, PassageIndex } from './index-cache.ts';

const KEY = 'a'.repeat(64);
const DIMENSIONS = 3;

function indexOf(entries: Record<number, number[]>, key = KEY, passages = 10): PassageIndex {
  const index = new PassageIndex(key, DIMENSIONS, passages);
  for (const [number, values] of Object.entries(entries)) index.vectors.set(Number(number), Float32Array.from(values));
  return index;
}

function codeOf(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    if (error instanceof GpuosError) return error.code;
    throw error;
  }
  return 'none';
}

describe('PassageIndex', () => {
  it('decodes what it encodes', () => {
    const vector = fc.array(fc.float({ noNaN: true, noDefaultInfinity: true }), { minLength: DIMENSIONS, maxLength: DIMENSIONS });
    fc.assert(
      fc.property(fc.dictionary(fc.nat({ max: 9 }).map(String), vector), (entries) => {
        const index = indexOf(entries);
        const copy = new PassageIndex(KEY, DIMENSIONS, 10);
        // At an odd offset, as a slice of a pooled buffer may be.
        copy.decode(Buffer.concat([Buffer.from('x'), index.encode()]).subarray(1));
        expect(new Map([...copy.vectors].sort())).toEqual(new Map([...index.vectors].sort()));
      }),
    );
  });

  it('refuses every single damaged byte, and every truncation', () => {
    const bytes = indexOf({ 0: [1, 2, 3], 7: [4, 5, 6] }).encode();
    for (let at = 0; at < bytes.length; at++) {
      const damaged = Buffer.from(bytes);
      damaged[at] = (damaged[at] as number) ^ 0x10;
      const index = new PassageIndex(KEY, DIMENSIONS, 10);
      expect(codeOf(() => index.decode(damaged))).toBe('GPUOS_INDEX_DAMAGED');
      expect(codeOf(() => index.decode(bytes.subarray(0, at)))).toBe('GPUOS_INDEX_DAMAGED');
      expect(index.vectors.size).toBe(0);
    }
  });

  it('refuses an index of another text, of impossible passages, or with values that are not finite', () => {
    const into = () => new PassageIndex(KEY, DIMENSIONS, 10);
    expect(codeOf(() => into().decode(indexOf({ 0: [1, 2, 3] }, 'b'.repeat(64)).encode()))).toBe('GPUOS_INDEX_DAMAGED');
    expect(codeOf(() => into().decode(indexOf({ 0: [1, 2, 3] }, KEY, 11).encode()))).toBe('GPUOS_INDEX_DAMAGED');
    expect(codeOf(() => into().decode(indexOf({ 10: [1, 2, 3] }).encode()))).toBe('GPUOS_INDEX_DAMAGED');
    expect(codeOf(() => into().decode(indexOf({ 1: [1, Number.NaN, 3] }).encode()))).toBe('GPUOS_INDEX_DAMAGED');
    expect(codeOf(() => into().decode(indexOf({ 1: [1, 2, 3] }).encode()))).toBe('none');
  });
});

describe('IndexCache', () => {
  let folder: string;
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'gpuos-cache-'));
  });
  afterEach(() => rmSync(folder, { recursive: true, force: true }));

  it('loads nothing where nothing is, and what was saved where it is', async () => {
    const cache = new IndexCache(folder, KEY);
    const index = indexOf({});
    await cache.load(index);
    expect(index.vectors.size).toBe(0);
    await cache.save(indexOf({ 3: [1, 2, 3] }));
    await cache.load(index);
    expect(index.vectors.get(3)).toEqual(Float32Array.of(1, 2, 3));
    expect(readdirSync(dirname(cache.file))).toHaveLength(1);
  });

  it('keeps what another process has saved meanwhile', async () => {
    const cache = new IndexCache(folder, KEY);
    await cache.save(indexOf({ 1: [1, 1, 1], 2: [2, 2, 2] }));
    await cache.save(indexOf({ 2: [9, 9, 9], 3: [3, 3, 3] }));
    const index = indexOf({});
    await cache.load(index);
    expect(Object.fromEntries([...index.vectors].map(([number, vector]) => [number, vector[0]]))).toEqual({ 1: 1, 2: 9, 3: 3 });
  });

  it('refuses a damaged file, and replaces it when it saves', async () => {
    const cache = new IndexCache(folder, KEY);
    await cache.save(indexOf({ 1: [1, 1, 1] }));
    const bytes = readFileSync(cache.file);
    writeFileSync(cache.file, bytes.subarray(0, bytes.length - 5));
    await expect(cache.load(indexOf({}))).rejects.toMatchObject({ code: 'GPUOS_INDEX_DAMAGED' });
    await cache.save(indexOf({ 2: [2, 2, 2] }));
    const index = indexOf({});
    await cache.load(index);
    expect([...index.vectors.keys()]).toEqual([2]);
  });

  it('says so when it cannot write, and leaves nothing behind', async () => {
    writeFileSync(join(folder, 'file'), '');
    await expect(new IndexCache(join(folder, 'file'), KEY).save(indexOf({}))).rejects.toMatchObject({ code: 'GPUOS_OUTPUT_UNWRITABLE' });
    const cache = new IndexCache(folder, KEY);
    mkdirSync(cache.file, { recursive: true });
    await expect(cache.save(indexOf({}))).rejects.toMatchObject({ code: 'GPUOS_OUTPUT_UNWRITABLE' });
    expect(readdirSync(dirname(cache.file))).toHaveLength(1);
  });
});

describe('indexKey', () => {
  const passages = [
    { text: 'a', section: 's' },
    { text: 'b', section: 's' },
  ];
  it('depends on all that the vectors depend on, and on nothing else', () => {
    const key = indexKey(passages, 'm', 'gpuos', '1');
    expect(key).toMatch(/^[0-9a-f]{64}$/);
    expect(
      indexKey(
        passages.map((passage) => ({ ...passage, section: 't' })),
        'm',
        'gpuos',
        '1',
      ),
    ).toBe(key);
    expect(indexKey([{ text: 'ab', section: 's' }], 'm', 'gpuos', '1')).not.toBe(key);
    expect(indexKey([...passages].reverse(), 'm', 'gpuos', '1')).not.toBe(key);
    expect(indexKey(passages, 'n', 'gpuos', '1')).not.toBe(key);
    expect(indexKey(passages, 'm', 'wasm', '1')).not.toBe(key);
    expect(indexKey(passages, 'm', 'gpuos', '2')).not.toBe(key);
  });
});

describe('cacheFolder', () => {
  it('follows GPUOS_HOME, then XDG, then the home folder', () => {
    expect(cacheFolder('/here', { XDG_CACHE_HOME: '/xdg' })).toBe('/here');
    expect(cacheFolder(undefined, { XDG_CACHE_HOME: '/xdg' })).toBe('/xdg/gpuos');
    expect(cacheFolder(undefined, { XDG_CACHE_HOME: 'relative' })).toBe(join(homedir(), '.cache/gpuos'));
    expect(cacheFolder(undefined, {})).toBe(join(homedir(), '.cache/gpuos'));
  });
});
