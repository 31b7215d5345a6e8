import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import fc from 'fast-check';
import { compileFakes, type Fake, fake, NO_COMPILER, reason } from '../../../test/cuda/fakes.ts';
import type { MatrixProduct, ProductMatrix } from '../backend.ts';
import { checkPlain, CublasLt, isPlain } from './cublas.ts';
import { CudaError } from './cuda-error.ts';
import { addressOf } from './library.ts';

const WORKSPACE = { address: 4096, bytes: 4 << 20 };

const matrix = (rows: number, columns: number, transposed = false, extra = 0): ProductMatrix => {
  const stride = (transposed ? rows : columns) + extra;
  return { transposed, stride, batchStride: (transposed ? columns : rows) * stride };
};

function productOf(m: number, n: number, k: number, more: Partial<MatrixProduct> = {}): MatrixProduct {
  return { dtype: 'float32', m, n, k, a: matrix(m, k), b: matrix(k, n), c: matrix(m, n), batch: 1, ...more };
}

describe.skipIf(NO_COMPILER)(reason('cuBLAS'), () => {
  let folder: ReturnType<typeof compileFakes>;
  let stand: Fake;
  let library: CublasLt;
  beforeAll(() => {
    folder = compileFakes(['cublas']);
    stand = fake(folder.folder, 'cublas');
    library = new CublasLt(stand.search);
    library.open();
  });
  afterAll(() => folder?.remove());

  const thrown = (action: () => unknown): CudaError => {
    try {
      action();
    } catch (error) {
      return error as CudaError;
    }
    throw new Error('nothing was thrown');
  };

  /** The element [row, column] of the i-th matrix, from how it lies. */
  const element = (
    values: Float32Array,
    { transposed, stride, batchStride }: ProductMatrix,
    i: number,
    row: number,
    column: number,
  ): number => values[i * batchStride + (transposed ? column * stride + row : row * stride + column)] as number;

  it('computes products of matrices that lie row by row, in every transposition, of any stride, one or many', () => {
    const size = fc.integer({ min: 1, max: 6 }).map((quarter) => 4 * quarter);
    const extra = fc.constantFrom(0, 4, 8);
    const arbitrary = fc.record({
      sizes: fc.tuple(size, size, size),
      transposed: fc.tuple(fc.boolean(), fc.boolean()),
      extra: fc.tuple(extra, extra, extra),
      batch: fc.integer({ min: 1, max: 3 }),
      sharedB: fc.boolean(),
      seed: fc.integer(),
    });
    fc.assert(
      fc.property(arbitrary, ({ sizes: [m, n, k], transposed: [ta, tb], extra: [ea, eb, ec], batch, sharedB, seed }) => {
        const b = matrix(k, n, tb, eb);
        const product: MatrixProduct = {
          ...productOf(m, n, k),
          a: matrix(m, k, ta, ea),
          b: sharedB ? { ...b, batchStride: 0 } : b,
          c: matrix(m, n, false, ec),
          batch,
        };
        expect(isPlain(product)).toBe(true);
        let state = seed;
        const numbers = (length: number): Float32Array =>
          Float32Array.from({ length }, () => {
            state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
            return (state >>> 24) - 128;
          });
        const room = ({ batchStride, stride }: ProductMatrix, lying: number): number => (batch - 1) * batchStride + lying * stride;
        const left = numbers(room(product.a, ta ? k : m));
        const right = numbers(room(product.b, tb ? n : k));
        const result = new Float32Array(room(product.c, m)).fill(-1);
        const [algorithm] = library.algorithms(product, WORKSPACE.bytes, 1);
        expect(library.accepts(product, algorithm!, WORKSPACE.bytes)).toBe(true);
        library.multiply(product, algorithm!, [addressOf(left), addressOf(right), addressOf(result)], WORKSPACE, 0);
        for (let i = 0; i < batch; i++) {
          for (let row = 0; row < m; row++) {
            for (let column = 0; column < n; column++) {
              let sum = 0;
              for (let j = 0; j < k; j++) sum += element(left, product.a, i, row, j) * element(right, product.b, i, j, column);
              expect(element(result, product.c, i, row, column)).toBe(sum);
            }
            // What stands between two rows is not touched.
            for (let j = n; j < product.c.stride; j++) expect(result[i * product.c.batchStride + row * product.c.stride + j]).toBe(-1);
          }
        }
      }),
      { numRuns: 60 },
    );
  });

  it('proposes what fits the workspace, and nothing for types that the device has nothing for', () => {
    expect(library.algorithms(productOf(64, 64, 64), WORKSPACE.bytes, 8)).toHaveLength(3);
    expect(library.algorithms(productOf(64, 64, 64), WORKSPACE.bytes, 2)).toHaveLength(2);
    expect(library.algorithms(productOf(64, 64, 64, { dtype: 'float16' as MatrixProduct['dtype'] }), WORKSPACE.bytes, 8)).toEqual([]);
    const [algorithm] = library.algorithms(productOf(64, 64, 64), WORKSPACE.bytes, 1);
    expect(algorithm).toMatchObject({ workspaceBytes: 4096 });
    expect(library.accepts(productOf(64, 64, 64), algorithm!, 4095)).toBe(false);
  });

  it('tells all that it has, in each configuration that it takes, of what goes by our pointers', () => {
    stand.value('ids', 2);
    const product = productOf(64, 64, 64);
    const seen: number[][] = [];
    library.each(product, WORKSPACE.bytes, ({ bytes, workspaceBytes }) => seen.push([...bytes.subarray(0, 3), workspaceBytes]) > 0);
    // Of two algorithms, tiles and stages each: one algorithm wants other pointers, one pair of tile and stages is none.
    expect(seen).toEqual([
      [10, 15, 7, 4096],
      [10, 15, 12, 4096],
      [10, 20, 7, 4096],
    ]);
    let count = 0;
    library.each(product, WORKSPACE.bytes, () => ++count < 2);
    expect(count).toBe(2);
    library.each(product, 4095, () => expect.fail('more workspace than there is'));
    stand.value('ids', 0);
  });

  it.each(['cublasLtCreate', 'cublasLtMatmulAlgoGetHeuristic', 'cublasLtMatmul'])('names the call that failed: %s', (call) => {
    const product = productOf(4, 4, 4);
    const [algorithm] = library.algorithms(product, WORKSPACE.bytes, 1);
    const [a, b, c] = [new Float32Array(16), new Float32Array(16), new Float32Array(16)];
    stand.result(call, 13);
    const error = thrown(() => {
      library.open();
      library.algorithms(product, WORKSPACE.bytes, 1);
      library.multiply(product, algorithm!, [addressOf(a), addressOf(b), addressOf(c)], WORKSPACE, 0);
    });
    stand.result(call, 0);
    expect(error).toBeInstanceOf(CudaError);
    expect(error).toMatchObject({ code: 'GPUOS_CUDA_CALL_FAILED', call, result: 13, resultName: 'CUBLAS_STATUS_EXECUTION_FAILED' });
    library.open();
  });

  it.each([
    [110_803, undefined, /it is version 11\.8\.3/],
    [140_000, undefined, /it is version 14\.0\.0/],
    [130_102, 12, /it is version 13\.1\.2, and the driver supports CUDA 12 at most/],
  ])('refuses version %i under a driver for %s', (version, newest, message) => {
    stand.value('cublas', version);
    const error = thrown(() => new CublasLt(stand.search, newest));
    stand.value('cublas', 130_102);
    expect(error.code).toBe('GPUOS_CUDA_TOO_OLD');
    expect(error.message).toMatch(message);
    expect(new CublasLt(stand.search, 13).version).toBe('13.1.2');
  });

  it('says that there is none', () => {
    const search = { candidates: [{ path: '/nowhere/libcublasLt.so.13', from: 'test', version: '13' }], unsupported: [], tried: [] };
    expect(thrown(() => new CublasLt(search)).code).toBe('GPUOS_CUDA_UNAVAILABLE');
  });
});

describe('what cuBLAS is asked for', () => {
  const plain = productOf(64, 128, 32);
  it('are products whose rows begin where its fastest kernels want them', () => {
    expect(isPlain(plain)).toBe(true);
    // The number of rows is nobody's alignment, unless they are columns of what lies there.
    expect(isPlain(productOf(63, 128, 32))).toBe(true);
    expect(isPlain(productOf(63, 128, 32, { a: matrix(63, 32, true) }))).toBe(false);
    // float16 has eight elements where float32 has four.
    expect(isPlain({ ...productOf(64, 124, 32), dtype: 'float16' as MatrixProduct['dtype'] })).toBe(false);
    expect(isPlain({ ...plain, dtype: 'float16' as MatrixProduct['dtype'] })).toBe(true);
  });

  it.each<[string, Partial<MatrixProduct>]>([
    ['integers', { dtype: 'int32' }],
    ['a type that is none', { dtype: 'constructor' as MatrixProduct['dtype'] }],
    ['columns that are no multiple of four', productOf(64, 130, 32)],
    ['no rows', { m: 0 }],
    ['a sum of nothing', { k: 0 }],
    ['rows that overlap', { c: { transposed: false, stride: 64, batchStride: 0 } }],
    ['a stride backwards', { a: { transposed: false, stride: -32, batchStride: 0 } }],
    ['rows that are all the same', { a: { transposed: false, stride: 0, batchStride: 0 } }],
    ['a result that lies transposed', { c: matrix(64, 128, true) }],
    ['a batch into one matrix', { batch: 2, c: { transposed: false, stride: 128, batchStride: 0 } }],
    ['a batch that is none', { batch: 0 }],
    ['a batch too large', { batch: 65_536 }],
    ['half a row', { m: 0.5 }],
  ])('are not %s', (_, more) => {
    expect(isPlain({ ...plain, ...more })).toBe(false);
    expect(() => checkPlain({ ...plain, ...more })).toThrow(/is no product that cuBLAS is asked for.*GPUOS_BAD_OPTION/);
  });

  it.each([null, undefined, 3, {}, { ...plain, a: null }])('is nothing that makes no sense: %j', (value) => {
    expect(() => checkPlain(value as unknown as MatrixProduct)).toThrow(/GPUOS_BAD_OPTION/);
  });
});
