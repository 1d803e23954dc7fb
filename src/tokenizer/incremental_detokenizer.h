#pragma once

#include <string>

#include "tokenizer/decoder.h"
#include "tokenizer/token_id.h"

namespace quire {

class Tokenizer;

// Decodes tokens as they come. For one thread; the tokenizer outlives it.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens);

  // The text that this token completes: it never ends within a character, nor within a run of byte tokens,
  // nor in a space that the end of the text would take away.
  std::string push(TokenId id);
  // What is left. All texts joined are what Tokenizer::decode makes of all ids. Leaves this ready for a new
  // text.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  DecoderStream stream_;
};

}  // namespace quire
