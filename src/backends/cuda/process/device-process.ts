import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { constants } from 'node:os';
import { fileURLToPath } from 'node:url';
import { GpuosError } from '../../../errors.ts';
import { firstLine } from '../library.ts';
import { Channel, channelBytes, CHILD, type Message } from './channel.ts';
import { ChannelClient, type Pending, type RequestOptions } from './channel-client.ts';
import { toError, toFailure } from './failure.ts';
import { childState, sleepOn } from './libc.ts';
import type { MainStart } from './main.ts';
import { type Answer, type Ask, type DeviceInfo, isSlow, type Pause, type RequestName } from './requests.ts';
import { SharedSegment } from './segment.ts';

const START_LIMIT_MS = 60_000;
/** How long it may take over leaving. */
const STOP_LIMIT_MS = 2000;
const SLICE_MS = 5;
const ARENA_BYTES = 16 << 20;
/** What a signal's number is called. */
const SIGNALS = new Map(Object.entries(constants.signals).map(([name, number]) => [number as number, name]));

export interface DeviceProcessOptions {
  /** Rings, completions and staging; the control block stands in it. The process inherits it, so it needs no name. Stays the caller's, also when the process is gone. */
  readonly segment: SharedSegment;
  /** The device's number. Default 0. */
  readonly ordinal?: number;
  /** `GPUOS_CUDA_HOME`. */
  readonly cudaHome?: string | undefined;
  /** The file URL of a module with a `ResidentHostFactory` called `createResidentHost`; without it there is no `start`. */
  readonly hostModule?: string;
  /** Memory for injected code. Default 16 MiB. */
  readonly arenaBytes?: number;
  /** How long until it is ready. Default 60 s: where drivers have many GPUs to wake they take long. */
  readonly startLimitMs?: number;
  /** Default: that of this process. */
  readonly environment?: Readonly<Record<string, string | undefined>>;
}

export interface CallOptions {
  /** How long the process may take before it is given up. Default 60 s. */
  readonly limitMs?: number;
}

/**
 * The process that has the CUDA context, as its parent sees it. Starting, asking and noticing its end work while the
 * event loop is blocked. Belongs to the thread that started it.
 *
 * It does not keep the program alive, and does not outlive it: it leaves when told, or when it sees that its parent is
 * gone. Its memory has no name, so nothing of it stays behind. (The parent is a process: a worker thread that is
 * terminated leaves its device process to the program's end.)
 */
export class DeviceProcess {
  readonly pid: number;
  readonly info: DeviceInfo;
  readonly #child: ChildProcess;
  readonly #memory: SharedSegment;
  readonly #channel: Channel;
  readonly #client: ChannelClient;
  /** How it ended, once Node.js has taken notice: its number may be another process's then. */
  #ended: string | undefined;
  #why: string | undefined;
  #stopping: Promise<void> | undefined;

  /**
   * Starts it and waits until it is ready.
   * @throws GPUOS_CUDA_UNAVAILABLE, GPUOS_CUDA_TOO_OLD, GPUOS_PACKAGE_MISSING, GPUOS_OUT_OF_MEMORY, CudaError: whatever
   *   keeps it from that, with the remedy
   */
  static start(options: DeviceProcessOptions): DeviceProcess {
    return new DeviceProcess(options);
  }

  private constructor(options: DeviceProcessOptions) {
    const { segment, ordinal = 0, arenaBytes = ARENA_BYTES, startLimitMs = START_LIMIT_MS } = options;
    if (segment.descriptor < 0) throw new GpuosError('GPUOS_BAD_OPTION', 'The segment of the device process has been closed.');
    const main = builtFile('main.js');
    this.#memory = SharedSegment.create(channelBytes());
    this.#channel = Channel.create(this.#memory.view, this.#memory.address);
    const start: MainStart = {
      parent: process.pid,
      ordinal,
      arenaBytes,
      channelBytes: this.#memory.bytes,
      segmentBytes: segment.bytes,
      ...(options.cudaHome === undefined ? {} : { cudaHome: options.cudaHome }),
      ...(options.hostModule === undefined ? {} : { hostModule: options.hostModule }),
    };
    // Options for Node.js are those of the program: a debugger's would make it wait.
    const { NODE_OPTIONS: _, ...environment } = options.environment ?? process.env;
    try {
      this.#child = spawn(process.execPath, [main, JSON.stringify(start)], {
        env: { ...environment, CUDA_MODULE_LOADING: 'EAGER' },
        stdio: ['ignore', 'ignore', 'inherit', this.#memory.descriptor, segment.descriptor],
      });
    } catch (cause) {
      this.#memory.close();
      throw new GpuosError('GPUOS_CUDA_UNAVAILABLE', `The device process cannot be started: ${firstLine(cause)}.`, { cause });
    }
    // What it says of a process that could not be started comes with a turn of the event loop; there is no number now.
    this.#child.on('error', () => {});
    this.#child.on('exit', (code, signal) => {
      this.#ended = signal === null ? endingText(code ?? undefined, undefined) : `was ended by ${signal}`;
      live.delete(this);
    });
    this.#child.unref();
    if (this.#child.pid === undefined) {
      this.#memory.close();
      throw new GpuosError('GPUOS_CUDA_UNAVAILABLE', `The device process cannot be started: ${process.execPath} does not run.`);
    }
    this.pid = this.#child.pid;
    live.add(this);
    hookExit();
    this.#client = new ChannelClient(this.#channel, { look: () => this.#look(), end: () => this.#kill() });
    try {
      this.#awaitReady(startLimitMs);
      this.info = this.call('info', {});
    } catch (error) {
      this.#kill();
      live.delete(this);
      this.#memory.close();
      throw error;
    }
  }

  /** Asks, and waits for the answer. @throws what the request failed with; GPUOS_DEVICE_LOST if the process is gone */
  call<K extends RequestName>(name: K, ask: Ask<K>, options: CallOptions = {}): Answer<K> {
    return this.#client.call(name, ask as unknown as Message, requestOptions(name, options)) as Answer<K>;
  }

  /** Asks; the answer comes later, and answers in any order. */
  post<K extends RequestName>(name: K, ask: Ask<K>, options: CallOptions = {}): Pending<Answer<K>> {
    const pending = this.#client.post(name, ask as unknown as Message, requestOptions(name, options));
    return pending as unknown as Pending<Answer<K>>;
  }

  /** Why it answers nothing any more; undefined while it lives. Some ms old. `stop` gives back what is left of a lost one. */
  get lost(): string | undefined {
    const { lost } = this.#client;
    return lost === undefined ? undefined : toFailure(lost).message;
  }

  /** What the resident kernel is doing, as the process last saw it: see `KERNEL`. */
  get kernel(): number {
    return this.#channel.kernel;
  }

  /** How many times the kernel was replaced by one with other code, and how long in us it was away the last time. */
  get swaps(): { readonly count: number } & Pause {
    return this.#channel.swaps;
  }

  /** How many times the kernel was launched again because it had left by itself. */
  get relaunches(): number {
    return this.#channel.relaunches;
  }

  /** Ends it at once, for a reason that `lost` tells from here on: when an operator does not come back. */
  kill(why: string): void {
    this.#why ??= why;
    this.#client.fail(gone({ why }));
    this.#kill();
  }

  /** Has it stop the kernel and leave, for at most two seconds; then it is ended. Never rejects. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    this.#client.fail(new GpuosError('GPUOS_SHUT_DOWN', 'The device process has been stopped.'));
    this.leave();
    const from = performance.now();
    let deadFor = 0;
    // Node.js says that it has ended, unless something else in this program has waited for the child before it could.
    while (this.#ended === undefined && deadFor < 20) {
      await new Promise((resolve) => setTimeout(resolve, SLICE_MS));
      if (childState(this.pid).state === 'ended') deadFor++;
      else if (performance.now() - from > STOP_LIMIT_MS) this.#kill();
    }
    this.#memory.close();
  }

  /** Tells it to leave, without waiting; for the end of the program. */
  leave(): void {
    this.#channel.leave();
    // It could not hear that while it is stopped.
    if (this.#ended === undefined && childState(this.pid).state === 'stopped') this.#child.kill('SIGCONT');
  }

  #kill(): void {
    if (this.#ended === undefined) this.#child.kill('SIGKILL');
  }

  #look(): GpuosError | 'running' | 'stopped' {
    const seen = this.#seen();
    return typeof seen === 'string' ? seen : gone(seen);
  }

  /** Whether it lives; if not, why. */
  #seen(): 'running' | 'stopped' | Ending {
    if (this.#why !== undefined) return { why: this.#why };
    const child = this.#channel.child;
    if (child === CHILD.failed || child === CHILD.lost) {
      const cause = toError(this.#channel.reason);
      return { why: toFailure(cause).message, cause };
    }
    if (this.#ended !== undefined) return { why: `it ${this.#ended}` };
    const seen = childState(this.pid);
    if (seen.state !== 'ended') return seen.state;
    // Between the first look and this one it may have said why.
    return this.#channel.child === child ? { why: `it ${endingText(seen.code, seen.signal)}` } : this.#seen();
  }

  #awaitReady(limitMs: number): void {
    const { clientBell, words } = this.#channel;
    let waited = 0;
    for (;;) {
      const before = Atomics.load(words, clientBell);
      if (this.#channel.child === CHILD.ready) return;
      const seen = this.#seen();
      if (typeof seen === 'object') {
        // It said what it lacks, or it had no time to.
        if (seen.cause !== undefined) throw seen.cause;
        const text = `The device process could not start: ${seen.why}; what it wrote to stderr says more.`;
        throw new GpuosError('GPUOS_CUDA_UNAVAILABLE', text);
      }
      if (waited > limitMs) throw new GpuosError('GPUOS_CUDA_UNAVAILABLE', `The device process was not ready within ${limitMs / 1000} s.`);
      const from = performance.now();
      sleepOn(this.#channel.addressOf(clientBell), before, SLICE_MS);
      if (seen === 'running') waited += Math.min(performance.now() - from, 2 * SLICE_MS);
    }
  }
}

interface Ending {
  readonly why: string;
  /** The error that it ended by, where it could tell. */
  readonly cause?: GpuosError;
}

function gone({ why, cause }: Ending): GpuosError {
  return new GpuosError('GPUOS_DEVICE_LOST', `The device process is gone: ${why.replace(/\.$/, '')}.`, { cause });
}

function endingText(code: number | undefined, signal: number | undefined): string {
  if (signal !== undefined) return `was ended by ${SIGNALS.get(signal) ?? `signal ${signal}`}`;
  return code === undefined ? 'ended' : `ended with exit code ${code}`;
}

function requestOptions(name: RequestName, options: CallOptions): RequestOptions {
  return { lane: isSlow(name) ? 'compile' : 'quick', largeAnswer: isSlow(name), ...options };
}

/** Those that have to be told when this program ends. */
const live = new Set<DeviceProcess>();
let hooked = false;

function hookExit(): void {
  if (hooked) return;
  hooked = true;
  process.on('exit', () => {
    for (const one of live) one.leave();
  });
}

/** A file that the build makes: beside this one in `dist`, or there when this one runs from `src`. */
function builtFile(name: string): string {
  const here = new URL(name, import.meta.url);
  const built = existsSync(here) ? here : new URL(`../../../../dist/backends/cuda/process/${name}`, import.meta.url);
  if (!existsSync(built)) throw new GpuosError('GPUOS_ABI_MISMATCH', `The device process (${name}) has not been built (npm run build).`);
  return fileURLToPath(built);
}
