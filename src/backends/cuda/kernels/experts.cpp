#include "backends/cuda/kernels/experts.h"

#include <algorithm>

#include "base/error.h"

namespace quire::cuda {
namespace {

// Tokens computed at a time. With more, experts are read fewer times, but the workspace grows; from a
// thousand tokens on the products hide the reading.
constexpr int kMaxPassTokens = 4096;
constexpr std::size_t kAlignment = 256;

// The scratch of so many tokens, from address `base`; the bytes go to `bytes`.
ExpertScratch lay_out(std::uintptr_t base, const ExpertShape& shape, DType dtype, std::int64_t tokens,
                      std::size_t& bytes) {
  bytes = 0;
  const auto take = [&](DType type, std::initializer_list<std::int64_t> sizes) {
    const Tensor tensor(reinterpret_cast<void*>(base + bytes), type, sizes, DeviceKind::kCuda);
    bytes += (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    return tensor;
  };
  const std::int64_t pairs = tokens * shape.top_k;
  ExpertScratch scratch;
  scratch.inner = take(dtype, {pairs, shape.intermediate_size});
  if (dtype == DType::kF32) return scratch;
  scratch.rows = take(dtype, {pairs, shape.hidden_size});
  scratch.offsets = take(DType::kI32, {shape.num_experts + 1});
  scratch.tokens = take(DType::kI32, {pairs});
  scratch.places = take(DType::kI32, {pairs});
  return scratch;
}

// Few pairs seldom share an expert, and one token's never: grouping them costs launches and saves no reads.
bool are_few(std::int64_t tokens, const ExpertShape& shape) {
  return tokens == 1 || tokens * shape.top_k * 2 <= shape.num_experts;
}

// Tokens of a tile, near what an expert has of them.
int tile_tokens_of(std::int64_t tokens, const ExpertShape& shape) {
  const std::int64_t mean = tokens * shape.top_k / shape.num_experts;
  return mean <= 24 ? 32 : mean <= 96 ? 64 : 128;
}

// Whether experts of codes have so many pairs that widening the codes pays.
bool prefers_dequantizing(std::int64_t tokens, const ExpertShape& shape, DType dtype) {
  constexpr std::int64_t kMinPairs = 80;  // of an expert
  return has_grouped_experts(shape, dtype) && tokens * shape.top_k >= kMinPairs * shape.num_experts;
}

void run_pass(const LaunchContext& context, const ExpertCall& call, const ExpertShape& shape,
              bool fixed_order) {
  const DType dtype = call.x.dtype();
  const std::int64_t tokens = call.x.dim(0);
  std::size_t bytes = 0;
  const ExpertScratch scratch =
      lay_out(reinterpret_cast<std::uintptr_t>(call.workspace.data()), shape, dtype, tokens, bytes);
  QUIRE_CHECK(bytes <= call.workspace.bytes(), "experts want {} bytes of {}", bytes, call.workspace.bytes());
  const bool few = !fixed_order && are_few(tokens, shape);
  if (call.codes != nullptr && dtype != DType::kF32) {
    if (few && quantized_pairs_have_room(context, *call.codes))
      return quantized_experts_by_pair(context, call, shape, scratch.inner);
    const bool dequantizes = !fixed_order && prefers_dequantizing(tokens, shape, dtype);
    experts_by_group(context, call, shape, scratch, dequantizes ? tile_tokens_of(tokens, shape) : 0);
  } else if (!has_grouped_experts(shape, dtype) || few) {
    experts_by_pair(context, call, shape, scratch.inner);
  } else {
    constexpr int kFixedTileTokens = 64;
    experts_by_group(context, call, shape, scratch,
                     fixed_order ? kFixedTileTokens : tile_tokens_of(tokens, shape));
  }
}

}  // namespace

std::size_t expert_workspace_bytes(const ExpertShape& shape, DType dtype) {
  std::size_t bytes = 0;
  lay_out(0, shape, dtype, std::min(shape.max_num_tokens, kMaxPassTokens), bytes);
  return bytes;
}

void experts(const LaunchContext& context, const ExpertCall& call, const ExpertShape& shape,
             bool fixed_order) {
  const std::int64_t tokens = call.x.dim(0);
  for (std::int64_t first = 0; first < tokens; first += kMaxPassTokens) {
    const std::int64_t count = std::min<std::int64_t>(kMaxPassTokens, tokens - first);
    ExpertCall pass = call;
    pass.out = call.out.rows(first, count);
    pass.x = call.x.rows(first, count);
    pass.routing = {call.routing.experts.rows(first, count), call.routing.weights.rows(first, count)};
    run_pass(context, pass, shape, fixed_order);
  }
}

}  // namespace quire::cuda
