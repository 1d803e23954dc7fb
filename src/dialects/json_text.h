#pragma once

#include <string>
#include <string_view>

#include "base/format.h"
#include "base/json.h"

namespace quire::dialects {

// Appends one byte of a JSON string's text, escaped where it has to be.
inline void append_json_byte(std::string& json, char c) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  const std::size_t at = kEscaped.find(c);
  if (at != kEscaped.npos) {
    json += '\\';
    json += kLetters[at];
  } else if (static_cast<unsigned char>(c) < 0x20) {
    json += format_text("\\u{:04x}", static_cast<unsigned>(c));
  } else {
    json += c;
  }
}

inline std::string json_string(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) append_json_byte(json, c);
  return json + '"';
}

}  // namespace quire::dialects
