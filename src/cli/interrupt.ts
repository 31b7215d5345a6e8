/**
 * Ctrl-C and its kin. The first signal asks the work to stop at its next safe point, where it keeps what it has; a
 * second one ends the process at once. The exit code is the shell's: 128 and the signal's number.
 */
import { constants } from 'node:os';
import { isClosedPipe } from './output.ts';

export interface Interrupt {
  /** The exit code once a signal has come, else undefined. */
  readonly exitCode: number | undefined;
  /** Settles when a signal comes. */
  readonly signal: AbortSignal;
  /** Ends the listening: a signal then does what it does by default. */
  release(): void;
}

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

export function listenForInterrupt(): Interrupt {
  const controller = new AbortController();
  let exitCode: number | undefined;
  const onSignal = (signal: NodeJS.Signals) => {
    const code = 128 + constants.signals[signal];
    if (exitCode !== undefined) process.exit(code);
    exitCode = code;
    controller.abort();
  };
  // Output that nobody gets ends the work as well: without an error where the reader has gone away (`gpuos demo | head -1`),
  // and with that of print() otherwise.
  const onStdoutError = (error: NodeJS.ErrnoException) => {
    if (isClosedPipe(error)) exitCode ??= 128 + constants.signals.SIGPIPE;
    controller.abort();
  };
  for (const signal of SIGNALS) process.on(signal, onSignal);
  process.stdout.on('error', onStdoutError);
  return {
    get exitCode() {
      return exitCode;
    },
    signal: controller.signal,
    release() {
      for (const signal of SIGNALS) process.off(signal, onSignal);
      process.stdout.off('error', onStdoutError);
    },
  };
}
