import { randomBytes } from 'node:crypto';
import { statfsSync } from 'node:fs';
import { GpuosError } from '../../../errors.ts';
import { type Address, koffi } from '../library.ts';
import { ERRNO, errno, libc } from './libc.ts';

const OPEN = { READ_WRITE: 2, CREATE: 0o100, EXCLUSIVE: 0o200 } as const;
const MODE = 0o600;
const PROT_READ_WRITE = 3;
const MAP = { SHARED: 1, PRIVATE: 2, FIXED: 0x10, ANONYMOUS: 0x20, NORESERVE: 0x4000 } as const;
/** `MAP_FAILED`, as the unsigned number that koffi makes of it. */
const FAILED = 2 ** 63;
const SEEK_END = 2;

const mib = (bytes: number): string => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

/**
 * Memory that processes share. All of it is reserved when it is made: a full /dev/shm is an error then, and not a
 * signal at the first write into a page that does not exist.
 *
 * A child that inherits the open file needs no name, so there is none unless asked for: what has no name is gone with the
 * last process that has it open, however that one ends.
 */
export class SharedSegment {
  /** In /dev/shm, with its slash; undefined if it has none. */
  readonly name: string | undefined;
  readonly bytes: number;
  readonly address: Address;
  /** Made once. Never given to another thread: it would get a copy. */
  readonly view: ArrayBuffer;
  #descriptor: number;
  #linked: boolean;

  private constructor(name: string | undefined, descriptor: number, bytes: number, linked: boolean) {
    this.name = name;
    this.bytes = bytes;
    this.#descriptor = descriptor;
    this.#linked = linked;
    const address = Number(libc().mmap(0, bytes, PROT_READ_WRITE, MAP.SHARED, descriptor, 0));
    if (address >= FAILED) {
      const number = errno();
      this.unlink();
      libc().close(descriptor);
      throw new GpuosError('GPUOS_OUT_OF_MEMORY', `Shared memory of ${mib(bytes)} cannot be mapped (errno ${number}).`);
    }
    this.address = address;
    this.view = koffi().view(address, bytes) as ArrayBuffer;
  }

  /**
   * New memory, all zero, for this user alone.
   * @param bytes are rounded up to whole pages
   * @param options.named whether others can `attach` to it, until `unlink`. Default false
   * @throws GPUOS_OUT_OF_MEMORY with the sizes if /dev/shm has no room, GPUOS_CUDA_UNAVAILABLE if there is none
   */
  static create(bytes: number, { named = false }: { readonly named?: boolean } = {}): SharedSegment {
    if (!Number.isSafeInteger(bytes) || bytes <= 0) throw new GpuosError('GPUOS_BAD_OPTION', `A shared segment of ${bytes} bytes.`);
    const page = libc().getpagesize();
    const size = Math.ceil(bytes / page) * page;
    const name = `/gpuos-${randomBytes(12).toString('hex')}`;
    const descriptor = libc().shm_open(name, OPEN.READ_WRITE | OPEN.CREATE | OPEN.EXCLUSIVE, MODE);
    if (descriptor < 0) throw unopened(name, errno());
    if (!named) libc().shm_unlink(name);
    let failure = libc().ftruncate(descriptor, size) === 0 ? 0 : errno();
    if (failure === 0) {
      do failure = libc().posix_fallocate(descriptor, 0, size);
      while (failure === ERRNO.EINTR);
    }
    if (failure !== 0) {
      if (named) libc().shm_unlink(name);
      libc().close(descriptor);
      throw new GpuosError('GPUOS_OUT_OF_MEMORY', `Shared memory of ${mib(size)} cannot be reserved (errno ${failure}): ${room()}.`);
    }
    return new SharedSegment(named ? name : undefined, descriptor, size, named);
  }

  /** Memory that another process made. @throws GPUOS_CUDA_UNAVAILABLE if it is gone, GPUOS_ABI_MISMATCH if it is smaller */
  static attach(name: string, bytes: number): SharedSegment {
    const descriptor = libc().shm_open(name, OPEN.READ_WRITE, 0);
    if (descriptor < 0) throw unopened(name, errno());
    return SharedSegment.#sized(name, descriptor, bytes);
  }

  /** Memory whose open file this process inherited. @throws GPUOS_ABI_MISMATCH if it is no file of that size */
  static inherit(descriptor: number, bytes: number): SharedSegment {
    return SharedSegment.#sized(undefined, descriptor, bytes);
  }

  static #sized(name: string | undefined, descriptor: number, bytes: number): SharedSegment {
    const size = Number(libc().lseek(descriptor, 0, SEEK_END));
    if (bytes > 0 && size >= bytes) return new SharedSegment(name, descriptor, bytes, name !== undefined);
    if (size >= 0) libc().close(descriptor);
    throw new GpuosError('GPUOS_ABI_MISMATCH', `The shared segment ${name ?? descriptor} has ${Math.max(0, size)} bytes, not ${bytes}.`);
  }

  /** The open file, for a child to inherit; -1 once it is closed. */
  get descriptor(): number {
    return this.#descriptor;
  }

  /** Gives up the name, for everybody. Who has it open keeps it. */
  unlink(): void {
    if (!this.#linked || this.name === undefined) return;
    this.#linked = false;
    libc().shm_unlink(this.name);
  }

  /**
   * Lets go of the memory. Views of it cannot be taken back, so their addresses stay valid: what is read there from here
   * on is zero, and what is written is seen by nobody.
   */
  close(): void {
    if (this.#descriptor < 0) return;
    this.unlink();
    libc().mmap(this.address, this.bytes, PROT_READ_WRITE, MAP.PRIVATE | MAP.FIXED | MAP.ANONYMOUS | MAP.NORESERVE, -1, 0);
    libc().close(this.#descriptor);
    this.#descriptor = -1;
  }
}

function unopened(name: string, number: number): GpuosError {
  const why =
    number === ERRNO.ENOENT
      ? 'it does not exist'
      : number === ERRNO.EACCES
        ? '/dev/shm cannot be written'
        : number === ERRNO.ENOSPC
          ? room()
          : `errno ${number}`;
  return new GpuosError('GPUOS_CUDA_UNAVAILABLE', `The shared segment ${name} cannot be opened: ${why}.`);
}

/** How much /dev/shm has, and how it gets more. */
function room(): string {
  try {
    const { bavail, blocks, bsize } = statfsSync('/dev/shm');
    return `/dev/shm has ${mib(bavail * bsize)} of ${mib(blocks * bsize)} free; enlarge it (\`docker run --shm-size=1g\`, or \`mount -o remount,size=1g /dev/shm\`)`;
  } catch {
    return '/dev/shm cannot be read; mount a tmpfs there';
  }
}
