/**
 * What the commands print. Output that cannot be written is an error like any other: a program that reads it must not
 * take half of it for the whole. A reader that has gone away (`gpuos info | head -1`) is none: it has what it wanted.
 */
import { fstatSync, writeSync } from 'node:fs';
import { isatty } from 'node:tty';
import { GpuosError } from '../errors.ts';

const STDOUT = 1;

let failure: GpuosError | undefined;

function unwritable(cause: Error): GpuosError {
  return new GpuosError('GPUOS_OUTPUT_UNWRITABLE', `stdout cannot be written: ${cause.message}.`, { cause });
}

/** Whether the reader has gone away, as `head` does. */
export function isClosedPipe(error: NodeJS.ErrnoException): boolean {
  return error.code === 'EPIPE' || error.code === 'ECONNRESET';
}

/** Pipes, sockets and terminals are written by their stream, in their own time. */
function isStream(): boolean {
  const facts = fstatSync(STDOUT);
  return facts.isFIFO() || facts.isSocket() || isatty(STDOUT);
}

/** All of it, or an error: the stream that Node.js has for files does not look at how much was written. */
function writeToFile(text: string): void {
  const bytes = Buffer.from(text);
  for (let at = 0; at < bytes.length; ) at += writeSync(STDOUT, bytes, at);
}

/** Has to be called before anything is printed. */
export function watchOutput(): void {
  process.stdout.on('error', (error) => {
    if (!isClosedPipe(error)) failure ??= unwritable(error);
  });
  // There is nowhere left to say it.
  process.stderr.on('error', () => {});
}

/** Prints on stdout. Throws GPUOS_OUTPUT_UNWRITABLE, for what was printed before as well. */
export function print(text: string): void {
  if (failure === undefined && isStream()) {
    process.stdout.write(text);
    return;
  }
  try {
    if (failure === undefined) writeToFile(text);
  } catch (error) {
    failure = unwritable(error as Error);
  }
  if (failure !== undefined) throw failure;
}

/** Why stdout could not be written, once it could not. */
export function outputFailure(): GpuosError | undefined {
  return failure;
}
