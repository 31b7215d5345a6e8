import type { CudaDriver, LaunchShape } from '../driver.ts';
import type { Address } from '../library.ts';

/** What launches of kernels other than the resident one look like. */
const SMALL = { grid: [1], block: [32] } as const;

/** An image of the resident kernel on the device, with its kernels. Loading and unloading wait for running kernels to end. */
export class LoadedImage {
  readonly #driver: CudaDriver;
  readonly #module: Address;
  readonly #kernel: Address;
  readonly #fill: Address;
  readonly #end: Address;
  /** The kernel that tells the addresses of what was linked to it: see `table-source.ts`. */
  readonly #tell: Address | undefined;

  /** @throws CudaError */
  constructor(driver: CudaDriver, image: Uint8Array, tells: string | undefined) {
    this.#driver = driver;
    this.#module = driver.loadModule(image);
    try {
      this.#kernel = driver.moduleFunction(this.#module, 'gpuos_resident');
      this.#fill = driver.moduleFunction(this.#module, 'gpuos_fill_table');
      this.#end = driver.moduleFunction(this.#module, 'gpuos_external_end');
      this.#tell = tells === undefined ? undefined : driver.moduleFunction(this.#module, tells);
    } catch (error) {
      driver.unloadModule(this.#module);
      throw error;
    }
  }

  get registers(): number {
    return this.#driver.functionAttribute(this.#kernel, 'registers');
  }

  launch(shape: LaunchShape, argument: DataView): void {
    this.#driver.launch(this.#kernel, shape, [argument]);
  }

  /** Has the kernel's own functions written into the table of functions, and their slots into that of operators. */
  fillTable(argument: DataView, stream: Address): void {
    this.#driver.launch(this.#fill, { ...SMALL, stream }, [argument]);
  }

  /** Has the addresses of what was linked to it written to memory, 8 bytes each. */
  tellAddresses(to: Address, stream: Address): void {
    if (this.#tell !== undefined) this.#driver.launch(this.#tell, { ...SMALL, stream }, [to]);
  }

  /** Publishes, behind what is on the stream, how a task ended whose work was done beside the kernel. */
  endExternal(argument: DataView, task: readonly [queue: number, sequence: number, status: number], stream: Address): void {
    this.#driver.launch(this.#end, { ...SMALL, stream }, [argument, ...task]);
  }

  unload(): void {
    this.#driver.unloadModule(this.#module);
  }
}
