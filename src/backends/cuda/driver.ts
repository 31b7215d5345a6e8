/**
 * The CUDA driver API, as much of it as a resident kernel needs.
 *
 * Each method is one call of the driver, made on the calling thread, and checked: a result other than success becomes a
 * CudaError that names the call and the driver's own name for the result. Out parameters become results. Handles and
 * addresses are numbers (see `library.ts`), sizes are bytes.
 *
 * The ABI of the symbols bound here is the same in CUDA 12 and 13, and so is the layout of the two structs written
 * (`CUlaunchConfig`, `CUlaunchAttribute`): their newest is `cuLaunchKernelEx`, of CUDA 11.8. Streams are those of the
 * legacy default-stream mode, as in a program compiled without `--default-stream per-thread`.
 *
 * While a resident kernel runs, these block until it ends and must not be called: `loadModule`, `unloadModule`, `free`,
 * `synchronize`, and the first launch of a lazily loaded function (hence `CUDA_MODULE_LOADING=EAGER` in the environment
 * of the process, which `moduleLoading` tells).
 */
import { type ErrorCode, GpuosError } from '../../errors.ts';
import { CudaError, FATAL, NOT_READY, OUT_OF_MEMORY, SUCCESS, UNAVAILABLE } from './cuda-error.ts';
import { findLibrary, type SearchResult } from './discovery.ts';
import { type Address, addressOf, type HostMemory, koffi, type Library, loadLibrary, out64, textOf, toAddress } from './library.ts';
import {
  CAPTURE_RELAXED,
  DEVICE_ATTRIBUTE,
  type DriverCall,
  FUNCTION_ATTRIBUTE,
  JIT_OPTION,
  KERNEL_NODE,
  KERNEL_NODE_PARAMS,
  LINK_INPUT,
  SIGNATURES,
} from './driver-calls.ts';

/** The oldest driver and device that gpuos runs on. */
export const OLDEST_CUDA = 12_000;
export const OLDEST_COMPUTE_CAPABILITY = [7, 5] as const;

const LINK_LOG_BYTES = 16_384;
const ATTRIBUTE_BYTES = 72;

/** A value of a kernel's parameter: an integer or address of at most 64 bits, or the bytes of anything else (`Float32Array.of(x)`). */
export type KernelParameter = number | bigint | NodeJS.ArrayBufferView;

export interface LaunchShape {
  readonly grid: readonly [x: number, y?: number, z?: number];
  readonly block: readonly [x: number, y?: number, z?: number];
  /** Dynamic shared memory of a block. Default 0. */
  readonly sharedBytes?: number;
  readonly stream: Address;
  /** All blocks must be resident at once, else the launch fails. */
  readonly cooperative?: boolean;
  /** As of `createStream`; for this launch alone. */
  readonly priority?: number;
}

/** A kernel as it would be launched. */
export interface CapturedKernel {
  readonly fn: Address;
  /** Threads of a block. */
  readonly threads: number;
  /** Dynamic shared memory of a block. */
  readonly sharedBytes: number;
}

export interface LinkInput {
  readonly kind: keyof typeof LINK_INPUT;
  /** For messages. */
  readonly name: string;
  readonly bytes: Uint8Array;
}

export class CudaDriver {
  readonly path: string;
  readonly from: string;
  readonly #functions: Library<typeof SIGNATURES>['functions'];

  /** @throws GPUOS_CUDA_UNAVAILABLE, GPUOS_CUDA_TOO_OLD, GPUOS_PACKAGE_MISSING; see `loadLibrary` */
  constructor(search: SearchResult = findLibrary('driver')) {
    const { path, from, functions } = loadLibrary('driver', search, SIGNATURES);
    this.path = path;
    this.from = from;
    this.#functions = functions;
  }

  /**
   * Must come first, once a process.
   * @throws CudaError GPUOS_CUDA_UNAVAILABLE without a usable GPU, GPUOS_CUDA_TOO_OLD for a driver before CUDA 12
   */
  initialize(): void {
    const version = this.version();
    if (version < OLDEST_CUDA) {
      throw new GpuosError('GPUOS_CUDA_TOO_OLD', `The NVIDIA driver supports CUDA ${cudaVersionText(version)}; CUDA 12.0 is needed.`);
    }
    this.#call('cuInit', 0);
  }

  /** The newest CUDA that the driver supports, as 1000 major + 10 minor; needs no `initialize`. */
  version(): number {
    return this.#integer('cuDriverGetVersion');
  }

  deviceCount(): number {
    return this.#integer('cuDeviceGetCount');
  }

  /** The device with this number, from 0; `CUDA_VISIBLE_DEVICES` decides which there are. */
  device(ordinal: number): number {
    return this.#integer('cuDeviceGet', ordinal);
  }

  deviceName(device: number): string {
    const name = new Uint8Array(256);
    this.#call('cuDeviceGetName', name, name.length, device);
    return textOf(name);
  }

  deviceAttribute(device: number, attribute: keyof typeof DEVICE_ATTRIBUTE): number {
    return this.#integer('cuDeviceGetAttribute', DEVICE_ATTRIBUTE[attribute], device);
  }

  computeCapability(device: number): readonly [major: number, minor: number] {
    return [this.deviceAttribute(device, 'computeCapabilityMajor'), this.deviceAttribute(device, 'computeCapabilityMinor')];
  }

  /** Bytes. */
  totalMemory(device: number): number {
    return this.#word('cuDeviceTotalMem_v2', device);
  }

  /** `0000:18:00.0`: by it NVML knows the same device. */
  pciBusId(device: number): string {
    const id = new Uint8Array(32);
    this.#call('cuDeviceGetPCIBusId', id, id.length, device);
    return textOf(id);
  }

  /** The device's primary context, held until as many releases. */
  retainPrimaryContext(device: number): Address {
    return this.#word('cuDevicePrimaryCtxRetain', device);
  }

  releasePrimaryContext(device: number): void {
    this.#call('cuDevicePrimaryCtxRelease_v2', device);
  }

  /** Makes the context that of the calling thread; 0 for none. */
  setCurrent(context: Address): void {
    this.#call('cuCtxSetCurrent', context);
  }

  /** Waits for all work of the current context: under a resident kernel, for ever. */
  synchronize(): void {
    this.#call('cuCtxSynchronize');
  }

  /** Stack of each thread of the current context's kernels: what calls through the operator table need. */
  setStackBytes(bytes: number): void {
    this.#call('cuCtxSetLimit', 0, bytes);
  }

  /** The lowest and the highest priority of a stream; smaller numbers are higher priorities. */
  streamPriorities(): { readonly least: number; readonly greatest: number } {
    const [least, greatest] = [new Int32Array(1), new Int32Array(1)];
    this.#call('cuCtxGetStreamPriorityRange', least, greatest);
    return { least: least[0]!, greatest: greatest[0]! };
  }

  /** Whether modules are loaded whole; set by `CUDA_MODULE_LOADING` before the process's first call. */
  moduleLoading(): 'eager' | 'lazy' {
    return this.#integer('cuModuleGetLoadingMode') === 1 ? 'eager' : 'lazy';
  }

  /** @param image a cubin, or PTX that ends in a NUL */
  loadModule(image: Uint8Array): Address {
    return this.#word('cuModuleLoadData', image);
  }

  unloadModule(module: Address): void {
    this.#call('cuModuleUnload', module);
  }

  moduleFunction(module: Address, name: string): Address {
    const result = out64();
    this.#check('cuModuleGetFunction', this.#functions.cuModuleGetFunction(result, module, name), name);
    return toAddress(result[0]!);
  }

  moduleGlobal(module: Address, name: string): { readonly address: Address; readonly bytes: number } {
    const [address, bytes] = [out64(), out64()];
    this.#check('cuModuleGetGlobal_v2', this.#functions.cuModuleGetGlobal_v2(address, bytes, module, name), name);
    return { address: toAddress(address[0]!), bytes: toAddress(bytes[0]!) };
  }

  functionAttribute(fn: Address, attribute: keyof typeof FUNCTION_ATTRIBUTE): number {
    return this.#integer('cuFuncGetAttribute', FUNCTION_ATTRIBUTE[attribute], fn);
  }

  /** Dynamic shared memory that launches may ask for beyond 48 KiB. */
  setMaxDynamicSharedBytes(fn: Address, bytes: number): void {
    this.#call('cuFuncSetAttribute', fn, FUNCTION_ATTRIBUTE.maxDynamicSharedBytes, bytes);
  }

  /** Launches a kernel; the parameters are copied before it returns. */
  launch(fn: Address, shape: LaunchShape, parameters: readonly KernelParameter[]): void {
    // Each integer gets 8 bytes, little-endian, of which the driver reads as many as the kernel declares.
    const words = new BigUint64Array(Math.max(1, parameters.length));
    const pointers = new BigUint64Array(Math.max(1, parameters.length));
    const base = addressOf(words);
    parameters.forEach((value, i) => {
      if (typeof value === 'object') {
        pointers[i] = BigInt(addressOf(value));
        return;
      }
      if (typeof value === 'number' && !Number.isSafeInteger(value)) {
        throw new GpuosError('GPUOS_INTERNAL', `Kernel parameter ${i} is ${value}: give the bytes of what is not an integer.`);
      }
      words[i] = BigInt.asUintN(64, BigInt(value));
      pointers[i] = BigInt(base + 8 * i);
    });
    const [gridX, gridY = 1, gridZ = 1] = shape.grid;
    const [blockX, blockY = 1, blockZ = 1] = shape.block;
    const sizes = [gridX, gridY, gridZ, blockX, blockY, blockZ, shape.sharedBytes ?? 0];
    const attributes: (readonly [id: number, value: number])[] = [];
    if (shape.cooperative) attributes.push([2, 1]);
    if (shape.priority !== undefined) attributes.push([8, shape.priority]);
    if (attributes.length === 0) {
      this.#call('cuLaunchKernel', fn, ...sizes, shape.stream, pointers, null);
    } else {
      const { config, list } = launchConfig(sizes, shape.stream, attributes);
      this.#call('cuLaunchKernelEx', config, fn, pointers, null);
      keepAlive(list);
    }
    keepAlive(words, parameters);
  }

  /**
   * The kernels that `action` would launch on the stream, which are not launched. They may be loaded by this: not while
   * a resident kernel runs.
   */
  capture(stream: Address, action: () => void): CapturedKernel[] {
    this.#call('cuStreamBeginCapture_v2', stream, CAPTURE_RELAXED);
    const graph = out64();
    let ended: number = SUCCESS;
    try {
      try {
        action();
      } finally {
        // Whatever became of it: before this the stream is of no use.
        ended = this.#functions.cuStreamEndCapture(stream, graph);
      }
      this.#check('cuStreamEndCapture', ended);
      return this.#graphNodes(toAddress(graph[0]!))
        .filter((node) => this.#nodeType(node) === KERNEL_NODE)
        .map((node) => this.#capturedKernel(node));
    } finally {
      if (ended === SUCCESS) this.#functions.cuGraphDestroy(toAddress(graph[0]!));
    }
  }

  #graphNodes(graph: Address): Address[] {
    const count = out64();
    this.#call('cuGraphGetNodes', graph, null, count);
    const nodes = new BigUint64Array(Number(count[0]));
    if (nodes.length > 0) this.#call('cuGraphGetNodes', graph, nodes, count);
    return Array.from(nodes, toAddress);
  }

  #nodeType(node: Address): number {
    const type = new Int32Array(1);
    this.#call('cuGraphNodeGetType', node, type);
    return type[0]!;
  }

  #capturedKernel(node: Address): CapturedKernel {
    const params = new DataView(new ArrayBuffer(KERNEL_NODE_PARAMS.bytes));
    this.#call('cuGraphKernelNodeGetParams_v2', node, params);
    const { func, block, sharedBytes, kernel } = KERNEL_NODE_PARAMS;
    const word = (at: number): number => params.getUint32(at, true);
    // A kernel of a library that is not bound to a context has no function yet.
    const fn =
      toAddress(params.getBigUint64(func, true)) || this.#word('cuKernelGetFunction', toAddress(params.getBigUint64(kernel, true)));
    return { fn, threads: word(block) * word(block + 4) * word(block + 8), sharedBytes: word(sharedBytes) };
  }

  /** A stream that does not wait for the default stream. @param priority see `streamPriorities`; default 0 */
  createStream(priority = 0): Address {
    return this.#word('cuStreamCreateWithPriority', 1, priority);
  }

  /** Returns at once; the stream goes when its work is done. */
  destroyStream(stream: Address): void {
    this.#call('cuStreamDestroy_v2', stream);
  }

  synchronizeStream(stream: Address): void {
    this.#call('cuStreamSynchronize', stream);
  }

  /** Whether all work of the stream is done. */
  streamDone(stream: Address): boolean {
    return this.#done('cuStreamQuery', stream);
  }

  /** Work submitted to the stream from here on waits for the event. */
  waitForEvent(stream: Address, event: Address): void {
    this.#call('cuStreamWaitEvent', stream, event, 0);
  }

  /** @param timing whether `elapsedMs` is to work; costs time on the device */
  createEvent(timing = false): Address {
    return this.#word('cuEventCreate', timing ? 0 : 2);
  }

  destroyEvent(event: Address): void {
    this.#call('cuEventDestroy_v2', event);
  }

  recordEvent(event: Address, stream: Address): void {
    this.#call('cuEventRecord', event, stream);
  }

  eventDone(event: Address): boolean {
    return this.#done('cuEventQuery', event);
  }

  synchronizeEvent(event: Address): void {
    this.#call('cuEventSynchronize', event);
  }

  /** Between two recorded, completed events made with `timing`; resolution about 0.5 us. */
  elapsedMs(start: Address, end: Address): number {
    const result = new Float32Array(1);
    this.#call('cuEventElapsedTime', result, start, end);
    return result[0]!;
  }

  /** Of the current context's device. */
  memory(): { readonly freeBytes: number; readonly totalBytes: number } {
    const [free, total] = [out64(), out64()];
    this.#call('cuMemGetInfo_v2', free, total);
    return { freeBytes: toAddress(free[0]!), totalBytes: toAddress(total[0]!) };
  }

  /** Device memory, aligned to at least 256 bytes. @throws CudaError GPUOS_OUT_OF_MEMORY with the sizes */
  allocate(bytes: number): Address {
    return this.#allocation('cuMemAlloc_v2', bytes);
  }

  free(address: Address): void {
    this.#call('cuMemFree_v2', address);
  }

  /** Pinned memory that the device can read and write, at `deviceAddress`. @throws CudaError GPUOS_OUT_OF_MEMORY */
  allocateHost(bytes: number): Address {
    return this.#allocation('cuMemHostAlloc', bytes, 2);
  }

  freeHost(address: Address): void {
    this.#call('cuMemFreeHost', address);
  }

  /** Pins memory that exists, for the device to read and write at `deviceAddress`. */
  registerHost(memory: HostMemory, bytes: number): void {
    this.#call('cuMemHostRegister_v2', memory, bytes, 2);
  }

  unregisterHost(memory: HostMemory): void {
    this.#call('cuMemHostUnregister', memory);
  }

  /** Where the device sees pinned memory. */
  deviceAddress(memory: HostMemory): Address {
    return this.#word('cuMemHostGetDevicePointer_v2', memory, 0);
  }

  /**
   * The copies are complete when the stream has reached them. Host memory that is not pinned is first copied by the
   * driver on the way to the device, and makes the call wait on the way back; it stays alive until then.
   */
  copyToDevice(to: Address, from: HostMemory, bytes: number, stream: Address): void {
    this.#call('cuMemcpyHtoDAsync_v2', to, from, bytes, stream);
  }

  copyToHost(to: HostMemory, from: Address, bytes: number, stream: Address): void {
    this.#call('cuMemcpyDtoHAsync_v2', to, from, bytes, stream);
  }

  copyOnDevice(to: Address, from: Address, bytes: number, stream: Address): void {
    this.#call('cuMemcpyDtoDAsync_v2', to, from, bytes, stream);
  }

  /** Runs a kernel of the driver's own: it needs room beside a resident one. */
  fillBytes(to: Address, value: number, bytes: number, stream: Address): void {
    this.#call('cuMemsetD8Async', to, value, bytes, stream);
  }

  /**
   * Links relocatable code to a cubin, for the current context's device.
   * @throws CudaError GPUOS_COMPILE_FAILED with the linker's log
   */
  link(inputs: readonly LinkInput[]): Uint8Array {
    const log = new Uint8Array(LINK_LOG_BYTES);
    const options = Int32Array.of(JIT_OPTION.errorLogBuffer, JIT_OPTION.errorLogBufferBytes);
    // An option's value stands in the place of a pointer. The driver writes both while the link state lives.
    const values = BigUint64Array.of(BigInt(addressOf(log)), BigInt(log.length));
    const check = (call: DriverCall, result: number, what: string) => {
      if (result === SUCCESS) return;
      const failure = { call, result, resultName: this.resultName(result) };
      if (FATAL.has(result) || result === OUT_OF_MEMORY) throw this.#error(call, result, what);
      throw new CudaError('GPUOS_COMPILE_FAILED', `Linking ${what} failed with ${failure.resultName}:\n${textOf(log).trim()}\n`, failure);
    };
    const all = inputs.map(({ name }) => name).join(', ');
    const state = out64();
    check('cuLinkCreate_v2', this.#functions.cuLinkCreate_v2(options.length, options, values, state), all);
    const handle = toAddress(state[0]!);
    try {
      for (const { kind, name, bytes } of inputs) {
        const result = this.#functions.cuLinkAddData_v2(handle, LINK_INPUT[kind], bytes, bytes.length, name, 0, null, null);
        check('cuLinkAddData_v2', result, name);
      }
      const [cubin, size] = [out64(), out64()];
      check('cuLinkComplete', this.#functions.cuLinkComplete(handle, cubin, size), all);
      // The cubin is the link state's and goes with it.
      return new Uint8Array(koffi().view(toAddress(cubin[0]!), toAddress(size[0]!))).slice();
    } finally {
      this.#functions.cuLinkDestroy(handle);
      keepAlive(log, options, values, inputs);
    }
  }

  /** `CUDA_ERROR_NOT_FOUND` for 500; the number where the driver does not know it. */
  resultName(result: number): string {
    return this.#text('cuGetErrorName', result) ?? `CUDA error ${result}`;
  }

  #text(call: 'cuGetErrorName' | 'cuGetErrorString', result: number): string | undefined {
    const text: [string | null] = [null];
    return this.#functions[call](result, text) === SUCCESS ? (text[0] ?? undefined) : undefined;
  }

  #call(call: DriverCall, ...values: unknown[]): void {
    this.#check(call, this.#functions[call](...values));
  }

  #check(call: DriverCall, result: number, about?: string): void {
    if (result !== SUCCESS) throw this.#error(call, result, about);
  }

  /** A call whose first parameter is an `int *` result. */
  #integer(call: DriverCall, ...values: unknown[]): number {
    const result = new Int32Array(1);
    this.#call(call, result, ...values);
    return result[0]!;
  }

  /** A call whose first parameter is a 64-bit result. */
  #word(call: DriverCall, ...values: unknown[]): number {
    const result = out64();
    this.#call(call, result, ...values);
    return toAddress(result[0]!);
  }

  #allocation(call: 'cuMemAlloc_v2' | 'cuMemHostAlloc', bytes: number, ...values: unknown[]): Address {
    const address = out64();
    const result = this.#functions[call](address, bytes, ...values);
    if (result === OUT_OF_MEMORY) {
      const [free, total] = [out64(), out64()];
      const known = this.#functions.cuMemGetInfo_v2(free, total) === SUCCESS;
      const where = call === 'cuMemAlloc_v2' ? 'device memory' : 'pinned host memory';
      throw this.#error(
        call,
        result,
        `${bytes} bytes of ${where} asked for${known ? `, ${free[0]} of ${total[0]} free on the device` : ''}`,
      );
    }
    this.#check(call, result, `${bytes} bytes`);
    return toAddress(address[0]!);
  }

  #done(call: 'cuStreamQuery' | 'cuEventQuery', handle: Address): boolean {
    const result = this.#functions[call](handle);
    if (result === NOT_READY) return false;
    this.#check(call, result);
    return true;
  }

  #error(call: DriverCall, result: number, about?: string): CudaError {
    const failure = { call, result, resultName: this.resultName(result) };
    const code: ErrorCode =
      result === OUT_OF_MEMORY
        ? 'GPUOS_OUT_OF_MEMORY'
        : FATAL.has(result)
          ? 'GPUOS_DEVICE_LOST'
          : Object.hasOwn(UNAVAILABLE, result)
            ? 'GPUOS_CUDA_UNAVAILABLE'
            : 'GPUOS_CUDA_CALL_FAILED';
    const detail = [about, this.#text('cuGetErrorString', result), UNAVAILABLE[result]].filter((text) => text !== undefined).join('; ');
    return new CudaError(code, `${call} answered ${failure.resultName} (${result})${detail === '' ? '' : `: ${detail}`}.`, failure);
  }
}

/** `CUlaunchConfig` (56 bytes) and its `CUlaunchAttribute`s: id, padding to 8, a value of 64. */
function launchConfig(sizes: readonly number[], stream: Address, attributes: readonly (readonly [id: number, value: number])[]) {
  const list = new Uint8Array(ATTRIBUTE_BYTES * attributes.length);
  const entries = new DataView(list.buffer);
  attributes.forEach(([id, value], i) => {
    entries.setInt32(ATTRIBUTE_BYTES * i, id, true);
    entries.setInt32(ATTRIBUTE_BYTES * i + 8, value, true);
  });
  const config = new Uint8Array(56);
  const fields = new DataView(config.buffer);
  sizes.forEach((size, i) => {
    fields.setUint32(4 * i, size, true);
  });
  fields.setBigUint64(32, BigInt(stream), true);
  fields.setBigUint64(40, BigInt(addressOf(list)), true);
  fields.setUint32(48, attributes.length, true);
  return { config, list };
}

/** What only an address refers to must not be collected before this. */
function keepAlive(...values: readonly unknown[]): void {
  kept.push(values);
  kept.length = 0;
}
const kept: unknown[] = [];

/** `13.0` for 13000. */
export function cudaVersionText(version: number): string {
  return `${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`;
}
