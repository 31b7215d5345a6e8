import type { Device } from '../runtime/device.ts';

/** A tile should last at least this long: below it, sharing costs more than it gains. */
const TILE_NS = 6000;
/** Tiles a worker, for balance. */
const TILES_PER_WORKER = 2;
/** What one task may have (MAX_TILES of the abi). */
const MOST_TILES = 64;

/** How many tiles work of `costNs` on one core is split into, at most one a unit. */
export function tilesFor(device: Device, costNs: number, units: number): number {
  const tiles = Math.min(MOST_TILES, units, TILES_PER_WORKER * (device.workers + 1), Math.round(costNs / TILE_NS));
  return Math.max(1, tiles);
}
