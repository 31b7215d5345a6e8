import { MessageChannel } from 'node:worker_threads';

/**
 * Just under the size up to which glibc adapts. Freeing a block that was mapped raises the size from
 * which blocks are mapped to the block's own, and the size from which freed memory goes back to the
 * system to twice that.
 */
const BLOCK_BYTES = 32 * 2 ** 20 - 2 ** 16;

let done = false;

/**
 * Makes the C library keep the pages of freed arrays. Every read of a tensor makes a new array; V8 frees
 * them in bulk, glibc gives the pages back at once, and the next arrays fault each of them in again. On
 * virtual machines a fault was measured at 13 us: a read of 64 KiB took 200 us instead of 8.
 *
 * The thresholds adapt by themselves when a large mapped block is freed, so one is allocated (its pages
 * are never touched) and freed at once: a message that cannot be delivered is destroyed with what was
 * transferred to it. Elsewhere than on glibc this does nothing. Happens once a process.
 */
export function keepFreedPages(): void {
  if (done) return;
  done = true;
  const { port1, port2 } = new MessageChannel();
  const block = new ArrayBuffer(BLOCK_BYTES);
  port2.close();
  port1.postMessage(block, [block]);
  port1.close();
}
