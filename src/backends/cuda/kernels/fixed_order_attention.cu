// out[token, head] = softmax(scores of q · kᵀ) · v over the paged cache, causal and within the window, in an
// order that the token's position alone decides: the keys in chunks of 32, chunk c summed by warp c % 8 after
// its earlier chunks, the warps' sums merged from first to last. So a token's result is bitwise the same in
// any batch and chunking.
//
// Layout: keys and values of one (block, head) contiguous; q and out rows strided.
//
// Moves: keys and values up to its position for every token, once for its query heads of a KV head (up to
// four at a time): a decode step's least, while a prefill reads them from L2 for every token. Flops: 4 *
// head_dim a (token, head, key), on the plain cores. On an H200, with 16 query and 8 KV heads of 128 and
// bf16: one token of 256 sequences after 1k in 462 us, 2.3 TB/s or 53 % of what reading alone reaches; 16 x
// 1k tokens of prefill in 8.6 ms, 8 TFLOP/s.
#include <algorithm>

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/cache_codes.cuh"
#include "backends/cuda/kernels/vec.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kChunk = 32;  // keys: one a lane where scores are turned into weights

struct Params {
  void* out;
  const void* q;
  const void* keys;
  const void* values;
  SequenceArgs sequences;
  ScoreArgs scores;
  const float* slopes;      // of ALiBi, or null
  const float* key_scales;  // of codes, or null
  const float* value_scales;
  std::int64_t out_stride, q_stride, block_stride, head_stride;
  std::int64_t scale_block_stride, scale_head_stride;
  int num_kv_heads, group, head_dim, block_size;
};

// Whole vectors of heads lie where they can be loaded as such.
__device__ bool has_vectors(const Params& p) { return p.head_dim % 8 == 0; }

template <typename T>
__device__ float value_of(const T* from) {
  return widen(*from);
}
template <CacheCode kCode>
__device__ float value_of(const Code<kCode>* from) {
  std::uint32_t first, rest;
  widen_codes<kCode>(from->bits, first, rest);
  return __low2float(reinterpret_cast<const __half2&>(first));
}

// The kVector dimensions that a lane loads and sums.
template <int kVector, typename T>
__device__ void load(float (&to)[kVector], const T* from) {
  constexpr int kWidth = 16 / sizeof(T);
#pragma unroll
  for (int first = 0; first < kVector; first += kWidth) {
    const auto part = load_wide<kWidth>(from + first);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[first + i] = part.values[i];
  }
}

template <int kVector, CacheCode kCode>
__device__ void load(float (&to)[kVector], const Code<kCode>* from) {
#pragma unroll
  for (int first = 0; first < kVector; first += 8) {
    const uint2 codes = *reinterpret_cast<const uint2*>(from + first);
    std::uint32_t pairs[4];
    widen_codes<kCode>(codes.x, pairs[0], pairs[1]);
    widen_codes<kCode>(codes.y, pairs[2], pairs[3]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 values = __half22float2(reinterpret_cast<const __half2&>(pairs[i]));
      to[first + 2 * i] = values.x;
      to[first + 2 * i + 1] = values.y;
    }
  }
}

// The same where only `dims` of them may be there; vectors: all or none are.
template <int kVector, typename T>
__device__ void load(float (&to)[kVector], const T* from, int dims, bool vectors) {
  if (vectors) {
    if (dims > 0) load(to, from);
    return;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    if (i < dims) to[i] = value_of(from + i);
}

// What one warp has summed for kHeads query heads of one KV head. T: elements of the cache. kLanes lanes
// share a key, each with kVector dimensions; 32 / kLanes keys go side by side. All arithmetic is spelled out,
// so that the compiler may not contract it in one way here and in another there.
template <typename T, int kLanes, int kHeads, int kVector>
struct Sums {
  float top[kHeads];
  float total[kHeads] = {};
  float out[kHeads][kVector] = {};

  __device__ Sums() {
#pragma unroll
    for (float& highest : top) highest = -INFINITY;
  }

  // Scores of a chunk: lane j gets those of key j. `row`: offset of this lane's key, negative where there is
  // none. Key sub * kLanes + step is the one that lanes [sub * kLanes, (sub + 1) * kLanes) share in a step.
  __device__ void score(const T* keys, std::int64_t row, const float (&q)[kHeads][kVector], int lane,
                        int dims, bool vectors, float (&scores)[kHeads]) const {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) scores[h] = -INFINITY;
#pragma unroll 4
    for (int step = 0; step < kLanes; ++step) {
      const std::int64_t from = __shfl_sync(~0U, row, lane / kLanes * kLanes + step);
      float k[kVector] = {};
      if (from >= 0) load(k, keys + from, dims, vectors);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kVector; ++i) sum = __fmaf_rn(q[h][i], k[i], sum);
        sum = sum_of_lanes<kLanes / 2, 1>(sum);
        if (step == lane % kLanes && from >= 0) scores[h] = sum;
      }
    }
  }

  // Scores (times scale, plus each head's slope times distance) to weights, relative to the highest score so
  // far.
  __device__ void weigh(float (&scores)[kHeads], float scale, const float (&slopes)[kHeads], float distance) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      scores[h] = __fmaf_rn(scores[h], scale, __fmul_rn(slopes[h], distance));
      const float highest = fmaxf(max_of_lanes<16, 1>(scores[h]), top[h]);
      const float shrink = exp2f(__fsub_rn(top[h], highest));
      top[h] = highest;
      scores[h] = exp2f(__fsub_rn(scores[h], highest));
      total[h] = __fmaf_rn(total[h], shrink, sum_of_lanes<16, 1>(scores[h]));
#pragma unroll
      for (int i = 0; i < kVector; ++i) out[h][i] = __fmul_rn(out[h][i], shrink);
    }
  }

  __device__ void add_values(const T* values, std::int64_t row, const float (&weights)[kHeads], int lane,
                             int dims, bool vectors) {
#pragma unroll 4
    for (int step = 0; step < kLanes; ++step) {
      const int key = lane / kLanes * kLanes + step;
      const std::int64_t from = __shfl_sync(~0U, row, key);
      float v[kVector] = {};
      if (from >= 0) load(v, values + from, dims, vectors);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float weight = __shfl_sync(~0U, weights[h], key);
#pragma unroll
        for (int i = 0; i < kVector; ++i) out[h][i] = __fmaf_rn(weight, v[i], out[h][i]);
      }
    }
  }

  // Adds up what the 32 / kLanes groups of lanes hold for the same dimensions.
  __device__ void join_lanes() {
    if constexpr (kLanes < 32) {
#pragma unroll
      for (auto& of_head : out) {
#pragma unroll
        for (float& sum : of_head) sum = sum_of_lanes<kLanes, 16>(sum);
      }
    }
  }
};

template <int kHeads, int kVector>
struct Shared {
  int sequence;
  float top[kWarps][kHeads];
  float total[kWarps][kHeads];
  float out[kWarps][kHeads][32 * kVector];
};

// The sequence that owns query row `token`, or -1: the block's threads look at one each.
__device__ int find_sequence(const Params& p, int token, int* found) {
  if (threadIdx.x == 0) *found = -1;
  __syncthreads();
  for (int i = threadIdx.x; i < p.sequences.num_sequences; i += blockDim.x)
    if (p.sequences.query_starts[i] <= token && token < p.sequences.query_starts[i + 1]) *found = i;
  __syncthreads();
  return *found;
}

// A warp leaves its sums for merge_warps. `writes`: this lane has dimensions to leave, from `dim` on.
template <typename T, int kLanes, int kHeads, int kVector>
__device__ void share_sums(const Sums<T, kLanes, kHeads, kVector>& sums, Shared<kHeads, kVector>& shared,
                           int dim, bool writes) {
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    shared.top[warp][h] = sums.top[h];
    shared.total[warp][h] = sums.total[h];
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      if (writes) shared.out[warp][h][dim + i] = sums.out[h][i];
  }
}

// Merges the warps' sums in their order; thread i writes dimension i of each head.
template <typename T, int kHeads, int kVector>
__device__ void merge_warps(const Params& p, const Shared<kHeads, kVector>& shared, T* out, int heads) {
  for (int h = 0; h < heads; ++h) {
    float top = -INFINITY;
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, shared.top[w][h]);
    for (int i = threadIdx.x; i < p.head_dim; i += blockDim.x) {
      float total = 0;
      float sum = 0;
      for (int w = 0; w < kWarps; ++w) {
        if (shared.total[w][h] == 0) continue;  // a warp without keys
        const float weight = exp2f(__fsub_rn(shared.top[w][h], top));
        total = __fmaf_rn(weight, shared.total[w][h], total);
        sum = __fmaf_rn(weight, shared.out[w][h][i], sum);
      }
      out[h * p.head_dim + i] = narrow<T>(__fdiv_rn(sum, total));
    }
  }
}

// One block a (token, KV head, up to kHeads of its query heads). E: elements of the cache, T or codes.
template <typename T, typename E, int kLanes, int kHeads, int kVector>
__global__ __launch_bounds__(kWarps * 32) void fixed_order_kernel(const Params p) {
  __shared__ Shared<kHeads, kVector> shared;
  admit_next_kernel();
  wait_for_kernels();
  const int token = blockIdx.x;
  const int sequence = find_sequence(p, token, &shared.sequence);
  if (sequence < 0) return;
  const int position = p.sequences.seq_lens[sequence] - (p.sequences.query_starts[sequence + 1] - token);
  if (position < 0) return;

  const int kv_head = blockIdx.y % p.num_kv_heads;
  const int first = blockIdx.y / p.num_kv_heads * kHeads;  // of the group
  const int heads = min(kHeads, p.group - first);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int dim = lane % kLanes * kVector;
  const int dims = max(0, min(kVector, p.head_dim - dim));
  const bool vectors = has_vectors(p);
  const int head = kv_head * p.group + first;
  const std::int64_t column = std::int64_t{head} * p.head_dim;
  const T* q_row = static_cast<const T*>(p.q) + token * p.q_stride + column;
  float q[kHeads][kVector] = {};
  float slopes[kHeads] = {};  // of scores in base 2
  Sums<E, kLanes, kHeads, kVector> sums;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h < heads) load(q[h], q_row + h * p.head_dim + dim, dims, vectors);
    if (h < heads && p.slopes != nullptr) slopes[h] = __fmul_rn(p.slopes[head + h], kLog2E);
    if (h < heads && p.scores.sinks != nullptr && warp == 0) {  // as a key without a value before all others
      sums.top[h] = __fmul_rn(p.scores.sinks[head + h], kLog2E);
      sums.total[h] = 1;
    }
  }

  const int* table = p.sequences.block_tables + p.sequences.table_rows[sequence] * p.sequences.table_stride;
  const std::int64_t base = kv_head * p.head_stride + dim;
  const E* keys = static_cast<const E*>(p.keys) + base;
  const E* values = static_cast<const E*>(p.values) + base;
  const int first_key = max(position - p.scores.window + 1, 0);
  const int first_chunk = first_key / kChunk;
  const int own_chunk = first_chunk + ((warp - first_chunk) & (kWarps - 1));
  for (int chunk = own_chunk * kChunk; chunk <= position; chunk += kWarps * kChunk) {
    const int key = chunk + lane;
    std::int64_t row = -1;
    float key_scale = 1, value_scale = 1;  // of the lane's key
    if (key >= first_key && key <= position) {
      const std::int64_t block = table[key / p.block_size];
      const int offset = key % p.block_size;
      row = block * p.block_stride + static_cast<std::int64_t>(offset) * p.head_dim;
      if constexpr (kIsCode<E>) {
        const std::int64_t place = block * p.scale_block_stride + kv_head * p.scale_head_stride + offset;
        key_scale = p.key_scales[place];
        value_scale = p.value_scales[place];
      }
    }
    float scores[kHeads];
    sums.score(keys, row, q, lane, dims, vectors, scores);
    if constexpr (kIsCode<E>) {
#pragma unroll
      for (float& score : scores) score = __fmul_rn(score, key_scale);
    }
    if (p.scores.inner != 0 && row >= 0) {
#pragma unroll
      for (float& score : scores) score = tanhf(__fmul_rn(score, p.scores.inner));
    }
    sums.weigh(scores, p.scores.outer, slopes, static_cast<float>(key - position));
    if constexpr (kIsCode<E>) {
#pragma unroll
      for (float& weight : scores) weight = __fmul_rn(weight, value_scale);
    }
    sums.add_values(values, row, scores, lane, dims, vectors);
  }

  sums.join_lanes();
  share_sums(sums, shared, dim, lane < kLanes && dims > 0);
  __syncthreads();
  merge_warps(p, shared, static_cast<T*>(p.out) + token * p.out_stride + column, heads);
}

template <typename T, typename E, int kLanes, int kVector = 8>
void launch_group(const LaunchContext& context, const Params& p, int tokens) {
  constexpr int kMostHeads = 32 / kVector;  // as many as shared memory holds the sums of
  dispatch_up_to<1, 2, kMostHeads>(std::min(p.group, kMostHeads), [&]<int kHeads>() {
    const dim3 grid(tokens, p.num_kv_heads * ceil_div(p.group, kHeads));
    launch(context, "fixed_order_attention", fixed_order_kernel<T, E, kLanes, kHeads, kVector>, grid,
           kWarps * 32, 0, p);
  });
}

template <typename T, typename E>
void launch_elements(const LaunchContext& context, const Params& p, int tokens) {
  const bool done = dispatch_up_to<8, 16, 32>(
      ceil_div(p.head_dim, 8), [&]<int kLanes>() { launch_group<T, E, kLanes>(context, p, tokens); });
  if (done) return;
  require(p.head_dim <= 512 && p.head_dim % 16 == 0, "fixed_order_attention: head size");
  launch_group<T, E, 32, 16>(context, p, tokens);
}

}  // namespace

void fixed_order_attention(const LaunchContext& context, const AttentionCall& call,
                           const AttentionBatch& batch, const AttentionShape& shape) {
  if (batch.num_tokens == 0) return;
  const Tensor& keys = call.cache.keys;
  Params p{.sequences = SequenceArgs(batch), .scores = ScoreArgs(call.scores)};
  p.out = call.out.data();
  p.q = call.q.data();
  p.keys = keys.data();
  p.values = call.cache.values.data();
  p.slopes = call.scores.alibi_slopes.data_as<const float>();
  p.out_stride = call.out.stride(0);
  p.q_stride = call.q.stride(0);
  p.block_stride = keys.stride(0);
  p.head_stride = keys.stride(1);
  p.key_scales = call.cache.key_scales.data_as<const float>();
  p.value_scales = call.cache.value_scales.data_as<const float>();
  p.scale_block_stride = call.cache.key_scales.stride(0);
  p.scale_head_stride = call.cache.key_scales.stride(1);
  p.num_kv_heads = shape.num_kv_heads;
  p.group = shape.num_heads / shape.num_kv_heads;
  p.head_dim = shape.head_dim;
  p.block_size = shape.block_size;
  dispatch_float(call.q.dtype(), [&]<typename T>() {
    dispatch_elements<T>(call.cache.code,
                         [&]<typename E>() { launch_elements<T, E>(context, p, batch.num_tokens); });
  });
}

}  // namespace quire::cuda
