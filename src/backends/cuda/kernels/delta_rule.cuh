#pragma once

#include <cstdint>

#include "backends/cuda/kernels/activation.cuh"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/vec.cuh"
#include "ops/ops.h"

namespace quire::cuda {

// A token's turn of the gated delta rule, as delta_rule.cu says it, and the gated norm behind it: what
// several kernels compute bit for bit alike. A block of threads has some columns of a head's state.

constexpr int kDeltaWarps = 4;
constexpr int kColumnLanes = 8;                            // threads of a warp that share a row
constexpr int kRowStep = kDeltaWarps * 32 / kColumnLanes;  // rows that are held side by side

// What is summed over rows: of a thread's columns, and of a token.
template <int kWidth>
struct alignas(16) DeltaSums {
  float by_key[kWidth], by_query[kWidth];
  float queries, keys, products;

  __device__ float* values() { return reinterpret_cast<float*>(this); }
  __device__ void add(DeltaSums other) {
#pragma unroll
    for (int i = 0; i < 2 * kWidth + 3; ++i) values()[i] += other.values()[i];
  }
  __device__ DeltaSums across(int lanes) {
    DeltaSums other;
#pragma unroll
    for (int i = 0; i < 2 * kWidth + 3; ++i) other.values()[i] = __shfl_xor_sync(~0U, values()[i], lanes);
    return other;
  }
};

// A thread's part of a token: q and k of its rows, v of its columns, and the rates of the head.
template <int kRows, int kWidth>
struct DeltaToken {
  float q[kRows], k[kRows], v[kWidth], a, b;
};

// The first of a thread's rows and columns.
struct DeltaPlace {
  int head, row, column;
};

// Over all rows, in every thread of kDeltaWarps warps; of: their memory, other than the call before had.
template <int kRows, int kWidth>
__device__ DeltaSums<kWidth> sum_rows(const Vec<float, kWidth> (&state)[kRows],
                                      const DeltaToken<kRows, kWidth>& token,
                                      DeltaSums<kWidth> (&of)[kDeltaWarps][kColumnLanes]) {
  DeltaSums<kWidth> sums{};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      sums.by_key[j] = fmaf(token.k[i], state[i].values[j], sums.by_key[j]);
      sums.by_query[j] = fmaf(token.q[i], state[i].values[j], sums.by_query[j]);
    }
    sums.queries = fmaf(token.q[i], token.q[i], sums.queries);
    sums.keys = fmaf(token.k[i], token.k[i], sums.keys);
    sums.products = fmaf(token.q[i], token.k[i], sums.products);
  }
#pragma unroll
  for (int lanes = kColumnLanes; lanes < 32; lanes *= 2) sums.add(sums.across(lanes));
  const int warp = static_cast<int>(threadIdx.x) / 32 % kDeltaWarps,
            lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < kColumnLanes) of[warp][lane] = sums;
  __syncthreads();
  sums = of[0][lane % kColumnLanes];
#pragma unroll
  for (int i = 1; i < kDeltaWarps; ++i) sums.add(of[i][lane % kColumnLanes]);
  return sums;
}

// What the parameters of a head make of its rates.
struct DeltaHead {
  float rate, bias, root;

  __device__ DeltaHead(float a_log, float dt_bias, int key_dim)
      : rate(-expf(a_log)), bias(dt_bias), root(sqrtf(static_cast<float>(key_dim))) {}
};

// What comes of a token in a thread's columns; the state becomes that behind it.
template <int kRows, int kWidth>
__device__ Vec<float, kWidth> take_turn(Vec<float, kWidth> (&state)[kRows],
                                        const DeltaToken<kRows, kWidth>& token, const DeltaSums<kWidth>& sums,
                                        const DeltaHead& head) {
  const float a = token.a + head.bias;
  const float decay = expf(head.rate * (a > 20 ? a : log1pf(expf(a))));
  const float beta = 1.0F / (1.0F + expf(-token.b));
  const float of_key = 1.0F / sqrtf(sums.keys + 1e-6F);
  const float of_query = 1.0F / sqrtf(sums.queries + 1e-6F) / head.root;
  Vec<float, kWidth> deltas, results;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    deltas.values[j] = of_key * beta * fmaf(-decay * of_key, sums.by_key[j], token.v[j]);
    results.values[j] = of_query * fmaf(sums.products, deltas.values[j], decay * sums.by_query[j]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
      state[i].values[j] = fmaf(token.k[i], deltas.values[j], decay * state[i].values[j]);
  }
  return results;
}

// Of a head's n values: one over their root mean square, in every lane of a warp.
__device__ inline float inverse_rms(const float* values, int n, float eps) {
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x % 32); i < n; i += 32)
    squares = fmaf(values[i], values[i], squares);
  return 1.0F / sqrtf(sum_of_lanes<16, 1>(squares) / static_cast<float>(n) + eps);
}
template <typename T>
__device__ T gated_normed(float value, float inverse, float weight, float gate) {
  return narrow<T>(value * inverse * weight * activated(gate, ActivationTerms{}));
}

// The heads of a layer and their states, by slot.
struct DeltaHeads {
  const float* a_log;
  const float* dt_bias;
  RowsOf<float> state;
  const int* from;
  const int* to;
  int num_key_heads, num_value_heads, key_dim, value_dim;

  DeltaHeads(const DeltaRuleInput& rule, const Tensor& states, const StateBatch& batch)
      : a_log(rule.a_log.data_as<const float>()),
        dt_bias(rule.dt_bias.data_as<const float>()),
        state(states),
        from(batch.from.data_as<const int>()),
        to(batch.to.data_as<const int>()),
        num_key_heads(rule.num_key_heads),
        num_value_heads(static_cast<int>(states.dim(1))),
        key_dim(static_cast<int>(states.dim(2))),
        value_dim(static_cast<int>(states.dim(3))) {}
};

// Calls f(i, place) for the i-th vector of a thread's column, where there is one: its place in a slot.
template <int kRows, typename F>
__device__ void for_state(const DeltaHeads& heads, const DeltaPlace& first, F&& f) {
  const std::int64_t place =
      (std::int64_t{first.head} * heads.key_dim + first.row) * heads.value_dim + first.column;
  const int step = kRowStep * heads.value_dim;
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (first.row + i * kRowStep < heads.key_dim && first.column < heads.value_dim) f(i, place + i * step);
}

// The operands of Backend::gated_delta_rule.
template <typename T>
struct DeltaArgs : DeltaHeads {
  RowsOf<float> out;
  RowsOf<const T> qkv, rates;
  const int* starts;
  int longest;  // spans of more tokens are computed in chunks
};

// Its long spans in chunks, of bf16 and f16. workspace: delta_rule_workspace_bytes; rows of qkv are whole
// vectors of 8.
template <typename T>
void chunked_delta_rule(const LaunchContext& context, const DeltaArgs<T>& rule, const Tensor& workspace,
                        const StateBatch& batch);

}  // namespace quire::cuda
