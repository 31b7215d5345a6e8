import { GpuosError } from '../../errors.ts';
import { shortenCalls } from './dispatch.ts';
import { type GpuosBackend as Backend, DECLINED, GpuosBackend } from './backend.ts';
import { runFallback } from './fallback.ts';
import { CPU_KERNELS } from './kernel-names.ts';
import { KERNELS } from './kernels/index.ts';
import type { RingEngine } from './record.ts';
import { selectBackend, type TakeoverMode, warnOfSuccessor, watchBackend } from './takeover.ts';
import { BACKEND, type KernelConfig, type TensorInfo, tf, tfjsEngine } from './tfjs.ts';

type Run = (backend: Backend, inputs: unknown, attributes: unknown) => TensorInfo | TensorInfo[];

interface Call {
  readonly inputs: Record<string, TensorInfo>;
  readonly attrs: unknown;
  readonly backend: unknown;
}

/** Higher than the backends of tfjs have (webgpu: 3), so that tfjs chooses ours when it chooses itself. */
const PRIORITY = 10;

/** A kernel of ours, with the CPU kernel behind it for calls that it declines. */
function guarded(name: string, run: Run) {
  return ({ inputs, attrs, backend }: Call): TensorInfo | TensorInfo[] => {
    try {
      return run(backend as Backend, inputs, attrs);
    } catch (error) {
      if (error !== DECLINED) throw error;
    }
    return runFallback(name, backend as Backend, inputs, attrs);
  };
}

function fallback(name: string) {
  return ({ inputs, attrs, backend }: Call) => runFallback(name, backend as Backend, inputs, attrs);
}

export interface RegistrationOptions {
  /** The tensor engine of the running system; called once for each backend object that tfjs makes. */
  readonly open: () => RingEngine;
  readonly mode: TakeoverMode;
  readonly warn: (message: string) => void;
  readonly inform: (message: string) => void;
}

export interface Registration {
  /** The backend object that tfjs made last. */
  readonly backend: Backend;
  /** Takes the backend and its kernels out of tfjs again. */
  remove(): void;
}

/**
 * Registers backend and kernels with tfjs and selects the backend, synchronously.
 *
 * @throws GpuosError GPUOS_ALREADY_INITIALIZED if another copy of this package has, and whatever `open` throws
 */
export function register({ open, mode, warn, inform }: RegistrationOptions): Registration {
  if (tf.findBackendFactory(BACKEND) !== null) {
    throw new GpuosError(
      'GPUOS_ALREADY_INITIALIZED',
      `Another copy of gpuos has registered the tfjs backend "${BACKEND}" in this process.`,
    );
  }
  let made: Backend | undefined = new GpuosBackend(open());
  let current = made;
  const registered: string[] = [];
  const add = (kernelName: string, kernelFunc: unknown) => {
    tf.registerKernel({ kernelName, backendName: BACKEND, kernelFunc } as KernelConfig);
    registered.push(kernelName);
  };
  for (const name of Object.keys(KERNELS)) add(name, guarded(name, KERNELS[name] as Run));
  // A newer CPU backend that the program has loaded may know more kernels than our list.
  const others = new Set([...CPU_KERNELS, ...tf.getKernelsForBackend('cpu').map(({ kernelName }) => kernelName)]);
  for (const name of others) if (!Object.hasOwn(KERNELS, name)) add(name, fallback(name));
  tf.registerBackend(
    BACKEND,
    () => {
      // The first is ready already, so that what is wrong shows as an error of the import; tf.engine().reset() asks for another.
      current = made ?? new GpuosBackend(open());
      made = undefined;
      return current;
    },
    PRIORITY,
  );
  selectBackend();
  const unwatch = watchBackend(mode, warn, inform);
  const lengthen = shortenCalls();
  return {
    get backend() {
      return current;
    },
    remove() {
      lengthen();
      unwatch();
      const engine = tfjsEngine();
      if (engine.registryFactory[BACKEND]) {
        const selected = engine.backendName === BACKEND;
        engine.removeBackend(BACKEND);
        if (selected) warnOfSuccessor(warn);
      }
      for (const name of registered.splice(0)) tf.unregisterKernel(name, BACKEND);
    },
  };
}
