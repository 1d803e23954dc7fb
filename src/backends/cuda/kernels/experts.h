#pragma once

#include <cstddef>
#include <limits>

#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/quantized.h"
#include "ops/experts.h"

namespace quire::cuda {

// Routed experts; what the ops compute is said at Backend.

constexpr int kMaxExperts = 512;
constexpr int kMaxTopK = 32;  // a lane of a warp for each

// Error beyond kMaxExperts or kMaxTopK.
void route_experts(const LaunchContext& context, const ExpertRouting& out, const Tensor& logits,
                   const RouterOptions& options);
// The same from x [tokens, hidden_size] and the router [num_experts, hidden_size], for few tokens.
bool routing_linear_supports(const Tensor& x, const Tensor& router);
void routing_linear(const LaunchContext& context, const ExpertRouting& out, const Tensor& x,
                    const Tensor& router, const RouterOptions& options);

// gate_up and down as codes; each expert's gate, up and down has a multiple of 16 rows.
struct ExpertCodes {
  QuantizedMatrix gate_up, down;
  Tensor workspace;  // where some experts at a time become 16 bits
};

// What is made of the products of a gate and of up.
struct ExpertGate {
  const float* bias = nullptr;     // of the first expert's first column of the gate; null: there is none
  std::int64_t expert_stride = 0;  // elements from an expert's to the next one's
  std::int64_t up_stride = 0;      // and from the gate's to up's
  float linear = 1, cubic = 0;     // of the gate, as in ActivationTerms
  float limit = std::numeric_limits<float>::infinity();  // of the gate, and of up in both directions
  float up_offset = 0;                                   // added to up
};

// What a layer reads and writes.
struct ExpertCall {
  Tensor out;      // [tokens, hidden_size]
  Tensor x;        // [tokens, hidden_size]
  Tensor gate_up;  // [num_experts * 2 * intermediate_size, hidden_size]: each one's gate, then its up
  Tensor down;     // [num_experts * hidden_size, intermediate_size]
  ExpertRouting routing;
  Tensor workspace;
  const ExpertCodes* codes = nullptr;  // in place of gate_up and down
  ExpertBiases biases = {};
};
ExpertGate gate_of(const ExpertCall& call, const ExpertShape& shape);

std::size_t expert_workspace_bytes(const ExpertShape& shape, DType dtype);
// By one of the ways below; which, the number of tokens decides. fixed_order: a token's bits do not
// depend on the tokens beside it.
void experts(const LaunchContext& context, const ExpertCall& call, const ExpertShape& shape,
             bool fixed_order);

// The parts of the workspace, for the tokens of one call; a pair is a token and one of its experts.
struct ExpertScratch {
  Tensor inner;    // [pairs, intermediate_size] of the gate and up
  Tensor rows;     // [pairs, hidden_size] of x, then of results; by expert
  Tensor offsets;  // i32 [num_experts + 1] where each expert's pairs begin
  Tensor tokens;   // i32 [pairs] by expert
  Tensor places;   // i32 [pairs] by token: where the pair is by expert
};

// Every pair reads its expert's matrices for itself. Any shape and dtype, codes in float32 alone; no row
// depends on another.
void experts_by_pair(const LaunchContext& context, const ExpertCall& call, const ExpertShape& shape,
                     const Tensor& inner);
// The same of codes, in 16 bits, where a block of threads has room for their tiles.
bool quantized_pairs_have_room(const LaunchContext& context, const ExpertCodes& codes);
void quantized_experts_by_pair(const LaunchContext& context, const ExpertCall& call, const ExpertShape& shape,
                               const Tensor& inner);

// Pairs are sorted by expert, and matrices multiplied with all tokens that go through theirs, in tiles of 32,
// 64 or 128 tokens; or, where tile_tokens is 0, by quantized_grouped_matmul.
bool has_grouped_experts(const ExpertShape& shape, DType dtype);
void experts_by_group(const LaunchContext& context, const ExpertCall& call, const ExpertShape& shape,
                      const ExpertScratch& scratch, int tile_tokens);

// How the pairs of a product lie.
struct PairGroups {
  Tensor offsets;   // i32 [num_experts + 1]: where each expert's pairs begin
  ExpertGate gate;  // of gated products
  int tile_tokens = 0;
  Tensor tokens = {};  // i32 [pairs]: the pairs' rows of x; undefined: each has its own
};

// What experts_by_group is made of. For every expert e, out [pairs, n] = x [pairs, k] · weightᵀ, for the
// pairs [offsets[e], offsets[e + 1]) with rows [e * n, (e + 1) * n) of weight; or, where weight has twice as
// many, what the gate makes of rows [2 * e * n, 2 * (e + 1) * n), gate's, then up's.
void grouped_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& weight,
                    const PairGroups& groups);
// The same of codes, for some pairs an expert; no row depends on another.
void quantized_grouped_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x,
                              const QuantizedMatrix& matrix, const PairGroups& groups);

}  // namespace quire::cuda
