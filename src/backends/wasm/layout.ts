import { control, operatorSlot, queueRecord, workerRecord } from '../../abi/records.ts';
import { descriptor } from '../../abi/descriptor.ts';
import { ABI_VERSION, CONTROL_ADDRESS, MAX_TILES, OPERATOR_SLOTS, SCRATCH_BYTES } from '../../abi/status.ts';
import type { QueueAddresses } from '../backend.ts';

/** Addresses of everything that the executor finds through the control block. */
export interface Layout {
  readonly queues: readonly Required<QueueAddresses>[];
  readonly queueRecords: number;
  readonly workerRecords: number;
  readonly operatorTable: number;
  readonly scratch: number;
  /** First free byte after it all. */
  readonly end: number;
}

export interface LayoutOptions {
  readonly queues: number;
  /** Descriptor slots of each queue; a power of two. */
  readonly slots: number;
  /** Worker records, the host's (0) included. */
  readonly workers: number;
  readonly firstSequence: number;
  readonly spinLimit: number;
}

/** Places the shared regions one after another behind the control block, each on a line of its own. */
export function planLayout(options: LayoutOptions): Layout {
  let at = CONTROL_ADDRESS + control.size;
  const place = (bytes: number, align = 128): number => {
    const address = Math.ceil(at / align) * align;
    at = address + bytes;
    return address;
  };
  const { queues: count, slots, workers } = options;
  const queueRecords = place(count * queueRecord.size);
  const workerRecords = place(workers * workerRecord.size);
  const operatorTable = place(OPERATOR_SLOTS * operatorSlot.size);
  const queues: Required<QueueAddresses>[] = [];
  for (let queue = 0; queue < count; queue++) {
    queues.push({
      record: queueRecords + queue * queueRecord.size,
      ring: place(slots * descriptor.size),
      completions: place(slots * 8),
      claims: { tileWords: place(slots * MAX_TILES * 8), resolutions: place(slots * 8) },
      slots,
    });
  }
  const scratch = place(workers * SCRATCH_BYTES);
  return { queues, queueRecords, workerRecords, operatorTable, scratch, end: Math.ceil(at / 65536) * 65536 };
}

/**
 * Writes the start state. No value of a tag or of a word's sequence means empty: every slot begins as
 * the slot of the task one ring before its first, which is complete.
 */
export function writeLayout(u32: Uint32Array, layout: Layout, options: LayoutOptions): void {
  const put = (address: number, value: number): void => {
    u32[address >> 2] = value;
  };
  const c = control.offset;
  put(CONTROL_ADDRESS + c.abiVersion, ABI_VERSION);
  put(CONTROL_ADDRESS + c.queues, options.queues);
  put(CONTROL_ADDRESS + c.workers, options.workers);
  put(CONTROL_ADDRESS + c.queueRecords, layout.queueRecords);
  put(CONTROL_ADDRESS + c.workerRecords, layout.workerRecords);
  put(CONTROL_ADDRESS + c.operatorTable, layout.operatorTable);
  put(CONTROL_ADDRESS + c.scratch, layout.scratch);
  put(CONTROL_ADDRESS + c.spinLimit, options.spinLimit);
  const q = queueRecord.offset;
  layout.queues.forEach((queue) => {
    const { tileWords, resolutions } = queue.claims;
    put(queue.record + q.ring, queue.ring);
    put(queue.record + q.completions, queue.completions);
    put(queue.record + q.tileWords, tileWords);
    put(queue.record + q.resolutions, resolutions);
    put(queue.record + q.mask, queue.slots - 1);
    put(queue.record + q.cursor + 4, options.firstSequence); // high word: the sequence; low word: tile 0
    put(queue.record + q.mark, options.firstSequence);
    put(queue.record + q.tail, options.firstSequence);
    for (let i = 0; i < queue.slots; i++) {
      const next = (options.firstSequence + i) >>> 0;
      const slot = next & (queue.slots - 1);
      const before = (next - queue.slots) >>> 0;
      put(queue.ring + slot * descriptor.size + descriptor.offset.tag0, before);
      put(queue.ring + slot * descriptor.size + descriptor.offset.tag1, before);
      put(queue.completions + slot * 8 + 4, before);
      put(resolutions + slot * 8 + 4, before);
      for (let tile = 0; tile < MAX_TILES; tile++) put(tileWords + (tile * queue.slots + slot) * 8 + 4, before);
    }
  });
}
