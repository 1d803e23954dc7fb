#include "grammar/regex.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "grammar/grammar.h"

namespace quire::grammar {
namespace {

constexpr std::size_t kMaxCharacters = 1u << 17;
constexpr unsigned kMaxGroups = 200;           // in one another
constexpr std::uint32_t kMaxCount = 1u << 20;  // of a repetition

struct RegexNode {
  enum class Kind { kSet, kSequence, kAlternatives, kRepeat, kBegin, kEnd };
  Kind kind;
  CharacterSet set{};
  std::vector<RegexNode> children{};
  std::uint32_t min = 0, max = 0;
  bool anchored = false;  // has an anchor somewhere
};

// The set of a class such as d, D, s, w; nothing if the letter names none.
std::optional<CharacterSet> class_escape(char32_t letter) {
  CharacterSet set;
  switch (letter | 32) {
    case 'd':
      set = {{'0', '9'}};
      break;
    case 'w':
      set = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
      break;
    case 's':
      set = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
             {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
      break;
    default:
      return std::nullopt;
  }
  return (letter & 32) != 0 ? set : set.complement();
}

class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern) {
    auto text = decode_utf8(pattern);
    if (!text) throw GrammarError("the regular expression is not valid UTF-8");
    if (text->size() > kMaxCharacters)
      throw GrammarError(format_text("the regular expression has more than {} characters", kMaxCharacters));
    text_ = std::move(*text);
  }

  RegexNode parse() {
    RegexNode node = alternatives();
    if (!at_end()) fail_here("')' closes no group");
    return node;
  }

 private:
  using Kind = RegexNode::Kind;

  [[noreturn]] void fail_here(std::string_view what) const {
    throw GrammarError(format_text("regular expression, character {}: {}", at_, what));
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
  static void add(RegexNode& parent, RegexNode child) {
    parent.anchored |= child.anchored;
    parent.children.push_back(std::move(child));
  }

  RegexNode alternatives() {
    RegexNode node{.kind = Kind::kAlternatives};
    do {
      RegexNode sequence{.kind = Kind::kSequence};
      while (!at_end() && peek() != '|' && peek() != ')') add(sequence, repeated());
      add(node, std::move(sequence));
    } while (take('|'));
    return node.children.size() == 1 ? std::move(node.children.front()) : node;
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

  RegexNode repeated() {
    RegexNode node = atom();
    RegexNode repeat{.kind = Kind::kRepeat};
    if (!quantifier(repeat.min, repeat.max)) return node;
    if (node.kind == Kind::kBegin || node.kind == Kind::kEnd) fail_here("an anchor cannot be repeated");
    take('?');  // lazy: of the same language
    if (std::uint32_t min = 0, max = 0; quantifier(min, max))
      fail_here("a repetition is repeated; a group would do");
    add(repeat, std::move(node));
    return repeat;
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

  RegexNode atom() {
    const char32_t character = text_[at_++];
    switch (character) {
      case '(':
        return group();
      case '[':
        return {.kind = Kind::kSet, .set = bracket()};
      case '.':
        return {.kind = Kind::kSet,
                .set = CharacterSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.complement()};
      case '^':
        return {.kind = Kind::kBegin, .anchored = true};
      case '$':
        return {.kind = Kind::kEnd, .anchored = true};
      case '*':
      case '+':
      case '?':
        --at_;
        fail_here("there is nothing to repeat");
      case '\\':
        if (peek() == 'b' || peek() == 'B') fail_here("word boundaries are not supported");
        return {.kind = Kind::kSet, .set = escape()};
      default:
        return {.kind = Kind::kSet, .set = {{character, character}}};
    }
  }

  RegexNode group() {
    if (++depth_ > kMaxGroups) fail_here(format_text("more than {} groups in one another", kMaxGroups));
    if (take('?')) {
      const bool named =
          (peek() == 'P' && peek(1) == '<') || (peek() == '<' && peek(1) != '=' && peek(1) != '!');
      if (named) {
        while (!at_end() && peek() != '>') ++at_;
        take('>');
      } else if (!take(':')) {
        fail_here("only groups (...), (?:...) and (?<name>...) are supported, no lookaround and no flags");
      }
    }
    RegexNode node = alternatives();
    if (!take(')')) fail_here("a group is not closed by ')'");
    --depth_;
    return node;
  }

  CharacterSet bracket() {
    const bool negated = take('^');
    CharacterSet::Ranges ranges;
    const auto add = [&](const CharacterSet& set) {
      ranges.insert(ranges.end(), set.ranges().begin(), set.ranges().end());
    };
    while (!take(']')) {
      if (at_end()) fail_here("a class is not closed by ']'");
      const CharacterSet first = bracket_item();
      add(first);
      if (peek() != '-' || peek(1) == ']' || at_ + 1 >= text_.size()) continue;
      ++at_;
      const CharacterSet last = bracket_item();
      add(last);
      const auto from = first.only(), to = last.only();
      if (from && to && *from > *to) fail_here("a range's ends stand in the wrong order");
      ranges.push_back(from && to ? std::pair(*from, *to) : std::pair(U'-', U'-'));  // else as in [\w-.]
    }
    const CharacterSet set(std::move(ranges));
    return negated ? set.complement() : set;
  }

  CharacterSet bracket_item() {
    if (at_end()) fail_here("a class is not closed by ']'");
    const char32_t character = text_[at_++];
    if (character != '\\') return {{character, character}};
    if (take('b')) return {{'\b', '\b'}};
    return escape();
  }

  char32_t hex(unsigned digits) {
    char32_t value = 0;
    for (unsigned i = 0; i < digits; ++i, ++at_) {
      const char32_t digit = peek();
      if (digit >= '0' && digit <= '9')
        value = value * 16 + (digit - '0');
      else if ((digit | 32) >= 'a' && (digit | 32) <= 'f')
        value = value * 16 + ((digit | 32) - 'a' + 10);
      else
        fail_here(format_text("{} hexadecimal digits are expected", digits));
    }
    return value;
  }

  char32_t unicode_escape() {
    if (take('{')) {
      unsigned digits = 0;
      while (peek(digits) != '}' && digits < 7) ++digits;
      const char32_t value = hex(digits);
      if (digits == 0 || !take('}') || value > kLastCharacter) fail_here("\\u{...} is no character");
      return value;
    }
    const char32_t value = hex(4);
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
    else if (letter == 'u')
      character = unicode_escape();
    else if (letter == 'c' && (peek() | 32) >= 'a' && (peek() | 32) <= 'z')
      character = text_[at_++] % 32;
    else if (letter >= '1' && letter <= '9')
      fail_here("references to groups are not supported");
    else if ((letter | 32) >= 'a' && (letter | 32) <= 'z' && letter < 128)
      fail_here(format_text("the escape \\{} is not supported", static_cast<char>(letter)));
    return {{character, character}};
  }

  std::u32string text_;
  std::size_t at_ = 0;
  unsigned depth_ = 0;
};

// What lies beside a part of the expression: more of it, the text's end, or any text.
enum class Side { kInside, kEdge, kOpen };

class RegexBuilder {
 public:
  RegexBuilder(Expressions& expressions, const CharacterExpr& character)
      : expressions_(expressions),
        character_(character),
        anything_(expressions.repeat(character(CharacterSet::all()), 0, kNoLimit)) {}

  ExprId build(const RegexNode& node, Side left, Side right) {
    switch (node.kind) {
      case RegexNode::Kind::kBegin:
      case RegexNode::Kind::kEnd:
        return build_anchored({&node, 1}, left, right);
      case RegexNode::Kind::kAlternatives: {
        std::vector<ExprId> parts;
        for (const RegexNode& child : node.children) parts.push_back(build(child, left, right));
        return expressions_.any_of(std::move(parts));
      }
      default:
        if (node.kind == RegexNode::Kind::kSequence && node.anchored)
          return build_anchored(node.children, left, right);
        return expressions_.concat({left == Side::kOpen ? anything_ : kEmpty, plain(node), behind(right)});
    }
  }

 private:
  // Where any text may follow, so may any bytes: whoever searches holds the whole to be text. That nothing
  // else matters there shows at once, with bytes.
  static ExprId behind(Side side) { return side == Side::kOpen ? kAnything : kEmpty; }

  [[noreturn]] static void fail_anchor() {
    throw GrammarError("regular expression: ^ is supported where the text begins, $ where it ends");
  }

  // Anchors may stand first and last, or so in a group that does.
  ExprId build_anchored(std::span<const RegexNode> nodes, Side left, Side right) {
    for (; !nodes.empty() && nodes.front().kind == RegexNode::Kind::kBegin; nodes = nodes.subspan(1)) {
      if (left == Side::kInside) fail_anchor();
      left = Side::kEdge;
    }
    for (; !nodes.empty() && nodes.back().kind == RegexNode::Kind::kEnd;
         nodes = nodes.first(nodes.size() - 1)) {
      if (right == Side::kInside) fail_anchor();
      right = Side::kEdge;
    }
    if (nodes.empty()) return left == Side::kOpen ? anything_ : behind(right);
    if (nodes.size() == 1) {
      if (nodes.front().kind == RegexNode::Kind::kBegin || nodes.front().kind == RegexNode::Kind::kEnd)
        fail_anchor();
      return build(nodes.front(), left, right);
    }
    ExprId result = build(nodes.back(), Side::kInside, right);
    for (std::size_t i = nodes.size() - 1; i-- > 1;) result = expressions_.concat(plain(nodes[i]), result);
    return expressions_.concat(build(nodes.front(), left, Side::kInside), result);
  }

  ExprId plain(const RegexNode& node) {
    switch (node.kind) {
      case RegexNode::Kind::kSet:
        return character_(node.set);
      case RegexNode::Kind::kRepeat:
        return expressions_.repeat(plain(node.children.front()), node.min, node.max);
      case RegexNode::Kind::kSequence: {
        ExprId result = kEmpty;
        for (std::size_t i = node.children.size(); i-- > 0;)
          result = expressions_.concat(plain(node.children[i]), result);
        return result;
      }
      case RegexNode::Kind::kAlternatives: {
        std::vector<ExprId> parts;
        for (const RegexNode& child : node.children) parts.push_back(plain(child));
        return expressions_.any_of(std::move(parts));
      }
      default:
        fail_anchor();
    }
  }

  Expressions& expressions_;
  const CharacterExpr& character_;
  ExprId anything_;
};

}  // namespace

ExprId regex_expression(Expressions& expressions, std::string_view pattern, const CharacterExpr& character,
                        bool search) {
  const RegexNode node = RegexParser(pattern).parse();
  const Side side = search ? Side::kOpen : Side::kEdge;
  return RegexBuilder(expressions, character).build(node, side, side);
}

ExprId utf8_regex(Expressions& expressions, std::string_view pattern) {
  return regex_expression(
      expressions, pattern, [&](const CharacterSet& set) { return utf8_character(expressions, set); }, false);
}

}  // namespace quire::grammar
