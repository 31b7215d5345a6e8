/** cuBLAS in the context of this process, with a stream and the workspace of all products. */
import type { MatrixProduct } from '../../backend.ts';
import type { Algorithm, CublasLt, Workspace } from '../cublas.ts';
import type { Address } from '../library.ts';

export type Pointers = readonly [a: Address, b: Address, c: Address];

export class OpenLibrary {
  readonly library: CublasLt;
  readonly stream: Address;
  readonly workspaceBytes: number;
  readonly #workspace: Workspace;

  /** While no resident kernel runs: it loads what the library has for every product. @throws CudaError */
  constructor(library: CublasLt, stream: Address, workspace: Workspace) {
    library.open();
    this.library = library;
    this.stream = stream;
    this.workspaceBytes = workspace.bytes;
    this.#workspace = workspace;
  }

  accepts(product: MatrixProduct, algorithm: Algorithm): boolean {
    return this.library.accepts(product, algorithm, this.workspaceBytes);
  }

  /** On its own stream, if on no other. @throws CudaError */
  launch(product: MatrixProduct, algorithm: Algorithm, pointers: Pointers, stream = this.stream): void {
    this.library.multiply(product, algorithm, pointers, this.#workspace, stream);
  }
}
