/**
 * Holds the documents to the project:
 *  - the tables of `docs/errors.md` and `docs/flags.md` are those of `src/errors.ts` and `src/flags.ts`;
 *  - every relative link in README.md, CHANGELOG.md and `docs/` leads to a file, and its anchor to a heading;
 *  - a number after `<!-- figure: NAME|DEVICE -->` (or `NAME|DEVICE|baseline`) is that of the newest such row in
 *    `bench/results/*.jsonl`, to the digits shown; a row that is quoted names its device, commit and date.
 *
 * usage: node scripts/docs.mjs [--write]
 *   --write  brings tables and figures up to date instead of complaining
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import ts from 'typescript';
import { filesBelow } from './build.mjs';

/** Imports a TypeScript module of `src/` that imports nothing but its neighbours, without a build. */
async function importLeaf(root, name, others) {
  const out = join(root, '.gpuos/docs');
  mkdirSync(out, { recursive: true });
  for (const file of [name, ...others]) {
    const { outputText } = ts.transpileModule(readFileSync(join(root, 'src', `${file}.ts`), 'utf8'), {
      compilerOptions: { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext },
    });
    writeFileSync(join(out, `${file}.mjs`), outputText.replace(/from '(\.\/[\w-]+)\.ts'/g, "from '$1.mjs'"));
  }
  return await import(`${pathToFileURL(join(out, `${name}.mjs`)).href}?${Date.now()}`);
}

/** The rows that each table of the documents has to have. */
export async function tables(root) {
  const { ERRORS } = await importLeaf(root, 'errors', []);
  const { FLAGS, flagRange } = await importLeaf(root, 'flags', ['errors', 'spelling']);
  return {
    'docs/errors.md': Object.entries(ERRORS).map(([code, remedy]) => `| \`${code}\` | ${remedy} |`),
    'docs/flags.md': Object.entries(FLAGS).map(
      ([name, flag]) => `| \`${name}\` | ${flagRange(flag)} | ${flag.default === undefined ? '' : `\`${flag.default}\``} | ${flag.about} |`,
    ),
  };
}

const isRow = (line) => line.startsWith('| `GPUOS_');

/** The text with its table rows replaced; the table is the one run of lines that start with a code or flag. */
export function replaceRows(text, rows) {
  const lines = text.split('\n');
  const first = lines.findIndex(isRow);
  if (first < 0) {
    const rule = lines.findIndex((line) => /^\| *-/.test(line));
    lines.splice(rule + 1, 0, ...rows);
  } else {
    let last = first;
    while (isRow(lines[last] ?? '')) last++;
    lines.splice(first, last - first, ...rows);
  }
  return lines.join('\n');
}

/** The anchor that a heading gets. */
function slug(heading) {
  return heading
    .trim()
    .toLowerCase()
    .replace(/<[^>]*>|[`*]/g, '')
    .replace(/[^\p{L}\p{N}\s_-]/gu, '')
    .replace(/\s/g, '-');
}

function withoutCode(text) {
  // Blanked, not removed: line numbers stay.
  return text
    .replace(/^(```|~~~)[\s\S]*?^\1/gm, (block) => block.replace(/[^\n]/g, ' '))
    .replace(/`[^`\n]*`/g, (code) => ' '.repeat(code.length));
}

/** Broken relative links of one document. */
export function brokenLinks(root, file) {
  const text = withoutCode(readFileSync(join(root, file), 'utf8'));
  const found = [];
  for (const match of text.matchAll(/\]\(([^)\s]+)(?:\s+"[^"]*")?\)|(?:src|srcset|href)="([^"]+)"/g)) {
    const target = match[1] ?? match[2];
    if (/^[a-z][a-z+.-]*:/i.test(target)) continue;
    const [path, anchor] = target.split('#');
    const line = text.slice(0, match.index).split('\n').length;
    const linked = path === '' ? join(root, file) : resolve(dirname(join(root, file)), decodeURIComponent(path));
    if (relative(root, linked).startsWith('..')) found.push({ file, line, message: `${target} leaves the project` });
    else if (!existsSync(linked)) found.push({ file, line, message: `${target} does not exist` });
    else if (anchor && linked.endsWith('.md') && statSync(linked).isFile()) {
      const headings = withoutFences(readFileSync(linked, 'utf8')).matchAll(/^#+ +(.+)$/gm);
      if (![...headings].some(([, heading]) => slug(heading) === anchor)) found.push({ file, line, message: `${target}: no such heading` });
    }
  }
  return found;
}

function withoutFences(text) {
  return text.replace(/^(```|~~~)[\s\S]*?^\1/gm, '');
}

/** The newest row for each name and device in `bench/results/`. */
export function benchRows(root) {
  const rows = new Map();
  const folder = join(root, 'bench/results');
  if (!existsSync(folder)) return rows;
  for (const file of readdirSync(folder)
    .filter((name) => name.endsWith('.jsonl'))
    .sort()) {
    for (const line of readFileSync(join(folder, file), 'utf8').split('\n')) {
      if (line.trim() === '') continue;
      const row = JSON.parse(line);
      const key = `${row.name}|${row.device}`;
      const earlier = rows.get(key);
      if (!earlier || String(row.date ?? '') >= String(earlier.date ?? '')) rows.set(key, row);
    }
  }
  return rows;
}

const FIGURE = /<!-- figure: ([^|\s]+)\|([^|\s]+?)(?:\|(\w+))? -->(\s*)([-+]?[\d,]*\.?\d+)?/g;

/**
 * Checks the figures of a text; with `write`, gives it with the figures put in.
 *
 * @param {string} file
 * @param {string} text
 * @param {Map<string, Record<string, unknown>>} rows
 * @param {boolean} write
 */
export function checkFigures(file, text, rows, write) {
  const found = [];
  const updated = text.replace(FIGURE, (whole, name, device, field, space, number, offset) => {
    const line = text.slice(0, offset).split('\n').length;
    const complain = (message) => {
      found.push({ file, line, message });
      return whole;
    };
    const row = rows.get(`${name}|${device}`);
    if (!row) return complain(`no row ${name}|${device} in bench/results/`);
    for (const needed of ['device', 'commit', 'date']) if (!row[needed]) return complain(`the row ${name}|${device} has no ${needed}`);
    const value = row[field ?? 'value'];
    if (!Number.isFinite(value)) return complain(`the row ${name}|${device} has no ${field}`);
    const digits = number === undefined ? (Math.abs(value) < 10 ? 1 : 0) : (number.split('.')[1] ?? '').length;
    const shown = value.toFixed(digits);
    if (number !== undefined && number.replaceAll(',', '') === shown) return whole;
    if (!write) return complain(`${name}|${device} is ${shown}, not ${number ?? 'given'}`);
    return `<!-- figure: ${name}|${device}${field ? `|${field}` : ''} -->${space}${shown}`;
  });
  return { found, updated };
}

/** Everything that is wrong with the documents; with `write`, what cannot be put right by itself. */
export async function checkDocs(root, { write = false } = {}) {
  const found = [];
  for (const [file, rows] of Object.entries(await tables(root))) {
    const text = readFileSync(join(root, file), 'utf8');
    const updated = replaceRows(text, rows);
    if (updated === text) continue;
    if (write) writeFileSync(join(root, file), updated);
    else found.push({ file, line: 1, message: 'the table is not that of the source; run `node scripts/docs.mjs --write`' });
  }
  const documents = ['README.md', 'CHANGELOG.md', ...filesBelow(join(root, 'docs')).map((file) => `docs/${file}`)];
  const rows = benchRows(root);
  for (const file of documents) {
    if (!file.endsWith('.md') || !existsSync(join(root, file))) continue;
    found.push(...brokenLinks(root, file));
    const text = readFileSync(join(root, file), 'utf8');
    const figures = checkFigures(file, text, rows, write);
    found.push(...figures.found);
    if (write && figures.updated !== text) writeFileSync(join(root, file), figures.updated);
  }
  return found;
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const root = join(dirname(fileURLToPath(import.meta.url)), '..');
  const found = await checkDocs(root, { write: process.argv.includes('--write') });
  for (const { file, line, message } of found) console.error(`${file}:${line}: ${message}`);
  if (found.length > 0) process.exitCode = 1;
  else console.log('docs: tables, links and figures agree');
}
