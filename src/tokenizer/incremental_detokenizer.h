#pragma once

#include <string>

#include "tokenizer/token_id.h"

namespace quire {

class Tokenizer;

// Decodes tokens as they come. For one thread; the tokenizer outlives it.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // The text that this token completes: it never ends within a character.
  std::string push(TokenId id);
  // What is left. All texts joined are what Tokenizer::decode makes of all ids. Leaves this ready for a new
  // text.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  std::string pending_;  // the beginning of a character
};

}  // namespace quire
