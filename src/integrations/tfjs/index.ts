/**
 * `import 'gpuos/tfjs'`: TensorFlow.js programs run unchanged on gpuos.
 *
 * The import starts the system (unless one is running), registers the backend `gpuos` with @tensorflow/tfjs-core, and
 * selects it, all synchronously. Kernels that we have are recorded for the ring; others run on tfjs's own CPU kernels,
 * with the data moved for them, and are counted.
 */
import { readFlags } from '../../flags.ts';
import { current, init, type System } from '../../runtime/system.ts';
import { engineOf } from '../../tensor/engine.ts';
import type { RingEngine } from './record.ts';
import { register } from './registration.ts';
import type { Statistics } from './statistics.ts';
import { tf } from './tfjs.ts';

export type { Statistics } from './statistics.ts';

export interface DeviceDescription {
  readonly kind: string;
  readonly name: string;
  /** Workers beside the host. */
  readonly workers: number;
}

const flags = readFlags();
const say = (level: 'warn' | 'info') => (message: string) => {
  const order = ['silent', 'error', 'warn', 'info', 'debug'];
  if (order.indexOf(flags.log) >= order.indexOf(level)) console.warn(`gpuos: ${message}`);
};

/** The system is ours to shut down only if we started it. */
const ours = current() === undefined;
let system: System = current() ?? init();

const registration = register({
  open: () => {
    if (system.closed) system = current() ?? init();
    return engineOf(system).forFramework() as unknown as RingEngine;
  },
  mode: flags.tfjs,
  warn: say('warn'),
  inform: say('info'),
});

/** Resolves when tfjs is ready to run on the selected backend. */
export async function ready(): Promise<void> {
  await tf.ready();
}

/** How the kernel calls since the last reset were answered. */
export function statistics(): Statistics {
  return registration.backend.statistics();
}

export function resetStatistics(): void {
  registration.backend.resetStatistics();
}

/** The device that the backend runs on. */
export function device(): DeviceDescription {
  const { kind, name, workers } = system.device;
  return { kind, name, workers };
}

/**
 * Takes the backend out of tfjs, and shuts the system down if the import started it. Tensors on the backend can no
 * longer be read. A program that goes on without tf.setBackend() is told once which backend tfjs has chosen instead.
 */
export async function shutdown(): Promise<void> {
  registration.remove();
  if (ours) await system.shutdown();
}
