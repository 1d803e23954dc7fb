#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quire::server {

enum class JsonStatus {
  kMore,   // the value goes on
  kEnd,    // this byte ends it
  kPast,   // it ended before this byte: only a number does
  kError,  // this byte cannot stand here
};

inline bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Decodes one JSON string byte by byte, from behind its opening quote. Half a surrogate pair is an error.
// That the text is UTF-8 is not checked.
class JsonStringReader {
 public:
  // Appends to `decoded` the character that `c` completes. Never kPast.
  JsonStatus push(char c, std::string& decoded);

 private:
  enum class State { kPlain, kEscape, kHex };

  JsonStatus end_escape(char c, std::string& decoded);
  JsonStatus push_hex(char c, std::string& decoded);

  State state_ = State::kPlain;
  int digits_ = 0;             // of \uXXXX, read so far
  std::uint32_t unit_ = 0;     // their value
  std::uint32_t leading_ = 0;  // the first half of a surrogate pair
};

// Checks one JSON value byte by byte, in constant time and space. After anything but kMore it takes no more.
class JsonScanner {
 public:
  static constexpr int kMaxDepth = 64;  // as JsonLimits has it: clients send arguments back to us

  JsonStatus push(char c);

 private:
  enum class State { kValue, kFirstValue, kFirstKey, kKey, kColon, kAfterValue, kString, kNumber, kLiteral };
  enum class Number { kSign, kZero, kInteger, kPoint, kFraction, kExponent, kExponentSign, kExponentDigits };

  JsonStatus begin_value(char c);
  JsonStatus open(bool object);
  JsonStatus after_value(char c);
  JsonStatus end_value();
  bool continue_number(char c);
  bool number_is_complete() const;

  State state_ = State::kValue;
  std::uint64_t objects_ = 0;  // bit i: what is open at depth i is an object
  int depth_ = 0;
  bool in_key_ = false;  // of kString
  JsonStringReader string_;
  std::string decoded_;  // of the string, thrown away
  Number number_ = Number::kSign;
  std::string_view literal_;  // what is left of it
};

}  // namespace quire::server
