import { CHANGE, FLAG, OPERATOR_SLOTS } from '../abi/status.ts';
import type { Device } from '../backends/backend.ts';
import { type BlockNeeds, blockNeeds } from '../backends/lowering/needs.ts';
import { GpuosError } from '../errors.ts';
import type { Program } from '../ops/program.ts';
import { formatValue } from '../ops/shape.ts';
import { Extents } from './extents.ts';
import { NO_ORDER, type Queue } from './queue.ts';

/** An operator that inject() put into the table. */
export interface InjectedOperator {
  readonly id: number;
  readonly name: string;
  /** The version that tasks submitted from now on get. */
  readonly version: number;
  readonly killed: boolean;
}

/** Slots that inject() may fill; without the rest, no new tensor expression could run. */
const MOST_PINNED = OPERATOR_SLOTS - 512;

interface Slot {
  /** What its parameter block has to hold, and for a program what it touches; undefined: the executor's own, or not asked for yet. */
  needs: BlockNeeds | Extents | undefined;
  /** What needs are to be made of when somebody asks: few operators are named by a caller's tasks. */
  program: Program | undefined;
  readonly id: number;
  readonly name: string;
  readonly builtIn: boolean;
  /** Injected by a caller who holds on to it; the others are the planner's and may go when no plan needs them. */
  pinned: boolean;
  /** Plans that name it. */
  plans: number;
  signature: string | undefined;
  fn: number;
  version: number;
  killed: boolean;
}

/** A function that no new task gets, and the tail that each queue had once its replacement was known to be published. */
interface Retired {
  readonly fn: number;
  /** Sequence of the control task in queue 0; the positions are taken once it is complete. */
  readonly flip: number;
  /** The slot that is free for another operator then. */
  readonly slot: number | undefined;
  positions: number[] | undefined;
}

export interface OperatorHost {
  readonly device: Device;
  readonly queues: readonly Queue[];
}

/**
 * The host's side of the operator table. Publish, kill and revive are control tasks in queue 0: they
 * take effect in order with the tasks of that queue, and no task sees half of one.
 */
export class Operators {
  readonly #host: OperatorHost;
  readonly #slots: (Slot | undefined)[] = [];
  readonly #free: number[] = [];
  readonly #bySignature = new Map<string, Slot>();
  readonly #retired: Retired[] = [];
  #controlSlot: number;
  #injections = 0;
  #cacheHits = 0;

  constructor(host: OperatorHost) {
    this.#host = host;
    for (const [name, id] of host.device.kernels) {
      this.#slots[id] = {
        id,
        name,
        builtIn: true,
        pinned: true,
        plans: 0,
        signature: undefined,
        fn: id + 1,
        version: 1,
        killed: false,
        needs: blockNeeds(name),
        program: undefined,
      };
    }
    this.#controlSlot = this.builtIn('controlTable');
    host.device.setChanges?.((pointers, words) => this.#change(pointers, words, false));
  }

  /** Slot of a built-in device function. */
  builtIn(name: string): number {
    const id = this.#host.device.kernels.get(name);
    if (id === undefined) throw new GpuosError('GPUOS_INTERNAL', `The device has no function ${name}.`);
    return id;
  }

  get counters(): { readonly injections: number; readonly cacheHits: number; readonly awaitingReclamation: number } {
    return { injections: this.#injections, cacheHits: this.#cacheHits, awaitingReclamation: this.#retired.length };
  }

  name(id: number): string {
    return this.#slots[id]?.name ?? `#${id}`;
  }

  list(): readonly InjectedOperator[] {
    return this.#slots
      .filter((slot): slot is Slot => slot !== undefined)
      .map(({ id, name, version, killed }) => ({ id, name, version, killed }));
  }

  /** @throws GPUOS_OPERATOR_OUT_OF_RANGE, GPUOS_OPERATOR_EMPTY */
  get(id: number): InjectedOperator {
    return this.#get(id);
  }

  /**
   * Pointers and words that the operator reads of its parameter block, at least, and for one that was injected what it touches
   * through them; undefined: no caller may name it.
   */
  needs(id: number): BlockNeeds | Extents | undefined {
    const slot = this.#get(id);
    if (slot.needs === undefined && slot.program !== undefined) {
      slot.needs = new Extents(slot.program);
      slot.program = undefined;
    }
    return slot.needs;
  }

  #get(id: number): Slot {
    if (!Number.isInteger(id) || id < 0 || id >= OPERATOR_SLOTS) {
      throw new GpuosError(
        'GPUOS_OPERATOR_OUT_OF_RANGE',
        `There is no operator ${formatValue(id)}; the table has slots 0 to ${OPERATOR_SLOTS - 1}.`,
      );
    }
    const slot = this.#slots[id];
    if (slot === undefined) throw new GpuosError('GPUOS_OPERATOR_EMPTY', `Slot ${id} of the operator table is empty.`);
    return slot;
  }

  /** Asked to let go of plans when the table is full; set by the planner. */
  onFull: (() => void) | undefined;

  /**
   * Puts a program into a slot of the table: the one that has it already, else a new one. From the
   * return on, tasks may name it; the executor never stops for it.
   * @param pinned it stays until remove(); otherwise it may go when no plan names it and the table is full
   * @throws GPUOS_OPERATOR_TABLE_FULL
   */
  inject(program: Program, name: string, pinned = false): InjectedOperator {
    // A caller's operator may be replaced; a plan's kernel must not be. So they never share a slot.
    const signature = `${pinned ? 'caller' : 'plan'}:${this.#host.device.signature(program)}`;
    const known = this.#bySignature.get(signature);
    if (known === undefined && pinned && this.#pinnedCount >= MOST_PINNED) {
      throw new GpuosError(
        'GPUOS_OPERATOR_TABLE_FULL',
        `${MOST_PINNED} operators have been injected; the other ${OPERATOR_SLOTS - MOST_PINNED} slots of the table are for the kernels of tensors.`,
      );
    }
    if (known !== undefined) {
      this.#cacheHits++;
      return known;
    }
    this.reclaimVersions();
    const id = this.#freeSlot();
    const { fn } = this.#host.device.install(this.#host.device.compile(program));
    const slot: Slot = {
      id,
      name,
      builtIn: false,
      pinned,
      plans: 0,
      signature,
      fn,
      version: 1,
      killed: false,
      needs: undefined,
      program,
    };
    this.#slots[id] = slot;
    if (pinned) this.#pinnedCount++;
    this.#bySignature.set(signature, slot);
    // A plan's kernel is named by tasks that follow at once: whoever runs them publishes it first. Waking a worker for it would cost more.
    this.#publish(slot, pinned);
    return slot;
  }

  #pinnedCount = 0;

  #freeSlot(): number {
    const id = this.#free.pop();
    if (id !== undefined) return id;
    if (this.#slots.length < OPERATOR_SLOTS) return this.#slots.length;
    this.onFull?.();
    for (const slot of this.#slots) if (slot !== undefined && !slot.pinned && slot.plans === 0) this.#empty(slot);
    // Their slots are free once every task that could still name them is complete.
    for (const queue of this.#host.queues) if (queue.tail > queue.mark) queue.waitSync(queue.tail - 1);
    this.reclaimVersions();
    for (const queue of this.#host.queues) queue.refresh();
    this.reclaimVersions();
    const freed = this.#free.pop();
    if (freed === undefined) {
      throw new GpuosError(
        'GPUOS_OPERATOR_TABLE_FULL',
        `All ${OPERATOR_SLOTS} slots of the operator table hold operators that are in use.`,
      );
    }
    return freed;
  }

  /** Takes an injected operator out of the table: tasks submitted from now on fail, those before do not. */
  remove(id: number): void {
    const slot = this.#get(id);
    if (slot.builtIn || !slot.pinned) {
      throw new GpuosError('GPUOS_BAD_OPTION', `Operator ${id} (${slot.name}) was not made by inject() and cannot be removed.`);
    }
    this.#empty(slot);
  }

  #empty(slot: Slot): void {
    if (slot.signature !== undefined && this.#bySignature.get(slot.signature) === slot) this.#bySignature.delete(slot.signature);
    this.#slots[slot.id] = undefined;
    if (slot.pinned) this.#pinnedCount--;
    // A kill that was never revived must not pass to the slot's next operator.
    if (slot.killed) this.#control(CHANGE.REVIVE, slot.id);
    const flip = this.#control(CHANGE.PUBLISH, slot.id, 0, slot.version + 1);
    this.#retired.push({ fn: slot.fn, flip, slot: slot.id, positions: undefined });
  }

  /** A plan names these operators, so they stay. */
  retain(ids: Iterable<number>): void {
    for (const id of ids) this.#get(id).plans++;
  }

  release(ids: Iterable<number>): void {
    for (const id of ids) {
      const slot = this.#slots[id];
      if (slot !== undefined) slot.plans--;
    }
  }

  /** A new version in the slot of an injected operator: tasks submitted before keep the old one. */
  replace(id: number, program: Program): InjectedOperator {
    const slot = this.#get(id);
    if (slot.builtIn || !slot.pinned)
      throw new GpuosError('GPUOS_BAD_TEMPLATE', `Operator ${id} (${slot.name}) was not made by inject() and cannot be replaced.`);
    const signature = `caller:${this.#host.device.signature(program)}`;
    this.reclaimVersions();
    const { fn } = this.#host.device.install(this.#host.device.compile(program));
    const old = slot.fn;
    if (slot.signature !== undefined && this.#bySignature.get(slot.signature) === slot) this.#bySignature.delete(slot.signature);
    slot.signature = signature;
    if (!this.#bySignature.has(signature)) this.#bySignature.set(signature, slot);
    slot.fn = fn;
    slot.needs = undefined;
    slot.program = program;
    slot.version++;
    const flip = this.#publish(slot);
    this.#retired.push({ fn: old, flip, slot: undefined, positions: undefined });
    return slot;
  }

  #publish(slot: Slot, wake = true): number {
    this.#injections++;
    return this.#control(CHANGE.PUBLISH, slot.id, slot.fn, slot.version, wake);
  }

  #control(kind: number, id: number, fn = 0, version = 0, wake = true): number {
    return this.#change([], [kind, id, fn, version], wake);
  }

  /** Submits a control task; returns its sequence in the first queue. */
  #change(pointers: readonly number[], words: readonly number[], wake: boolean): number {
    const sequence = (this.#host.queues[0] as Queue).writeInline(this.#controlSlot, 1, pointers, words, NO_ORDER, FLAG.BARRIER);
    if (wake) this.#host.device.ringDoorbell(1);
    return sequence;
  }

  /** From here on tasks of the operator fail with GPUOS_OPERATOR_KILLED, also tiles not yet begun. Returns the control task's sequence. */
  kill(id: number): number {
    const slot = this.#get(id);
    if (id === this.#controlSlot) throw new GpuosError('GPUOS_BAD_OPTION', 'The operator that changes the table cannot be killed.');
    slot.killed = true;
    return this.#control(CHANGE.KILL, id);
  }

  revive(id: number): number {
    const slot = this.#get(id);
    slot.killed = false;
    return this.#control(CHANGE.REVIVE, id);
  }

  /**
   * Frees functions, and emptied slots, that no task can name any more: every queue has completed all that was
   * submitted before the replacement was seen complete.
   */
  reclaimVersions(): void {
    for (let i = this.#retired.length - 1; i >= 0; i--) {
      const retired = this.#retired[i] as Retired;
      if (retired.positions === undefined) {
        if (!(this.#host.queues[0] as Queue).isComplete(retired.flip)) continue;
        retired.positions = this.#host.queues.map((queue) => queue.tail);
      }
      const passed = this.#host.queues.every((queue, index) => {
        queue.refresh();
        return queue.mark >= (retired.positions?.[index] as number);
      });
      if (!passed) continue;
      this.#host.device.uninstall(retired.fn);
      if (retired.slot !== undefined) this.#free.push(retired.slot);
      this.#retired.splice(i, 1);
    }
  }
}
