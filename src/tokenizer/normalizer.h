#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/json_view.h"
#include "tokenizer/regex.h"

namespace quire {

// What a tokenizer does to a text before splitting it. Immutable, usable from any thread.
class Normalizer {
 public:
  Normalizer() = default;  // leaves text as it is
  static Normalizer from_json(const JsonView& config);

  // `text` normalised; it is valid UTF-8. The result lies in `text` itself if nothing changes, otherwise in
  // `buffer`.
  std::string_view apply(std::string_view text, std::string& buffer) const;

 private:
  enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
  struct Lowercase {};
  struct Strip {
    bool left, right;
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct Prepend {
    std::string text;
  };
  using Step = std::variant<UnicodeForm, Lowercase, Strip, Replace, Prepend>;

  void add_steps(const JsonView& config);
  static std::string run(UnicodeForm form, std::string_view text);
  static std::string run(Lowercase, std::string_view text);
  static std::string run(const Strip& strip, std::string_view text);
  static std::string run(const Replace& replace, std::string_view text);
  static std::string run(const Prepend& prepend, std::string_view text);

  std::vector<Step> steps_;
};

// The pattern of a Split or Replace: {"String": ...} or {"Regex": ...}.
Regex pattern_from_json(const JsonView& config);

}  // namespace quire
