#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/json_view.h"
#include "tokenizer/precompiled.h"
#include "tokenizer/text_replacer.h"

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
  using AppendCharacter = void (*)(std::string& out, char32_t code_point);  // what becomes of it
  struct Strip {
    bool left, right;
  };
  struct Prepend {
    std::string text;
  };
  struct ToByteCharacters {};
  using Step = std::variant<UnicodeForm, AppendCharacter, Strip, TextReplacer, Prepend, ToByteCharacters,
                            PrecompiledCharsmap>;

  void add_steps(const JsonView& config);
  bool add_simple_step(std::string_view type);
  void add_bert_steps(const JsonView& config);
  static std::string run(UnicodeForm form, std::string_view text);
  static std::string run(AppendCharacter append, std::string_view text);
  static std::string run(const Strip& strip, std::string_view text);
  static std::string run(const TextReplacer& replacer, std::string_view text);
  static std::string run(const Prepend& prepend, std::string_view text);
  static std::string run(ToByteCharacters, std::string_view text);
  static std::string run(const PrecompiledCharsmap& map, std::string_view text);

  std::vector<Step> steps_;
};

}  // namespace quire
