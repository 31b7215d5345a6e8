import type { CudaError } from '../cuda-error.ts';
import type { CudaDriver } from '../driver.ts';
import type { Address } from '../library.ts';
import type { BlockShape } from './block-room.ts';
import type { Swapped, TableEntry } from './requests.ts';

/** What the device process has when it starts a resident kernel. */
export interface ResidentContext {
  readonly driver: CudaDriver;
  readonly device: number;
  /** The segment of rings and staging: where this process and where the device sees it. */
  readonly segment: { readonly address: Address; readonly deviceAddress: Address; readonly bytes: number; readonly view: ArrayBuffer };
  /** Device memory that the host may then write and copy to; given back with the process. @throws GPUOS_OUT_OF_MEMORY */
  allocate(bytes: number): Address;
}

/**
 * A resident kernel in the device process. Every method runs on the thread that has the context. A CudaError of code
 * GPUOS_DEVICE_LOST, from whichever of them, ends the process.
 */
export interface ResidentHost {
  /** Loads and launches it. Both objects are JSON; the answer reaches the host. */
  start(options: Readonly<Record<string, unknown>>, image: Uint8Array | undefined): Readonly<Record<string, unknown>>;
  /** Whether it has left, for whatever reason. Asked about every 100 ms. @throws CudaError if it left by a fault */
  readonly left: boolean;
  /** What a block of it takes of its multiprocessor. */
  readonly block: BlockShape;
  /** Asked as often, while it runs. @throws GPUOS_DEVICE_LOST if it is at a task that can only be ended with the process */
  watch(): void;
  /** Whether there is what can only be given back while no kernel runs, and nobody has needed the kernel for a while. Asked as often. */
  readonly mayTidy: boolean;
  /** Gives it back: the kernel is away for a moment. `meanwhile` is as of `swap`. @throws CudaError if it could not be launched again */
  tidy(meanwhile: () => void): void;
  /** Of a fault of the device: the tasks that may have caused it, told to who waits for them. The error says so too. */
  explain(fault: CudaError): CudaError;
  /** Launches again a kernel that has left, with the queues as they stand; `quit` is 0 again by then. */
  relaunch(): void;
  /** Publishes, behind what is on the stream, how a task ended whose work was done beside the kernel. */
  endExternal(queue: number, sequence: number, status: number, stream: Address): void;
  /**
   * Tells the kernel to leave as soon as nothing runs, and puts behind it on its stream a task's work, the task's end, and the
   * kernel again, without waiting for any of it. Undefined if it is to leave for another reason already; else why the work
   * could not be launched, if so. @throws CudaError of a fault, and what is none
   */
  stepAside(queue: number, sequence: number, work: (stream: Address) => void): { readonly error?: CudaError } | undefined;
  /**
   * Puts another image in the place of the running one: tells the kernel to leave when what runs is complete, loads the
   * image, has its functions' addresses written into the table, and launches it where the other one stood. `symbols`
   * are the functions that the image's table kernel tells addresses of, in its order: at least one. What cannot be done before the
   * kernel has left is done then, and nothing else. If tasks take longer than `drainMs`, the kernel goes on as it was;
   * also, with an error, where the image cannot be loaded or launched. `meanwhile` is called again and again while tasks are waited for: some need this thread.
   * @throws CudaError, GPUOS_BAD_OPTION; GPUOS_DEVICE_LOST if neither image runs
   */
  swap(image: Uint8Array, symbols: readonly string[], drainMs: number, meanwhile: () => void): Swapped;
  /** Writes entries of the table of functions. They stay what they are when the image is another one. @throws GPUOS_BAD_OPTION */
  enter(entries: readonly TableEntry[]): void;
  /** Tells it to leave and waits until it has. */
  stop(): void;
}

/** What a module that implements this exports as `createResidentHost`. */
export type ResidentHostFactory = (context: ResidentContext) => ResidentHost;
