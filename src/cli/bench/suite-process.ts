/** The child process that runs one suite: rows go to the parent, whatever else is printed goes to stderr. */
import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { BenchRow, BenchSuite } from './suite.ts';

export type SuiteMessage =
  | { readonly kind: 'row'; readonly row: BenchRow }
  | { readonly kind: 'done' }
  | { readonly kind: 'failed'; readonly message: string };

const name = process.argv[2] as string;
const send = (message: SuiteMessage) => new Promise<void>((resolve) => process.send?.(message, undefined, undefined, () => resolve()));

process.on('disconnect', () => process.exit(1));
try {
  const suite = (await import(new URL(`./${name}${extname(fileURLToPath(import.meta.url))}`, import.meta.url).href)) as BenchSuite;
  await suite.run((row) => void send({ kind: 'row', row }));
  await send({ kind: 'done' });
  process.exit(0);
} catch (error) {
  await send({ kind: 'failed', message: error instanceof Error ? error.message : String(error) });
  process.exit(1);
}
