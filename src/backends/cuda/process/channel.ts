/**
 * Requests and answers between the host and its device process, in shared memory of their own.
 *
 * A request lies in a slot until the client has read its answer. The client alone takes free slots; a server thread
 * serves the slots of its lane, so that what is quick never waits for a compilation. Whoever changes a slot rings the
 * other side's bell, a word that grows, and wakes who sleeps on it: reading the bell, looking, then sleeping unless
 * the bell has changed loses no wake-up. Both sides can be blocked in a call or stopped at any point.
 *
 * A message is a JSON object, of which the property `payload` may be bytes. Sizes are checked on reading: a side that
 * has gone wrong must not take the other one with it.
 *
 * At the beginning stand the words that are no requests: what the device process is doing, why it ended, and whether it
 * is to leave.
 */
import { GpuosError } from '../../../errors.ts';
import type { Address } from '../library.ts';
import { toFailure } from './failure.ts';
import { wake } from './libc.ts';
import { PAUSE_PARTS, type Pause, type PauseParts } from './requests.ts';

export interface ChannelShape {
  /** Slots for messages of up to so many bytes, the smaller ones first. */
  readonly slots: readonly { readonly count: number; readonly bytes: number }[];
}

/** Room for operations' operands; and for sources and images, of which two are on their way at a time. */
export const CHANNEL_SHAPE: ChannelShape = {
  slots: [
    { count: 8, bytes: 64 << 10 },
    { count: 2, bytes: 4 << 20 },
  ],
};

/** Who serves a request. */
export const LANE = { quick: 0, compile: 1 } as const;
export type Lane = keyof typeof LANE;

/** What the device process is doing; from `failed` on it is at its end. */
export const CHILD = { starting: 0, ready: 1, failed: 2, lost: 3, left: 4 } as const;
/** What the resident kernel is doing; `relaunching`: it was told to leave, and comes back with other code. */
export const KERNEL = { none: 0, running: 1, left: 2, relaunching: 3 } as const;

/** Word indices; what different processes write stands in different lines. */
const WORD = {
  magic: 0,
  version: 1,
  child: 16,
  kernel: 17,
  relaunches: 18,
  reasonBytes: 19,
  reasonOwner: 20,
  swaps: 21,
  pauseUs: 22,
  /** One for each of PAUSE_PARTS. */
  pauseParts: 23,
  leave: 32,
  clientBell: 48,
  serverBells: 64,
} as const;
const LINE_WORDS = 16;
const REASON_AT = 1024;
const REASON_BYTES = 3072;
const SLOTS_AT = REASON_AT + REASON_BYTES;
const SLOT_BYTES = 64;
const PAGE = 4096;
const MAGIC = 0x4748_4350;
const VERSION = 1;

/** Word indices in a slot. */
export const SLOT = { state: 0, id: 1, lane: 2, jsonBytes: 3, payloadBytes: 4, failed: 5 } as const;
export const STATE = { free: 0, asked: 1, taken: 2, answered: 3 } as const;

export interface Slot {
  /** Index of its first word. */
  readonly word: number;
  /** Where its message lies, in bytes. */
  readonly at: number;
  readonly bytes: number;
}

export type Message = Readonly<Record<string, unknown>> & { readonly payload?: Uint8Array };

function planSlots({ slots }: ChannelShape): { readonly list: readonly Slot[]; readonly bytes: number } {
  const count = slots.reduce((sum, kind) => sum + kind.count, 0);
  let at = Math.ceil((SLOTS_AT + count * SLOT_BYTES) / PAGE) * PAGE;
  const list: Slot[] = [];
  for (const kind of slots) {
    for (let i = 0; i < kind.count; i++, at += kind.bytes) {
      list.push({ word: (SLOTS_AT + list.length * SLOT_BYTES) >> 2, at, bytes: kind.bytes });
    }
  }
  return { list, bytes: at };
}

export function channelBytes(shape: ChannelShape = CHANNEL_SHAPE): number {
  return planSlots(shape).bytes;
}

/** The memory of a channel, as a side sees it. */
export class Channel {
  readonly words: Int32Array;
  readonly slots: readonly Slot[];
  readonly #bytes: Uint8Array;
  readonly #address: Address;

  private constructor(view: ArrayBuffer, address: Address, shape: ChannelShape) {
    const { list, bytes } = planSlots(shape);
    if (view.byteLength < bytes) throw new GpuosError('GPUOS_ABI_MISMATCH', `A channel of ${view.byteLength} bytes; ${bytes} are needed.`);
    this.slots = list;
    this.words = new Int32Array(view, 0, view.byteLength >> 2);
    this.#bytes = new Uint8Array(view);
    this.#address = address;
  }

  /** A channel in new memory, which is zero. */
  static create(view: ArrayBuffer, address: Address, shape = CHANNEL_SHAPE): Channel {
    const channel = new Channel(view, address, shape);
    channel.words[WORD.version] = VERSION;
    Atomics.store(channel.words, WORD.magic, MAGIC);
    return channel;
  }

  /** A channel that the other side made. @throws GPUOS_ABI_MISMATCH */
  static open(view: ArrayBuffer, address: Address, shape = CHANNEL_SHAPE): Channel {
    const channel = new Channel(view, address, shape);
    if (Atomics.load(channel.words, WORD.magic) !== MAGIC || channel.words[WORD.version] !== VERSION) {
      throw new GpuosError('GPUOS_ABI_MISMATCH', `The channel is of version ${channel.words[WORD.version]}; this build has ${VERSION}.`);
    }
    return channel;
  }

  get child(): number {
    return Atomics.load(this.words, WORD.child);
  }

  get kernel(): number {
    return Atomics.load(this.words, WORD.kernel);
  }

  set kernel(state: number) {
    Atomics.store(this.words, WORD.kernel, state);
    this.ring(this.clientBell);
  }

  /** How many times the kernel was launched again because it had left. */
  get relaunches(): number {
    return Atomics.load(this.words, WORD.relaunches);
  }

  countRelaunch(): void {
    Atomics.add(this.words, WORD.relaunches, 1);
  }

  /** How many times the kernel was replaced by one with other code, and how long it was away the last time. */
  get swaps(): { readonly count: number } & Pause {
    const parts = PAUSE_PARTS.map((part, i) => [part, Atomics.load(this.words, WORD.pauseParts + i)]);
    return {
      count: Atomics.load(this.words, WORD.swaps),
      pauseUs: Atomics.load(this.words, WORD.pauseUs),
      parts: Object.fromEntries(parts) as PauseParts,
    };
  }

  countSwap({ pauseUs, parts }: Pause): void {
    Atomics.store(this.words, WORD.pauseUs, Math.round(pauseUs));
    for (const [i, part] of PAUSE_PARTS.entries()) Atomics.store(this.words, WORD.pauseParts + i, Math.round(parts[part]));
    Atomics.add(this.words, WORD.swaps, 1);
  }

  /** Moves the child from one state to another, with the reason; false if another thread did so first. */
  moveChild(from: number, to: number, reason?: unknown): boolean {
    if (reason !== undefined) {
      if (Atomics.compareExchange(this.words, WORD.reasonOwner, 0, 1) !== 0) return false;
      const failure = toFailure(reason);
      let bytes = Buffer.from(JSON.stringify(failure));
      // A message's end is the least of it. A character takes up to six bytes.
      if (bytes.length > REASON_BYTES) {
        bytes = Buffer.from(JSON.stringify({ ...failure, message: `${failure.message.slice(0, REASON_BYTES / 8)}...` }));
      }
      this.#bytes.set(bytes, REASON_AT);
      Atomics.store(this.words, WORD.reasonBytes, bytes.length);
    }
    const moved = Atomics.compareExchange(this.words, WORD.child, from, to) === from;
    this.ring(this.clientBell);
    return moved;
  }

  /** Why the child ended: a `Failure`, if it can be read. */
  get reason(): unknown {
    const bytes = Atomics.load(this.words, WORD.reasonBytes);
    if (bytes <= 0 || bytes > REASON_BYTES) return undefined;
    return parse(this.#bytes, REASON_AT, bytes);
  }

  get leaving(): boolean {
    return Atomics.load(this.words, WORD.leave) !== 0;
  }

  /** Tells the child to end. */
  leave(): void {
    Atomics.store(this.words, WORD.leave, 1);
    for (const lane of Object.values(LANE)) this.ring(this.serverBell(lane));
  }

  readonly clientBell: number = WORD.clientBell;

  serverBell(lane: number): number {
    return WORD.serverBells + lane * LINE_WORDS;
  }

  addressOf(word: number): Address {
    return this.#address + 4 * word;
  }

  ring(bell: number): void {
    Atomics.add(this.words, bell, 1);
    wake(this.addressOf(bell));
  }

  /** The bytes of a message, whole. @throws GPUOS_BAD_OPTION if it is larger than any slot */
  encode(message: Message): Encoded {
    const { payload, ...rest } = message;
    const encoded = { json: Buffer.from(JSON.stringify(rest)), payload };
    const largest = Math.max(...this.slots.map(({ bytes }) => bytes));
    if (sizeOf(encoded) > largest) {
      throw new GpuosError('GPUOS_BAD_OPTION', `A message of ${sizeOf(encoded)} bytes for the device process; ${largest} fit.`);
    }
    return encoded;
  }

  /** Puts a message into a slot that has room for it and is the caller's. */
  write(slot: Slot, { json, payload }: Encoded): void {
    this.#bytes.set(json, slot.at);
    if (payload !== undefined) this.#bytes.set(payload, slot.at + align(json.length));
    this.words[slot.word + SLOT.jsonBytes] = json.length;
    this.words[slot.word + SLOT.payloadBytes] = payload === undefined ? -1 : payload.length;
  }

  /** The message in a slot, its payload a copy; undefined if what stands there is none. */
  read(slot: Slot): Message | undefined {
    const json = Atomics.load(this.words, slot.word + SLOT.jsonBytes);
    const payload = Atomics.load(this.words, slot.word + SLOT.payloadBytes);
    if (json < 2 || json > slot.bytes || payload < -1 || (payload >= 0 && align(json) + payload > slot.bytes)) return undefined;
    const message = parse(this.#bytes, slot.at, json);
    if (typeof message !== 'object' || message === null || Array.isArray(message)) return undefined;
    if (payload < 0) return message as Message;
    const from = slot.at + align(json);
    return { ...message, payload: this.#bytes.slice(from, from + payload) };
  }
}

export interface Encoded {
  readonly json: Uint8Array;
  readonly payload: Uint8Array | undefined;
}

export const sizeOf = ({ json, payload }: Encoded): number => (payload === undefined ? json.length : align(json.length) + payload.length);

const align = (bytes: number): number => Math.ceil(bytes / 8) * 8;

function parse(bytes: Uint8Array, at: number, length: number): unknown {
  try {
    return JSON.parse(Buffer.from(bytes.buffer, bytes.byteOffset + at, length).toString('utf8'));
  } catch {
    return undefined;
  }
}
