/**
 * The kernels of tfjs's own CPU backend, for what we lack or decline: inputs are copied to a private instance of that
 * backend, the kernel runs there, and its outputs come back. Strings pass by reference.
 */
import { GpuosError } from '../../errors.ts';
import type { GpuosBackend } from './backend.ts';
import { type BackendValues, requirePackage, type TensorInfo, tf, tfjsEngine } from './tfjs.ts';

type Arguments = { inputs: Record<string, TensorInfo | TensorInfo[] | null | undefined>; backend: unknown; attrs: unknown };
type CpuKernel = (args: Arguments) => TensorInfo | TensorInfo[];

/** What we use of MathBackendCPU. */
interface CpuBackend {
  firstUse: boolean;
  data: { get(dataId: object): { values?: BackendValues; complexTensorInfos?: { real: TensorInfo; imag: TensorInfo } } };
  makeTensorInfo(shape: readonly number[], dtype: string, values: BackendValues): TensorInfo;
  disposeData(dataId: object): boolean;
}

const PACKAGE = '@tensorflow/tfjs-backend-cpu';

let cpu: CpuBackend | undefined;

/** A CPU backend of our own, which holds data only during a call. Throws GPUOS_PACKAGE_MISSING. */
function cpuBackend(kernel: string): CpuBackend {
  if (cpu) return cpu;
  const purpose = `its kernel ${kernel} is needed, as gpuos has none`;
  if (tf.findBackendFactory('cpu') === null) requirePackage(PACKAGE, purpose);
  const factory = tfjsEngine().registryFactory['cpu']?.factory;
  const made = factory?.() as CpuBackend | undefined;
  if (typeof made?.makeTensorInfo !== 'function')
    throw new GpuosError('GPUOS_PACKAGE_MISSING', `There is no CPU backend of tfjs; ${purpose}. Install ${PACKAGE}.`);
  // Else its first use advises the user to install another backend.
  made.firstUse = false;
  cpu = made;
  return cpu;
}

function cpuKernel(kernel: string): CpuKernel {
  const found = tf.getKernel(kernel, 'cpu');
  if (found === undefined) throw new GpuosError('GPUOS_PACKAGE_MISSING', `${PACKAGE} has no kernel ${kernel}, and neither has gpuos.`);
  return found.kernelFunc as unknown as CpuKernel;
}

/** Runs a kernel of the CPU backend on tensors of ours, and counts it. */
export function runFallback(kernel: string, backend: GpuosBackend, inputs: Arguments['inputs'], attrs: unknown): TensorInfo | TensorInfo[] {
  const target = cpuBackend(kernel);
  const run = cpuKernel(kernel);
  const moved: TensorInfo[] = [];
  const complexKernel = () => cpuKernel('Complex');

  const moveIn = (info: TensorInfo): TensorInfo => {
    const { complex } = backend.record(info.dataId);
    let copy: TensorInfo;
    if (info.dtype === 'complex64' && complex) {
      const real = moveIn({ ...complex.real, shape: info.shape });
      const imag = moveIn({ ...complex.imag, shape: info.shape });
      copy = complexKernel()({ inputs: { real, imag }, backend: target, attrs: {} }) as TensorInfo;
    } else {
      copy = target.makeTensorInfo(info.shape, info.dtype, backend.readSync(info.dataId));
    }
    moved.push(copy);
    return copy;
  };

  const moveOut = (info: TensorInfo): TensorInfo => {
    const { values, complexTensorInfos } = target.data.get(info.dataId);
    if (complexTensorInfos === undefined) return backend.store(values as BackendValues, info.shape, info.dtype);
    return backend.storeComplex(moveOut(complexTensorInfos.real), moveOut(complexTensorInfos.imag), info.shape);
  };

  const given = Array.isArray(inputs) ? [] : {};
  for (const name in inputs) {
    const input = inputs[name];
    (given as Arguments['inputs'])[name] = Array.isArray(input) ? input.map(moveIn) : input ? moveIn(input) : input;
  }
  const outputs: TensorInfo[] = [];
  try {
    const result = run({ inputs: given as Arguments['inputs'], backend: target, attrs });
    const many = Array.isArray(result);
    outputs.push(...(many ? result : [result]));
    const ours = outputs.map(moveOut);
    backend.counters.countFallback(kernel);
    return many ? ours : (ours[0] as TensorInfo);
  } finally {
    // An output may share its data with an input: each holds a reference of its own.
    for (const info of outputs) target.disposeData(info.dataId);
    for (const info of moved) target.disposeData(info.dataId);
  }
}
