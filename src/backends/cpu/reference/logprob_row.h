#pragma once

#include <cstdint>

#include "ops/logprob_batch.h"

namespace quire {

// Row i of Backend::log_probs.
void log_probs_row(const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch, std::int64_t i);

}  // namespace quire
