import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, openSync, closeSync, ftruncateSync, rmSync, writeFileSync, createWriteStream } from 'node:fs';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { GpuosError } from '../../errors.ts';
import { bookSource, fileSource, MAX_FILE_BYTES, MAX_LINE_BYTES, readText } from './input.ts';
import { MAX_PASSAGE_LENGTH } from './passages.ts';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'gpuos-input-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

function file(name: string, contents: string | Uint8Array): string {
  const path = join(folder, name);
  writeFileSync(path, contents);
  return path;
}

async function refusal(path: string, read: (path: string) => Promise<unknown> = readText): Promise<string> {
  const error = await read(path).then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(GpuosError);
  expect((error as GpuosError).message).toContain(path);
  return (error as GpuosError).code;
}

describe('readText', () => {
  it('reads UTF-8 across chunk borders, and drops a byte order mark', async () => {
    // Longer than a chunk, with characters of 2, 3 and 4 bytes at every alignment.
    const text = `${'é鯨😀a'.repeat(30_000)}\n`.repeat(2);
    expect(await readText(file('long.txt', text))).toBe(text);
    expect(await readText(file('bom.txt', '\ufeffWhale.'))).toBe('Whale.');
  });

  it('refuses what it cannot read', async () => {
    expect(await refusal(join(folder, 'missing.txt'))).toBe('GPUOS_INPUT_UNREADABLE');
    mkdirSync(join(folder, 'folder'));
    expect(await refusal(join(folder, 'folder'))).toBe('GPUOS_INPUT_UNREADABLE');
    expect(await refusal(`${file('plain.txt', 'x')}/below`)).toBe('GPUOS_INPUT_UNREADABLE');
  });

  it('refuses empty files', async () => {
    expect(await refusal(file('empty.txt', ''))).toBe('GPUOS_INPUT_EMPTY');
    expect(await refusal(file('blank.txt', ' \r\n\t\n\ufeff'))).toBe('GPUOS_INPUT_EMPTY');
    expect(await refusal(file('rule.txt', '* * *\n---\n'), fileSource)).toBe('GPUOS_INPUT_EMPTY');
  });

  it('refuses binary files: a NUL anywhere, invalid or cut-off UTF-8, UTF-16', async () => {
    expect(await refusal(file('nul.bin', `${'a'.repeat(200_000)}\0`))).toBe('GPUOS_INPUT_BINARY');
    expect(await refusal(file('latin1.txt', Uint8Array.of(0x63, 0x61, 0x66, 0xe9, 0x0a)))).toBe('GPUOS_INPUT_BINARY');
    expect(await refusal(file('cut.txt', Uint8Array.of(0x61, 0xe9, 0xaf)))).toBe('GPUOS_INPUT_BINARY');
    expect(await refusal(file('utf16.txt', Buffer.from('\ufeffwhale', 'utf16le')))).toBe('GPUOS_INPUT_BINARY');
  });

  // A machine whose cores are all taken may miss the bound once.
  it('refuses a file of 200 MB by its size, without reading it', { retry: 2 }, async () => {
    const path = join(folder, 'huge.txt');
    const handle = openSync(path, 'w');
    ftruncateSync(handle, 200e6);
    closeSync(handle);
    const before = process.memoryUsage().rss;
    const started = performance.now();
    // Its bytes are NUL: only its size can give this code.
    expect(await refusal(path)).toBe('GPUOS_INPUT_TOO_LARGE');
    expect(performance.now() - started).toBeLessThan(500);
    expect(process.memoryUsage().rss - before).toBeLessThan(100 * 2 ** 20);
    rmSync(path);
  });

  it('refuses a line that never ends, but not a file of many lines', async () => {
    expect(await refusal(file('line.txt', 'a'.repeat(MAX_LINE_BYTES + 1)))).toBe('GPUOS_INPUT_TOO_LARGE');
    const half = 'a'.repeat(MAX_LINE_BYTES - 1);
    for (const end of ['\n', '\r\n', '\r']) {
      const text = `${half}${end}${half}${end}`;
      expect((await readText(file('lines.txt', text))).length).toBe(text.length);
    }
  });

  it('waits for a pipe, however long nobody writes, until it is aborted', async () => {
    const pipe = join(folder, 'silent');
    execFileSync('mkfifo', [pipe]);
    const controller = new AbortController();
    const read = readText(pipe, controller.signal);
    setTimeout(() => controller.abort(), 50);
    await expect(read).rejects.toThrow(expect.objectContaining({ name: 'AbortError' }));
    // And while a writer is there that says nothing.
    const second = new AbortController();
    const started = readText(pipe, second.signal);
    const writer = createWriteStream(pipe);
    writer.on('error', () => {});
    writer.write('Call me', () => setTimeout(() => second.abort(), 50));
    await expect(started).rejects.toThrow(expect.objectContaining({ name: 'AbortError' }));
    writer.destroy();
  });

  it('reads a pipe whose writer comes late', async () => {
    const pipe = join(folder, 'late');
    execFileSync('mkfifo', [pipe]);
    setTimeout(() => createWriteStream(pipe).end('Call me Ishmael.'), 50);
    expect(await readText(pipe)).toBe('Call me Ishmael.');
  });

  it('refuses sockets', async () => {
    const path = join(folder, 'socket');
    const server = createServer().listen(path);
    await once(server, 'listening');
    try {
      expect(await refusal(path)).toBe('GPUOS_INPUT_UNREADABLE');
    } finally {
      server.close();
    }
  });

  it('holds the limits of a pipe, which has no size', async () => {
    const pipe = join(folder, 'pipe');
    execFileSync('mkfifo', [pipe]);
    const feed = (line: string, times: number) => {
      const stream = createWriteStream(pipe);
      stream.on('error', () => {});
      for (let i = 0; i < times; i++) stream.write(line);
      stream.end();
    };
    feed('Call me Ishmael.\n', 2);
    expect(await readText(pipe)).toBe('Call me Ishmael.\n'.repeat(2));
    const line = `${'a'.repeat(2 ** 20 - 1)}\n`;
    feed(line, MAX_FILE_BYTES / line.length + 2);
    expect(await refusal(pipe)).toBe('GPUOS_INPUT_TOO_LARGE');
  });
});

describe('fileSource', () => {
  it('gives the passages under their headings', async () => {
    expect(await fileSource(file('book.txt', 'CHAPTER 1. Loomings.\r\n\r\nCall me Ishmael. Some\r\nyears ago.\r\n'))).toEqual({
      title: 'book.txt',
      passages: [
        { text: 'Call me Ishmael.', section: 'CHAPTER 1. Loomings.' },
        { text: 'Some years ago.', section: 'CHAPTER 1. Loomings.' },
      ],
    });
  });
});

describe('bookSource', () => {
  it('is Moby Dick, from its first sentence to its last', () => {
    const { title, passages } = bookSource();
    expect(title).toBe('Moby Dick');
    expect(passages[0]).toEqual({ text: 'Call me Ishmael.', section: 'Chapter 1. Loomings' });
    expect(passages.at(-1)?.section).toMatch(/^Epilogue/);
    expect(passages.length).toBeGreaterThan(8000);
    expect(new Set(passages.map(({ section }) => section)).size).toBe(136);
    for (const { text } of passages) expect(text.length).toBeLessThanOrEqual(MAX_PASSAGE_LENGTH);
  });
});
