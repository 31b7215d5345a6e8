/** What a host can ask of its device process. */
import type { InjectionBudget, Refusal } from '../elf/injectable.ts';
import type { Address } from '../library.ts';

export interface DeviceInfo {
  readonly name: string;
  readonly sms: number;
  readonly computeCapability: readonly [major: number, minor: number];
  /** The newest CUDA of the driver, as 1000 major + 10 minor. */
  readonly cudaVersion: number;
  readonly totalMemoryBytes: number;
  readonly driverPath: string;
  readonly nvrtcPath: string;
  readonly nvrtcVersion: readonly [major: number, minor: number];
  /** Where the device sees the segment. */
  readonly segmentAddress: Address;
}

export interface CompileAsk {
  readonly source: string;
  /** For the log. */
  readonly name: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly options?: readonly string[];
}

/** What the running kernel gives to an injected function; the architecture is the device's. */
export type Budget = Omit<InjectionBudget, 'sm'>;

export type Injected = { readonly address: Address; readonly codeBytes: number } | { readonly refused: readonly Refusal[] };

type Nothing = Readonly<Record<never, never>>;

/** Each request: what is asked and what is answered. `payload` travels as bytes, all else as JSON. */
export interface Requests {
  info: { ask: Nothing; answer: DeviceInfo };
  memory: { ask: Nothing; answer: { freeBytes: number; totalBytes: number } };
  status: { ask: Nothing; answer: DeviceProcessStatus };
  /** Fails with GPUOS_OUT_OF_MEMORY and the sizes. */
  allocate: { ask: { bytes: number }; answer: { address: Address } };
  /** Only while no kernel runs: the driver would wait for its end. */
  free: { ask: { address: Address }; answer: Nothing };
  copyIn: { ask: { address: Address; segmentOffset: number; bytes: number }; answer: Nothing };
  copyOut: { ask: { address: Address; segmentOffset: number; bytes: number }; answer: Nothing };
  fill: { ask: { address: Address; byte: number; bytes: number }; answer: Nothing };
  write: { ask: { address: Address; payload: Uint8Array }; answer: Nothing };
  /** Relocatable machine code for the device; with `link`, linked. */
  compile: { ask: CompileAsk & { link?: boolean }; answer: { log: string; payload: Uint8Array } };
  /** Compiles an operator and places its code; the relocatable code comes back for the caller's cache. */
  inject: { ask: CompileAsk & { symbol: string; budget?: Budget }; answer: Injected & { log: string; payload: Uint8Array } };
  /** Places code that `inject` or `compile` made before. */
  place: { ask: { symbol: string; budget?: Budget; payload: Uint8Array }; answer: Injected };
  /** `keep`: a kernel that leaves by itself, because this process stood still for long, is launched again. Default true. */
  start: {
    ask: { options: Readonly<Record<string, unknown>>; keep?: boolean; payload?: Uint8Array };
    answer: { started: Readonly<Record<string, unknown>> };
  };
  stop: { ask: Nothing; answer: Nothing };
  relaunch: { ask: Nothing; answer: Nothing };
}

export type RequestName = keyof Requests;
export type Ask<K extends RequestName> = Requests[K]['ask'];
export type Answer<K extends RequestName> = Requests[K]['answer'];

export interface DeviceProcessStatus {
  readonly kernel: 'none' | 'running' | 'left';
  readonly relaunches: number;
  readonly allocations: number;
  readonly allocatedBytes: number;
  readonly arenaUsedBytes: number;
}

/** Those that a thread of its own serves, since they take long; their answers may be large. */
export type SlowRequest = 'compile' | 'inject';
const SLOW: ReadonlySet<RequestName> = new Set<RequestName>(['compile', 'inject'] satisfies SlowRequest[]);
export const isSlow = (name: RequestName): name is SlowRequest => SLOW.has(name);
