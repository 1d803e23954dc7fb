#include "grammar/regex.h"

#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "grammar/grammar.h"

namespace quire::grammar {
namespace {

constexpr std::size_t kMaxCharacters = 1u << 17;
constexpr unsigned kMaxGroups = 200;           // in one another
constexpr std::uint32_t kMaxCount = 1u << 20;  // of a repetition

// The texts of a part of the expression, by whether ^ holds where they begin, and $ where they end (bits).
using Anchored = std::array<ExprId, 4>;
constexpr std::size_t kBegin = 1, kEnd = 2;
constexpr Anchored kTextBegins = {kNothing, kEmpty};

// The set of a class such as d, D, s, w; nothing if the letter names none.
std::optional<CharacterSet> class_escape(char32_t letter) {
  static const std::map<char32_t, CharacterSet> classes = {
      {'d', CharacterSet{{'0', '9'}}},
      {'w', CharacterSet{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
      {'s', CharacterSet{{'\t', '\r'},
                         {' ', ' '},
                         {0xA0, 0xA0},
                         {0x1680, 0x1680},
                         {0x2000, 0x200A},
                         {0x2028, 0x2029},
                         {0x202F, 0x202F},
                         {0x205F, 0x205F},
                         {0x3000, 0x3000},
                         {0xFEFF, 0xFEFF}}}};
  const auto found = classes.find(letter | 32);
  if (found == classes.end()) return std::nullopt;
  return (letter & 32) != 0 ? found->second : found->second.complement();
}

class RegexParser {
 public:
  // what: it is called in errors.
  RegexParser(std::string_view pattern, std::string_view what) : what_(what) {
    auto text = decode_utf8(pattern);
    if (!text) throw GrammarError(format_text("the {} is not valid UTF-8", what));
    if (text->size() > kMaxCharacters)
      throw GrammarError(format_text("the {} has more than {} characters", what, kMaxCharacters));
    text_ = std::move(*text);
  }

  ExprId expression(Expressions& expressions, const CharacterExpr& character, bool search) {
    ex_ = &expressions;
    character_ = &character;
    search_ = search;
    const Anchored texts = alternatives();
    if (!at_end()) fail_here("')' closes no group");
    return whole(texts, search ? ex_->repeat(character(CharacterSet::all())) : kEmpty, search);
  }

  // Of a text without operators.
  std::u32string characters() {
    std::u32string result;
    while (!at_end()) result += class_item().only().value();
    return result;
  }

 private:
  [[noreturn]] void fail_here(std::string_view what) const {
    throw GrammarError(format_text("{}, character {}: {}", what_, at_, what));
  }
  bool at_end() const { return at_ == text_.size(); }
  char32_t peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : U'\0';
  }
  bool take(char32_t character) {
    if (at_end() || text_[at_] != character) return false;
    ++at_;
    return true;
  }

  // Where any text may follow, so may any bytes: whoever searches holds the whole to be text. That nothing
  // else matters there shows at once, with bytes.
  ExprId whole(const Anchored& texts, ExprId before, bool any_behind) {
    std::vector<ExprId> all;
    for (std::size_t i = 0; i < texts.size(); ++i)
      all.push_back(ex_->concat({(i & kBegin) != 0 ? kEmpty : before, texts[i],
                                 (i & kEnd) != 0 || !any_behind ? kEmpty : kAnything}));
    return ex_->any_of(std::move(all));
  }

  // Whether (?=...) or (?!...) is next, where the whole text begins.
  bool looks_ahead(const std::vector<Anchored>& sequence) const {
    return depth_ == 0 && peek() == '(' && peek(1) == '?' && (peek(2) == '=' || peek(2) == '!') &&
           (!search_ || !sequence.empty()) &&
           std::ranges::all_of(sequence, [](const Anchored& one) { return one == kTextBegins; });
  }

  // Of all texts that it allows.
  ExprId look_ahead() {
    const bool refuses = peek(2) == '!';
    at_ += 3;
    const ExprId allowed = whole(inner(), kEmpty, true);
    return refuses ? ex_->complement(allowed) : allowed;
  }

  Anchored alternatives() {
    std::array<std::vector<ExprId>, 4> texts;
    do {
      std::vector<Anchored> sequence;
      std::vector<ExprId> held;  // what else the whole text must be
      while (!at_end() && peek() != '|' && peek() != ')') {
        if (looks_ahead(sequence))
          held.push_back(look_ahead());
        else
          sequence.push_back(repeated());
      }
      Anchored one = {kEmpty};
      for (std::size_t i = sequence.size(); i-- > 0;) one = concat(sequence[i], one);
      if (!held.empty()) {
        held.push_back(whole(one, kEmpty, search_));
        one = {};
        one[kBegin | kEnd] = ex_->all_of(std::move(held));
      }
      for (std::size_t i = 0; i < one.size(); ++i) texts[i].push_back(one[i]);
    } while (take('|'));
    Anchored result{};
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = ex_->any_of(std::move(texts[i]));
    return result;
  }

  Anchored concat(const Anchored& first, const Anchored& second) {
    Anchored result{};
    for (std::size_t i = 0; i < result.size(); ++i) {
      for (std::size_t j = 0; first[i] != kNothing && j < result.size(); ++j) {
        if (second[j] == kNothing) continue;
        if (((j & kBegin) != 0 && first[i] != kEmpty) || ((i & kEnd) != 0 && second[j] != kEmpty))
          fail_here("^ is supported where the text begins, $ where it ends");
        const ExprId text = ex_->concat(first[i], second[j]);
        result[i | j] = result[i | j] == kNothing ? text : ex_->any_of({result[i | j], text});
      }
    }
    return result;
  }

  // Reads a quantifier, if there is one.
  bool quantifier(std::uint32_t& min, std::uint32_t& max) {
    min = 0, max = kNoLimit;
    if (take('?'))
      max = 1;
    else if (take('+'))
      min = 1;
    else if (!take('*') && !(peek() == '{' && counts(min, max)))
      return false;
    return true;
  }

  Anchored repeated() {
    const Anchored once = atom();
    std::uint32_t min = 0, max = 0, more = 0;
    if (!quantifier(min, max)) return once;
    if (once != Anchored{once[0]}) fail_here("an anchor cannot be repeated");
    take('?');  // lazy: of the same language
    if (quantifier(more, more)) fail_here("a repetition is repeated; a group would do");
    return {ex_->repeat(once[0], min, max)};
  }

  // {3}, {3,} or {3,5}; what is none of them stands for itself.
  bool counts(std::uint32_t& min, std::uint32_t& max) {
    const std::size_t start = at_++;
    const auto number = [&](std::uint32_t& value) {
      const std::size_t first = at_;
      for (value = 0; peek() >= '0' && peek() <= '9'; ++at_) {
        value = value * 10 + (peek() - '0');
        if (value > kMaxCount) fail_here(format_text("repetition of more than {}", kMaxCount));
      }
      return at_ > first;
    };
    const bool has_min = number(min);
    max = min;
    if (has_min && take(',') && !number(max)) max = kNoLimit;
    if (!has_min || !take('}')) {
      at_ = start;
      return false;
    }
    if (max < min) fail_here("a repetition's bounds stand in the wrong order");
    return true;
  }

  Anchored atom() {
    const char32_t character = text_[at_++];
    switch (character) {
      case '(':
        return group();
      case '[':
        return {(*character_)(bracket())};
      case '.':
        return {(*character_)(CharacterSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.complement())};
      case '^':
        return kTextBegins;
      case '$':
        return {kNothing, kNothing, kEmpty};
      case '*':
      case '+':
      case '?':
        --at_;
        fail_here("there is nothing to repeat");
      case '\\':
        if (peek() == 'b' || peek() == 'B') fail_here("word boundaries are not supported");
        return {(*character_)(escape())};
      default:
        return {(*character_)({{character, character}})};
    }
  }

  Anchored group() {
    if (take('?')) {
      const bool named =
          (peek() == 'P' && peek(1) == '<') || (peek() == '<' && peek(1) != '=' && peek(1) != '!');
      if (named) {
        while (!at_end() && peek() != '>') ++at_;
        take('>');
      } else if (!take(':')) {
        fail_here(
            "only groups (...), (?:...) and (?<name>...) are supported, no lookaround but ahead where the "
            "text "
            "begins, and no flags");
      }
    }
    return inner();
  }

  // What stands in a group, and its end.
  Anchored inner() {
    if (++depth_ > kMaxGroups) fail_here(format_text("more than {} groups in one another", kMaxGroups));
    const Anchored texts = alternatives();
    if (!take(')')) fail_here("a group is not closed by ')'");
    --depth_;
    return texts;
  }

  CharacterSet bracket() {
    const bool negated = take('^');
    CharacterSet::Ranges ranges;
    const auto add = [&](const CharacterSet& set) {
      ranges.insert(ranges.end(), set.ranges().begin(), set.ranges().end());
    };
    while (!take(']')) {
      if (at_end()) fail_here("a class is not closed by ']'");
      const CharacterSet first = class_item();
      add(first);
      if (peek() != '-' || peek(1) == ']' || at_ + 1 >= text_.size()) continue;
      ++at_;
      const CharacterSet last = class_item();
      add(last);
      const auto from = first.only(), to = last.only();
      if (from && to && *from > *to) fail_here("a range's ends stand in the wrong order");
      ranges.push_back(from && to ? std::pair(*from, *to) : std::pair(U'-', U'-'));  // else as in [\w-.]
    }
    const CharacterSet set(std::move(ranges));
    return negated ? set.complement() : set;
  }

  CharacterSet class_item() {
    if (at_end()) fail_here("a class is not closed by ']'");
    const char32_t character = text_[at_++];
    if (character != '\\') return {{character, character}};
    if (take('b')) return {{'\b', '\b'}};
    return escape();
  }

  char32_t hex(unsigned digits) {
    char32_t value = 0;
    for (unsigned i = 0; i < digits; ++i, ++at_) {
      const std::size_t digit = std::u32string_view(U"0123456789abcdefABCDEF").find(peek());
      if (digit == std::u32string_view::npos)
        fail_here(format_text("{} hexadecimal digits are expected", digits));
      value = value * 16 + static_cast<char32_t>(digit < 16 ? digit : digit - 6);
    }
    return value;
  }

  // \uHHHH, \u{H}, \uHHHH\uHHHH of a pair of surrogates, or \UHHHHHHHH.
  char32_t unicode_escape(bool is_long) {
    if (!is_long && take('{')) {
      unsigned digits = 0;
      while (peek(digits) != '}' && digits < 7) ++digits;
      const char32_t value = hex(digits);
      if (digits == 0 || !take('}') || value > kLastCharacter) fail_here("\\u{...} is no character");
      return value;
    }
    const char32_t value = hex(is_long ? 8 : 4);
    if (value > kLastCharacter) fail_here("the escape \\U is no character");
    if (value < 0xD800 || value >= 0xDC00 || peek() != '\\' || peek(1) != 'u') return value;
    at_ += 2;
    const char32_t low = hex(4);
    if (low < 0xDC00 || low >= 0xE000) fail_here("a high surrogate is not followed by a low one");
    return 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
  }

  CharacterSet escape() {
    if (at_end()) fail_here("a backslash at the end");
    const char32_t letter = text_[at_++];
    if (auto set = class_escape(letter)) return *set;
    constexpr std::u32string_view kLetters = U"nrtfv0", kMeanings{U"\n\r\t\f\v\0", 6};
    const std::size_t known = kLetters.find(letter);
    char32_t character = letter;
    if (known != std::u32string_view::npos)
      character = kMeanings[known];
    else if (letter == 'x')
      character = hex(2);
    else if (letter == 'u' || letter == 'U')
      character = unicode_escape(letter == 'U');
    else if (letter == 'c' && (peek() | 32) >= 'a' && (peek() | 32) <= 'z')
      character = text_[at_++] % 32;
    else if (letter >= '1' && letter <= '9')
      fail_here("references to groups are not supported");
    else if ((letter | 32) >= 'a' && (letter | 32) <= 'z' && letter < 128)
      fail_here(format_text("the escape \\{} is not supported", static_cast<char>(letter)));
    return {{character, character}};
  }

  std::string_view what_;
  std::u32string text_;
  Expressions* ex_ = nullptr;
  const CharacterExpr* character_ = nullptr;
  std::size_t at_ = 0;
  bool search_ = false;
  unsigned depth_ = 0;
};

}  // namespace

ExprId regex_expression(Expressions& expressions, std::string_view pattern, const CharacterExpr& character,
                        bool search) {
  return RegexParser(pattern, "regular expression").expression(expressions, character, search);
}

std::u32string string_characters(std::string_view text) { return RegexParser(text, "string").characters(); }

ExprId utf8_regex(Expressions& expressions, std::string_view pattern) {
  return regex_expression(
      expressions, pattern, [&](const CharacterSet& set) { return utf8_character(expressions, set); }, false);
}

}  // namespace quire::grammar
