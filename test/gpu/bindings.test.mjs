/** The bindings on a real GPU, with the built package (`npm run test:gpu`): what the stand-ins cannot show is that the driver means what we think it does. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { CudaError } from '../../dist/backends/cuda/cuda-error.js';
import { CudaDriver } from '../../dist/backends/cuda/driver.js';
import { koffi } from '../../dist/backends/cuda/library.js';
import { Nvml } from '../../dist/backends/cuda/nvml.js';
import { Nvrtc } from '../../dist/backends/cuda/nvrtc.js';
import { probe } from '../../dist/backends/cuda/probe.js';

const found = probe();
const why = found.missing.map(({ what }) => what).join('; ');

const SOURCE = `
struct Three { unsigned x, y, z; };
extern "C" { __device__ unsigned long long table[3]; }
extern "C" __device__ float scale(float x, float by);
extern "C" __global__ void fill(float *out, unsigned n, int from, float by, Three three) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = scale(float(from + int(i)), by) + float(three.x + 10 * three.y + 100 * three.z);
  if (i == 0) table[2] = n;
}`;

describe('the driver of this machine', { skip: found.ready ? false : `missing ${why}` }, () => {
  let driver;
  let device;
  let context;
  let stream;
  let module;
  before(() => {
    driver = new CudaDriver();
    driver.initialize();
    device = driver.device(found.gpus.find(({ unfit }) => unfit.length === 0).ordinal);
    context = driver.retainPrimaryContext(device);
    driver.setCurrent(context);
    stream = driver.createStream(driver.streamPriorities().greatest);
    const nvrtc = new Nvrtc(undefined, Math.floor(driver.version() / 1000));
    const [major, minor] = driver.computeCapability(device);
    const compile = (source) =>
      nvrtc.compile({ source, name: 'gpu-test.cu', target: `sm_${10 * major + minor}`, options: ['--relocatable-device-code=true'] }).image;
    const scale = 'extern "C" __device__ float scale(float x, float by) { return x * by; }';
    const cubin = driver.link([
      { kind: 'cubin', name: 'kernel', bytes: compile(SOURCE) },
      { kind: 'cubin', name: 'operator', bytes: compile(scale) },
    ]);
    module = driver.loadModule(cubin);
  });
  after(() => {
    if (module) driver.unloadModule(module);
    if (stream) driver.destroyStream(stream);
    if (context) driver.releasePrimaryContext(device);
  });

  it('runs a linked kernel, by either way of launching, with every kind of parameter', () => {
    const fill = driver.moduleFunction(module, 'fill');
    assert.ok(driver.functionAttribute(fill, 'registers') > 0);
    const n = 1000;
    const out = driver.allocate(4 * n);
    for (const more of [{}, { cooperative: true }, { priority: 0 }]) {
      driver.fillBytes(out, 0xff, 4 * n, stream);
      const shape = { grid: [4], block: [256], stream, ...more };
      driver.launch(fill, shape, [out, n, -7, Float32Array.of(1.5), Uint32Array.of(1, 2, 3)]);
      const host = new Float32Array(n);
      driver.copyToHost(host, out, 4 * n, stream);
      driver.synchronizeStream(stream);
      assert.deepEqual([...host.subarray(0, 3), host[n - 1]], [-10.5 + 321, -9 + 321, -7.5 + 321, 992 * 1.5 + 321]);
      assert.equal(driver.streamDone(stream), true);
    }
    const table = driver.moduleGlobal(module, 'table');
    assert.equal(table.bytes, 24);
    const words = new BigUint64Array(3);
    driver.copyToHost(words, table.address, 24, stream);
    driver.synchronizeStream(stream);
    assert.equal(words[2], BigInt(n));
    driver.free(out);
  });

  it('sees memory of the host, made by it or registered', () => {
    const bytes = 65_536;
    const made = driver.allocateHost(bytes);
    const shared = new Uint8Array(koffi().view(made, bytes)).fill(3);
    const there = driver.deviceAddress(made);
    const copy = driver.allocate(bytes);
    driver.copyOnDevice(copy, there, bytes, stream);
    driver.fillBytes(there, 9, 16, stream);
    const back = new Uint8Array(bytes);
    driver.copyToHost(back, copy, bytes, stream);
    driver.synchronizeStream(stream);
    assert.deepEqual([back[0], back[bytes - 1], shared[15], shared[16]], [3, 3, 9, 3]);
    const registered = new Uint8Array(new SharedArrayBuffer(bytes));
    driver.registerHost(registered, bytes);
    driver.fillBytes(driver.deviceAddress(registered), 0x55, bytes, stream);
    driver.synchronizeStream(stream);
    assert.equal(
      registered.every((byte) => byte === 0x55),
      true,
    );
    driver.unregisterHost(registered);
    driver.free(copy);
    driver.freeHost(made);
  });

  it('orders and times by events', () => {
    const [start, end] = [driver.createEvent(true), driver.createEvent(true)];
    const other = driver.createStream();
    driver.recordEvent(start, stream);
    driver.waitForEvent(other, start);
    driver.recordEvent(end, other);
    driver.synchronizeEvent(end);
    assert.equal(driver.eventDone(start), true);
    assert.ok(driver.elapsedMs(start, end) >= 0);
    driver.destroyStream(other);
    driver.destroyEvent(start);
    driver.destroyEvent(end);
  });

  it('names what fails', () => {
    const failing = [
      [() => driver.moduleFunction(module, 'nothing'), 'GPUOS_CUDA_CALL_FAILED', 'CUDA_ERROR_NOT_FOUND'],
      [() => driver.allocate(2 ** 50), 'GPUOS_OUT_OF_MEMORY', 'CUDA_ERROR_OUT_OF_MEMORY'],
      [() => driver.loadModule(new Uint8Array(64)), 'GPUOS_CUDA_CALL_FAILED', 'CUDA_ERROR_INVALID_IMAGE'],
      [
        () => driver.link([{ kind: 'ptx', name: 'text', bytes: Buffer.from('nonsense\0') }]),
        'GPUOS_COMPILE_FAILED',
        // What driver 580 says of a text without a header; INVALID_PTX is for one that has it.
        'CUDA_ERROR_INVALID_IMAGE',
      ],
    ];
    for (const [action, code, resultName] of failing) {
      let error;
      try {
        action();
      } catch (thrown) {
        error = thrown;
      }
      assert.ok(error instanceof CudaError, String(error));
      assert.deepEqual([error.code, error.resultName], [code, resultName]);
    }
    // And the context is as good as before.
    const { freeBytes, totalBytes } = driver.memory();
    assert.ok(freeBytes <= totalBytes);
  });

  it('is the same GPU to NVML', () => {
    if (found.libraries.nvml.path === undefined) return;
    const nvml = new Nvml();
    const state = nvml.state(nvml.device(driver.pciBusId(device)));
    assert.equal(state.name, driver.deviceName(device));
    assert.ok(state.totalBytes >= driver.totalMemory(device));
    nvml.close();
  });
});
