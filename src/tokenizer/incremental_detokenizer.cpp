#include "tokenizer/incremental_detokenizer.h"

#include "tokenizer/tokenizer.h"

namespace quire {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens), stream_(tokenizer.decoder()) {}

std::string IncrementalDetokenizer::push(TokenId id) {
  const auto form = tokenizer_.decoded_form(id);
  if (!form || (skip_special_tokens_ && tokenizer_.is_special(id))) return {};
  return stream_.push(*form);
}

std::string IncrementalDetokenizer::finish() { return stream_.finish(); }

}  // namespace quire
