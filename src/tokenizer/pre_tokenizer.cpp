#include "tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "tokenizer/byte_tokens.h"
#include "tokenizer/text_steps.h"

namespace quire {
namespace {

// What ByteLevel splits by itself: GPT-2's pattern.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+)";
constexpr std::string_view kPunctuationPattern = R"([!-/:-@\[-`{-~\p{P}])";
constexpr std::string_view kWhitespacePattern =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\p{White_Space}]+)";

}  // namespace

void PreTokens::start(std::string_view text, bool is_beginning) {
  text_ = text;
  has_beginning_ = is_beginning;
  pieces_.clear();
  if (!text.empty()) pieces_.push_back({0, text.size()});
}

template <typename Split>
void PreTokens::split(Split&& split_piece) {
  std::vector<TextRange> pieces;
  pieces.reserve(std::max(pieces_.size(), text_.size() / 4));
  for (const TextRange& range : pieces_) {
    split_piece(range.of(text_), [&](const TextRange& part) {
      if (part.begin < part.end) pieces.push_back({range.begin + part.begin, range.begin + part.end});
    });
  }
  const bool keeps_first =
      !pieces_.empty() && !pieces.empty() && pieces.front().begin == pieces_.front().begin;
  has_beginning_ = has_beginning_ && keeps_first;
  pieces_ = std::move(pieces);
}

template <typename Rewrite>
void PreTokens::rewrite(Rewrite&& rewrite_piece) {
  std::string text;
  text.reserve(text_.size() + pieces_.size());
  for (TextRange& range : pieces_) {
    const std::size_t begin = text.size();
    text += rewrite_piece(range.of(text_));
    range = {begin, text.size()};
  }
  check_growth(text.size());
  buffer_ = std::move(text);
  text_ = buffer_;
}

namespace {

using PreTokenizerSteps = std::vector<PreTokenizer::Step>;
using StepForm = PreTokenizer::Step::Kind;

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior behavior_from_json(const JsonView& name) {
  return static_cast<Behavior>(
      name.as_one_of({"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}));
}

Regex built_in(std::string_view pattern) { return Regex::from_pcre2(pattern, "built-in pattern"); }

struct Part {
  TextRange range;
  bool is_match;
};

// Whether a part belongs to the piece of the one before it.
bool joins_last(Behavior behavior, bool is_match, bool last_is_match) {
  if (is_match == last_is_match) return behavior == Behavior::kContiguous;
  return behavior == (is_match ? Behavior::kMergedWithPrevious : Behavior::kMergedWithNext);
}

// invert: matches and what lies between them change their parts.
void add_split(PreTokenizerSteps& steps, const Regex& pattern, Behavior behavior, bool invert = false) {
  const auto run = [=](PreTokens& tokens) {
    RegexScanner scanner(pattern);
    std::vector<Part> parts;
    tokens.split([&](std::string_view piece, const auto& add) {
      parts.clear();
      std::size_t end = 0;
      scanner.start(piece);
      while (const auto match = scanner.next()) {
        if (end < match->begin) parts.push_back({{end, match->begin}, invert});
        parts.push_back({*match, !invert});
        end = match->end;
      }
      if (end < piece.size()) parts.push_back({{end, piece.size()}, invert});
      for (std::size_t i = 0; i < parts.size();) {
        TextRange range = parts[i].range;
        const bool removed = behavior == Behavior::kRemoved && parts[i].is_match;
        for (++i; i < parts.size() && joins_last(behavior, parts[i].is_match, parts[i - 1].is_match); ++i)
          range.end = parts[i].range.end;
        if (!removed) add(range);
      }
    });
  };
  steps.push_back({StepForm::kSplit, run});
}

// Where each piece is rewritten by itself.
void add_rewrite(PreTokenizerSteps& steps, StepForm form, std::string (*rewrite)(std::string_view piece)) {
  steps.push_back({form, [=](PreTokens& tokens) { tokens.rewrite(rewrite); }});
}

void add_byte_level(PreTokenizerSteps& steps, const JsonView& config) {
  if (config.flag("add_prefix_space", true)) {
    add_rewrite(steps, StepForm::kRewrite, [](std::string_view piece) {
      return piece.starts_with(' ') ? std::string(piece) : " " + std::string(piece);
    });
  }
  if (config.flag("use_regex", true)) add_split(steps, built_in(kByteLevelPattern), Behavior::kIsolated);
  add_rewrite(steps, StepForm::kToByteCharacters, to_byte_characters);
}

void add_metaspace(PreTokenizerSteps& steps, const JsonView& config) {
  const Metaspace metaspace(config);
  const auto rewrite = [=](PreTokens& tokens) {
    bool is_beginning = tokens.has_beginning();
    tokens.rewrite([&](std::string_view piece) {
      const bool may_prepend = metaspace.prepend == Metaspace::Prepend::kAlways ||
                               (metaspace.prepend == Metaspace::Prepend::kFirst && is_beginning);
      is_beginning = false;
      std::string text = replace_all(piece, " ", metaspace.replacement);
      return may_prepend && !text.starts_with(metaspace.replacement) ? metaspace.replacement + text : text;
    });
  };
  steps.push_back({StepForm::kRewrite, rewrite});
  if (!metaspace.split) return;
  const auto split = [space = metaspace.replacement](PreTokens& tokens) {
    tokens.split([&](std::string_view piece, const auto& add) {
      std::size_t begin = 0;
      for (std::size_t next; (next = piece.find(space, begin + 1)) != piece.npos; begin = next)
        add(TextRange{begin, next});
      add(TextRange{begin, piece.size()});
    });
  };
  steps.push_back({StepForm::kSplit, split});
}

void add_given_split(PreTokenizerSteps& steps, const JsonView& config) {
  add_split(steps, pattern_from_json(config.at("pattern")), behavior_from_json(config.at("behavior")),
            config.flag("invert", false));
}

void add_digits(PreTokenizerSteps& steps, const JsonView& config) {
  const bool each = config.flag("individual_digits", false);
  add_split(steps, built_in("\\p{N}"), each ? Behavior::kIsolated : Behavior::kContiguous);
}

void add_punctuation(PreTokenizerSteps& steps, const JsonView& config) {
  const auto behavior = config.find("behavior");
  add_split(steps, built_in(kPunctuationPattern),
            behavior ? behavior_from_json(*behavior) : Behavior::kIsolated);
}

void add_whitespace(PreTokenizerSteps& steps, const JsonView&) {
  add_split(steps, built_in(kWhitespacePattern), Behavior::kRemoved, true);
}

void add_whitespace_split(PreTokenizerSteps& steps, const JsonView&) {
  add_split(steps, built_in("\\p{White_Space}"), Behavior::kRemoved);
}

void add_delimiter(PreTokenizerSteps& steps, const JsonView& config) {
  const JsonView delimiter = config.at("delimiter");
  add_split(steps, Regex::literal(delimiter.as_string(), delimiter.where()), Behavior::kRemoved);
}

void add_bert(PreTokenizerSteps& steps, const JsonView& config) {
  add_whitespace_split(steps, config);
  add_split(steps, built_in(kPunctuationPattern), Behavior::kIsolated);
}

constexpr StepKind<PreTokenizerSteps> kPreTokenizers[] = {{"ByteLevel", add_byte_level},
                                                          {"Metaspace", add_metaspace},
                                                          {"Split", add_given_split},
                                                          {"Digits", add_digits},
                                                          {"Punctuation", add_punctuation},
                                                          {"Whitespace", add_whitespace},
                                                          {"WhitespaceSplit", add_whitespace_split},
                                                          {"CharDelimiterSplit", add_delimiter},
                                                          {"BertPreTokenizer", add_bert}};

}  // namespace

PreTokenizer::PreTokenizer(const JsonView& config) {
  add_steps(steps_, config, "pre-tokenizer", "pretokenizers", kPreTokenizers);
}

bool PreTokenizer::is_byte_level() const {
  const auto is = [](StepForm kind) { return [kind](const Step& step) { return step.kind == kind; }; };
  const auto first = std::ranges::find_if(steps_, is(StepForm::kToByteCharacters));
  return first != steps_.end() && std::all_of(first + 1, steps_.end(), is(StepForm::kSplit));
}

void PreTokenizer::leave_bytes() {
  if (steps_.back().kind == StepForm::kToByteCharacters) {
    steps_.pop_back();  // the characters for bytes are needed only by further steps
  } else {
    add_rewrite(steps_, StepForm::kRewrite,
                [](std::string_view piece) { return from_byte_characters(piece).value(); });
  }
}

}  // namespace quire
