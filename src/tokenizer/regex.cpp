#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <new>

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

constexpr std::uint32_t kMatchLimit = 10'000'000;  // backtracking steps of one match: well under a second
constexpr std::uint32_t kHeapLimit = 64 * 1024;    // KiB
// A match is searched from this many bytes on at a time, so that the clock is looked at between.
constexpr std::size_t kSearchWindow = 4096;
constexpr std::size_t kCallsPerClock = 16;  // of which each may take kMatchLimit steps
constexpr std::size_t kMaxPatternBytes = 16 * 1024;

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

pcre2_code* compile(std::string_view pattern, int& error, std::size_t& offset) {
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  constexpr std::uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT | PCRE2_NEVER_BACKSLASH_C;
  return pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), kOptions, &error,
                       &offset, context.get());
}

// Whether PCRE2 knows a name as that of a script.
bool is_script(std::string_view name) {
  int error = 0;
  std::size_t offset = 0;
  pcre2_code* code = compile(format_text("\\p{{sc:{}}}", name), error, offset);
  pcre2_code_free(code);
  return code != nullptr;
}

// The class escapes, and their members as they stand inside PCRE2 brackets.
constexpr std::pair<char, std::string_view> kClassEscapes[] = {
    {'s', "\\p{White_Space}"},
    {'d', "\\p{Nd}"},
    {'w',
     "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"},  // all numerals of Latin-1
    {'h', "0-9a-fA-F"}};

// Rewrites a pattern from Oniguruma's Ruby syntax, which tokenizer.json uses, to PCRE2's, where the two
// differ in meaning: \s \d \w \h \v, \u, scripts as \p{...}, nested classes, {,n}. Error for what has no
// equal meaning there and what no published tokenizer uses: back references, flags other than i, && in
// classes.
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
    for (const auto& [escape, members] : kClassEscapes)
      if (escape == lower) return class_escape(c != lower, members);
    if (lower == 'p') return property();
    if (c == 'u') return code_point();
    if (c == 'v') return replace(2, "\\x0b");
    constexpr std::string_view kSame = "rntfaex";
    constexpr std::string_view kSameOutsideClass = "AzZ";
    if (kSame.find(c) == kSame.npos && (class_depth_ > 0 || kSameOutsideClass.find(c) == kSame.npos))
      refuse(format_text("\\{}", c));
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
    if (digits.size() < 4 || !std::ranges::all_of(digits, [](unsigned char c) { return std::isxdigit(c); }))
      refuse("\\u without four hexadecimal digits");
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
    for (const std::string_view opening : kSame)
      if (rest_.starts_with(opening)) return take(opening.size());
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

Regex Regex::from_oniguruma(std::string_view pattern, std::string_view where) {
  return from_pcre2(Translator(pattern, where).run(), where);
}

Regex Regex::from_pcre2(std::string_view pattern, std::string_view where) {
  if (pattern.size() > kMaxPatternBytes)
    fail("{}: a pattern of {} bytes, more than the limit of {}", where, pattern.size(), kMaxPatternBytes);
  int error = 0;
  std::size_t offset = 0;
  pcre2_code* code = compile(pattern, error, offset);
  if (code == nullptr)
    fail("{}: not a usable pattern: {} (at byte {} of {})", where, message_of(error), offset, pattern);
  Regex regex({code, [](const pcre2_code* c) { pcre2_code_free(const_cast<pcre2_code*>(c)); }});
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without a JIT the interpreter gives the same matches
  return regex;
}

Regex Regex::literal(std::string_view text, std::string_view where) {
  std::string pattern;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c))) pattern += '\\';
    pattern += c;
  }
  return from_pcre2(pattern, where);
}

RegexScanner::RegexScanner(const Regex& regex, std::chrono::nanoseconds time_limit)
    : regex_(regex),
      data_(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free),
      context_(pcre2_match_context_create(nullptr), &pcre2_match_context_free),
      time_limit_(time_limit) {
  if (!data_ || !context_) throw std::bad_alloc();
  pcre2_set_match_limit(context_.get(), kMatchLimit);
  pcre2_set_heap_limit(context_.get(), kHeapLimit);
}

void RegexScanner::start(std::string_view text) {
  text_ = text;
  position_ = 0;
  last_end_.reset();
}

void RegexScanner::check_time() {
  if (++calls_ % kCallsPerClock != 0) return;
  const auto now = std::chrono::steady_clock::now();
  if (!deadline_) deadline_ = now + time_limit_;
  if (now > *deadline_)
    fail("a tokenizer pattern took over {} s for one text",
         std::chrono::duration<double>(time_limit_).count());
}

std::optional<TextRange> RegexScanner::match_from(std::size_t position) {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
  while (true) {
    check_time();
    const std::size_t limit = position + kSearchWindow;
    pcre2_set_offset_limit(context_.get(), limit);
    int rc = pcre2_match(regex_.code_.get(), subject, text_.size(), position, PCRE2_NO_UTF_CHECK, data_.get(),
                         context_.get());
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter's stack is on the heap
      rc = pcre2_match(regex_.code_.get(), subject, text_.size(), position, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       data_.get(), context_.get());
    }
    if (rc >= 0) {
      const std::size_t* bounds = pcre2_get_ovector_pointer(data_.get());
      return TextRange{bounds[0], bounds[1]};
    }
    if (rc != PCRE2_ERROR_NOMATCH)
      fail("tokenizer.json: a pattern cannot be matched with this text: {}", message_of(rc));
    if (limit >= text_.size()) return std::nullopt;
    position = character_begin(text_, limit);  // the limit is inclusive
  }
}

std::optional<TextRange> RegexScanner::next() {
  while (position_ <= text_.size()) {
    const std::optional<TextRange> match = match_from(position_);
    if (!match) break;
    if (match->begin == match->end && match->end == last_end_) {
      position_ =
          match->end < text_.size() ? match->end + read_utf8(text_, match->end).length : text_.size() + 1;
      continue;
    }
    position_ = match->end;
    last_end_ = match->end;
    return match;
  }
  position_ = text_.size() + 1;
  return std::nullopt;
}

}  // namespace quire
