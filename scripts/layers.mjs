/**
 * Holds the imports of `src/` to the layers of the architecture: a folder imports only what its row allows.
 * Prints each violation as `file:line: message` and exits 1 if there is any.
 */
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, posix } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import ts from 'typescript';
import { filesBelow } from './build.mjs';

/** Leaves: they import nothing but each other, downwards in this order, and everything may import them. */
const LEAVES = ['flags.ts', 'errors.ts', 'spelling.ts'];

/** What each layer may import, besides itself and the leaves. Files at the top of `src/` are layers of their own. */
export const LAYERS = {
  cli: ['dashboard', 'index.ts', 'integrations', 'realtime', 'tensor', 'runtime', 'backends', 'observe', 'security', 'ops', 'abi'],
  dashboard: ['index.ts', 'integrations', 'realtime', 'tensor', 'runtime', 'backends', 'observe', 'security', 'ops', 'abi'],
  // The public entry gathers what the package exports.
  'index.ts': ['realtime', 'tensor', 'runtime', 'backends', 'observe', 'security', 'ops', 'abi'],
  integrations: ['tensor', 'runtime', 'ops'],
  realtime: ['runtime', 'abi'],
  tensor: ['runtime', 'ops'],
  runtime: ['backends', 'ops', 'abi', 'observe', 'security'],
  backends: ['ops', 'abi'],
  observe: ['abi'],
  security: ['abi'],
  ops: ['abi'],
  abi: [],
};

/** Packages from outside, and the layers that may import them; `node:` modules are free. */
export const PACKAGES = {
  commander: ['cli'],
  '@tensorflow/tfjs-core': ['integrations', 'cli'],
  '@tensorflow/tfjs-backend-cpu': ['integrations', 'cli'],
  '@tensorflow/tfjs-backend-wasm': ['cli'],
  '@tensorflow/tfjs-converter': ['cli'],
  koffi: ['backends'],
};

/** All layers below each, through any number of steps: what its tests may import. */
function below(layer) {
  const seen = new Set();
  const visit = (name) => {
    for (const next of LAYERS[name] ?? []) {
      if (seen.has(next)) continue;
      seen.add(next);
      visit(next);
    }
  };
  visit(layer);
  return seen;
}

function layerOf(path) {
  const slash = path.indexOf('/');
  return slash < 0 ? path : path.slice(0, slash);
}

/** Devices are siblings: none knows another, `backends/index.ts` alone chooses. What they share is beside them. */
function deviceOf(path) {
  const folder = /^backends\/([^/]+)\//.exec(path)?.[1];
  return folder === 'lowering' ? undefined : folder;
}

function packageName(specifier) {
  return specifier
    .split('/')
    .slice(0, specifier.startsWith('@') ? 2 : 1)
    .join('/');
}

/** Why `from` (a path in src/) may not import `specifier`; undefined if it may. `exists` tells whether a path in src/ is a file. */
export function violation(from, specifier, exists) {
  const layer = layerOf(from);
  const test = from.endsWith('.test.ts');
  const own = layer.replace(/\.test\.ts$/, '.ts');
  const leaf = LEAVES.indexOf(own);
  if (leaf < 0 && !Object.hasOwn(LAYERS, own)) return `${own} is in no layer; add it to scripts/layers.mjs and docs/architecture.md`;
  if (specifier.startsWith('node:')) return undefined;
  if (!specifier.startsWith('.')) {
    const name = packageName(specifier);
    if (test || PACKAGES[name]?.includes(own)) return undefined;
    return `${own} may not import the package ${name}`;
  }
  const target = posix.normalize(posix.join(posix.dirname(from), specifier));
  const device = from.startsWith('backends/wasm/device/');
  if (target.startsWith('../')) {
    if (test && /^\.\.\/(test|scripts|bench)\//.test(target)) return undefined;
    return `${specifier} leaves src/`;
  }
  // AssemblyScript resolves names without an ending.
  const file = device && !target.endsWith('.ts') ? [`${target}.ts`, `${target}/index.ts`].find(exists) : target;
  if (file === undefined) return `${specifier} does not exist`;
  if (!device && !/\.(ts|json)$/.test(file)) return `${specifier} has to end in .ts`;
  if (!exists(file)) return `${specifier} does not exist`;
  if (!test && file.endsWith('.test.ts')) return `${specifier} is a test`;
  const to = layerOf(file);
  const toLeaf = LEAVES.indexOf(to);
  if (leaf >= 0) return test || toLeaf > leaf ? undefined : `${own} is a leaf and may not import ${to}`;
  if (toLeaf >= 0) return undefined;
  if (to === own) {
    const [mine, other] = [deviceOf(from), deviceOf(file)];
    if (!test && mine && other && mine !== other) return `the device ${mine} may not import the device ${other}`;
    return undefined;
  }
  if (LAYERS[own].includes(to) || (test && below(own).has(to))) return undefined;
  return `${own} may not import ${to}`;
}

/** All violations below a `src` folder: `{ file, line, message }`. */
export function checkLayers(src) {
  const files = filesBelow(src).filter((file) => file.endsWith('.ts') && !file.endsWith('.d.ts'));
  const known = new Set(filesBelow(src));
  const found = [];
  for (const file of files) {
    const text = readFileSync(join(src, file), 'utf8');
    for (const { fileName, pos } of ts.preProcessFile(text, true, true).importedFiles) {
      const message = violation(file, fileName, (path) => known.has(path) || /abi\.generated\.ts$/.test(path));
      if (message) found.push({ file, line: text.slice(0, pos).split('\n').length, message });
    }
  }
  return found;
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const src = process.argv[2] ?? join(dirname(fileURLToPath(import.meta.url)), '../src');
  if (!existsSync(src)) {
    console.error(`layers: ${src} does not exist`);
    process.exit(1);
  }
  const found = checkLayers(src);
  for (const { file, line, message } of found) console.error(`src/${file}:${line}: ${message}`);
  if (found.length > 0) process.exitCode = 1;
  else console.log('layers: every import goes down');
}
