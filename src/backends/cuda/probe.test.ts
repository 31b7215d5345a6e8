import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { compileFakes, type Fake, fake, type FakeName, NO_COMPILER, reason } from '../../../test/cuda/fakes.ts';
import type { SearchOptions } from './discovery.ts';
import { probe } from './probe.ts';

/** A machine with nothing on it but what lies in the flag's folder. */
const machine = (cudaHome?: string): SearchOptions => ({ cudaHome, variables: {}, home: '/nobody', workingFolder: '/nowhere' });

describe('probe', () => {
  it('does not throw, whatever this machine has, and is plain data', () => {
    const found = probe();
    expect(JSON.parse(JSON.stringify(found))).toMatchObject({ ready: found.ready, missing: found.missing });
    expect(found.ready).toBe(found.missing.length === 0);
  });
});

describe.skipIf(NO_COMPILER)(reason('probe of a machine with stand-ins'), () => {
  const NAMES = ['driver', 'nvrtc', 'nvml'] as const;
  let folder: ReturnType<typeof compileFakes>;
  const fakes = {} as Record<FakeName, Fake>;
  beforeAll(() => {
    folder = compileFakes(NAMES);
    for (const name of NAMES) fakes[name] = fake(folder.folder, name);
  });
  afterAll(() => folder?.remove());

  const values = <T>(name: FakeName, set: Readonly<Record<string, [changed: number, back: number]>>, action: () => T): T => {
    for (const [key, [changed]] of Object.entries(set)) fakes[name].value(key, changed);
    try {
      return action();
    } finally {
      for (const [key, [, back]] of Object.entries(set)) fakes[name].value(key, back);
    }
  };

  it('names cuBLAS where it is found, and says what is wrong with one, which nothing else depends on', () => {
    const without = probe(machine(folder.folder));
    expect(without.libraries.cublas).toMatchObject({ path: undefined, problem: expect.stringMatching(/cuBLAS.*is missing/) });
    const own = compileFakes(['driver', 'nvrtc', 'nvml', 'cublas']);
    try {
      const found = probe(machine(own.folder));
      expect(found.libraries.cublas).toMatchObject({ path: join(own.folder, 'libcublasLt.so.13'), version: '13.1.2' });
      expect(found.libraries.cublas.problem).toBeUndefined();
      fake(own.folder, 'cublas').value('cublas', 110_803);
      const old = probe(machine(own.folder));
      expect(old.libraries.cublas).toMatchObject({ path: undefined, problem: expect.stringMatching(/version 11\.8\.3/) });
      expect(old.missing).toEqual(without.missing);
    } finally {
      own.remove();
    }
  });

  it('describes libraries and GPUs', () => {
    const found = values('driver', { devices: [2, 1] }, () => probe(machine(folder.folder)));
    const file = (name: string) => `${folder.folder}/${name}`;
    expect(found).toMatchObject({
      ready: true,
      cuda: '13.0',
      missing: [],
      libraries: {
        driver: { path: file('libcuda.so.1'), from: 'GPUOS_CUDA_HOME', version: '580.1.2' },
        nvml: { path: file('libnvidia-ml.so.1'), version: '580.1.2' },
        nvrtc: { path: file('libnvrtc.so.13'), version: '13.0', found: [file('libnvrtc.so.13')] },
      },
    });
    expect(found.gpus).toEqual(
      [0, 1].map((ordinal) => ({
        ordinal,
        name: `Fake GPU ${ordinal}`,
        computeCapability: '9.0',
        sms: 116,
        memoryBytes: 150_000_000_000,
        pciBusId: ordinal === 0 ? '0000:28:00.0' : '0000:29:00.0',
        unfit: [],
        busyPercent: 37,
        usedBytes: 754_820_096,
        powerMilliwatts: 122_500,
      })),
    );
  });

  it('makes no context and starts nothing', () => {
    for (const name of NAMES) fakes[name].calls();
    probe(machine(folder.folder));
    const calls = fakes.driver.calls().map((line) => line.split(' ')[0]!);
    expect([...new Set(calls)].sort()).toEqual([
      'cuDeviceGet',
      'cuDeviceGetAttribute',
      'cuDeviceGetCount',
      'cuDeviceGetName',
      'cuDeviceGetPCIBusId',
      'cuDeviceTotalMem_v2',
      'cuDriverGetVersion',
      'cuInit',
    ]);
    expect(fakes.nvml.calls().at(-1)).toBe('nvmlShutdown');
  });

  it('says what is wrong with a GPU that does not fit', () => {
    const old = values('driver', { attribute75: [7, 9] }, () => probe(machine(folder.folder)));
    expect(old.ready).toBe(false);
    expect(old.missing[0]!.what).toBe('a GPU that fits (Fake GPU 0: compute capability 7.0, 7.5 is needed)');
    const display = values('driver', { attribute17: [1, 0], attribute20: [2, 0], attribute99: [0, 1] }, () =>
      probe(machine(folder.folder)),
    );
    expect(display.gpus[0]!.unfit).toHaveLength(3);
    const newer = values('driver', { attribute75: [12, 9] }, () => probe(machine(folder.folder)));
    expect(newer.gpus[0]!.unfit).toEqual(['NVRTC 13.0 does not compile for compute capability 12.0; install a newer one']);
  });

  it('asks for a compiler that the driver can follow', () => {
    const found = values('driver', { cuda: [12_080, 13_000] }, () => probe(machine(folder.folder)));
    expect(found).toMatchObject({ ready: false, cuda: '12.8', libraries: { nvrtc: { path: undefined } } });
    expect(found.missing).toHaveLength(1);
    expect(found.missing[0]!.what).toContain('it is version 13.0, and the driver supports CUDA 12 at most');
  });

  it('passes on what the driver says', () => {
    fakes.driver.result('cuInit', 100);
    const found = probe(machine(folder.folder));
    fakes.driver.result('cuInit', 0);
    expect(found.gpus).toEqual([]);
    expect(found.missing).toHaveLength(1);
    expect(found.missing[0]!.what).toMatch(
      /^a usable NVIDIA driver \(libcuda\.so\.1\): cuInit answered CUDA_ERROR_NO_DEVICE \(100\): the driver sees no GPU; check .*\.$/,
    );
    const none = values('driver', { devices: [0, 1] }, () => probe(machine(folder.folder)));
    expect(none).toMatchObject({ ready: false, missing: [{ what: 'a GPU' }] });
    const old = values('driver', { cuda: [11_040, 13_000] }, () => probe(machine(folder.folder)));
    expect(old.missing.map(({ what }) => what).join('\n')).toContain('supports CUDA 11.4; CUDA 12.0 is needed');
  });

  it('does without NVML, and without what one GPU does not tell', () => {
    fakes.nvml.result('nvmlDeviceGetHandleByPciBusId_v2', 15);
    expect(probe(machine(folder.folder))).toMatchObject({ ready: true, gpus: [{ busyPercent: undefined }] });
    fakes.nvml.result('nvmlDeviceGetHandleByPciBusId_v2', 0);
    fakes.nvml.result('nvmlInit_v2', 9);
    expect(probe(machine(folder.folder))).toMatchObject({ ready: true, libraries: { nvml: { version: undefined } } });
    fakes.nvml.result('nvmlInit_v2', 0);
  });

  it('names each library that is missing, and how to get it', () => {
    const driverOnly = compileFakes(['driver']);
    try {
      const files = { list: (path: string) => (path === driverOnly.folder ? ['libcuda.so.1'] : []), read: () => undefined };
      const found = probe({ ...machine(driverOnly.folder), files });
      // Where the loader knows an NVRTC of its own, it is found by its bare name.
      if (found.libraries.nvrtc.path === undefined) {
        expect(found.missing).toEqual([
          {
            what: 'the compiler NVRTC (libnvrtc.so.13 or .12)',
            remedy:
              'Install the CUDA toolkit 12 or 13, or run `pip install nvidia-cuda-nvrtc-cu12` (`nvidia-cuda-nvrtc` for CUDA 13); if it lies elsewhere, set GPUOS_CUDA_HOME.',
          },
        ]);
      }
    } finally {
      driverOnly.remove();
    }
  });
});
