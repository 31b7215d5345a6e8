import type { System } from '../runtime/system.ts';
import type { EngineCounters } from './engine.ts';
import type { Lifetimes } from './lifetime.ts';
import { PlanCache } from './plan-cache.ts';
import type { Result } from './plan.ts';
import { PlanRunner } from './plan-runner.ts';
import { isUnfinished, Recording } from './recording.ts';
import type { Storage } from './storage.ts';
import type { Tensor } from './tensor.ts';

/** Recorded operations after which the queue's window is full, and what is recorded is submitted. */
const WINDOW = 1024;

/** Work that the host does alone, while it waits for it anyway, in the time that waking a worker takes. */
const ALONE_NS = 40_000;

/** Runs of tasks, two numbers each, that sync() looks at; with other tasks between them they do not join, and the oldest go. */
const MAX_UNSEEN = 4096;

/** Pending work that is worth submitting before anyone asks for it: the first since the caller last waited, and later ones. */
const FIRST_NS = 150_000;
const EARLY_NS = 1_200_000;

/** The same for element-wise work where recording takes long: so much of it, and so many operations, that little fusion is lost. */
const EARLY_MAPS_NS = 45_000;
const EARLY_MAPS = 24;
/** What an element-wise operation takes in a fused kernel, an element on one core. */
const MAP_NS = 0.1;

/** Turns what is recorded into tasks: when a value is needed, when the window is full, or early, when there is enough for the workers. */
export class Submission {
  readonly #system: System;
  readonly #counters: EngineCounters;
  readonly #lifetimes: Lifetimes;
  readonly #plans: PlanCache;
  readonly #runner: PlanRunner;
  readonly #recording = new Recording();
  /** For a target that is submitted without what else is recorded. */
  readonly #aside = new Recording();
  /** Estimate of the pending products, on one core. */
  #pendingNs = 0;
  /** Element-wise operations pending of a framework's, and an estimate of them. */
  #pendingMaps = 0;
  #pendingMapsNs = 0;
  /** Workers were given something since the caller last waited. (Not whether they have work left: cuts must not depend on timing, or each time would need a plan of its own.) */
  #ahead = false;

  constructor(system: System, counters: EngineCounters, lifetimes: Lifetimes) {
    this.#system = system;
    this.#counters = counters;
    this.#lifetimes = lifetimes;
    this.#plans = new PlanCache(system, counters);
    this.#runner = new PlanRunner(system, counters);
  }

  /** Records an operation. */
  record(tensor: Tensor): void {
    tensor.first?.use();
    tensor.second?.use();
    if (tensor.extra !== undefined) for (const other of tensor.extra.others) other.use();
    this.#recording.add(tensor);
  }

  /** Submits when the window is full. If that fails, the newest are not recorded: the caller never gets them. */
  submitIfFull(newest: readonly Tensor[]): void {
    if (this.#recording.count < WINDOW) return;
    try {
      this.flush();
    } catch (error) {
      for (let i = newest.length - 1; i >= 0; i--) this.#lifetimes.dispose(newest[i] as Tensor);
      throw error;
    }
  }

  get full(): boolean {
    return this.#recording.count >= WINDOW;
  }

  /** A product that takes this long was recorded. */
  countProduct(costNs: number): void {
    this.#pendingNs += costNs;
  }

  /**
   * A framework, which takes long to record, has recorded an element-wise operation of so many elements. With enough
   * of them pending they go to the workers, who compute while it records on. (Our own callers record a chain sooner
   * than a worker could begin; and with fusion off, what is still alive in the middle would get memory of its own.)
   */
  countFrameworkMap(size: number): void {
    if (!this.#system.fused) return;
    this.#pendingMaps++;
    this.#pendingMapsNs += size * MAP_NS;
    if (this.#pendingMapsNs < EARLY_MAPS_NS || this.#pendingMaps < EARLY_MAPS || this.#pendingNs > 0) return;
    if (this.#system.device.workers === 0) return;
    try {
      this.flush();
    } catch {
      // What is recorded stays recorded; who asks for a value will be told.
      this.#pendingMaps = 0;
    }
  }

  /**
   * Before a product is recorded: what is pending goes to the workers, if it is worth it, so that they
   * compute while the caller records on. A product starts a task anyway, so little fusion is lost.
   */
  submitEarly(): void {
    if (this.#pendingNs < (this.#ahead ? EARLY_NS : FIRST_NS) || this.#system.device.workers === 0) return;
    // In the middle of a computation what is alive will be used again: it is kept rather than computed twice.
    this.flush(undefined, false, true);
    this.#ahead = true;
  }

  /**
   * Submits what is recorded. Nothing waits; `target` gets memory whether or not others need it. With
   * `awaited` the caller is about to wait, and so to compute: small work then wakes no sleeping worker.
   * With `keep` every value that may be asked for gets memory, also those that are only computed on the way.
   * @throws GPUOS_OUT_OF_MEMORY; what is recorded stays so, and is tried again at the next flush
   */
  flush(target?: Tensor, awaited = false, keep = false): void {
    this.#system.checkOpen();
    const recording = this.#recording;
    if (target !== undefined && isUnfinished(target)) recording.include(target);
    try {
      this.#submit(recording, target, awaited, keep);
      recording.clear();
    } catch (error) {
      this.#system.checkOpen();
      recording.renew();
      if (target === undefined) throw error;
      // Others may be what asks for too much: then the target alone, with what it is made from.
      this.#submitAlone(target, awaited);
      return;
    }
    this.#pendingNs = this.#pendingMapsNs = this.#pendingMaps = 0;
    if (awaited) this.#ahead = false;
  }

  #submitAlone(target: Tensor, awaited: boolean): void {
    const aside = this.#aside;
    aside.include(target);
    try {
      this.#submit(aside, target, awaited, false);
    } finally {
      aside.clear();
      this.#recording.renew();
    }
  }

  #submit(recording: Recording, target: Tensor | undefined, awaited: boolean, keep: boolean): void {
    recording.close(target, keep);
    if (recording.live === 0) return;
    this.#counters.flushes++;
    this.#lifetimes.beforeRun();
    const plan = this.#plans.find(recording, this.#system.fused);
    const queue = this.#system.queue(0);
    const first = queue.tail;
    this.#running = recording;
    // Where the host sees all memory, it makes no difference.
    const apart = this.#system.heap !== this.#system.hostHeap;
    const read = apart && awaited && target !== undefined ? recording.nodes.lastIndexOf(target) : -1;
    this.#runner.run(plan, recording.externals as readonly Tensor[], read, this.#onResult);
    this.#note(first, queue.tail);
    if (!awaited || plan.costNs > ALONE_NS) this.#system.device.ringDoorbell(plan.tiles);
    this.#lifetimes.afterRun(recording.nodes, recording.count);
  }

  #running: Recording = this.#recording;

  readonly #onResult = (result: Result, storage: Storage, offset: number): void => {
    const tensor = this.#running.nodes[result.tag] as Tensor;
    this.#lifetimes.settleResult(tensor, storage, result.strides, offset);
  };

  /** Submits what is recorded and resolves when all of it is complete. Rejects if any of what was submitted since the last sync() failed. */
  async sync(): Promise<void> {
    this.flush();
    const tasks = this.#unseen.splice(0);
    await this.settled();
    for (let i = 0; i < tasks.length; i += 2) {
      for (let sequence = tasks[i] as number; sequence < (tasks[i + 1] as number); sequence++) {
        const failure = this.#system.queue(0).failure(sequence);
        if (failure !== undefined) throw failure;
      }
    }
  }

  /** First and end of the runs of tasks that sync() has not looked at yet, flat. */
  readonly #unseen: number[] = [];

  #note(first: number, end: number): void {
    const unseen = this.#unseen;
    if (first === end) return;
    if (unseen[unseen.length - 1] === first) unseen[unseen.length - 1] = end;
    else if (unseen.push(first, end) > MAX_UNSEEN) unseen.splice(0, MAX_UNSEEN / 2);
  }

  /** Resolves when every task submitted so far is complete, however it ended. */
  async settled(): Promise<void> {
    const queue = this.#system.queue(0);
    if (queue.tail > 0) await queue.wait(queue.tail - 1);
  }
}
