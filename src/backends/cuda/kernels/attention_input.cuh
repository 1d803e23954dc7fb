#pragma once

#include <algorithm>
#include <initializer_list>

#include "backends/cuda/kernels/vec.cuh"
#include "ops/ops.h"

// What becomes of a head between the q/k/v projection and attention: RMS norm and rotary embedding, in
// float32, rounded once. Some lanes of a warp share a head, each with columns that rotate into one another.
namespace quire::cuda {

constexpr int kMaxHeadDim = 256;

// The keys of a cache, or the values.
template <typename T>
struct CacheHalf {
  T* rows;                           // bytes, where they are codes
  std::int64_t block, head, offset;  // strides
  float* scales;                     // of codes
  const float* given;                // scales by head; null: each row has its own

  CacheHalf(const Tensor& half, const Tensor& its_scales, const Tensor& given_scales)
      : rows(half.data_as<T>()),
        block(half.stride(0)),
        head(half.stride(1)),
        offset(half.stride(2)),
        scales(its_scales.data_as<float>()),
        given(given_scales.data_as<const float>()) {}
};

template <typename T>
struct PrepareArgs {
  RowsOf<T> qkv;
  const float* q_norm;          // null: no norm
  const float* k_norm;          // null: no norm
  const float* v_norm;          // null: no norm
  RowsOf<const float> cos_sin;  // null: no rotary, and rotary_half is 0
  const float* q_scale;         // by position; null: 1
  CacheHalf<T> keys, values;
  const int* positions;
  const int* slots;
  CacheCode code;
  std::int64_t scale_block, scale_head;  // strides
  int num_heads, num_kv_heads, head_dim, rotary_half, block_size;
  int lane_bits;                        // 2^lane_bits lanes share a head
  int heads_per_warp = 0;               // a multiple of the heads that a warp does at once
  int query_groups = 0, kv_groups = 0;  // of so many heads, and a rest
  float norm_eps;
  bool norm_after_rotary;
};

enum class Kind { kQuery, kKey, kValue };

// The heads in qkv before those of a kind.
template <typename T>
__device__ int heads_before(const PrepareArgs<T>& args, Kind kind) {
  if (kind == Kind::kQuery) return 0;
  return kind == Kind::kKey ? args.num_heads : args.num_heads + args.num_kv_heads;
}

// A lane's columns of a head: kWidth that are first in their rotation, and their kWidth partners; past the
// rotation, neighbours. kPieces of such for heads of up to kMaxHeadDim columns, or with 8 kMaxWideHeadDim.
template <int kWidth>
constexpr int kPieces = std::max(1, kMaxHeadDim / (2 * 32 * kWidth));
template <int kWidth, typename T>
struct HeadPiece {
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
__device__ void load_piece(const PrepareArgs<T>& args, HeadPiece<kWidth, U>& piece, const U* head, int a,
                           int b) {
  piece.a = load_vec<kWidth>(head + a);
  piece.b = kWidth > 1 || b < args.head_dim ? load_vec<kWidth>(head + b) : Vec<U, kWidth>{};
}

// What the heads of one kind of a token have in common. No kernel writes it, so that it may be read before
// those in front have ended.
template <int kWidth, typename T>
struct HeadTerms {
  const float* norm;  // null: none
  HeadPiece<kWidth, float> weight[kPieces<kWidth>];
  HeadPiece<kWidth, float> cos_sin[kPieces<kWidth>];

  __device__ HeadTerms(const PrepareArgs<T>& args, Kind kind, int position)
      : norm(kind == Kind::kValue   ? args.v_norm
             : kind == Kind::kQuery ? args.q_norm
                                    : args.k_norm) {
    if (norm != nullptr)
      for_pieces<kWidth>(args, [&](int p, int a, int b) { load_piece<kWidth>(args, weight[p], norm, a, b); });
    if (kind == Kind::kValue) return;
    const float* cosines = args.cos_sin[position];
    for_pieces<kWidth>(args, [&](int p, int column, int) {
      if (column >= args.rotary_half) return;
      cos_sin[p].a = load_vec<kWidth>(cosines + column);
      cos_sin[p].b = load_vec<kWidth>(cosines + args.rotary_half + column);
    });
  }
};

// Norm and rotation of the head that some lanes hold, times scale. Unless kPlain: or the norm behind the
// rotation.
template <int kWidth, bool kPlain, typename T>
__device__ void transform(const PrepareArgs<T>& args, const HeadTerms<kWidth, T>& terms, bool is_value,
                          float scale, HeadPiece<kWidth, T> (&head)[kPieces<kWidth>]) {
  const bool norm = terms.norm != nullptr;
  const int rotary_half = is_value ? 0 : args.rotary_half;
  const auto rotate = [&](int p, int i, int column, float& a, float& b) {
    if (column >= rotary_half) return;
    const float cosine = terms.cos_sin[p].a.values[i];
    const float sine = terms.cos_sin[p].b.values[i];
    const float rotated = a * cosine - b * sine;
    b = b * cosine + a * sine;
    a = rotated;
  };
  const bool rotate_first = !kPlain && args.norm_after_rotary;
  const auto for_pairs = [&](auto&& f) {
    for_pieces<kWidth>(args, [&](int p, int column, int) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        float a = widen(head[p].a.values[i]);
        float b = widen(head[p].b.values[i]);
        if (rotate_first) rotate(p, i, column, a, b);
        f(p, i, column, a, b);
      }
    });
  };
  float inverse = 1;
  if (norm) {
    float squares = 0;
    for_pairs([&](int, int, int, float a, float b) { squares += a * a + b * b; });
    for (int step = 1 << args.lane_bits >> 1; step > 0; step /= 2)
      squares += __shfl_xor_sync(~0U, squares, step);
    inverse = rsqrtf(squares / static_cast<float>(args.head_dim) + args.norm_eps);
  }
  for_pairs([&](int p, int i, int column, float a, float b) {
    if (norm) {
      a = a * inverse * terms.weight[p].a.values[i];
      b = b * inverse * terms.weight[p].b.values[i];
    }
    if (!rotate_first) rotate(p, i, column, a, b);
    head[p].a.values[i] = narrow<T>(kPlain ? a : scale * a);
    head[p].b.values[i] = narrow<T>(kPlain ? b : scale * b);
  });
}

template <int kWidth, typename T>
__device__ void load_head(const PrepareArgs<T>& args, const T* from,
                          HeadPiece<kWidth, T> (&head)[kPieces<kWidth>]) {
  for_pieces<kWidth>(args, [&](int p, int a, int b) { load_piece<kWidth>(args, head[p], from, a, b); });
}

template <int kWidth, typename T>
__device__ void store_head(const PrepareArgs<T>& args, T* to,
                           const HeadPiece<kWidth, T> (&head)[kPieces<kWidth>]) {
  for_pieces<kWidth>(args, [&](int p, int a, int b) {
    store_vec(to + a, head[p].a);
    if (kWidth > 1 || b < args.head_dim) store_vec(to + b, head[p].b);
  });
}

// Where the key or value of KV head `head` lies that is stored at `slot`.
template <typename T>
__device__ T* cached_at(const PrepareArgs<T>& args, bool is_value, int slot, int head) {
  const auto block = static_cast<unsigned>(slot) / static_cast<unsigned>(args.block_size);
  const auto offset = static_cast<unsigned>(slot) % static_cast<unsigned>(args.block_size);
  const CacheHalf<T> half = is_value ? args.values : args.keys;
  return half.rows + block * half.block + offset * half.offset + head * half.head;
}

// Of heads that lie in rows of vectors of kWidth elements.
template <int kWidth, typename T>
PrepareArgs<T> prepare_args(const AttentionInput& input, const KvCacheLayer& cache,
                            const AttentionBatch& batch) {
  const Tensor& table = input.cos_sin;
  int lane_bits = 5;
  while (lane_bits > 0 && (kPieces<kWidth> * kWidth << lane_bits) >= input.head_dim) --lane_bits;
  return {.qkv = input.qkv,
          .q_norm = input.q_norm.data_as<const float>(),
          .k_norm = input.k_norm.data_as<const float>(),
          .v_norm = input.v_norm.data_as<const float>(),
          .cos_sin = table,
          .q_scale = input.q_scale.data_as<const float>(),
          .keys = {cache.keys, cache.key_scales, input.k_scales},
          .values = {cache.values, cache.value_scales, input.v_scales},
          .positions = batch.positions.data_as<const int>(),
          .slots = batch.slot_mapping.data_as<const int>(),
          .code = cache.code,
          .scale_block = cache.key_scales.stride(0),
          .scale_head = cache.key_scales.stride(1),
          .num_heads = input.num_heads,
          .num_kv_heads = input.num_kv_heads,
          .head_dim = input.head_dim,
          .rotary_half = table.defined() ? static_cast<int>(table.dim(1) / 2) : 0,
          .block_size = static_cast<int>(cache.keys.dim(2)),
          .lane_bits = lane_bits,
          .norm_eps = input.norm_eps,
          .norm_after_rotary = input.norm_after_rotary};
}

// Whether vectors of `width` elements straddle neither two heads, nor the halves of a head or of its
// rotation.
inline bool heads_split_into(const AttentionInput& input, const KvCacheLayer& cache, int width) {
  const Tensor& table = input.cos_sin;
  const Tensor cosines = table.defined() && table.dim(1) > 1 ? table.columns(0, table.dim(1) / 2) : Tensor();
  return std::ranges::all_of(
      std::initializer_list<Tensor>{input.qkv.columns(0, input.head_dim / 2), cosines, input.q_norm,
                                    input.k_norm, input.v_norm, cache.keys, cache.values},
      [&](const Tensor& rows) { return splits_into(rows, width); });
}

}  // namespace quire::cuda
