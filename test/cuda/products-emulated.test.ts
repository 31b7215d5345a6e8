/** Large products beside a resident kernel that really runs, on the CPU, by stand-ins for the driver and cuBLAS. */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
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
  let home: string;
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

  /** With nothing remembered, unless it is started `again`. */
  function start(
    mode: 'auto' | 'off' | 'always',
    fake: Readonly<Record<string, string | number>> = {},
    options: SystemOptions = {},
    again = false,
  ) {
    log = join(work, `log-${++count}`);
    if (!again) home = join(work, `home-${count}`);
    const variables = {
      ...EMULATED_DEVICE,
      FAKE_log: log,
      GPUOS_HOME: home,
      GPUOS_CUDA_HOME: libraries.folder,
      GPUOS_CUDA_CUBLAS: mode,
      GPUOS_CUDA_INJECT: 'direct',
      ...fake,
    };
    vi.unstubAllEnvs();
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

  /** Of the one form that was asked for. */
  const wayOf = (device: CudaDevice) => {
    const { ways } = device.ordinary!.state.report!;
    expect(ways).toHaveLength(1);
    return ways[0]!;
  };
  const captured = (): number[] => calls('captured').map((line) => Number(line.split(' ')[1]));
  /** Algorithms of the runs that were tries, in order. */
  const tried = (): number[] => calls('cublasLtMatmul').filter((line) => line.includes('2048 x')).map((line) => Number(line.split(' ')[1])); // biome-ignore format: one thought
  async function multiplies(): Promise<void> {
    const [a, b] = [numbers(1), numbers(2)];
    expect([...((await matmul(square(a), square(b)).data()) as Float32Array)]).toEqual(times(a, b));
  }

  it.each(['auto', 'always'] as const)('asks nothing of the library at the start (%s)', async (mode) => {
    const { device } = start(mode);
    const { library, unavailable, report } = device.ordinary!.state;
    expect(unavailable).toBeUndefined();
    expect(library).toMatch(/^cuBLAS 13.* \(.*libcublasLt\.so\.13\)$/);
    expect(report!.ways).toEqual([]);
    expect(readFileSync(log, 'utf8')).not.toMatch(/cublas/);
    expect(calls('cuLaunchKernelEx')).toHaveLength(1);
  });

  it('prepares a form when its first product comes, and takes products from then on', async () => {
    const { device } = start('always');
    const [a, b] = [numbers(1), numbers(2)];
    const [x, y] = [square(a), square(b)];
    const forms = [
      [false, false],
      [false, true],
      [true, false],
      [true, true],
    ] as const;
    for (let round = 0; round < 2; round++) {
      for (const [ta, tb] of forms) {
        const result = await matmul(x, y, { transposeA: ta, transposeB: tb }).data();
        expect([...(result as Float32Array)]).toEqual(times(a, b, ta, tb));
      }
    }
    const { library, report, begun } = device.ordinary!.state;
    expect(begun).toBe(8);
    expect(library).toMatch(/^cuBLAS 13\.1\.2 /);
    expect(report!.ways.map(({ dtype, transposedA, transposedB }) => [dtype, transposedA, transposedB])).toEqual(
      forms.map((form) => ['float32', ...form]),
    );
    for (const way of report!.ways) {
      expect(way).toMatchObject({ proposed: 3, fitted: 3, tried: 3, refused: 0, remembered: false });
      expect(way.us).toBeGreaterThan(0);
      expect(way.prepareMs).toBeGreaterThan(0);
    }
    // Each ran once with the kernel gone, and three times beside it. It is gone again when the memory is given back.
    expect(tried()).toHaveLength(4 * 3 * 4);
    expect(calls('cuLaunchKernelEx')).toHaveLength(1 + 4 * 2);
    expect(calls('cublasLtCreate')).toHaveLength(1);
    expect(calls('cuMemFree_v2')).toHaveLength(4);
    expect(readFileSync(log, 'utf8')).not.toMatch(/while a kernel runs/);
    // What tensors had they still have.
    expect([...((await x.data()) as Float32Array), ...((await y.data()) as Float32Array)]).toEqual([...a, ...b]);
  });

  it('has the kernel leave only when all that was submitted is complete, products among it', async () => {
    const { system, device } = start('always', {}, { queues: 2 });
    const [a, b] = [numbers(1), numbers(2)];
    const [x, y] = [square(a), square(b)];
    await matmul(x, y).data();
    let chain = x;
    for (let i = 0; i < 12; i++) chain = matmul(chain, y);
    const others = Array.from({ length: 60 }, () => system.submit({ operator: 'nop', words: [1], queue: 1 }));
    gpuos.engine().flush();
    // The next form, while these are under way.
    const transposed = matmul(x, y, { transposeB: true });
    expect([...((await transposed.data()) as Float32Array)]).toEqual(times(a, b, false, true));
    await Promise.all(others.map((task) => task.done()));
    expect([...((await chain.data()) as Float32Array)].every(Number.isFinite)).toBe(true);
    expect(device.ordinary!.state).toMatchObject({ begun: 14, unavailable: undefined });
    expect(device.lost).toBeUndefined();
  });

  it('has the kernel step aside where it is to, again and again, with tasks before, behind and beside the products', async () => {
    start('always', { GPUOS_CUDA_ASIDE: 'always' });
    const [x, y] = [numbers(1), numbers(2)].map((values) => square(values.map(Math.abs))) as [Gpuos.Tensor, Gpuos.Tensor];
    const product = times(numbers(1).map(Math.abs), numbers(2).map(Math.abs));
    await matmul(x, y).data();
    const launches = calls('cuLaunchKernelEx').length;
    for (let round = 0; round < 12; round++) {
      const beside = x.mul(round).add(y);
      const first = matmul(x, y);
      const scaled = first.mul(1 / 4096).relu();
      const second = matmul(scaled, y).sub(beside);
      const twice = times(
        product.map((v) => v / 4096),
        numbers(2).map(Math.abs),
      );
      const [a, b, c] = [numbers(1).map(Math.abs), numbers(2).map(Math.abs), [...((await second.data()) as Float32Array)]];
      c.forEach((value, i) => {
        expect(value).toBeCloseTo((twice[i] as number) - ((a[i] as number) * round + (b[i] as number)), 2);
      });
      expect([...((await first.data()) as Float32Array)]).toEqual(product);
    }
    // Once for each product, and never for the end of a product alone.
    expect(calls('cuLaunchKernelEx').length).toBe(launches + 24);
    expect(
      calls('cublasLtMatmul')
        .slice(-24)
        .every((line) => line.includes(`${N} x ${N} x ${N}`)),
    ).toBe(true);
    // The search is for the fastest of all, whether or not it has room beside the kernel.
    expect(calls('cublasLtMatmulAlgoGetHeuristic').length).toBeGreaterThan(0);
    expect(
      gpuos
        .current()!
        .workers()
        .slice(1)
        .every(({ state }) => state === 'running'),
    ).toBe(true);
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

  it('tries only what has room beside the kernel', async () => {
    const { device } = start('always', { FAKE_hungry: 1, FAKE_greedy: 2 });
    await multiplies();
    expect(wayOf(device)).toMatchObject({ proposed: 3, fitted: 1, tried: 1, refused: 0 });
    expect(captured()).toEqual([0, 1, 2]);
    expect(tried()).toEqual([2, 2, 2, 2]);
    expect(device.ordinary!.state.begun).toBe(1);
  });

  it('searches all that the library has, if nothing of what it proposes has room', async () => {
    const { device } = start('always', { FAKE_hungry: 3, FAKE_ids: 2 });
    await multiplies();
    // Two tiles with two stages, but for one pair; the other algorithm wants more of pointers than ours have.
    expect(wayOf(device)).toMatchObject({ proposed: 6, fitted: 3, tried: 3, refused: 0 });
    expect(calls('captured').slice(3)).toEqual(['captured 10 15 7', 'captured 10 15 12', 'captured 10 20 7']);
    expect(new Set(tried())).toEqual(new Set([10]));
    expect(device.ordinary!.state.begun).toBe(1);
  });

  it('tries the first ones if the driver does not tell what they take', async () => {
    const { device } = start('always', { FAKE_result_cuStreamBeginCapture_v2: 801, FAKE_algorithms: 9, FAKE_long: 0, FAKE_long_ms: 200 });
    await multiplies();
    expect(wayOf(device)).toMatchObject({ proposed: 9, fitted: 0, tried: 6, refused: 1 });
    expect(device.ordinary!.state.begun).toBe(1);
  });

  it.each([
    ['is wrong', { FAKE_wrong: 0 }, { fitted: 3, tried: 2, refused: 0 }, 0],
    ['does not end beside the kernel', { FAKE_long: 0, FAKE_long_ms: 200 }, { fitted: 3, tried: 3, refused: 1 }, 1],
    ['waits for the kernel', { FAKE_waits: 0, FAKE_waits_from: 2, FAKE_waits_ms: 1300 }, { fitted: 3, tried: 3, refused: 1 }, 1],
  ])(
    'leaves out an algorithm that %s',
    async (_, fake, way, more) => {
      const { device } = start('always', fake);
      await multiplies();
      expect(device.ordinary!.state.unavailable).toBeUndefined();
      expect(wayOf(device)).toMatchObject({ proposed: 3, ...way });
      expect(calls('cuLaunchKernelEx')).toHaveLength(3 + more);
      expect(calls('cublasLtMatmul').at(-1)).toMatch(/^cublasLtMatmul [12] /);
    },
    30_000,
  );

  it('tries nothing that takes as much shared memory as what did not end', async () => {
    const { device } = start('always', { FAKE_rising: 1, FAKE_long: 0, FAKE_long_ms: 200 });
    await multiplies();
    expect(wayOf(device)).toMatchObject({ fitted: 3, tried: 1, refused: 1 });
    expect(device.ordinary!.state.begun).toBe(0);
  });

  it('remembers what it found, for later processes', async () => {
    const first = start('always', { FAKE_hungry: 2 });
    await multiplies();
    const found = wayOf(first.device);
    await gpuos.current()?.shutdown();
    const again = start('always', {}, {}, true);
    await multiplies();
    expect(wayOf(again.device)).toEqual({ ...found, remembered: true, prepareMs: wayOf(again.device).prepareMs });
    expect(calls('cublasLtMatmulAlgoGetHeuristic')).toEqual([]);
    expect(captured()).toEqual([]);
    // Once with the kernel gone, and once beside it.
    expect(tried()).toEqual([2, 2]);
    expect(again.device.ordinary!.state.begun).toBe(1);
  });

  it('remembers that there is no way', async () => {
    const first = start('always', { FAKE_hungry: 3 });
    await multiplies();
    expect(wayOf(first.device)).toMatchObject({ proposed: 3, fitted: 0, tried: 0, refused: 0, remembered: false });
    await gpuos.current()?.shutdown();
    const again = start('always', {}, {}, true);
    await multiplies();
    expect(wayOf(again.device)).toMatchObject({ proposed: 3, fitted: 0, remembered: true });
    for (const { us } of [wayOf(first.device), wayOf(again.device)]) expect(us).toBeUndefined();
    expect(captured()).toEqual([]);
    expect(tried()).toEqual([]);
    expect(calls('cublasLtCreate')).toEqual([]);
    expect(again.device.ordinary!.state).toMatchObject({ begun: 0, unavailable: undefined });
    // Another driver, device or resident kernel has to be asked anew.
    await gpuos.current()?.shutdown();
    const other = start('always', { FAKE_attribute81: 233_000 }, {}, true);
    await multiplies();
    expect(wayOf(other.device)).toMatchObject({ fitted: 3, remembered: false });
  });

  it.each([
    ['is not accepted any more', { FAKE_algorithms: 2 }, false],
    ['is wrong now', { FAKE_wrong: 2 }, false],
    ['does not end beside the kernel now', { FAKE_long: 2, FAKE_long_ms: 200 }, false],
    ['was damaged', {}, true],
  ])('finds a way anew if what it remembers %s', async (_, fake, damage) => {
    start('always', { FAKE_hungry: 2 });
    await multiplies();
    await gpuos.current()?.shutdown();
    if (damage) {
      const folder = join(home, 'cuda');
      const remembered = readdirSync(folder).filter((name) => readFileSync(join(folder, name)).includes('"algorithm"'));
      expect(remembered).toHaveLength(1);
      const file = join(folder, remembered[0]!);
      writeFileSync(
        file,
        Uint8Array.from(readFileSync(file), (byte, i) => (i === 40 ? byte ^ 1 : byte)),
      );
    }
    const again = start('always', fake, {}, true);
    await multiplies();
    const { tried: count, us, remembered } = wayOf(again.device);
    expect({ remembered, some: us !== undefined }).toEqual({ remembered: false, some: true });
    expect(count).toBeGreaterThan(1);
    if (!damage) expect(calls('cublasLtMatmul').at(-1)).toMatch(/^cublasLtMatmul [01] /);
    expect(again.device.ordinary!.state.begun).toBe(1);
    await gpuos.current()?.shutdown();
    // And that is remembered.
    const third = start('always', fake, {}, true);
    await multiplies();
    expect(wayOf(third.device).remembered).toBe(true);
  });

  it.each([
    ['is too old', { FAKE_cublas: 110_803 }, /cuBLAS 12 or 13 is needed/, true],
    ['does not open', { FAKE_result_cublasLtCreate: 1 }, /cublasLtCreate answered/, false],
  ])('goes on without a library that %s', async (_, fake, message, refuses) => {
    const { device } = start('auto', fake);
    expect(device.ordinary!.state.unavailable).toBeUndefined();
    expect(() => device.ordinary!.measure('float32', 64, 1)).toThrow(message);
    await multiplies();
    await gpuos.current()?.shutdown();
    if (refuses) expect(() => start('always', fake)).toThrow(/GPUOS_CUDA_CUBLAS=always.*GPUOS_CUDA_UNAVAILABLE/);
    else {
      const insisting = start('always', fake);
      await multiplies();
      expect(insisting.device.ordinary!.state).toMatchObject({ begun: 0, unavailable: expect.stringMatching(message) });
    }
  });

  it('knows at the start where there is no library at all, and does not start if there has to be one', async () => {
    const without = join(work, 'without');
    mkdirSync(without);
    for (const name of readdirSync(libraries.folder).filter((name) => !name.includes('cublas')))
      symlinkSync(join(libraries.folder, name), join(without, name));
    const { device } = start('auto', { GPUOS_CUDA_HOME: without });
    expect(device.ordinary!.state.unavailable).toMatch(/Cannot load the library cuBLAS/);
    await multiplies();
    await gpuos.current()?.shutdown();
    expect(() => start('always', { GPUOS_CUDA_HOME: without })).toThrow(/GPUOS_CUDA_CUBLAS=always.*GPUOS_CUDA_UNAVAILABLE/);
  });

  it('asks for no library where it is off', async () => {
    const { device } = start('off');
    expect(device.ordinary).toBeUndefined();
    const [a, b] = [numbers(1), numbers(2)];
    expect([...((await matmul(square(a), square(b)).data()) as Float32Array)]).toEqual(times(a, b));
    expect(readFileSync(log, 'utf8')).not.toMatch(/cublas/);
  });

  it('fails the task of a product that cannot be launched, and does those behind it in the kernel', async () => {
    const { device } = start('always', { FAKE_fails_at: 3, FAKE_fails_below: N });
    const [a, b] = [numbers(1), numbers(2)];
    const [x, y] = [square(a), square(b)];
    for (let i = 0; i < 2; i++) expect([...((await matmul(x, y).data()) as Float32Array)]).toEqual(times(a, b));
    await expect(matmul(x, y).data()).rejects.toMatchObject({ code: 'GPUOS_TASK_FAILED' });
    for (let i = 0; i < 3; i++) expect([...((await matmul(x, y).data()) as Float32Array)]).toEqual(times(a, b));
    expect(device.ordinary!.state.unavailable).toMatch(/could not be launched: cublasLtMatmul answered CUBLAS_STATUS_EXECUTION_FAILED/);
    expect(device.lost).toBeUndefined();
  });

  it('measures a product beside the kernel and without it, in memory of its own, and goes on', async () => {
    const { device } = start('always');
    const a = numbers(1);
    const x = square(a);
    expect(await x.add(1).data()).toEqual(a.map((v) => v + 1));
    const { beside, without, fastest } = device.ordinary!.measure('float32', 64, 2);
    for (const list of [beside, without, fastest]) expect(list).toHaveLength(2);
    expect(wayOf(device)).toMatchObject({ fitted: 3, remembered: false });
    expect([...((await x.data()) as Float32Array)]).toEqual([...a]);
    await multiplies();
    expect(readFileSync(log, 'utf8')).not.toMatch(/while a kernel runs/);
    expect(calls('cuMemFree_v2')).toHaveLength(2);
    expect(() => device.ordinary!.measure('float16', 64, 1)).toThrow(/No way is known.*GPUOS_BAD_OPTION/);
    expect(() => device.ordinary!.measure('float32', 64, 0)).toThrow(/GPUOS_BAD_OPTION/);
    expect(() => device.ordinary!.measure('float32', 63, 1)).toThrow(/GPUOS_BAD_OPTION/);
  }, 30_000);

  it('leaves a form to the kernel for which there is no memory to try it in, and remembers nothing of that', async () => {
    // Tensors, code and workspace have room, three matrices of the try do not.
    const { device } = start('always', { FAKE_heap_bytes: 100 * 2 ** 20 });
    await multiplies();
    expect(wayOf(device)).toMatchObject({ problem: expect.stringMatching(/bytes of device memory asked for/) });
    expect(device.ordinary!.state).toMatchObject({ begun: 0, unavailable: undefined });
    await gpuos.current()?.shutdown();
    const again = start('always', {}, {}, true);
    await multiplies();
    expect(wayOf(again.device)).toMatchObject({ fitted: 3, remembered: false });
  });
});
