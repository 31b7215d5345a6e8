/** Large products beside a resident kernel that really runs, on the CPU, by stand-ins for the driver and cuBLAS. */
import { mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import type * as Gpuos from '../../src/index.ts';
import type { CudaDevice } from '../../src/backends/cuda/device.ts';
import type { SystemOptions } from '../../src/runtime/system.ts';
import { compileEmulatedDriver, EMULATED_DEVICE, NO_EMULATION, reason } from './emulation/driver.ts';
import { compileFakes } from './fakes.ts';

const PACKAGE = new URL('../../dist/index.js', import.meta.url).href;
const N = 32;

describe.skipIf(NO_EMULATION)(reason('large products on the CPU'), () => {
  let libraries: ReturnType<typeof compileEmulatedDriver>;
  let cublas: ReturnType<typeof compileFakes>;
  let work: string;
  let log: string;
  let gpuos: typeof Gpuos;
  let count = 0;

  beforeAll(async () => {
    libraries = compileEmulatedDriver();
    cublas = compileFakes(['cublas']);
    symlinkSync(join(cublas.folder, 'libcublasLt.so.13'), join(libraries.folder, 'libcublasLt.so.13'));
    work = mkdtempSync(join(tmpdir(), 'gpuos-products-'));
    gpuos = (await import(PACKAGE)) as typeof Gpuos;
  }, 180_000);
  afterEach(async () => {
    await gpuos.current()?.shutdown();
    vi.unstubAllEnvs();
  });
  afterAll(() => {
    libraries?.remove();
    cublas?.remove();
    if (work !== undefined) rmSync(work, { recursive: true, force: true });
  });

  function start(mode: 'auto' | 'off' | 'always', fake: Readonly<Record<string, string | number>> = {}, options: SystemOptions = {}) {
    log = join(work, `log-${count++}`);
    const variables = {
      ...EMULATED_DEVICE,
      FAKE_log: log,
      GPUOS_HOME: join(work, 'home'),
      GPUOS_CUDA_HOME: libraries.folder,
      GPUOS_CUDA_CUBLAS: mode,
      GPUOS_CUDA_INJECT: 'direct',
      ...fake,
    };
    for (const [name, value] of Object.entries(variables)) vi.stubEnv(name, String(value));
    const system = gpuos.init({ device: 'cuda', memoryMib: 16, ring: 64, firstSequence: 2 ** 32 - 20, ...options });
    return { system, device: system.device as CudaDevice };
  }
  const calls = (name: string): string[] =>
    readFileSync(log, 'utf8')
      .split('\n')
      .filter((line) => line.split(' ')[0] === name);

  const numbers = (seed: number): Float32Array => Float32Array.from({ length: N * N }, (_, i) => ((i * 7 + seed * 13) % 11) - 5);
  const at = (x: ArrayLike<number>, row: number, column: number, transposed = false): number =>
    (transposed ? x[column * N + row] : x[row * N + column]) as number;
  function times(a: ArrayLike<number>, b: ArrayLike<number>, ta = false, tb = false): number[] {
    return Array.from({ length: N * N }, (_, i) => {
      let sum = 0;
      for (let j = 0; j < N; j++) sum += at(a, Math.floor(i / N), j, ta) * at(b, j, i % N, tb);
      return sum;
    });
  }
  const square = (values: ArrayLike<number>): Gpuos.Tensor => gpuos.tensor(values, [N, N]);
  const matmul = (a: Gpuos.Tensor, b: Gpuos.Tensor, attributes: Record<string, boolean> = {}): Gpuos.Tensor =>
    gpuos.engine().apply('matmul', [a, b], attributes)[0] as Gpuos.Tensor;

  it('tries what the library proposes before the kernel starts and while it runs, and takes products from then on', async () => {
    const { device } = start('always');
    const { library, unavailable, report } = device.ordinary!.state;
    expect(unavailable).toBeUndefined();
    expect(library).toMatch(/^cuBLAS 13\.1\.2 \(.*libcublasLt\.so\.13\)$/);
    expect(report!.ways.filter(({ us }) => us !== undefined)).toHaveLength(4);
    for (const way of report!.ways) expect(way).toMatchObject({ proposed: way.dtype === 'float32' ? 3 : 0, refused: 0 });
    const names = readFileSync(log, 'utf8').split('\n').map((line) => line.split(' ')[0]); // biome-ignore format: one thought
    const launched = names.lastIndexOf('cuLaunchKernelEx');
    expect(names.slice(0, launched).filter((name) => name === 'cublasLtMatmul')).toHaveLength(12);
    expect(names.slice(launched).filter((name) => name === 'cublasLtMatmul')).toHaveLength(36);

    const [a, b] = [numbers(1), numbers(2)];
    for (const [ta, tb] of [
      [false, false],
      [false, true],
      [true, false],
      [true, true],
    ] as const) {
      // biome-ignore format: a table
      const result = await matmul(square(a), square(b), { transposeA: ta, transposeB: tb }).data();
      expect([...(result as Float32Array)]).toEqual(times(a, b, ta, tb));
    }
    expect(device.ordinary!.state.begun).toBe(4);
  });

  it('keeps products in order with the tasks before and behind them', async () => {
    const { device } = start('always');
    const values = [numbers(1), numbers(2), numbers(3)];
    const [x, y, z] = values.map(square) as [Gpuos.Tensor, Gpuos.Tensor, Gpuos.Tensor];
    const expected = times(
      times(
        values[0]!.map((v) => v + 1),
        values[1]!,
      ).map((v) => v * 2),
      values[2]!,
    ).map((v) => v - 3);
    // More of them than the ring has slots, one upon another.
    for (let i = 0; i < 20; i++) {
      const result = matmul(matmul(x.add(1), y).mul(2), z).sub(3);
      expect([...((await result.data()) as Float32Array)]).toEqual(expected);
    }
    expect(device.ordinary!.state.begun).toBe(40);
    // Behind each product on its stream comes the kernel that tells of its end.
    const seen = readFileSync(log, 'utf8').split('\n').filter((line) => /^cublasLtMatmul |^cuLaunchKernel /.test(line)).slice(-80); // biome-ignore format: one thought
    seen.forEach((line, i) => {
      expect(line.split(' ')[0]).toBe(i % 2 === 0 ? 'cublasLtMatmul' : 'cuLaunchKernel');
    });
  });

  it('leaves small products, and those in a form that the library is not asked for, to the kernel', async () => {
    const { device } = start('auto');
    const [a, b] = [numbers(1), numbers(2)];
    expect([...((await matmul(square(a), square(b)).data()) as Float32Array)]).toEqual(times(a, b));
    expect(device.ordinary!.state).toMatchObject({ begun: 0, unavailable: undefined });
    await gpuos.current()?.shutdown();
    const odd = start('always', { FAKE_refused_rows: 24 });
    const wide = matmul(gpuos.tensor(numbers(1).slice(0, 24 * N), [24, N]), square(b));
    expect([...((await wide.data()) as Float32Array)]).toEqual(times(numbers(1), b).slice(0, 24 * N));
    const narrow = matmul(square(a), gpuos.tensor(numbers(2).slice(0, N * 3), [N, 3]));
    expect(((await narrow.data()) as Float32Array).length).toBe(N * 3);
    expect(odd.device.ordinary!.state.begun).toBe(0);
  });

  it('fails a product whose operand failed, or whose operator is killed, and what depends on it; the next one runs', async () => {
    const { system, device } = start('always');
    const [a, b] = [numbers(1), numbers(2)];
    const [x, y] = [square(a), square(b)];
    await system.kill('matmul');
    await expect(matmul(x, y).add(1).data()).rejects.toMatchObject({
      code: 'GPUOS_DEPENDENCY_FAILED',
      cause: { code: 'GPUOS_OPERATOR_KILLED' },
    });
    await system.revive('matmul');
    expect([...((await matmul(x, y).data()) as Float32Array)]).toEqual(times(a, b));
    // An operand out of an index that is not there.
    const failing = gpuos.engine().apply('gather', [x, gpuos.tensor([N + 5], [1], 'int32')], { axis: 0 })[0] as Gpuos.Tensor;
    const product = matmul(failing.add(gpuos.tensor(new Float32Array(N * N), [N, N])), y);
    await expect(product.data()).rejects.toMatchObject({ code: 'GPUOS_DEPENDENCY_FAILED' });
    expect([...((await matmul(y, x).data()) as Float32Array)]).toEqual(times(b, a));
    expect(calls('cublasLtMatmul').filter((line) => line.includes(`${N} x ${N} x ${N}`))).toHaveLength(2);
    expect(device.lost).toBeUndefined();
  });

  it.each([
    ['is wrong', { FAKE_wrong: 0 }, { proposed: 2, refused: 0 }, false],
    ['does not end beside the kernel', { FAKE_long: 0, FAKE_long_ms: 250 }, { proposed: 3, refused: 1 }, true],
    ['waits for the kernel', { FAKE_waits: 0, FAKE_waits_from: 5, FAKE_waits_ms: 1300 }, { proposed: 3, refused: 1 }, true],
  ])(
    'leaves out an algorithm that %s',
    async (_, fake, way, again) => {
      const { device } = start('always', fake);
      const { report, unavailable } = device.ordinary!.state;
      expect(unavailable).toBeUndefined();
      expect(report!.ways.filter(({ dtype }) => dtype === 'float32')).toEqual(Array(4).fill(expect.objectContaining(way)));
      expect(calls('cuLaunchKernelEx').length > 1).toBe(again);
      const [a, b] = [numbers(1), numbers(2)];
      expect([...((await matmul(square(a), square(b)).data()) as Float32Array)]).toEqual(times(a, b));
      expect(calls('cublasLtMatmul').at(-1)).toMatch(/^cublasLtMatmul [12] /);
    },
    30_000,
  );

  it.each([
    ['is missing', { FAKE_cublas: 110_803 }, /cuBLAS 12 or 13 is needed/],
    ['does not open', { FAKE_result_cublasLtCreate: 1 }, /cublasLtCreate answered/],
    ['has no algorithm', { FAKE_algorithms: 0 }, /no algorithm of cuBLAS runs beside/],
  ])('goes on without a library that %s, and refuses to start if there has to be one', async (_, fake, message) => {
    const { device } = start('auto', fake);
    expect(device.ordinary!.state.unavailable).toMatch(message);
    const [a, b] = [numbers(1), numbers(2)];
    expect([...((await matmul(square(a), square(b)).data()) as Float32Array)]).toEqual(times(a, b));
    await gpuos.current()?.shutdown();
    expect(() => start('always', fake)).toThrow(/GPUOS_CUDA_CUBLAS=always.*GPUOS_CUDA_UNAVAILABLE/);
  });

  it('asks for no library where it is off', async () => {
    const { device } = start('off');
    expect(device.ordinary).toBeUndefined();
    const [a, b] = [numbers(1), numbers(2)];
    expect([...((await matmul(square(a), square(b)).data()) as Float32Array)]).toEqual(times(a, b));
    expect(readFileSync(log, 'utf8')).not.toMatch(/cublas/);
  });

  it('fails the task of a product that cannot be launched, and does those behind it in the kernel', async () => {
    // The start has 48 calls; this is of the third product after it.
    const { device } = start('always', { FAKE_fails_at: 51 });
    const [a, b] = [numbers(1), numbers(2)];
    const [x, y] = [square(a), square(b)];
    for (let i = 0; i < 2; i++) expect([...((await matmul(x, y).data()) as Float32Array)]).toEqual(times(a, b));
    await expect(matmul(x, y).data()).rejects.toMatchObject({ code: 'GPUOS_TASK_FAILED' });
    for (let i = 0; i < 3; i++) expect([...((await matmul(x, y).data()) as Float32Array)]).toEqual(times(a, b));
    expect(device.ordinary!.state.unavailable).toMatch(/could not be launched: cublasLtMatmul answered CUBLAS_STATUS_EXECUTION_FAILED/);
    expect(device.lost).toBeUndefined();
  });

  it('measures a product beside the kernel and without it, and goes on', async () => {
    const { device } = start('always');
    const { beside, without, fastest } = device.ordinary!.measure('float32', 64, 2);
    for (const list of [beside, without, fastest]) expect(list).toHaveLength(2);
    const [a, b] = [numbers(1), numbers(2)];
    expect([...((await matmul(square(a), square(b)).data()) as Float32Array)]).toEqual(times(a, b));
    expect(() => device.ordinary!.measure('float16', 64, 1)).toThrow(/No way is known.*GPUOS_BAD_OPTION/);
    expect(() => device.ordinary!.measure('float32', 4096, 1)).toThrow(/do not fit.*GPUOS_BAD_OPTION/);
    expect(() => device.ordinary!.measure('float32', 64, 0)).toThrow(/GPUOS_BAD_OPTION/);
  }, 30_000);
});
