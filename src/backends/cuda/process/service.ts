/**
 * Who answers the requests of `requests.ts` in the device process. All copies go over a side stream and are complete
 * when the answer is there, so that a task submitted then sees them.
 */
import { control } from '../../../abi/records.ts';
import { CONTROL_ADDRESS } from '../../../abi/status.ts';
import { GpuosError } from '../../../errors.ts';
import { CudaError } from '../cuda-error.ts';
import type { CudaDriver } from '../driver.ts';
import { readInjectable } from '../elf/injectable.ts';
import type { Address } from '../library.ts';
import type { Nvrtc } from '../nvrtc.ts';
import type { CallGuard } from './call-guard.ts';
import { type Channel, KERNEL, type Message } from './channel.ts';
import type { CodeArena } from './code-arena.ts';
import { isFatal } from './ending.ts';
import type { Look } from './ordinary-tasks.ts';
import { ProductService, type ProductServiceParts } from './product-service.ts';
import type { Answer, Ask, Budget, CompileAsk, DeviceInfo, Injected, ProductsAsk, RequestName, SlowRequest } from './requests.ts';
import type { ResidentContext, ResidentHost, ResidentHostFactory } from './resident-host.ts';

type Handlers<K extends RequestName> = { readonly [N in K]: (ask: Ask<N>) => Answer<N> };

function answerOf<K extends RequestName>(handlers: Handlers<K>, name: string, message: Message): Message {
  if (!Object.hasOwn(handlers, name)) throw new GpuosError('GPUOS_INTERNAL', `The device process knows no request ${name}.`);
  return (handlers as unknown as Record<string, (ask: Message) => Message>)[name]!(message);
}

/** An integer of at least 0 that a request has to have. */
function natural(value: unknown, what: string): number {
  if (Number.isSafeInteger(value) && (value as number) >= 0) return value as number;
  throw new GpuosError('GPUOS_BAD_OPTION', `${what} is ${JSON.stringify(value)}, not an integer of at least 0.`);
}

function text(value: unknown, what: string): string {
  if (typeof value === 'string') return value;
  throw new GpuosError('GPUOS_BAD_OPTION', `${what} is ${JSON.stringify(value)}, not a text.`);
}

export interface Placing {
  readonly driver: CudaDriver;
  readonly arena: CodeArena;
  /** 90 for sm_90. */
  readonly sm: number;
}

function place({ driver, arena, sm }: Placing, stream: Address, image: Uint8Array, symbol: string, budget: Budget | undefined): Injected {
  const read = readInjectable(image, symbol, { ...budget, sm });
  if (!read.ok) return { refused: read.reasons };
  return { address: arena.place(read.function, driver, stream), codeBytes: read.function.code.length };
}

/** An image that was linked, on its way from the thread that did to the one that loads it. */
export interface LinkedImage {
  readonly image: number;
  readonly bytes: Uint8Array;
}

/** The requests of the thread that compiles. The context must be current there. */
export class CompileService {
  readonly #placing: Placing;
  readonly #nvrtc: Nvrtc;
  readonly #stream: Address;
  readonly #handOver: (image: LinkedImage) => void;
  /** Relocatable code by the names that it was given. */
  readonly #kept = new Map<string, Uint8Array>();
  #images = 0;
  readonly #handlers: Handlers<SlowRequest> = {
    compile: (ask) => {
      const { image, log } = this.#compile(ask);
      const { driver } = this.#placing;
      if (ask.keep !== undefined) this.#kept.set(text(ask.keep, 'keep'), image);
      return { log, payload: ask.link === true ? driver.link([{ kind: 'cubin', name: text(ask.name, 'name'), bytes: image }]) : image };
    },
    keep: ({ name, payload }) => {
      this.#kept.set(text(name, 'name'), payload);
      return {};
    },
    link: ({ names, forget = [], fetch }) => {
      const inputs = names.map((name) => {
        const bytes = this.#kept.get(name);
        if (bytes === undefined) throw new GpuosError('GPUOS_BAD_OPTION', `No code is kept under the name ${JSON.stringify(name)}.`);
        return { kind: 'cubin', name, bytes } as const;
      });
      const payload = this.#placing.driver.link(inputs);
      for (const name of forget) this.#kept.delete(name);
      const image = { image: ++this.#images, imageBytes: payload.length };
      if (fetch === true) return { ...image, payload };
      this.#handOver({ image: image.image, bytes: payload });
      return image;
    },
    inject: (ask) => {
      const { image, log } = this.#compile(ask);
      return { ...place(this.#placing, this.#stream, image, text(ask.symbol, 'symbol'), ask.budget), log, payload: image };
    },
  };

  /** @param handOver how an image gets to the thread that loads it */
  constructor(placing: Placing, nvrtc: Nvrtc, handOver: (image: LinkedImage) => void) {
    this.#placing = placing;
    this.#nvrtc = nvrtc;
    this.#handOver = handOver;
    this.#stream = placing.driver.createStream(placing.driver.streamPriorities().greatest);
  }

  #compile({ source, name, headers, options }: CompileAsk) {
    return this.#nvrtc.compile({
      source: text(source, 'source'),
      name: text(name, 'name'),
      target: `sm_${this.#placing.sm}`,
      ...(headers === undefined ? {} : { headers }),
      ...(options === undefined ? {} : { options }),
    });
  }

  readonly handle = (name: string, message: Message): Message => answerOf(this.#handlers, name, message);
}

const ADDRESS_WORDS = { quit: (CONTROL_ADDRESS + control.offset.quit) >> 2 };
/** More relaunches than this in so long mean that the kernel cannot be kept. */
const RELAUNCH_LIMIT = 10;
const RELAUNCH_WINDOW_MS = 60_000;
/** How often the kernel is looked after where a request waits for tasks. */
const TEND_MS = 100;
/** How long a kernel may take to leave: it leaves without what runs after half a second. */
const LEAVE_MS = 5000;

export interface ServiceParts extends Placing {
  readonly channel: Channel;
  readonly device: number;
  readonly segment: ResidentContext['segment'];
  readonly info: DeviceInfo;
  readonly createHost: ResidentHostFactory | undefined;
  /** An image that the other thread linked; undefined if there is none of that number. */
  linked(image: number): Uint8Array | undefined;
  /** Of the thread that serves these requests. */
  readonly guard: CallGuard;
  readonly cudaHome: string | undefined;
}

/** The requests of the main thread, which has the context and the kernel. */
export class QuickService {
  readonly #parts: ServiceParts;
  readonly #stream: Address;
  readonly #words: Int32Array;
  readonly #allocations = new Map<Address, number>();
  #host: ResidentHost | undefined;
  #products: ProductService | undefined;
  #keep = true;
  #relaunches: number[] = [];
  #tendedAt = 0;
  readonly #handlers: Handlers<Exclude<RequestName, SlowRequest>> = {
    info: () => this.#parts.info,
    memory: () => this.#parts.driver.memory(),
    status: () => ({
      kernel: this.#host === undefined ? 'none' : this.#parts.channel.kernel === KERNEL.left ? 'left' : 'running',
      relaunches: this.#parts.channel.relaunches,
      swaps: this.#parts.channel.swaps,
      allocations: this.#allocations.size,
      allocatedBytes: [...this.#allocations.values()].reduce((sum, bytes) => sum + bytes, 0),
      arenaUsedBytes: this.#parts.arena.usedBytes,
      ...(this.#products?.counters && { products: this.#products.counters }),
    }),
    allocate: ({ bytes }) => ({ address: this.#allocate(natural(bytes, 'bytes')) }),
    free: ({ address }) => {
      if (this.#host !== undefined) throw new GpuosError('GPUOS_INTERNAL', 'Device memory is not freed while a kernel is resident.');
      if (!this.#allocations.delete(address)) throw new GpuosError('GPUOS_BAD_OPTION', `Nothing is allocated at ${address}.`);
      this.#parts.driver.free(address);
      return {};
    },
    copyIn: (ask) => {
      const { address, host, bytes } = this.#copy(ask);
      return this.#through((stream) => this.#parts.driver.copyToDevice(address, host, bytes, stream));
    },
    copyOut: (ask) => {
      const { address, host, bytes } = this.#copy(ask);
      return this.#through((stream) => this.#parts.driver.copyToHost(host, address, bytes, stream));
    },
    fill: ({ address, byte, bytes }) => {
      this.#inside(address, natural(bytes, 'bytes'));
      if (natural(byte, 'byte') > 255) throw new GpuosError('GPUOS_BAD_OPTION', `byte is ${byte}, more than 255.`);
      return this.#through((stream) => this.#parts.driver.fillBytes(address, byte, bytes, stream));
    },
    write: ({ address, payload }) => {
      if (!(payload instanceof Uint8Array) || payload.length === 0) throw new GpuosError('GPUOS_BAD_OPTION', 'Nothing to write.');
      this.#inside(address, payload.length);
      return this.#through((stream) => this.#parts.driver.copyToDevice(address, payload, payload.length, stream));
    },
    place: ({ symbol, budget, payload }) => place(this.#parts, this.#stream, payload, text(symbol, 'symbol'), budget),
    start: ({ options, keep = true, products, payload }) => {
      const { createHost, channel, driver, device, segment } = this.#parts;
      if (this.#host !== undefined) throw new GpuosError('GPUOS_INTERNAL', 'A kernel is resident already.');
      if (createHost === undefined) throw new GpuosError('GPUOS_INTERNAL', 'The device process was started without a resident kernel.');
      const host = createHost({ driver, device, segment, allocate: (bytes) => this.#allocate(bytes) });
      this.#products = products === undefined ? undefined : this.#newProducts(host, products);
      const started = host.start(options, payload);
      this.#host = host;
      this.#keep = keep;
      channel.kernel = KERNEL.running;
      return { started, ...(this.#products && { products: this.#products.report }) };
    },
    productFits: (ask) => this.#productService().fits(ask),
    product: (ask) => this.#productService().add(ask),
    measureProduct: (ask) => this.#productService().measure(ask),
    stop: () => {
      this.stop();
      return {};
    },
    relaunch: () => {
      this.#relaunch(this.#resident());
      return {};
    },
    swap: ({ image, symbols, drainMs }) => {
      const host = this.#resident();
      const bytes = this.#parts.linked(image);
      if (bytes === undefined) throw new GpuosError('GPUOS_BAD_OPTION', `There is no linked image ${image}.`);
      const limit = natural(drainMs, 'drainMs');
      return this.#away(() => {
        const answer = host.swap(bytes, symbols, limit, () => void this.look());
        if (answer.swapped) this.#parts.channel.countSwap(answer);
        return answer;
      });
    },
    enter: ({ entries }) => {
      this.#resident().enter(entries);
      return {};
    },
  };

  constructor(parts: ServiceParts) {
    this.#parts = parts;
    this.#stream = parts.driver.createStream(parts.driver.streamPriorities().greatest);
    this.#words = new Int32Array(parts.segment.view);
  }

  readonly handle = (name: string, message: Message): Message => answerOf(this.#handlers, name, message);

  #resident(): ResidentHost {
    if (this.#host === undefined) throw new GpuosError('GPUOS_INTERNAL', 'No kernel was started.');
    return this.#host;
  }

  #productService(): ProductService {
    if (this.#products === undefined) throw new GpuosError('GPUOS_BAD_OPTION', 'No library for products was asked for.');
    return this.#products;
  }

  #newProducts(host: ResidentHost, ask: ProductsAsk): ProductService {
    const { driver, device, guard, cudaHome, sm, segment } = this.#parts;
    const parts: ProductServiceParts = {
      driver,
      device,
      guard,
      cudaHome,
      major: Math.floor(sm / 10),
      words: this.#words,
      kernel: {
        without: (meanwhile) => this.#without(host, meanwhile),
        stepAside: (queue, sequence, work) => host.stepAside(queue, sequence, work),
      },
      block: () => host.block,
      allocate: (bytes) => this.#allocate(bytes),
      end: (queue, sequence, status, stream) => host.endExternal(queue, sequence, status, stream),
      tend: () => this.#tend(),
      check: (address, bytes) => {
        const from = natural(address, 'address');
        if (from >= segment.deviceAddress && from + bytes <= segment.deviceAddress + segment.bytes) return;
        this.#inside(from, bytes);
      },
    };
    return new ProductService(parts, ask);
  }

  /** What the thread does between requests, where one of them has to wait for tasks. */
  #tend(): void {
    this.look();
    const now = performance.now();
    if (now - this.#tendedAt < TEND_MS) return;
    this.#tendedAt = now;
    this.watch();
  }

  /** Nobody asks in between whether the kernel has left: this thread would. Onlookers see it in the channel. */
  #away<T>(action: () => T): T {
    const { channel } = this.#parts;
    const before = channel.kernel;
    channel.kernel = KERNEL.relaunching;
    try {
      return action();
    } finally {
      channel.kernel = before;
    }
  }

  /** Has the kernel leave, and launches it again after `meanwhile`. @throws GPUOS_DEVICE_LOST if it does not leave */
  #without<T>(host: ResidentHost, meanwhile: () => T): T {
    const { channel } = this.#parts;
    channel.kernel = KERNEL.relaunching;
    Atomics.store(this.#words, ADDRESS_WORDS.quit, 1);
    for (const until = performance.now() + LEAVE_MS; !host.left; ) {
      if (performance.now() > until)
        throw new GpuosError('GPUOS_DEVICE_LOST', `The resident kernel did not leave within ${LEAVE_MS / 1000} s.`);
    }
    try {
      return meanwhile();
    } finally {
      this.#relaunch(host);
    }
  }

  /** Begins work beside the kernel that may begin; how soon to look again. @throws CudaError of a fault */
  look(): Look {
    return this.#products?.look() ?? 'idle';
  }

  /** Ends the kernel, if there is one. */
  stop(): void {
    this.#host?.stop();
    this.#host = undefined;
    this.#parts.channel.kernel = KERNEL.none;
  }

  /**
   * Looks after the kernel: one that left while nobody told it to is launched again, one that cannot end a task is given up.
   * @throws CudaError of a fault, GPUOS_DEVICE_LOST if it cannot be kept
   */
  watch(): void {
    const { channel } = this.#parts;
    const host = this.#host;
    this.#products?.watch();
    if (host === undefined || channel.kernel !== KERNEL.running) return;
    if (!host.left) {
      host.watch();
      if (host.mayTidy) this.#away(() => host.tidy(() => void this.look()));
      return;
    }
    channel.kernel = KERNEL.left;
    if (!this.#keep || Atomics.load(this.#words, ADDRESS_WORDS.quit) !== 0) return;
    const now = performance.now();
    this.#relaunches = [...this.#relaunches.filter((time) => now - time < RELAUNCH_WINDOW_MS), now];
    if (this.#relaunches.length > RELAUNCH_LIMIT) {
      const text = `The resident kernel left ${this.#relaunches.length} times within ${RELAUNCH_WINDOW_MS / 1000} s.`;
      throw new GpuosError('GPUOS_DEVICE_LOST', text);
    }
    this.#relaunch(host);
    channel.countRelaunch();
  }

  /** What the process ends by, with the tasks that may have caused it where that is a fault of the device. */
  explain(error: unknown): unknown {
    return this.#host !== undefined && error instanceof CudaError && isFatal(error) ? this.#host.explain(error) : error;
  }

  #relaunch(host: ResidentHost): void {
    host.relaunch();
    this.#parts.channel.kernel = KERNEL.running;
  }

  #allocate(bytes: number): Address {
    const address = this.#parts.driver.allocate(bytes);
    this.#allocations.set(address, bytes);
    return address;
  }

  #copy(ask: { readonly address: Address; readonly segmentOffset: number; readonly bytes: number }) {
    const offset = natural(ask.segmentOffset, 'segmentOffset');
    const bytes = natural(ask.bytes, 'bytes');
    const { segment } = this.#parts;
    if (offset + bytes > segment.bytes) {
      throw new GpuosError('GPUOS_BAD_OPTION', `${bytes} bytes from ${offset} on are not in the segment of ${segment.bytes} bytes.`);
    }
    this.#inside(ask.address, bytes);
    return { address: ask.address, host: segment.address + offset, bytes };
  }

  /** A copy out of what is allocated is a fault that nothing survives. */
  #inside(address: unknown, bytes: number): void {
    const from = natural(address, 'address');
    for (const [start, size] of this.#allocations) if (from >= start && from + bytes <= start + size) return;
    throw new GpuosError('GPUOS_BAD_OPTION', `${bytes} bytes at 0x${from.toString(16)} are not in memory that was allocated.`);
  }

  #through(copy: (stream: Address) => void): Record<never, never> {
    copy(this.#stream);
    this.#parts.driver.synchronizeStream(this.#stream);
    return {};
  }
}
