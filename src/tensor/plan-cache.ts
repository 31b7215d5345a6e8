import type { Device } from '../runtime/device.ts';
import type { Operators } from '../runtime/operators.ts';
import type { EngineCounters } from './engine.ts';
import type { GraphNode } from './graph.ts';
import { type Plan, Planner } from './plan.ts';
import type { Recording } from './recording.ts';
import type { ShapeInfo } from './shape-info.ts';
import type { Sizes } from './sizes.ts';
import { type Instance, Structure } from './structure.ts';
import type { Copy, Tape } from './tape.ts';
import type { Tensor } from './tensor.ts';

/** Most plans kept; the oldest go first. A program whose shapes change at every call makes a new one each time. */
const MAX_PLANS = 2048;
/** Most structures: they are larger, and each serves many plans. */
const MAX_STRUCTURES = 512;

/** A value that is kept under a form. */
class Entry<T> {
  readonly form: Copy;
  readonly fused: boolean;
  /** Undefined once it has gone. */
  value: T | undefined;
  /** What was asked for next, the last time. */
  next: Entry<T> | undefined = undefined;
  /** Another one whose form has the same hash. */
  readonly other: Entry<T> | undefined;

  constructor(form: Copy, fused: boolean, value: T, other: Entry<T> | undefined) {
    this.form = form;
    this.fused = fused;
    this.value = value;
    this.other = other;
  }
}

/** Values by forms, at most so many; the oldest go first. */
class Forms<T> {
  readonly #limit: number;
  readonly #onGone: (value: T) => void;
  /** By the hash of their forms. */
  readonly #entries = new Map<number, Entry<T>>();
  #size = 0;
  /** What was asked for last. */
  #last: Entry<T> | undefined;

  constructor(limit: number, onGone: (value: T) => void) {
    this.#limit = limit;
    this.#onGone = onGone;
  }

  get(form: Tape, fused: boolean): T | undefined {
    // Programs repeat themselves: what followed the last time is looked at first, which costs no hash.
    const likely = this.#last?.next;
    if (likely?.value !== undefined && likely.fused === fused && form.equals(likely.form)) {
      this.#last = likely;
      return likely.value;
    }
    for (let entry = this.#entries.get(form.hash()); entry !== undefined; entry = entry.other) {
      if (entry.fused !== fused || !form.equals(entry.form)) continue;
      this.#follow(entry);
      return entry.value;
    }
    return undefined;
  }

  set(form: Tape, fused: boolean, value: T): void {
    const hash = form.hash();
    const entry = new Entry(form.copy(), fused, value, this.#entries.get(hash));
    this.#entries.set(hash, entry);
    this.#follow(entry);
    if (++this.#size > this.#limit) this.#evict();
  }

  #follow(entry: Entry<T>): void {
    if (this.#last !== undefined) this.#last.next = entry;
    this.#last = entry;
  }

  halve(): void {
    for (let i = this.#size >> 1; i >= 0; i--) this.#evict();
  }

  #evict(): void {
    for (const hash of this.#entries.keys()) {
      let entry = this.#entries.get(hash);
      this.#entries.delete(hash);
      for (; entry !== undefined; entry = entry.other) {
        this.#size--;
        this.#onGone(entry.value as T);
        entry.value = entry.next = undefined;
        entry.form.release();
      }
      return;
    }
  }
}

/** Plans by the form of the recording, and structures, of which plans for other sizes are made, by its generic form. */
export class PlanCache {
  readonly #host: { readonly device: Device; readonly operators: Operators };
  readonly #counters: EngineCounters;
  readonly #plans: Forms<Plan>;
  readonly #structures: Forms<Structure>;

  constructor(host: { readonly device: Device; readonly operators: Operators }, counters: EngineCounters) {
    this.#host = host;
    this.#counters = counters;
    const { operators } = host;
    this.#plans = new Forms<Plan>(MAX_PLANS, (plan) => operators.release(plan.operators));
    this.#structures = new Forms<Structure>(MAX_STRUCTURES, (structure) => this.#release(structure));
    operators.onFull = () => {
      this.#plans.halve();
      this.#structures.halve();
    };
  }

  /** The plan of this form; made now if there is none. */
  find(recording: Recording, fused: boolean): Plan {
    const known = this.#plans.get(recording.form, fused);
    if (known !== undefined) return known;
    const sizes = recording.sizes();
    const generic = recording.generic(sizes);
    let structure = sizes.possible ? this.#structures.get(generic, fused) : undefined;
    if (structure === undefined) {
      structure = new Structure(recording.graph(sizes.possible ? sizes : undefined), fused);
      this.#counters.structures++;
    }
    const plan = this.#plan(structure, recording, sizes);
    // What has no generic form is kept as a plan only.
    if (sizes.possible && !structure.kept) {
      structure.kept = true;
      this.#structures.set(generic, fused, structure);
    }
    if (!structure.kept) this.#release(structure);
    this.#plans.set(recording.form, fused, plan);
    this.#counters.plans++;
    return plan;
  }

  #plan(structure: Structure, recording: Recording, sizes: Sizes): Plan {
    try {
      return new Planner(this.#host, instanceOf(structure, recording, sizes.possible ? sizes : undefined)).plan();
    } catch (error) {
      if (!structure.kept) this.#release(structure);
      throw error;
    }
  }

  #release(structure: Structure): void {
    structure.kept = false;
    this.#host.operators.release(structure.slots);
    structure.forgetSlots();
  }
}

/** The structure at the sizes that the recording has. */
export function instanceOf(structure: Structure, recording: Recording, sizes: Sizes | undefined): Instance {
  const { nodes } = structure.graph;
  const info = (node: number): ShapeInfo => (recording.nodes[(nodes[node] as GraphNode).tag] as Tensor).info;
  return { structure, sizes, info, externals: recording.external() };
}
