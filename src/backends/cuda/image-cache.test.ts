import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { ImageCache } from './image-cache.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'gpuos-images-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

it('gives back what was written under the same key, and nothing under another', () => {
  const cache = new ImageCache(folder);
  const image = Uint8Array.from({ length: 1000 }, (_, i) => i % 251);
  const key = ImageCache.key(['source', { headers: 1 }]);
  expect(cache.read(key)).toBeUndefined();
  cache.write(key, image);
  expect(Buffer.compare(cache.read(key) as Uint8Array, image)).toBe(0);
  expect(cache.read(ImageCache.key(['source', { headers: 2 }]))).toBeUndefined();
  expect(readdirSync(join(folder, 'cuda'))).toEqual([key]);
});

it('takes a file that was damaged, anywhere, or cut short for none', () => {
  const cache = new ImageCache(folder);
  const key = ImageCache.key(['damaged']);
  cache.write(
    key,
    Uint8Array.from({ length: 200 }, (_, i) => i),
  );
  const path = join(folder, 'cuda', key);
  const whole = readFileSync(path);
  fc.assert(
    fc.property(fc.nat(whole.length - 1), fc.integer({ min: 1, max: 255 }), (at, change) => {
      const damaged = Buffer.from(whole);
      damaged[at] = (damaged[at] as number) ^ change;
      writeFileSync(path, damaged);
      expect(cache.read(key)).toBeUndefined();
      writeFileSync(path, whole.subarray(0, at));
      expect(cache.read(key)).toBeUndefined();
    }),
  );
});

it('does without where the folder cannot be written', () => {
  const file = join(folder, 'no-folder');
  writeFileSync(file, '');
  const cache = new ImageCache(file);
  cache.write('key', new Uint8Array(4));
  expect(cache.read('key')).toBeUndefined();
});
