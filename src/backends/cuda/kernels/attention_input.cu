// Between the q/k/v projection and attention: RMS norm of q and k, rotary embedding of both, and the new keys
// and values written to their slots of the paged cache; in float32, rounded once. A warp takes several heads
// of one kind of one token: some lanes share a head, each with columns that rotate into one another, and what
// they read of the weights and of the rotation serves all heads of the warp.
// Bytes a token: the row of qkv read, as many written (Qwen3-8B, bf16: 12 KiB each way).
// Measured on an H200, bench/cuda/elementwise_bench, Qwen3-0.6B / 8B: 1.5 / 1.5 us for one token, 2.7 / 3.8
// us for 256, 98 / 157 us for 16384 (2.7 / 2.6 TB/s, 60 % of what a copy reaches).
#include <cuda_fp8.h>
#include <math_constants.h>

#include <algorithm>

#include "backends/cuda/kernels/attention_input.cuh"
#include "backends/cuda/kernels/elementwise.h"

namespace quire::cuda {
namespace {

constexpr int kMaxWideHeadDim = 512;  // where heads split into vectors of 8
constexpr int kMaxWarps = 8;

// The heads that one warp takes: `count` of a kind from `first` on.
struct WarpHeads {
  Kind kind;
  int first, count;

  // Groups are numbered through queries, keys, values.
  template <typename T>
  __device__ WarpHeads(const PrepareArgs<T>& args, int group) {
    const int of_keys = group - args.query_groups, of_values = of_keys - args.kv_groups;
    kind = of_keys < 0 ? Kind::kQuery : of_values < 0 ? Kind::kKey : Kind::kValue;
    const int heads = kind == Kind::kQuery ? args.num_heads : args.num_kv_heads;
    first = (kind == Kind::kQuery ? group : kind == Kind::kKey ? of_keys : of_values) * args.heads_per_warp;
    count = min(heads - first, args.heads_per_warp);  // none where group is past the last
  }
};

// A key or a value that some lanes hold as codes (KvCacheLayer). is_there: it is to be written.
template <int kWidth, typename T>
__device__ void store_codes(const PrepareArgs<T>& args, const HeadPiece<kWidth, T> (&head)[kPieces<kWidth>],
                            const float* given, std::uint8_t* to, float* scale_to, bool is_there) {
  float largest = 0;
  int has_nan = 0;
  for_pieces<kWidth>(args, [&](int p, int, int) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float a = widen(head[p].a.values[i]), b = widen(head[p].b.values[i]);
      has_nan |= a != a || b != b;
      largest = fmaxf(largest, fmaxf(fabsf(a), fabsf(b)));
    }
  });
  for (int step = 1 << args.lane_bits >> 1; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, step));
    has_nan |= __shfl_xor_sync(~0U, has_nan, step);
  }
  if (!is_there) return;
  float scale = given != nullptr ? *given : row_scale(largest, args.code);
  if (has_nan != 0) scale = CUDART_NAN_F;
  if ((threadIdx.x & ((1U << args.lane_bits) - 1)) == 0) *scale_to = scale;
  const __nv_fp8_interpretation_t kind = args.code == CacheCode::kE4m3 ? __NV_E4M3 : __NV_E5M2;
  const auto coded = [&](const Vec<T, kWidth>& x) {
    Vec<std::uint8_t, kWidth> codes;
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      codes.values[i] = __nv_cvt_float_to_fp8(__fdiv_rn(widen(x.values[i]), scale), __NV_SATFINITE, kind);
    return codes;
  };
  for_pieces<kWidth>(args, [&](int p, int a, int b) {
    store_vec(to + a, coded(head[p].a));
    if (kWidth > 1 || b < args.head_dim) store_vec(to + b, coded(head[p].b));
  });
}

// kPlain: queries are not scaled, and norms come before the rotation. kCoded: of a cache of codes.
template <int kWidth, bool kPlain, bool kCoded, typename T>
__global__ void __launch_bounds__(kMaxWarps * 32)
    prepare_kernel(const __grid_constant__ PrepareArgs<T> args) {
  admit_next_kernel();
  const int heads_at_once = 32 >> args.lane_bits;
  const int member =
      static_cast<int>(threadIdx.x) % 32 >> args.lane_bits;  // which of those this lane works on
  const std::int64_t token = blockIdx.x;
  const WarpHeads heads(args, static_cast<int>(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32));
  if (heads.count <= 0) return;

  const bool is_value = heads.kind == Kind::kValue;
  // Positions, slots and the table were uploaded before the step's first kernel.
  const int position = args.positions[token];
  const int slot = args.slots[token];
  if (heads.kind != Kind::kQuery && slot < 0) return;
  const HeadTerms<kWidth, T> terms(args, heads.kind, position);
  const bool scaled = !kPlain && heads.kind == Kind::kQuery && args.q_scale != nullptr;
  const float scale = scaled ? args.q_scale[position] : 1;
  T* from = args.qkv[token] + std::int64_t{heads_before(args, heads.kind) + heads.first} * args.head_dim;
  HeadPiece<kWidth, T> next[kPieces<kWidth>];
  const auto load_next = [&](int head) {
    if (head < heads.count) load_head<kWidth>(args, static_cast<const T*>(from + head * args.head_dim), next);
  };
  wait_for_kernels();
  load_next(member);

#pragma unroll 1  // small code: at one token it runs once, and is fetched for that
  for (int first = 0; first < heads.count; first += heads_at_once) {
    HeadPiece<kWidth, T> head[kPieces<kWidth>];
    for_pieces<kWidth>(args, [&](int p, int, int) { head[p] = next[p]; });
    load_next(first + heads_at_once + member);
    if (!is_value || terms.norm != nullptr) transform<kWidth, kPlain>(args, terms, is_value, scale, head);
    const int kv_head = heads.first + first + member;
    const bool is_there = first + member < heads.count;
    if (kCoded && heads.kind != Kind::kQuery) {
      const CacheHalf<T> half = is_value ? args.values : args.keys;
      const auto block = slot / args.block_size, offset = slot % args.block_size;
      store_codes<kWidth>(args, head, half.given == nullptr || !is_there ? nullptr : half.given + kv_head,
                          reinterpret_cast<std::uint8_t*>(half.rows) + block * half.block +
                              offset * half.offset + kv_head * half.head,
                          half.scales + block * args.scale_block + kv_head * args.scale_head + offset,
                          is_there);
      continue;
    }
    if (!is_there) continue;
    store_head<kWidth>(args,
                       heads.kind == Kind::kQuery ? from + (first + member) * args.head_dim
                                                  : cached_at(args, is_value, slot, kv_head),
                       head);
  }
}

template <int kWidth, typename T>
void launch_prepare(const LaunchContext& context, int num_tokens, PrepareArgs<T> args) {
  const auto set_heads_per_warp = [&](int heads) {
    args.heads_per_warp = heads;
    args.query_groups = ceil_div(args.num_heads, heads);
    args.kv_groups = ceil_div(args.num_kv_heads, heads);
    return static_cast<unsigned>(args.query_groups + 2 * args.kv_groups);
  };
  // A warp takes more heads once there are enough warps to fill the card; each is computed the same.
  constexpr int kWarpsPerSm = 64;
  const int at_once = 32 >> args.lane_bits;
  unsigned groups = set_heads_per_warp(at_once);
  if (std::int64_t{num_tokens} * groups > std::int64_t{context.num_sms} * kWarpsPerSm)
    groups = set_heads_per_warp(4 * at_once);
  const unsigned warps = std::min<unsigned>(groups, kMaxWarps);
  const bool plain = args.q_scale == nullptr && !args.norm_after_rotary;
  const auto kernel = args.code == CacheCode::kNone ? plain ? prepare_kernel<kWidth, true, false, T>
                                                            : prepare_kernel<kWidth, false, false, T>
                      : plain ? prepare_kernel<kWidth, true, true, T>
                                                    : prepare_kernel<kWidth, false, true, T>;
  launch(context, "prepare_attention", kernel, dim3(num_tokens, ceil_div(groups, warps)), warps * 32, 0,
         args);
}

}  // namespace

void rotate_and_store(const LaunchContext& context, const AttentionInput& input, const KvCacheLayer& cache,
                      const AttentionBatch& batch) {
  if (batch.num_tokens == 0) return;
  dispatch_float(input.qkv.dtype(), [&]<typename T>() {
    const auto launch_width = [&]<int kWidth>() {
      launch_prepare<kWidth>(context, batch.num_tokens, prepare_args<kWidth, T>(input, cache, batch));
    };
    if (input.head_dim <= kMaxHeadDim) {
      return heads_split_into(input, cache, 4) ? launch_width.template operator()<4>()
                                               : launch_width.template operator()<1>();
    }
    require(heads_split_into(input, cache, 8) && input.head_dim <= kMaxWideHeadDim,
            "heads of more than 256 dimensions");
    launch_width.template operator()<8>();
  });
}

}  // namespace quire::cuda
