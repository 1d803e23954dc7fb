// Between the q/k/v projection and attention: RMS norm of q and k, rotary embedding of both, and the new keys
// and values written to their slots of the paged cache; in float32, rounded once. A warp takes several heads
// of one kind of one token: some lanes share a head, 16 bytes each, and what they read of the weights and of
// the rotation serves all heads of the warp.
// Bytes a token: the row of qkv read, as many written (Qwen3-8B, bf16: 12 KiB each way).
#include <algorithm>

#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/vec.cuh"
#include "ops/backend.h"

namespace quire::cuda {
namespace {

constexpr int kMaxHeadDim = 256;
constexpr int kMaxWarps = 8;
constexpr int kWide = 8;  // elements of a vector

template <typename T>
struct PrepareArgs {
  T* qkv;
  const float* q_norm;   // null: no norm
  const float* k_norm;   // null: no norm
  const float* cos_sin;  // null: no rotary, and rotary_half is 0
  T* keys;
  T* values;
  const int* positions;
  const int* slots;
  std::int64_t qkv_stride, cos_sin_stride;
  std::int64_t key_block, key_head, key_offset;  // strides
  std::int64_t value_block, value_head, value_offset;
  int num_heads, num_kv_heads, head_dim, rotary_half, block_size;
  int lanes;           // that share a head: a power of two
  int heads_per_warp;  // a multiple of 32 / lanes
  float norm_eps;
};

enum class Kind { kQuery, kKey, kValue };

// The heads that one warp takes: up to `count` of them from `first`, and where they lie in qkv.
struct WarpHeads {
  Kind kind;
  int first, count;
  int column;  // of the kind's first head in qkv, in heads

  // Groups of `size` heads are numbered through queries, keys, values; no group mixes them.
  __device__ WarpHeads(int group, int size, int num_heads, int num_kv_heads) {
    const int query_groups = (num_heads + size - 1) / size;
    const int kv_groups = (num_kv_heads + size - 1) / size;
    kind = group < query_groups ? Kind::kQuery : group < query_groups + kv_groups ? Kind::kKey : Kind::kValue;
    const int before = kind == Kind::kQuery ? 0
                       : kind == Kind::kKey ? query_groups
                                            : query_groups + kv_groups;
    first = (group - before) * size;
    count = (kind == Kind::kQuery ? num_heads : num_kv_heads) - first;  // none where group is past the last
    column = kind == Kind::kQuery ? 0 : kind == Kind::kKey ? num_heads : num_heads + num_kv_heads;
  }
};

template <int kWidth>
constexpr int kPieces = kMaxHeadDim / (32 * kWidth);  // vectors of a head that a lane takes
template <int kWidth>
using Pieces = Vec<float, kWidth>[kPieces<kWidth>];

// Calls f(piece, column) for the lane's columns of a head.
template <int kWidth, typename T, typename F>
__device__ void for_pieces(const PrepareArgs<T>& args, F&& f) {
  const int lane = static_cast<int>(threadIdx.x) % args.lanes;
#pragma unroll
  for (int p = 0; p < kPieces<kWidth>; ++p) {
    const int column = (p * args.lanes + lane) * kWidth;
    if (column < args.head_dim) f(p, column);
  }
}

// Divides the head that some lanes hold by its root mean square.
template <int kWidth, typename T>
__device__ void norm_head(const PrepareArgs<T>& args, const Pieces<kWidth>& weight, Pieces<kWidth>& head) {
  float squares = 0;
  for_pieces<kWidth>(args, [&](int p, int) {
    for (const float value : head[p].values) squares += value * value;
  });
  for (int step = args.lanes / 2; step > 0; step /= 2) squares += __shfl_xor_sync(~0U, squares, step);
  const float inverse = rsqrtf(squares / static_cast<float>(args.head_dim) + args.norm_eps);
  for_pieces<kWidth>(args, [&](int p, int) {
    for (int i = 0; i < kWidth; ++i) head[p].values[i] = head[p].values[i] * inverse * weight[p].values[i];
  });
}

// Rotates the head that some lanes hold; `shared` is theirs, for the halves to meet.
template <int kWidth, typename T>
__device__ void rotate_head(const PrepareArgs<T>& args, const Pieces<kWidth>& cosine,
                            const Pieces<kWidth>& sine, float* shared, Pieces<kWidth>& head) {
  const int half = args.rotary_half;
  __syncwarp();
  for_pieces<kWidth>(args, [&](int p, int column) { store_vec(shared + column, head[p]); });
  __syncwarp();
  for_pieces<kWidth>(args, [&](int p, int column) {
    if (column >= 2 * half) return;
    const auto partner = load_vec<kWidth>(shared + (column < half ? column + half : column - half));
    const float sign = column < half ? -1.0F : 1.0F;
    for (int i = 0; i < kWidth; ++i) {
      head[p].values[i] =
          head[p].values[i] * cosine[p].values[i] + sign * partner.values[i] * sine[p].values[i];
    }
  });
}

template <int kWidth, typename T>
__global__ void __launch_bounds__(kMaxWarps * 32, kWidth > 1 ? 3 : 2)
    prepare_kernel(const __grid_constant__ PrepareArgs<T> args) {
  __shared__ alignas(32) float shared[kMaxWarps][kMaxHeadDim];
  cudaTriggerProgrammaticLaunchCompletion();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int heads_at_once = 32 / args.lanes;
  const int member = static_cast<int>(threadIdx.x) % 32 / args.lanes;  // which of those this lane works on
  const std::int64_t token = blockIdx.x;
  const WarpHeads heads(static_cast<int>(blockIdx.y * blockDim.x / 32) + warp, args.heads_per_warp,
                        args.num_heads, args.num_kv_heads);
  if (heads.count <= 0) return;

  const float* norm = heads.kind == Kind::kQuery ? args.q_norm : args.k_norm;
  Pieces<kWidth> weight;
  if (norm != nullptr) {  // weights were there before any kernel
    for_pieces<kWidth>(args, [&](int p, int column) { weight[p] = load_vec<kWidth>(norm + column); });
  }
  // Positions, slots and the table were uploaded before the step's first kernel.
  const int position = args.positions[token];
  const int slot = args.slots[token];
  if (heads.kind != Kind::kQuery && slot < 0) return;
  const std::int64_t block = slot / args.block_size;
  const std::int64_t offset = slot % args.block_size;
  T* from = args.qkv + token * args.qkv_stride + std::int64_t{heads.column + heads.first} * args.head_dim;
  T* to = from;
  std::int64_t to_stride = args.head_dim;
  if (heads.kind == Kind::kKey) {
    to = args.keys + block * args.key_block + offset * args.key_offset + heads.first * args.key_head;
    to_stride = args.key_head;
  } else if (heads.kind == Kind::kValue) {
    to = args.values + block * args.value_block + offset * args.value_offset + heads.first * args.value_head;
    to_stride = args.value_head;
  }

  Pieces<kWidth> cosine, sine;
  if (heads.kind != Kind::kValue) {
    for_pieces<kWidth>(args, [&](int p, int column) {
      if (column >= 2 * args.rotary_half) return;
      const int pair = column < args.rotary_half ? column : column - args.rotary_half;
      const float* cosines = args.cos_sin + position * args.cos_sin_stride + pair;
      cosine[p] = load_vec<kWidth>(cosines);
      sine[p] = load_vec<kWidth>(cosines + args.rotary_half);
    });
  }
  cudaGridDependencySynchronize();

  Vec<T, kWidth> next[kPieces<kWidth>];
  const auto load_next = [&](int head) {
    if (head >= heads.count) return;
    for_pieces<kWidth>(
        args, [&](int p, int column) { next[p] = load_vec<kWidth>(from + head * args.head_dim + column); });
  };
  load_next(member);
#pragma unroll 1  // small code: at one token it runs once, and is fetched for that
  for (int first = 0; first < min(heads.count, args.heads_per_warp); first += heads_at_once) {
    Vec<T, kWidth> result[kPieces<kWidth>];
    for_pieces<kWidth>(args, [&](int p, int) { result[p] = next[p]; });
    if (first + heads_at_once < args.heads_per_warp) load_next(first + heads_at_once + member);
    if (heads.kind != Kind::kValue) {
      Pieces<kWidth> values;
      for_pieces<kWidth>(args, [&](int p, int) {
        for (int i = 0; i < kWidth; ++i) values[p].values[i] = widen(result[p].values[i]);
      });
      if (norm != nullptr) norm_head<kWidth>(args, weight, values);
      if (args.rotary_half > 0)
        rotate_head<kWidth>(args, cosine, sine, shared[warp] + member * args.lanes * kWidth, values);
      for_pieces<kWidth>(args, [&](int p, int) {
        for (int i = 0; i < kWidth; ++i) result[p].values[i] = narrow<T>(values[p].values[i]);
      });
    }
    if (first + member >= heads.count) continue;
    for_pieces<kWidth>(
        args, [&](int p, int column) { store_vec(to + (first + member) * to_stride + column, result[p]); });
  }
}

template <int kWidth, typename T>
void launch_prepare(const LaunchContext& context, int num_tokens, PrepareArgs<T> args) {
  args.lanes = 32;
  while (kPieces<kWidth> == 1 && args.lanes > 1 && args.lanes / 2 * kWidth >= args.head_dim) args.lanes /= 2;
  const auto groups_of = [&](int heads_per_warp) {
    return ceil_div(args.num_heads, heads_per_warp) + 2 * ceil_div(args.num_kv_heads, heads_per_warp);
  };
  // A warp takes more heads once there are enough warps to fill the card; each is computed the same.
  constexpr int kWarpsPerSm = 64;
  args.heads_per_warp = 32 / args.lanes;
  const std::int64_t all = std::int64_t{num_tokens} * groups_of(args.heads_per_warp);
  if (all > std::int64_t{context.num_sms} * kWarpsPerSm) args.heads_per_warp *= 4;
  const unsigned groups = groups_of(args.heads_per_warp);
  const unsigned warps = std::min<unsigned>(groups, kMaxWarps);
  launch(context, "prepare_attention", prepare_kernel<kWidth, T>,
         dim3(static_cast<unsigned>(num_tokens), ceil_div(groups, warps)), dim3(warps * 32), 0, args);
}

}  // namespace

void prepare_attention(const LaunchContext& context, const AttentionInput& input, const KvCacheLayer& cache,
                       const AttentionBatch& batch) {
  if (batch.num_tokens == 0) return;
  if (input.head_dim > kMaxHeadDim) check(cudaErrorInvalidValue, "heads of more than 256 dimensions");
  const Tensor& table = input.cos_sin;
  const int half = table.defined() ? static_cast<int>(table.dim(1) / 2) : 0;
  dispatch_float(input.qkv.dtype(), [&]<typename T>() {
    const PrepareArgs<T> args{.qkv = input.qkv.data_as<T>(),
                              .q_norm = input.q_norm.data_as<const float>(),
                              .k_norm = input.k_norm.data_as<const float>(),
                              .cos_sin = table.data_as<const float>(),
                              .keys = cache.keys.data_as<T>(),
                              .values = cache.values.data_as<T>(),
                              .positions = batch.positions.data_as<const int>(),
                              .slots = batch.slot_mapping.data_as<const int>(),
                              .qkv_stride = input.qkv.stride(0),
                              .cos_sin_stride = table.defined() ? table.stride(0) : 0,
                              .key_block = cache.keys.stride(0),
                              .key_head = cache.keys.stride(1),
                              .key_offset = cache.keys.stride(2),
                              .value_block = cache.values.stride(0),
                              .value_head = cache.values.stride(1),
                              .value_offset = cache.values.stride(2),
                              .num_heads = input.num_heads,
                              .num_kv_heads = input.num_kv_heads,
                              .head_dim = input.head_dim,
                              .rotary_half = half,
                              .block_size = static_cast<int>(cache.keys.dim(2)),
                              .lanes = 32,
                              .heads_per_warp = 1,
                              .norm_eps = input.norm_eps};
    // Vectors must not straddle two heads, nor the middle of a rotation.
    const Tensor head = input.qkv.columns(0, input.head_dim);
    const Tensor cosines = half > 0 ? table.columns(0, half) : Tensor();
    dispatch_width<kWide>({head, cosines, input.q_norm, input.k_norm, cache.keys, cache.values},
                          [&]<int kWidth>() { launch_prepare<kWidth>(context, batch.num_tokens, args); });
  });
}

}  // namespace quire::cuda
