import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { checkAgainstHeader, compileFakes, cudaHeaders, type Fake, fake, NO_COMPILER, reason } from '../../../test/cuda/fakes.ts';
import { GpuosError } from '../../errors.ts';
import { CudaError } from './cuda-error.ts';
import { SIGNATURES } from './driver-calls.ts';
import { CudaDriver, cudaVersionText } from './driver.ts';
import { koffi } from './library.ts';

function thrown(action: () => unknown): GpuosError {
  try {
    action();
  } catch (error) {
    if (error instanceof GpuosError) return error;
    throw error;
  }
  throw new Error('nothing was thrown');
}

describe.skipIf(NO_COMPILER)(reason('CudaDriver'), () => {
  let folder: ReturnType<typeof compileFakes>;
  let cuda: Fake;
  let driver: CudaDriver;
  beforeAll(() => {
    folder = compileFakes(['driver']);
    cuda = fake(folder.folder, 'driver');
    driver = new CudaDriver(cuda.search);
  });
  afterAll(() => folder?.remove());
  beforeEach(() => void calls());

  /** The calls since the last time, and the names of all that there ever were. */
  const names = new Set<string>();
  const calls = () => {
    const lines = cuda.calls();
    for (const line of lines) names.add(line.split(' ')[0]!);
    return lines;
  };

  /** Runs an action; the result, and the calls that the library saw. */
  const seen = (action: () => unknown) => {
    const result = action();
    return [result, ...calls()];
  };

  /** What a call answers, for the duration of an action. */
  const answering = <T>(call: string, result: number, action: () => T): T => {
    cuda.result(call, result);
    try {
      return action();
    } finally {
      cuda.result(call, 0);
    }
  };

  it('passes every argument in its place, and gives what came out', () => {
    const context = 0x7f0000001000;
    const address = 0x1fffffffffff0;
    const elf = new Uint8Array([0x7f, 0x45, 0x4c, 0x46, 0]);
    const expected: [action: () => unknown, result: unknown, ...calls: string[]][] = [
      [() => driver.initialize(), undefined, 'cuDriverGetVersion', 'cuInit 0'],
      [() => driver.deviceCount(), 1, 'cuDeviceGetCount'],
      [() => driver.device(1), 41, 'cuDeviceGet 1'],
      [() => driver.deviceName(41), 'Fake GPU 1', 'cuDeviceGetName 256 41'],
      [() => driver.deviceAttribute(41, 'sms'), 116, 'cuDeviceGetAttribute 16 41'],
      [() => driver.computeCapability(41), [9, 0], 'cuDeviceGetAttribute 75 41', 'cuDeviceGetAttribute 76 41'],
      [() => driver.totalMemory(41), 150_000_000_000, 'cuDeviceTotalMem_v2 41'],
      [() => driver.pciBusId(41), '0000:29:00.0', 'cuDeviceGetPCIBusId 32 41'],
      [() => driver.retainPrimaryContext(41), context, 'cuDevicePrimaryCtxRetain 41'],
      [() => driver.setCurrent(context), undefined, 'cuCtxSetCurrent 7f0000001000'],
      [() => driver.synchronize(), undefined, 'cuCtxSynchronize'],
      [() => driver.setStackBytes(4096), undefined, 'cuCtxSetLimit 0 4096'],
      [() => driver.streamPriorities(), { least: 0, greatest: -5 }, 'cuCtxGetStreamPriorityRange'],
      [() => driver.moduleLoading(), 'eager', 'cuModuleGetLoadingMode'],
      [() => driver.loadModule(elf), 0x7f0000002000, 'cuModuleLoadData \x7fELF'],
      [() => driver.moduleFunction(0x7f0000002000, 'persistent'), 0x7f0000003000, 'cuModuleGetFunction 7f0000002000 persistent'],
      [() => driver.moduleGlobal(0x7f0000002000, 'table'), { address, bytes: 24 }, 'cuModuleGetGlobal_v2 7f0000002000 table'],
      [() => driver.functionAttribute(0x7f0000003000, 'registers'), 126, 'cuFuncGetAttribute 4 7f0000003000'],
      [() => driver.setMaxDynamicSharedBytes(0x7f0000003000, 65_536), undefined, 'cuFuncSetAttribute 7f0000003000 8 65536'],
      [() => driver.createStream(-5), 0x7f0000004000, 'cuStreamCreateWithPriority 1 -5'],
      [() => driver.synchronizeStream(0x7f0000004000), undefined, 'cuStreamSynchronize 7f0000004000'],
      [() => driver.streamDone(0x7f0000004000), true, 'cuStreamQuery 7f0000004000'],
      [() => driver.createEvent(), 0x7f0000005000, 'cuEventCreate 2'],
      [() => driver.createEvent(true), 0x7f0000005000, 'cuEventCreate 0'],
      [() => driver.recordEvent(0x7f0000005000, 0x7f0000004000), undefined, 'cuEventRecord 7f0000005000 7f0000004000'],
      [() => driver.waitForEvent(0x7f0000004000, 0x7f0000005000), undefined, 'cuStreamWaitEvent 7f0000004000 7f0000005000 0'],
      [() => driver.eventDone(0x7f0000005000), true, 'cuEventQuery 7f0000005000'],
      [() => driver.synchronizeEvent(0x7f0000005000), undefined, 'cuEventSynchronize 7f0000005000'],
      [() => driver.elapsedMs(0x7f0000005000, 0x7f0000005001), 1.25, 'cuEventElapsedTime 7f0000005000 7f0000005001'],
      [() => driver.destroyEvent(0x7f0000005000), undefined, 'cuEventDestroy_v2 7f0000005000'],
      [() => driver.destroyStream(0x7f0000004000), undefined, 'cuStreamDestroy_v2 7f0000004000'],
      [() => driver.memory(), { freeBytes: 4096, totalBytes: 150_000_000_000 }, 'cuMemGetInfo_v2'],
      [() => driver.allocate(2 ** 33), 0x7f1234567800, 'cuMemAlloc_v2 8589934592'],
      [() => driver.free(address), undefined, 'cuMemFree_v2 1fffffffffff0'],
      [() => driver.unloadModule(0x7f0000002000), undefined, 'cuModuleUnload 7f0000002000'],
      [() => driver.releasePrimaryContext(41), undefined, 'cuDevicePrimaryCtxRelease_v2 41'],
    ];
    for (const [action, ...rest] of expected) expect(seen(action)).toEqual(rest);
  });

  it('passes host memory by view or by address, with the data that is there', () => {
    const address = driver.allocateHost(64);
    expect(calls()).toEqual(['cuMemHostAlloc 64 2']);
    const bytes = new Uint8Array(koffi().view(address, 64));
    bytes.set([7, 8, 9]);
    driver.registerHost(address, 64);
    driver.unregisterHost(address);
    expect(driver.deviceAddress(address)).toBe(address);
    // As in the device process: shared memory of the process, by view.
    const shared = new Uint8Array(new SharedArrayBuffer(16)).fill(5);
    driver.registerHost(shared, 16);
    driver.copyToDevice(0x1fffffff00000, address, 3, 0x7f0000004000);
    driver.copyToDevice(0x1fffffff00003, shared.subarray(4), 2, 0x7f0000004000);
    driver.copyOnDevice(0x1fffffff00010, 0x1fffffff00001, 4, 0x7f0000004000);
    driver.fillBytes(0x1fffffff00020, 0xab, 2, 0x7f0000004000);
    const back = new Uint8Array(4);
    driver.copyToHost(back, 0x1fffffff00010, 4, 0x7f0000004000);
    expect([...back]).toEqual([8, 9, 5, 5]);
    driver.copyToHost(address, 0x1fffffff00020, 2, 0x7f0000004000);
    expect([...bytes.subarray(0, 3)]).toEqual([0xab, 0xab, 9]);
    driver.freeHost(address);
    expect(calls()).toEqual([
      'cuMemHostRegister_v2 7 64 2',
      'cuMemHostUnregister 7',
      'cuMemHostGetDevicePointer_v2 0',
      'cuMemHostRegister_v2 5 16 2',
      'cuMemcpyHtoDAsync_v2 1fffffff00000 3 7f0000004000',
      'cuMemcpyHtoDAsync_v2 1fffffff00003 2 7f0000004000',
      'cuMemcpyDtoDAsync_v2 1fffffff00010 1fffffff00001 4 7f0000004000',
      'cuMemsetD8Async 1fffffff00020 171 2 7f0000004000',
      'cuMemcpyDtoHAsync_v2 1fffffff00010 4 7f0000004000',
      'cuMemcpyDtoHAsync_v2 1fffffff00020 2 7f0000004000',
      'cuMemFreeHost',
    ]);
  });

  it('launches with the parameters that the kernel declares', () => {
    const parameters = [0x1fffffffffff0, 4_000_000_000, -7, Float32Array.of(1.5), Uint32Array.of(1, 2, 3)];
    const text = '1fffffffffff0 4000000000 -7 1.5 {1 2 3}; 0';
    driver.launch(0x7f0000003000, { grid: [132], block: [256], stream: 0x7f0000004000 }, parameters);
    driver.launch(0x7f0000003000, { grid: [2, 3, 4], block: [5, 6, 7], sharedBytes: 49_152, stream: 0 }, [
      2n ** 49n - 16n,
      ...parameters.slice(1),
    ]);
    const ordinary = { grid: [132], block: [256], sharedBytes: 1024, stream: 0x7f0000004000 } as const;
    driver.launch(0x7f0000003000, { ...ordinary, cooperative: true, priority: -5 }, parameters);
    driver.launch(0x7f0000003000, { ...ordinary, cooperative: false, priority: 0 }, parameters);
    driver.launch(0x7f0000003000, ordinary, []);
    expect(calls()).toEqual([
      `cuLaunchKernel 7f0000003000 (132 1 1) (256 1 1) 0 7f0000004000: ${text}`,
      `cuLaunchKernel 7f0000003000 (2 3 4) (5 6 7) 49152 0: ${text}`,
      `cuLaunchKernelEx 7f0000003000 (132 1 1) (256 1 1) 1024 7f0000004000 2=1 8=-5: ${text}`,
      `cuLaunchKernelEx 7f0000003000 (132 1 1) (256 1 1) 1024 7f0000004000 8=0: ${text}`,
      'cuLaunchKernel 7f0000003000 (132 1 1) (256 1 1) 1024 7f0000004000: none; 0',
    ]);
    expect(thrown(() => driver.launch(0x7f0000003000, ordinary, [0.5])).code).toBe('GPUOS_INTERNAL');
  });

  it('links to a cubin that outlives the link state', () => {
    const inputs = [
      { kind: 'cubin', name: 'runtime', bytes: Uint8Array.of(1, 2) },
      { kind: 'ptx', name: 'operator', bytes: Uint8Array.of(3) },
    ] as const;
    expect([...driver.link(inputs)]).toEqual([1, 2, 3]);
    expect(calls()).toEqual([
      'cuLinkCreate_v2 2',
      'cuLinkAddData_v2 7f0000006000 0 2 runtime 0 0 0',
      'cuLinkAddData_v2 7f0000006000 1 1 operator 0 0 0',
      'cuLinkComplete 7f0000006000',
      'cuLinkDestroy 7f0000006000',
    ]);
    const error = answering('cuLinkAddData_v2', 500, () => thrown(() => driver.link(inputs)));
    expect(error.code).toBe('GPUOS_COMPILE_FAILED');
    expect(error.message).toContain('Linking runtime failed with CUDA_ERROR_NOT_FOUND:\nerror: runtime defines it again\n');
    expect(calls().at(-1)).toBe('cuLinkDestroy 7f0000006000');
    expect(answering('cuLinkComplete', 700, () => thrown(() => driver.link(inputs))).code).toBe('GPUOS_DEVICE_LOST');
  });

  it('tells what is not done yet from what failed', () => {
    expect(answering('cuStreamQuery', 600, () => driver.streamDone(0x7f0000004000))).toBe(false);
    expect(answering('cuEventQuery', 600, () => driver.eventDone(0x7f0000005000))).toBe(false);
    expect(answering('cuStreamQuery', 700, () => thrown(() => driver.streamDone(0x7f0000004000))).code).toBe('GPUOS_DEVICE_LOST');
  });

  it.each([
    [1, 'GPUOS_CUDA_CALL_FAILED', 'cuInit answered CUDA_ERROR_INVALID_VALUE (1).'],
    [500, 'GPUOS_CUDA_CALL_FAILED', 'cuInit answered CUDA_ERROR_NOT_FOUND (500): named symbol not found.'],
    [12_345, 'GPUOS_CUDA_CALL_FAILED', 'cuInit answered CUDA error 12345 (12345).'],
    [100, 'GPUOS_CUDA_UNAVAILABLE', 'CUDA_ERROR_NO_DEVICE (100): the driver sees no GPU; check `nvidia-smi`'],
    [803, 'GPUOS_CUDA_UNAVAILABLE', 'libcuda.so.1 and the kernel module are of different versions'],
    [719, 'GPUOS_DEVICE_LOST', 'cuInit answered CUDA error 719 (719).'],
  ])('says what result %i means', (result, code, message) => {
    const error = answering('cuInit', result, () => thrown(() => driver.initialize()));
    expect(error).toBeInstanceOf(CudaError);
    expect(error).toMatchObject({ code, call: 'cuInit', result });
    expect(error.message).toContain(message);
  });

  it('tells the kernels that would be launched, and ends the capture whatever becomes of it', () => {
    const stream = 0x7f0000004000;
    const begun = 'cuStreamBeginCapture_v2 7f0000004000 2';
    const ended = 'cuStreamEndCapture 7f0000004000';
    const destroyed = 'cuGraphDestroy 7f0000007000';
    let ran = 0;
    const kernels = driver.capture(stream, () => void ran++);
    expect(ran).toBe(1);
    expect(kernels).toEqual([
      { fn: 0x7f0000003001, threads: 192, sharedBytes: 4096 },
      { fn: 0x7f0000003002, threads: 384, sharedBytes: 200_000 },
    ]);
    expect(calls()).toEqual([
      ...[begun, ended, 'cuGraphGetNodes 7f0000007000 how many', 'cuGraphGetNodes 7f0000007000 which'],
      ...[0, 1, 2].map((i) => `cuGraphNodeGetType 7f000000800${i}`),
      ...['cuGraphKernelNodeGetParams_v2 7f0000008000', 'cuGraphKernelNodeGetParams_v2 7f0000008002'],
      ...['cuKernelGetFunction 7f0000009000', destroyed],
    ]);
    cuda.value('nodes', 0);
    expect(driver.capture(stream, () => {})).toEqual([]);
    cuda.value('nodes', 3);
    calls();
    const trouble = () => {
      throw new Error('trouble');
    };
    expect(() => driver.capture(stream, trouble)).toThrow('trouble');
    expect(calls()).toEqual([begun, ended, destroyed]);
    expect(answering('cuStreamEndCapture', 901, () => thrown(() => driver.capture(stream, () => {}))).code).toBe('GPUOS_CUDA_CALL_FAILED');
    expect(calls()).toEqual([begun, ended]);
    const error = answering('cuGraphGetNodes', 1, () => thrown(() => driver.capture(stream, () => {})));
    expect(error.message).toContain('cuGraphGetNodes');
    expect(calls().at(-1)).toBe(destroyed);
  });

  it('names the symbol that a module does not have', () => {
    const error = answering('cuModuleGetFunction', 500, () => thrown(() => driver.moduleFunction(0x7f0000002000, 'persistent')));
    expect(error.message).toContain('cuModuleGetFunction answered CUDA_ERROR_NOT_FOUND (500): persistent; named symbol not found.');
  });

  it('gives the sizes when memory is out', () => {
    const device = answering('cuMemAlloc_v2', 2, () => thrown(() => driver.allocate(8192)));
    expect(device.code).toBe('GPUOS_OUT_OF_MEMORY');
    expect(device.message).toContain('8192 bytes of device memory asked for, 4096 of 150000000000 free on the device');
    const host = answering('cuMemHostAlloc', 2, () => thrown(() => driver.allocateHost(8192)));
    expect(host.message).toContain('8192 bytes of pinned host memory asked for');
    expect(answering('cuMemAlloc_v2', 1, () => thrown(() => driver.allocate(0))).code).toBe('GPUOS_CUDA_CALL_FAILED');
  });

  it('refuses an address that no number holds, rather than rounding it', () => {
    cuda.value('address', 2 ** 62);
    expect(thrown(() => driver.allocate(1)).code).toBe('GPUOS_INTERNAL');
    cuda.value('address', 0x7f1234567800);
  });

  it('says whether modules are loaded lazily', () => {
    cuda.value('loading', 2);
    expect(driver.moduleLoading()).toBe('lazy');
    cuda.value('loading', 1);
  });

  it('refuses a driver before CUDA 12', () => {
    cuda.value('cuda', 11_080);
    const error = thrown(() => driver.initialize());
    expect(error.code).toBe('GPUOS_CUDA_TOO_OLD');
    expect(error.message).toContain('supports CUDA 11.8; CUDA 12.0 is needed');
    expect(calls()).not.toContain('cuInit 0');
    cuda.value('cuda', 12_000);
    driver.initialize();
    cuda.value('cuda', 13_000);
  });

  it('has called every symbol that it binds, here', () => {
    // The two that name results are known by the messages.
    const bound = Object.keys(SIGNATURES).filter((name) => !name.startsWith('cuGetError'));
    expect([...names].sort()).toEqual(bound.sort());
  });

  it('refuses a library that lacks a symbol, and names it', () => {
    const other = compileFakes(['nvml']);
    try {
      const { search } = fake(other.folder, 'nvml');
      const error = thrown(() => new CudaDriver(search));
      expect(error.code).toBe('GPUOS_CUDA_TOO_OLD');
      expect(error.message).toMatch(/libnvidia-ml\.so\.1: Cannot find function 'cuInit'/);
      // The next candidate is tried.
      const both = { ...search, candidates: [...search.candidates, ...cuda.search.candidates] };
      expect(new CudaDriver(both).path).toBe(cuda.search.candidates[0]!.path);
    } finally {
      other.remove();
    }
  });
});

describe('CudaDriver', () => {
  it('says what it tried where there is none', () => {
    const search = { candidates: [{ path: '/nowhere/libcuda.so.1', from: 'loader', version: '1' }], unsupported: [], tried: [] };
    const error = thrown(() => new CudaDriver(search));
    expect(error.code).toBe('GPUOS_CUDA_UNAVAILABLE');
    expect(error.message).toMatch(
      /Cannot load the NVIDIA driver \(libcuda\.so\.1\): \/nowhere\/libcuda\.so\.1: cannot open.*\. Install the driver/,
    );
  });

  it('prints versions as people write them', () => {
    expect([12_000, 12_080, 13_000, 13_010].map(cudaVersionText)).toEqual(['12.0', '12.8', '13.0', '13.1']);
  });
});

const headers = cudaHeaders();
const why = NO_COMPILER ? 'no C compiler' : headers === undefined ? 'no cuda.h on this machine' : undefined;
it.skipIf(why !== undefined)(`the stand-in has the prototypes and structs of cuda.h${why ? ` (skipped: ${why})` : ''}`, () => {
  expect(checkAgainstHeader('driver', headers!)).toBe('');
});
