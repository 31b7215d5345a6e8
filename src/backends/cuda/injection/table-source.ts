/** The kernel's name in the generated source. */
export const TELL_KERNEL = 'gpuos_operator_addresses';

/**
 * CUDA C++ of a kernel that tells the addresses of these operators: linked with them and the resident kernel, it makes
 * their functions ones that the resident kernel may call, for which the linker then reserves registers and stack.
 */
export function tableSource(symbols: readonly string[]): string {
  return `#include "stdint.h"
extern "C" {
${symbols.map((symbol) => `__device__ uint32_t ${symbol}(const uint64_t *, uint32_t, uint32_t, char *, const uint32_t *);`).join('\n')}

__global__ void ${TELL_KERNEL}(uint64_t *addresses) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
${symbols.map((symbol, i) => `  addresses[${i}] = reinterpret_cast<uint64_t>(&${symbol});`).join('\n')}
}
}
`;
}
