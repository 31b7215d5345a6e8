/** Device code on the CPU: compiled by g++ with `cuda_emulation.h`, called through koffi. */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type * as Koffi from 'koffi';
import { cudaHeader } from '../../../src/abi/headers.ts';

const koffi = createRequire(import.meta.url)('koffi') as typeof Koffi;
const HERE = fileURLToPath(new URL('./', import.meta.url));
const DEVICE = fileURLToPath(new URL('../../../src/backends/cuda/device/', import.meta.url));

/** The compiler of this machine, and for `describe.skipIf` whether there is none: the reason stands in the test's name. */
export const GXX = ['g++', 'c++'].find((name) => spawnSync(name, ['--version']).status === 0);
export const NO_GXX = GXX === undefined;
export const reason = (name: string): string => (NO_GXX ? `${name} (skipped: no g++ for the emulation)` : name);

// A device joins products and sums; where this processor can too, the emulation does.
const fused = existsSync('/proc/cpuinfo') && /^flags\s*:.*\bfma\b/m.test(readFileSync('/proc/cpuinfo', 'utf8'));

/** How device code is compiled for this processor. */
export const EMULATION_FLAGS: readonly string[] = [
  ...['-std=gnu++17', '-O1', '-g0', '-fPIC', '-shared', '-fno-strict-aliasing', '-fno-gnu-unique', '-U_FORTIFY_SOURCE', '-w'],
  ...(fused ? ['-mfma', '-ffp-contract=fast'] : ['-ffp-contract=off']),
];

export interface Source {
  readonly name: string;
  readonly text: string;
}

export interface CallOptions {
  /** Threads of the block, a multiple of 32; 256 by default. */
  readonly threads?: number;
  /** Address of the operator's data. */
  readonly data?: bigint;
  /** In which order threads run between two barriers: 0 forward (the default), 1 reverse, else the seed of a shuffle. */
  readonly order?: number;
}

export interface Emulated {
  /** Runs one tile and returns the or of its threads' statuses. Throws where threads diverge or leave the scratch. */
  call(symbol: string, params: Uint8Array | BigUint64Array, tile: number, tiles: number, options?: CallOptions): number;
  /** Runs all tiles with one block, each thread going on to its next tile without a barrier, as a worker does. */
  callAll(symbol: string, params: Uint8Array | BigUint64Array, tiles: number, options?: CallOptions): number;
  free(): void;
}

function headersBelow(folder: string): string[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((name) => /\.(cuh|h)$/.test(name))
    .sort()
    .map((name) => join(folder, name));
}

function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/** The process that a file names; 0 where it is gone by now, or not written yet. */
function holderOf(file: string): number {
  try {
    return Number(readFileSync(file, 'utf8'));
  } catch {
    return 0;
  }
}

const LONGEST_MAKE_MS = 300_000;

/** Makes a file unless it is there. Of several processes that want it one makes it, and the others wait for that. */
function makeOnce(file: string, make: () => void): void {
  const claim = `${file}.claim`;
  const never = new Int32Array(new SharedArrayBuffer(4));
  for (const end = Date.now() + LONGEST_MAKE_MS; !existsSync(file); ) {
    try {
      writeFileSync(claim, String(process.pid), { flag: 'wx' });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
      const holder = holderOf(claim);
      // If two see that and both make it, the file is whole all the same.
      if ((holder > 0 && !alive(holder)) || Date.now() > end) rmSync(claim, { force: true });
      else Atomics.wait(never, 0, 0, 50);
      continue;
    }
    try {
      make();
    } finally {
      rmSync(claim, { force: true });
    }
  }
}

/**
 * The shared object of these sources: a text is the source alone; of a list, the first is it and may include the
 * others. The device's own folder can be included from, as can `gpuos_abi.h`. Kept under a hash of all that is in it; of
 * `objects`, compiled files that are linked with it, the sources have to be among them.
 */
export function compileShared(
  sources: string | readonly Source[],
  options: readonly string[] = [],
  objects: readonly string[] = [],
): string {
  const list = typeof sources === 'string' ? [{ name: 'source.cu', text: sources }] : sources;
  const flags = [...EMULATION_FLAGS, ...options];
  const hash = createHash('sha256').update(`${spawnSync(GXX!, ['--version']).stdout}\n${flags.join(' ')}\n${cudaHeader()}`);
  for (const file of [...headersBelow(HERE), ...headersBelow(DEVICE)]) hash.update(file).update(readFileSync(file));
  for (const { name, text } of list) hash.update(name).update(text);
  const cache = join(tmpdir(), 'gpuos-kernel-tests');
  const file = join(cache, `${hash.digest('hex').slice(0, 32)}.so`);
  mkdirSync(cache, { recursive: true });
  makeOnce(file, () => {
    const folder = mkdtempSync(join(cache, 'build-'));
    try {
      for (const { name, text } of [...list, { name: 'gpuos_abi.h', text: cudaHeader() }]) writeFileSync(join(folder, name), text);
      const made = join(folder, 'made.so');
      const includes = ['-include', join(HERE, 'cuda_emulation.h'), '-I', folder, '-I', HERE, '-I', DEVICE];
      const inputs = ['-x', 'c++', '-o', made, join(folder, list[0]!.name), '-x', 'none', ...objects];
      const { status, stderr } = spawnSync(GXX!, [...flags, ...includes, ...inputs], { encoding: 'utf8' });
      if (status !== 0) throw new Error(stderr);
      renameSync(made, file);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });
  return file;
}

export function compileEmulated(sources: string | readonly Source[], options: readonly string[] = []): Emulated {
  const library = koffi.load(compileShared(sources, options));
  const emulate = library.func('emulate_operator', 'uint32_t', [
    'void *',
    'const void *',
    'uint32_t',
    'uint32_t',
    'uint32_t',
    'uint64_t',
    'uint32_t',
    'uint32_t',
  ]);
  const message = library.func('emulation_message', 'str', []);
  const symbols = new Map<string, unknown>();
  const run = (symbol: string, params: Uint8Array | BigUint64Array, first: number, last: number, tiles: number, options: CallOptions) => {
    if (!symbols.has(symbol)) symbols.set(symbol, library.symbol(symbol));
    // A copy of its own is aligned.
    const bytes = Uint8Array.from(new Uint8Array(params.buffer, params.byteOffset, params.byteLength));
    const { threads = 256, data = 0n, order = 0 } = options;
    const status = emulate(symbols.get(symbol), bytes, first, last, tiles, data, threads, order) as number;
    if (status === 0xffffffff) throw new Error(`${symbol}: ${message()}`);
    return status;
  };
  return {
    call: (symbol, params, tile, tiles, given = {}) => run(symbol, params, tile, tile + 1, tiles, given),
    callAll: (symbol, params, tiles, given = {}) => run(symbol, params, 0, tiles, tiles, given),
    free: () => library.unload(),
  };
}

/** Memory as device code sees it: `address` is what a parameter block names, `bytes` is what lies there. */
export interface DeviceMemory {
  readonly address: bigint;
  readonly bytes: Uint8Array<ArrayBuffer>;
  free(): void;
}

export function deviceMemory(size: number): DeviceMemory {
  // On a multiple of 256, as the device's allocator has it.
  const room = koffi.alloc('uint8_t', size + 256);
  const start = koffi.address(room);
  const before = Number((256n - (start % 256n)) % 256n);
  return {
    address: start + BigInt(before),
    bytes: new Uint8Array(koffi.view(room, size + 256), before, size),
    free: () => koffi.free(room),
  };
}
