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

#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/vec.cuh"
#include "ops/ops.h"

namespace quire::cuda {
namespace {

constexpr int kMaxHeadDim = 256;
constexpr int kMaxWideHeadDim = 512;  // where heads split into vectors of 8
constexpr int kMaxWarps = 8;

template <typename T>
struct PrepareArgs {
  T* qkv;
  const float* q_norm;   // null: no norm
  const float* k_norm;   // null: no norm
  const float* v_norm;   // null: no norm
  const float* cos_sin;  // null: no rotary, and rotary_half is 0
  const float* q_scale;  // by position; null: 1
  T* keys;
  T* values;
  const int* positions;
  const int* slots;
  std::int64_t qkv_stride, cos_sin_stride;
  std::int64_t key_block, key_head, key_offset;  // strides
  std::int64_t value_block, value_head, value_offset;
  CacheCode code;     // of a cache of codes: keys and values are bytes then
  float* key_scales;  // of codes
  float* value_scales;
  const float* k_given;  // null: each row has its own
  const float* v_given;
  std::int64_t scale_block, scale_head;
  int num_heads, num_kv_heads, head_dim, rotary_half, block_size;
  int lane_bits;                // 2^lane_bits lanes share a head
  int heads_per_warp;           // a multiple of the heads that a warp does at once
  int query_groups, kv_groups;  // of so many heads, and a rest
  float norm_eps;
  bool norm_after_rotary;
};

enum class Kind { kQuery, kKey, kValue };

// The heads that one warp takes: up to `count` of them from `first`, and where they lie in qkv.
struct WarpHeads {
  Kind kind;
  int first, count;
  int column;  // of the kind's first head in qkv, in heads

  // Groups are numbered through queries, keys, values.
  template <typename T>
  __device__ WarpHeads(const PrepareArgs<T>& args, int group) {
    kind = Kind::kQuery;
    int heads = args.num_heads;
    column = 0;
    if (group >= args.query_groups) {
      group -= args.query_groups;
      kind = group < args.kv_groups ? Kind::kKey : Kind::kValue;
      group -= kind == Kind::kKey ? 0 : args.kv_groups;
      column = args.num_heads + (kind == Kind::kKey ? 0 : args.num_kv_heads);
      heads = args.num_kv_heads;
    }
    first = group * args.heads_per_warp;
    count = min(heads - first, args.heads_per_warp);  // none where group is past the last
  }
};

// A lane's columns of a head: kWidth that are first in their rotation, and their kWidth partners; past the
// rotation, neighbours. kPieces of such for heads of up to kMaxHeadDim columns, or with 8 kMaxWideHeadDim.
template <int kWidth>
constexpr int kPieces = std::max(1, kMaxHeadDim / (2 * 32 * kWidth));
template <int kWidth, typename T>
struct Piece {
  Vec<T, kWidth> a, b;
};

// Calls f(piece, column of a, column of b) for the lane's columns of a head.
template <int kWidth, typename T, typename F>
__device__ void for_pieces(const PrepareArgs<T>& args, F&& f) {
  const int lane = static_cast<int>(threadIdx.x) & ((1 << args.lane_bits) - 1);
#pragma unroll
  for (int p = 0; p < kPieces<kWidth>; ++p) {
    const int first = ((p << args.lane_bits) + lane) * kWidth;
    const bool rotates = first < args.rotary_half;
    const int a = rotates ? first : 2 * first;
    const int b = rotates ? first + args.rotary_half : 2 * first + kWidth;
    if (a < args.head_dim) f(p, a, b);
  }
}

// b is past the head where that has an odd number of columns.
template <int kWidth, typename T, typename U>
__device__ void load_piece(const PrepareArgs<T>& args, Piece<kWidth, U>& piece, const U* head, int a, int b) {
  piece.a = load_vec<kWidth>(head + a);
  piece.b = kWidth > 1 || b < args.head_dim ? load_vec<kWidth>(head + b) : Vec<U, kWidth>{};
}

// Norm and rotation of the head that some lanes hold, times scale. Unless kPlain: or the norm behind the
// rotation.
template <int kWidth, bool kPlain, typename T>
__device__ void transform(const PrepareArgs<T>& args, bool norm, float scale,
                          const Piece<kWidth, float> (&weight)[kPieces<kWidth>], int rotary_half,
                          const Piece<kWidth, float> (&cos_sin)[kPieces<kWidth>],
                          Piece<kWidth, T> (&head)[kPieces<kWidth>]) {
  const auto rotate = [&](int p, int i, int column, float& a, float& b) {
    if (column >= rotary_half) return;
    const float cosine = cos_sin[p].a.values[i];
    const float sine = cos_sin[p].b.values[i];
    const float rotated = a * cosine - b * sine;
    b = b * cosine + a * sine;
    a = rotated;
  };
  const bool rotate_first = !kPlain && args.norm_after_rotary;
  float inverse = 1;
  if (norm) {
    float squares = 0;
    for_pieces<kWidth>(args, [&](int p, int column, int) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        float a = widen(head[p].a.values[i]);
        float b = widen(head[p].b.values[i]);
        if (rotate_first) rotate(p, i, column, a, b);
        squares += a * a + b * b;
      }
    });
    for (int step = 1 << args.lane_bits >> 1; step > 0; step /= 2)
      squares += __shfl_xor_sync(~0U, squares, step);
    inverse = rsqrtf(squares / static_cast<float>(args.head_dim) + args.norm_eps);
  }
  for_pieces<kWidth>(args, [&](int p, int column, int) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      float a = widen(head[p].a.values[i]);
      float b = widen(head[p].b.values[i]);
      if (rotate_first) rotate(p, i, column, a, b);
      if (norm) {
        a = a * inverse * weight[p].a.values[i];
        b = b * inverse * weight[p].b.values[i];
      }
      if (!rotate_first) rotate(p, i, column, a, b);
      head[p].a.values[i] = narrow<T>(kPlain ? a : scale * a);
      head[p].b.values[i] = narrow<T>(kPlain ? b : scale * b);
    }
  });
}

// A key or a value that some lanes hold as codes (KvCacheLayer). is_there: it is to be written.
template <int kWidth, typename T>
__device__ void store_codes(const PrepareArgs<T>& args, const Piece<kWidth, T> (&head)[kPieces<kWidth>],
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
  const float* norm = is_value ? args.v_norm : heads.kind == Kind::kQuery ? args.q_norm : args.k_norm;
  Piece<kWidth, float> weight[kPieces<kWidth>];
  if (norm != nullptr) {  // weights were there before any kernel
    for_pieces<kWidth>(args, [&](int p, int a, int b) { load_piece<kWidth>(args, weight[p], norm, a, b); });
  }
  // Positions, slots and the table were uploaded before the step's first kernel.
  const int position = args.positions[token];
  const int slot = args.slots[token];
  const bool scaled = !kPlain && heads.kind == Kind::kQuery && args.q_scale != nullptr;
  const float scale = scaled ? args.q_scale[position] : 1;
  T* from = args.qkv + token * args.qkv_stride + std::int64_t{heads.column + heads.first} * args.head_dim;
  Piece<kWidth, T> next[kPieces<kWidth>];
  const auto load_next = [&](int head) {
    if (head >= heads.count) return;
    for_pieces<kWidth>(args, [&](int p, int a, int b) {
      load_piece<kWidth>(args, next[p], static_cast<const T*>(from + head * args.head_dim), a, b);
    });
  };
  if (heads.kind != Kind::kQuery && slot < 0) return;
  Piece<kWidth, float> cos_sin[kPieces<kWidth>];
  if (heads.kind != Kind::kValue) {
    const float* cosines = args.cos_sin + position * args.cos_sin_stride;
    for_pieces<kWidth>(args, [&](int p, int column, int) {
      if (column >= args.rotary_half) return;
      cos_sin[p].a = load_vec<kWidth>(cosines + column);
      cos_sin[p].b = load_vec<kWidth>(cosines + args.rotary_half + column);
    });
  }
  wait_for_kernels();
  load_next(member);
  const unsigned block = static_cast<unsigned>(slot) / static_cast<unsigned>(args.block_size);
  const unsigned offset = static_cast<unsigned>(slot) % static_cast<unsigned>(args.block_size);
  T* to = from;
  std::int64_t to_stride = args.head_dim;
  if (heads.kind == Kind::kKey) {
    to = args.keys + block * args.key_block + offset * args.key_offset + heads.first * args.key_head;
    to_stride = args.key_head;
  } else if (heads.kind == Kind::kValue) {
    to = args.values + block * args.value_block + offset * args.value_offset + heads.first * args.value_head;
    to_stride = args.value_head;
  }

#pragma unroll 1  // small code: at one token it runs once, and is fetched for that
  for (int first = 0; first < heads.count; first += heads_at_once) {
    Piece<kWidth, T> head[kPieces<kWidth>];
    for_pieces<kWidth>(args, [&](int p, int, int) { head[p] = next[p]; });
    load_next(first + heads_at_once + member);
    if (!is_value || norm != nullptr)
      transform<kWidth, kPlain>(args, norm != nullptr, scale, weight, is_value ? 0 : args.rotary_half,
                                cos_sin, head);
    if (kCoded && heads.kind != Kind::kQuery) {
      const bool is_key = heads.kind == Kind::kKey;
      const int kv_head = heads.first + first + member;
      const bool is_there = first + member < heads.count;
      const float* given = is_key ? args.k_given : args.v_given;
      auto* const codes = reinterpret_cast<std::uint8_t*>(is_key ? args.keys : args.values);
      store_codes<kWidth>(args, head, given == nullptr || !is_there ? nullptr : given + kv_head,
                          codes + block * args.key_block + offset * args.key_offset + kv_head * args.key_head,
                          (is_key ? args.key_scales : args.value_scales) + block * args.scale_block +
                              kv_head * args.scale_head + offset,
                          is_there);
      continue;
    }
    if (first + member >= heads.count) continue;
    T* head_to = to + (first + member) * to_stride;
    for_pieces<kWidth>(args, [&](int p, int a, int b) {
      store_vec(head_to + a, head[p].a);
      if (kWidth > 1 || b < args.head_dim) store_vec(head_to + b, head[p].b);
    });
  }
}

template <int kWidth, typename T>
void launch_prepare(const LaunchContext& context, int num_tokens, PrepareArgs<T> args) {
  args.lane_bits = 5;
  while (args.lane_bits > 0 && (kPieces<kWidth> * kWidth << args.lane_bits) >= args.head_dim)
    --args.lane_bits;
  const auto set_heads_per_warp = [&](int heads) {
    args.heads_per_warp = heads;
    args.query_groups = static_cast<int>(ceil_div(args.num_heads, heads));
    args.kv_groups = static_cast<int>(ceil_div(args.num_kv_heads, heads));
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
  launch(context, "prepare_attention", kernel,
         dim3(static_cast<unsigned>(num_tokens), ceil_div(groups, warps)), dim3(warps * 32), 0, args);
}

}  // namespace

void rotate_and_store(const LaunchContext& context, const AttentionInput& input, const KvCacheLayer& cache,
                      const AttentionBatch& batch) {
  if (batch.num_tokens == 0) return;
  const Tensor& table = input.cos_sin;
  const int half = table.defined() ? static_cast<int>(table.dim(1) / 2) : 0;
  const bool has_codes = cache.code != CacheCode::kNone;
  dispatch_float(input.qkv.dtype(), [&]<typename T>() {
    const PrepareArgs<T> args{.qkv = input.qkv.data_as<T>(),
                              .q_norm = input.q_norm.data_as<const float>(),
                              .k_norm = input.k_norm.data_as<const float>(),
                              .v_norm = input.v_norm.data_as<const float>(),
                              .cos_sin = table.data_as<const float>(),
                              .q_scale = input.q_scale.data_as<const float>(),
                              .keys = static_cast<T*>(cache.keys.data()),
                              .values = static_cast<T*>(cache.values.data()),
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
                              .code = cache.code,
                              .key_scales = cache.key_scales.data_as<float>(),
                              .value_scales = cache.value_scales.data_as<float>(),
                              .k_given = input.k_scales.data_as<const float>(),
                              .v_given = input.v_scales.data_as<const float>(),
                              .scale_block = has_codes ? cache.key_scales.stride(0) : 0,
                              .scale_head = has_codes ? cache.key_scales.stride(1) : 0,
                              .num_heads = input.num_heads,
                              .num_kv_heads = input.num_kv_heads,
                              .head_dim = input.head_dim,
                              .rotary_half = half,
                              .block_size = static_cast<int>(cache.keys.dim(2)),
                              .lane_bits = 0,
                              .heads_per_warp = 0,
                              .query_groups = 0,
                              .kv_groups = 0,
                              .norm_eps = input.norm_eps,
                              .norm_after_rotary = input.norm_after_rotary};
    // Vectors must not straddle two heads, nor the halves of a head or of its rotation.
    const Tensor head = input.qkv.columns(0, input.head_dim / 2);
    const Tensor cosines = half > 0 ? table.columns(0, half) : Tensor();
    const auto rows = {head, cosines, input.q_norm, input.k_norm, input.v_norm, cache.keys, cache.values};
    const auto launch_width = [&]<int kWidth>() { launch_prepare<kWidth>(context, batch.num_tokens, args); };
    if (input.head_dim <= kMaxHeadDim) return dispatch_width<4>(rows, launch_width);
    const bool fits = std::ranges::all_of(rows, [](const Tensor& t) { return splits_into(t, 8); });
    if (!fits || input.head_dim > kMaxWideHeadDim)
      check(cudaErrorInvalidValue, "heads of more than 256 dimensions");
    launch_width.template operator()<8>();
  });
}

}  // namespace quire::cuda
