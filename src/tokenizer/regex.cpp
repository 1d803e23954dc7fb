#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

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

std::shared_ptr<const pcre2_code> compile_or_fail(std::string_view pattern, std::string_view where) {
  if (pattern.size() > kMaxPatternBytes) {
    fail("{}: a pattern of {} bytes, more than the limit of {}", where, pattern.size(), kMaxPatternBytes);
  }
  int error = 0;
  std::size_t offset = 0;
  pcre2_code* code = compile(pattern, error, offset);
  if (code == nullptr)
    fail("{}: not a usable pattern: {} (at byte {} of {})", where, message_of(error), offset, pattern);
  std::shared_ptr<const pcre2_code> owned(
      code, [](const pcre2_code* c) { pcre2_code_free(const_cast<pcre2_code*>(c)); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without a JIT the interpreter gives the same matches
  return owned;
}

}  // namespace

bool is_script(std::string_view name) {
  int error = 0;
  std::size_t offset = 0;
  pcre2_code* code = compile(format_text("\\p{{sc:{}}}", name), error, offset);
  pcre2_code_free(code);
  return code != nullptr;
}

Regex Regex::from_oniguruma(std::string_view pattern, std::string_view where) {
  return from_pcre2(oniguruma_to_pcre2(pattern, where), where);
}

Regex Regex::from_pcre2(std::string_view pattern, std::string_view where) {
  return Regex(compile_or_fail(pattern, where));
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

RegexScanner::~RegexScanner() = default;

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
