import type { Task } from './drafts.ts';

/**
 * Chains: tasks whose tiles need only what the same tile of the task before made are run as one task,
 * stage after stage, while the data is in the worker's cache. A feed-forward block (product, bias,
 * activation, product, residual, norm) is one task that way, split among workers by rows.
 */

/** Fewer units than this are not worth keeping together: the tasks could not be shared among workers. */
const MIN_UNITS = 2;
const MAX_STAGES = 24;

export interface Chain {
  /** Tasks in the order in which a tile runs them. */
  readonly stages: Task[];
  readonly units: number;
  /**
   * How the stages are split among tiles, the same for all: into equal numbers of whole rows (n: n rows), or
   * as a run of elements (-n: n elements). 0: not in a way that anybody can rely on.
   */
  readonly split: number;
}

/** Who can draft a task of a kernel anew, split into another number of rows. */
interface Redraft {
  withRows(task: Task, rows: number): Task | undefined;
}

const chainOfOne = (task: Task): Chain => ({ stages: [task], units: task.units, split: task.aligned === undefined ? 0 : task.split });

/** Groups tasks, given in an order in which each comes after those that it reads from, into chains in such an order. */
export function formChains(tasks: Task[], enabled: boolean, redraft: Redraft): Chain[] {
  return tasks.length === 1 ? [chainOfOne(tasks[0] as Task)] : joined(tasks, enabled, redraft);
}

function joined(tasks: Task[], enabled: boolean, redraft: Redraft): Chain[] {
  const writer = new Map<number, number>(); // value -> task
  const chainOf: number[] = [];
  const chains: (Chain | undefined)[] = [];

  const producers = (task: Task): Set<number> => {
    const result = new Set<number>();
    for (const pointer of task.pointers) {
      if (pointer === undefined || task.writes.includes(pointer.ref)) continue;
      const producer = writer.get(pointer.ref);
      if (producer !== undefined) result.add(producer);
    }
    return result;
  };
  const reads: Set<number>[] = [];

  /** Whether chain `from` reads, directly or through others, from chain `on`. */
  const dependsOn = (from: number, on: number): boolean => {
    const seen = new Set<number>([from]);
    const stack = [from];
    for (let id = stack.pop(); id !== undefined; id = stack.pop()) {
      for (const task of (chains[id] as Chain).stages) {
        for (const producer of reads[tasks.indexOf(task)] as Set<number>) {
          const next = chainOf[producer] as number;
          if (next === on && next !== id) return true;
          if (!seen.has(next)) {
            seen.add(next);
            stack.push(next);
          }
        }
      }
    }
    return false;
  };

  tasks.forEach((original, index) => {
    let task = original;
    const from = producers(task);
    reads.push(from);
    let joined: number | undefined;
    if (enabled) {
      // The latest producer first: chains grow at their end.
      for (const producer of [...from].sort((a, b) => b - a)) {
        const id = chainOf[producer] as number;
        const chain = chains[id] as Chain;
        if (chain.split === 0 || chain.units < MIN_UNITS || chain.stages.length >= MAX_STAGES) continue;
        const fits = task.split === chain.split && task.aligned !== undefined;
        const fitted = fits ? task : chain.split > 0 ? redraft.withRows(task, chain.split) : undefined;
        if (fitted === undefined || fitted.aligned === undefined || fitted.split !== chain.split) continue;
        if (!onlyAligned(fitted, chain)) continue;
        // Whatever else it reads must not come from what comes after the chain.
        if ([...from].some((other) => chainOf[other] !== id && dependsOn(chainOf[other] as number, id))) continue;
        task = fitted;
        chain.stages.push(task);
        joined = id;
        break;
      }
    }
    if (joined === undefined) joined = chains.push(chainOfOne(task)) - 1;
    chainOf.push(joined);
    if (task !== original) tasks[index] = task;
    for (const node of task.writes) writer.set(node, index);
  });

  // An order in which each chain comes after those that it reads from.
  const order: Chain[] = [];
  const done = new Set<number>();
  const visit = (id: number): void => {
    if (done.has(id)) return;
    done.add(id);
    const chain = chains[id] as Chain;
    for (const task of chain.stages) for (const producer of reads[tasks.indexOf(task)] as Set<number>) visit(chainOf[producer] as number);
    order.push(chain);
  };
  chains.forEach((_, id) => {
    visit(id);
  });
  return order;
}

/** Everything that the task reads of the chain, it reads piece by piece. */
function onlyAligned(task: Task, chain: Chain): boolean {
  const made = new Set(chain.stages.flatMap((stage) => stage.writes));
  return task.pointers.every((pointer, i) => {
    if (pointer === undefined || task.writes.includes(pointer.ref) || !made.has(pointer.ref)) return true;
    return (task.aligned as readonly number[]).includes(i);
  });
}
