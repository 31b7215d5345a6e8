import { closeSync, existsSync, fstatSync, openSync, readdirSync, statfsSync, statSync } from 'node:fs';
import { afterEach, describe, expect, it } from 'vitest';
import { SharedSegment } from '../../src/backends/cuda/process/segment.ts';

/** Shared memory as Linux has it. */
const NONE = !existsSync('/dev/shm');
const fileOf = (segment: SharedSegment): string => `/dev/shm${segment.name}`;
const made: SharedSegment[] = [];
const keep = (segment: SharedSegment): SharedSegment => {
  made.push(segment);
  return segment;
};
afterEach(() => {
  for (const segment of made.splice(0)) segment.close();
});

describe.skipIf(NONE)(NONE ? 'SharedSegment (skipped: no /dev/shm)' : 'SharedSegment', () => {
  it('is whole pages of zeros for this user alone, all of them reserved', () => {
    const segment = keep(SharedSegment.create(100_000, { named: true }));
    const { mode, size, blocks } = statSync(fileOf(segment));
    expect(mode & 0o777).toBe(0o600);
    expect(segment.bytes).toBeGreaterThanOrEqual(100_000);
    expect(size).toBe(segment.bytes);
    expect(blocks * 512).toBe(segment.bytes);
    expect(new Uint8Array(segment.view).every((byte) => byte === 0)).toBe(true);
    expect(segment.view.byteLength).toBe(segment.bytes);
  });

  it('shows the same bytes to whoever attaches, by name or by the open file', () => {
    const segment = keep(SharedSegment.create(4096, { named: true }));
    const named = keep(SharedSegment.attach(segment.name!, 4096));
    const inherited = keep(SharedSegment.inherit(openSync(fileOf(segment), 'r+'), 4096));
    new Uint32Array(segment.view)[7] = 0xabcdef01;
    expect([named, inherited].map(({ view }) => new Uint32Array(view)[7])).toEqual([0xabcdef01, 0xabcdef01]);
    new Uint32Array(inherited.view)[8] = 5;
    expect(new Uint32Array(segment.view)[8]).toBe(5);
    expect(new Set([segment.address, named.address, inherited.address]).size).toBe(3);
  });

  it('has no name after unlink, and works on', () => {
    const segment = keep(SharedSegment.create(4096, { named: true }));
    segment.unlink();
    segment.unlink();
    expect(existsSync(fileOf(segment))).toBe(false);
    expect(() => SharedSegment.attach(segment.name!, 4096)).toThrow(/does not exist.*GPUOS_CUDA_UNAVAILABLE/);
    new Uint32Array(segment.view)[0] = 1;
    expect(new Uint32Array(segment.view)[0]).toBe(1);
  });

  it('has no name unless it is asked for', () => {
    const before = readdirSync('/dev/shm');
    const segment = keep(SharedSegment.create(4096));
    expect(segment.name).toBeUndefined();
    expect(readdirSync('/dev/shm').filter((name) => name.startsWith('gpuos-') && !before.includes(name))).toEqual([]);
    expect(fstatSync(segment.descriptor)).toMatchObject({ nlink: 0, size: segment.bytes });
  });

  it('is refused where it is smaller than expected: reading past its end would end the process', () => {
    const segment = keep(SharedSegment.create(4096, { named: true }));
    expect(() => SharedSegment.attach(segment.name!, segment.bytes + 1)).toThrow(/GPUOS_ABI_MISMATCH/);
    expect(() => SharedSegment.attach(segment.name!, 0)).toThrow(/GPUOS_ABI_MISMATCH/);
    expect(() => SharedSegment.inherit(9999, 4096)).toThrow(/GPUOS_ABI_MISMATCH/);
  });

  it.each([0, -1, 1.5, Number.NaN])('refuses %f bytes', (bytes) => {
    expect(() => SharedSegment.create(bytes)).toThrow(/GPUOS_BAD_OPTION/);
  });

  const { blocks, bsize } = NONE ? { blocks: 0, bsize: 0 } : statfsSync('/dev/shm');
  it.skipIf(blocks === 0)('says so when /dev/shm is too small, with the sizes and what to do, and leaves nothing there', () => {
    const before = readdirSync('/dev/shm');
    expect(() => SharedSegment.create(blocks * bsize + 1, { named: true })).toThrow(
      /MiB cannot be reserved.*MiB free.*--shm-size.*GPUOS_OUT_OF_MEMORY/,
    );
    expect(readdirSync('/dev/shm').filter((name) => name.startsWith('gpuos-') && !before.includes(name))).toEqual([]);
  });

  it('lets go of memory and file at close; views of it stay harmless', () => {
    const segment = SharedSegment.create(1 << 20, { named: true });
    const { descriptor } = segment;
    const words = new Uint32Array(segment.view);
    words[1000] = 7;
    segment.close();
    segment.close();
    expect(segment.descriptor).toBe(-1);
    expect(existsSync(fileOf(segment))).toBe(false);
    expect(() => fstatSync(descriptor)).toThrow(/EBADF/);
    expect(words[1000]).toBe(0);
    words[1000] = 1;
    expect(words[1000]).toBe(1);
  });

  it('opens no more files than it closes', () => {
    const files = (): number => readdirSync('/proc/self/fd').length;
    const before = files();
    for (let i = 0; i < 50; i++) SharedSegment.create(4096).close();
    for (let i = 0; i < 50; i++) expect(() => SharedSegment.create(Number.MAX_SAFE_INTEGER - 4096)).toThrow();
    const file = openSync('/dev/null', 'r');
    expect(() => SharedSegment.inherit(file, 4096)).toThrow();
    expect(() => closeSync(file)).toThrow(/EBADF/);
    expect(files()).toBe(before);
  });
});
