import { expect, it } from 'vitest';
import type { CudaDriver } from '../driver.ts';
import { hasRoom, leftBeside, takenBy } from './block-room.ts';

/** Of an H200. */
const ATTRIBUTES: Readonly<Record<string, number>> = {
  maxRegistersPerSm: 65_536,
  maxSharedMemoryPerSm: 233_472,
  reservedSharedMemoryPerBlock: 1024,
};
const driver = { deviceAttribute: (_: number, name: string) => ATTRIBUTES[name] } as unknown as CudaDriver;
const resident = { threads: 256, registers: 128, sharedBytes: 40_960 };

it.each([
  [{ threads: 256, registers: 128 }, 32_768],
  // Eight registers a thread are a piece.
  [{ threads: 256, registers: 121 }, 32_768],
  [{ threads: 256, registers: 120 }, 30_720],
  [{ threads: 128, registers: 255 }, 32_768],
  [{ threads: 384, registers: 168 }, 64_512],
  // The schedulers get warps in turn: five are as many for one of them as eight.
  [{ threads: 160, registers: 128 }, 32_768],
  [{ threads: 1, registers: 32 }, 4096],
])('%j takes %i registers', (shape, registers) => {
  expect(takenBy({ ...shape, sharedBytes: 100 }, 1024)).toEqual({ registers, sharedBytes: 1124 });
});

it('a block has room beside the resident one if what it takes is no more than what that leaves', () => {
  const left = leftBeside(driver, 0, resident);
  expect(left).toEqual({ registers: 32_768, sharedBytes: 191_488, reservedBytes: 1024 });
  const fits = (threads: number, registers: number, sharedBytes: number): boolean =>
    hasRoom(takenBy({ threads, registers, sharedBytes }, left.reservedBytes), left);
  expect(fits(128, 255, 163_840)).toBe(true);
  expect(fits(384, 168, 0)).toBe(false);
  expect(fits(128, 128, 190_464)).toBe(true);
  expect(fits(128, 128, 190_465)).toBe(false);
});
