/** How the device process ends. */
import { control } from '../../../abi/records.ts';
import { CONTROL_ADDRESS } from '../../../abi/status.ts';
import { GpuosError } from '../../../errors.ts';
import { type Channel, CHILD } from './channel.ts';
import { exitNow, sleepOn } from './libc.ts';

/** Exit codes; above those of Node.js and below those of signals. */
export const EXIT = { left: 0, failed: 81, lost: 82, defect: 83 } as const;

/** After these no call of the process works any more. */
export function isFatal(error: unknown): boolean {
  return error instanceof GpuosError && error.code === 'GPUOS_DEVICE_LOST';
}

/** Ends the process from whichever thread, with the reason where its parent looks for it. */
export function endBy(channel: Channel, segment: ArrayBuffer | undefined, error: unknown): never {
  const starting = channel.child === CHILD.starting;
  // A kernel that still runs leaves by itself; the driver takes longer to end it.
  if (segment !== undefined) Atomics.store(new Int32Array(segment), (CONTROL_ADDRESS + control.offset.quit) >> 2, 1);
  const first = channel.moveChild(channel.child, starting ? CHILD.failed : CHILD.lost, error);
  // Another thread is about to end the process, and its reason is the first.
  if (!first) sleepOn(channel.addressOf(channel.clientBell), Atomics.load(channel.words, channel.clientBell), 100);
  exitNow(starting ? EXIT.failed : isFatal(error) ? EXIT.lost : EXIT.defect);
}
