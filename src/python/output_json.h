#pragma once

#include <cstddef>
#include <cstdint>

#include "base/json.h"
#include "quire/request_output.h"

namespace quire::python {

// A finished request: {"tag", "finished": true, "prompt_token_ids", "prompt_logprobs", "num_cached_tokens",
// "arrival", "outputs": [...]} or with "embedding". Times are seconds of the steady clock. A logprob that is
// minus infinity is null.
OrderedJson request_json(std::int64_t tag, const RequestOutput& output);

// One output, or the new part of one: {"index", "token_ids", "text", ...}; what it ended with once it has.
OrderedJson completion_json(const CompletionOutput& output);

}  // namespace quire::python
