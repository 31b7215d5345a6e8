import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL, fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { filesBelow, withLock, writeWhole } from '../scripts/build.mjs';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'gpuos-build-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

describe('writeWhole', () => {
  it('writes what changes and nothing else', () => {
    const file = join(folder, 'a/b.txt');
    expect(writeWhole(file, 'one')).toBe(true);
    const { ino } = statSync(file);
    expect(writeWhole(file, 'one')).toBe(false);
    expect(statSync(file).ino).toBe(ino);
    expect(writeWhole(file, 'two')).toBe(true);
    expect(readFileSync(file, 'utf8')).toBe('two');
    expect(filesBelow(folder)).toEqual(['a/b.txt']);
  });
});

describe('withLock', () => {
  it('runs one at a time, and releases the lock when the action fails', async () => {
    const lock = join(folder, 'lock');
    let inside = 0;
    let most = 0;
    const action = async () => {
      most = Math.max(most, ++inside);
      await new Promise((resolve) => setTimeout(resolve, 30));
      inside--;
    };
    await Promise.all([withLock(lock, action), withLock(lock, action), withLock(lock, action)]);
    expect(most).toBe(1);
    await expect(
      withLock(lock, () => {
        throw new Error('broken');
      }),
    ).rejects.toThrow('broken');
    expect(existsSync(lock)).toBe(false);
  });

  it('waits for a living process and gives up in time', async () => {
    const lock = join(folder, 'lock');
    writeFileSync(lock, String(process.pid));
    await expect(withLock(lock, () => 'ran', { timeoutMs: 250 })).rejects.toThrow(/another build/);
    expect(readFileSync(lock, 'utf8')).toBe(String(process.pid));
  });

  it('takes the lock over from a process that died with it', async () => {
    const lock = join(folder, 'lock');
    const script = fileURLToPath(new URL('../scripts/build.mjs', import.meta.url));
    const code = `import { withLock } from ${JSON.stringify(pathToFileURL(script).href)};
      await withLock(${JSON.stringify(lock)}, () => process.kill(process.pid, 'SIGKILL'));`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', code]);
    await new Promise((resolve) => child.on('exit', resolve));
    expect(readFileSync(lock, 'utf8')).toBe(String(child.pid));
    expect(await withLock(lock, () => 'ran', { timeoutMs: 2000 })).toBe('ran');
    expect(existsSync(lock)).toBe(false);
  });
});
