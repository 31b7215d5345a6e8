import { statfsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { cacheFolder, readFlags } from '../flags.ts';
import { injectionText } from './cuda/injection/verdict.ts';
import { type CudaProbe, probe } from './cuda/probe.ts';
import { WasmMemory } from './wasm/memory.ts';
import { loadModule } from './wasm/instance.ts';

/** What was found of one device, and what would be needed where it cannot be used. */
export interface DeviceReport {
  readonly kind: 'wasm' | 'cuda';
  readonly usable: boolean;
  readonly name: string;
  readonly details: Readonly<Record<string, string | number | boolean>>;
  /** What is missing, and how to get it. */
  readonly missing: readonly { readonly what: string; readonly remedy: string }[];
  /** cuda: all that was found, and every folder that was searched. */
  readonly probe?: CudaProbe;
}

/**
 * Every device that this build knows of, whether or not it can be used here. Starts nothing; loads the CUDA libraries
 * where there are any. @throws GPUOS_BAD_FLAG, GPUOS_UNKNOWN_FLAG
 */
export function inspectDevices(): DeviceReport[] {
  return [inspectWasm(), inspectCuda()];
}

function inspectWasm(): DeviceReport {
  const missing: { what: string; remedy: string }[] = [];
  const details: Record<string, string | number | boolean> = {
    cores: availableParallelism(),
    workers: Math.max(0, availableParallelism() - 1),
  };
  try {
    const memory = new WasmMemory(4096, 1 << 20);
    details['memoryLimitMib'] = Math.floor(memory.limit / 2 ** 20);
  } catch (error) {
    missing.push({ what: (error as Error).message, remedy: 'Run Node.js 20.3 or newer without flags that disable SharedArrayBuffer.' });
  }
  try {
    loadModule(false);
  } catch (error) {
    missing.push({
      what: (error as Error).message,
      remedy: 'Build the package (npm run build), on a CPU with WebAssembly SIMD support in Node.js.',
    });
  }
  return { kind: 'wasm', usable: missing.length === 0, name: 'embedded WebAssembly device', details, missing };
}

function sharedRoom(): string {
  try {
    const { bavail, bsize } = statfsSync('/dev/shm');
    return `${Math.floor((bavail * bsize) / 2 ** 20)} MiB that /dev/shm has free`;
  } catch {
    return 'nothing: there is no /dev/shm';
  }
}

function inspectCuda(): DeviceReport {
  const { cudaHome, cudaInject, cudaCublas, home, memoryMib } = readFlags();
  const found = probe({ cudaHome });
  const { driver, nvrtc, cublas } = found.libraries;
  const details: Record<string, string | number | boolean> = { driverFound: driver.path !== undefined };
  if (driver.path) {
    details['driver'] = `${driver.version ?? 'version not known without NVML'}, CUDA ${found.cuda} (${driver.path})`;
  }
  if (nvrtc.path) details['compiler'] = `NVRTC ${nvrtc.version} (${nvrtc.path}, found by ${nvrtc.from})`;
  if (cudaCublas === 'off') details['largeProducts'] = 'in the resident kernel: GPUOS_CUDA_CUBLAS=off';
  else {
    details['largeProducts'] = cublas.path
      ? `cuBLAS ${cublas.version} (${cublas.path}, found by ${cublas.from})`
      : `in the resident kernel: ${cublas.problem ?? 'no cuBLAS was found'}`;
  }
  if (found.ready) {
    details['injection'] = injectionText(cudaInject, found, cacheFolder(home));
    details['memory'] = `${memoryMib} MiB for tensors, up to 256 MiB shared with the host, of ${sharedRoom()}`;
  }
  for (const gpu of found.gpus) {
    const memory = `${Math.round(gpu.memoryBytes / 2 ** 20)} MiB`;
    const state = [
      gpu.usedBytes === undefined ? undefined : `${Math.round(gpu.usedBytes / 2 ** 20)} MiB used`,
      gpu.busyPercent === undefined ? undefined : `${gpu.busyPercent}% busy`,
      gpu.powerMilliwatts === undefined ? undefined : `${Math.round(gpu.powerMilliwatts / 1000)} W`,
    ].filter((part) => part !== undefined);
    details[`gpu${gpu.ordinal}`] =
      `${gpu.name}, compute capability ${gpu.computeCapability}, ${gpu.sms} SMs, ${memory}${state.length > 0 ? `, ${state.join(', ')}` : ''}`;
  }
  return {
    kind: 'cuda',
    usable: found.ready,
    name: found.gpus[0]?.name ?? 'NVIDIA GPU',
    details,
    missing: found.missing,
    probe: found,
  };
}
