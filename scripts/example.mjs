/**
 * Runs the examples of README.md, so that what a reader copies works. An example is a block of JavaScript after
 * `<!-- example: NAME -->`, followed by a block of text: what it prints.
 *
 * usage: node scripts/example.mjs FOLDER [README]
 *   runs each example in FOLDER, where gpuos and its peers are installed; exits 1 if one fails or prints something else
 */
import { spawnSync } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

/**
 * The examples of a document. Throws for a mark without its two blocks.
 *
 * @typedef {{ name: string, code: string, output: string }} Example
 * @param {string} text
 * @returns {Example[]}
 */
export function examplesOf(text) {
  const marks = [...text.matchAll(/^<!-- example: ([\w-]+) -->$/gm)];
  return marks.map((mark) => {
    const rest = text.slice(mark.index + mark[0].length);
    const blocks = /^\n```(?:js|javascript)\n([\s\S]*?)^```\n[\s\S]*?^```text\n([\s\S]*?)^```$/m.exec(rest);
    if (!blocks || /<!-- example:/.test(blocks[0])) throw new Error(`the example ${mark[1]} lacks its code or its output`);
    return { name: mark[1], code: blocks[1], output: blocks[2] };
  });
}

/**
 * Runs one example in a folder; what is wrong with it, or undefined.
 *
 * @param {string} folder
 * @param {Example} example
 * @returns {string | undefined}
 */
export function runExample(folder, { name, code, output }) {
  const file = resolve(folder, `example-${name}.mjs`);
  writeFileSync(file, code);
  try {
    const result = spawnSync(process.execPath, [file], { cwd: folder, encoding: 'utf8', timeout: 60_000 });
    if (result.error) return `${name}: ${result.error.message}`;
    if (result.status !== 0) return `${name}: exit code ${result.status ?? result.signal}\n${result.stderr}`;
    if (result.stdout !== output) return `${name}: printed\n${result.stdout}instead of\n${output}`;
    return undefined;
  } finally {
    rmSync(file, { force: true });
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [folder, readme = new URL('../README.md', import.meta.url)] = process.argv.slice(2);
  const examples = examplesOf(readFileSync(readme, 'utf8'));
  const problems = examples.flatMap((example) => runExample(folder, example) ?? []);
  for (const problem of problems) console.error(problem);
  if (examples.length === 0) console.error('README.md has no example');
  if (problems.length > 0 || examples.length === 0) process.exitCode = 1;
  else console.log(`${examples.length} examples print what README.md says`);
}
