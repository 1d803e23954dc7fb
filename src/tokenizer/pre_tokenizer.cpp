#include "tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "tokenizer/byte_level.h"
#include "tokenizer/text_replacer.h"

namespace quire {
namespace {

// What ByteLevel splits by itself: GPT-2's pattern.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+)";
constexpr std::string_view kPunctuationPattern = R"([!-/:-@\[-`{-~\p{P}])";
constexpr std::string_view kWhitespacePattern =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\p{White_Space}]+)";

struct Part {
  TextRange range;
  bool is_match;
};

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
    split_piece(piece(range), [&](const TextRange& part) {
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
    text += rewrite_piece(piece(range));
    range = {begin, text.size()};
  }
  buffer_ = std::move(text);
  text_ = buffer_;
}

bool PreTokenizer::is_byte_level() const {
  const auto writes_bytes = [](const Step& step) { return std::holds_alternative<ToByteCharacters>(step); };
  const auto first = std::find_if(steps_.begin(), steps_.end(), writes_bytes);
  return first != steps_.end() && std::all_of(first + 1, steps_.end(), [](const Step& step) {
           return std::holds_alternative<Split>(step);
         });
}

void PreTokenizer::leave_bytes() {
  if (std::holds_alternative<ToByteCharacters>(steps_.back())) {
    steps_.pop_back();  // the characters for bytes are needed only by further steps
  } else {
    steps_.emplace_back(FromByteCharacters{});
  }
}

void PreTokenizer::add_split(std::string_view pcre2_pattern, Behavior behavior, bool invert) {
  steps_.emplace_back(Split{Regex::from_pcre2(pcre2_pattern, "built-in pattern"), behavior, invert});
}

void PreTokenizer::add_byte_level(const JsonView& config) {
  if (config.flag("add_prefix_space", true)) steps_.emplace_back(AddPrefixSpace{});
  if (config.flag("use_regex", true)) add_split(kByteLevelPattern, Behavior::kIsolated);
  steps_.emplace_back(ToByteCharacters{});
}

void PreTokenizer::add_steps(const JsonView& config) {
  const std::string& type = config.at("type").as_string();
  if (type == "Sequence") {
    for (const JsonView& step : config.at("pretokenizers").items()) add_steps(step);
  } else if (type == "ByteLevel") {
    add_byte_level(config);
  } else if (type == "Split") {
    steps_.emplace_back(Split{pattern_from_json(config.at("pattern")),
                              behavior_from_json(config.at("behavior")), config.flag("invert", false)});
  } else if (type == "Digits") {
    const bool each = config.flag("individual_digits", false);
    add_split("\\p{N}", each ? Behavior::kIsolated : Behavior::kContiguous);
  } else if (type == "Punctuation") {
    const auto behavior = config.find("behavior");
    add_split(kPunctuationPattern, behavior ? behavior_from_json(*behavior) : Behavior::kIsolated);
  } else if (type == "Whitespace") {
    add_split(kWhitespacePattern, Behavior::kRemoved, true);
  } else if (type == "WhitespaceSplit") {
    add_split("\\p{White_Space}", Behavior::kRemoved);
  } else if (type == "BertPreTokenizer") {
    add_split("\\p{White_Space}", Behavior::kRemoved);
    add_split(kPunctuationPattern, Behavior::kIsolated);
  } else if (type == "CharDelimiterSplit") {
    const JsonView delimiter = config.at("delimiter");
    steps_.emplace_back(
        Split{Regex::literal(delimiter.as_string(), delimiter.where()), Behavior::kRemoved, false});
  } else if (type == "Metaspace") {
    steps_.emplace_back(Metaspace::from_json(config));
  } else {
    fail(
        "{}: the pre-tokenizer {} is not supported; supported are ByteLevel, Metaspace, Split, Digits, "
        "Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit, BertPreTokenizer and Sequence",
        config.where(), type);
  }
}

PreTokenizer::Behavior PreTokenizer::behavior_from_json(const JsonView& name) {
  const std::string& text = name.as_string();
  if (text == "Removed") return Behavior::kRemoved;
  if (text == "Isolated") return Behavior::kIsolated;
  if (text == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (text == "MergedWithNext") return Behavior::kMergedWithNext;
  if (text == "Contiguous") return Behavior::kContiguous;
  fail("{}: {} is none of Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous", name.where(),
       text);
}

void PreTokenizer::run(PreTokens& tokens) const {
  for (const Step& step : steps_) {
    std::visit([&](const auto& kind) { run(kind, tokens); }, step);
  }
}

void PreTokenizer::run(AddPrefixSpace, PreTokens& tokens) {
  tokens.rewrite([](std::string_view piece) {
    return piece.starts_with(' ') ? std::string(piece) : " " + std::string(piece);
  });
}

void PreTokenizer::run(ToByteCharacters, PreTokens& tokens) { tokens.rewrite(to_byte_characters); }

void PreTokenizer::run(FromByteCharacters, PreTokens& tokens) {
  tokens.rewrite([](std::string_view piece) { return from_byte_characters(piece).value(); });
}

void PreTokenizer::run(const Metaspace& metaspace, PreTokens& tokens) {
  const std::string& space = metaspace.replacement;
  bool is_beginning = tokens.has_beginning();
  tokens.rewrite([&](std::string_view piece) {
    const bool may_prepend = metaspace.prepend == Metaspace::Prepend::kAlways ||
                             (metaspace.prepend == Metaspace::Prepend::kFirst && is_beginning);
    is_beginning = false;
    std::string text = replace_all(piece, " ", space);
    return may_prepend && !text.starts_with(space) ? space + text : text;
  });
  if (!metaspace.split) return;
  tokens.split([&](std::string_view piece, const auto& add) {
    std::size_t begin = 0;
    for (std::size_t next; (next = piece.find(space, begin + 1)) != piece.npos; begin = next)
      add(TextRange{begin, next});
    add(TextRange{begin, piece.size()});
  });
}

void PreTokenizer::run(const Split& split, PreTokens& tokens) {
  RegexScanner scanner(split.pattern);
  std::vector<Part> parts;
  tokens.split([&](std::string_view piece, const auto& add) {
    parts.clear();
    std::size_t end = 0;
    scanner.start(piece);
    while (const auto match = scanner.next()) {
      if (end < match->begin) parts.push_back({{end, match->begin}, split.invert});
      parts.push_back({*match, !split.invert});
      end = match->end;
    }
    if (end < piece.size()) parts.push_back({{end, piece.size()}, split.invert});

    const auto joins_last = [&](std::size_t i) {  // part i belongs to the piece of part i - 1
      const bool match = parts[i].is_match, last_match = parts[i - 1].is_match;
      switch (split.behavior) {
        case Behavior::kMergedWithPrevious:
          return match && !last_match;
        case Behavior::kMergedWithNext:
          return last_match && !match;
        case Behavior::kContiguous:
          return match == last_match;
        default:
          return false;
      }
    };
    for (std::size_t i = 0; i < parts.size();) {
      TextRange range = parts[i].range;
      const bool removed = split.behavior == Behavior::kRemoved && parts[i].is_match;
      for (++i; i < parts.size() && joins_last(i); ++i) range.end = parts[i].range.end;
      if (!removed) add(range);
    }
  });
}

}  // namespace quire
