import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { compileFakes, type Fake, fake, NO_COMPILER, reason } from '../../../test/cuda/fakes.ts';
import { Nvml } from './nvml.ts';

describe.skipIf(NO_COMPILER)(reason('Nvml'), () => {
  let folder: ReturnType<typeof compileFakes>;
  let library: Fake;
  beforeAll(() => {
    folder = compileFakes(['nvml']);
    library = fake(folder.folder, 'nvml');
  });
  afterAll(() => folder?.remove());

  it('reads what there is to see', () => {
    const nvml = new Nvml(library.search);
    expect(nvml.driverVersion()).toBe('580.1.2');
    expect(nvml.deviceCount()).toBe(2);
    expect(nvml.device(1)).toBe(0x7f0000008001);
    const device = nvml.device('0000:18:00.0');
    expect(nvml.state(device)).toEqual({
      name: 'Fake GPU',
      busyPercent: 37,
      usedBytes: 754_820_096,
      totalBytes: 150_754_820_096,
      powerMilliwatts: 122_500,
      energyMillijoules: 5_000_000_000,
    });
    nvml.close();
    expect(library.calls()).toEqual([
      'nvmlInit_v2',
      'nvmlSystemGetDriverVersion 80',
      'nvmlDeviceGetCount_v2',
      'nvmlDeviceGetHandleByIndex_v2 1',
      'nvmlDeviceGetHandleByPciBusId_v2 0000:18:00.0',
      'nvmlDeviceGetName 7f0000009000 96',
      'nvmlDeviceGetUtilizationRates 7f0000009000',
      'nvmlDeviceGetMemoryInfo 7f0000009000',
      'nvmlDeviceGetPowerUsage 7f0000009000',
      'nvmlDeviceGetTotalEnergyConsumption 7f0000009000',
      'nvmlShutdown',
    ]);
  });

  it('leaves out what a device does not have or this user may not see', () => {
    library.result('nvmlDeviceGetPowerUsage', 3);
    library.result('nvmlDeviceGetUtilizationRates', 4);
    const nvml = new Nvml(library.search);
    expect(nvml.state(nvml.device(0))).toMatchObject({ busyPercent: undefined, powerMilliwatts: undefined, usedBytes: 754_820_096 });
    library.result('nvmlDeviceGetUtilizationRates', 0);
    library.result('nvmlDeviceGetPowerUsage', 15);
    expect(() => nvml.state(nvml.device(0))).toThrow(/nvmlDeviceGetPowerUsage answered GPU is lost \(15\)\. \[GPUOS_CUDA_CALL_FAILED\]/);
    library.result('nvmlDeviceGetPowerUsage', 0);
  });

  it('fails where NVML cannot start', () => {
    library.result('nvmlInit_v2', 9);
    expect(() => new Nvml(library.search)).toThrow(/nvmlInit_v2 answered Driver Not Loaded \(9\)/);
    library.result('nvmlInit_v2', 0);
  });
});
