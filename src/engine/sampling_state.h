#pragma once

#include <span>

#include "quire/sampling_params.h"
#include "scheduler/step_plan.h"

namespace quire {

// Error that names the parameter, its value and what would be right.
void validate(const SamplingParams& params, int vocab_size);

// What the sampler needs: vLLM's reading of extreme values, and every id that ends the sequence.
SamplingState make_sampling_state(const SamplingParams& params, std::span<const TokenId> eos_token_ids,
                                  std::uint64_t default_seed);

}  // namespace quire
