/**
 * Which kernels have room beside the resident one: what a block takes of a multiprocessor, by the driver's own rules, and
 * what the resident kernel's block leaves there.
 */
import type { CudaDriver } from '../driver.ts';

const WARP = 32;
/** A multiprocessor has four schedulers, each with a quarter of the registers: warps are dealt out to them in turn. */
const SCHEDULERS = 4;
/** In such pieces a warp is given registers. */
const PIECE = 256;

/** A block, as a launch and its kernel's code tell of it. */
export interface BlockShape {
  readonly threads: number;
  /** Of a thread. */
  readonly registers: number;
  /** Static and dynamic. */
  readonly sharedBytes: number;
}

/** What a block takes, or what there is for one. */
export interface BlockRoom {
  readonly registers: number;
  readonly sharedBytes: number;
}

/** @param reservedBytes what the driver takes of the shared memory of each block */
export function takenBy({ threads, registers, sharedBytes }: BlockShape, reservedBytes: number): BlockRoom {
  const warps = Math.ceil(threads / WARP / SCHEDULERS) * SCHEDULERS;
  return { registers: warps * Math.ceil((registers * WARP) / PIECE) * PIECE, sharedBytes: sharedBytes + reservedBytes };
}

/**
 * What is left beside a block. Of the shared memory it may be less: how much of a multiprocessor's memory is that, and
 * how much is cache, is the driver's choice by the kernels that run.
 */
export function leftBeside(driver: CudaDriver, device: number, block: BlockShape): BlockRoom & { readonly reservedBytes: number } {
  const reservedBytes = driver.deviceAttribute(device, 'reservedSharedMemoryPerBlock');
  const taken = takenBy(block, reservedBytes);
  return {
    registers: driver.deviceAttribute(device, 'maxRegistersPerSm') - taken.registers,
    sharedBytes: driver.deviceAttribute(device, 'maxSharedMemoryPerSm') - taken.sharedBytes,
    reservedBytes,
  };
}

export const hasRoom = (needed: BlockRoom, left: BlockRoom): boolean =>
  needed.registers <= left.registers && needed.sharedBytes <= left.sharedBytes;
