/**
 * The thread of the device process that shows the kernel that its host is alive, whatever the main thread is doing, that
 * has the kernel leave when a call of the main thread waits for that, and that ends the process when its parent is gone and the main thread does not see to it.
 */
import { workerData } from 'node:worker_threads';
import { control } from '../../../abi/records.ts';
import { CONTROL_ADDRESS } from '../../../abi/status.ts';
import { type Address, koffi } from '../library.ts';
import { CallGuard } from './call-guard.ts';

/** The kernel leaves after two seconds without a beat. */
const BEAT_MS = 100;
/** How long the main thread may take over stopping the kernel. */
const GRACE_MS = 2000;

export interface HeartbeatStart {
  /** An address: memory that is not of JavaScript cannot be shared with a thread in another way. */
  readonly segmentAddress: Address;
  readonly parent: number;
  /** Of the main thread's calls. */
  readonly guard: SharedArrayBuffer;
}

const { segmentAddress, parent, guard: shared } = workerData as HeartbeatStart;
const guard = new CallGuard(shared);
const words = new Int32Array(koffi().view(segmentAddress, CONTROL_ADDRESS + control.size) as ArrayBuffer);
const never = new Int32Array(new SharedArrayBuffer(4));
const rest = (ms: number): void => void Atomics.wait(never, 0, 0, ms);

const tellToLeave = (): void => void Atomics.store(words, (CONTROL_ADDRESS + control.offset.quit) >> 2, 1);

do {
  Atomics.add(words, (CONTROL_ADDRESS + control.offset.heartbeat) >> 2, 1);
  guard.beat(tellToLeave);
  rest(BEAT_MS);
} while (process.ppid === parent);
tellToLeave();
rest(GRACE_MS);
process.kill(process.pid, 'SIGKILL');
