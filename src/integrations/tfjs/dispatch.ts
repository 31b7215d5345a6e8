/**
 * The short way of a kernel call.
 *
 * For each call the engine of tfjs makes half a dozen closures, looks the kernel up twice under a name that it puts
 * together, and asks its environment three times whether it is being tested: for an operation that we only record, that
 * is most of the work. All of it serves gradients, profiles and debugging. With none of these on, what is left is to find
 * the kernel, to run it, and to wrap what it returns. Every other call goes the engine's own way.
 */
import { BACKEND, type EngineInternals, type KernelFunction, type TensorInfo, tfjsEngine } from './tfjs.ts';

/** Kernels of all backends by `backend_kernel`: one object for all copies of tfjs in the process. */
type Registry = Map<string, { readonly kernelFunc: KernelFunction }>;

function registry(): Registry | undefined {
  const globals = (globalThis as { _tfGlobals?: Map<string, unknown> })._tfGlobals;
  const found = globals?.get('kernelRegistry');
  return found instanceof Map ? (found as Registry) : undefined;
}

/** Somebody wants to see each call: a gradient's tape, a profile, debug mode, a test that looks for leaks. */
function isWatched({ state, ENV }: EngineInternals): boolean {
  const { flags } = ENV;
  return (state.gradientDepth > 0 && state.kernelDepth === 0) || state.profiling || flags['DEBUG'] === true || flags['IS_TEST'] === true;
}

/**
 * Stands in front of the engine's runKernel while our backend is selected.
 *
 * @returns a function that takes it away again
 */
export function shortenCalls(): () => void {
  const engine = tfjsEngine();
  const kernels = registry();
  // A version of tfjs that keeps its kernels or its state elsewhere: then all calls go its own way.
  if (kernels === undefined || typeof engine.makeTensorFromTensorInfo !== 'function' || engine.ENV?.flags === undefined) return () => {};
  const own = Object.hasOwn(engine, 'runKernel');
  const original = engine.runKernel;
  const keys = new Map<string, string>();
  const runKernel = (name: string, inputs: Record<string, TensorInfo>, attrs?: unknown): unknown => {
    const backend = engine.backendName === BACKEND ? engine.backendInstance : null;
    if (backend === null || isWatched(engine)) return original.call(engine, name, inputs, attrs);
    let key = keys.get(name);
    if (key === undefined) {
      key = `${BACKEND}_${name}`;
      keys.set(name, key);
    }
    const kernel = kernels.get(key);
    if (kernel === undefined) return original.call(engine, name, inputs, attrs);
    engine.state.kernelDepth++;
    try {
      const out = kernel.kernelFunc({ inputs, attrs, backend });
      if (!Array.isArray(out)) return wrap(engine, out);
      for (let i = 0; i < out.length; i++) out[i] = wrap(engine, out[i] as TensorInfo);
      return out;
    } finally {
      engine.state.kernelDepth--;
    }
  };
  engine.runKernel = runKernel;
  return () => {
    // Somebody may have wrapped it again since; then ours stays below, and with our backend gone it only passes calls on.
    if (engine.runKernel !== runKernel) return;
    if (own) engine.runKernel = original;
    else delete (engine as Partial<EngineInternals>).runKernel;
  };
}

/** A tensor of tfjs for what a kernel returns; kernels may also return one. */
function wrap(engine: EngineInternals, info: TensorInfo): TensorInfo {
  return (info as { rank?: number }).rank === undefined ? engine.makeTensorFromTensorInfo(info) : info;
}
