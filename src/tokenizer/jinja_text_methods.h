#pragma once

#include <cstddef>
#include <string_view>

#include "tokenizer/jinja_unicode.h"
#include "tokenizer/jinja_value.h"

// What string methods and filters share. Offsets are bytes.
namespace quire::jinja {

// append(std::string& out, char32_t code_point) for each; the trust of what it appends is the code point's.
template <typename Append>
Text map_code_points(Runtime& runtime, const Text& text, Append&& append) {
  runtime.charge(2 * text.memory());
  Text result;
  text.for_each_run([&](std::string_view run, bool trusted) {
    std::string mapped;
    for (std::size_t offset = 0; offset < run.size();) append(mapped, next_code_point(run, offset));
    result.append(mapped, trusted);
  });
  return result;
}

Text upper(Runtime& runtime, const Text& text);
Text lower(Runtime& runtime, const Text& text);
Text capitalize(Runtime& runtime, const Text& text);

// Without the code points in `characters` at its ends; without spaces where it is null.
Text strip(Runtime& runtime, const Text& text, const Text* characters, bool left = true, bool right = true);

// Replaces up to `count` occurrences, all of them if it is negative.
Text replace(Runtime& runtime, const Text& text, const Text& old, const Text& replacement,
             std::int64_t count);

std::vector<Text> split_lines(Runtime& runtime, const Text& text);
Text join(Runtime& runtime, const Text& separator, std::span<const Value> items);  // items by str()

// Whether there is a cased letter and none of the other case.
bool is_all_upper(const Text& text);
bool is_all_lower(const Text& text);

}  // namespace quire::jinja
