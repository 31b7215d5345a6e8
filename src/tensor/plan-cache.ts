import type { Device } from '../runtime/device.ts';
import type { Operators } from '../runtime/operators.ts';
import { type Plan, Planner } from './plan.ts';
import type { Recording } from './recording.ts';

interface Entry {
  readonly tape: Int32Array;
  readonly fused: boolean;
  readonly plan: Plan;
}

/** Most plans kept; the oldest go first. A program whose shapes change at every call makes a new one each time. */
const MAX_PLANS = 2048;

/** Plans by the form of the recording. */
export class PlanCache {
  readonly #host: { readonly device: Device; readonly operators: Operators };
  readonly #entries = new Map<number, Entry[]>();
  #size = 0;

  constructor(host: { readonly device: Device; readonly operators: Operators }) {
    this.#host = host;
    host.operators.onFull = () => {
      for (let i = this.#size >> 1; i >= 0; i--) this.#evict();
    };
  }

  /** The plan of this form; made now, and told to `onFresh`, if there is none. */
  find(recording: Recording, fused: boolean, onFresh: () => void): { readonly plan: Plan } {
    const { tape, length, hash } = recording;
    const list = this.#entries.get(hash);
    if (list !== undefined) {
      for (const entry of list) if (entry.fused === fused && isTape(entry.tape, tape, length)) return entry;
    }
    const plan = new Planner(this.#host, recording.graph(), fused).plan();
    onFresh();
    const entry = { tape: tape.slice(0, length), fused, plan };
    if (list === undefined) this.#entries.set(hash, [entry]);
    else list.push(entry);
    if (++this.#size > MAX_PLANS) this.#evict();
    return entry;
  }

  #evict(): void {
    for (const [hash, list] of this.#entries) {
      this.#size -= list.length;
      this.#entries.delete(hash);
      for (const { plan } of list) this.#host.operators.release(plan.operators);
      return;
    }
  }
}

function isTape(known: Int32Array, tape: Int32Array, length: number): boolean {
  if (known.length !== length) return false;
  for (let i = 0; i < length; i++) if (known[i] !== tape[i]) return false;
  return true;
}
