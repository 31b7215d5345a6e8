import { isBefore } from '../../../abi/sequence.ts';
import { GpuosError } from '../../../errors.ts';
import { type Channel, type Encoded, type Message, SLOT, type Slot, sizeOf, STATE } from './channel.ts';
import { toFailure } from './failure.ts';
import { sleepOn } from './libc.ts';

/** How long to look before going to sleep: waking takes longer than most requests. */
const SPIN_US = 20;

/** Serves the requests of one lane, on the thread that calls `serve`. */
export class ChannelServer {
  readonly #channel: Channel;
  readonly #lane: number;

  constructor(channel: Channel, lane: number) {
    this.#channel = channel;
    this.#lane = lane;
  }

  /**
   * Answers what is there, the oldest first; how many that were. What `handle` throws becomes the answer. What `fatal`
   * is told of an error of `handle` and does not come back from is not answered.
   */
  serve(handle: (name: string, message: Message) => Message, fatal: (error: unknown) => void = () => {}): number {
    let served = 0;
    for (let slot = this.#next(); slot !== undefined; slot = this.#next(), served++) {
      let answer: Encoded;
      let failed = 0;
      try {
        const message = this.#channel.read(slot);
        if (typeof message?.['request'] !== 'string') throw new GpuosError('GPUOS_INTERNAL', 'A request that cannot be read.');
        answer = this.#channel.encode(handle(message['request'], message));
        if (sizeOf(answer) > slot.bytes) {
          throw new GpuosError(
            'GPUOS_INTERNAL',
            `An answer of ${sizeOf(answer)} bytes to ${message['request']}; ${slot.bytes} fit its slot.`,
          );
        }
      } catch (error) {
        fatal(error);
        failed = 1;
        answer = this.#failure(error, slot);
      }
      this.#channel.write(slot, answer);
      const { words } = this.#channel;
      words[slot.word + SLOT.failed] = failed;
      Atomics.compareExchange(words, slot.word + SLOT.state, STATE.taken, STATE.answered);
      this.#channel.ring(this.#channel.clientBell);
    }
    return served;
  }

  /** A compiler's log can be longer than the slot of a request. */
  #failure(error: unknown, slot: Slot): Encoded {
    const failure = toFailure(error);
    const whole = { json: Buffer.from(JSON.stringify(failure)), payload: undefined };
    if (sizeOf(whole) <= slot.bytes) return whole;
    return this.#channel.encode({ ...failure, message: `${failure.message.slice(0, slot.bytes / 8)}...` });
  }

  /** Takes the oldest request of the lane. */
  #next(): Slot | undefined {
    const { words, slots } = this.#channel;
    let oldest: Slot | undefined;
    for (const slot of slots) {
      if (Atomics.load(words, slot.word + SLOT.state) !== STATE.asked || words[slot.word + SLOT.lane] !== this.#lane) continue;
      if (oldest === undefined || isBefore(words[slot.word + SLOT.id]!, words[oldest.word + SLOT.id]!)) oldest = slot;
    }
    if (oldest === undefined) return undefined;
    const taken = Atomics.compareExchange(words, oldest.word + SLOT.state, STATE.asked, STATE.taken) === STATE.asked;
    return taken ? oldest : undefined;
  }

  /** Returns when there may be something to do, at the latest after so many ms. */
  wait(ms: number): void {
    const { words } = this.#channel;
    const bell = this.#channel.serverBell(this.#lane);
    const before = Atomics.load(words, bell);
    const until = performance.now() + SPIN_US / 1000;
    do if (this.#waiting() || Atomics.load(words, bell) !== before) return;
    while (performance.now() < until);
    sleepOn(this.#channel.addressOf(bell), before, ms);
  }

  #waiting(): boolean {
    const { words, slots } = this.#channel;
    if (this.#channel.leaving) return true;
    return slots.some(({ word }) => Atomics.load(words, word + SLOT.state) === STATE.asked && words[word + SLOT.lane] === this.#lane);
  }
}
