/** The kernel's name in the generated source. */
export const TELL_KERNEL = 'gpuos_operator_addresses';

/**
 * CUDA C++ of a kernel that tells the addresses of these operators: linked with them and the resident kernel, it makes
 * their functions ones that the resident kernel may call, for which the linker then reserves registers and stack. Of the
 * addresses it moves what it is asked to, words of 8 bytes, to where the resident kernel looks for them.
 */
export function tableSource(symbols: readonly string[]): string {
  return `#include "stdint.h"
extern "C" {
${symbols.map((symbol) => `__device__ uint32_t ${symbol}(const uint64_t *, uint32_t, uint32_t, char *, const uint32_t *);`).join('\n')}

struct Move {
  uint64_t *to;
  const uint64_t *from;
};

__global__ void ${TELL_KERNEL}(uint64_t *told, const Move *moves, uint32_t count) {
  if (blockIdx.x != 0) return;
  if (threadIdx.x == 0) {
${symbols.map((symbol, i) => `    told[${i}] = reinterpret_cast<uint64_t>(&${symbol});`).join('\n')}
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) *moves[i].to = *moves[i].from;
}
}
`;
}
