/**
 * What this machine has for the CUDA device, as a plain description: libraries, versions, GPUs, and for what is missing
 * how to get it. Makes no context and starts no kernel, and does not throw.
 */
import { ERRORS, GpuosError } from '../../errors.ts';
import { CublasLt } from './cublas.ts';
import { CudaError } from './cuda-error.ts';
import { findLibrary, LIBRARIES, type LibraryName, type SearchOptions } from './discovery.ts';
import { CudaDriver, cudaVersionText, OLDEST_COMPUTE_CAPABILITY } from './driver.ts';
import { koffi, label } from './library.ts';
import { Nvml } from './nvml.ts';
import { Nvrtc } from './nvrtc.ts';

export interface ProbedLibrary {
  /** What was loaded, or for libraries that are only looked for, would be tried first; undefined if there is none. */
  readonly path: string | undefined;
  /** What led there: a variable's name, `loader`, `toolkit`, `conda` or `pip`. */
  readonly from: string | undefined;
  readonly version: string | undefined;
  /** All files found, in order, and the folders that were searched for them. */
  readonly found: readonly string[];
  readonly tried: readonly string[];
  /** What is wrong with one that is there, or that none is, where it can be done without: that is not in `missing`. */
  readonly problem?: string;
}

export interface ProbedGpu {
  readonly ordinal: number;
  readonly name: string;
  readonly computeCapability: string;
  readonly sms: number;
  readonly memoryBytes: number;
  /** `0000:18:00.0`. */
  readonly pciBusId: string;
  /** Why it cannot run a resident kernel; empty if it can. */
  readonly unfit: readonly string[];
  /** As measured now; undefined without NVML, or where the device does not tell. */
  readonly busyPercent: number | undefined;
  readonly usedBytes: number | undefined;
  readonly powerMilliwatts: number | undefined;
}

export interface CudaProbe {
  /** There are a driver, a compiler and a GPU that fits. */
  readonly ready: boolean;
  /** CUDA of the driver: `13.0`, and as 1000 major + 10 minor. */
  readonly cuda: string | undefined;
  readonly cudaVersion: number | undefined;
  readonly libraries: Readonly<Record<LibraryName, ProbedLibrary>>;
  readonly gpus: readonly ProbedGpu[];
  readonly missing: readonly { readonly what: string; readonly remedy: string }[];
}

export function probe(options: SearchOptions = {}): CudaProbe {
  const missing: { what: string; remedy: string }[] = [];
  const libraries = Object.fromEntries(
    (Object.keys(LIBRARIES) as LibraryName[]).map((name) => {
      const { candidates, unsupported, tried } = findLibrary(name, options);
      const files = candidates.filter(({ path }) => path.startsWith('/'));
      const [first] = files;
      const found = [...files, ...unsupported].map(({ path }) => path);
      return [name, { path: first?.path, from: first?.from, version: first?.version || undefined, found, tried }];
    }),
  ) as unknown as Record<LibraryName, ProbedLibrary>;

  try {
    koffi();
  } catch (error) {
    // Said once, not for each library.
    return { ready: false, cuda: undefined, cudaVersion: undefined, libraries, gpus: [], missing: [missingFrom('driver', error)] };
  }

  /** Runs a step; what it throws is something missing. */
  const step = <T>(name: LibraryName, action: () => T): T | undefined => {
    try {
      return action();
    } catch (error) {
      libraries[name] = { ...libraries[name], path: undefined, from: undefined, version: undefined };
      missing.push(missingFrom(name, error, libraries[name].found));
      return undefined;
    }
  };
  const loaded = (name: LibraryName, { path, from }: { path: string; from: string }, version: string | undefined) => {
    libraries[name] = { ...libraries[name], path, from, version };
  };

  let cuda: number | undefined;
  const driver = step('driver', () => {
    const opened = new CudaDriver(findLibrary('driver', options));
    cuda = opened.version();
    loaded('driver', opened, undefined);
    return opened;
  });
  const nvrtc = step('nvrtc', () => new Nvrtc(findLibrary('nvrtc', options), cuda === undefined ? undefined : Math.floor(cuda / 1000)));
  if (nvrtc) loaded('nvrtc', nvrtc, nvrtc.version.join('.'));
  // Without the driver NVML would only be missed a second time; and nothing depends on it.
  let nvml: Nvml | undefined;
  if (driver) {
    try {
      nvml = new Nvml(findLibrary('nvml', options));
      loaded('nvml', nvml, nvml.driverVersion());
      loaded('driver', driver, nvml.driverVersion());
    } catch {
      libraries.nvml = { ...libraries.nvml, path: undefined, from: undefined, version: undefined };
    }
  }
  // Large products are done by the resident kernel without it. (That it can be loaded says nothing of whether it runs beside one: the first product of each form finds out.)
  try {
    const opened = new CublasLt(findLibrary('cublas', options), cuda === undefined ? undefined : Math.floor(cuda / 1000));
    loaded('cublas', opened, opened.version);
  } catch (error) {
    const { what, remedy } = missingFrom('cublas', error, libraries.cublas.found);
    libraries.cublas = {
      ...libraries.cublas,
      path: undefined,
      from: undefined,
      version: undefined,
      problem: `${what} is missing. ${remedy}`,
    };
  }
  const gpus = driver && probeGpus(driver, nvml, nvrtc, missing);
  try {
    nvml?.close();
  } catch {
    // It was only looked at.
  }
  if (driver && gpus?.length === 0) missing.push({ what: 'a GPU', remedy: 'Check CUDA_VISIBLE_DEVICES and `nvidia-smi`.' });
  if (gpus && gpus.length > 0 && !gpus.some(({ unfit }) => unfit.length === 0)) {
    missing.push({
      what: `a GPU that fits (${gpus.map(({ name, unfit }) => `${name}: ${unfit.join(', ')}`).join('; ')})`,
      remedy: 'Use another GPU.',
    });
  }
  return {
    ready: missing.length === 0,
    cuda: cuda === undefined ? undefined : cudaVersionText(cuda),
    cudaVersion: cuda,
    libraries,
    gpus: gpus ?? [],
    missing,
  };
}

/** Undefined, with a reason in `missing`, where the driver does not start. */
function probeGpus(
  driver: CudaDriver,
  nvml: Nvml | undefined,
  nvrtc: Nvrtc | undefined,
  missing: { what: string; remedy: string }[],
): ProbedGpu[] | undefined {
  try {
    driver.initialize();
    return Array.from({ length: driver.deviceCount() }, (_, ordinal) => probeGpu(driver, nvml, nvrtc, ordinal));
  } catch (error) {
    missing.push(missingFrom('driver', error));
    return undefined;
  }
}

function probeGpu(driver: CudaDriver, nvml: Nvml | undefined, nvrtc: Nvrtc | undefined, ordinal: number): ProbedGpu {
  const device = driver.device(ordinal);
  const [major, minor] = driver.computeCapability(device);
  const [oldestMajor, oldestMinor] = OLDEST_COMPUTE_CAPABILITY;
  const unfit: string[] = [];
  if (major < oldestMajor || (major === oldestMajor && minor < oldestMinor)) {
    unfit.push(`compute capability ${major}.${minor}, ${oldestMajor}.${oldestMinor} is needed`);
  } else if (nvrtc && !nvrtc.architectures.includes(10 * major + minor)) {
    unfit.push(`NVRTC ${nvrtc.version.join('.')} does not compile for compute capability ${major}.${minor}; install a newer one`);
  }
  if (driver.deviceAttribute(device, 'kernelExecTimeout') !== 0) unfit.push('a display hangs on it, and the driver ends kernels that stay');
  if (driver.deviceAttribute(device, 'computeMode') === 2) unfit.push('its compute mode prohibits use');
  if (driver.deviceAttribute(device, 'hostRegisterSupported') === 0) unfit.push('it cannot map host memory that exists');
  const pciBusId = driver.pciBusId(device);
  let state: ReturnType<Nvml['state']> | undefined;
  try {
    state = nvml?.state(nvml.device(pciBusId));
  } catch {
    // Known to the driver but not to NVML: a container that hides it. The description goes without.
  }
  return {
    ordinal,
    name: driver.deviceName(device),
    computeCapability: `${major}.${minor}`,
    sms: driver.deviceAttribute(device, 'sms'),
    memoryBytes: driver.totalMemory(device),
    pciBusId,
    unfit,
    busyPercent: state?.busyPercent,
    usedBytes: state?.usedBytes,
    powerMilliwatts: state?.powerMilliwatts,
  };
}

/** What an error says, as something that is missing: after that word it is read. */
function missingFrom(name: LibraryName, error: unknown, found: readonly string[] = []): { what: string; remedy: string } {
  const { what, remedy } = label(name);
  if (!(error instanceof GpuosError)) return { what: `${what}: ${String(error)}`, remedy: ERRORS.GPUOS_INTERNAL };
  // The message without the code and the remedy that follow it.
  const text = error.message.slice(0, error.message.lastIndexOf(` [${error.code}]`)).trim();
  if (error.code === 'GPUOS_PACKAGE_MISSING') return { what: `the package koffi: ${text}`, remedy: error.remedy };
  if (error.code === 'GPUOS_CUDA_UNAVAILABLE' && !(error instanceof CudaError)) {
    return { what: found.length === 0 ? what : `${what}; cannot be loaded: ${found.join(', ')}`, remedy };
  }
  return { what: `${what.replace(/^the/, 'a usable')}: ${text}`, remedy: error.remedy };
}
