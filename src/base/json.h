#pragma once

// clang-format off: it would come after nlohmann/json.hpp, whose memory it is about.
#include "base/json_fwd.h"
// clang-format on

#include <cstddef>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace nlohmann {

// In place of its own, which may not fail but makes a value of the text.
bool operator==(const quire::Json& value, const char* text) noexcept;
bool operator==(const quire::OrderedJson& value, const char* text) noexcept;

}  // namespace nlohmann

namespace quire {

struct JsonLimits {
  std::size_t max_depth = 64;
  std::size_t max_bytes = std::size_t{1} << 30;
  std::size_t max_values = std::numeric_limits<std::size_t>::max();  // each takes some 60 bytes once parsed
};

// Parses untrusted text. `where` names the source in errors. Error on: syntax, invalid UTF-8, a key that
// stands twice in one object, nesting, size or number of values beyond the limits; for ordered JSON also an
// object of over 4,096 keys.
Json parse_json(std::string_view text, std::string_view where, const JsonLimits& limits = {});
OrderedJson parse_ordered_json(std::string_view text, std::string_view where, const JsonLimits& limits = {});

// Takes a key out of an object, if it is there, and says so. nlohmann's own makes what follows anew in place,
// and destroys a member twice where memory ends.
bool erase_key(OrderedJson& object, std::string_view key);

// Text of a file as it may stand in a message: in quotes, on one line, nothing but ASCII, cut after 200
// bytes.
std::string in_quotes(std::string_view text);
// The same of a value: "an array", "an object", otherwise itself.
std::string describe(const Json& value);

// Reads and parses a regular file.
Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

// The whole of a regular file. Error if it is missing, no regular file, unreadable or larger than max_bytes.
std::string read_text_file(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace quire
