/** What the layers above see of a device: through the runtime, which owns it. */
export type { Device, KernelCall, MatrixProduct, OperandView } from '../backends/backend.ts';
