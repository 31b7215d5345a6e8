// The fixed operators: those whose work does not depend on a program. The folder of the resident kernel is where these
// names are looked up.
#pragma once

#include "operators/parameters.cuh"
#include "operators/elements.cuh"
#include "operators/copy.cuh"
#include "operators/fill.cuh"
#include "operators/joining.cuh"
#include "operators/indexing.cuh"
#include "operators/cache.cuh"
#include "operators/rotary.cuh"
#include "operators/ordering.cuh"
#include "operators/matmul-narrow.cuh"
#include "operators/matmul.cuh"
#include "operators/attention.cuh"

// Calls X with each name, in the order of KERNELS of the lowering, then of GPU_KERNELS.
#define GPUOS_FIXED_OPERATORS(X)  \
  X(nop)                          \
  X(copy_strided)                 \
  X(matmul)                       \
  X(pack_panels)                  \
  X(attention)                    \
  X(rotary)                       \
  X(cache_append)                 \
  X(cache_update)                 \
  X(prefix_match)                 \
  X(cache_compress)               \
  X(cache_decompress)             \
  X(cache_evict)                  \
  X(gather)                       \
  X(gather_nd)                    \
  X(scatter_nd)                   \
  X(tensor_scatter_update)        \
  X(sparse_to_dense)              \
  X(concat_4)                     \
  X(concat_16)                    \
  X(concat_256)                   \
  X(concat_4096)                  \
  X(pad)                          \
  X(one_hot)                      \
  X(top_k)                        \
  X(cumsum)                       \
  X(fill)                         \
  X(range)                        \
  X(copy_halves)                  \
  X(gather_halves)                \
  X(cache_append_halves)          \
  X(matmul_float16)               \
  X(matmul_bfloat16)              \
  X(attention_float16)            \
  X(attention_bfloat16)           \
  X(rotary_float16)               \
  X(rotary_bfloat16)              \
  X(cache_update_halves)          \
  X(cache_evict_halves)           \
  X(cache_compress_float16)       \
  X(cache_compress_bfloat16)      \
  X(gather_nd_halves)             \
  X(tensor_scatter_update_halves) \
  X(sparse_to_dense_halves)       \
  X(concat_4_halves)              \
  X(concat_16_halves)             \
  X(concat_256_halves)            \
  X(concat_4096_halves)           \
  X(pad_halves)                   \
  X(one_hot_halves)               \
  X(fill_halves)                  \
  X(range_float16)                \
  X(range_bfloat16)               \
  X(top_k_float16)                \
  X(top_k_bfloat16)               \
  X(cumsum_float16)               \
  X(cumsum_bfloat16)
