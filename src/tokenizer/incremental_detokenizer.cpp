#include "tokenizer/incremental_detokenizer.h"

#include <utility>

#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace quire {

std::string IncrementalDetokenizer::push(TokenId id) {
  if (skip_special_tokens_ && tokenizer_.is_special(id)) return {};
  pending_ += tokenizer_.token_bytes(id);
  return take_complete_utf8(pending_);
}

std::string IncrementalDetokenizer::finish() { return to_valid_utf8(std::exchange(pending_, {})); }

}  // namespace quire
