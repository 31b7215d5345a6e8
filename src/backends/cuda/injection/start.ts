import { FUNCTION_SLOTS } from '../../../abi/status.ts';
import { GpuosError } from '../../../errors.ts';
import { ImageCache } from '../image-cache.ts';
import { type SegmentLayout, writeSegment } from '../layout.ts';
import type { Address } from '../library.ts';
import { DeviceProcess } from '../process/device-process.ts';
import { childState } from '../process/libc.ts';
import type { Answer, Ask } from '../process/requests.ts';
import type { SharedSegment } from '../process/segment.ts';
import type { ResidentStart, ResidentStarted } from '../resident.ts';
import { DirectFunctions, type Staging } from './direct.ts';
import { BYTECODE_BYTES, type Functions, type InjectionMode } from './functions.ts';
import { RelaunchFunctions } from './relaunch.ts';
import { residentImage } from './resident-image.ts';
import { SELF_TEST_TASKS, selfTest } from './self-test.ts';
import { Verdicts } from './verdict.ts';

const HOST_MODULE = new URL('../resident.js', import.meta.url).href;
/** How long the driver may take to give back what a process had that was ended. */
const AGAIN_MS = 10_000;
const PAUSE_MS = 100;

export interface KernelOptions {
  readonly segment: SharedSegment;
  readonly layout: SegmentLayout;
  /** Device memory for tensors. */
  readonly bytes: number;
  /** BYTECODE_BYTES of the segment, from here on. */
  readonly staging: number;
  readonly cudaHome: string | undefined;
  readonly cacheFolder: string;
  /** Whether programs run interpreted while they are compiled. */
  readonly tiered: boolean;
  readonly inject: 'auto' | InjectionMode;
  /** The kernel's own functions, by their slots. */
  readonly names: readonly string[];
  /** How long a task may run; undefined: for ever. */
  readonly taskBudgetMs: number | undefined;
  /** How long the kernel's start may take. */
  readonly startLimitMs: number;
  /** What else the process is asked for with it. */
  readonly more: Partial<Omit<Ask<'start'>, 'options' | 'payload'>>;
}

/** How new code gets into the running kernel, and what decided that. */
export interface Injection {
  readonly mode: InjectionMode;
  readonly why: string;
}

export interface StartedKernel {
  readonly process: DeviceProcess;
  readonly answer: Answer<'start'>;
  readonly started: ResidentStarted;
  /** The memory for tensors. */
  readonly memory: Address;
  readonly functions: Functions;
  readonly injection: Injection;
}

/**
 * Starts the device process and the kernel in it, with the way of injection that was asked for, or the one that works:
 * `direct` is tested, and where it fails the process is ended and another one started for `relaunch`.
 * @throws GPUOS_CUDA_UNAVAILABLE, GPUOS_CUDA_TOO_OLD, GPUOS_OUT_OF_MEMORY, GPUOS_COMPILE_FAILED, CudaError
 */
export function startKernel(options: KernelOptions): StartedKernel {
  const cache = new ImageCache(options.cacheFolder);
  const process = open(options);
  const start = (again: DeviceProcess, injection: Injection, before = 0): StartedKernel => {
    try {
      return launch(again, cache, options, injection, before);
    } catch (error) {
      void again.stop();
      throw error;
    }
  };
  if (options.inject !== 'auto') return start(process, { mode: options.inject, why: 'asked for by GPUOS_CUDA_INJECT' });
  const verdicts = new Verdicts(cache, process.info);
  const known = verdicts.read();
  if (known?.works === false) return start(process, { mode: 'relaunch', why: failed(known.why) });
  const kernel = start(process, { mode: 'direct', why: 'its self-test passed' }, SELF_TEST_TASKS);
  const { buffer, byteOffset, length } = wordsOf(options.segment);
  const failure = selfTest({
    process,
    cache,
    words: new Int32Array(buffer, byteOffset, length),
    layout: begun(options.layout, SELF_TEST_TASKS),
    started: kernel.started,
    controlSlot: options.names.indexOf('controlTable'),
    nopSlot: options.names.indexOf('nop'),
  });
  if (failure === undefined) {
    if (known === undefined) verdicts.write({ works: true, why: '' });
    return kernel;
  }
  if (failure.remember) verdicts.write({ works: false, why: failure.why });
  end(process, failure.why);
  return start(reopen(options), { mode: 'relaunch', why: failed(failure.why) });
}

const failed = (why: string): string => `the self-test of direct injection failed: ${why.replace(/\.$/, '')}`;

const wordsOf = ({ view }: SharedSegment): Uint32Array => new Uint32Array(view);

/** A layout whose queues begin so many tasks before. */
const begun = (layout: SegmentLayout, before: number): SegmentLayout => ({
  ...layout,
  firstSequence: (layout.firstSequence - before) >>> 0,
});

function open({ segment, cudaHome }: KernelOptions): DeviceProcess {
  return DeviceProcess.start({ segment, cudaHome, hostModule: HOST_MODULE });
}

/** Ends a process whose kernel may be hanging, and waits for that. */
function end(process: DeviceProcess, why: string): void {
  process.kill(why);
  for (const until = performance.now() + AGAIN_MS; childState(process.pid).state !== 'ended' && performance.now() < until; ) pause();
  void process.stop();
}

/** The device may be busy with the end of the one before. */
function reopen(options: KernelOptions): DeviceProcess {
  for (const until = performance.now() + AGAIN_MS; ; pause()) {
    try {
      return open(options);
    } catch (error) {
      if (performance.now() > until || !(error instanceof GpuosError)) throw error;
    }
  }
}

// Made when it is needed: this file is loaded with every program, also where there is no shared memory.
const pause = (): void => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, PAUSE_MS);

function launch(process: DeviceProcess, cache: ImageCache, options: KernelOptions, injection: Injection, before: number): StartedKernel {
  const { names, bytes } = options;
  const layout = begun(options.layout, before);
  writeSegment(wordsOf(options.segment), layout);
  const image = residentImage(process, cache, injection.mode === 'relaunch');
  // All memory before the kernel: tools that check a kernel's accesses know of what is there when it starts.
  const memory = process.call('allocate', { bytes }).address;
  const bytecode = process.call('allocate', { bytes: BYTECODE_BYTES }).address;
  const start: ResidentStart = {
    layout,
    controlSlot: names.indexOf('controlTable'),
    interpreterSlot: names.indexOf('interpret'),
    ...(options.taskBudgetMs !== undefined && { taskBudgetMs: options.taskBudgetMs }),
  };
  const ask = { options: { ...start }, payload: image, ...options.more };
  const answer = process.call('start', ask, { limitMs: options.startLimitMs });
  const started = answer.started as unknown as ResidentStarted;
  // Slot i has function i + 1; behind the last of them stands the one that is never called.
  const numbers = { first: names.length + 2, limit: FUNCTION_SLOTS, bytecode, tiered: options.tiered };
  const { interpreter, registers, stackBytes } = started;
  const functions =
    injection.mode === 'relaunch'
      ? new RelaunchFunctions(process, cache, numbers)
      : new DirectFunctions(process, cache, {
          ...numbers,
          interpreter,
          budget: { registers, stackBytes },
          staging: stagingOf(process, options),
        });
  return { process, answer, started, memory, functions, injection };
}

function stagingOf(process: DeviceProcess, { segment, staging }: KernelOptions): Staging {
  return { view: segment.view, offset: staging, address: process.info.segmentAddress + staging };
}
