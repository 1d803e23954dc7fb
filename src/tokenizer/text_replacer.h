#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/json_view.h"
#include "tokenizer/regex.h"

namespace quire {

// Error, naming what grows, if a text would pass the limit of 1 GiB.
void check_growth(std::size_t bytes);

// `text` with every `from`, which is not empty, replaced.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// The text of a setting that must be one character.
const std::string& one_character(const JsonView& config);

// Replaces what a pattern finds: the Replace of normalizers and decoders. Immutable, usable from any thread.
class TextReplacer {
 public:
  // Of {"pattern": ..., "content": ...}.
  static TextReplacer from_json(const JsonView& config);

  std::string apply(std::string_view text) const;
  // The pattern is one character: it cannot be split between parts of a text.
  bool replaces_single_characters() const;

 private:
  std::string literal_;         // what is looked for, unless empty
  std::optional<Regex> regex_;  // otherwise
  std::string content_;
};

// The pattern of a Split or Replace: {"String": ...} or {"Regex": ...}.
Regex pattern_from_json(const JsonView& config);

}  // namespace quire
