import { GpuosError } from '../../../errors.ts';
import { type Channel, type Encoded, LANE, type Lane, type Message, SLOT, type Slot, sizeOf, STATE } from './channel.ts';
import { toError } from './failure.ts';
import { sleepOn } from './libc.ts';

/** How long to look before going to sleep. */
const SPIN_US = 20;
/** How long to sleep without looking whether the other side lives. */
const SLICE_MS = 5;
/** How often to look for that while nobody sleeps: it is a system call. */
const LOOK_MS = 20;
/** Turns of the event loop before a promise's answer is looked for once a millisecond. */
const EAGER_TURNS = 50;
const LIMIT_MS = 60_000;

/** The other side, as far as the client can see it. */
export interface Peer {
  /** Looks now: the error that answers everything if it is gone, else whether it is stopped by a signal. */
  look(): GpuosError | 'running' | 'stopped';
  /** It does not answer any more. */
  end(): void;
}

export interface RequestOptions {
  readonly lane?: Lane;
  /** The answer may be as large as the largest slot. */
  readonly largeAnswer?: boolean;
  /** How long the other side may take, once it has the request, before it is given up. Time that it is stopped for does not count. */
  readonly limitMs?: number;
}

/** A request on its way. If nobody asks for its end, its failure is nobody's either. */
export interface Pending<T> {
  /** Looks whether the answer is there. */
  readonly done: boolean;
  /** The answer; waits for it, with the event loop blocked. @throws what the other side threw */
  wait(): T;
  /** The answer, without blocking. Keeps the program alive until it is there. */
  readonly promise: Promise<T>;
}

interface Entry {
  readonly name: string;
  readonly encoded: Encoded;
  readonly options: RequestOptions;
  slot: Slot | undefined;
  id: number;
  sentAt: number;
  outcome: { readonly answer: Message } | { readonly error: GpuosError } | undefined;
  settle: (() => void) | undefined;
  promise: Promise<Message> | undefined;
}

/** Asks. Belongs to one thread. */
export class ChannelClient {
  readonly #channel: Channel;
  readonly #peer: Peer;
  readonly #sent = new Map<Slot, Entry>();
  /** Those for which there was no slot, in order. */
  #queue: Entry[] = [];
  #nextId: number;
  #lost: GpuosError | undefined;
  /** Time in which the other side could have answered: what a stop of either takes is left out. */
  #clock = 0;
  #lastPoll = performance.now();
  #lastLook = 0;
  #stopped = false;
  #listeners = 0;
  #pumping = false;

  constructor(channel: Channel, peer: Peer, firstId = 1) {
    this.#channel = channel;
    this.#peer = peer;
    this.#nextId = firstId;
  }

  /** Why nothing is answered any more; some ms old, so that it can be asked for often. */
  get lost(): GpuosError | undefined {
    if (performance.now() - this.#lastLook >= LOOK_MS) this.#look();
    return this.#lost;
  }

  /** Asks and waits for the answer, whether or not the event loop turns. @throws what the other side threw */
  call(name: string, message: Message, options: RequestOptions = {}): Message {
    const entry = this.#entry(name, message, options);
    this.#queue.unshift(entry);
    return this.#wait(entry);
  }

  /** Asks; the answer comes later. Answers come in any order. */
  post(name: string, message: Message, options: RequestOptions = {}): Pending<Message> {
    const entry = this.#entry(name, message, options);
    this.#queue.push(entry);
    this.#poll();
    const look = (): boolean => {
      if (entry.outcome === undefined) this.#poll();
      return entry.outcome !== undefined;
    };
    const promise = (): Promise<Message> => {
      entry.promise ??= new Promise<Message>((resolve, reject) => {
        const settle = (): void => {
          if ('answer' in entry.outcome!) resolve(entry.outcome.answer);
          else reject(entry.outcome!.error);
        };
        if (entry.outcome !== undefined) return settle();
        this.#listeners++;
        entry.settle = () => {
          this.#listeners--;
          settle();
        };
        this.#pump();
      });
      return entry.promise;
    };
    return {
      get done() {
        return look();
      },
      wait: () => this.#wait(entry),
      get promise() {
        return promise();
      },
    };
  }

  /** Nothing is answered from here on: all that is on its way fails. */
  fail(error: GpuosError): void {
    this.#lost ??= error;
    const all = [...this.#sent.values(), ...this.#queue];
    this.#sent.clear();
    this.#queue = [];
    for (const entry of all) this.#settle(entry, { error: this.#lost });
  }

  #entry(name: string, message: Message, options: RequestOptions): Entry {
    if (this.#lost !== undefined) throw this.#lost;
    const encoded = this.#channel.encode({ ...message, request: name });
    return { name, encoded, options, slot: undefined, id: 0, sentAt: 0, outcome: undefined, settle: undefined, promise: undefined };
  }

  #wait(entry: Entry): Message {
    const until = performance.now() + SPIN_US / 1000;
    do this.#poll();
    while (entry.outcome === undefined && performance.now() < until);
    const bell = this.#channel.clientBell;
    while (entry.outcome === undefined) {
      const before = Atomics.load(this.#channel.words, bell);
      this.#poll(SLICE_MS);
      if (entry.outcome === undefined) sleepOn(this.#channel.addressOf(bell), before, SLICE_MS);
    }
    if ('error' in entry.outcome) throw entry.outcome.error;
    return entry.outcome.answer;
  }

  /** Takes the answers that are there, and sends what there is room for. */
  #poll(lookMs = LOOK_MS): void {
    const now = performance.now();
    if (now - this.#lastLook >= lookMs) this.#look();
    if (!this.#stopped) this.#clock += Math.min(now - this.#lastPoll, 2 * SLICE_MS);
    this.#lastPoll = now;
    for (const entry of this.#sent.values()) this.#collect(entry);
    this.#send();
  }

  #look(): void {
    if (this.#lost !== undefined) return;
    this.#lastLook = performance.now();
    const seen = this.#peer.look();
    this.#stopped = seen === 'stopped';
    if (typeof seen === 'string') return;
    // What it answered before it went is still there.
    for (const entry of this.#sent.values()) this.#collect(entry);
    this.fail(seen);
  }

  #collect(entry: Entry): void {
    const { words } = this.#channel;
    const slot = entry.slot as Slot;
    const state = Atomics.load(words, slot.word + SLOT.state);
    if (state === STATE.asked || state === STATE.taken) {
      const limit = entry.options.limitMs ?? LIMIT_MS;
      if (this.#clock - entry.sentAt > limit) this.#giveUp(`did not answer ${entry.name} within ${limit / 1000} s`);
      return;
    }
    const message = state === STATE.answered && words[slot.word + SLOT.id] === entry.id ? this.#channel.read(slot) : undefined;
    if (message === undefined) {
      this.#giveUp('damaged the memory that it shares with its host');
      return;
    }
    const failed = words[slot.word + SLOT.failed] !== 0;
    Atomics.store(words, slot.word + SLOT.state, STATE.free);
    this.#sent.delete(slot);
    this.#settle(entry, failed ? { error: toError(message) } : { answer: message });
  }

  #giveUp(what: string): void {
    this.fail(new GpuosError('GPUOS_DEVICE_LOST', `The device process ${what}.`));
    this.#peer.end();
  }

  #settle(entry: Entry, outcome: NonNullable<Entry['outcome']>): void {
    entry.outcome = outcome;
    entry.settle?.();
  }

  #send(): void {
    if (this.#queue.length === 0) return;
    const { words, slots } = this.#channel;
    const largest = Math.max(...slots.map(({ bytes }) => bytes));
    this.#queue = this.#queue.filter((entry) => {
      const bytes = entry.options.largeAnswer ? largest : sizeOf(entry.encoded);
      const slot = slots.find((candidate) => candidate.bytes >= bytes && !this.#sent.has(candidate));
      if (slot === undefined) return true;
      const lane = LANE[entry.options.lane ?? 'quick'];
      entry.slot = slot;
      entry.id = this.#nextId;
      entry.sentAt = this.#clock;
      this.#nextId = (this.#nextId + 1) | 0;
      this.#channel.write(slot, entry.encoded);
      words[slot.word + SLOT.id] = entry.id;
      words[slot.word + SLOT.lane] = lane;
      this.#sent.set(slot, entry);
      Atomics.store(words, slot.word + SLOT.state, STATE.asked);
      this.#channel.ring(this.#channel.serverBell(lane));
      return false;
    });
  }

  /** Looks for answers in turns of the event loop, for as long as a promise waits for one. */
  #pump(): void {
    if (this.#pumping) return;
    this.#pumping = true;
    let turns = 0;
    const turn = (): void => {
      this.#poll();
      this.#pumping = this.#listeners > 0;
      if (!this.#pumping) return;
      if (turns++ < EAGER_TURNS) setImmediate(turn);
      else setTimeout(turn, 1);
    };
    turn();
  }
}
