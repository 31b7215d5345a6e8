import { GpuosError } from '../errors.ts';
import { cacheFolder, readFlags } from '../flags.ts';
import type { Device, DeviceKind } from './backend.ts';
import { CudaDevice } from './cuda/device.ts';
import { WasmDevice, type WasmDeviceOptions } from './wasm/device.ts';

export type DeviceOptions = WasmDeviceOptions;

/** What `auto` stands for, whether or not there is a GPU: docs/decisions/0017. */
export const AUTO_DEVICE = 'wasm';

/** The device that is meant. */
export function chosenDevice(kind: DeviceKind | 'auto'): DeviceKind {
  return kind === 'auto' ? AUTO_DEVICE : kind;
}

/** The one place that chooses a device. @throws GPUOS_UNKNOWN_DEVICE */
export function createDevice(asked: DeviceKind | 'auto', options: DeviceOptions): Device {
  const kind = chosenDevice(asked);
  if (kind === 'wasm') return new WasmDevice(options);
  if (kind === 'cuda') {
    const { cudaHome, cudaCompile: compile, cudaInject: inject, cudaCublas: products, cudaAside: aside, home } = readFlags();
    return new CudaDevice({ ...options, cudaHome, compile, inject, products, aside, cacheFolder: cacheFolder(home) });
  }
  throw new GpuosError('GPUOS_UNKNOWN_DEVICE', `Device "${kind}" is not available in this build; there are: wasm, cuda.`);
}
