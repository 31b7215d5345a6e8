/**
 * Builds `dist/` from `src/`: TypeScript, then the WebAssembly device module.
 *
 * The compiler writes into a folder of its own; only files whose contents changed are then renamed into `dist/`, and
 * files whose source is gone are removed. So a program that reads `dist/` while it is being built sees each file whole,
 * and an unchanged build writes nothing. A lock keeps two builds apart.
 *
 * usage: node scripts/build.mjs [--keep-going]
 *   --keep-going  write the outputs in spite of type errors (the exit code stays 1); for work in progress
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, relative, sep } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const require = createRequire(import.meta.url);

/** All files below a folder, as sorted paths relative to it; none if it does not exist. */
export function filesBelow(folder) {
  if (!existsSync(folder)) return [];
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) =>
      relative(folder, join(entry.parentPath ?? entry.path, entry.name))
        .split(sep)
        .join('/'),
    )
    .sort();
}

/** Writes a file whole or not at all, and only if its contents change. Returns whether it wrote. */
export function writeWhole(file, contents) {
  const bytes = Buffer.from(contents);
  if (existsSync(file) && readFileSync(file).equals(bytes)) return false;
  mkdirSync(dirname(file), { recursive: true });
  const temporary = `${file}.${process.pid}.tmp`;
  writeFileSync(temporary, bytes);
  renameSync(temporary, file);
  return true;
}

function alive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM';
  }
}

/**
 * Runs `action` while holding the lock file; waits for another build, and takes over the lock of one that died.
 * The lock is a file that is created exclusively and holds the builder's process id.
 */
export async function withLock(file, action, { timeoutMs = 300_000 } = {}) {
  mkdirSync(dirname(file), { recursive: true });
  const started = Date.now();
  let said = false;
  for (;;) {
    try {
      writeFileSync(file, String(process.pid), { flag: 'wx' });
      break;
    } catch (error) {
      if (error.code !== 'EEXIST') throw error;
    }
    let holder = Number.NaN;
    try {
      holder = Number(readFileSync(file, 'utf8'));
    } catch {
      continue; // released in between
    }
    if (holder > 0 && !alive(holder)) {
      // Rename before removal: of two that see the same dead holder, only one takes its lock away.
      try {
        renameSync(file, `${file}.${process.pid}`);
        rmSync(`${file}.${process.pid}`);
      } catch {
        // the other one was first
      }
      continue;
    }
    if (Date.now() - started > timeoutMs) throw new Error(`another build (process ${holder}) has held ${file} for ${timeoutMs / 1000} s`);
    if (!said) console.error(`build: waiting for the build of process ${holder}`);
    said = true;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  try {
    return await action();
  } finally {
    rmSync(file, { force: true });
  }
}

/** The files that the compiler makes of a source file. */
function outputsOf(source) {
  return /\.ts$/.test(source) && !/\.d\.ts$/.test(source) ? [source.replace(/\.ts$/, '.js'), source.replace(/\.ts$/, '.d.ts')] : [];
}

function expectedOutputs(root) {
  return filesBelow(join(root, 'src'))
    .filter((file) => !file.endsWith('.test.ts') && !file.startsWith('backends/wasm/device/'))
    .flatMap(outputsOf);
}

function compileTypeScript(root, keepGoing) {
  const work = join(root, '.gpuos/build');
  const out = join(work, 'out');
  const expected = expectedOutputs(root);
  const compile = () =>
    spawnSync(process.execPath, [require.resolve('typescript/bin/tsc'), '-p', join(root, 'tsconfig.build.json'), '--pretty', 'false'], {
      cwd: root,
      stdio: ['ignore', 'pipe', 'inherit'],
      encoding: 'utf8',
    });
  let result = compile();
  if (expected.some((file) => !existsSync(join(out, file)))) {
    // The incremental state claims outputs that are not there: start over.
    rmSync(work, { recursive: true, force: true });
    result = compile();
  }
  if (result.error) throw result.error;
  if (result.status !== 0) {
    console.error(result.stdout.trim());
    if (!keepGoing) throw new Error('the TypeScript sources have errors; dist/ is left as it was');
  }
  const dist = join(root, 'dist');
  let written = 0;
  for (const file of expected) {
    if (existsSync(join(out, file)) && writeWhole(join(dist, file), readFileSync(join(out, file)))) written++;
  }
  // CUDA sources are compiled where the device is; the bench's other side is in Python.
  const sources = filesBelow(join(root, 'src')).filter((file) => /\.(cuh?|py)$/.test(file));
  for (const file of sources) if (writeWhole(join(dist, file), readFileSync(join(root, 'src', file)))) written++;
  // npm does this where it installs the package; here `npx gpuos` runs the file as it is.
  for (const file of Object.values(JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')).bin ?? {})) {
    if (existsSync(join(root, file))) chmodSync(join(root, file), 0o755);
  }
  const wanted = new Set([...expected, ...sources]);
  let removed = 0;
  for (const file of filesBelow(dist)) {
    if (wanted.has(file) || /\.(wasm|hash)$/.test(file)) continue;
    rmSync(join(dist, file));
    removed++;
  }
  return { written, removed, failed: result.status !== 0 };
}

/** Constants that host and device share, printed by the host's own definition of them. */
function generateConstants(root) {
  const printer = join(root, 'dist/abi/wasm-constants.js');
  const target = join(root, 'src/backends/wasm/device/abi.generated.ts');
  if (!existsSync(printer) || !existsSync(dirname(target))) return false;
  const result = spawnSync(process.execPath, [printer], { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] });
  if (result.status !== 0 || result.stdout.trim() === '') throw new Error('dist/abi/wasm-constants.js printed no constants');
  return writeWhole(target, result.stdout);
}

const ASC_FLAGS = [
  ...['--runtime', 'stub', '--importMemory', '--sharedMemory', '--initialMemory', '1', '--maximumMemory', '65536'],
  // The device keeps nothing in static memory: the host lays the shared memory out, and hands addresses in.
  ...['--importTable', '--enable', 'threads', '--enable', 'simd', '--enable', 'bulk-memory', '-O3', '--noAssert', '--noColors'],
];

const DEVICE_MODULES = [
  { name: 'device', flags: ['--use', 'FAULT_POINTS=0'] },
  // The same sources with the places where a test may kill a worker; not in the package.
  { name: 'device.fault', flags: ['--use', 'FAULT_POINTS=1'] },
];

async function compileDevice(root) {
  const sources = join(root, 'src/backends/wasm/device');
  const entry = join(sources, 'index.ts');
  if (!existsSync(entry)) return [];
  const version = JSON.parse(readFileSync(new URL('../package.json', import.meta.resolve('assemblyscript/asc')), 'utf8')).version;
  const hash = createHash('sha256').update(version);
  for (const file of filesBelow(sources)) {
    if (file.endsWith('.test.ts')) continue;
    hash.update(`\0${file}\0`).update(readFileSync(join(sources, file)));
  }
  const sourceHash = hash.digest('hex');
  const built = [];
  let asc;
  for (const { name, flags } of DEVICE_MODULES) {
    const all = [...ASC_FLAGS, ...flags];
    const key = createHash('sha256')
      .update(`${sourceHash}\0${all.join(' ')}`)
      .digest('hex');
    const target = join(root, `dist/backends/wasm/${name}.wasm`);
    const note = join(root, `dist/backends/wasm/${name}.hash`);
    const wasm = existsSync(target) ? readFileSync(target) : undefined;
    // The note binds the sources to the module itself, so that a damaged module is compiled again.
    const state = (bytes) => `${key} ${createHash('sha256').update(bytes).digest('hex')}\n`;
    if (wasm && existsSync(note) && readFileSync(note, 'utf8') === state(wasm)) continue;
    asc ??= (await import('assemblyscript/asc')).default;
    const temporary = `.gpuos/build/${name}.wasm`;
    const args = [relative(root, entry), '--baseDir', root, '--outFile', temporary, ...all];
    const result = await asc.main(args, { stdout: process.stderr, stderr: process.stderr });
    if (result.error) throw new Error(`the device module ${name} does not compile: ${result.error.message}`);
    const bytes = readFileSync(join(root, temporary));
    if (!WebAssembly.validate(bytes)) throw new Error(`the device module ${name} is not valid WebAssembly`);
    writeWhole(target, bytes);
    writeWhole(note, state(bytes));
    built.push(`${name}.wasm (${(bytes.length / 1024).toFixed(1)} KiB)`);
  }
  return built;
}

/** Builds everything; throws on any failure. */
export async function build(root, { keepGoing = false } = {}) {
  return await withLock(join(root, '.gpuos/build.lock'), async () => {
    const typescript = compileTypeScript(root, keepGoing);
    generateConstants(root);
    const device = await compileDevice(root);
    return { ...typescript, device };
  });
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const root = join(dirname(fileURLToPath(import.meta.url)), '..');
  const started = performance.now();
  try {
    const { written, removed, device, failed } = await build(root, { keepGoing: process.argv.includes('--keep-going') });
    const seconds = ((performance.now() - started) / 1000).toFixed(1);
    console.error(`build: ${[`${written} written`, `${removed} removed`, ...device].join(', ')}, ${seconds} s`);
    process.exitCode = failed ? 1 : 0;
  } catch (error) {
    console.error(`build: ${error.message}`);
    process.exitCode = 1;
  }
}
