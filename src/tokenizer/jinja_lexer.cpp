#include "tokenizer/jinja_lexer.h"

#include <array>
#include <charconv>
#include <cstdint>

#include "tokenizer/jinja_text.h"
#include "tokenizer/text_steps.h"

namespace quire::jinja {
namespace {

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_char(char c) { return is_name_start(c) || is_ascii_digit(c); }

// One kind of newline, and none at the very end.
std::string normalize_newlines(std::string_view source) {
  std::string text = replace_all(replace_all(source, "\r\n", "\n"), "\r", "\n");
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string_view source, std::string_view where)
      : owned_(normalize_newlines(source)), source_(owned_), where_(where) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) lex_data();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}, line {}: {}", where_, line_, format_text(format, std::forward<Args>(args)...));
  }

  char byte_at(std::size_t place) const { return place < source_.size() ? source_[place] : '\0'; }
  bool has_sign(std::size_t place) const { return byte_at(place) == '-' || byte_at(place) == '+'; }
  std::string_view rest() const { return source_.substr(at_); }
  bool next_is(std::string_view text) const { return rest().starts_with(text); }

  void add(TokenKind kind, std::string_view text) { tokens_.push_back({kind, line_, std::string(text)}); }

  void advance(std::size_t bytes) {
    line_ += static_cast<int>(std::ranges::count(rest().substr(0, bytes), '\n'));
    at_ += bytes;
    line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  void skip_space() { advance(rest().size() - strip_left(rest(), is_space).size()); }

  // Adds the text up to the tag that opens at `tag`, less the whitespace that the tag's sign or lstrip_blocks
  // takes.
  void add_data(std::size_t tag, bool is_variable) {
    std::string_view text = source_.substr(at_, tag - at_);
    if (byte_at(tag + 2) == '-') {
      text = strip_right(text, is_space);
    } else if (byte_at(tag + 2) != '+' && !is_variable) {
      const std::size_t line_begin = text.rfind('\n') + 1;  // npos + 1 is 0
      if ((line_begin > 0 || line_starting_) && strip_right(text.substr(line_begin), is_space).empty())
        text = text.substr(0, line_begin);
    }
    if (!text.empty()) add(TokenKind::kData, text);
    advance(tag - at_);
  }

  // Takes what closes a tag, `end` ("%}", "}}", "#}") with its sign, and the whitespace it takes with it.
  // False if something else stands here.
  bool close(std::string_view end, bool trim_newline) {
    const bool strip = next_is("-"), keep = next_is("+") && end != "}}";
    const std::size_t sign = strip || keep ? 1 : 0;
    if (!rest().substr(sign).starts_with(end)) return false;
    advance(sign + end.size());
    if (strip) skip_space();
    if (sign == 0 && trim_newline && next_is("\n")) advance(1);
    return true;
  }

  void lex_data() {
    std::size_t tag = source_.find('{', at_);
    while (tag != source_.npos && std::string_view("%{#").find(byte_at(tag + 1)) == source_.npos)
      tag = source_.find('{', tag + 1);
    if (tag == source_.npos) {
      add(TokenKind::kData, rest());
      at_ = source_.size();
      return;
    }
    const char next = byte_at(tag + 1);
    add_data(tag, next == '{');
    if (next == '#') {
      lex_comment();
    } else if (next == '{') {
      lex_tag(TokenKind::kVariableBegin, TokenKind::kVariableEnd, "}}");
    } else if (!lex_raw()) {
      lex_tag(TokenKind::kBlockBegin, TokenKind::kBlockEnd, "%}");
    }
  }

  void lex_comment() {
    advance(has_sign(at_ + 2) ? 3 : 2);
    const std::size_t end = source_.find("#}", at_);
    if (end == source_.npos) refuse("a comment is not closed by '#}}'");
    advance((end > at_ && has_sign(end - 1) ? end - 1 : end) - at_);
    close("#}", true);
  }

  // At "{%": if it opens a block `name` without arguments, the length up to its end sign, else 0.
  std::size_t bare_tag_length(std::string_view name, std::size_t from) const {
    std::string_view tail = strip_left(source_.substr(from + (has_sign(from + 2) ? 3 : 2)), is_space);
    if (!tail.starts_with(name)) return 0;
    tail = strip_left(tail.substr(name.size()), is_space);
    const bool closes =
        tail.starts_with("%}") || tail.starts_with("-%}") || (tail.starts_with("+%}") && name == "endraw");
    return closes ? source_.size() - tail.size() - from : 0;
  }

  bool lex_raw() {
    const std::size_t open = bare_tag_length("raw", at_);
    if (open == 0) return false;
    advance(open);
    close("%}", false);
    for (std::size_t tag = at_; (tag = source_.find("{%", tag)) != std::string_view::npos; ++tag) {
      const std::size_t length = bare_tag_length("endraw", tag);
      if (length == 0) continue;
      add_data(tag, false);
      advance(length);
      close("%}", true);
      return true;
    }
    refuse("a raw block is not closed by 'endraw'");
  }

  void lex_tag(TokenKind begin, TokenKind end, std::string_view closing) {
    add(begin, "");
    advance(has_sign(at_ + 2) ? 3 : 2);
    std::vector<char> brackets;
    while (true) {
      skip_space();
      if (at_ == source_.size()) refuse("a tag is not closed by '{}'", closing);
      const int line = line_;
      if (brackets.empty() && close(closing, closing == "%}")) {
        tokens_.push_back({end, line, ""});
        return;
      }
      lex_token(brackets);
    }
  }

  void lex_token(std::vector<char>& brackets) {
    const char c = source_[at_];
    if (is_ascii_digit(c)) {
      lex_number();
    } else if (is_name_start(c)) {
      std::size_t end = at_;
      while (is_name_char(byte_at(end))) ++end;
      add(TokenKind::kName, source_.substr(at_, end - at_));
      advance(end - at_);
    } else if (c == '\'' || c == '"') {
      lex_string(c);
    } else {
      lex_operator(brackets);
    }
  }

  // Where digits with single underscores between them end that begin at `begin`.
  std::size_t digits_end(std::size_t begin) const {
    std::size_t end = begin;
    const auto is_digit = [&](std::size_t place) { return is_ascii_digit(byte_at(place)); };
    while (is_digit(end) || (end > begin && byte_at(end) == '_' && is_digit(end + 1))) ++end;
    return end;
  }

  void lex_number() {
    std::size_t end = digits_end(at_);
    const auto extend = [&](std::size_t from) {  // by a fraction or an exponent
      if (is_ascii_digit(byte_at(from))) end = digits_end(from);
    };
    if (at_ == 0 || source_[at_ - 1] != '.') {  // x.0.1 is two subscripts
      if (byte_at(end) == '.') extend(end + 1);
      if (byte_at(end) == 'e' || byte_at(end) == 'E') extend(end + (has_sign(end + 1) ? 2 : 1));
    }
    const std::string_view text = source_.substr(at_, end - at_);
    std::string digits(text);
    std::erase(digits, '_');
    add(TokenKind::kNumber, digits);
    if (!tokens_.back().is_float() && digits[0] == '0' && digits.find_first_not_of('0') < digits.size())
      refuse("the number {} has a leading zero", text);
    advance(text.size());
  }

  void lex_string(char quote) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) refuse("a string is not closed by {}", quote);
    add(TokenKind::kString, unescape(source_.substr(at_ + 1, end - at_ - 1)));
    advance(end + 1 - at_);
  }

  char32_t parse_code(std::string_view digits, int base) const {
    std::uint32_t code = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
    if (end != digits.data() + digits.size()) refuse("a string escape holds '{}', no digit", *end);
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) refuse("a string escape is no character");
    return code;
  }

  // Python's escapes; an unknown one stands for itself.
  std::string unescape(std::string_view text) const {
    static constexpr std::string_view kSimple = "abfnrtv\\'\"";
    static constexpr std::string_view kMeaning = "\a\b\f\n\r\t\v\\'\"";
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out += text[i];
        continue;
      }
      const char kind = text[++i];
      const std::string_view tail = text.substr(i + 1);
      if (const std::size_t at = kSimple.find(kind); at != std::string_view::npos) {
        out += kMeaning[at];
      } else if (kind == 'x' || kind == 'u' || kind == 'U') {
        const std::size_t length = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
        if (tail.size() < length) refuse("a string escape is cut short");
        append_utf8(out, parse_code(tail.substr(0, length), 16));
        i += length;
      } else if (kind >= '0' && kind <= '7') {
        std::string_view digits = text.substr(i, 3);
        digits = digits.substr(0, digits.find_first_not_of("01234567"));
        append_utf8(out, parse_code(digits, 8));
        i += digits.size() - 1;
      } else if (kind == 'N') {
        refuse("characters by name (\\N) are not supported in strings");
      } else if (kind != '\n') {
        out += '\\';
        out += kind;
      }
    }
    return out;
  }

  void lex_operator(std::vector<char>& brackets) {
    static constexpr std::array<std::string_view, 26> kOperators = {
        "//", "**", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
        ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ".", ",", ":", "|", ";"};
    const auto* symbol =
        std::ranges::find_if(kOperators, [&](std::string_view candidate) { return next_is(candidate); });
    if (symbol == kOperators.end()) {
      const Character found = character_at(source_, at_);
      refuse("unexpected '{}' in a tag", source_.substr(at_, found.end - at_));
    }
    const char c = (*symbol)[0];
    static constexpr std::string_view kOpening = "([{", kClosing = ")]}";
    if (const std::size_t kind = kOpening.find(c); kind != kOpening.npos) {
      brackets.push_back(kClosing[kind]);
    } else if (kClosing.find(c) != kClosing.npos) {
      if (brackets.empty() || brackets.back() != c) refuse("unexpected '{}'", c);
      brackets.pop_back();
    }
    add(TokenKind::kOperator, *symbol);
    advance(symbol->size());
  }

  const std::string owned_;
  const std::string_view source_;
  const std::string_view where_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // nothing, or a newline, stands before at_
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> lex(std::string_view source, std::string_view where) { return Lexer(source, where).run(); }

}  // namespace quire::jinja
