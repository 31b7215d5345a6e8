import type { CudaDriver } from '../driver.ts';
import type { Address } from '../library.ts';

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
  /** Launches again a kernel that has left, with the queues as they stand; `quit` is 0 again by then. */
  relaunch(): void;
  /** Tells it to leave and waits until it has. */
  stop(): void;
}

/** What a module that implements this exports as `createResidentHost`. */
export type ResidentHostFactory = (context: ResidentContext) => ResidentHost;
