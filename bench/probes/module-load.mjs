/**
 * What loading an image onto the device takes, for the pause of a relaunch: the linked resident kernel and a small
 * image, as a module and as a library (CUDA 12), with the image before it unloaded or kept, eager and lazy; and which of
 * these calls wait for a kernel that runs. Each mode is a process of its own with a limit; the kernel that runs beside
 * ends by itself. One line of JSON a row, medians in us.
 *
 * usage: npm run build && timeout 90 node bench/probes/module-load.mjs
 */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { CudaDriver } from '../../dist/backends/cuda/driver.js';
import { findLibrary } from '../../dist/backends/cuda/discovery.js';
import { ImageCache } from '../../dist/backends/cuda/image-cache.js';
import { loadLibrary, out64, toAddress } from '../../dist/backends/cuda/library.js';
import { Nvrtc } from '../../dist/backends/cuda/nvrtc.js';
import { OPERATOR_OPTIONS, RESIDENT_OPTIONS, residentSource } from '../../dist/backends/cuda/source.js';
import { cacheFolder } from '../../dist/flags.js';

const REPEATS = 11;
const LIMIT_MS = 40_000;
/** How long the kernel beside runs, and from when on a call is taken to have waited for it. */
const SPIN_MS = 100;
const WAITED_US = 50_000;
const TABLE_BYTES = 1 << 19;
const SMALL = `extern "C" {
__device__ __noinline__ float twice(float x) { return x + x; }
__global__ void small(float *x) { *x = twice(*x); }
__global__ void spin(unsigned long long ns) {
  unsigned long long from, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(from));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - from < ns);
}
}`;
const LIBRARY = {
  cuLibraryLoadData: ['int', 'uint64_t *', 'void *', 'void *', 'void *', 'unsigned int', 'void *', 'void *', 'unsigned int'],
  cuLibraryUnload: ['int', 'uint64_t'],
  cuLibraryGetModule: ['int', 'uint64_t *', 'uint64_t'],
  cuLibraryGetKernel: ['int', 'uint64_t *', 'uint64_t', 'str'],
  cuKernelGetFunction: ['int', 'uint64_t *', 'uint64_t'],
};
const BINARY_IS_PRESERVED = 1;

if (process.argv[2] === undefined) {
  for (const mode of ['EAGER', 'LAZY']) {
    const { status, signal, stdout, stderr } = spawnSync(process.execPath, [fileURLToPath(import.meta.url), mode], {
      env: { ...process.env, CUDA_MODULE_LOADING: mode },
      timeout: LIMIT_MS,
      killSignal: 'SIGKILL',
      encoding: 'utf8',
    });
    process.stdout.write(stdout);
    process.stderr.write(stderr);
    if (status !== 0) console.log(JSON.stringify({ mode, ended: signal ?? status }));
  }
} else {
  measure(process.argv[2]);
}

function measure(mode) {
  const driver = new CudaDriver();
  driver.initialize();
  const device = driver.device(0);
  driver.setCurrent(driver.retainPrimaryContext(device));
  const { functions } = loadLibrary('driver', findLibrary('driver'), LIBRARY);
  const library = Object.fromEntries(
    Object.entries(functions).map(([name, call]) => [
      name,
      (...values) => {
        const returns = LIBRARY[name][1] === 'uint64_t *';
        const result = out64();
        const code = returns ? call(result, ...values) : call(...values);
        if (code !== 0) throw new Error(`${name}: ${driver.resultName(code)}`);
        return toAddress(result[0]);
      },
    ]),
  );
  const loadLibraryData = (image, preserved) =>
    preserved
      ? library.cuLibraryLoadData(image, null, null, 0, Int32Array.of(BINARY_IS_PRESERVED), BigUint64Array.of(1n), 1)
      : library.cuLibraryLoadData(image, null, null, 0, null, null, 0);

  const report = (what, times) => {
    const us = [...times].sort((a, b) => a - b).map(Math.round);
    console.log(JSON.stringify({ mode, loading: driver.moduleLoading(), what, us: us[us.length >> 1], least: us[0], most: us.at(-1) }));
  };
  const timed = (times, action) => {
    const from = performance.now();
    const result = action();
    times.push((performance.now() - from) * 1000);
    return result;
  };

  const { large, small } = images(driver, device);
  console.log(JSON.stringify({ mode, largeBytes: large.length, smallBytes: small.length }));
  const stream = driver.createStream();
  const memory = driver.allocate(2 * TABLE_BYTES);

  for (const [name, image, kernel, parameter] of [
    ['large', large, 'gpuos_fill_table', fillArgument(memory)],
    ['small', small, 'small', memory],
  ]) {
    const [load, lookup, first, second, unload] = [[], [], [], [], []];
    for (let i = 0; i < REPEATS; i++) {
      const module = timed(load, () => driver.loadModule(image));
      const fn = timed(lookup, () => driver.moduleFunction(module, kernel));
      for (const times of [first, second]) {
        timed(times, () => {
          driver.launch(fn, { grid: [1], block: [32], stream }, [parameter]);
          driver.synchronizeStream(stream);
        });
      }
      timed(unload, () => driver.unloadModule(module));
    }
    report(`${name}: cuModuleLoadData, the one before unloaded`, load);
    report(`${name}: cuModuleGetFunction`, lookup);
    report(`${name}: first launch of a small kernel of it, and its end`, first);
    report(`${name}: second launch`, second);
    report(`${name}: cuModuleUnload`, unload);
    const kept = [];
    const [keeping, letting] = [[], []];
    for (let i = 0; i < REPEATS; i++) kept.push(timed(keeping, () => driver.loadModule(image)));
    for (const module of kept) timed(letting, () => driver.unloadModule(module));
    report(`${name}: cuModuleLoadData, those before kept`, keeping);
    report(`${name}: cuModuleUnload, of those`, letting);

    for (const preserved of [false, true]) {
      const label = `${name}: library${preserved ? ', its bytes preserved' : ''}`;
      const [data, module, get, start, drop] = [[], [], [], [], []];
      for (let i = 0; i < REPEATS; i++) {
        const handle = timed(data, () => loadLibraryData(image, preserved));
        // Either the module or the kernel alone brings it onto the device.
        if (i % 2 === 0) timed(module, () => library.cuLibraryGetModule(handle));
        const fn = timed(i % 2 === 0 ? [] : get, () => library.cuKernelGetFunction(library.cuLibraryGetKernel(handle, kernel)));
        timed(start, () => {
          driver.launch(fn, { grid: [1], block: [32], stream }, [parameter]);
          driver.synchronizeStream(stream);
        });
        timed(drop, () => library.cuLibraryUnload(handle));
      }
      report(`${label}: cuLibraryLoadData`, data);
      report(`${label}: cuLibraryGetModule after it`, module);
      report(`${label}: cuKernelGetFunction after it instead`, get);
      report(`${label}: first launch, and its end`, start);
      report(`${label}: cuLibraryUnload`, drop);
    }
  }
  beside(driver, library, loadLibraryData, { large, small }, stream, (what, us) =>
    console.log(JSON.stringify({ mode, what: `beside a kernel: ${what}`, us: Math.round(us), waits: us > WAITED_US })),
  );
}

/** Each call while a kernel runs for SPIN_MS: whether it returns before that ends. */
function beside(driver, library, loadLibraryData, { large, small }, stream, tell) {
  const spin = driver.moduleFunction(driver.loadModule(small), 'spin');
  const known = driver.loadModule(large);
  const old = driver.loadModule(large);
  let handle;
  let kernel;
  const calls = {
    cuModuleGetFunction: () => driver.moduleFunction(known, 'gpuos_external_end'),
    cuLibraryLoadData: () => {
      handle = loadLibraryData(large, true);
    },
    cuLibraryGetKernel: () => {
      kernel = library.cuLibraryGetKernel(handle, 'gpuos_fill_table');
    },
    cuKernelGetFunction: () => library.cuKernelGetFunction(kernel),
    cuLibraryGetModule: () => library.cuLibraryGetModule(handle),
    cuModuleLoadData: () => driver.loadModule(large),
    cuModuleUnload: () => driver.unloadModule(old),
    cuLibraryUnload: () => library.cuLibraryUnload(handle),
  };
  for (const [name, call] of Object.entries(calls)) {
    driver.launch(spin, { grid: [1], block: [32], stream }, [SPIN_MS * 1e6]);
    const from = performance.now();
    try {
      call();
      tell(name, (performance.now() - from) * 1000);
    } catch (error) {
      tell(`${name} (${error.message})`, (performance.now() - from) * 1000);
    }
    driver.synchronizeStream(stream);
  }
}

/** The argument of `gpuos_fill_table`, of which it uses two tables. */
function fillArgument(memory) {
  const argument = new DataView(new ArrayBuffer(136));
  argument.setBigUint64(8 * 6, BigInt(memory), true);
  argument.setBigUint64(8 * 7, BigInt(memory + TABLE_BYTES), true);
  return argument;
}

/** From the cache, as programs use it, or into it. */
function images(driver, device) {
  const [major, minor] = driver.computeCapability(device);
  const nvrtc = new Nvrtc(findLibrary('nvrtc'), Math.floor(driver.version() / 1000));
  const target = `sm_${10 * major + minor}`;
  const { source, headers } = residentSource();
  const cache = new ImageCache(cacheFolder(process.env.GPUOS_HOME));
  const key = ImageCache.key(['resident', source, headers, RESIDENT_OPTIONS, [major, minor], nvrtc.version]);
  const make = (name, text, more) => {
    const { image } = nvrtc.compile({ source: text, name, target, options: OPERATOR_OPTIONS, ...more });
    return driver.link([{ kind: 'cubin', name, bytes: image }]);
  };
  let large = cache.read(key);
  if (large === undefined) {
    large = make('resident.cu', source, { headers });
    cache.write(key, large);
  }
  return { large: Uint8Array.from(large), small: make('small.cu', SMALL, {}) };
}
