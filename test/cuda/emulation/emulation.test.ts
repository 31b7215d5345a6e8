import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { compileEmulated, type DeviceMemory, deviceMemory, type Emulated, NO_GXX, reason } from './emulation.ts';

const TEXT = `
#include "gpuos_abi.h"
#include "helper.cuh"
extern "C" {
// out[0] = sum of the elements; through shuffles and shared scratch. Pointers: x, out; word 0: elements.
__device__ __noinline__ uint32_t operator_sum(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data) {
  const float *x = reinterpret_cast<const float *>(params[0]);
  float *out = reinterpret_cast<float *>(params[1]);
  const uint32_t n = reinterpret_cast<const uint32_t *>(params + 4)[0];
  float sum = 0;
  for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
  sum = sum_of_warp(sum);
  float *sums = reinterpret_cast<float *>(shared);
  if ((threadIdx.x & 31) == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  float all = 0;
  for (uint32_t i = 0; i < blockDim.x / 32; i++) all += sums[i];
  if (threadIdx.x == 0) out[tile] = all + (data != nullptr ? data[0] : 0);
  const uint32_t odd = __ballot_sync(0xffffffffu, threadIdx.x & 1);
  return odd == 0xaaaaaaaau && __syncthreads_or(threadIdx.x == 5) && __syncthreads_count(1) == blockDim.x ? GPUOS_STATUS_OK : GPUOS_STATUS_FAILED;
}
__device__ uint32_t operator_divergent(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data) {
  if (threadIdx.x < 7) return 0;
  __syncthreads();
  return 0;
}
__device__ uint32_t operator_two_places(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data) {
  if (threadIdx.x < 32) __syncwarp();
  if (threadIdx.x & 1) __shfl_sync(0xffffffffu, 1, 0);
  else __shfl_sync(0xffffffffu, 1, 0, 16);
  return 0;
}
__device__ uint32_t operator_absent_lane(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data) {
  if ((threadIdx.x & 31) < 16) __shfl_down_sync(0x0000ffffu, 1, 8);
  return 0;
}
// A barrier is missing between the store and the load of a neighbour's word.
__device__ uint32_t operator_race(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data) {
  uint32_t *words = reinterpret_cast<uint32_t *>(shared);
  words[threadIdx.x] = threadIdx.x;
  reinterpret_cast<uint32_t *>(params[1])[threadIdx.x] = words[(threadIdx.x + 1) % blockDim.x];
  return 0;
}
// A barrier is missing before the second turn: a fast warp writes again what a slow one has yet to read.
__device__ uint32_t operator_late_reader(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data) {
  uint32_t *words = reinterpret_cast<uint32_t *>(shared);
  uint32_t sum = 0;
  for (uint32_t turn = 0; turn < 2; turn++) {
    const uint32_t told = __shfl_sync(0xffffffffu, turn, 0);
    if ((threadIdx.x & 31) == 0) words[threadIdx.x / 32] = told;
    __syncthreads();
    if (turn == 0) sum = words[0] + words[1];
  }
  reinterpret_cast<uint32_t *>(params[1])[threadIdx.x] = sum;
  return 0;
}
__device__ uint32_t operator_past_the_scratch(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data) {
  if (threadIdx.x == 3) shared[GPUOS_SHARED_BYTES] = 1;
  return 0;
}
__device__ uint32_t operator_status(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data) {
  return threadIdx.x == 9 && tile == 2 ? GPUOS_STATUS_OUT_OF_RANGE : GPUOS_STATUS_OK;
}
}`;
const HELPER = `
__device__ __forceinline__ float sum_of_warp(float x) {
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}`;

describe.skipIf(NO_GXX)(reason('the emulation of a block'), () => {
  let device: Emulated;
  let memory: DeviceMemory;
  let floats: Float32Array;
  let params: BigUint64Array<ArrayBuffer>;
  beforeAll(() => {
    device = compileEmulated([
      { name: 'entry.cu', text: TEXT },
      { name: 'helper.cuh', text: HELPER },
    ]);
    memory = deviceMemory(16384);
    floats = new Float32Array(memory.bytes.buffer, memory.bytes.byteOffset, 4096);
    params = BigUint64Array.of(memory.address, memory.address + 8192n, 0n, 0n, 1000n);
  });
  afterAll(() => {
    device.free();
    memory.free();
  });

  it.each([32, 64, 256])('runs %i threads through barriers, shuffles and scratch, in any order', (threads) => {
    for (const order of [0, 1, 2, 3]) {
      for (let i = 0; i < 1000; i++) floats[i] = i;
      expect(device.call('operator_sum', params, 0, 1, { threads, order })).toBe(0);
      expect(floats[2048]).toBe(499500);
    }
  });

  it('passes data, and runs the tiles of a task one after another', () => {
    const data = deviceMemory(4);
    data.bytes[0] = 7;
    expect(device.callAll('operator_sum', params, 3, { data: data.address, threads: 32 })).toBe(0);
    expect([...floats.slice(2048, 2051)]).toEqual([499507, 499507, 499507]);
    data.free();
  });

  it('gives the or of all statuses', () => {
    expect(device.call('operator_status', params, 1, 3)).toBe(0);
    expect(device.call('operator_status', params, 2, 3)).toBe(10);
    expect(device.callAll('operator_status', params, 3)).toBe(10);
  });

  it('says where threads diverge, and goes on working', () => {
    expect(() => device.call('operator_divergent', params, 0, 1)).toThrow(/divergent barrier: .*__syncthreads.*thread 0 has returned/);
    expect(() => device.call('operator_two_places', params, 0, 1)).toThrow(
      /divergent barrier: thread \d+ waits at .*entry\.cu:\d+ in a shuffle/,
    );
    expect(device.call('operator_sum', params, 0, 1)).toBe(0);
    expect(() => device.call('operator_absent_lane', params, 0, 1)).toThrow('a shuffle reads a lane that takes no part');
    expect(() => device.call('operator_sum', params, 0, 1, { threads: 33 })).toThrow('33 threads');
  });

  it('shows a missing barrier as a result that depends on the order', () => {
    const words = new Int32Array(memory.bytes.buffer, memory.bytes.byteOffset + 8192, 64);
    for (const symbol of ['operator_race', 'operator_late_reader']) {
      const results = [0, 1].map((order) => {
        device.call(symbol, params, 0, 1, { threads: 64, order });
        return [...words];
      });
      expect(results[0]).not.toEqual(results[1]);
    }
  });

  it('notices what is written past the scratch', () => {
    expect(() => device.call('operator_past_the_scratch', params, 0, 1)).toThrow('outside of the shared scratch');
  });

  it('gives memory on a multiple of 256', () => {
    expect(memory.address % 256n).toBe(0n);
  });

  it('tells what the compiler says of a source that it refuses', () => {
    expect(() => compileEmulated('int x = undeclared_name;')).toThrow('undeclared_name');
  });
});
