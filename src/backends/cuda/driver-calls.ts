/** The symbols of `libcuda.so.1` that gpuos binds, in koffi's types, and the numbers that they take. */

const RESULT = 'int';
/** A handle or device address by value; a 64-bit result; memory of the host; an integer result. */
const [HANDLE, OUT, HOST, OUT_INT] = ['uint64_t', 'uint64_t *', 'void *', 'int *'] as const;

export const SIGNATURES = {
  cuInit: [RESULT, 'unsigned int'],
  cuDriverGetVersion: [RESULT, OUT_INT],
  cuGetErrorName: [RESULT, 'int', '_Out_ str *'],
  cuGetErrorString: [RESULT, 'int', '_Out_ str *'],
  cuDeviceGetCount: [RESULT, OUT_INT],
  cuDeviceGet: [RESULT, OUT_INT, 'int'],
  cuDeviceGetName: [RESULT, HOST, 'int', 'int'],
  cuDeviceGetAttribute: [RESULT, OUT_INT, 'int', 'int'],
  cuDeviceTotalMem_v2: [RESULT, OUT, 'int'],
  cuDeviceGetPCIBusId: [RESULT, HOST, 'int', 'int'],
  cuDevicePrimaryCtxRetain: [RESULT, OUT, 'int'],
  cuDevicePrimaryCtxRelease_v2: [RESULT, 'int'],
  cuCtxSetCurrent: [RESULT, HANDLE],
  cuCtxSynchronize: [RESULT],
  cuCtxSetLimit: [RESULT, 'int', 'size_t'],
  cuCtxGetStreamPriorityRange: [RESULT, OUT_INT, OUT_INT],
  cuModuleGetLoadingMode: [RESULT, OUT_INT],
  cuModuleLoadData: [RESULT, OUT, HOST],
  cuModuleUnload: [RESULT, HANDLE],
  cuModuleGetFunction: [RESULT, OUT, HANDLE, 'str'],
  cuModuleGetGlobal_v2: [RESULT, OUT, OUT, HANDLE, 'str'],
  cuFuncGetAttribute: [RESULT, OUT_INT, 'int', HANDLE],
  cuFuncSetAttribute: [RESULT, HANDLE, 'int', 'int'],
  cuLaunchKernel: [
    RESULT,
    HANDLE,
    'unsigned int',
    'unsigned int',
    'unsigned int',
    'unsigned int',
    'unsigned int',
    'unsigned int',
    'unsigned int',
    HANDLE,
    HOST,
    HOST,
  ],
  cuLaunchKernelEx: [RESULT, HOST, HANDLE, HOST, HOST],
  cuStreamCreateWithPriority: [RESULT, OUT, 'unsigned int', 'int'],
  cuStreamDestroy_v2: [RESULT, HANDLE],
  cuStreamSynchronize: [RESULT, HANDLE],
  cuStreamQuery: [RESULT, HANDLE],
  cuStreamWaitEvent: [RESULT, HANDLE, HANDLE, 'unsigned int'],
  cuEventCreate: [RESULT, OUT, 'unsigned int'],
  cuEventDestroy_v2: [RESULT, HANDLE],
  cuEventRecord: [RESULT, HANDLE, HANDLE],
  cuEventQuery: [RESULT, HANDLE],
  cuEventSynchronize: [RESULT, HANDLE],
  cuEventElapsedTime: [RESULT, 'float *', HANDLE, HANDLE],
  cuMemGetInfo_v2: [RESULT, OUT, OUT],
  cuMemAlloc_v2: [RESULT, OUT, 'size_t'],
  cuMemFree_v2: [RESULT, HANDLE],
  cuMemHostAlloc: [RESULT, OUT, 'size_t', 'unsigned int'],
  cuMemFreeHost: [RESULT, HOST],
  cuMemHostRegister_v2: [RESULT, HOST, 'size_t', 'unsigned int'],
  cuMemHostUnregister: [RESULT, HOST],
  cuMemHostGetDevicePointer_v2: [RESULT, OUT, HOST, 'unsigned int'],
  cuMemcpyHtoDAsync_v2: [RESULT, HANDLE, HOST, 'size_t', HANDLE],
  cuMemcpyDtoHAsync_v2: [RESULT, HOST, HANDLE, 'size_t', HANDLE],
  cuMemcpyDtoDAsync_v2: [RESULT, HANDLE, HANDLE, 'size_t', HANDLE],
  cuMemsetD8Async: [RESULT, HANDLE, 'unsigned char', 'size_t', HANDLE],
  cuStreamBeginCapture_v2: [RESULT, HANDLE, 'int'],
  cuStreamEndCapture: [RESULT, HANDLE, OUT],
  cuGraphGetNodes: [RESULT, HANDLE, HOST, OUT],
  cuGraphNodeGetType: [RESULT, HANDLE, OUT_INT],
  cuGraphKernelNodeGetParams_v2: [RESULT, HANDLE, HOST],
  cuGraphDestroy: [RESULT, HANDLE],
  cuKernelGetFunction: [RESULT, OUT, HANDLE],
  cuLinkCreate_v2: [RESULT, 'unsigned int', HOST, HOST, OUT],
  cuLinkAddData_v2: [RESULT, HANDLE, 'int', HOST, 'size_t', 'str', 'unsigned int', HOST, HOST],
  cuLinkComplete: [RESULT, HANDLE, OUT, OUT],
  cuLinkDestroy: [RESULT, HANDLE],
} as const;

export type DriverCall = keyof typeof SIGNATURES;

/** `CUdevice_attribute`. */
export const DEVICE_ATTRIBUTE = {
  maxThreadsPerBlock: 1,
  /** kHz. */
  clockRate: 13,
  sms: 16,
  /** 1 where the driver ends kernels that run for long, because a display hangs on the device. */
  kernelExecTimeout: 17,
  canMapHostMemory: 19,
  /** 0 default, 2 prohibited, 3 exclusive to one process. */
  computeMode: 20,
  /** Bytes. */
  l2CacheSize: 38,
  unifiedAddressing: 41,
  computeCapabilityMajor: 75,
  computeCapabilityMinor: 76,
  /** Bytes. */
  maxSharedMemoryPerSm: 81,
  maxRegistersPerSm: 82,
  /** 1 where registered host memory has the same address on the device. */
  canUseHostPointerForRegisteredMemory: 91,
  cooperativeLaunch: 95,
  /** Bytes. */
  maxSharedMemoryPerBlockOptIn: 97,
  hostRegisterSupported: 99,
  /** Bytes that the driver takes of the shared memory of each block. */
  reservedSharedMemoryPerBlock: 111,
} as const;

/** `CUfunction_attribute`; bytes but for the registers and threads. */
export const FUNCTION_ATTRIBUTE = {
  maxThreadsPerBlock: 0,
  staticSharedBytes: 1,
  localBytes: 3,
  registers: 4,
  maxDynamicSharedBytes: 8,
} as const;

/** What a binary given to `link` is: `CUjitInputType`. */
export const LINK_INPUT = { cubin: 0, ptx: 1, fatbinary: 2, object: 3 } as const;
/** `CUjit_option`: what the linker says of errors goes to a buffer of ours. */
export const JIT_OPTION = { errorLogBuffer: 5, errorLogBufferBytes: 6 } as const;

/** `CU_STREAM_CAPTURE_MODE_RELAXED`: a library may load what it needs meanwhile. */
export const CAPTURE_RELAXED = 2;
/** `CU_GRAPH_NODE_TYPE_KERNEL`. */
export const KERNEL_NODE = 0;
/** `CUDA_KERNEL_NODE_PARAMS_v2`: the whole, and where what is read of it stands. */
export const KERNEL_NODE_PARAMS = { bytes: 72, func: 0, block: 20, sharedBytes: 32, kernel: 56 } as const;
