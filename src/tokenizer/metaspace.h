#pragma once

#include <string>

#include "tokenizer/json_view.h"

namespace quire {

// The settings of a Metaspace pre-tokenizer or decoder: a visible character stands for the space, and one is
// put in front of a text, so that its first word is spelled as any other.
struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };  // to every piece, or to that which begins the text

  std::string replacement;  // one character
  Prepend prepend = Prepend::kAlways;
  bool split = true;  // in front of each replacement

  static Metaspace from_json(const JsonView& config);
};

}  // namespace quire
