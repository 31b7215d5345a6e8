/** The resident kernel on a real device: `npm run test:gpu`. Uses the built package and nothing else. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { descriptor } from '../../dist/abi/descriptor.js';
import { queueRecord } from '../../dist/abi/records.js';
import { CudaDriver } from '../../dist/backends/cuda/driver.js';
import { readInjectable } from '../../dist/backends/cuda/elf/injectable.js';
import { Nvrtc } from '../../dist/backends/cuda/nvrtc.js';
import { ResidentKernel } from '../../dist/backends/cuda/resident.js';
import { RESIDENT_OPTIONS, residentSource } from '../../dist/backends/cuda/source.js';

const NOP = 0;
const ADD = 1;
const WAIT_MS = 5000;

let driver;
let device;
let stream;
let image;

before(() => {
  driver = new CudaDriver();
  driver.initialize();
  device = driver.device(0);
  driver.setCurrent(driver.retainPrimaryContext(device));
  const [major, minor] = driver.computeCapability(device);
  const compiled = new Nvrtc(undefined, Math.floor(driver.version() / 1000)).compile({
    ...residentSource(),
    name: 'resident.cu',
    target: `sm_${major}${minor}`,
    options: RESIDENT_OPTIONS,
  });
  image = driver.link([{ kind: 'cubin', name: 'resident', bytes: compiled.image }]);
  stream = driver.createStream();
  console.log(driver.deviceName(device), `sm_${major}${minor}`, `linked ${image.length} bytes`);
});
after(() => driver.releasePrimaryContext(device));

/** A producer for one queue of the kernel, in the plainest form. */
class Producer {
  constructor(kernel, index, first = 0) {
    this.kernel = kernel;
    this.words = kernel.words;
    this.at = kernel.queues[index];
    this.tail = first;
    this.index = index;
  }

  get mark() {
    const mark = Atomics.load(this.words, (this.at.record + queueRecord.offset.mark) >> 2);
    return this.tail + ((mark - (this.tail >>> 0)) | 0);
  }

  submit(operator, pointers = [], word = 0, dependencies = [], tiles = 1) {
    const { words, at } = this;
    while (this.tail - this.mark >= this.kernel.slots) this.kernel.beat();
    const tag = this.tail >>> 0;
    const base = (at.ring + (tag & (this.kernel.slots - 1)) * descriptor.size) >> 2;
    const o = descriptor.offset;
    words[base + (o.operator >> 2)] = operator;
    words[base + (o.flags >> 2)] = this.index << 16;
    words[base + (o.tiles >> 2)] = tiles;
    let queues = 0xffffffff;
    dependencies.forEach((sequence, i) => {
      words[base + (o.dependencies >> 2) + i] = sequence >>> 0;
      queues = (queues & ~(0xff << (8 * i))) | (this.index << (8 * i));
    });
    words[base + (o.dependencyQueues >> 2)] = queues >>> 0;
    pointers.forEach((pointer, i) => {
      words[base + (o.pointers >> 2) + 2 * i] = pointer >>> 0;
      words[base + (o.pointers >> 2) + 2 * i + 1] = Math.floor(pointer / 2 ** 32);
    });
    words[base + (o.words >> 2)] = word;
    Atomics.store(words, base + (o.tag0 >> 2), tag);
    Atomics.store(words, base + (o.tag1 >> 2), tag);
    return this.tail++;
  }

  status(sequence) {
    const at = (this.at.completions >> 2) + 2 * ((sequence >>> 0) & (this.kernel.slots - 1));
    return Atomics.load(this.words, at + 1) === sequence >>> 0 ? Atomics.load(this.words, at) : undefined;
  }

  wait(sequence) {
    const until = Date.now() + WAIT_MS;
    while (this.mark <= sequence)
      if (Date.now() > until) throw new Error(`task ${sequence} is not complete; mark ${this.mark}, tail ${this.tail}`);
  }
}

function start(options = {}) {
  return new ResidentKernel(driver, device, { image, queues: 1, slots: 4096, ...options });
}

for (const first of [0, 2 ** 32 - 1000]) {
  test(`a hundred thousand tasks from sequence ${first} on, in order, all complete`, () => {
    const kernel = start({ firstSequence: first });
    try {
      const queue = new Producer(kernel, 0, first);
      for (let i = 0; i < 100_000; i++) {
        queue.submit(NOP, [], 0, i % 3 === 0 && i > 0 ? [queue.tail - 1] : []);
        if (i % 256 === 0) kernel.beat();
      }
      queue.wait(queue.tail - 1);
      assert.equal(queue.status(queue.tail - 1), 0);
    } finally {
      kernel.stop();
    }
  });
}

test('dependent additions give the sum, over many workers', () => {
  const n = 10_000;
  const bytes = 4 * n;
  const [a, b] = [driver.allocate(bytes), driver.allocate(bytes)];
  driver.copyToDevice(a, new Float32Array(n).fill(0), bytes, stream);
  driver.copyToDevice(
    b,
    Float32Array.from({ length: n }, (_, i) => i % 7),
    bytes,
    stream,
  );
  driver.synchronizeStream(stream);
  const kernel = start();
  const result = new Float32Array(n);
  try {
    const queue = new Producer(kernel, 0);
    let last = -1;
    for (let i = 0; i < 1000; i++) last = queue.submit(ADD, [a, b, a], n, last < 0 ? [] : [last]);
    queue.wait(last);
    driver.copyToHost(result, a, bytes, stream);
    driver.synchronizeStream(stream);
  } finally {
    kernel.stop();
  }
  assert.ok(result.every((value, i) => value === 1000 * (i % 7)));
});

test('an unknown operator and an empty slot fail, their dependents with them, and the next task runs', () => {
  const kernel = start();
  try {
    const queue = new Producer(kernel, 0);
    const bad = [queue.submit(99_999), queue.submit(3000)];
    const dependent = queue.submit(NOP, [], 0, [bad[0]]);
    const next = queue.submit(NOP);
    queue.wait(next);
    assert.deepEqual(
      [...bad, dependent, next].map((sequence) => queue.status(sequence)),
      [6, 5, 3, 0],
    );
    assert.equal(Atomics.load(queue.words, (queue.at.record + queueRecord.offset.failures) >> 2), 3);
  } finally {
    kernel.stop();
  }
});

test('operators injected while it runs compute what they should, each at once, and nothing else is disturbed', () => {
  const n = 4096;
  const bytes = 4 * n;
  const [x, out, a, b] = [0, 1, 2, 3].map(() => driver.allocate(bytes));
  const values = Float32Array.from({ length: n }, (_, i) => (i % 100) / 10 - 5);
  for (const [to, from] of [
    [x, values],
    [a, new Float32Array(n)],
    [b, new Float32Array(n).fill(1)],
  ])
    driver.copyToDevice(to, from, bytes, stream);
  driver.synchronizeStream(stream);
  const [major, minor] = driver.computeCapability(device);
  const nvrtc = new Nvrtc(undefined, Math.floor(driver.version() / 1000));
  const operators = Array.from({ length: 20 }, (_, k) => {
    const source = `extern "C" __device__ unsigned operator_new(const unsigned long long *params, unsigned tile, unsigned tiles) {
      const float *x = (const float *)params[0]; float *out = (float *)params[1]; const unsigned n = ((const unsigned *)(params + 4))[0];
      for (unsigned i = tile * blockDim.x + threadIdx.x; i < n; i += tiles * blockDim.x) out[i] = x[i] * ${k}.0f + ${k % 2 === 0 ? 'expf(x[i])' : '0.5f'};
      return 0; }`;
    const { image: cubin } = nvrtc.compile({ source, name: 'operator.cu', target: `sm_${major}${minor}`, options: RESIDENT_OPTIONS });
    return cubin;
  });
  const kernel = start();
  const times = [];
  try {
    const queue = new Producer(kernel, 0);
    const result = new Float32Array(n);
    const beside = [];
    let sums = 0;
    operators.forEach((cubin, k) => {
      const read = readInjectable(cubin, 'operator_new', { sm: 10 * major + minor, registers: kernel.registers });
      assert.ok(read.ok, JSON.stringify(read.reasons));
      // Load all the while: a chain of additions that must come out right.
      for (let i = 0; i < 200; i++, sums++) beside.push(queue.submit(ADD, [a, b, a], n, beside.length === 0 ? [] : [beside.at(-1)]));
      const from = performance.now();
      kernel.inject(read.function, 100 + k);
      times.push((performance.now() - from) * 1000);
      assert.throws(() => kernel.inject(read.function, 4096), { code: 'GPUOS_OPERATOR_OUT_OF_RANGE' });
      queue.wait(queue.submit(100 + k, [x, out], n, [], 4));
      driver.copyToHost(result, out, bytes, stream);
      driver.synchronizeStream(stream);
      values.forEach((value, i) => {
        const expected = value * k + (k % 2 === 0 ? Math.exp(value) : 0.5);
        assert.ok(
          Math.abs(result[i] - expected) <= 1e-5 * Math.max(1, Math.abs(expected)),
          `operator ${k}, element ${i}: ${result[i]}, not ${expected}`,
        );
      });
      kernel.beat();
    });
    queue.wait(queue.tail - 1);
    driver.copyToHost(result, a, bytes, stream);
    driver.synchronizeStream(stream);
    assert.ok(result.every((value) => value === sums));
    times.sort((p, q) => p - q);
    console.log(JSON.stringify({ kernelRegisters: kernel.registers, publishUsP50: times[10], publishUsMax: times[19] }));
  } finally {
    kernel.stop();
  }
});

test('it leaves by itself when its host shows no sign of life', async () => {
  const kernel = start();
  kernel.beat();
  await new Promise((resolve) => setTimeout(resolve, 1000));
  assert.equal(kernel.left, false);
  await new Promise((resolve) => setTimeout(resolve, 2500));
  assert.equal(kernel.left, true);
  kernel.stop();
});

test('how long an empty task takes, and how many go by in a second', () => {
  const kernel = start();
  try {
    const queue = new Producer(kernel, 0);
    const times = [];
    for (let i = 0; i < 20_000; i++) {
      const from = performance.now();
      const sequence = queue.submit(NOP);
      while (queue.status(sequence) === undefined);
      times.push((performance.now() - from) * 1000);
      if (i % 64 === 0) kernel.beat();
    }
    times.sort((x, y) => x - y);
    const count = 2_000_000;
    const from = performance.now();
    for (let i = 0; i < count; i++) {
      queue.submit(NOP);
      if ((i & 1023) === 0) kernel.beat();
    }
    queue.wait(queue.tail - 1);
    const seconds = (performance.now() - from) / 1000;
    console.log(JSON.stringify({ roundTripUsP50: times[10_000], p99: times[19_800], millionTasksPerSecond: count / seconds / 1e6 }));
  } finally {
    kernel.stop();
  }
});
