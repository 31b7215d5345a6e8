import type { Device } from '../runtime/device.ts';

/** Tiles a worker, for balance. */
const TILES_PER_WORKER = 2;
/** Units of a tile: products of fewer rows at a time read their matrix as often, for less. */
const MIN_UNITS = 4;
/** What one task may have (MAX_TILES of the abi). */
const MOST_TILES = 64;

/** How many tiles work of `costNs` on one core is split into, at most one a unit. */
export function tilesFor(device: Device, costNs: number, units: number): number {
  const workers = device.workers + 1;
  // Tiles of fewer units than this are worth it only where workers would have none.
  const most = Math.max(workers, Math.floor(units / MIN_UNITS));
  const tiles = Math.min(MOST_TILES, units, most, TILES_PER_WORKER * workers, Math.round(costNs / device.tileNs));
  // Three tiles on two workers take as long as four.
  return tiles > workers ? tiles - (tiles % workers) : Math.max(1, tiles);
}

/** In a run of tasks a worker has its data in its cache, and a tile may be short; this it should last, next to what starting it takes. */
const RUN_TILE_NS = 700;
/** What a tile of a run may take, so that its data fits a core's cache. */
const MOST_RUN_TILE_NS = 16_000;

/**
 * How many tiles each task of a run is split into: `costsNs` on one core, at most one tile a unit. A worker
 * goes through the run with one tile at a time, so one each keeps all busy.
 */
export function runTiles(device: Device, costsNs: readonly number[], units: number): number {
  const total = costsNs.reduce((sum, cost) => sum + cost, 0);
  const each = total / costsNs.length;
  const shared = Math.min(device.workers + 1, Math.round(total / device.tileNs), Math.round(each / RUN_TILE_NS));
  const fitting = Math.min(Math.floor(units / MIN_UNITS), Math.ceil(each / MOST_RUN_TILE_NS));
  return Math.max(1, Math.min(MOST_TILES, units, Math.max(shared, fitting)));
}
