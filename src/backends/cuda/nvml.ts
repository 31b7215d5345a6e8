/**
 * NVML, for looking only: what `nvidia-smi` shows of a GPU. Nothing here changes a setting of the device.
 *
 * A quantity that the device does not have, or that this user may not read, is undefined.
 */
import { CudaError, SUCCESS } from './cuda-error.ts';
import { findLibrary, type SearchResult } from './discovery.ts';
import { type Address, type Library, loadLibrary, out64, textOf, toAddress } from './library.ts';

const RESULT = 'int';
const SIGNATURES = {
  nvmlInit_v2: [RESULT],
  nvmlShutdown: [RESULT],
  nvmlErrorString: ['str', 'int'],
  nvmlSystemGetDriverVersion: [RESULT, 'void *', 'unsigned int'],
  nvmlDeviceGetCount_v2: [RESULT, 'unsigned int *'],
  nvmlDeviceGetHandleByIndex_v2: [RESULT, 'unsigned int', 'uint64_t *'],
  nvmlDeviceGetHandleByPciBusId_v2: [RESULT, 'str', 'uint64_t *'],
  nvmlDeviceGetName: [RESULT, 'uint64_t', 'void *', 'unsigned int'],
  nvmlDeviceGetUtilizationRates: [RESULT, 'uint64_t', 'void *'],
  nvmlDeviceGetMemoryInfo: [RESULT, 'uint64_t', 'void *'],
  nvmlDeviceGetPowerUsage: [RESULT, 'uint64_t', 'unsigned int *'],
  nvmlDeviceGetTotalEnergyConsumption: [RESULT, 'uint64_t', 'uint64_t *'],
} as const;

/** `NVML_ERROR_NOT_SUPPORTED` and `NVML_ERROR_NO_PERMISSION`. */
const ABSENT = new Set([3, 4]);

export interface GpuState {
  readonly name: string;
  /** Share of the last sample period, 1/6 to 1 s, in which a kernel ran, in percent: 100 under a resident kernel. */
  readonly busyPercent: number | undefined;
  /** Of all processes. */
  readonly usedBytes: number | undefined;
  readonly totalBytes: number | undefined;
  readonly powerMilliwatts: number | undefined;
  /** Since the driver was loaded; differences over time give mean power. */
  readonly energyMillijoules: number | undefined;
}

export class Nvml {
  readonly path: string;
  readonly from: string;
  readonly #functions: Library<typeof SIGNATURES>['functions'];

  /** @throws GPUOS_CUDA_UNAVAILABLE, GPUOS_CUDA_TOO_OLD, GPUOS_PACKAGE_MISSING (see `loadLibrary`), CudaError GPUOS_CUDA_CALL_FAILED */
  constructor(search: SearchResult = findLibrary('nvml')) {
    const { path, from, functions } = loadLibrary('nvml', search, SIGNATURES);
    this.path = path;
    this.from = from;
    this.#functions = functions;
    this.#check('nvmlInit_v2', functions.nvmlInit_v2());
  }

  /** `580.159.04`. */
  driverVersion(): string {
    const version = new Uint8Array(80);
    this.#check('nvmlSystemGetDriverVersion', this.#functions.nvmlSystemGetDriverVersion(version, version.length));
    return textOf(version);
  }

  /** All GPUs of the machine, also those that `CUDA_VISIBLE_DEVICES` hides. */
  deviceCount(): number {
    const count = new Uint32Array(1);
    this.#check('nvmlDeviceGetCount_v2', this.#functions.nvmlDeviceGetCount_v2(count));
    return count[0]!;
  }

  /** @param which NVML's index, or a PCI bus id as the driver gives it (their orders differ) */
  device(which: number | string): Address {
    const handle = out64();
    if (typeof which === 'number') {
      this.#check('nvmlDeviceGetHandleByIndex_v2', this.#functions.nvmlDeviceGetHandleByIndex_v2(which, handle));
    } else {
      this.#check('nvmlDeviceGetHandleByPciBusId_v2', this.#functions.nvmlDeviceGetHandleByPciBusId_v2(which, handle));
    }
    return toAddress(handle[0]!);
  }

  state(device: Address): GpuState {
    const functions = this.#functions;
    const name = new Uint8Array(96);
    this.#check('nvmlDeviceGetName', functions.nvmlDeviceGetName(device, name, name.length));
    // nvmlUtilization_t is { unsigned gpu, memory }, nvmlMemory_t { unsigned long long total, free, used }.
    const utilization = new Uint32Array(2);
    const memory = new BigUint64Array(3);
    const power = new Uint32Array(1);
    const energy = out64();
    const has = (call: keyof typeof SIGNATURES, result: number) => !ABSENT.has(result) && this.#check(call, result);
    const busy = has('nvmlDeviceGetUtilizationRates', functions.nvmlDeviceGetUtilizationRates(device, utilization));
    const sizes = has('nvmlDeviceGetMemoryInfo', functions.nvmlDeviceGetMemoryInfo(device, memory));
    const watts = has('nvmlDeviceGetPowerUsage', functions.nvmlDeviceGetPowerUsage(device, power));
    const joules = has('nvmlDeviceGetTotalEnergyConsumption', functions.nvmlDeviceGetTotalEnergyConsumption(device, energy));
    return {
      name: textOf(name),
      busyPercent: busy ? utilization[0] : undefined,
      usedBytes: sizes ? toAddress(memory[2]!) : undefined,
      totalBytes: sizes ? toAddress(memory[0]!) : undefined,
      powerMilliwatts: watts ? power[0] : undefined,
      energyMillijoules: joules ? toAddress(energy[0]!) : undefined,
    };
  }

  close(): void {
    this.#check('nvmlShutdown', this.#functions.nvmlShutdown());
  }

  #check(call: keyof typeof SIGNATURES, result: number): true {
    if (result === SUCCESS) return true;
    const resultName = String(this.#functions.nvmlErrorString(result));
    throw new CudaError('GPUOS_CUDA_CALL_FAILED', `${call} answered ${resultName} (${result}).`, { call, result, resultName });
  }
}
