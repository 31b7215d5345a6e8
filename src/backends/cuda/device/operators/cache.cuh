// The key and value cache: rows written, dropped, compared, and held in a byte an element.
#pragma once

namespace operators {

// The rows of update: where row t of leading index `lead` begins, by its strides.
template <typename T>
struct Update {
  const T *rows;
  uint32_t count;
  int64_t column;
  uint32_t rank;
  const uint32_t *dims;
};

template <typename T>
__device__ __forceinline__ const T *update_row(const Update<T> &update, uint32_t lead, uint32_t t) {
  return update.rows + offset_of(lead * update.count + t, update.rank, update.dims, update.dims + update.rank);
}

// Rows [first, last) of the cache as they are, unless the output is the cache itself.
template <typename T>
__device__ __forceinline__ void keep_rows(T *out, const T *cache, uint32_t first, uint32_t last, uint32_t width) {
  if (out == cache) return;
  const uint64_t start = static_cast<uint64_t>(first) * width;
  copy_run(out + start, cache + start, static_cast<uint64_t>(last - first) * width, threadIdx.x, blockDim.x);
  // Another thread may write a new row over what this one has copied.
  __syncthreads();
}

// cache [.., S, D] with rows position .. position + T - 1 replaced. The output may be the cache itself: then only those
// rows are written. Pointers: cache, update, position, output. Words: units (leading * S), S, T, D, column stride of
// update, rank r of update's rows (leading dims and T), dims[r], strides of update[r].
template <typename T>
__device__ __forceinline__ uint32_t cache_append(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  T *out = pointer_at<T>(params, 3);
  const int32_t position = *pointer_at<const int32_t>(params, 2);
  const uint32_t *words = words_after(params, 4);
  const uint32_t units = words[0];
  const uint32_t S = words[1];
  const uint32_t count = words[2];
  const uint32_t D = words[3];
  const uint32_t rank = words[5];
  if (position < 0 || position > static_cast<int32_t>(S) - static_cast<int32_t>(count)) return GPUOS_STATUS_OUT_OF_RANGE;
  const uint32_t first = unit_bound(units, tile, tiles);
  const uint32_t last = unit_bound(units, tile + 1, tiles);
  if (first >= last) return GPUOS_STATUS_OK;
  const Update<T> update = {pointer_at<const T>(params, 1), count, static_cast<int32_t>(words[4]), rank, stage(words + 6, 2 * rank, shared)};
  keep_rows(out, pointer_at<const T>(params, 0), first, last, D);
  const uint32_t lead = first / S;
  const uint32_t leads = (last - 1) / S - lead + 1;
  each_row(0, leads * count, D, [&](uint32_t item, uint32_t lane, uint32_t lanes) {
    const uint32_t own = lead + item / count;
    const uint32_t t = item % count;
    const uint32_t unit = own * S + position + t;
    if (unit < first || unit >= last) return;
    copy_elements(out + static_cast<uint64_t>(unit) * D, update_row(update, own, t), update.column, D, lane, lanes);
  });
  return GPUOS_STATUS_OK;
}

// cache [.., S, D] with row positions[t] replaced by row t of update; the last write to a row stays. The output may be
// the cache itself. Pointers: cache, update, positions, output. Words: as cache_append. No tile writes anything when a
// position is out of range.
template <typename T>
__device__ __forceinline__ uint32_t cache_update(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const uint32_t *positions = pointer_at<const uint32_t>(params, 2);
  T *out = pointer_at<T>(params, 3);
  const uint32_t *words = words_after(params, 4);
  const uint32_t units = words[0];
  const uint32_t S = words[1];
  const uint32_t updates = words[2];
  const uint32_t D = words[3];
  const uint32_t rank = words[5];
  bool bad = false;
  for (uint32_t t = threadIdx.x; t < updates; t += blockDim.x) bad |= positions[t] >= S;
  if (__syncthreads_or(bad)) return GPUOS_STATUS_OUT_OF_RANGE;
  const uint32_t first = unit_bound(units, tile, tiles);
  const uint32_t last = unit_bound(units, tile + 1, tiles);
  if (first >= last) return GPUOS_STATUS_OK;
  const Update<T> update = {pointer_at<const T>(params, 1), updates, static_cast<int32_t>(words[4]), rank,
                            stage(words + 6, 2 * rank, shared)};
  keep_rows(out, pointer_at<const T>(params, 0), first, last, D);
  const uint32_t lead = first / S;
  const uint32_t leads = (last - 1) / S - lead + 1;
  if (updates == 1) {
    each_row(lead, lead + leads, D, [&](uint32_t own, uint32_t lane, uint32_t lanes) {
      const uint32_t unit = own * S + positions[0];
      if (unit < first || unit >= last) return;
      copy_elements(out + static_cast<uint64_t>(unit) * D, update_row(update, own, 0), update.column, D, lane, lanes);
    });
    return GPUOS_STATUS_OK;
  }
  // An element of the output belongs to one thread, which writes to it in the order of the updates.
  const Hits hits = hits_in(shared + STAGED_BYTES);
  const uint32_t lanes = lanes_for(D);
  const uint32_t groups = blockDim.x / lanes;
  const uint32_t group = threadIdx.x / lanes;
  const uint32_t lane = threadIdx.x - group * lanes;
  for (uint32_t base = 0; base < updates; base += blockDim.x) {
    const uint32_t t = base + threadIdx.x;
    const uint32_t place = t < updates ? positions[t] : S;
    const bool hit = place < S && (leads > 1 || (lead * S + place >= first && lead * S + place < last));
    const uint32_t count = collect(hits, hit, place, t);
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t row = hits.places[i];
      for (uint32_t own = (group + groups - (row + lead) % groups) % groups; own < leads; own += groups) {
        const uint32_t unit = (lead + own) * S + row;
        if (unit < first || unit >= last) continue;
        const T *from = update_row(update, lead + own, hits.numbers[i]);
        for (uint32_t c = lane; c < D; c += lanes) out[static_cast<uint64_t>(unit) * D + c] = from[c * update.column];
      }
    }
  }
  return GPUOS_STATUS_OK;
}

// Rows of floats to int8 with one scale a row. Pointers: x, packed, scales. Words: units (rows), D, column stride of x,
// rank r of the rows, dims[r], strides[r].
template <typename T>
__device__ __forceinline__ uint32_t cache_compress(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const T *x = pointer_at<const T>(params, 0);
  uint32_t *packed = pointer_at<uint32_t>(params, 1);
  float *scales = pointer_at<float>(params, 2);
  const uint32_t *words = words_after(params, 3);
  const uint32_t units = words[0];
  const uint32_t D = words[1];
  const int64_t column = static_cast<int32_t>(words[2]);
  const uint32_t rank = words[3];
  const uint32_t *dims = stage(words + 4, 2 * rank, shared);
  const uint32_t packed_words = (D + 3) / 4;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t last = unit_bound(units, tile + 1, tiles);
  for (uint32_t unit = unit_bound(units, tile, tiles) + threadIdx.x / 32; unit < last; unit += blockDim.x / 32) {
    const T *row = x + offset_of(unit, rank, dims, dims + rank);
    // Sizes of floats are in the order of their bits, NaN above all.
    uint32_t greatest = 0;
    for (uint32_t i = lane; i < D; i += 32) greatest = max(greatest, __float_as_uint(widened(row[i * column])) & 0x7fffffffu);
    for (uint32_t step = 16; step > 0; step /= 2) greatest = max(greatest, __shfl_xor_sync(0xffffffffu, greatest, step));
    const float scale = __uint_as_float(greatest) / 127.0f;
    if (lane == 0) scales[unit] = scale;
    for (uint32_t w = lane; w < packed_words; w += 32) {
      uint32_t word = 0;
      for (uint32_t j = 0; j < 4 && 4 * w + j < D && scale > 0; j++) {
        const float quotient = rintf(widened(row[(4 * w + j) * column]) / scale);
        const int32_t byte = quotient == quotient ? static_cast<int32_t>(fminf(127.0f, fmaxf(-127.0f, quotient))) : 0;
        word |= (static_cast<uint32_t>(byte) & 0xff) << (8 * j);
      }
      packed[static_cast<uint64_t>(unit) * packed_words + w] = word;
    }
  }
  return GPUOS_STATUS_OK;
}

// The first `sinks` and the last `window` rows. Pointers: cache (contiguous), output. Words: units (leading * kept
// rows), S, D, sinks, window.
template <typename T>
__device__ __forceinline__ uint32_t cache_evict(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const T *cache = pointer_at<const T>(params, 0);
  T *out = pointer_at<T>(params, 1);
  const uint32_t *words = words_after(params, 2);
  const uint32_t units = words[0];
  const uint32_t S = words[1];
  const uint32_t D = words[2];
  const uint32_t sinks = words[3];
  const uint32_t kept = sinks + words[4];
  each_row(unit_bound(units, tile, tiles), unit_bound(units, tile + 1, tiles), D, [&](uint32_t unit, uint32_t lane, uint32_t lanes) {
    const uint32_t lead = unit / kept;
    const uint32_t r = unit - lead * kept;
    const uint32_t from = lead * S + (r < sinks ? r : S - kept + r);
    copy_run(out + static_cast<uint64_t>(unit) * D, cache + static_cast<uint64_t>(from) * D, D, lane, lanes);
  });
  return GPUOS_STATUS_OK;
}

}  // namespace operators

GPUOS_OPERATOR(cache_append, cache_append<uint32_t>)
GPUOS_OPERATOR(cache_append_halves, cache_append<uint16_t>)
GPUOS_OPERATOR(cache_update, cache_update<uint32_t>)
GPUOS_OPERATOR(cache_update_halves, cache_update<uint16_t>)
GPUOS_OPERATOR(cache_compress, cache_compress<float>)
GPUOS_OPERATOR(cache_compress_float16, cache_compress<operators::Float16>)
GPUOS_OPERATOR(cache_compress_bfloat16, cache_compress<operators::Bfloat16>)
GPUOS_OPERATOR(cache_evict, cache_evict<uint32_t>)
GPUOS_OPERATOR(cache_evict_halves, cache_evict<uint16_t>)

extern "C" {

// Length of the common prefix. Pointers: a, b, output (one int32). Words: units (1), N, M.
__device__ __noinline__ uint32_t operator_prefix_match(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared,
                                                       const uint32_t *data) {
  using namespace operators;
  const uint32_t *a = pointer_at<const uint32_t>(params, 0);
  const uint32_t *b = pointer_at<const uint32_t>(params, 1);
  const uint32_t *words = words_after(params, 3);
  const uint32_t units = words[0];
  const uint32_t most = min(words[1], words[2]);
  if (unit_bound(units, tile, tiles) == unit_bound(units, tile + 1, tiles)) return GPUOS_STATUS_OK;
  uint32_t *length = reinterpret_cast<uint32_t *>(shared);
  __syncthreads();
  if (threadIdx.x == 0) *length = most;
  __syncthreads();
  for (uint32_t base = 0; base < most; base += 4 * blockDim.x) {
    uint32_t found = most;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      const uint32_t i = base + threadIdx.x + j * blockDim.x;
      if (i < most && a[i] != b[i]) found = min(found, i);
    }
    if (found < most) atomicMin(length, found);
    if (__syncthreads_or(found < most)) break;
  }
  if (threadIdx.x == 0) *pointer_at<uint32_t>(params, 2) = *length;
  return GPUOS_STATUS_OK;
}

// The reverse. Pointers: packed, scales, output. Words: units (rows), D.
__device__ __noinline__ uint32_t operator_cache_decompress(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared,
                                                           const uint32_t *data) {
  using namespace operators;
  const uint32_t *packed = pointer_at<const uint32_t>(params, 0);
  const float *scales = pointer_at<const float>(params, 1);
  float *out = pointer_at<float>(params, 2);
  const uint32_t *words = words_after(params, 3);
  const uint32_t units = words[0];
  const uint32_t D = words[1];
  const uint32_t packed_words = (D + 3) / 4;
  each_row(unit_bound(units, tile, tiles), unit_bound(units, tile + 1, tiles), D, [&](uint32_t unit, uint32_t lane, uint32_t lanes) {
    const uint32_t *row = packed + static_cast<uint64_t>(unit) * packed_words;
    float *to = out + static_cast<uint64_t>(unit) * D;
    const float scale = scales[unit];
    for (uint32_t i = lane; i < D; i += lanes) {
      const int32_t byte = static_cast<int32_t>(row[i / 4] << (24 - 8 * (i % 4))) >> 24;
      to[i] = static_cast<float>(byte) * scale;
    }
  });
  return GPUOS_STATUS_OK;
}
}
