#pragma once

#include <span>
#include <string>

#include "quire/sampling_params.h"
#include "scheduler/step_plan.h"
#include "tokenizer/tokenizer.h"

namespace quire {

// What of a model decides which parameters are right.
struct SamplingContext {
  int vocab_size = 0;
  int max_logprobs = 0;
  std::span<const TokenId> eos_token_ids = {};
  const Tokenizer* tokenizer = nullptr;  // null: there is none
};

// Error that names the parameter, its value and what would be right.
void validate(const SamplingParams& params, const SamplingContext& context);

// So many of the most likely tokens after each beam decide a search: beam_width that go on or end among the
// best, and each token that ends a text.
int num_beam_candidates(int beam_width, std::size_t num_stop_ids, int vocab_size);

// The prompt without what truncate_prompt_tokens cuts from its beginning.
void truncate_prompt(std::vector<TokenId>& prompt, const SamplingParams& params, int max_model_len);

// What the sampler needs: vLLM's reading of extreme values, and every id that ends the sequence. Of valid
// parameters.
SamplingState make_sampling_state(const SamplingParams& params, const SamplingContext& context,
                                  std::uint64_t default_seed);

// Says which parameters have left no token to follow so many of output.
std::string describe_no_token(const SamplingParams& params, std::size_t num_output);

}  // namespace quire
