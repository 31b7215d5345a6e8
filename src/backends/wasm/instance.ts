import { existsSync, readFileSync } from 'node:fs';
import { CONTROL_ADDRESS, FUNCTION_SLOTS, ABI_VERSION } from '../../abi/status.ts';
import { control } from '../../abi/records.ts';
import { GpuosError } from '../../errors.ts';
import { Installer } from './code-store.ts';

/** What the device module exports to the thread that runs it. */
export interface Executor {
  step(worker: number, shared: number): number;
  run(worker: number): number;
  help(worker: number, limit: number, shared: number): number;
  failTile(worker: number, status: number): number;
  recover(worker: number, status: number): number;
}

/** What a thread needs to run the executor; handed from the host to the supervisor to the workers. */
export interface ExecutorSource {
  readonly memory: WebAssembly.Memory;
  readonly module: WebAssembly.Module;
  readonly code: SharedArrayBuffer;
  /** Names of the built-in device functions, in the order of their function indices from 1 on. */
  readonly kernels: readonly string[];
}

/** A file that the build makes: beside this one in `dist`, or there when this one runs from `src`. */
export function builtFile(name: string): URL {
  const here = new URL(name, import.meta.url);
  const built = existsSync(here) ? here : new URL(`../../../dist/backends/wasm/${name}`, import.meta.url);
  if (!existsSync(built)) throw new GpuosError('GPUOS_ABI_MISMATCH', `The device module ${name} has not been built (npm run build).`);
  return built;
}

/** @throws GPUOS_ABI_MISMATCH */
export function loadModule(faultPoints: boolean): WebAssembly.Module {
  const name = faultPoints ? 'device.fault.wasm' : 'device.wasm';
  const bytes = readFileSync(builtFile(name));
  try {
    return new WebAssembly.Module(bytes);
  } catch (cause) {
    throw new GpuosError('GPUOS_ABI_MISMATCH', `The device module ${name} does not compile: ${(cause as Error).message}.`, { cause });
  }
}

/** Instantiates the device module in this thread, with a function table of its own. @throws GPUOS_ABI_MISMATCH */
export function instantiate(
  source: ExecutorSource,
  fault?: (point: number, worker: number) => void,
): { executor: Executor; installer: Installer } {
  const version = new Uint32Array(source.memory.buffer)[(CONTROL_ADDRESS + control.offset.abiVersion) >> 2];
  if (version !== ABI_VERSION)
    throw new GpuosError('GPUOS_ABI_MISMATCH', `Shared memory has layout ${version}; this build has ${ABI_VERSION}.`);
  const table = new WebAssembly.Table({ initial: FUNCTION_SLOTS, element: 'anyfunc' });
  const installer = new Installer(source.code, table, source.memory);
  let instance: WebAssembly.Instance;
  try {
    instance = new WebAssembly.Instance(source.module, {
      env: { memory: source.memory, table, install: installer.install, fault: fault ?? (() => {}) },
      // AssemblyScript names the imports of its files after them.
      executor: { install: installer.install, fault: fault ?? (() => {}) },
    });
  } catch (cause) {
    if (!(cause instanceof WebAssembly.LinkError)) throw cause;
    throw new GpuosError('GPUOS_ABI_MISMATCH', `The device module wants other imports: ${cause.message}.`, { cause });
  }
  source.kernels.forEach((name, index) => {
    const kernel = instance.exports[name];
    if (typeof kernel !== 'function') throw new GpuosError('GPUOS_ABI_MISMATCH', `The device module has no function ${name}.`);
    table.set(index + 1, kernel as () => number);
  });
  return { executor: instance.exports as unknown as Executor, installer };
}
