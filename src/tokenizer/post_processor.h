#pragma once

#include <vector>

#include "tokenizer/json_view.h"
#include "tokenizer/token_id.h"

namespace quire {

// The special tokens that surround every text.
struct PostProcessor {
  PostProcessor() = default;  // none
  explicit PostProcessor(const JsonView& config);

  std::vector<TokenId> prefix, suffix;
};

}  // namespace quire
