/** What a host can ask of its device process. */
import type { MatrixProduct } from '../../backend.ts';
import type { ProductType } from '../cublas.ts';
import type { InjectionBudget, Refusal } from '../elf/injectable.ts';
import type { SegmentLayout } from '../layout.ts';
import type { Address } from '../library.ts';
import type { WayCounts } from './known-ways.ts';

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

/** An entry of the table of functions: a function of the kernel's image by its symbol ('' is the interpreter), and its data; without them they stay. */
export type TableEntry = readonly [fn: number, symbol: string, data?: Address];

/**
 * What follows upon what while the kernel is away: it leaves after it was told to; an image that ran before is unloaded,
 * where there are too many; the new one is loaded; its kernels are looked up; the launches are submitted that bring the
 * table of functions up to date, and that of the kernel.
 */
export const PAUSE_PARTS = ['leaveUs', 'unloadUs', 'loadUs', 'lookupUs', 'tableUs', 'launchUs'] as const;
export type PauseParts = Readonly<Record<(typeof PAUSE_PARTS)[number], number>>;
/** `pauseUs`: from the word to leave until the next kernel was launched. */
export interface Pause {
  readonly pauseUs: number;
  readonly parts: PauseParts;
}

/** Whether the kernel runs with another image now. If not, tasks took longer than it may wait for them, and it goes on as it was. */
export type Swapped = ({ readonly swapped: true } & Pause) | { readonly swapped: false };

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
  /** Relocatable machine code for the device; with `link`, linked. With `keep` it stays there too, under that name: see `link`. */
  compile: { ask: CompileAsk & { link?: boolean; keep?: string }; answer: { log: string; payload: Uint8Array } };
  /** Relocatable code that `compile` made before, for `link`. */
  keep: { ask: { name: string; payload: Uint8Array }; answer: Nothing };
  /**
   * Links what is kept under these names, in this order, and forgets what it is told to. The image stays in the process,
   * for `swap`: it may be larger than a message. With `fetch` it comes back instead.
   */
  link: {
    ask: { names: readonly string[]; forget?: readonly string[]; fetch?: boolean };
    answer: { image: number; imageBytes: number; payload?: Uint8Array };
  };
  /** Puts another image in the place of the running kernel: see `ResidentHost.swap`. */
  swap: { ask: { image: number; symbols: readonly string[]; drainMs: number }; answer: Swapped };
  /** Writes entries of the table of functions: see `ResidentHost.enter`. */
  enter: { ask: { entries: readonly TableEntry[] }; answer: Nothing };
  /** Compiles an operator and places its code; the relocatable code comes back for the caller's cache. */
  inject: { ask: CompileAsk & { symbol: string; budget?: Budget }; answer: Injected & { log: string; payload: Uint8Array } };
  /** Places code that `inject` or `compile` made before. */
  place: { ask: { symbol: string; budget?: Budget; payload: Uint8Array }; answer: Injected };
  /** `keep`: a kernel that leaves by itself, because this process stood still for long, is launched again. Default true. */
  start: {
    ask: { options: Readonly<Record<string, unknown>>; keep?: boolean; products?: ProductsAsk; payload?: Uint8Array };
    answer: { started: Readonly<Record<string, unknown>>; products?: ProductsReport | ProductsMissing };
  };
  /**
   * Whether products like this one can be done beside the kernel. For the first of its form that is found out now, once all
   * that was submitted is complete, with the kernel gone for a while; `busy`: that took too long. `report`: what is known then.
   */
  productFits: { ask: { product: MatrixProduct }; answer: { fits: boolean; busy?: boolean; report?: ProductsReport } };
  /** Does the product of a task once the task's gate is open, and publishes its end. */
  product: { ask: ProductAsk; answer: { unavailable?: string } };
  /** See `ProductLibrary.measure`. */
  measureProduct: { ask: { dtype: ProductType; n: number; rounds: number }; answer: MeasuredProduct & { report: ProductsReport } };
  stop: { ask: Nothing; answer: Nothing };
  relaunch: { ask: Nothing; answer: Nothing };
}

/** What large products need to be told at the start. */
export interface ProductsAsk {
  readonly layout: SegmentLayout;
  /** Where it is remembered what was found out of forms. */
  readonly cacheFolder: string;
  /** Whether the library has to be there. */
  readonly insist: boolean;
  readonly aside: Aside;
}

/** Whether the kernel steps aside for a product: where it is long and nobody else waits, never, or whenever nobody else waits. */
export type Aside = 'auto' | 'never' | 'always';

/** What is known of products of one type and transposition. */
export interface ProductWay extends WayCounts {
  readonly dtype: ProductType;
  readonly transposedA: boolean;
  readonly transposedB: boolean;
  /** What the best one took beside the kernel; without it there is no way. */
  readonly us?: number;
  /** Whether an earlier process found that out. */
  readonly remembered: boolean;
  /** How long it took this one, all in all. */
  readonly prepareMs: number;
  /** What went wrong otherwise. */
  readonly problem?: string;
}

export interface ProductsReport {
  /** The version by the file's name until the library is loaded. */
  readonly library: { readonly path: string; readonly from: string; readonly version: string };
  /** Of the forms that were asked for so far. */
  readonly ways: readonly ProductWay[];
  /** Rows and columns of what was tried. */
  readonly n: number;
  readonly unavailable?: string;
}

export interface ProductsMissing {
  readonly unavailable: string;
}

export interface ProductAsk {
  readonly product: MatrixProduct;
  readonly pointers: readonly [a: Address, b: Address, c: Address];
  readonly queue: number;
  readonly sequence: number;
  /** Where the segment has the task's gate, and the sequence of its completion. */
  readonly gate: number;
  readonly completion: number;
}

/** Times in us, in turn. */
export interface MeasuredProduct {
  readonly beside: readonly number[];
  readonly without: readonly number[];
  readonly fastest: readonly number[];
}

export type RequestName = keyof Requests;
export type Ask<K extends RequestName> = Requests[K]['ask'];
export type Answer<K extends RequestName> = Requests[K]['answer'];

export interface DeviceProcessStatus {
  readonly kernel: 'none' | 'running' | 'left';
  /** How many times it was launched again because it had left by itself. */
  readonly relaunches: number;
  /** How many times it was replaced by one with other code, and how long it was away the last time. */
  readonly swaps: { readonly count: number } & Pause;
  readonly allocations: number;
  readonly allocatedBytes: number;
  readonly arenaUsedBytes: number;
  /** Tasks whose work is not done by the kernel: those that wait, are under way beside it, were begun, of these with the kernel away, and failed. */
  readonly products?: Readonly<Record<'waiting' | 'launched' | 'begun' | 'aside' | 'failed', number>>;
}

/** Those that a thread of its own serves, since they take long; their answers may be large. */
export type SlowRequest = 'compile' | 'inject' | 'keep' | 'link';
const SLOW: ReadonlySet<RequestName> = new Set<RequestName>(['compile', 'inject', 'keep', 'link'] satisfies SlowRequest[]);
export const isSlow = (name: RequestName): name is SlowRequest => SLOW.has(name);
