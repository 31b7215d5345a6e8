// Scaled dot-product attention: softmax(scale q k^T + mask) v, with the softmax taken online over slices of keys (Milakov
// and Gimelshein, 2018: keep the running maximum and sum, rescale what was added up before). A warp has up to four query
// rows of one head, so that a key and a value that it loads serve all of them; where there are fewer such jobs than
// warps, several warps share the keys of one, and their results are joined.
#pragma once

namespace operators {

// Keys of a slice (one a lane), elements of q and k that are in shared memory at a time, columns of v of one pass.
constexpr uint32_t KEYS = 32;
constexpr uint32_t DEPTH = 16;
constexpr uint32_t PIECES = 4;

template <typename T>
struct Attention {
  const T *q, *k, *v, *mask;
  T *out;
  uint32_t Sq, Sk, D, Dv;
  float scale;
  bool causal;
  int64_t q_row, q_column, k_row, k_column, v_row, v_column, mask_row, mask_column, out_row;
  uint32_t rank;
  const uint32_t *dims;  // then strides of q, k, v, mask, output
};
static_assert(sizeof(Attention<float>) <= STAGED_BYTES / 2, "it lies behind its dims");

// What one warp has of R query rows after its part of the keys: maximum, sum, weighted values.
template <uint32_t R>
struct Mixed {
  float most[R];
  float sum[R];
  float values[R][PIECES];
};

// A warp's part of the scratch: a slice of k, of q, and the weights of a slice; then, to be joined, what it has mixed.
template <uint32_t R>
constexpr uint32_t WARP_FLOATS = KEYS * (DEPTH + 1) + R * DEPTH + R * KEYS;

__device__ __forceinline__ float minus_infinity() { return __int_as_float(static_cast<int32_t>(0xff800000)); }

// How much what was added up under one maximum counts under a greater one. Nothing was, if there was none.
__device__ __forceinline__ float rescaling(float from, float to) { return from == minus_infinity() ? 1.0f : expf(from - to); }

// Keys that row i sees: what it does not see does not count, even if it is NaN.
template <typename T>
__device__ __forceinline__ uint32_t seen_by(const Attention<T> &a, uint32_t i) {
  if (!a.causal) return a.Sk;
  const int64_t seen = static_cast<int64_t>(a.Sk) - a.Sq + i + 1;
  return static_cast<uint32_t>(seen < 0 ? 0 : min(seen, static_cast<int64_t>(a.Sk)));
}

// Brings elements d0 to d0 + depth - 1 of up to 32 keys into shared memory, zeros in the place of what is not there: each
// loads what lies consecutively, and holds it until the others have done with what was there before.
template <typename T>
__device__ __forceinline__ void bring_keys(const Attention<T> &a, const T *k, uint32_t d0, uint32_t depth, uint32_t count, bool vectors,
                                           float *slice) {
  const uint32_t lane = threadIdx.x & 31;
  float held[16];
  if (vectors) {
    constexpr uint32_t IN_KEY = DEPTH / VECTOR<T>;
    const uint32_t element = lane % IN_KEY * VECTOR<T>;
#pragma unroll
    for (uint32_t j = 0; j < 16 / VECTOR<T>; j++) {
      const uint32_t key = lane / IN_KEY + 32 / IN_KEY * j;
      float some[VECTOR<T>] = {};
      if (key < count && element < depth) load_vector(k + key * a.k_row + d0 + element, some);
#pragma unroll
      for (uint32_t i = 0; i < VECTOR<T>; i++) held[j * VECTOR<T> + i] = some[i];
    }
    __syncwarp();
#pragma unroll
    for (uint32_t j = 0; j < 16 / VECTOR<T>; j++) {
      const uint32_t key = lane / IN_KEY + 32 / IN_KEY * j;
#pragma unroll
      for (uint32_t i = 0; i < VECTOR<T>; i++) slice[key * (DEPTH + 1) + element + i] = held[j * VECTOR<T> + i];
    }
    return;
  }
  const bool by_keys = a.k_row == 1 && a.k_column != 1;
  // Element j of a lane: of its own key the j-th, or of each second key the same.
  const uint32_t key = by_keys ? lane : lane / DEPTH;
  const uint32_t element = by_keys ? 0 : lane % DEPTH;
  const int64_t step = by_keys ? a.k_column : 2 * a.k_row;
  const T *from = k + a.k_row * key + a.k_column * (d0 + element);
  float *to = slice + key * (DEPTH + 1) + element;
  const uint32_t next = by_keys ? 1 : 2 * (DEPTH + 1);
  // How many of its sixteen are there.
  uint32_t there = 0;
  if (by_keys) there = key < count ? depth : 0;
  else if (element < depth && key < count) there = (count - key + 1) / 2;
#pragma unroll
  for (uint32_t j = 0; j < 16; j++) {
    held[j] = j < there ? widened(*from) : 0.0f;
    from += step;
  }
  __syncwarp();
#pragma unroll
  for (uint32_t j = 0; j < 16; j++) to[j * next] = held[j];
}

// Scores of this lane's key of the slice with each row: dot products, through shared memory so that both what lies
// consecutively is read so and a lane has a key of its own.
template <typename T, uint32_t R>
__device__ __forceinline__ void score(const Attention<T> &a, const T *q, const T *k, uint32_t rows, uint32_t count, float *scratch,
                                      float (&dots)[R]) {
  const uint32_t lane = threadIdx.x & 31;
  float *slice = scratch;
  float *queries = scratch + KEYS * (DEPTH + 1);
  const bool vectors = a.k_column == 1 && a.D % VECTOR<T> == 0 && holds_vectors(k, a.k_row);
#pragma unroll
  for (uint32_t r = 0; r < R; r++) dots[r] = 0;
  for (uint32_t d0 = 0; d0 < a.D; d0 += DEPTH) {
    const uint32_t depth = min(DEPTH, a.D - d0);
    bring_keys(a, k, d0, depth, count, vectors, slice);
    for (uint32_t i = lane; i < R * DEPTH; i += 32) {
      const uint32_t d = i % DEPTH;
      queries[i] = d < depth ? widened(q[min(i / DEPTH, rows - 1) * a.q_row + a.q_column * (d0 + d)]) : 0.0f;
    }
    __syncwarp();
#pragma unroll
    for (uint32_t d = 0; d < DEPTH; d++) {
      const float own = slice[lane * (DEPTH + 1) + d];
#pragma unroll
      for (uint32_t r = 0; r < R; r++) dots[r] += queries[r * DEPTH + d] * own;
    }
  }
}

// The columns of a pass that a lane has: `PIECES` of them, from `first` on, `step` apart. Side by side if four can be loaded
// at once and there are so many that no lane is idle for it.
struct Columns {
  uint32_t first, step;
};

template <typename T>
__device__ __forceinline__ Columns columns_of(const Attention<T> &a, const T *v) {
  const uint32_t lane = threadIdx.x & 31;
  const bool together = a.Dv % 4 == 0 && a.Dv > 64 && a.v_column == 1 && holds_vectors(v, a.v_row, 4);
  return together ? Columns{4 * lane, 1} : Columns{lane, 32};
}

// Rows `i0` to `i0 + rows - 1` of one head, with every `splits`-th slice of keys from `split` on, and the columns of v
// from `c0` on.
template <typename T, uint32_t R>
static __device__ __noinline__ void mix(const Attention<T> &a, const T *q, const T *k, const T *v, const T *mask, uint32_t i0, uint32_t rows,
                                 uint32_t split, uint32_t splits, uint32_t c0, float *scratch, Mixed<R> &mixed) {
  const uint32_t lane = threadIdx.x & 31;
  float *weights = scratch + KEYS * (DEPTH + 1) + R * DEPTH;
  const uint32_t pieces = min(PIECES, (a.Dv - c0 + 31) / 32);
  uint32_t seen[R];
  // Rows past the last are copies of it.
#pragma unroll
  for (uint32_t r = 0; r < R; r++) seen[r] = seen_by(a, i0 + min(r, rows - 1));
#pragma unroll
  for (uint32_t r = 0; r < R; r++) {
    mixed.most[r] = minus_infinity();
    mixed.sum[r] = 0;
#pragma unroll
    for (uint32_t i = 0; i < PIECES; i++) mixed.values[r][i] = 0;
  }
  const Columns own = columns_of(a, v);
  const bool together = own.step == 1;
  int64_t columns[PIECES];
  // Columns past the last are copies of it, or of the last four.
#pragma unroll
  for (uint32_t i = 0; i < PIECES; i++) columns[i] = min(c0 + own.first + own.step * i, a.Dv - (together ? 4 - i : 1)) * a.v_column;

  for (uint32_t key0 = KEYS * split; key0 < seen[R - 1]; key0 += KEYS * splits) {
    const uint32_t count = min(KEYS, seen[R - 1] - key0);
    const uint32_t key = key0 + lane;
    float dots[R];
    score<T, R>(a, q, k + key0 * a.k_row, rows, count, scratch, dots);
#pragma unroll
    for (uint32_t r = 0; r < R; r++) {
      float logit = minus_infinity();
      if (key < seen[r]) {
        logit = dots[r] * a.scale;
        if (mask != nullptr) logit += widened(mask[min(r, rows - 1) * a.mask_row + key * a.mask_column]);
      }
      float most = logit;
      for (uint32_t apart = 16; apart > 0; apart /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, apart));
      most = fmaxf(most, mixed.most[r]);
      // NaN is in no maximum, but in the sum it remains.
      const float weight = logit == minus_infinity() ? 0.0f : expf(logit - most);
      float sum = weight;
      for (uint32_t apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
      const float factor = rescaling(mixed.most[r], most);
      mixed.sum[r] = mixed.sum[r] * factor + sum;
      mixed.most[r] = most;
#pragma unroll
      for (uint32_t i = 0; i < PIECES; i++) mixed.values[r][i] *= factor;
      weights[r * KEYS + lane] = weight;
    }
    __syncwarp();
    const T *values = v + key0 * a.v_row;
    const bool all = seen[0] >= key0 + count;
#pragma unroll 4
    for (uint32_t j = 0; j < count; j++) {
      float value[PIECES];
      if (together) {
        load_vector(values + j * a.v_row + columns[0], value);
      } else {
#pragma unroll
        for (uint32_t i = 0; i < PIECES; i++) value[i] = i < pieces ? widened(values[j * a.v_row + columns[i]]) : 0.0f;
      }
#pragma unroll
      for (uint32_t i = 0; i < PIECES; i++) {
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
          if (all || key0 + j < seen[r]) mixed.values[r][i] += weights[r * KEYS + j] * value[i];
        }
      }
    }
    // The next slice's score has barriers before it comes to the weights: D is at least 1.
  }
}

// Adds up what the warps of a team have, which lies in their parts of the scratch.
template <uint32_t R>
__device__ __forceinline__ void join_splits(uint32_t splits, const float *parts, Mixed<R> &mixed) {
  constexpr uint32_t WIDTH = 2 + 32 * PIECES;
  const uint32_t lane = threadIdx.x & 31;
#pragma unroll
  for (uint32_t r = 0; r < R; r++) {
    float most = minus_infinity();
    for (uint32_t s = 0; s < splits; s++) most = fmaxf(most, parts[s * WARP_FLOATS<R> + r * WIDTH]);
    mixed.sum[r] = 0;
#pragma unroll
    for (uint32_t i = 0; i < PIECES; i++) mixed.values[r][i] = 0;
    for (uint32_t s = 0; s < splits; s++) {
      const float *part = parts + s * WARP_FLOATS<R> + r * WIDTH;
      const float factor = rescaling(part[0], most);
      mixed.sum[r] += part[1] * factor;
#pragma unroll
      for (uint32_t i = 0; i < PIECES; i++) mixed.values[r][i] += part[2 + 32 * i + lane] * factor;
    }
  }
}

// Units [first, last): jobs of up to R rows, whose first rows are multiples of R in each head.
template <typename T, uint32_t R>
__device__ __forceinline__ void attend(const Attention<T> &a, uint32_t first, uint32_t last, char *shared) {
  constexpr uint32_t WIDTH = 2 + 32 * PIECES;
  static_assert(R * WIDTH <= WARP_FLOATS<R>, "what is mixed fits where the slices were");
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t room = (GPUOS_SHARED_BYTES - STAGED_BYTES) / 4 / WARP_FLOATS<R>;
  const uint32_t warps = min(blockDim.x / 32, room);
  const uint32_t each = (a.Sq + R - 1) / R;
  const uint32_t begin = first / a.Sq * each + first % a.Sq / R;
  const uint32_t end = (last - 1) / a.Sq * each + (last - 1) % a.Sq / R + 1;
  const uint32_t slices = max(1u, (a.Sk + KEYS - 1) / KEYS);
  const uint32_t splits = min(slices, max(1u, warps / (end - begin)));
  const uint32_t teams = warps / splits;
  const uint32_t split = warp % splits;
  float *parts = reinterpret_cast<float *>(shared + STAGED_BYTES);
  float *scratch = parts + warp * WARP_FLOATS<R>;
  for (uint32_t base = begin; base < end; base += teams) {
    const uint32_t job = base + warp / splits;
    const bool works = warp < teams * splits && job < end;
    const uint32_t lead = job / each;
    // Of the job's rows those that are this tile's.
    const uint64_t start = static_cast<uint64_t>(lead) * a.Sq;
    const uint32_t low = job % each * R;
    const uint32_t i0 = start + low < first ? static_cast<uint32_t>(first - start) : low;
    const uint32_t limit = min(low + R, a.Sq);
    const uint32_t i1 = start + limit > last ? static_cast<uint32_t>(last - start) : limit;
    const uint32_t *dims = a.dims;
    const uint32_t rank = a.rank;
    for (uint32_t c0 = 0; c0 < a.Dv; c0 += 32 * PIECES) {
      Mixed<R> mixed;
      const T *v = a.v + offset_of(lead, rank, dims, dims + 3 * rank);
      if (works) {
        const T *mask = a.mask == nullptr ? nullptr : a.mask + offset_of(lead, rank, dims, dims + 4 * rank) + i0 * a.mask_row;
        mix<T, R>(a, a.q + offset_of(lead, rank, dims, dims + rank) + i0 * a.q_row, a.k + offset_of(lead, rank, dims, dims + 2 * rank),
                  v, mask, i0, i1 - i0, split, splits, c0, scratch, mixed);
      }
      if (splits > 1) {
        if (works) {
#pragma unroll
          for (uint32_t r = 0; r < R; r++) {
            if (lane == 0) {
              scratch[r * WIDTH] = mixed.most[r];
              scratch[r * WIDTH + 1] = mixed.sum[r];
            }
#pragma unroll
            for (uint32_t i = 0; i < PIECES; i++) scratch[r * WIDTH + 2 + 32 * i + lane] = mixed.values[r][i];
          }
        }
        __syncthreads();
        if (works && split == 0) join_splits<R>(splits, scratch, mixed);
      }
      if (works && split == 0) {
        const Columns own = columns_of(a, v);
        T *out = a.out + offset_of(lead, rank, dims, dims + 5 * rank) + i0 * a.out_row;
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
          if (r >= i1 - i0) continue;
#pragma unroll
          for (uint32_t i = 0; i < PIECES; i++) {
            const uint32_t column = c0 + own.first + own.step * i;
            if (column < a.Dv) store(out + r * a.out_row + column, mixed.sum[r] == 0 ? 0.0f : mixed.values[r][i] / mixed.sum[r]);
          }
        }
      }
      if (splits > 1) __syncthreads();
    }
  }
}

// Pointers: q, k, v, mask (0: none), output. Words: units (leading * query rows), Sq, Sk, D, Dv, scale (float32 bits),
// causal (0 or 1), q row, q column, k row, k column, v row, v column, mask row, mask column, output row stride, leading
// rank r, dims[r], then strides[r] of q, k, v, mask, output. A group of query heads that shares one head of k and v is a
// leading dimension in which k and v have stride 0. With causal, query i sees the keys up to i + Sk - Sq. A row that sees
// no key, or only scores of -Infinity, is zeros.
template <typename T>
__device__ __forceinline__ uint32_t attention(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared) {
  const uint32_t *words = words_after(params, 5);
  const uint32_t units = words[0];
  const uint32_t first = unit_bound(units, tile, tiles);
  const uint32_t last = unit_bound(units, tile + 1, tiles);
  if (first >= last) return GPUOS_STATUS_OK;
  const uint32_t Sq = words[1];
  const uint32_t rank = words[16];
  // Others may still be at the tile before.
  __syncthreads();
  const uint32_t *dims = stage(words + 17, 6 * rank, shared);
  // In shared memory, so that it takes neither registers nor stack.
  Attention<T> &a = *reinterpret_cast<Attention<T> *>(shared + STAGED_BYTES / 2);
  if (threadIdx.x == 0) {
    a.q = pointer_at<const T>(params, 0);
    a.k = pointer_at<const T>(params, 1);
    a.v = pointer_at<const T>(params, 2);
    a.mask = pointer_at<const T>(params, 3);
    a.out = pointer_at<T>(params, 4);
    a.Sq = Sq;
    a.Sk = words[2];
    a.D = words[3];
    a.Dv = words[4];
    a.scale = __uint_as_float(words[5]);
    a.causal = words[6] != 0;
    a.q_row = static_cast<int32_t>(words[7]);
    a.q_column = static_cast<int32_t>(words[8]);
    a.k_row = static_cast<int32_t>(words[9]);
    a.k_column = static_cast<int32_t>(words[10]);
    a.v_row = static_cast<int32_t>(words[11]);
    a.v_column = static_cast<int32_t>(words[12]);
    a.mask_row = static_cast<int32_t>(words[13]);
    a.mask_column = static_cast<int32_t>(words[14]);
    a.out_row = static_cast<int32_t>(words[15]);
    a.rank = rank;
    a.dims = dims;
  }
  __syncthreads();
  if (Sq > 1 && last - first > 1) attend<T, 4>(a, first, last, shared);
  else attend<T, 1>(a, first, last, shared);
  return GPUOS_STATUS_OK;
}

}  // namespace operators

GPUOS_OPERATOR(attention, attention<float>)
GPUOS_OPERATOR(attention_float16, attention<operators::Float16>)
GPUOS_OPERATOR(attention_bfloat16, attention<operators::Bfloat16>)
