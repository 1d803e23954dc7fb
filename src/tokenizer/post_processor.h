#pragma once

#include <vector>

#include "tokenizer/json_view.h"
#include "tokenizer/token_id.h"

namespace quire {

// The special tokens that surround every text.
struct PostProcessor {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;

  static PostProcessor from_json(const JsonView& config);
};

}  // namespace quire
