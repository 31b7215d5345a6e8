import { descriptor } from '../../abi/descriptor.ts';
import { control, queueRecord } from '../../abi/records.ts';
import { CONTROL_ADDRESS, NO_QUEUE, OPERATOR_SLOTS } from '../../abi/status.ts';
import { GpuosError } from '../../errors.ts';
import type { CudaDriver } from './driver.ts';
import { type InjectableFunction, placeCode } from './elf/injectable.ts';
import { type Address, koffi } from './library.ts';

/** Threads of every block of the resident kernel (GPUOS_BLOCK_THREADS of `device/resident.cuh`). */
const BLOCK_THREADS = 256;
/** sizeof(Mailbox), sizeof(OperatorEntry), sizeof(ResidentArguments) there. */
const MAILBOX_BYTES = 1280;
const TABLE_ENTRY_BYTES = 16;
const ARGUMENT_BYTES = 72;
const LINE_BYTES = 64;
/** Memory for injected code, and what stays free behind each function: the device fetches instructions ahead. */
const ARENA_BYTES = 16 << 20;
const GUARD_BYTES = 4096;

const align = (bytes: number, to = LINE_BYTES): number => Math.ceil(bytes / to) * to;

export interface ResidentOptions {
  /** The linked machine code of `device/resident.cu`. */
  readonly image: Uint8Array;
  readonly queues: number;
  /** Descriptor slots of each queue; a power of two, at least 32. */
  readonly slots: number;
  /** Worker blocks; the dispatcher's comes on top. Default: one for each multiprocessor but one. */
  readonly workers?: number;
  /** Sequence of the first task of every queue. */
  readonly firstSequence?: number;
}

/** Where the parts of a queue lie in the segment, in bytes. */
export interface ResidentQueue {
  readonly record: number;
  readonly ring: number;
  readonly completions: number;
}

/**
 * The resident kernel on a device, and the segment of pinned memory through which host and kernel speak.
 * Offsets in the segment take the place of addresses in the records of the abi.
 */
export class ResidentKernel {
  /** The segment as the host sees it. */
  readonly words: Uint32Array;
  /** The segment as the device sees it. */
  readonly deviceAddress: Address;
  readonly queues: readonly ResidentQueue[];
  readonly slots: number;
  readonly workers: number;
  readonly #driver: CudaDriver;
  readonly #host: Address;
  readonly #stream: Address;
  readonly #module: Address;
  readonly #memory: Address[] = [];
  /** For copies while the kernel runs. */
  readonly #side: Address;
  readonly #table: Address;
  readonly #arena: Address;
  #arenaUsed = 0;
  /** Registers a thread that the kernel was linked with: what an injected operator may use. */
  readonly registers: number;

  /**
   * Loads and launches it; the context must be current. Nothing of this process may be loaded onto the device from
   * here to `stop()`: loading a module waits for running kernels to end.
   * @throws CudaError, GPUOS_BAD_OPTION
   */
  constructor(driver: CudaDriver, device: number, options: ResidentOptions) {
    const { queues, slots, firstSequence = 0 } = options;
    if (!Number.isInteger(Math.log2(slots)) || slots < 32)
      throw new GpuosError('GPUOS_BAD_OPTION', `slots is ${slots}; it has to be a power of two, at least 32.`);
    this.#driver = driver;
    this.slots = slots;
    this.workers = options.workers ?? driver.deviceAttribute(device, 'sms') - 1;
    const layout = planSegment(queues, slots);
    this.queues = layout.queues;
    this.#module = driver.loadModule(options.image);
    this.#stream = driver.createStream();
    this.#side = driver.createStream(driver.streamPriorities().greatest);
    this.#host = driver.allocateHost(layout.bytes);
    this.deviceAddress = driver.deviceAddress(this.#host);
    this.words = new Uint32Array(koffi().view(BigInt(this.#host), layout.bytes) as ArrayBuffer);
    writeSegment(this.words, layout, { queues, slots, workers: this.workers, firstSequence });

    const mailboxes = this.#zeroed(this.workers * MAILBOX_BYTES);
    const completions = this.#allocate(queues * slots * 8);
    const marks = this.#allocate(queues * 4);
    const table = this.#zeroed(OPERATOR_SLOTS * TABLE_ENTRY_BYTES);
    this.#table = table;
    this.#arena = this.#zeroed(ARENA_BYTES);
    const leave = this.#zeroed(4);
    const before = Uint32Array.from({ length: queues * slots * 2 }, (_, i) =>
      i % 2 === 0 ? 0 : completionBefore(firstSequence, (i >> 1) & (slots - 1), slots),
    );
    driver.copyToDevice(completions, before, before.byteLength, this.#stream);
    driver.copyToDevice(marks, new Uint32Array(queues).fill(firstSequence), queues * 4, this.#stream);
    driver.launch(driver.moduleFunction(this.#module, 'gpuos_fill_table'), { grid: [1], block: [32], stream: this.#stream }, [table]);
    driver.synchronizeStream(this.#stream);

    const argument = new DataView(new ArrayBuffer(ARGUMENT_BYTES));
    [this.deviceAddress, mailboxes, completions, marks, table, leave].forEach((address, i) => {
      argument.setBigUint64(8 * i, BigInt(address), true);
    });
    [this.workers, queues, slots, layout.queueRecords, layout.rings, layout.queueStride].forEach((value, i) => {
      argument.setUint32(48 + 4 * i, value, true);
    });
    const shape = {
      grid: [this.workers + 1],
      block: [BLOCK_THREADS],
      sharedBytes: 4 * this.workers,
      stream: this.#stream,
      cooperative: true,
    } as const;
    const kernel = driver.moduleFunction(this.#module, 'gpuos_resident');
    this.registers = driver.functionAttribute(kernel, 'registers');
    driver.launch(kernel, shape, [argument]);
  }

  /**
   * Puts an operator into a slot of the table while the kernel runs: its bytes into the arena, at an address that was
   * never executed before (instruction caches are not coherent), then the address into the table. Tasks submitted from
   * the return on may name the slot.
   * @throws GPUOS_OPERATOR_OUT_OF_RANGE, GPUOS_OUT_OF_MEMORY when the arena is full, CudaError
   */
  inject(code: InjectableFunction, slot: number): void {
    if (!Number.isInteger(slot) || slot < 0 || slot >= OPERATOR_SLOTS) {
      throw new GpuosError('GPUOS_OPERATOR_OUT_OF_RANGE', `There is no slot ${slot}; the table has slots 0 to ${OPERATOR_SLOTS - 1}.`);
    }
    const offset = align(this.#arenaUsed, code.alignmentBytes);
    if (offset + code.code.length + GUARD_BYTES > ARENA_BYTES) {
      throw new GpuosError('GPUOS_OUT_OF_MEMORY', `The arena for injected code, ${ARENA_BYTES >> 20} MiB, is full.`);
    }
    this.#arenaUsed = offset + code.code.length + GUARD_BYTES;
    const address = this.#arena + offset;
    const bytes = placeCode(code, BigInt(address));
    this.#driver.copyToDevice(address, bytes, bytes.length, this.#side);
    // The code has to be there before anyone can find its address.
    this.#driver.synchronizeStream(this.#side);
    const entry = new BigUint64Array([BigInt(address), 1n]);
    this.#driver.copyToDevice(this.#table + slot * TABLE_ENTRY_BYTES, entry, TABLE_ENTRY_BYTES, this.#side);
    this.#driver.synchronizeStream(this.#side);
  }

  #allocate(bytes: number): Address {
    const address = this.#driver.allocate(bytes);
    this.#memory.push(address);
    return address;
  }

  #zeroed(bytes: number): Address {
    const address = this.#allocate(bytes);
    this.#driver.fillBytes(address, 0, bytes, this.#stream);
    return address;
  }

  /** Shows the kernel that its host is alive; at least once a second. */
  beat(): void {
    Atomics.add(this.words, (CONTROL_ADDRESS + control.offset.heartbeat) >> 2, 1);
  }

  /** Whether the kernel has left. @throws CudaError if it did so by a fault */
  get left(): boolean {
    return this.#driver.streamDone(this.#stream);
  }

  /** Tells the kernel to leave, waits until it has, and frees what it used. @throws CudaError if it left by a fault */
  stop(): void {
    Atomics.store(this.words, (CONTROL_ADDRESS + control.offset.quit) >> 2, 1);
    this.#driver.synchronizeStream(this.#stream);
    for (const address of this.#memory) this.#driver.free(address);
    this.#driver.freeHost(this.#host);
    this.#driver.destroyStream(this.#stream);
    this.#driver.destroyStream(this.#side);
    this.#driver.unloadModule(this.#module);
  }
}

interface Segment {
  readonly bytes: number;
  readonly queueRecords: number;
  readonly queues: readonly ResidentQueue[];
  /** The first ring, and how far the next is from it. A queue's completions follow its ring. */
  readonly rings: number;
  readonly queueStride: number;
}

function planSegment(queues: number, slots: number): Segment {
  const queueRecords = align(CONTROL_ADDRESS + control.size);
  // A descriptor is read in one request of 128 bytes.
  const rings = align(queueRecords + queues * queueRecord.size, descriptor.size);
  const queueStride = align(slots * (descriptor.size + 8), descriptor.size);
  const list = Array.from({ length: queues }, (_, i) => ({
    record: queueRecords + i * queueRecord.size,
    ring: rings + i * queueStride,
    completions: rings + i * queueStride + slots * descriptor.size,
  }));
  return { bytes: align(rings + queues * queueStride, 4096), queueRecords, queues: list, rings, queueStride };
}

/** The sequence that stands in a slot before its first task: one ring's length before it. */
function completionBefore(first: number, slot: number, slots: number): number {
  const next = first + ((slot - first) & (slots - 1));
  return (next - slots) >>> 0;
}

function writeSegment(
  words: Uint32Array,
  layout: Segment,
  options: { readonly queues: number; readonly slots: number; readonly workers: number; readonly firstSequence: number },
): void {
  const { slots, firstSequence } = options;
  const put = (at: number, value: number): void => {
    words[at >> 2] = value;
  };
  words.fill(0);
  put(CONTROL_ADDRESS + control.offset.queues, options.queues);
  put(CONTROL_ADDRESS + control.offset.workers, options.workers);
  put(CONTROL_ADDRESS + control.offset.queueRecords, layout.queueRecords);
  const q = queueRecord.offset;
  for (const queue of layout.queues) {
    put(queue.record + q.ring, queue.ring);
    put(queue.record + q.completions, queue.completions);
    put(queue.record + q.mask, slots - 1);
    put(queue.record + q.cursor + 4, firstSequence);
    put(queue.record + q.mark, firstSequence);
    put(queue.record + q.tail, firstSequence);
    for (let slot = 0; slot < slots; slot++) {
      const before = completionBefore(firstSequence, slot, slots);
      const at = queue.ring + slot * descriptor.size;
      put(at + descriptor.offset.tag0, before);
      put(at + descriptor.offset.tag1, before);
      put(at + descriptor.offset.dependencyQueues, NO_QUEUE * 0x01010101);
      put(queue.completions + slot * 8 + 4, before);
    }
  }
}
