#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "tokenizer/text_piece.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;

namespace quire {

// A compiled pattern. Immutable, cheap to copy, usable from any thread.
class Regex {
 public:
  // A pattern in the syntax of tokenizer.json (Oniguruma's). `where` names it in errors. Error for what PCRE2
  // has no equal of.
  static Regex from_oniguruma(std::string_view pattern, std::string_view where);
  static Regex from_pcre2(std::string_view pattern, std::string_view where);
  static Regex literal(std::string_view text, std::string_view where);

 private:
  friend class RegexScanner;
  explicit Regex(std::shared_ptr<const pcre2_real_code_8> code) : code_(std::move(code)) {}
  std::shared_ptr<const pcre2_real_code_8> code_;
};

// Walks through the matches of a pattern in one text after another. Error when a match takes more steps, or
// all of them more time, than any sound pattern needs.
class RegexScanner {
 public:
  static constexpr std::chrono::seconds kTimeLimit{30};

  explicit RegexScanner(const Regex& regex, std::chrono::nanoseconds time_limit = kTimeLimit);

  // `text` is valid UTF-8 and outlives the scan.
  void start(std::string_view text);
  // The next match that does not overlap the last. An empty match directly behind the last one does not
  // count.
  std::optional<TextRange> next();

 private:
  std::optional<TextRange> match_from(std::size_t position);
  void check_time();

  Regex regex_;
  std::unique_ptr<pcre2_real_match_data_8, void (*)(pcre2_real_match_data_8*)> data_;
  std::unique_ptr<pcre2_real_match_context_8, void (*)(pcre2_real_match_context_8*)> context_;
  std::chrono::nanoseconds time_limit_;
  std::string_view text_;
  std::size_t position_ = 0;
  std::optional<std::size_t> last_end_;
  std::size_t calls_ = 0;
  std::optional<std::chrono::steady_clock::time_point> deadline_;  // unset until calls_ is worth a look
};

}  // namespace quire
