#pragma once

#include <string>
#include <string_view>

#include "tokenizer/json_view.h"

namespace quire {

// Turns tokens, one by one, into the bytes they stand for. Today every decoder is byte-level.
class Decoder {
 public:
  static Decoder from_json(const JsonView& config);

  // The bytes of a token's text. A text with a character outside the byte alphabet stands for itself.
  std::string bytes(std::string_view token) const;
};

}  // namespace quire
