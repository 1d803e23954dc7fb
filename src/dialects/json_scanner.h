#pragma once

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

namespace quire::dialects {

// Of what is read byte by byte.
enum class ReadStatus {
  kMore,   // it goes on
  kEnd,    // this byte ends it; of a number, it stands behind it
  kError,  // this byte cannot stand here
};

inline constexpr std::string_view kWhiteSpace = " \t\n\r";
inline bool is_space(char c) { return kWhiteSpace.find(c) != kWhiteSpace.npos; }
inline bool is_blank(std::string_view text) { return text.find_first_not_of(kWhiteSpace) == text.npos; }
// Without the white space around it.
inline std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kWhiteSpace) + 1);
}

// A handler of Boost.JSON's parser that takes all and keeps nothing; others derive from it.
struct JsonHandler {
  using ErrorCode = boost::json::error_code;
  using Text = boost::json::string_view;
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_object_size = kNoLimit, max_array_size = kNoLimit;
  static constexpr std::size_t max_key_size = kNoLimit, max_string_size = kNoLimit;

  bool on_document_begin(ErrorCode&) { return true; }
  bool on_document_end(ErrorCode&) { return true; }
  bool on_object_begin(ErrorCode&) { return true; }
  bool on_object_end(std::size_t, ErrorCode&) { return true; }
  bool on_array_begin(ErrorCode&) { return true; }
  bool on_array_end(std::size_t, ErrorCode&) { return true; }
  bool on_key_part(Text, std::size_t, ErrorCode&) { return true; }
  bool on_key(Text, std::size_t, ErrorCode&) { return true; }
  bool on_string_part(Text, std::size_t, ErrorCode&) { return true; }
  bool on_string(Text, std::size_t, ErrorCode&) { return true; }
  bool on_number_part(Text, ErrorCode&) { return true; }
  bool on_int64(std::int64_t, Text, ErrorCode&) { return true; }
  bool on_uint64(std::uint64_t, Text, ErrorCode&) { return true; }
  bool on_double(double, Text, ErrorCode&) { return true; }
  bool on_bool(bool, ErrorCode&) { return true; }
  bool on_null(ErrorCode&) { return true; }
  bool on_comment_part(Text, ErrorCode&) { return true; }
  bool on_comment(Text, ErrorCode&) { return true; }
};

// Checks one JSON value byte by byte, in space that its depth bounds, and tells the handler of its parts.
// That the text is UTF-8 is not checked. After anything but kMore it takes no more.
template <typename Handler = JsonHandler>
class JsonScanner {
 public:
  static constexpr std::size_t kMaxDepth = 64;  // as JsonLimits has it: clients send arguments back to us

  template <typename... Args>
  explicit JsonScanner(std::size_t max_depth = kMaxDepth, Args&&... handler)
      : parser_(options(max_depth), std::forward<Args>(handler)...) {}

  ReadStatus push(char c) {
    if (is_beyond(c)) return ReadStatus::kMore;
    boost::json::error_code error;
    const bool taken = parser_.write_some(true, &c, 1, error) == 1;
    if (error || !taken) return ReadStatus::kError;
    return parser_.done() ? ReadStatus::kEnd : ReadStatus::kMore;
  }

 private:
  static boost::json::parse_options options(std::size_t max_depth) {
    boost::json::parse_options options;
    options.max_depth = max_depth;
    options.allow_invalid_utf8 = true;
    return options;
  }

  // A digit of an exponent that is longer than the parser takes; it is as good as without.
  bool is_beyond(char c) {
    if (in_string_) {
      in_string_ = c != '"' || escaped_;
      escaped_ = c == '\\' && !escaped_;
    } else if (c == 'e' || c == 'E') {
      exponent_ = 1;
    } else if (c >= '0' && c <= '9') {
      return exponent_ > 0 && ++exponent_ > kExponentDigits;
    } else if (c != '+' && c != '-') {
      exponent_ = 0;
      in_string_ = c == '"';
    }
    return false;
  }

  static constexpr int kExponentDigits = 5;
  boost::json::basic_parser<Handler> parser_;
  bool in_string_ = false, escaped_ = false;
  int exponent_ = 0;  // its digits so far, and 1
};

// Whether it is one JSON value, of numbers of any size.
inline bool is_json(std::string_view text) {
  JsonScanner<> scanner;
  ReadStatus status = ReadStatus::kMore;
  for (const char c : text) {
    if (status == ReadStatus::kEnd && !is_space(c)) return false;
    if (status == ReadStatus::kMore) status = scanner.push(c);
  }
  return status == ReadStatus::kEnd || (status == ReadStatus::kMore && scanner.push(' ') == ReadStatus::kEnd);
}

}  // namespace quire::dialects
