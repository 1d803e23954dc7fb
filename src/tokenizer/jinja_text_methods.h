#pragma once

#include <cstddef>
#include <string_view>

#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_format.h"
#include "tokenizer/jinja_unicode.h"

// What string methods, filters and tests share. Offsets are bytes.
namespace quire::jinja {

// append(std::string& out, char32_t code_point) for each; the trust of what it appends is the code point's.
template <typename Append>
Value map_code_points(Runtime& runtime, const Value& value, Append&& append) {
  const Text& text = text_of(runtime, value);
  runtime.charge(2 * text.memory());
  Text result;
  text.for_each_run([&](std::string_view run, bool trusted) {
    std::string mapped;
    for (std::size_t offset = 0; offset < run.size();) append(mapped, next_code_point(run, offset));
    result.append(mapped, trusted);
  });
  return runtime.make(std::move(result));
}

// What works alike on a string and, as a filter or a test, on what any other value prints as.
template <void (*append)(std::string&, char32_t)>
Value mapped(const Invocation& call) {
  return map_code_points(call.runtime, call.self, append);
}
Value capitalize(const Invocation& call);
Value strip(const Invocation& call);  // the code points in its argument, or spaces, off both ends
// Whether there is a cased letter of the wanted kind and none of the other.
template <bool (*wanted)(char32_t), bool (*other)(char32_t)>
Value is_all_cased(const Invocation& call) {
  const Text& text = text_of(call.runtime, call.self);
  call.runtime.charge(2 * text.size());
  bool found = false;
  for (std::size_t offset = 0; offset < text.size();) {
    const char32_t c = next_code_point(text.bytes(), offset);
    if (other(c)) return {false};
    found |= wanted(c);
  }
  return {found};
}

Text strip_spaces(Runtime& runtime, const Text& text);

// Replaces up to `count` occurrences, all of them if it is negative.
Value replace(Runtime& runtime, const Text& text, const Text& old, const Text& replacement,
              std::int64_t count);

std::vector<Text> split_lines(Runtime& runtime, const Text& text);
Value join(Runtime& runtime, const Text& separator, std::span<const Value> items);  // items by str()

}  // namespace quire::jinja
