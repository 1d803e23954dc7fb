#include "engine/sampling_state.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace quire {
namespace {

constexpr float kGreedyBelow = 1e-5F;        // vLLM's _SAMPLING_EPS
constexpr float kLowestTemperature = 1e-2F;  // vLLM's _MAX_TEMP
constexpr int kMaxOutputs = 16384;           // vLLM's VLLM_MAX_N_SEQUENCES
constexpr std::size_t kMaxStops = 16;
constexpr std::size_t kMaxStopBytes = 256;
constexpr std::size_t kMaxStopTokenIds = 128;

}  // namespace

void validate(const SamplingParams& params, int vocab_size) {
  if (params.n < 1 || params.n > kMaxOutputs) fail("n is {}; it must be from 1 to {}", params.n, kMaxOutputs);
  if (params.n > 1 && params.temperature < kGreedyBelow)
    fail("n is {}; it must be 1 with temperature 0, since all outputs would be the same", params.n);
  // Written so that NaN fails each test.
  if (!(params.temperature >= 0.0F && params.temperature <= 1e4F)) {
    fail("temperature is {}; it must be from 0 to 10000", params.temperature);
  }
  if (!(params.top_p > 0.0F && params.top_p <= 1.0F))
    fail("top_p is {}; it must be over 0 and at most 1", params.top_p);
  if (!(params.min_p >= 0.0F && params.min_p <= 1.0F))
    fail("min_p is {}; it must be from 0 to 1", params.min_p);
  if (params.top_k < -1) fail("top_k is {}; it must be at least 1, or 0 or -1 for all tokens", params.top_k);
  if (params.max_tokens < 1) fail("max_tokens is {}; it must be at least 1", params.max_tokens);
  if (params.min_tokens < 0 || params.min_tokens > params.max_tokens) {
    fail("min_tokens is {}; it must be from 0 to max_tokens, {}", params.min_tokens, params.max_tokens);
  }
  if (params.stop.size() > kMaxStops)
    fail("stop has {} strings; at most {} are allowed", params.stop.size(), kMaxStops);
  for (const std::string& stop : params.stop) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      fail("stop has a string of {} bytes; each must have 1 to {}", stop.size(), kMaxStopBytes);
    }
  }
  if (params.stop_token_ids.size() > kMaxStopTokenIds) {
    fail("stop_token_ids has {} ids; at most {} are allowed", params.stop_token_ids.size(), kMaxStopTokenIds);
  }
  for (const TokenId id : params.stop_token_ids) {
    if (id < 0 || id >= vocab_size) fail("stop_token_ids has {}; ids are from 0 to {}", id, vocab_size - 1);
  }
}

SamplingState make_sampling_state(const SamplingParams& params, std::span<const TokenId> eos_token_ids,
                                  std::uint64_t default_seed) {
  SamplingState state;
  state.temperature =
      params.temperature < kGreedyBelow ? 0.0F : std::max(params.temperature, kLowestTemperature);
  state.top_p = params.top_p;
  state.min_p = params.min_p;
  state.top_k = std::max(params.top_k, 0);
  state.seed = params.seed.value_or(default_seed);
  state.stop_ids = params.stop_token_ids;
  if (!params.ignore_eos)
    state.stop_ids.insert(state.stop_ids.end(), eos_token_ids.begin(), eos_token_ids.end());
  std::sort(state.stop_ids.begin(), state.stop_ids.end());
  state.stop_ids.erase(std::unique(state.stop_ids.begin(), state.stop_ids.end()), state.stop_ids.end());
  return state;
}

}  // namespace quire
