import type { Device } from '../runtime/device.ts';
import type { Chain } from './chains.ts';
import type { Task } from './drafts.ts';
import { isExternal } from './graph.ts';
import { runTiles, tilesFor } from './tiles.ts';

/**
 * A run of chains: a tile of each needs of the one before only what the same tile of it made. A worker
 * goes through it with one tile, whose data stays in its core's cache.
 */
export interface Run {
  /** Index of its first chain. */
  readonly first: number;
  /** Tiles of each of its chains. */
  readonly tiles: number;
}

/** Splits the chains, given in the order in which they are submitted, into runs. */
export function formRuns(chains: readonly Chain[], device: Device): Run[] {
  const runs = new Array<Run>(chains.length);
  let first = 0;
  for (let index = 0; index < chains.length; index++) {
    const chain = chains[index] as Chain;
    const next = chains[index + 1];
    if (next !== undefined && readsTilewise(next, chain)) continue;
    let units = Number.POSITIVE_INFINITY;
    for (const task of chain.stages) units = Math.min(units, task.units);
    if (index === first) runs[index] = { first, tiles: tilesFor(device, costOf(chain), units) };
    else {
      const tiles = runTiles(device, chains.slice(first, index + 1).map(costOf), units);
      // With one tile each there is nothing to go on with: then they are ordinary steps.
      for (let i = first; i <= index; i++) runs[i] = { first: tiles === 1 ? i : first, tiles };
    }
    first = index + 1;
  }
  return runs;
}

function costOf({ stages }: Chain): number {
  let sum = 0;
  for (const task of stages) sum += task.costNs;
  return sum;
}

/** Whether one of the chain's stages writes the value. */
export function makes({ stages }: Chain, ref: number): boolean {
  for (let i = 0; i < stages.length; i++) if ((stages[i] as Task).writes.includes(ref)) return true;
  return false;
}

/** Whether `chain` reads from `producer`, and a piece of that only in the piece of its own that has the same number. */
export function readsTilewise(chain: Chain, producer: Chain): boolean {
  if (chain.split === 0 || chain.split !== producer.split || chain.units < 2) return false;
  let reads = false;
  for (const task of chain.stages) {
    for (let i = 0; i < task.pointers.length; i++) {
      const pointer = task.pointers[i];
      if (pointer === undefined || !makes(producer, pointer.ref)) continue;
      if (task.aligned?.includes(i) !== true) return false;
      reads = true;
    }
  }
  return reads;
}

/** Who reads the values of a plan. */
export interface Uses {
  /** The last chain that reads each. */
  readonly lastReader: ReadonlyMap<number, number>;
  /** Values that only their own run reads, piece by piece. */
  readonly inRun: ReadonlySet<number>;
}

/** Undefined for a single chain: what it does not give to the caller, it alone reads. */
export function usesOf(chains: readonly Chain[], runs: readonly Run[]): Uses | undefined {
  if (chains.length === 1) return undefined;
  const lastReader = new Map<number, number>();
  const writer = new Map<number, number>();
  const inRun = new Set<number>();
  chains.forEach((chain, index) => {
    for (const task of chain.stages) {
      for (const node of task.writes) {
        writer.set(node, index);
        inRun.add(node);
      }
    }
  });
  chains.forEach((chain, index) => {
    for (const task of chain.stages) {
      task.pointers.forEach((pointer, i) => {
        if (pointer === undefined || isExternal(pointer.ref)) return;
        lastReader.set(pointer.ref, index);
        const from = writer.get(pointer.ref) ?? -1;
        if (from < 0 || (runs[from] as Run).first !== (runs[index] as Run).first || (from !== index && task.aligned?.includes(i) !== true))
          inRun.delete(pointer.ref);
      });
    }
  });
  return { lastReader, inRun };
}
