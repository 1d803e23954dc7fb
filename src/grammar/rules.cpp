#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/parse_number.h"
#include "grammar/grammar.h"
#include "grammar/languages.h"
#include "grammar/regex.h"

namespace quire::grammar {
namespace {

constexpr unsigned kMaxRuleDepth = 300;
constexpr std::string_view kEscapes = "nrtfv0\\\"'/[]^-xuU";  // of strings
constexpr std::size_t kNoRule = static_cast<std::size_t>(-1);

// One part of an alternative: a rule, or an expression that names none.
struct Element {
  std::size_t rule = kNoRule;
  ExprId expr = kEmpty;
  bool terminal = false;  // what %ignore allows text behind
  std::uint32_t min = 1, max = 1;
};
using Sequence = std::vector<Element>;

struct Rule {
  std::string name{};
  std::vector<Sequence> alternatives{};
  bool defined = false;
  bool terminal = false;  // between whose parts nothing is ignored
  Recursive built{};
};

struct Rules {
  std::vector<Rule> all;
  std::size_t root;
  std::vector<Element> ignored;
};

// Terminals that %import common knows.
constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kCommonTerminals = {
    {{"DIGIT", "[0-9]"},
     {"LETTER", "[A-Za-z]"},
     {"WORD", "[A-Za-z]+"},
     {"CNAME", "[A-Za-z_][A-Za-z0-9_]*"},
     {"INT", "[0-9]+"},
     {"NUMBER", "[0-9]+(\\.[0-9]*)?([eE][+-]?[0-9]+)?"},
     {"SIGNED_NUMBER", "[+-]?[0-9]+(\\.[0-9]*)?([eE][+-]?[0-9]+)?"},
     {"WS", "[ \\t\\f\\r\\n]+"},
     {"WS_INLINE", "[ \\t]+"},
     {"NEWLINE", "(\\r?\\n)+"},
     {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\""}}};

bool is_name(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
         byte == '_' || byte == '-';
}

class RuleParser {
 public:
  RuleParser(Expressions& expressions, std::string_view text, const Vocabulary& vocabulary)
      : ex_(expressions), text_(text), vocabulary_(vocabulary) {}

  Rules parse() {
    for (skip(); at_ < text_.size(); skip()) {
      if (take("%")) {
        directive();
        continue;
      }
      while (take("?") || take("!")) {  // how Lark shapes its trees
      }
      const std::string name(word());
      if (name.empty()) fail_here("a rule's name is expected");
      const std::size_t rule = define(name);
      const bool has_priority = take(".");  // in Lark, where it changes nothing of the language
      if (has_priority) word();
      skip();
      const bool gbnf = !has_priority && take("::=");
      if (!gbnf && !take(":")) fail_here("::= or : is expected behind a rule's name");
      lark_ = !gbnf;
      rules_[rule].terminal = in_terminal_ = lark_ && is_terminal(name);
      rules_[rule].alternatives = parse_alternatives();
    }
    for (const Rule& rule : rules_)
      if (!rule.defined)
        throw GrammarError(format_text("grammar: the rule {} is not defined", in_quotes(rule.name)));
    for (const char* name : {"root", "start"})
      if (const auto found = by_name_.find(name); found != by_name_.end())
        return {std::move(rules_), found->second, std::move(ignored_)};
    throw GrammarError("grammar: it has no rule named root or start");
  }

 private:
  [[noreturn]] void fail_here(std::string_view what) const {
    const std::string_view before = text_.substr(0, std::min(at_, text_.size()));
    const auto line = std::ranges::count(before, '\n') + 1;
    throw GrammarError(format_text("grammar, line {}, column {}: {}", line,
                                   before.size() - std::min(before.rfind('\n') + 1, before.size()) + 1,
                                   what));
  }
  static bool is_terminal(std::string_view name) {
    return std::ranges::none_of(name, [](char byte) { return byte >= 'a' && byte <= 'z'; });
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(std::string_view mark) {
    if (!text_.substr(at_).starts_with(mark)) return false;
    at_ += mark.size();
    return true;
  }
  void skip() {
    for (; at_ < text_.size(); ++at_) {
      if (peek() == '#' || text_.substr(at_).starts_with("//"))
        at_ = std::min(text_.find('\n', at_), text_.size() - 1);
      else if (std::string_view(" \t\r\n").find(peek()) == std::string_view::npos)
        return;
    }
  }
  std::string_view word() {
    const std::size_t first = at_;
    while (is_name(peek()) && !(peek() == '-' && at_ == first)) ++at_;
    return text_.substr(first, at_ - first);
  }
  std::uint32_t number() {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc() || value > 1u << 20) fail_here("a number of at most 2^20 is expected");
    at_ = static_cast<std::size_t>(end - text_.data());
    return value;
  }
  std::size_t rule_named(const std::string& name) {
    const auto [found, is_new] = by_name_.try_emplace(name, rules_.size());
    if (is_new) rules_.push_back({.name = name});
    return found->second;
  }
  std::size_t define(const std::string& name) {
    const std::size_t rule = rule_named(name);
    if (rules_[rule].defined) fail_here(format_text("the rule {} is defined twice", in_quotes(name)));
    rules_[rule].defined = true;
    return rule;
  }
  // What `read` makes of a part of the text. Its errors stand where the part ends.
  template <typename F>
  auto located(F&& read) const {
    try {
      return read();
    } catch (const GrammarError& error) {
      fail_here(error.what());
    }
  }
  ExprId regex(std::string_view pattern) const {
    return located([&] { return utf8_regex(ex_, pattern); });
  }

  void directive() {
    lark_ = true;  // which alone has them
    in_terminal_ = false;
    const std::string_view what = word();
    skip();
    if (what == "ignore") {
      auto ignored = element();
      if (!ignored) fail_here("what to ignore is expected");
      quantifier(*ignored);
      ignored_.push_back(*ignored);
    } else if (what == "import" && take("common.")) {
      const std::string name(word());
      const auto* const found =
          std::ranges::find(kCommonTerminals, name, &std::pair<std::string_view, std::string_view>::first);
      if (found == kCommonTerminals.end())
        fail_here(format_text("common has no terminal {} here", in_quotes(name)));
      if (imported_.insert(name).second)  // to import it again changes nothing
        rules_[define(name)].alternatives = {{{.expr = regex(found->second)}}};
    } else {
      fail_here("only %ignore and %import common.NAME are supported");
    }
  }

  std::vector<Sequence> parse_alternatives() {
    if (++depth_ > kMaxRuleDepth) fail_here("groups are nested too deep");
    std::vector<Sequence> result;
    do {
      Sequence sequence;
      while (auto part = element()) {
        quantifier(*part);
        sequence.push_back(*part);
      }
      if (take("->")) {  // Lark's name for an alternative
        skip();
        word();
        skip();
      }
      result.push_back(std::move(sequence));
    } while (take("|"));
    --depth_;
    return result;
  }

  void quantifier(Element& part) {
    const std::size_t end = at_;
    skip();
    if (take("*")) {
      part.min = 0, part.max = kNoLimit;
    } else if (take("+")) {
      part.max = kNoLimit;
    } else if ((at_ == end || !lark_) && take("?")) {  // else it belongs to the next rule
      part.min = 0;
    } else if (take("{") || take("~")) {
      const bool tilde = text_[at_ - 1] == '~';
      skip();
      part.min = part.max = number();
      skip();
      if (take(tilde ? ".." : ",")) {
        skip();
        part.max = peek() == '}' ? kNoLimit : number();
        skip();
      }
      if (!tilde && !take("}")) fail_here("a repetition such as {1,3} is expected");
      if (part.min > part.max) fail_here("a repetition's bounds stand in the wrong order");
    }
  }

  Element group(std::string_view close) {
    auto alternatives = parse_alternatives();
    if (!take(close)) fail_here(format_text("a group is not closed by '{}'", close));
    rules_.push_back({.name = "group", .alternatives = std::move(alternatives), .defined = true});
    return {.rule = rules_.size() - 1};
  }

  // The next part of an alternative; nothing at its end.
  std::optional<Element> element() {
    skip();
    const std::size_t start = at_;
    if (take("(")) return group(")");
    if (peek() == '"' || peek() == '\'') return quoted();
    if (peek() == '<') return named_token();
    if (lark_ && take("[")) {
      Element part = group("]");
      part.min = 0;
      return part;
    }
    if (take("[")) {
      inside("a class", ']');
      return Element{.expr = regex(text_.substr(start, at_ - start)), .terminal = true};
    }
    if (lark_ && take("/")) {
      const ExprId expr = regex(inside("a regular expression", '/'));
      if (is_name(peek())) fail_here("flags of regular expressions are not supported");
      return Element{.expr = expr, .terminal = true};
    }
    if (take(".")) return Element{.expr = utf8_character(ex_, CharacterSet::all()), .terminal = true};
    const std::string name(word());
    if (name.empty()) return std::nullopt;
    const std::size_t end = at_;
    if (take(".")) word();
    skip();
    if (peek() == ':') {  // the next rule
      at_ = start;
      return std::nullopt;
    }
    at_ = end;
    if (in_terminal_ && !is_terminal(name))
      fail_here(format_text("a terminal consists of terminals, not of the rule {}", in_quotes(name)));
    return Element{.rule = rule_named(name), .terminal = lark_ && is_terminal(name)};
  }

  Element quoted() {
    const std::u32string text = string();
    if (lark_ && take("..")) {
      skip();
      const std::u32string last = peek() == '"' || peek() == '\'' ? string() : U"";
      if (text.size() != 1 || last.size() != 1 || text > last)
        fail_here("a range such as \"a\"..\"z\" is expected");
      return {.expr = utf8_character(ex_, {{text.front(), last.front()}}), .terminal = true};
    }
    const bool any_case = lark_ && take("i");
    ExprId expr = kEmpty;
    for (std::size_t i = text.size(); i-- > 0;) {
      CharacterSet set = {{text[i], text[i]}};
      const char32_t lower = text[i] | 32;
      if (any_case && lower >= 'a' && lower <= 'z') set = {{lower - 32, lower - 32}, {lower, lower}};
      expr = ex_.concat(utf8_character(ex_, set), expr);
    }
    return {.expr = expr, .terminal = true};
  }

  // A quoted string's characters.
  std::u32string string() {
    const std::string_view text = inside("a string", text_[at_++]);
    for (std::size_t i = 0; i < text.size(); ++i)
      if (text[i] == '\\' && kEscapes.find(text[++i]) == kEscapes.npos)
        fail_here(
            "a string's escape is none of \\n, \\r, \\t, \\f, \\v, \\0, \\xHH, \\uHHHH, \\UHHHHHHHH and "
            "marks");
    return located([&] { return string_characters(text); });
  }

  // The text up to a mark that no backslash stands before. Moves behind that.
  std::string_view inside(std::string_view what, char close) {
    const std::size_t start = at_;
    while (at_ < text_.size() && text_[at_] != close) at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) fail_here(format_text("{} is not closed by {}", what, close));
    return text_.substr(start, at_++ - start);
  }

  Element named_token() {
    ex_.check_time();
    const std::size_t end = text_.find('>', at_);
    if (end == std::string_view::npos) fail_here("a token such as <[12]> or <name> is expected");
    const std::string_view name = text_.substr(at_, end + 1 - at_);
    int id = -1;
    if (name.starts_with("<[")) {
      if (name.ends_with("]>")) id = parse_number<int>(name.substr(2, name.size() - 4)).value_or(-1);
      if (id < 0 || id >= vocabulary_.size()) fail_here(format_text("there is no token {}", in_quotes(name)));
    } else {
      id = special_token(vocabulary_, name);
    }
    at_ = end + 1;
    return {.expr = ex_.token(id)};
  }

  Expressions& ex_;
  std::string_view text_;
  const Vocabulary& vocabulary_;
  std::size_t at_ = 0;
  unsigned depth_ = 0;
  bool lark_ = false;
  bool in_terminal_ = false;
  std::vector<Rule> rules_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::set<std::string> imported_;
  std::vector<Element> ignored_;
};

// Expressions of rules. What is not recursive needs no rule of its own, and is a lexeme where it is regular.
class RuleBuilder {
 public:
  RuleBuilder(Expressions& expressions, Rules rules) : ex_(expressions), rules_(std::move(rules)) {}

  ExprId root() {
    std::vector<ExprId> ignored;
    for (const Element& element : rules_.ignored) ignored.push_back(build(element));
    ignored_ = ex_.lexeme(ex_.repeat(ex_.any_of(std::move(ignored))));
    return ex_.concat(ignored_, build(rules_.root));
  }

 private:
  ExprId build(const Element& element) {
    ExprId expr = element.rule == kNoRule ? element.expr : build(element.rule);
    if (element.terminal && !in_terminal_) expr = ex_.concat(ex_.lexeme(expr), ignored_);
    return ex_.repeat(expr, element.min, element.max);
  }

  ExprId build(const Sequence& sequence, std::size_t first) {
    ExprId result = kEmpty;
    for (std::size_t i = sequence.size(); i-- > first;) result = ex_.concat(build(sequence[i]), result);
    return result;
  }

  ExprId build(std::size_t index) {
    Rule& rule = rules_.all[index];
    return ex_.recursive(rule.built, [&] {
      if (++depth_ > kMaxRuleDepth)
        throw GrammarError("grammar: rules refer to one another in a chain that is too long");
      const bool outer = std::exchange(in_terminal_, in_terminal_ || rule.terminal);
      const std::set<std::size_t> circle = left_circle(index);
      std::vector<ExprId> parts;
      if (circle.empty()) {
        for (const Sequence& sequence : rule.alternatives) parts.push_back(build(sequence, 0));
      } else {
        parts = left_recursive(index, circle);
      }
      --depth_;
      in_terminal_ = outer;
      return ex_.lexeme(ex_.any_of(std::move(parts)));
    });
  }

  static std::size_t left_rule(const Sequence& sequence) {
    const bool once = !sequence.empty() && sequence.front().min == 1 && sequence.front().max == 1;
    return once ? sequence.front().rule : kNoRule;
  }

  // The rules that a rule may begin with.
  std::set<std::size_t> left_rules(std::size_t from) {
    std::set<std::size_t> found;
    std::vector<std::size_t> open = {from};
    while (!open.empty()) {
      const std::size_t at = open.back();
      open.pop_back();
      ex_.check_time();
      for (const Sequence& sequence : rules_.all[at].alternatives) {
        const std::size_t next = left_rule(sequence);
        if (next != kNoRule && found.insert(next).second) open.push_back(next);
      }
    }
    return found;
  }

  // Those of them that may begin with it; none, if it may not begin with itself.
  std::set<std::size_t> left_circle(std::size_t index) {
    std::set<std::size_t> circle = left_rules(index);
    if (!circle.contains(index)) return {};
    std::erase_if(circle, [&](std::size_t other) { return !left_rules(other).contains(index); });
    return circle;
  }

  // A rule A of a circle begins with an alternative of one of its rules B that begins otherwise; what may
  // follow until A is complete is a rule of its own for each B.
  std::vector<ExprId> left_recursive(std::size_t index, const std::set<std::size_t>& circle) {
    std::map<std::size_t, std::uint32_t> after;
    for (const std::size_t b : circle) after[b] = ex_.new_rule();
    std::vector<ExprId> starts;
    std::map<std::size_t, std::vector<ExprId>> continuations;
    continuations[index].push_back(kEmpty);
    for (const std::size_t c : circle) {
      for (const Sequence& sequence : rules_.all[c].alternatives) {
        const std::size_t b = left_rule(sequence);
        const bool inside = b != kNoRule && after.contains(b);
        (inside ? continuations[b] : starts)
            .push_back(ex_.concat(build(sequence, inside ? 1 : 0), ex_.rule(after[c])));
      }
    }
    for (auto& [b, parts] : continuations) ex_.define(after[b], ex_.any_of(std::move(parts)));
    return starts;
  }

  Expressions& ex_;
  Rules rules_;
  ExprId ignored_ = kEmpty;
  bool in_terminal_ = false;
  unsigned depth_ = 0;
};

}  // namespace

int special_token(const Vocabulary& vocabulary, std::string_view name) {
  for (const int id : vocabulary.special_ids())
    if (vocabulary.token(id).bytes == name) return id;
  throw GrammarError(format_text("the vocabulary has no special token {}", in_quotes(name)));
}

ExprId compile_rules(Expressions& expressions, std::string_view text, const Vocabulary& vocabulary) {
  return RuleBuilder(expressions, RuleParser(expressions, text, vocabulary).parse()).root();
}

}  // namespace quire::grammar
