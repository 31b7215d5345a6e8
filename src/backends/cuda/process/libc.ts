/**
 * What the device process and its parent need of the C library: shared memory, sleeping on a word of it, and looking
 * at each other. Linux only, as everything here: elsewhere the libraries of CUDA are not found either.
 */
import { GpuosError } from '../../../errors.ts';
import { type Address, firstLine, koffi, type NativeFunction } from '../library.ts';

const SIGNATURES = {
  ftruncate: ['int', 'int', 'int64_t'],
  posix_fallocate: ['int', 'int', 'int64_t', 'int64_t'],
  lseek: ['int64_t', 'int', 'int64_t', 'int'],
  mmap: ['uint64_t', 'uint64_t', 'size_t', 'int', 'int', 'int', 'int64_t'],
  close: ['int', 'int'],
  getpagesize: ['int'],
  waitid: ['int', 'int', 'int', 'void *', 'int'],
  _exit: ['void', 'int'],
  syscall: ['int64_t', 'int64_t', 'uint64_t', 'int64_t', 'int64_t', 'void *', 'void *', 'int64_t'],
} as const;
/** In librt before glibc 2.34. */
const SHARED_MEMORY = { shm_open: ['int', 'str', 'int', 'unsigned int'], shm_unlink: ['int', 'str'] } as const;

export type Libc = { readonly [K in keyof typeof SIGNATURES | keyof typeof SHARED_MEMORY]: NativeFunction };

let loaded: Libc | undefined;

/** @throws GPUOS_CUDA_UNAVAILABLE where the C library is not that of Linux, GPUOS_PACKAGE_MISSING without koffi */
export function libc(): Libc {
  loaded ??= { ...bind(['libc.so.6', 'libc.so'], SIGNATURES), ...bind(['libc.so.6', 'librt.so.1', 'libc.so'], SHARED_MEMORY) };
  return loaded;
}

function bind<S extends Readonly<Record<string, readonly [result: string, ...types: string[]]>>>(paths: readonly string[], signatures: S) {
  const failures: string[] = [];
  for (const path of paths) {
    try {
      const library = koffi().load(path);
      return Object.fromEntries(
        Object.entries(signatures).map(([name, [result, ...types]]) => [name, library.func(name, result, types) as NativeFunction]),
      ) as { readonly [K in keyof S]: NativeFunction };
    } catch (error) {
      if (error instanceof GpuosError) throw error;
      failures.push(`${path}: ${firstLine(error)}`);
    }
  }
  throw new GpuosError('GPUOS_CUDA_UNAVAILABLE', `The C library of Linux cannot be loaded: ${failures.join('; ')}.`);
}

/** Settings of glibc's allocator, and variables by which a user may have made them. */
const MALLOC = { TRIM_THRESHOLD: -1, MMAP_THRESHOLD: -3 } as const;
const MALLOC_VARIABLES = ['MALLOC_TRIM_THRESHOLD_', 'MALLOC_MMAP_THRESHOLD_', 'GLIBC_TUNABLES'] as const;
/** Memory that is free and kept, and from which size on each piece comes from the system by itself (the most that glibc takes). */
const KEPT_BYTES = 128 << 20;
const OWN_BYTES = 32 << 20;

/**
 * Has this process keep memory that it has freed. Every value that is read from a device is new memory; where what was
 * freed goes back to the system at once, each of its pages is a fault when it is written the next time: 64 KiB took 35 us
 * to read, 30 of them for that. Left alone where the user has set the allocator up, and where it is not glibc's.
 */
export function keepFreedMemory(): void {
  if (MALLOC_VARIABLES.some((name) => process.env[name] !== undefined)) return;
  let mallopt: NativeFunction;
  try {
    ({ mallopt } = bind(['libc.so.6'], { mallopt: ['int', 'int', 'int'] }));
  } catch {
    return;
  }
  mallopt(MALLOC.TRIM_THRESHOLD, KEPT_BYTES);
  mallopt(MALLOC.MMAP_THRESHOLD, OWN_BYTES);
}

/** The C library's number of the last error of this thread. */
export function errno(): number {
  return koffi().errno();
}

export const ERRNO = { ENOENT: 2, EINTR: 4, EACCES: 13, EEXIST: 17, ENOSPC: 28 } as const;

/** Ends this process at once: no handlers, no libraries' destructors, which can wait for a device that is gone. */
export function exitNow(code: number): never {
  libc()._exit(code);
  throw new GpuosError('GPUOS_INTERNAL', '_exit returned.');
}

/** The number of the `futex` system call. */
const FUTEX = { x64: 202, arm64: 98 }[process.arch as string];
const [FUTEX_WAIT, FUTEX_WAKE] = [0, 1];
const EVERYBODY = 0x7fffffff;
/** Made at the first use: this module is also loaded where there is no shared memory. */
let pause: Int32Array | undefined;

/**
 * Sleeps until somebody, in whatever process, wakes the word, unless it has another value than `expected` by now.
 * May return early. Where there is no such call it sleeps for a moment.
 */
export function sleepOn(address: Address, expected: number, ms: number): void {
  if (FUTEX === undefined) {
    pause ??= new Int32Array(new SharedArrayBuffer(4));
    Atomics.wait(pause, 0, 0, Math.min(ms, 0.2));
    return;
  }
  const nanoseconds = Math.round(ms * 1e6);
  const time = BigInt64Array.of(BigInt(Math.floor(nanoseconds / 1e9)), BigInt(nanoseconds % 1e9));
  libc().syscall(FUTEX, address, FUTEX_WAIT, expected | 0, time, null, 0);
}

/** Wakes all who sleep on the word; it has to be changed before. */
export function wake(address: Address): void {
  if (FUTEX !== undefined) libc().syscall(FUTEX, address, FUTEX_WAKE, EVERYBODY, null, null, 0);
}

/** What has become of a child of this process: `code` or `signal` where it has ended. */
export type ChildState =
  | { readonly state: 'running' | 'stopped' }
  | { readonly state: 'ended'; readonly code?: number; readonly signal?: number };

const P_PID = 1;
const WNOHANG_STOPPED_EXITED_NOWAIT = 1 | 2 | 4 | 0x0100_0000;
const CODE = { EXITED: 1, STOPPED: 5, TRAPPED: 4 } as const;

/**
 * Looks at a child without taking it from those that wait for it, Node.js among them; works while the event loop is
 * blocked, and for a child that is dead and not yet waited for (of which `kill(pid, 0)` says that it lives).
 */
export function childState(pid: number): ChildState {
  // siginfo_t: si_code at 8, si_pid at 16, si_status at 24; all zero if there is nothing to tell.
  const information = new Int32Array(32);
  for (;;) {
    if (libc().waitid(P_PID, pid, information, WNOHANG_STOPPED_EXITED_NOWAIT) === 0) break;
    // Somebody has waited for it: it is gone.
    if (errno() !== ERRNO.EINTR) return { state: 'ended' };
  }
  const [code, reported, status] = [information[2]!, information[4]!, information[6]!];
  if (reported !== pid) return { state: 'running' };
  if (code === CODE.STOPPED || code === CODE.TRAPPED) return { state: 'stopped' };
  return code === CODE.EXITED ? { state: 'ended', code: status } : { state: 'ended', signal: status };
}
