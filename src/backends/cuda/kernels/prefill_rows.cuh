#pragma once

#include "backends/cuda/kernels/cache_codes.cuh"
#include "backends/cuda/kernels/mma.cuh"
#include "backends/cuda/kernels/prefill_attention.h"
#include "backends/cuda/kernels/scores.cuh"
#include "backends/cuda/kernels/vec.cuh"

namespace quire::cuda {

// Device code of both prefill kernels. In the tensor cores' accumulators of 16 rows, lane l of a warp holds
// rows l / 4 and l / 4 + 8, and of every 8 columns the two from 2 * (l % 4) on: element [b][2 * r + c] is
// column 8 * b + 2 * (l % 4) + c of row l / 4 + 8 * r.

// 16 codes of a row; `scaled` multiplies a pair of float16 with the row's scale.
template <CacheCode kCode, typename F>
__device__ inline void widen_row(const uint4& codes, const F& scaled, uint4 (&to)[2]) {
  const auto widen = [&](std::uint32_t first, std::uint32_t second) {
    std::uint32_t pairs[4];
    widen_codes<kCode>(first, pairs[0], pairs[1]);
    widen_codes<kCode>(second, pairs[2], pairs[3]);
    return make_uint4(scaled(pairs[0]), scaled(pairs[1]), scaled(pairs[2]), scaled(pairs[3]));
  };
  to[0] = widen(codes.x, codes.y);
  to[1] = widen(codes.z, codes.w);
}

// The last key that row `row` of a tile sees. Rows past the last token see what that one sees.
__device__ inline int last_key(const PrefillParams& p, const PrefillTile& tile, int row) {
  return tile.position + min(row / p.packed_heads, tile.tokens - 1);
}

// The first key that a tile's first token sees.
__device__ inline int first_key_of(const PrefillParams& p, const PrefillTile& tile) {
  return max(tile.position - p.scores.window + 1, 0);
}

// Products to tanh(inner * product). Where all of a warp's lie below `far`, at most kFarFromCap, by a
// polynomial, to 4e-6: the softmax keeps the units busy that tanh_approx needs.
template <int kBlocks>
__device__ void cap_scores(float (&scores)[kBlocks][4], float inner, float far) {
  float largest[4] = {};  // in four chains, which hide latency
#pragma unroll
  for (auto& block : scores) {
#pragma unroll
    for (int j = 0; j < 4; ++j) largest[j] = fmaxf(largest[j], fabsf(block[j]));
  }
  const float top = fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
  if (__any_sync(0xFFFFFFFFU, top * inner >= far)) {
#pragma unroll
    for (auto& block : scores) {
#pragma unroll
      for (float& score : block) score = tanh_approx(score * inner);
    }
  } else {
#pragma unroll
    for (auto& block : scores) {
#pragma unroll
      for (float& score : block) {  // coefficients: minimax over [0, kFarFromCap]
        score *= inner;
        const float square = score * score;
        const float factor = fmaf(fmaf(-0.033778284F, square, 0.12577093F), square, -0.33222765F);
        score *= fmaf(factor, square, 0.99995559F);
      }
    }
  }
}

// What a lane keeps of its rows r = 0, 1 while it goes over the keys.
struct SoftmaxRows {
  float top[2] = {-INFINITY, -INFINITY};  // highest score so far, before `scale`
  float total[2] = {0, 0};                // sum of this lane's weights

  // Scores to weights; shrink is what earlier sums are to be multiplied with.
  template <int kBlocks>
  __device__ void weigh(float (&scores)[kBlocks][4], float scale, float (&shrink)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float highest = top[r];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
        highest = fmaxf(highest, fmaxf(scores[b][2 * r], scores[b][2 * r + 1]));
      highest = max_of_lanes<1, 2>(highest);
      // A row may see none of the keys so far. Where the highest score stays, shrink is exactly 1.
      const float shift = highest == -INFINITY ? 0.0F : __fmul_rn(highest, scale);
      shrink[r] = exp2_approx(__fmul_rn(top[r], scale) - shift);
      top[r] = highest;
      float sum = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& score = scores[b][2 * r + c];
          score = exp2_approx(score * scale - shift);
          sum += score;
        }
      }
      total[r] = total[r] * shrink[r] + sum;
    }
  }
};

// Scores of keys from first_key on; those that a row does not see become -infinity: what lies before its
// window, and what lies behind `last`.
template <int kBlocks>
__device__ void mask_scores(float (&scores)[kBlocks][4], int first_key, const int (&last)[2], int window) {
  const int key = first_key + 2 * (threadIdx.x % 4);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // How far behind `last` is negative, and so, without its sign, more than any window.
      const auto distance = static_cast<unsigned>(last[j / 2] - key - 8 * b - j % 2);
      if (distance >= static_cast<unsigned>(window)) scores[b][j] = -INFINITY;
    }
  }
}

template <int kBlocks>
__device__ void multiply_rows(float (&sums)[kBlocks][4], const float (&factors)[2]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[b][j] *= factors[j / 2];
  }
}

// Four lanes hold words 4 * i + lane; afterwards lane j holds word i of lane i at [i], of what was at [j].
__device__ inline void transpose_quad(std::uint32_t (&words)[4]) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int low = distance == 1 ? 2 * pair : pair;
      std::uint32_t& kept = words[low];
      std::uint32_t& other = words[low + distance];
      const std::uint32_t received = __shfl_xor_sync(0xFFFFFFFFU, upper ? kept : other, distance);
      (upper ? kept : other) = received;
    }
  }
}

__device__ inline PrefillPart part_of(const PrefillParams& p, int index, int head_dim) {
  float* const sums = p.parts + index * PrefillPart::floats(head_dim);
  float* const tops = sums + kTileRows * head_dim;
  return {sums, tops, tops + kTileRows};
}

// Leaves the rows of a lane to merge_prefill. Of a piece without keys the sums are not written.
template <int kDim, int kBlocks>
__device__ void write_part(const PrefillParams& p, const PrefillTile& tile, int index, int row, bool has_keys,
                           const float (&sums)[kBlocks][4], const SoftmaxRows& softmax) {
  const PrefillPart part = part_of(p, index, kDim);
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + 8 * r;
    const float total = sum_of_lanes<1, 2>(softmax.total[r]);
    if (at >= tile.tokens * p.packed_heads) continue;
    if (lane == 0) {
      part.tops[at] = softmax.top[r] * p.scores.outer;
      part.totals[at] = total;
    }
    if (!has_keys) continue;
#pragma unroll
    for (int b = 0; b < kDim / 8; ++b) {
      auto* to = reinterpret_cast<float2*>(part.sums + at * kDim + 8 * b + 2 * lane);
      *to = make_float2(sums[b][2 * r], sums[b][2 * r + 1]);
    }
  }
}

// Divides the sums [16 rows, kDim] by the rows' totals, sinks included, and writes the rows that are a
// token's. `row`: the tile's row of r = 0. Every lane writes 16 bytes at a time.
template <typename T, int kDim, int kBlocks>
__device__ void write_rows(const PrefillParams& p, const PrefillTile& tile, int head_tile, int row,
                           const float (&sums)[kBlocks][4], const SoftmaxRows& softmax) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = (row + 8 * r) / p.packed_heads;
    const int head = head_tile * p.packed_heads + (row + 8 * r) % p.packed_heads;
    const float sink = sink_weight(p.scores.sinks, head, softmax.top[r] * p.scores.outer);
    const float inverse = __fdividef(1.0F, sum_of_lanes<1, 2>(softmax.total[r]) + sink);
    T* out =
        static_cast<T*>(p.out) + (tile.row + token) * p.out_stride + static_cast<std::int64_t>(head) * kDim;
#pragma unroll
    for (int first = 0; first < kDim / 8; first += 4) {
      std::uint32_t words[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (first + i < kDim / 8) {
          const float(&sum)[4] = sums[first + i];
          words[i] = pack(sum[2 * r] * inverse, sum[2 * r + 1] * inverse, T());
        }
      }
      transpose_quad(words);
      const int block = first + threadIdx.x % 4;
      if (token < tile.tokens && block < kDim / 8)
        *reinterpret_cast<uint4*>(out + 8 * block) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

}  // namespace quire::cuda
