import { GpuosError } from '../../../errors.ts';
import type { Program } from '../../../ops/program.ts';
import type { Artifact } from '../../backend.ts';
import { emitProgram, programHeaders } from '../codegen/index.ts';
import { ImageCache } from '../image-cache.ts';
import type { Address } from '../library.ts';
import type { DeviceProcess } from '../process/device-process.ts';
import type { Pending } from '../process/channel-client.ts';
import type { Ask, Swapped } from '../process/requests.ts';
import { OPERATOR_OPTIONS, operatorHeaders } from '../source.ts';
import { type BytecodeBlock, BytecodeMemory, FunctionNumbers, type Functions, ProgramArtifact } from './functions.ts';
import { INTERPRETER } from './function-mirror.ts';
import { RESIDENT_OBJECT } from './resident-image.ts';
import { tableSource } from './table-source.ts';

/** Operators that are ready wait so long for others that are still being compiled: a link takes about as long as one of them. */
const COLLECT_MS = 500;
/** From one relaunch to the next at least so many times as long as the kernel was away: all of them together take 1%. */
const REST_TIMES = 100;
const LEAST_REST_MS = 50;
/** How long the kernel admits nothing for the sake of a relaunch, where tasks take long. Then it goes on, and is asked again later. */
const DRAIN_MS = 10;
const BUSY_REST_MS = 50;
const MOST_BUSY_REST_MS = 2000;
/** The same where the caller has to wait for the new code anyway. */
const CALLER_DRAIN_MS = 10_000;
/** A wait for the device goes on with what nobody has gone on with for so long: a shorter one is not to become longer by it. */
const IDLE_MS = 2;
/** A wait looks whether it can once in so many turns; a power of two. */
const LOOKS = 64;

export interface RelaunchOptions {
  /** The first function that is not the kernel's own, and how many there are in all. */
  readonly first: number;
  readonly limit: number;
  /** BYTECODE_BYTES of device memory. */
  readonly bytecode: Address;
  /** Whether programs are interpreted until they are compiled; otherwise the caller waits for compiler, linker and relaunch. */
  readonly tiered: boolean;
}

interface Request {
  /** Of its own for every source: all are linked together. */
  readonly symbol: string;
  readonly key: string;
  readonly ask: Ask<'compile'>;
}

interface Installed {
  readonly bytecode: BytecodeBlock | undefined;
  readonly request: Request;
}

/** What the background waits for: an answer of the device process, or a time. */
type Awaited = Pick<Pending<unknown>, 'done' | 'promise'> | { readonly until: number };
type Steps<T = void> = Generator<Awaited, T, void>;

type Batch = readonly (readonly [fn: number, installed: Installed])[];

/**
 * Functions whose code the driver loads, as NVIDIA documents it. A new function is an entry of the interpreter with its
 * program's bytecode. Meanwhile it is compiled and linked with the resident kernel and all others in use, while the old
 * kernel goes on; then the kernel is replaced by the new image, and the entry's address becomes that of the code. The
 * kernel is away for about a millisecond then, so what becomes ready at about the same time goes into one image.
 *
 * A link takes tens of ms and the kernel is not stopped for it, so the caller may install and uninstall functions at any
 * point of it, or, where a program cannot be interpreted, put an image of its own in between.
 *
 * All that goes on in turns of the event loop, and where the program waits for the device: one that only ever waits with
 * the event loop blocked gets its code too.
 */
export class RelaunchFunctions implements Functions {
  readonly #process: DeviceProcess;
  readonly #cache: ImageCache;
  readonly #tiered: boolean;
  readonly #numbers: FunctionNumbers;
  readonly #bytecode: BytecodeMemory;
  readonly #headers = { ...operatorHeaders(), ...programHeaders() };
  readonly #constant: string;
  readonly #installed = new Map<number, Installed>();
  /** Functions that run interpreted and are to be compiled, by number, oldest first. */
  readonly #waiting = new Map<number, Installed>();
  /** Symbols of operators that the process keeps the relocatable code of. */
  readonly #objects = new Set<string>();
  /** Symbols that the running image has, and that the image has which is being made; and how many images there were. */
  #linked: ReadonlySet<string> = new Set();
  #linking: ReadonlySet<string> | undefined;
  #images = 0;
  /** The kernel is about to be replaced. */
  #swapping: { readonly wanted: ReadonlySet<string>; readonly pending: Pending<Swapped> } | undefined;
  #tables = 0;
  /** Why these stay interpreted. */
  readonly #refused = new Map<string, GpuosError>();
  /** What goes on in the background, what it waits for, and since when there has been something. */
  #background: Steps | undefined;
  #awaited: Awaited | undefined;
  #since = 0;
  #looks = 0;
  #failed: string | undefined;
  #notBefore = 0;

  constructor(process: DeviceProcess, cache: ImageCache, options: RelaunchOptions) {
    this.#process = process;
    this.#cache = cache;
    this.#tiered = options.tiered;
    this.#numbers = new FunctionNumbers(options.first, options.limit);
    this.#bytecode = new BytecodeMemory(options.bytecode);
    const { computeCapability, nvrtcVersion } = process.info;
    this.#constant = ImageCache.key(['linked operator', this.#headers, OPERATOR_OPTIONS, computeCapability, nvrtcVersion]);
  }

  get state(): { readonly compiling: number; readonly failed: string | undefined } {
    return { compiling: this.#waiting.size + Number(this.#background !== undefined), failed: this.#failed };
  }

  compile(program: Program): Artifact {
    return new ProgramArtifact(program);
  }

  install(artifact: Artifact): number {
    const { program, bytes } = artifact as ProgramArtifact;
    const fn = this.#numbers.take();
    try {
      const request = this.#request(program);
      const block = this.#tiered && !this.#usable(request.symbol) && bytes.length > 0 ? this.#bytecode.take(bytes.length) : undefined;
      const installed = { bytecode: block, request };
      if (block === undefined) {
        if (!this.#usable(request.symbol)) this.#bringNow(request);
        this.#process.call('enter', { entries: [[fn, request.symbol, 0]] });
        this.#installed.set(fn, installed);
        return fn;
      }
      this.#process.call('write', { address: block.address, payload: bytes });
      this.#process.call('enter', { entries: [[fn, INTERPRETER, block.address]] });
      this.#installed.set(fn, installed);
      if (!this.#refused.has(request.symbol)) {
        this.#waiting.set(fn, installed);
        void this.#improve();
      }
    } catch (error) {
      this.#numbers.giveBack(fn);
      throw error;
    }
    return fn;
  }

  /** No task names it any more. Its code goes with the next image. */
  uninstall(fn: number): void {
    const installed = this.#installed.get(fn);
    if (installed === undefined) return;
    this.#installed.delete(fn);
    this.#numbers.giveBack(fn);
    if (installed.bytecode !== undefined) this.#bytecode.giveBack(installed.bytecode);
  }

  /** Whether an entry may name it: the running image has it, and so has the one that may take its place at any moment. */
  #usable(symbol: string): boolean {
    return this.#linked.has(symbol) && (this.#linking === undefined || this.#linking.has(symbol));
  }

  /** What an image has to have: what entries name, and these. */
  #wanted(more: Iterable<string>): Set<string> {
    const wanted = new Set<string>();
    for (const { request } of this.#installed.values()) {
      if (this.#linked.has(request.symbol) || this.#linking?.has(request.symbol) === true) wanted.add(request.symbol);
    }
    for (const symbol of more) wanted.add(symbol);
    return wanted;
  }

  whileWaiting(): void {
    if (this.#background === undefined || (++this.#looks & (LOOKS - 1)) !== 0) return;
    // A short wait is not to become longer by what somebody else has time for.
    if (performance.now() - this.#since > IDLE_MS) this.#step();
  }

  /** Has what goes on in the background go on in turns of the event loop; while the program waits for the device it does too. */
  async #improve(): Promise<void> {
    if (this.#background !== undefined) return;
    this.#background = this.#improveAll();
    this.#since = performance.now();
    for (this.#step(); this.#awaited !== undefined; this.#step()) {
      if ('until' in this.#awaited) await rest(this.#awaited.until - performance.now());
      // Whoever takes the answer is told if there is none.
      else await this.#awaited.promise.catch(() => {});
    }
  }

  /** As far as it gets without waiting. */
  #step(): void {
    // What it does may itself wait for the device process, but never for the device: it is not entered twice.
    while (this.#background !== undefined && isOver(this.#awaited)) {
      const { value, done } = this.#background.next();
      this.#awaited = done === true ? undefined : value;
      if (done === true) this.#background = undefined;
    }
  }

  /** Compiles what still needs it, one after another, and brings what is ready into the kernel together. */
  *#improveAll(): Steps {
    while (this.#waiting.size > 0 && this.#process.lost === undefined) {
      const ready: [fn: number, installed: Installed][] = [];
      let since = Number.POSITIVE_INFINITY;
      do {
        for (const [fn, installed] of this.#waiting) {
          this.#waiting.delete(fn);
          // Nobody needs it any more, or another one has its number.
          if (this.#installed.get(fn) !== installed) continue;
          try {
            yield* this.#compileLater(installed.request);
            ready.push([fn, installed]);
            since = Math.min(since, performance.now());
          } catch (error) {
            this.#refuse(installed.request.symbol, error);
          }
          if (performance.now() - since > COLLECT_MS) break;
        }
        yield { until: this.#notBefore };
      } while (this.#waiting.size > 0 && performance.now() - since <= COLLECT_MS);
      yield* this.#bring(ready);
    }
    this.#waiting.clear();
  }

  /** Puts an image with these into the kernel's place. Of several that cannot be together, each half is tried by itself. */
  *#bring(all: Batch): Steps {
    const batch = all.filter(([fn, installed]) => this.#installed.get(fn) === installed);
    const symbols = [...new Set(batch.map(([, { request }]) => request.symbol))];
    if (symbols.length === 0) return;
    try {
      yield* this.#relink(symbols);
      // From here to the entries nothing else of this thread runs: they are still whose they were, and the image is that one.
      const entries = batch.filter(([fn, installed]) => this.#installed.get(fn) === installed);
      this.#process.call('enter', { entries: entries.map(([fn, { request }]) => [fn, request.symbol]) });
    } catch (error) {
      if (this.#process.lost !== undefined) return;
      if (symbols.length === 1) return this.#refuse(symbols[0]!, error);
      const half = new Set(symbols.slice(0, symbols.length >> 1));
      yield* this.#bring(batch.filter(([, { request }]) => half.has(request.symbol)));
      yield* this.#bring(batch.filter(([, { request }]) => !half.has(request.symbol)));
    }
  }

  *#relink(symbols: readonly string[]): Steps {
    // Again if the caller's own thread has put an image there in the meantime: this one was made without what that has.
    for (;;) {
      if (symbols.every((symbol) => this.#usable(symbol))) return;
      const images = this.#images;
      const superseded = (): boolean => this.#images !== images;
      const wanted = this.#wanted(symbols);
      this.#linking = wanted;
      try {
        const table = this.#tableAsk(wanted);
        yield* answerOf(this.#process.post('compile', table));
        const { image } = yield* answerOf(this.#process.post('link', this.#linkAsk(wanted, table.keep)));
        let busyRest = BUSY_REST_MS;
        while (!superseded()) {
          const pending = this.#process.post('swap', { image, symbols: [...wanted], drainMs: DRAIN_MS });
          this.#swapping = { wanted, pending };
          const answer = yield* answerOf(pending);
          if (superseded()) break;
          if (answer.swapped) return this.#swapped(wanted, answer);
          this.#swapping = undefined;
          yield { until: performance.now() + busyRest };
          busyRest = Math.min(2 * busyRest, MOST_BUSY_REST_MS);
        }
      } finally {
        if (!superseded()) this.#linking = this.#swapping = undefined;
      }
    }
  }

  /** The same for a caller that waits. @throws GPUOS_COMPILE_FAILED, GPUOS_DEVICE_BUSY, CudaError */
  #bringNow(request: Request): void {
    const { symbol } = request;
    const refused = this.#refused.get(symbol);
    if (refused !== undefined) throw refused;
    if (!this.#objects.has(symbol)) {
      const known = this.#cache.read(request.key);
      if (known !== undefined) this.#process.call('keep', { name: symbol, payload: known });
      else this.#cache.write(request.key, this.#process.call('compile', request.ask).payload);
      this.#objects.add(symbol);
    }
    // Which image runs has to be known.
    if (this.#swapping !== undefined) {
      const { wanted, pending } = this.#swapping;
      const answer = outcome(() => pending.wait());
      if (answer?.swapped === true) this.#swapped(wanted, answer);
    }
    const wanted = this.#wanted([symbol]);
    const table = this.#tableAsk(wanted);
    this.#process.call('compile', table);
    const { image } = this.#process.call('link', this.#linkAsk(wanted, table.keep));
    const answer = this.#process.call('swap', { image, symbols: [...wanted], drainMs: CALLER_DRAIN_MS });
    if (!answer.swapped) {
      const text = `Tasks ran for more than ${CALLER_DRAIN_MS / 1000} s while a new operator waited for their end.`;
      throw new GpuosError('GPUOS_DEVICE_BUSY', text);
    }
    this.#swapped(wanted, answer);
  }

  #swapped(wanted: ReadonlySet<string>, { pauseUs }: Extract<Swapped, { swapped: true }>): void {
    this.#linked = wanted;
    this.#linking = this.#swapping = undefined;
    this.#images++;
    this.#notBefore = performance.now() + Math.max(LEAST_REST_MS, (REST_TIMES * pauseUs) / 1000);
  }

  *#compileLater({ symbol, key, ask }: Request): Steps {
    if (this.#objects.has(symbol)) return;
    const known = this.#cache.read(key);
    if (known !== undefined) yield* answerOf(this.#process.post('keep', { name: symbol, payload: known }));
    else this.#cache.write(key, (yield* answerOf(this.#process.post('compile', ask))).payload);
    this.#objects.add(symbol);
  }

  #tableAsk(wanted: ReadonlySet<string>): Ask<'compile'> & { readonly keep: string } {
    const keep = `table ${++this.#tables}`;
    return { source: tableSource([...wanted]), headers: operatorHeaders(), name: 'table.cu', options: OPERATOR_OPTIONS, keep };
  }

  #linkAsk(wanted: ReadonlySet<string>, table: string): Ask<'link'> {
    const needed = new Set([...wanted, ...[...this.#installed.values()].map(({ request }) => request.symbol)]);
    const forget = [...this.#objects].filter((symbol) => !needed.has(symbol));
    for (const symbol of forget) this.#objects.delete(symbol);
    return { names: [RESIDENT_OBJECT, ...wanted, table], forget: [table, ...forget] };
  }

  /** It runs as it is; a lost device is told to whoever waits for a task. */
  #refuse(symbol: string, error: unknown): void {
    this.#failed = (error as Error).message;
    if (this.#process.lost === undefined && error instanceof GpuosError) this.#refused.set(symbol, error);
  }

  #request(program: Program): Request {
    const key = ImageCache.key([this.#constant, emitProgram(program, 'gpuos_operator')]);
    const symbol = `gpuos_operator_${key.slice(0, 32)}`;
    const source = emitProgram(program, symbol);
    return { symbol, key, ask: { source, headers: this.#headers, name: 'operator.cu', options: OPERATOR_OPTIONS, keep: symbol } };
  }
}

/** @throws what the answer was instead */
function* answerOf<T>(pending: Pending<T>): Steps<T> {
  yield pending;
  return pending.wait();
}

const isOver = (awaited: Awaited | undefined): boolean =>
  awaited === undefined || ('until' in awaited ? performance.now() >= awaited.until : awaited.done);

/** Undefined for a failure, which somebody else is told. */
function outcome<T>(action: () => T): T | undefined {
  try {
    return action();
  } catch {
    return undefined;
  }
}

const rest = async (ms: number): Promise<void> => {
  // It does not keep the program alive.
  if (ms > 0) await new Promise<void>((resolve) => void setTimeout(resolve, ms).unref());
};
