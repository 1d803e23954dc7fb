#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_view.h"

namespace quire {

// The normalisation rules that SentencePiece compiles into a model: a double-array trie (darts-clone's
// format) from text to its replacement. Immutable, usable from any thread.
class PrecompiledCharsmap {
 public:
  // The base64 text of the rules: the bytes of the trie as a 32-bit number, the trie's 32-bit units, and the
  // replacements, each with a zero behind it; all little-endian.
  explicit PrecompiledCharsmap(const JsonView& base64);

  // `text`, which is valid UTF-8, in its normalised form.
  std::string operator()(std::string_view text) const;

 private:
  std::optional<std::string_view> replacement_of(std::string_view text) const;
  void append_grapheme(std::string_view grapheme, std::string& out) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace quire
