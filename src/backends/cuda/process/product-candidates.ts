/** Which algorithms of cuBLAS may run beside the resident kernel, by what their kernels take. */
import type { Algorithm } from '../cublas.ts';
import { CudaError } from '../cuda-error.ts';
import type { CudaDriver } from '../driver.ts';
import { type BlockRoom, hasRoom, takenBy } from './block-room.ts';
import { isFatal } from './ending.ts';
import type { OpenLibrary } from './open-library.ts';
import { type ProductForm, type ProductTrial, square } from './product-trial.ts';

/** Algorithms that the library is asked for, in the order of its own estimates, which it makes for products of this size. */
const MOST_PROPOSED = 64;
const ESTIMATED_N = 4096;
/** Kernels that are tried: the first ones, and of the others those that take the least shared memory. */
const TRIED = { first: 8, least: 4 } as const;
/** The same of all that the library has, which stand in no order of merit. */
const TRIED_OF_ALL = { first: 24, least: 8 } as const;
/** Algorithms that are tried where it cannot be told what their kernels take. */
const TRIED_BLINDLY = 6;
/** How long it may be looked for kernels that the library does not propose. */
const SEARCH_MS = 1500;

export interface Candidate {
  readonly algorithm: Algorithm;
  /** What a block takes; undefined if that cannot be told. */
  readonly needed: BlockRoom | undefined;
}

export interface Candidates {
  readonly proposed: number;
  /** Different kernels that have room. */
  readonly fitted: number;
  /** Those to be tried. */
  readonly list: readonly Candidate[];
}

export interface Room extends BlockRoom {
  readonly reservedBytes: number;
}

/** What an algorithm would launch: its kernels' names, and the most that a block of one of them takes. */
interface Need extends BlockRoom {
  readonly kernels: string;
}

/** While no resident kernel runs: kernels are loaded by this. @throws CudaError of a fault */
export function findCandidates(driver: CudaDriver, open: OpenLibrary, form: ProductForm, trial: ProductTrial, room: Room): Candidates {
  const estimated = square(form, ESTIMATED_N);
  const proposals = open.library
    .algorithms(estimated, open.workspaceBytes, MOST_PROPOSED)
    .filter((algorithm) => open.accepts(trial.product, algorithm));
  const unknown: Candidate[] = [];
  const fitting = new Map<string, Candidate>();
  const consider = (algorithm: Algorithm): void => {
    const needed = needOf(driver, open, trial, algorithm, room.reservedBytes);
    if (needed === undefined) unknown.push({ algorithm, needed });
    // Of each kernel the first: variants of it take the same room.
    else if (hasRoom(needed, room) && !fitting.has(needed.kernels)) fitting.set(needed.kernels, { algorithm, needed });
  };
  proposals.forEach(consider);
  if (fitting.size > 0) return { proposed: proposals.length, fitted: fitting.size, list: picked([...fitting.values()], TRIED) };
  if (unknown.length > 0) return { proposed: proposals.length, fitted: 0, list: unknown.slice(0, TRIED_BLINDLY) };
  // The library proposes what is fastest on an empty device: on some that is one kind of kernel, which takes all of a multiprocessor.
  let proposed = proposals.length;
  const until = performance.now() + SEARCH_MS;
  open.library.each(estimated, open.workspaceBytes, (algorithm) => {
    proposed++;
    if (open.accepts(trial.product, algorithm)) consider(algorithm);
    return performance.now() < until;
  });
  // The more registers a block takes, the larger its tile, and the less it has to load.
  const all = [...fitting.values()].sort((a, b) => (b.needed?.registers ?? 0) - (a.needed?.registers ?? 0));
  return { proposed, fitted: all.length, list: picked(all, TRIED_OF_ALL) };
}

/** The room for shared memory is not known for certain: some that take little are among them. */
function picked(candidates: readonly Candidate[], { first, least }: { readonly first: number; readonly least: number }): Candidate[] {
  const rest = candidates.slice(first).sort((a, b) => (a.needed?.sharedBytes ?? 0) - (b.needed?.sharedBytes ?? 0));
  return [...candidates.slice(0, first), ...rest.slice(0, least)];
}

/** Undefined where the driver does not tell. */
function needOf(driver: CudaDriver, open: OpenLibrary, trial: ProductTrial, algorithm: Algorithm, reservedBytes: number): Need | undefined {
  try {
    const launched = driver.capture(open.stream, () => open.launch(trial.product, algorithm, trial.pointers));
    if (launched.length === 0) return undefined;
    const taken = launched.map(({ fn, threads, sharedBytes }) =>
      takenBy(
        {
          threads,
          registers: driver.functionAttribute(fn, 'registers'),
          sharedBytes: sharedBytes + driver.functionAttribute(fn, 'staticSharedBytes'),
        },
        reservedBytes,
      ),
    );
    return {
      kernels: launched.map(({ fn, threads, sharedBytes }) => `${fn} ${threads} ${sharedBytes}`).join(', '),
      registers: Math.max(...taken.map(({ registers }) => registers)),
      sharedBytes: Math.max(...taken.map(({ sharedBytes }) => sharedBytes)),
    };
  } catch (error) {
    if (isFatal(error) || !(error instanceof CudaError)) throw error;
    return undefined;
  }
}
