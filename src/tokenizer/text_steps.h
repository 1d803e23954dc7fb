#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>

#include "tokenizer/json_view.h"
#include "tokenizer/regex.h"

namespace quire {

// What normalizers, pre-tokenizers, post-processors and decoders share: each is a list of steps, and some
// kinds of steps are known to several.

// A kind of step: its "type", and what adds steps of that kind as `config` has them.
template <typename Steps>
struct StepKind {
  std::string_view type;
  void (*add)(Steps& steps, const JsonView& config);
};

// Adds the steps of `config`: of one of the kinds, or a Sequence of such, which are listed under the key
// `list`. Error for another: `what` the steps make, and what is supported.
template <typename Steps, std::size_t kNumKinds>
void add_steps(Steps& steps, const JsonView& config, std::string_view what, const std::string& list,
               const StepKind<Steps> (&kinds)[kNumKinds]) {
  const std::string& type = config.at("type").as_string();
  if (type == "Sequence") {
    for (const JsonView& step : config.at(list).items()) add_steps(steps, step, what, list, kinds);
    return;
  }
  const auto kind = std::ranges::find(kinds, type, &StepKind<Steps>::type);
  if (kind != std::end(kinds)) return kind->add(steps, config);
  fail("{}: the {} {} is not supported; supported are {} and Sequence", config.where(), what, type,
       join_text(std::views::transform(kinds, &StepKind<Steps>::type), ", "));
}

// Error, naming what grows, if a text would pass the limit of 1 GiB.
void check_growth(std::size_t bytes);

// `text` with every `from`, which is not empty, replaced.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// The pattern of a Split or Replace: {"String": ...} or {"Regex": ...}.
Regex pattern_from_json(const JsonView& config);

// Replaces what a pattern finds: the Replace of normalizers and decoders. Immutable, usable from any thread.
class TextReplacer {
 public:
  // Of {"pattern": ..., "content": ...}.
  explicit TextReplacer(const JsonView& config);

  std::string operator()(std::string_view text) const;
  // The pattern is one character: it cannot be split between parts of a text.
  bool replaces_single_characters() const { return is_character(literal_); }

 private:
  std::string literal_;         // what is looked for, unless empty
  std::optional<Regex> regex_;  // otherwise
  std::string content_;
};

// The settings of a Metaspace pre-tokenizer or decoder: a visible character stands for the space, and one is
// put in front of a text, so that its first word is spelled as any other.
struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };  // to every piece, or to that which begins the text

  explicit Metaspace(const JsonView& config);

  std::string replacement;  // one character
  Prepend prepend;
  bool split;  // in front of each replacement
};

}  // namespace quire
