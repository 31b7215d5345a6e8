/**
 * cuBLAS, as much of it as large matrix products need: its part `cublasLt`, whose callers name the algorithm.
 *
 * That is what makes it fit beside a resident kernel. The library has hundreds of kernels, and chooses one by the
 * product's form; one that is not on the device yet would be loaded then, which waits for the resident kernel's end, and
 * one that wants more registers than that leaves would never begin. An algorithm that was tried before is neither: it
 * names the same kernel for every product that it accepts.
 *
 * Matrices are given row by row, as everywhere here. The library has them column by column, so it is told of the
 * transposed product: C' = B' A', in which each matrix as it lies is its own transposition.
 *
 * The symbols bound here and the numbers of their attributes are the same in cuBLAS 12 and 13.
 */
import { GpuosError } from '../../errors.ts';
import type { MatrixProduct, ProductMatrix } from '../backend.ts';
import { CudaError, SUCCESS } from './cuda-error.ts';
import { findLibrary, type SearchResult } from './discovery.ts';
import { type Address, type Bound, type Library, loadLibrary, out64, toAddress } from './library.ts';

const RESULT = 'int';
const HANDLE = 'uint64_t';
const SIGNATURES = {
  cublasLtGetVersion: ['size_t'],
  cublasLtGetStatusName: ['str', 'int'],
  cublasLtCreate: [RESULT, 'uint64_t *'],
  cublasLtMatmulDescCreate: [RESULT, 'uint64_t *', 'int', 'int'],
  cublasLtMatmulDescSetAttribute: [RESULT, HANDLE, 'int', 'void *', 'size_t'],
  cublasLtMatmulDescDestroy: [RESULT, HANDLE],
  cublasLtMatrixLayoutCreate: [RESULT, 'uint64_t *', 'int', 'uint64_t', 'uint64_t', 'int64_t'],
  cublasLtMatrixLayoutSetAttribute: [RESULT, HANDLE, 'int', 'void *', 'size_t'],
  cublasLtMatrixLayoutDestroy: [RESULT, HANDLE],
  cublasLtMatmulPreferenceCreate: [RESULT, 'uint64_t *'],
  cublasLtMatmulPreferenceSetAttribute: [RESULT, HANDLE, 'int', 'void *', 'size_t'],
  cublasLtMatmulPreferenceDestroy: [RESULT, HANDLE],
  cublasLtMatmulAlgoGetHeuristic: [RESULT, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, 'int', 'void *', 'int *'],
  cublasLtMatmulAlgoCheck: [RESULT, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, 'void *', 'void *'],
  cublasLtMatmulAlgoGetIds: [RESULT, HANDLE, 'int', 'int', 'int', 'int', 'int', 'int', 'int', 'int *', 'int *'],
  cublasLtMatmulAlgoInit: [RESULT, HANDLE, 'int', 'int', 'int', 'int', 'int', 'int', 'int', 'void *'],
  cublasLtMatmulAlgoCapGetAttribute: [RESULT, 'void *', 'int', 'void *', 'size_t', 'uint64_t *'],
  cublasLtMatmulAlgoConfigSetAttribute: [RESULT, 'void *', 'int', 'void *', 'size_t'],
  cublasLtMatmul: [
    RESULT,
    HANDLE,
    HANDLE,
    'void *',
    HANDLE,
    HANDLE,
    HANDLE,
    HANDLE,
    'void *',
    HANDLE,
    HANDLE,
    HANDLE,
    HANDLE,
    'void *',
    HANDLE,
    'size_t',
    HANDLE,
  ],
} as const;

type Call = keyof typeof SIGNATURES;

const MAJORS = [12, 13];
/** `CUBLAS_STATUS_NOT_SUPPORTED`: the device has nothing for such products. */
const NOT_SUPPORTED = 15;
/** `CUBLAS_COMPUTE_32F`, which is float32 all the way: no TF32 in its place. */
const COMPUTE_FLOAT32 = 68;
/** `cudaDataType`. */
const DATA_TYPE = { float32: 0, float16: 2, bfloat16: 14 } as const;
export type ProductType = keyof typeof DATA_TYPE;
export const PRODUCT_TYPES = Object.keys(DATA_TYPE) as readonly ProductType[];
export const PRODUCT_BYTES: Readonly<Record<ProductType, number>> = { float32: 4, float16: 2, bfloat16: 2 };

const DESCRIPTION = { transposeA: 3, transposeB: 4 } as const;
const LAYOUT = { batchCount: 5, batchStride: 6 } as const;
const PREFERENCE = { workspaceBytes: 1, reductionSchemes: 3, alignmentA: 5, alignmentB: 6, alignmentC: 7, alignmentD: 8 } as const;
/** What algorithms can be made of (lists of tiles and stages, and what they want of pointers), and where that is set. */
const CAPABILITY = { tiles: 6, stages: 13, alignmentA: 16, alignmentB: 17, alignmentC: 18, alignmentD: 19 } as const;
const CONFIGURATION = { tile: 1, stages: 6 } as const;
/** More algorithms, and more tiles or stages of one, than the library has. */
const MOST_IDS = 256;
const MOST_VARIANTS = 1024;

/** Every pointer, row and matrix begins at a multiple of so many bytes: the fastest kernels want that. */
export const PRODUCT_ALIGNMENT = 16;
/** Matrices of a batch: a dimension of the grid of blocks. */
const MOST_BATCH = 65_535;
/** `cublasLtMatmulAlgo_t`, the first part of `cublasLtMatmulHeuristicResult_t`; the others' places in that. */
export const ALGORITHM_BYTES = 64;
const CHOICE = { bytes: 96, workspaceBytes: 64, state: 72 } as const;

/** A way to compute products of one type and transposition. */
export interface Algorithm {
  readonly bytes: Uint8Array;
  readonly workspaceBytes: number;
}

export interface Workspace {
  readonly address: Address;
  readonly bytes: number;
}

export class CublasLt {
  readonly path: string;
  readonly from: string;
  readonly version: string;
  readonly #functions: Library<typeof SIGNATURES>['functions'];
  #handle: Address = 0;
  readonly #one = Float32Array.of(1);
  readonly #zero = Float32Array.of(0);

  /**
   * @param newestMajor the driver's CUDA version: what is made for a newer one does not run on it
   * @throws GPUOS_CUDA_UNAVAILABLE, GPUOS_CUDA_TOO_OLD, GPUOS_PACKAGE_MISSING; see `loadLibrary`
   */
  constructor(search: SearchResult = findLibrary('cublas'), newestMajor: number = Number.POSITIVE_INFINITY) {
    const { path, from, functions } = loadLibrary('cublas', search, SIGNATURES, (bound) => {
      const [major, text] = versionOf(bound);
      if (!MAJORS.includes(major)) return `it is version ${text}`;
      return major > newestMajor ? `it is version ${text}, and the driver supports CUDA ${newestMajor} at most` : undefined;
    });
    this.path = path;
    this.from = from;
    this.version = versionOf(functions)[1];
    this.#functions = functions;
  }

  /** For the context that is current, once; loads what the library has for every product. @throws CudaError */
  open(): void {
    this.#handle = this.#word('cublasLtCreate');
  }

  /**
   * Ways to compute such products, what the library takes for the fastest first. Those that share out the sum among
   * blocks are left out: they take kernels besides, and the order of additions would be another for each size.
   * @throws CudaError
   */
  algorithms(product: MatrixProduct, workspaceBytes: number, most: number): Algorithm[] {
    return this.#described(product, (operation, [a, b, c]) => {
      const preference = this.#word('cublasLtMatmulPreferenceCreate');
      try {
        const set = (attribute: number, value: ArrayBufferView): void =>
          this.#call('cublasLtMatmulPreferenceSetAttribute', preference, attribute, value, value.byteLength);
        set(PREFERENCE.workspaceBytes, BigUint64Array.of(BigInt(workspaceBytes)));
        set(PREFERENCE.reductionSchemes, Uint32Array.of(0));
        const { alignmentA, alignmentB, alignmentC, alignmentD } = PREFERENCE;
        for (const attribute of [alignmentA, alignmentB, alignmentC, alignmentD]) set(attribute, Uint32Array.of(PRODUCT_ALIGNMENT));
        const choices = new Uint8Array(CHOICE.bytes * most);
        const count = new Int32Array(1);
        const query = [this.#handle, operation, a, b, c, c, preference, most, choices, count];
        const result = this.#functions.cublasLtMatmulAlgoGetHeuristic(...query);
        if (result === NOT_SUPPORTED) return [];
        this.#check('cublasLtMatmulAlgoGetHeuristic', result);
        return Array.from({ length: count[0]! }, (_, i) => choices.subarray(CHOICE.bytes * i, CHOICE.bytes * (i + 1)))
          .filter((choice) => stateOf(choice) === SUCCESS)
          .map((choice) => ({ bytes: choice.slice(0, ALGORITHM_BYTES), workspaceBytes: workspaceOf(choice) }));
      } finally {
        this.#functions.cublasLtMatmulPreferenceDestroy(preference);
      }
    });
  }

  /**
   * Every way that the library has, in no order of merit, until `visit` says no: each algorithm with each of its tiles and
   * stages, and without options beyond these. What it proposes by itself may be of one kind of kernel only.
   * @throws CudaError
   */
  each(product: MatrixProduct, workspaceBytes: number, visit: (algorithm: Algorithm) => boolean): void {
    const type = DATA_TYPE[product.dtype as ProductType];
    const types = [COMPUTE_FLOAT32, DATA_TYPE.float32, type, type, type, type];
    const ids = new Int32Array(MOST_IDS);
    const count = new Int32Array(1);
    this.#call('cublasLtMatmulAlgoGetIds', this.#handle, ...types, ids.length, ids, count);
    this.#described(product, (operation, [a, b, c]) => {
      const choice = new Uint8Array(CHOICE.bytes);
      const checks = (bytes: Uint8Array): boolean =>
        this.#functions.cublasLtMatmulAlgoCheck(this.#handle, operation, a, b, c, c, bytes, choice) === SUCCESS &&
        stateOf(choice) === SUCCESS &&
        workspaceOf(choice) <= workspaceBytes;
      for (const id of ids.subarray(0, count[0])) {
        const plain = new Uint8Array(ALGORITHM_BYTES);
        if (this.#functions.cublasLtMatmulAlgoInit(this.#handle, ...types, id, plain) !== SUCCESS || !this.#isAligned(plain)) continue;
        for (const tile of this.#variants(plain, CAPABILITY.tiles)) {
          for (const stages of this.#variants(plain, CAPABILITY.stages)) {
            const bytes = plain.slice();
            const made = this.#configures(bytes, CONFIGURATION.tile, tile) && this.#configures(bytes, CONFIGURATION.stages, stages);
            if (made && checks(bytes) && !visit({ bytes, workspaceBytes: workspaceOf(choice) })) return;
          }
        }
      }
    });
  }

  /** Whether it goes by pointers that begin where ours do. */
  #isAligned(algorithm: Uint8Array): boolean {
    const { alignmentA, alignmentB, alignmentC, alignmentD } = CAPABILITY;
    return [alignmentA, alignmentB, alignmentC, alignmentD].every((capability) => {
      const value = new Uint32Array(1);
      const result = this.#functions.cublasLtMatmulAlgoCapGetAttribute(algorithm, capability, value, value.byteLength, out64());
      return result === SUCCESS && value[0]! <= PRODUCT_ALIGNMENT;
    });
  }

  /** 0 stands for what the library takes by itself, and is all that there is where it has no such list. */
  #variants(algorithm: Uint8Array, capability: number): Uint32Array {
    const values = new Uint32Array(MOST_VARIANTS);
    const written = out64();
    const result = this.#functions.cublasLtMatmulAlgoCapGetAttribute(algorithm, capability, values, values.byteLength, written);
    const count = result === SUCCESS ? Math.min(Number(written[0]) / values.BYTES_PER_ELEMENT, values.length) : 0;
    return count > 0 ? values.subarray(0, count) : Uint32Array.of(0);
  }

  #configures(algorithm: Uint8Array, attribute: number, value: number): boolean {
    return value === 0 || this.#functions.cublasLtMatmulAlgoConfigSetAttribute(algorithm, attribute, Uint32Array.of(value), 4) === SUCCESS;
  }

  /** Whether the algorithm computes this product too. Asks nothing of the device. */
  accepts(product: MatrixProduct, algorithm: Algorithm, workspaceBytes: number): boolean {
    return this.#described(product, (operation, [a, b, c]) => {
      const choice = new Uint8Array(CHOICE.bytes);
      const result = this.#functions.cublasLtMatmulAlgoCheck(this.#handle, operation, a, b, c, c, algorithm.bytes, choice);
      return result === SUCCESS && stateOf(choice) === SUCCESS && workspaceOf(choice) <= workspaceBytes;
    });
  }

  /** Launches it. @throws CudaError */
  multiply(
    product: MatrixProduct,
    algorithm: Algorithm,
    pointers: readonly [a: Address, b: Address, c: Address],
    workspace: Workspace,
    stream: Address,
  ): void {
    const [a, b, c] = pointers;
    this.#described(product, (operation, [left, right, result]) => {
      this.#call(
        'cublasLtMatmul',
        ...[this.#handle, operation, this.#one, b, left, a, right, this.#zero, c, result, c, result],
        ...[algorithm.bytes, workspace.address, workspace.bytes, stream],
      );
    });
  }

  /** Calls `use` with what the library knows the product by: of C' = B' A', B is the left matrix. */
  #described<T>(
    product: MatrixProduct,
    use: (operation: Address, layouts: readonly [left: Address, right: Address, result: Address]) => T,
  ): T {
    const { m, n, k, a, b, c } = product;
    const operation = this.#word('cublasLtMatmulDescCreate', COMPUTE_FLOAT32, DATA_TYPE.float32);
    const layouts: Address[] = [];
    try {
      const transpose = (attribute: number, { transposed }: ProductMatrix): void =>
        this.#call('cublasLtMatmulDescSetAttribute', operation, attribute, Int32Array.of(Number(transposed)), 4);
      transpose(DESCRIPTION.transposeA, b);
      transpose(DESCRIPTION.transposeB, a);
      for (const [matrix, rows, columns] of [
        [b, k, n],
        [a, m, k],
        [c, m, n],
      ] as const) {
        // biome-ignore format: a table
        layouts.push(this.#layout(product, matrix, rows, columns));
      }
      return use(operation, layouts as unknown as readonly [Address, Address, Address]);
    } finally {
      for (const layout of layouts) this.#functions.cublasLtMatrixLayoutDestroy(layout);
      this.#functions.cublasLtMatmulDescDestroy(operation);
    }
  }

  /** A matrix of so many rows and columns, as it lies row by row, is one of so many columns and rows to the library. */
  #layout({ dtype, batch }: MatrixProduct, { transposed, stride, batchStride }: ProductMatrix, rows: number, columns: number): Address {
    const [lying, long] = transposed ? [columns, rows] : [rows, columns];
    const layout = this.#word('cublasLtMatrixLayoutCreate', DATA_TYPE[dtype as ProductType], long, lying, stride);
    if (batch > 1) {
      this.#call('cublasLtMatrixLayoutSetAttribute', layout, LAYOUT.batchCount, Int32Array.of(batch), 4);
      this.#call('cublasLtMatrixLayoutSetAttribute', layout, LAYOUT.batchStride, BigInt64Array.of(BigInt(batchStride)), 8);
    }
    return layout;
  }

  /** A call whose first parameter is a handle that it makes. */
  #word(call: Call, ...values: unknown[]): Address {
    const result = out64();
    this.#call(call, result, ...values);
    return toAddress(result[0]!);
  }

  #call(call: Call, ...values: unknown[]): void {
    this.#check(call, this.#functions[call](...values));
  }

  #check(call: Call, result: number): void {
    if (result === SUCCESS) return;
    const resultName = String(this.#functions.cublasLtGetStatusName(result));
    throw new CudaError('GPUOS_CUDA_CALL_FAILED', `${call} answered ${resultName} (${result}).`, { call, result, resultName });
  }
}

const field = (choice: Uint8Array): DataView => new DataView(choice.buffer, choice.byteOffset, choice.byteLength);
const stateOf = (choice: Uint8Array): number => field(choice).getInt32(CHOICE.state, true);
const workspaceOf = (choice: Uint8Array): number => toAddress(field(choice).getBigUint64(CHOICE.workspaceBytes, true));

/** 120_804 is 12.8.4. */
function versionOf(functions: Bound<typeof SIGNATURES>): readonly [major: number, text: string] {
  const version = Number(functions.cublasLtGetVersion());
  const major = Math.floor(version / 10_000);
  return [major, `${major}.${Math.floor((version % 10_000) / 100)}.${version % 100}`];
}

/** What the library is asked for: rows and matrices that begin where the fastest kernels want them, of types that it has. */
export function isPlain({ dtype, m, n, k, a, b, c, batch }: MatrixProduct): boolean {
  if (!Object.hasOwn(DATA_TYPE, dtype)) return false;
  const elements = PRODUCT_ALIGNMENT / PRODUCT_BYTES[dtype as ProductType];
  const size = (value: number): boolean => Number.isSafeInteger(value) && value > 0 && value < 2 ** 31;
  const whole = (value: number): boolean => Number.isSafeInteger(value) && value >= 0 && value % elements === 0;
  const fits = ({ transposed, stride, batchStride }: ProductMatrix, rows: number, columns: number): boolean => {
    const row = transposed ? rows : columns;
    return whole(row) && whole(stride) && size(stride) && stride >= row && whole(batchStride);
  };
  if (![m, n, k, batch].every(size) || batch > MOST_BATCH) return false;
  return fits(a, m, k) && fits(b, k, n) && fits(c, m, n) && !c.transposed && (batch === 1 || c.batchStride > 0);
}

/** @throws GPUOS_BAD_OPTION for what `isPlain` does not hold of */
export function checkPlain(product: MatrixProduct): MatrixProduct {
  const isObject = (value: unknown): boolean => typeof value === 'object' && value !== null;
  if (isObject(product) && [product.a, product.b, product.c].every(isObject) && isPlain(product)) return product;
  throw new GpuosError('GPUOS_BAD_OPTION', `${JSON.stringify(product)} is no product that cuBLAS is asked for.`);
}
