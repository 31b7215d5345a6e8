/**
 * A limit for calls that must not wait for the resident kernel, but might: the first use of code that is not on the device
 * yet waits for the kernel's end, and the thread that made the call could not tell the kernel to leave any more. Another
 * thread counts its beats, and tells it.
 */

const WORD = { beats: 0, told: 1 } as const;
/** That the kernel is being told, in the place of what is left. */
const LATE = -1;
/** Beats that a call may last. */
const BEATS = 10;

export class CallGuard {
  readonly shared: SharedArrayBuffer;
  readonly #words: Int32Array;

  constructor(shared = new SharedArrayBuffer(8)) {
    this.shared = shared;
    this.#words = new Int32Array(shared);
  }

  /** Whether the call took so long that the kernel was told to leave; then it has to be launched again. */
  run(action: () => void): { readonly late: boolean; readonly error: unknown } {
    let error: unknown;
    Atomics.store(this.#words, WORD.told, 0);
    Atomics.store(this.#words, WORD.beats, BEATS);
    try {
      action();
    } catch (thrown) {
      error = thrown;
    }
    const late = Atomics.exchange(this.#words, WORD.beats, 0) === LATE;
    // Telling it twice would tell the one that is launched next.
    if (late) while (Atomics.load(this.#words, WORD.told) === 0) Atomics.wait(this.#words, WORD.told, 0, 1);
    return { late, error };
  }

  /** The other thread's, at each of its beats. */
  beat(tellToLeave: () => void): void {
    const left = Atomics.load(this.#words, WORD.beats);
    if (left <= 0) return;
    const next = left === 1 ? LATE : left - 1;
    if (Atomics.compareExchange(this.#words, WORD.beats, left, next) !== left || next !== LATE) return;
    tellToLeave();
    Atomics.store(this.#words, WORD.told, 1);
  }
}
