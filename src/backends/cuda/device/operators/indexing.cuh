// Rows that indices name. All indices come from a tensor's values: each is compared with its size before it becomes an
// address.
#pragma once

namespace operators {

constexpr uint32_t NO_ROW = 0xffffffffu;

// Linear row that index[depth] names in dims[depth], or NO_ROW where one is out of range.
__device__ __forceinline__ uint32_t row_of(const uint32_t *index, uint32_t depth, const uint32_t *dims) {
  uint32_t row = 0;
  for (uint32_t d = 0; d < depth; d++) {
    const uint32_t place = index[d];
    if (place >= dims[d]) return NO_ROW;
    row = row * dims[d] + place;
  }
  return row;
}

// Lists of those threads that have something to say, in the threads' order.
struct Hits {
  uint32_t *counts;  // [warps]
  uint32_t *places;  // [threads]
  uint32_t *numbers;
};

__device__ __forceinline__ Hits hits_in(char *scratch) {
  uint32_t *words = reinterpret_cast<uint32_t *>(scratch);
  return {words, words + 32, words + 32 + blockDim.x};
}

// All threads call it, with a barrier between it and what used the scratch before; the number of hits is its result. Until
// the next call the lists may be read.
__device__ __forceinline__ uint32_t collect(const Hits &hits, bool hit, uint32_t place, uint32_t number) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t mask = __ballot_sync(0xffffffffu, hit);
  if (lane == 0) hits.counts[warp] = __popc(mask);
  __syncthreads();
  uint32_t before = 0;
  uint32_t total = 0;
  for (uint32_t i = 0; i < blockDim.x / 32; i++) {
    if (i == warp) before = total;
    total += hits.counts[i];
  }
  if (hit) {
    const uint32_t at = before + __popc(mask & ((1u << lane) - 1));
    hits.places[at] = place;
    hits.numbers[at] = number;
  }
  __syncthreads();
  return total;
}

// Words that the scatter operators share: units (rows of the output), inner elements, depth, count of updates, step
// between updates in elements (0: the same for all), dims[depth].
struct Scatter {
  uint32_t units, inner, depth, count, step;
  const uint32_t *dims;
};

__device__ __forceinline__ Scatter scatter_of(const uint32_t *words, char *shared) {
  const uint32_t depth = words[2];
  return {words[0], words[1], depth, words[3], words[4], stage(words + 5, depth, shared)};
}

// Whether all indices are in range; the same for all threads.
__device__ __forceinline__ bool indices_hold(const Scatter &scatter, const uint32_t *indices) {
  bool bad = false;
  for (uint32_t u = threadIdx.x; u < scatter.count; u += blockDim.x) {
    bad |= row_of(indices + static_cast<uint64_t>(u) * scatter.depth, scatter.depth, scatter.dims) == NO_ROW;
  }
  return !__syncthreads_or(bad);
}

// Writes rows of updates where indices name them: combine(target, source). A tile applies, in their order, just the
// updates that fall into its rows, and one thread all those of an element: so the result does not depend on the number
// of tiles or threads.
template <typename T, typename Combine>
__device__ __forceinline__ void scatter_rows(const Scatter &scatter, const uint32_t *indices, const T *updates, T *out, uint32_t first,
                                             uint32_t last, char *scratch, Combine combine) {
  const Hits hits = hits_in(scratch);
  const uint32_t lanes = scatter.inner >= blockDim.x ? blockDim.x : lanes_for(scatter.inner);
  const uint32_t groups = blockDim.x / lanes;
  const uint32_t group = threadIdx.x / lanes;
  const uint32_t lane = threadIdx.x - group * lanes;
  for (uint32_t base = 0; base < scatter.count; base += blockDim.x) {
    const uint32_t u = base + threadIdx.x;
    uint32_t place = NO_ROW;
    if (u < scatter.count) place = row_of(indices + static_cast<uint64_t>(u) * scatter.depth, scatter.depth, scatter.dims);
    const uint32_t count = collect(hits, place >= first && place < last, place, u);
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t row = hits.places[i];
      if (row % groups != group) continue;
      T *target = out + static_cast<uint64_t>(row) * scatter.inner;
      const T *source = updates + static_cast<uint64_t>(hits.numbers[i]) * scatter.step;
      for (uint32_t c = lane; c < scatter.inner; c += lanes) combine(target + c, source + c);
    }
  }
}

// A scatter operator: begin(start, count) writes the elements of this tile's rows as they are without updates. No tile of one
// writes anything when an index is out of range.
template <typename T, typename Begin, typename Combine>
__device__ __forceinline__ uint32_t scattered(const Scatter &scatter, const uint32_t *indices, const T *updates, T *out, uint32_t tile,
                                              uint32_t tiles, char *shared, Begin begin, Combine combine) {
  if (!indices_hold(scatter, indices)) return GPUOS_STATUS_OUT_OF_RANGE;
  const uint32_t first = unit_bound(scatter.units, tile, tiles);
  const uint32_t last = unit_bound(scatter.units, tile + 1, tiles);
  if (first >= last) return GPUOS_STATUS_OK;
  begin(static_cast<uint64_t>(first) * scatter.inner, static_cast<uint64_t>(last - first) * scatter.inner);
  scatter_rows(scatter, indices, updates, out, first, last, shared + STAGED_BYTES, combine);
  return GPUOS_STATUS_OK;
}

// Zeros with updates added. Pointers: indices, updates, output. Words: as Scatter, then whether they are integers.
__device__ __forceinline__ uint32_t scatter_nd(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  uint32_t *out = pointer_at<uint32_t>(params, 2);
  const uint32_t *words = words_after(params, 3);
  const Scatter scatter = scatter_of(words, shared);
  const bool integers = words[5 + scatter.depth] != 0;
  return scattered(
      scatter, pointer_at<const uint32_t>(params, 0), pointer_at<const uint32_t>(params, 1), out, tile, tiles, shared,
      [=](uint64_t start, uint64_t count) { fill_run(out + start, 0, count, threadIdx.x, blockDim.x); },
      [=](uint32_t *target, const uint32_t *source) {
        *target = integers ? *target + *source : __float_as_uint(__uint_as_float(*target) + __uint_as_float(*source));
      });
}

// x with blocks replaced, the last write staying. Pointers: x, indices, updates, output (may be x itself). Words: as
// Scatter.
template <typename T>
__device__ __forceinline__ uint32_t tensor_scatter_update(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const T *x = pointer_at<const T>(params, 0);
  T *out = pointer_at<T>(params, 3);
  return scattered(
      scatter_of(words_after(params, 4), shared), pointer_at<const uint32_t>(params, 1), pointer_at<const T>(params, 2), out, tile, tiles,
      shared,
      [=](uint64_t start, uint64_t count) {
        if (out != x) copy_run(out + start, x + start, count, threadIdx.x, blockDim.x);
      },
      [](T *target, const T *source) { *target = *source; });
}

// A scalar everywhere but at indices. Pointers: indices, values, default, output. Words: as Scatter, inner = 1.
template <typename T>
__device__ __forceinline__ uint32_t sparse_to_dense(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const T *value = pointer_at<const T>(params, 2);
  T *out = pointer_at<T>(params, 3);
  return scattered(
      scatter_of(words_after(params, 4), shared), pointer_at<const uint32_t>(params, 0), pointer_at<const T>(params, 1), out, tile, tiles,
      shared, [=](uint64_t start, uint64_t count) { fill_run(out + start, *value, count, threadIdx.x, blockDim.x); },
      [](T *target, const T *source) { *target = *source; });
}

// Copies for each unit the `inner` elements of the row of x that place(unit) names, one after the other.
template <typename T, typename Place>
__device__ __forceinline__ uint32_t gather_rows(T *out, const T *x, uint32_t units, uint32_t inner, uint32_t tile, uint32_t tiles,
                                                Place place) {
  uint32_t status = GPUOS_STATUS_OK;
  each_row(unit_bound(units, tile, tiles), unit_bound(units, tile + 1, tiles), inner, [&](uint32_t unit, uint32_t lane, uint32_t lanes) {
    const uint32_t row = place(unit);
    if (row == NO_ROW) status = GPUOS_STATUS_OUT_OF_RANGE;
    else copy_run(out + static_cast<uint64_t>(unit) * inner, x + static_cast<uint64_t>(row) * inner, inner, lane, lanes);
  });
  return status;
}

// Rows of x at indices along an axis: out[b, o, i, :] = x[b, o, indices[b, i], :]. Pointers: x, indices, output, all
// contiguous. Words: units (batch * outer * count), outer, size of the axis, count of indices (of one batch), inner
// elements.
template <typename T>
__device__ __forceinline__ uint32_t gather(const uint64_t *params, uint32_t tile, uint32_t tiles, char *) {
  const uint32_t *indices = pointer_at<const uint32_t>(params, 1);
  const uint32_t *words = words_after(params, 3);
  const uint32_t outer = words[1];
  const uint32_t size = words[2];
  const uint32_t count = words[3];
  return gather_rows(pointer_at<T>(params, 2), pointer_at<const T>(params, 0), words[0], words[4], tile, tiles, [=](uint32_t unit) {
    const uint32_t lead = unit / count;
    const uint32_t index = indices[static_cast<uint64_t>(lead / outer) * count + (unit - lead * count)];
    return index < size ? lead * size + index : NO_ROW;
  });
}

// Blocks of x: out[r, :] = x[indices[r, 0], .., indices[r, depth - 1], :]. Pointers: x, indices, output, all contiguous.
// Words: units (rows of indices), inner elements, depth, dims[depth].
template <typename T>
__device__ __forceinline__ uint32_t gather_nd(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const uint32_t *indices = pointer_at<const uint32_t>(params, 1);
  const uint32_t *words = words_after(params, 3);
  const uint32_t depth = words[2];
  const uint32_t *dims = stage(words + 3, depth, shared);
  return gather_rows(pointer_at<T>(params, 2), pointer_at<const T>(params, 0), words[0], words[1], tile, tiles,
                     [=](uint32_t unit) { return row_of(indices + static_cast<uint64_t>(unit) * depth, depth, dims); });
}

}  // namespace operators

GPUOS_OPERATOR(gather, gather<uint32_t>)
GPUOS_OPERATOR(gather_halves, gather<uint16_t>)
GPUOS_OPERATOR(gather_nd, gather_nd<uint32_t>)
GPUOS_OPERATOR(gather_nd_halves, gather_nd<uint16_t>)
GPUOS_OPERATOR(scatter_nd, scatter_nd)
GPUOS_OPERATOR(tensor_scatter_update, tensor_scatter_update<uint32_t>)
GPUOS_OPERATOR(tensor_scatter_update_halves, tensor_scatter_update<uint16_t>)
GPUOS_OPERATOR(sparse_to_dense, sparse_to_dense<uint32_t>)
GPUOS_OPERATOR(sparse_to_dense_halves, sparse_to_dense<uint16_t>)
