/** Facts about this installation. */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The package's root: two folders above this file, in `src/` as in `dist/`. */
export const PACKAGE_ROOT = join(dirname(fileURLToPath(import.meta.url)), '../..');

export function packageVersion(): string {
  return (JSON.parse(readFileSync(join(PACKAGE_ROOT, 'package.json'), 'utf8')) as { version: string }).version;
}

/** The commit that is checked out, with `+` after it when files differ from it; the version where there is no repository. */
export function commitName(): string {
  if (!existsSync(join(PACKAGE_ROOT, '.git'))) return `v${packageVersion()}`;
  const git = (...args: string[]) =>
    execFileSync('git', args, { cwd: PACKAGE_ROOT, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
  try {
    const dirty = git('status', '--porcelain', '--untracked-files=no', '--', 'src', 'package.json', 'scripts').trim() !== '';
    return git('rev-parse', '--short=12', 'HEAD').trim() + (dirty ? '+' : '');
  } catch {
    return `v${packageVersion()}`;
  }
}
