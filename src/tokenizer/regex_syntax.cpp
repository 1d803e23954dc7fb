#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "tokenizer/regex.h"

namespace quire {
namespace {

// The class escapes, and their members as they stand inside PCRE2 brackets.
constexpr std::pair<char, std::string_view> kClassEscapes[] = {
    {'s', "\\p{White_Space}"},
    {'d', "\\p{Nd}"},
    {'w',
     "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"},  // all numerals of Latin-1
    {'h', "0-9a-fA-F"}};

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where)
      : rest_(pattern), pattern_(pattern), where_(where) {}

  std::string run() {
    while (!rest_.empty()) {
      const char c = rest_.front();
      if (c == '\\') {
        escape();
      } else if (class_depth_ > 0) {
        class_character(c);
      } else if (c == '[') {
        open_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        brace();
      } else {
        take(1);
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail("{}: the pattern {} uses {}, which is not supported", where_, pattern_, what);
  }

  void take(std::size_t count) {
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }
  void replace(std::size_t count, std::string_view with) {
    out_ += with;
    rest_.remove_prefix(count);
  }

  void escape() {
    if (rest_.size() < 2) refuse("a backslash at its end");
    const char c = rest_[1];
    const char lower = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (!std::isalnum(static_cast<unsigned char>(c))) return take(2);
    for (const auto& [escape, members] : kClassEscapes) {
      if (escape == lower) return class_escape(c != lower, members);
    }
    if (lower == 'p') return property();
    if (c == 'u') return code_point();
    if (c == 'v') return replace(2, "\\x0b");
    constexpr std::string_view kSame = "rntfaex";
    constexpr std::string_view kSameOutsideClass = "AzZ";
    if (kSame.find(c) == kSame.npos && (class_depth_ > 0 || kSameOutsideClass.find(c) == kSame.npos)) {
      refuse(format_text("\\{}", c));
    }
    take(2);
  }

  void class_escape(bool negated, std::string_view members) {
    if (class_depth_ == 0) return replace(2, format_text("[{}{}]", negated ? "^" : "", members));
    if (!negated) return replace(2, members);
    if (rest_[1] != 'S' && rest_[1] != 'D') refuse(format_text("\\{} in a class", rest_[1]));
    replace(2, rest_[1] == 'S' ? "\\P{White_Space}" : "\\P{Nd}");
  }

  // PCRE2 takes a bare script name for the script's extensions, too.
  void property() {
    const std::size_t close = rest_.find('}');
    if (rest_.size() < 3 || rest_[2] != '{' || close == rest_.npos) refuse("\\p without a name in braces");
    std::string name(rest_.substr(3, close - 3));
    const std::string negation = name.starts_with('^') ? "^" : "";
    name.erase(0, negation.size());
    const bool plain = std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) || c == '_'; });
    if (!plain) refuse(format_text("\\p{{{}}}", name));
    const bool script = name.size() > 2 && is_script(name);
    replace(close + 1, format_text("\\{}{{{}{}{}}}", rest_[1], negation, script ? "sc:" : "", name));
  }

  void code_point() {
    const std::string_view digits = rest_.substr(2, 4);
    if (digits.size() < 4 || !std::ranges::all_of(digits, [](unsigned char c) { return std::isxdigit(c); })) {
      refuse("\\u without four hexadecimal digits");
    }
    replace(6, format_text("\\x{{{}}}", digits));
  }

  void open_class() {
    class_depth_ = 1;
    take(rest_.starts_with("[^") ? 2 : 1);
    if (rest_.starts_with(']')) replace(1, "\\]");
  }

  // A class within a class adds its members.
  void class_character(char c) {
    if (rest_.starts_with("&&")) refuse("&& in a class");
    if (c == '[') {
      if (rest_.starts_with("[^") || rest_.starts_with("[:")) refuse("a negated or named class in a class");
      ++class_depth_;
      replace(1, "");
    } else if (c == ']' && --class_depth_ > 0) {
      replace(1, "");
    } else {
      take(1);
    }
  }

  void group() {
    constexpr std::array<std::string_view, 8> kSame = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    if (rest_.starts_with("(*")) refuse("(*");
    if (!rest_.starts_with("(?")) return take(1);
    for (const std::string_view opening : kSame) {
      if (rest_.starts_with(opening)) return take(opening.size());
    }
    if (out_.empty() && rest_.starts_with("(?i)")) return take(4);
    refuse(rest_.substr(0, 4));
  }

  void brace() {
    const std::size_t close = rest_.find('}');
    const std::string_view inside = close == rest_.npos ? "" : rest_.substr(1, close - 1);
    const bool quantifier = !inside.empty() && inside.find_first_not_of("0123456789,") == inside.npos;
    if (!quantifier) return take(1);
    if (rest_.substr(close + 1).starts_with('+')) refuse("{n,m}+");
    if (inside.find(',') == inside.npos && rest_.substr(close + 1).starts_with('?')) refuse("{n}?");
    replace(close + 1, format_text("{{{}{}}}", inside.front() == ',' ? "0" : "", inside));
  }

  std::string_view rest_;
  std::string_view pattern_;
  std::string_view where_;
  std::string out_;
  int class_depth_ = 0;
};

}  // namespace

std::string oniguruma_to_pcre2(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).run();
}

}  // namespace quire
