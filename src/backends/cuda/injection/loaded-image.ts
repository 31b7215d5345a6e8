import type { CudaDriver, LaunchShape } from '../driver.ts';
import type { Address } from '../library.ts';

/** What launches of kernels other than the resident one look like. */
const SMALL = { grid: [1], block: [32] } as const;

/** An image of the resident kernel on the device, with its kernels. Loading and unloading wait for running kernels to end. */
export class LoadedImage {
  /** Of the file: about as much as it takes of the device's memory. */
  readonly bytes: number;
  readonly #driver: CudaDriver;
  readonly #module: Address;
  readonly #kernel: Address;
  readonly #fill: Address;
  readonly #end: Address;
  /** The kernel that tells the addresses of what was linked to it: see `table-source.ts`. */
  readonly #tell: Address | undefined;

  /** @param loaded called when it is on the device, before its kernels are looked up. @throws CudaError */
  constructor(driver: CudaDriver, image: Uint8Array, tells?: string, loaded: () => void = () => {}) {
    this.#driver = driver;
    this.bytes = image.length;
    this.#module = driver.loadModule(image);
    try {
      loaded();
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

  get staticSharedBytes(): number {
    return this.#driver.functionAttribute(this.#kernel, 'staticSharedBytes');
  }

  launch(shape: LaunchShape, argument: DataView): void {
    this.#driver.launch(this.#kernel, shape, [argument]);
  }

  /** Has the kernel's own functions written into the table of functions, and their slots into that of operators. */
  fillTable(argument: DataView, stream: Address): void {
    this.#driver.launch(this.#fill, { ...SMALL, stream }, [argument]);
  }

  /** Has the addresses of what was linked to it written to `told`, 8 bytes each, and then so many moves made: see `table-source.ts`. */
  tellAddresses(told: Address, moves: Address, count: number, stream: Address): void {
    if (this.#tell !== undefined) this.#driver.launch(this.#tell, { ...SMALL, stream }, [told, moves, count]);
  }

  /**
   * Publishes, behind what is on the stream, how a task ended whose work was done beside the kernel; or in its place, and then the
   * kernel may be launched again behind that.
   */
  endExternal(argument: DataView, task: readonly [queue: number, sequence: number, status: number], stream: Address, aside = false): void {
    this.#driver.launch(this.#end, { ...SMALL, stream }, [argument, ...task, Number(aside)]);
  }

  unload(): void {
    this.#driver.unloadModule(this.#module);
  }
}
