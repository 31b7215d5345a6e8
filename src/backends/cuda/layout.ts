/** Where everything stands in the segment that host and device share. Offsets take the place of addresses in the records of the abi. */
import { descriptor } from '../../abi/descriptor.ts';
import { control, queueRecord, workerRecord } from '../../abi/records.ts';
import { ABI_VERSION, CONTROL_ADDRESS, NO_QUEUE } from '../../abi/status.ts';
import { GpuosError } from '../../errors.ts';

const LINE_BYTES = 64;
const PAGE_BYTES = 4096;

/** The most worker blocks: more than any GPU has multiprocessors. */
export const MOST_WORKERS = 511;

const align = (bytes: number, to = LINE_BYTES): number => Math.ceil(bytes / to) * to;

export interface SegmentOptions {
  readonly queues: number;
  /** Descriptor slots of each queue; a power of two, at least 32. */
  readonly slots: number;
  /** Sequence of the first task of every queue. */
  readonly firstSequence: number;
}

/** Where the parts of a queue lie in the segment, in bytes. */
export interface SegmentQueue {
  readonly record: number;
  readonly ring: number;
  readonly completions: number;
}

export interface SegmentLayout extends SegmentOptions {
  readonly queueRecords: number;
  readonly queueList: readonly SegmentQueue[];
  /** The first ring, and how far the next is from it. A queue's completions follow its ring. */
  readonly rings: number;
  readonly queueStride: number;
  /** A word for each slot of each queue: the sequence of the last task there that had its work done beside the kernel, once it may begin. */
  readonly gates: number;
  /** One of the host, which has no use for it, and one for each worker block. */
  readonly workerRecords: number;
  /** Where the device process has what the workers are at copied to: a word of 8 bytes for each. */
  readonly steps: number;
  /** Where the rest begins. */
  readonly end: number;
}

/** @throws GPUOS_BAD_OPTION */
export function planSegment(options: SegmentOptions): SegmentLayout {
  const { queues, slots } = options;
  if (!Number.isInteger(Math.log2(slots)) || slots < 32)
    throw new GpuosError('GPUOS_BAD_OPTION', `slots is ${slots}; on a GPU it has to be a power of two, at least 32.`);
  const queueRecords = align(CONTROL_ADDRESS + control.size);
  // A descriptor is read in one request of 128 bytes.
  const rings = align(queueRecords + queues * queueRecord.size, descriptor.size);
  const queueStride = align(slots * (descriptor.size + 8), descriptor.size);
  const queueList = Array.from({ length: queues }, (_, i) => ({
    record: queueRecords + i * queueRecord.size,
    ring: rings + i * queueStride,
    completions: rings + i * queueStride + slots * descriptor.size,
  }));
  const gates = rings + queues * queueStride;
  const workerRecords = align(gates + queues * slots * 4);
  const steps = workerRecords + (MOST_WORKERS + 1) * workerRecord.size;
  const end = align(steps + MOST_WORKERS * 8, PAGE_BYTES);
  return { ...options, queueRecords, queueList, rings, queueStride, gates, workerRecords, steps, end };
}

/** The sequence that stands in a slot before its first task: one ring's length before it. */
export function completionBefore(first: number, slot: number, slots: number): number {
  const next = first + ((slot - first) & (slots - 1));
  return (next - slots) >>> 0;
}

/** Writes all that has to be there before the kernel starts. */
export function writeSegment(words: Uint32Array, layout: SegmentLayout): void {
  const { slots, firstSequence } = layout;
  const put = (at: number, value: number): void => {
    words[at >> 2] = value;
  };
  words.fill(0, 0, layout.end >> 2);
  put(CONTROL_ADDRESS + control.offset.abiVersion, ABI_VERSION);
  put(CONTROL_ADDRESS + control.offset.queues, layout.queues);
  put(CONTROL_ADDRESS + control.offset.queueRecords, layout.queueRecords);
  put(CONTROL_ADDRESS + control.offset.workerRecords, layout.workerRecords);
  const q = queueRecord.offset;
  for (const [index, queue] of layout.queueList.entries()) {
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
      put(layout.gates + (index * slots + slot) * 4, before);
    }
  }
}
