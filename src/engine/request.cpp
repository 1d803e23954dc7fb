#include "engine/request.h"

#include "engine/sampling_context.h"

namespace quire {
namespace {

// What a request that is pooled cannot be asked for, if anything is.
const char* excluded_by_pooling(const EngineRequest& request) {
  if (request.prompt_logits) return "the prompt's logits";
  const SamplingParams& params = request.params;
  if (params.n > 1) return "n";
  if (params.best_of) return "best_of";
  if (params.beam_width) return "beam_width";
  if (params.logprobs) return "logprobs";
  if (params.prompt_logprobs) return "prompt_logprobs";
  if (params.structured_outputs) return "structured_outputs";
  return nullptr;
}

}  // namespace

void validate(const EngineRequest& request, const SamplingContext& context) {
  validate(request.params, context);
  validate_without_params(request, context);
}

void validate_without_params(const EngineRequest& request, const SamplingContext& context) {
  constexpr double kMaxTimeout = 1e9;  // some thirty years, and far from the clock's end
  if (request.timeout && !(*request.timeout > 0 && *request.timeout <= kMaxTimeout))
    fail("timeout is {}; it must be over 0 seconds and at most {}", *request.timeout, kMaxTimeout);
  if (request.params.beam_width && request.prompt_logits)
    fail("beam_width and the prompt's logits exclude each other");
  const char* excluded = request.pooling == Pooling::kNone ? nullptr : excluded_by_pooling(request);
  if (excluded != nullptr) fail("pooling and {} exclude each other", excluded);
  if (request.pooling == Pooling::kLogits && request.params.allowed_token_ids.empty())
    fail("pooling of logits needs allowed_token_ids, which are pooled");
  for (const TokenId id : request.prompt) {
    if (id < 0 || id >= context.vocab_size)
      fail("the prompt has token id {}; this model's are from 0 to {}", id, context.vocab_size - 1);
  }
}

}  // namespace quire
