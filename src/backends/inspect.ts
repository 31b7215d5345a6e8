import { availableParallelism } from 'node:os';
import { existsSync } from 'node:fs';
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
}

const DRIVER_PATHS = [
  '/usr/lib/x86_64-linux-gnu/libcuda.so.1',
  '/usr/lib/aarch64-linux-gnu/libcuda.so.1',
  '/usr/lib64/libcuda.so.1',
  '/usr/lib/wsl/lib/libcuda.so.1',
];

/** Every device that this build knows of, whether or not it can be used here. Starts nothing. */
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

function inspectCuda(): DeviceReport {
  const driver = DRIVER_PATHS.find((path) => existsSync(path));
  return {
    kind: 'cuda',
    usable: false,
    name: 'NVIDIA GPU',
    details: { driverFound: driver !== undefined },
    missing: [
      ...(driver === undefined
        ? [{ what: 'the NVIDIA driver (libcuda.so.1)', remedy: 'Install the driver for your GPU; the wasm device works without it.' }]
        : []),
      { what: 'the CUDA device of gpuos', remedy: 'It is not part of this version; the wasm device is used instead.' },
    ],
  };
}
